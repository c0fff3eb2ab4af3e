"""Lengthen a section by copies that have the names of another graph's blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from archgraph.analysis.structure import Block, Section, Structure
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.ir import ArchGraph, Batch, Leaf, Mode, Node, Ref, Value, same
from archgraph.rewrite.lengthen import sources
from archgraph.rewrite.splice import Renaming, Splice, names_in_use


def line_up(
    splice: Splice, section: Section, depth: int, like: ArchGraph, model: Structure
) -> list[str]:
    """Insert copies under the names of another graph's blocks; returns the section's blocks."""
    try:
        target = model.section(section.name)
    except GraphError as error:
        raise RewriteError(
            "like has no such section", found=section.name, expected=error.expected
        ) from None
    current = [b.name for b in section.blocks]
    missing = [b for b in target.blocks if b.name not in current]
    wanted = depth - len(current)
    if wanted > len(missing):
        raise RewriteError(
            "impossible depth",
            where=section.name,
            found=depth,
            expected=f"{len(current)} to {len(current) + len(missing)}, as in like",
        )
    spots = {b.name: splice.spot(b) for b in section.blocks}
    ends = {b.name: b.exit for b in section.blocks}  # a node of the type that each block makes
    order = [b.name for b in target.blocks]
    for wish in missing[:wanted]:
        earlier = [n for n in order[: order.index(wish.name)] if n in spots]
        before = earlier[-1] if earlier else current[-1]
        problem = ""
        for block in reversed(sources(splice.graph, section, ends[before])):
            try:
                renaming = _counterpart(splice, block, like, wish)
            except RewriteError as error:
                problem = problem or str(error)
                continue
            break
        else:
            raise RewriteError(
                "the section does not have a block that computes what like's does",
                where=wish.name,
                found=problem,
            )
        ends[wish.name] = block.exit
        spots[wish.name] = splice.insert(block, spots[before], renaming, wish.name)
        current.insert(current.index(before) + 1, wish.name)
    return current


def _counterpart(splice: Splice, block: Block, like: ArchGraph, wish: Block) -> Renaming:
    """Names of a copy of one graph's block as they are in another graph's."""
    graph, plan = splice.graph, splice.plan(block)
    pairs, named = _side_by_side(graph, block, like, wish)
    modules = {p.rpartition(".")[0]: q.rpartition(".")[0] for p, q in named.items() if "." in p + q}
    modules |= {graph.node[a].scope: like.node[b].scope for a, b in pairs.items()}
    leaves: dict[str, str] = {}
    for name in plan.leaves:
        prefix, _, last = name.rpartition(".")
        path = modules.get(prefix)
        new = named.get(name) or (last if path == "" else f"{path}.{last}")
        if (name not in named and path is None) or new not in like.param:
            _refuse(block, name, f"a leaf of {wish.name}")
        leaves[name] = new
    clash = sorted(names_in_use(splice.whole) & set(leaves.values()))
    if clash:
        raise RewriteError("leaf exists already", where=wish.name, found=clash[0])
    used = {leaf for n in plan.nodes for leaf in graph.node[n].leaves()} & named.keys()
    constants = (p for p in sorted(used) if graph.param[p].role == "constant")
    leaves |= {p: named[p] for p in constants if named[p] != p}

    def scope(node: Node) -> str:
        if node.name in pairs:
            return like.node[pairs[node.name]].scope
        return modules.get(node.scope, node.scope)

    return Renaming(leaves, scope)


def _side_by_side(
    graph: ArchGraph, block: Block, like: ArchGraph, wish: Block
) -> tuple[dict[str, str], dict[str, str]]:
    """Operators and leaves in the same places of two blocks, walked from their ends backwards."""
    pairs: dict[str, str] = {}
    named: dict[str, str] = {}
    inside, there = {*block.nodes} - {block.entry}, set(wish.nodes)
    pending = [(block.exit, wish.exit)]
    while pending:
        a, b = pending.pop()
        if (a == block.entry) != (b == wish.entry) or pairs.get(a, b) != b:
            _refuse(block, f"%{a}", f"%{b}")
        if a in pairs or a not in inside or b not in there:
            continue
        pairs[a] = b
        x, y = graph.node[a], like.node[b]
        if x.op != y.op or [k for k, _ in x.args] != [k for k, _ in y.args]:
            _refuse(block, x.op, y.op)
        for i, j in _parallel(tuple(v for _, v in x.args), tuple(v for _, v in y.args)):
            if isinstance(i, Ref) and isinstance(j, Ref):
                pending.append((i.name, j.name))
            elif isinstance(i, Leaf) and isinstance(j, Leaf):
                if named.setdefault(i.name, j.name) != j.name:
                    _refuse(block, i.name, j.name)
            elif not (_number(i) and _number(j)) and not same(i, j):
                _refuse(block, f"{x.op} with {i}", f"{y.op} with {j}")
    return pairs, named


def _number(value: Value) -> bool:
    return isinstance(value, (int, float, Batch))


def _refuse(block: Block, found: object, expected: object) -> NoReturn:
    raise RewriteError("bodies differ", where=block.name, found=found, expected=expected)


def _parallel(a: Value, b: Value) -> Iterator[tuple[Value, Value]]:
    """Scalars of two values side by side; the values themselves where their forms differ.

    What only one of them does in training (stochastic depth of rate 0 is none) does not count.
    """
    match a, b:
        case tuple(), tuple() if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from _parallel(x, y)
        case Mode(), Mode():
            yield from _parallel(a.train, b.train)
            yield from _parallel(a.eval, b.eval)
        case Mode(), _:
            yield from _parallel(a.eval, b)
        case _, Mode():
            yield from _parallel(a, b.eval)
        case _:
            yield a, b
