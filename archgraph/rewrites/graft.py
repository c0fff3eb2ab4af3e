"""Lengthen sections by copies of their blocks (FedFA, SOLAR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archgraph.analysis.structure import Block, section_blocks, structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of, takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.graph.passes import renumber
from archgraph.rewrites import laws
from archgraph.rewrites.lengthen import extend, line_up, repeat
from archgraph.rewrites.sections import integer_depths, with_sections
from archgraph.rewrites.skip import skip
from archgraph.rewrites.splice import Splice
from archgraph.states import Rewritten


@takes_graph
def graft(
    graph: ArchGraph,
    depths: Mapping[str, int | Sequence[int]],
    *,
    like: GraphLike | None = None,
    verify: bool = False,
) -> Rewritten:
    """Lengthen sections with copies of their last block, or repeat their blocks in a given order.

    If attention blocks and feed-forward blocks alternate, the copies also alternate. A
    copy has the weights of the block that it copies.

    An order is a list of block numbers, counted from 0. For example, ``[0, 1, 2, 1, 2, 3]`` is
    depth up-scaling of four blocks (SOLAR with m = 1): the four blocks occur twice, the first time
    without the last block, the second time without the first block.

    Args:
        graph: The architecture.
        depths: Dict from section to its new number of blocks or to an order of its blocks. Sections
            that are not in the dict are unchanged.
        like: An architecture from which the names of the new blocks are taken, such as the global
            model. The result can then be averaged with this architecture. Default: increase the
            number in the name of the last block.
        verify: Check that removing the new blocks restores the original graph.

    Raises:
        RewriteError: If a depth is below the section's present depth; if a section ends in a block
            that changes the shape; if a section has no counterpart in ``like``; if an order omits a
            block.
        GraphError: If a section does not exist. The message suggests the nearest name.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> deep = graft(trace(net, torch.zeros(1, 4)).graph, {"0": 3})
        >>> deep.transfer.entries["3.weight"].source
        '1.weight'

    Source: Park, Joe-Wong, *Federated Learning with Flexible Architectures*, Algorithm 2; Kim et
    al., *SOLAR 10.7B: Scaling Large Language Models with Simple yet Effective Depth Up-Scaling*.
    """
    like = None if like is None else graph_of(like)
    if not isinstance(depths, Mapping):
        raise RewriteError("depths must map sections to numbers", found=repr(depths))
    orders = {name: value for name, value in depths.items() if isinstance(value, list | tuple)}
    lengths: dict[str, Any] = {k: v for k, v in depths.items() if k not in orders}
    for name, number in ((name, i) for name, order in orders.items() for i in order):
        integer_depths({name: number})
    rewritten, blocks = grafted(graph, {**integer_depths(lengths), **orders}, like)
    if verify and blocks:
        _undone(graph, rewritten, [block.name for block in blocks])
    return rewritten


def grafted(
    graph: ArchGraph, depths: Mapping[str, int | Sequence[int]], like: ArchGraph | None = None
) -> tuple[Rewritten, tuple[Block, ...]]:
    """Return the result of :func:`graft`, and the blocks that it inserted."""
    parts = structure(graph)
    model = structure(like) if like is not None else None
    splice = Splice(graph)
    names: dict[str, list[str]] = {s.name: [b.name for b in s.blocks] for s in parts.sections}
    for name, depth in depths.items():
        section = parts.section(name)
        have = len(section.blocks)
        if not isinstance(depth, int):
            if like is not None:
                raise RewriteError("an order excludes like", where=name, found=list(depth))
            names[name] = repeat(splice, section, depth)
            continue
        if depth < have:
            least, hint = f"at least {have}", "shorten removes blocks"
            raise RewriteError(
                "depth out of range", where=name, found=depth, expected=least, hint=hint
            )
        if depth == have:
            continue
        if like is None or model is None:
            names[name] = extend(splice, section, depth)
        else:
            names[name] = line_up(splice, section, depth, like, model)
    if not splice.blocks:
        return Rewritten.identity(graph), ()
    rewritten, blocks = splice.rewritten(like)
    expected = [(k, tuple(v)) for k, v in names.items()]
    rewritten = with_sections(rewritten, graph, parts, expected)
    # With the sections of `like`, a depth of a section means the same in both graphs.
    if like is not None:
        relabelled = rewritten.graph.replace(sections=like.sections)
        if section_blocks(relabelled) == expected:
            rewritten = Rewritten(relabelled, rewritten.transfer)
    return rewritten, blocks


def _undone(graph: ArchGraph, rewritten: Rewritten, fresh: Sequence[str]) -> None:
    """Check that the grafted network runs, and that skipping its new blocks gives the original."""
    laws.check_law(graph, rewritten, None)
    again = skip(rewritten.graph, fresh).graph

    def plain(value: ArchGraph) -> ArchGraph:
        """Return the graph with canonical names and order, because a copy may change them."""
        value = renumber(value)
        return value.replace(params=tuple(sorted(value.params, key=lambda p: p.name)), sections=())

    if plain(again) != plain(graph):
        raise RewriteError(
            "the graph without its new blocks differs from the original",
            where=graph.name or "graph",
            found=", ".join(fresh),
        )
