"""Insert copies of blocks into a section, and name them by number or as in another graph."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from archgraph.analysis.modules import Path, common, is_numbered, path_of, under
from archgraph.analysis.structure import Block, Section, Structure
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.ir import ArchGraph, Leaf, Mode, Node, Polynomial, Ref, Value, same_value
from archgraph.module.plan import joined
from archgraph.ops.table import row
from archgraph.rewrites.splice import Renaming, Splice, names_in_use, plan_of


def repeatable_blocks(graph: ArchGraph, section: Section, end: str) -> list[Block]:
    """Return the blocks of a section whose copies can be inserted after the node ``end``.

    Raises:
        RewriteError: If no block can be inserted.
    """
    type_ = graph.node[end].type
    repeatable = [
        b
        for b in section.blocks
        if graph.node[b.entry].type == type_ == graph.node[b.exit].type
        and b.kind != "dense"
        and any(row(graph.node[n].op).macs for n in b.nodes)
    ]
    if not repeatable:
        last = section.blocks[-1]
        reason = "concatenates features to its input" if last.kind == "dense" else last.reason
        actual = f"{last.name}, which {reason}" if reason else type_
        expected = "a block whose result has the type of its input"
        raise RewriteError(
            "section has no repeatable block", where=section.name, found=actual, expected=expected
        )
    return repeatable


def extend(splice: Splice, section: Section, depth: int) -> list[str]:
    """Append copies to a section; return the names of all blocks of the section.

    The name of a copy is that of its original with a new number.
    """
    graph = splice.graph
    repeatable = repeatable_blocks(graph, section, section.blocks[-1].exit)
    bodies = [_layers(graph, b) for b in repeatable]
    count = len(bodies)
    # The shortest period: if attention and feed-forward alternate, so do the copies.
    period = next(
        p for p in range(1, count + 1) if all(bodies[i] == bodies[i - p] for i in range(p, count))
    )
    spot = splice.spot(section.blocks[-1])
    names = [b.name for b in section.blocks]
    for k in range(depth - len(section.blocks)):
        block = repeatable[count - period + k % period]
        renaming, name = _numbered(splice, block)
        names.append(name)
        spot = splice.insert(block, spot, renaming, name)
    return names


def repeat(splice: Splice, section: Section, order: Sequence[int]) -> list[str]:
    """Copy blocks of a section so that they follow a given order; return all block names.

    ``order`` is a list of block numbers. The first occurrence of a number is the existing block;
    later occurrences are copies of it.

    Raises:
        RewriteError: If a number is missing; if first occurrences are not ascending; if the input
            and output of a repeated block differ in shape or dtype.
    """
    blocks, where = section.blocks, section.name
    first = list(dict.fromkeys(order))
    if first != list(range(len(blocks))):
        raise RewriteError(
            "is not an order of the section's blocks",
            where=where,
            found=list(order),
            expected=f"each number from 0 to {len(blocks) - 1}, first occurrences ascending",
            hint="skip removes blocks",
        )
    names, spot, last = list[str](), splice.spot(blocks[0]), blocks[0]
    for number in order:
        block = blocks[number]
        if block.name not in names:
            names.append(block.name)
            spot, last = splice.spot(block), block
            continue
        if block not in repeatable_blocks(splice.graph, section, last.exit):
            raise RewriteError("block cannot be repeated here", where=where, found=block.name)
        renaming, name = _numbered(splice, block)
        names.append(name)
        spot = splice.insert(block, spot, renaming, name)
    return names


def _numbered(splice: Splice, block: Block) -> tuple[Renaming, str]:
    """Return the renaming of a block to its copy with the next free number, and the copy's name."""
    graph = splice.graph
    old = plan_of(graph, block).leaves
    in_use = names_in_use(splice.extended)
    original = block.name.partition("~")[0]
    numbering = _Numbering.of(graph, original, old)
    for steps in itertools.count(1):
        leaf = {name: numbering.shifted(name, steps) for name in old}
        # If the module of a leaf also contains other blocks, the renamed leaf stays in it.
        modules = {_module(new) for name, new in leaf.items() if _module(new) != _module(name)}
        free = not in_use & {*leaf.values(), *modules}
        module = numbering.shifted(original, steps)
        if free and module != original and all(name.startswith(f"{original}.") for name in old):
            free = not any(name == module or name.startswith(f"{module}.") for name in in_use)
        if free:
            break
    return Renaming(leaf, lambda node: numbering.shifted(node.scope, steps)), module


