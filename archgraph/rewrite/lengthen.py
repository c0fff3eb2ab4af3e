"""Lengthen a section by copies of its last blocks, with the next numbers in their names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from archgraph.analysis.modules import common
from archgraph.analysis.structure import Block, Section
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Node
from archgraph.ops.table import row
from archgraph.rewrite.splice import Renaming, Splice, names_in_use


def sources(graph: ArchGraph, section: Section, end: str) -> list[Block]:
    """Blocks of a section that can be repeated behind a node.

    Raises:
        RewriteError: If there is none.
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
        reason = "appends to the stream" if last.kind == "dense" else last.reason
        raise RewriteError(
            "no block that can be repeated",
            where=section.name,
            found=f"{last.name}, which {reason}" if reason else type_,
            expected="a block whose result has the type of its input",
        )
    return repeatable


def extend(splice: Splice, section: Section, depth: int) -> list[str]:
    """Append copies under new numbers; returns all block names of the section."""
    graph = splice.graph
    repeatable = sources(graph, section, section.blocks[-1].exit)
    bodies = [_layers(graph, b) for b in repeatable]
    count = len(bodies)
    period = next(
        p for p in range(1, count + 1) if all(bodies[i] == bodies[i - p] for i in range(p, count))
    )
    spot = splice.spot(section.blocks[-1])
    names = [b.name for b in section.blocks]
    for k in range(depth - len(section.blocks)):
        block = repeatable[count - period + k % period]
        old = splice.plan(block).leaves
        in_use = names_in_use(splice.whole)
        own = block.name.partition("~")[0]
        for steps in itertools.count(1):
            path = _shift(graph, own, old, steps)
            leaf = {name: ".".join(path(name.split("."))) for name in old}
            modules = {name.rpartition(".")[0] for name in leaf.values()} - {""}
            free = not in_use & {*leaf.values(), *modules}
            if free and all(name.startswith(f"{own}.") for name in old):
                module = ".".join(path(own.split(".")))
                free = not any(_under(name, module) for name in in_use)
            if free:
                break

        def scope(node: Node, path: _Shift = path) -> str:
            return ".".join(path(node.scope.split("."))) if node.scope else ""

        names.append(".".join(path(own.split("."))))
        spot = splice.insert(block, spot, Renaming(leaf, scope), names[-1])
    return names


def _layers(graph: ArchGraph, block: Block) -> tuple[str, ...]:
    """Operators of a block that own leaves: what tells two kinds of blocks apart."""
    operators = (graph.node[n] for n in block.nodes)
    return tuple(
        n.op for n in operators if row(n.op).normalises or row(n.op).weighted or row(n.op).macs
    )


def _under(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


_Shift: TypeAlias = "Callable[[Sequence[str]], list[str]]"


def _shift(graph: ArchGraph, block: str, leaf_names: Sequence[str], steps: int) -> _Shift:
    """A function that increases the number in the module paths of a block.

    The number is the last one in the path of the block's module (``layer3.1``); where the block is
    not a module, its layers' numbers in their list (``features.40``, ``features.41``).
    Without a number, one is appended.
    """
    paths = [name.split(".")[:-1] for name in leaf_names]
    module = list(common(map(tuple, paths)))
    named = block.split(".")
    if module[: len(named)] == named:
        module = named
    prefix = ".".join([*module, ""])
    shared = any(p.name.startswith(prefix) and p.name not in leaf_names for p in graph.params)
    children = {p[len(module)] for p in paths if len(p) > len(module)}
    numbers = [i for i, part in enumerate(module) if part[-1:].isdigit()]
    listed = shared and bool(children) and all(c.isdigit() for c in children)
    if listed or not module:
        depth = len(module)
    else:
        depth = numbers[-1] if numbers else len(module) - 1

    def shifted(path: Sequence[str]) -> list[str]:
        result = list(path)
        inside = list(path[:depth]) == module[:depth] and len(path) > depth
        if not inside or (depth < len(module) and path[depth] != module[depth]):
            return result
        number = re.search(r"\d+$", path[depth])
        if number:
            result[depth] = path[depth][: number.start()] + str(int(number.group()) + steps)
        elif depth < len(module) or path[depth] in children:
            result[depth] = f"{path[depth]}_{steps + 1}"
        return result

    return shifted
