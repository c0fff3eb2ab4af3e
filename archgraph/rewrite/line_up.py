"""Lengthen a section by copies that have the names of another graph's blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from archgraph.analysis.structure import Block, Section, Structure
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.ir import ArchGraph, Batch, Leaf, Mode, Node, Ref, Value, same
from archgraph.rewrite.lengthen import sources
from archgraph.rewrite.splice import Renaming, Splice


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
    """Names of a copy of one graph's block as they are in another graph's.

    Raises:
        RewriteError: If the two blocks do not compute the same but for sizes.
    """
    graph = splice.graph
    inside, there = set(block.nodes), set(wish.nodes)
    pairs: dict[str, str] = {}
    named: dict[str, str] = {}
    pending = [(block.exit, wish.exit)]

    def refuse(a: object, b: object) -> NoReturn:
        raise RewriteError("bodies differ", where=block.name, found=a, expected=b)

    while pending:
        a, b = pending.pop()
        if (a == block.entry) != (b == wish.entry):
            refuse(f"%{a}", f"%{b}")
        if pairs.get(a, b) != b:
            refuse(f"%{a}", f"%{b}")
        if a == block.entry or a in pairs or a not in inside or b not in there:
            continue
        pairs[a] = b
        x, y = graph.node[a], like.node[b]
        if x.op != y.op or [k for k, _ in x.args] != [k for k, _ in y.args]:
            refuse(x.op, y.op)
        for (_, v), (_, w) in zip(x.args, y.args, strict=True):
            for i, j in _parallel(v, w):
                match i, j:
                    case Ref(p), Ref(q):
                        pending.append((p, q))
                    case Leaf(p), Leaf(q):
                        if named.setdefault(p, q) != q:
                            refuse(p, q)
                    case (int() | Batch() | float(), int() | Batch() | float()):
                        pass
                    case _ if not same(i, j):
                        refuse(f"{x.op} with {i}", f"{y.op} with {j}")
    plan = splice.plan(block)
    modules = {p.rpartition(".")[0]: q.rpartition(".")[0] for p, q in named.items() if "." in p + q}
    modules |= {graph.node[a].scope: like.node[b].scope for a, b in pairs.items()}
    leaf: dict[str, str] = {}
    for name in plan.leaves:
        prefix, _, last = name.rpartition(".")
        new = named.get(name)
        if new is None and prefix in modules:
            new = f"{modules[prefix]}.{last}" if modules[prefix] else last
        if new is None or new not in like.param:
            refuse(name, f"a leaf of {wish.name}")
        leaf[name] = new
    names_in_use = splice.taken()
    clash = sorted(names_in_use & set(leaf.values()))
    if clash:
        raise RewriteError("leaf exists already", where=wish.name, found=clash[0])
    constants = {leaf for n in plan.nodes for leaf in graph.node[n].leaves()}
    leaf |= {
        p: named[p]
        for p in sorted(constants)
        if p in named and graph.param[p].role == "constant" and named[p] != p
    }

    def scope(node: Node) -> str:
        if node.name in pairs:
            return like.node[pairs[node.name]].scope
        return modules.get(node.scope, node.scope)

    return Renaming(leaf, scope)


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