def _layers(graph: ArchGraph, block: Block) -> tuple[str, ...]:
    """Return the names of a block's operators with weights, which tell kinds of blocks apart."""
    operators = (graph.node[n] for n in block.nodes)
    return tuple(
        n.op for n in operators if row(n.op).normalises or row(n.op).weighted or row(n.op).macs
    )


def _module(leaf: str) -> str:
    return leaf.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class _Numbering:
    """The number in a block's module paths that is increased for each copy.

    It is the last number in the path of the block's module (``layer3.1``). If the block is not a
    module, it is the number of each of its layers in their list (``features.40``, ``features.41``).
    If no path contains a number, one is appended.

    Attributes:
        module: Path of the block's module, or of the list of layers.
        depth: Index of the path component with the number.
        moved: Components of the leaves' paths at this index.
    """

    module: Path
    depth: int
    moved: frozenset[str]

    @staticmethod
    def of(graph: ArchGraph, block: str, leaf_names: Sequence[str]) -> _Numbering:
        """Find the number in the paths of a block and its leaves."""
        leaves = [path_of(name) for name in leaf_names]
        module = common(leaf[:-1] for leaf in leaves)
        if under(module, path_of(block)):
            module = path_of(block)
        depth = max((i for i, part in enumerate(module) if is_numbered(part)), default=-1)
        if not module or _are_items(graph, module, leaf_names):
            depth = len(module)
        elif depth < 0:
            depth = len(module) - 1
        return _Numbering(module, depth, frozenset(leaf[depth] for leaf in leaves))

    def shifted(self, name: str, steps: int) -> str:
        """Return the name of a leaf or module with its number increased by ``steps``."""
        path, at = name.split("."), self.depth
        if len(path) <= at or not under(tuple(path), self.module[: at + 1]):
            return name
        number = re.search(r"\d+$", path[at])
        if number:
            path[at] = path[at][: number.start()] + str(int(number.group()) + steps)
        elif at < len(self.module) or path[at] in self.moved:
            path[at] = f"{path[at]}_{steps + 1}"
        return ".".join(path)


def _are_items(graph: ArchGraph, module: Path, leaf_names: Sequence[str]) -> bool:
    """Return whether leaves belong to numbered layers in a list that also contains other layers."""
    prefix, depth = ".".join([*module, ""]), len(module)
    shared = any(p.name.startswith(prefix) and p.name not in leaf_names for p in graph.params)
    paths = [path_of(name)[depth:-1] for name in leaf_names]
    children = {path[0] for path in paths if path}
    # The layers' own numbers are increased, not the list's.
    return shared and bool(children) and all(child.isdigit() for child in children)


def line_up(
    splice: Splice, section: Section, depth: int, like: ArchGraph, model: Structure
) -> list[str]:
    """Insert copies, named like the blocks of ``like``; return the section's block names."""
    try:
        target = model.section(section.name)
    except GraphError as error:
        raise error.within("like", kind=RewriteError) from None
    current = [b.name for b in section.blocks]
    missing = [b for b in target.blocks if b.name not in current]
    lacking = depth - len(current)
    if lacking > len(missing):
        bounds = f"{len(current)} to {len(current) + len(missing)}, as in like"
        raise RewriteError("depth out of range", where=section.name, found=depth, expected=bounds)
    spots = {b.name: splice.spot(b) for b in section.blocks}
    ends = {b.name: b.exit for b in section.blocks}  # a node with the type of each block's result
    order = [b.name for b in target.blocks]
    for wish in missing[:lacking]:
        earlier = [n for n in order[: order.index(wish.name)] if n in spots]
        before = earlier[-1] if earlier else current[-1]
        repeatable = repeatable_blocks(splice.graph, section, ends[before])
        block, renaming = _matching(splice, repeatable, like, wish)
        ends[wish.name] = block.exit
        spots[wish.name] = splice.insert(block, spots[before], renaming, wish.name)
        current.insert(current.index(before) + 1, wish.name)
    return current


def _matching(
    splice: Splice, blocks: Sequence[Block], like: ArchGraph, wish: Block
) -> tuple[Block, Renaming]:
    """Return a block that has the form of the block ``wish`` of ``like``, and its renaming."""
    problem = ""
    # The last block first, as without `like`; report why that one does not fit.
    for block in reversed(blocks):
        try:
            return block, _counterpart(splice, block, like, wish)
        except RewriteError as error:
            problem = problem or str(error)
    message = "no block of the section computes the same as this block of `like`"
    raise RewriteError(message, where=wish.name, found=problem)


def _counterpart(splice: Splice, block: Block, like: ArchGraph, wish: Block) -> Renaming:
    """Return the renaming that gives a copy of a block the names of the block ``wish``."""
    graph, plan = splice.graph, plan_of(splice.graph, block)
    pairs, counterparts = _side_by_side(graph, block, like, wish)
    modules = {
        p.rpartition(".")[0]: q.rpartition(".")[0] for p, q in counterparts.items() if "." in p + q
    }
    modules |= {graph.node[a].scope: like.node[b].scope for a, b in pairs.items()}
    leaves: dict[str, str] = {}
    for name in plan.leaves:
        leaves[name] = counterparts.get(name) or _in_module(name, modules)
        if leaves[name] not in like.param:
            _refuse(block, name, f"a leaf of {wish.name}")
    clash = sorted(names_in_use(splice.extended) & set(leaves.values()))
    if clash:
        raise RewriteError("leaf already exists", where=wish.name, found=clash[0])
    used = {leaf for n in plan.nodes for leaf in graph.node[n].leaves()} & counterparts.keys()
    constants = (p for p in sorted(used) if graph.param[p].role == "constant")
    leaves |= {p: counterparts[p] for p in constants}

    def scope(node: Node) -> str:
        if node.name in pairs:
            return like.node[pairs[node.name]].scope
        return modules.get(node.scope, node.scope)

    return Renaming(leaves, scope)


def _in_module(leaf: str, modules: Mapping[str, str]) -> str:
    """Return the name of a leaf in the module that corresponds to its module; empty if none."""
    module, _, last = leaf.rpartition(".")
    return joined(modules[module], last) if module in modules else ""


def _side_by_side(
    graph: ArchGraph, block: Block, like: ArchGraph, wish: Block
) -> tuple[dict[str, str], dict[str, str]]:
    """Match operators and leaves of two blocks, walking backwards from their outputs."""
    pairs: dict[str, str] = {}
    counterparts: dict[str, str] = {}
    inside, there = {*block.nodes} - {block.entry}, set(wish.nodes)
    pending = [(block.exit, wish.exit)]
    while pending:
        a, b = pending.pop()
        # Both must reach their input at the same time, and each operator has one counterpart.
        if (a == block.entry) != (b == wish.entry) or pairs.get(a, b) != b:
            _refuse(block, f"%{a}", f"%{b}")
        if a in pairs or a not in inside or b not in there:
            continue
        pairs[a] = b
        for i, j in _operands(block, graph.node[a], like.node[b]):
            if isinstance(i, Ref):
                pending.append((i.name, j.name))
            elif counterparts.setdefault(i.name, j.name) != j.name:
                _refuse(block, i.name, j.name)
    return pairs, counterparts


_NUMBER = int | float | Polynomial


def _operands(block: Block, x: Node, y: Node) -> Iterator[tuple[Ref | Leaf, Ref | Leaf]]:
    """Yield corresponding operands of two operators; raise if the operators differ."""
    one, other = dict(x.args), dict(y.args)
    if x.op != y.op or [*one] != [*other]:
        _refuse(block, x.op, y.op)
    for i, j in _parallel(tuple(one.values()), tuple(other.values())):
        if isinstance(i, Ref | Leaf) and isinstance(j, type(i)):
            yield i, j
        # Numbers are widths and rates, which may differ: the copy keeps those of its original.
        elif not (isinstance(i, _NUMBER) and isinstance(j, _NUMBER)) and not same_value(i, j):
            _refuse(block, f"{x.op} with {i}", f"{y.op} with {j}")


def _refuse(block: Block, actual: object, expected: object) -> NoReturn:
    raise RewriteError("blocks differ", where=block.name, found=actual, expected=expected)


def _parallel(a: Value, b: Value) -> Iterator[tuple[Value, Value]]:
    """Yield pairs of corresponding scalars of two values, or the values if their forms differ.

    If only one value differs between training and evaluation (the other has a stochastic depth of
    rate 0), only the values of evaluation are paired.
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
