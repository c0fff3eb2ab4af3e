"""The module hierarchy of a graph: module paths, and the layers that each module contains."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from archgraph.analysis.stream import Stream
from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import row

Path: TypeAlias = tuple[str, ...]


def path_of(scope: str) -> Path:
    """Return the module path of a dotted name.

    >>> path_of("layer1.0"), path_of("")
    (('layer1', '0'), ())
    """
    return tuple(scope.split(".")) if scope else ()


def common(paths: Iterable[Path]) -> Path:
    """Return the innermost module that contains all paths.

    >>> common([("layer1", "0", "conv1"), ("layer1", "0", "bn1")])
    ('layer1', '0')
    """
    same = itertools.takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False))
    return tuple(part for part, *_ in same)


def under(path: Path, module: Path) -> bool:
    """Return whether a path lies in a module."""
    return path[: len(module)] == module


def is_numbered(part: str) -> bool:
    """Return whether a module name ends in a number, as items of a list do."""
    return part[-1:].isdigit()


def siblings(a: Path, b: Path) -> bool:
    """Return whether two modules are in different items of one list of modules.

    >>> siblings(("layer1", "0", "conv"), ("layer1", "1")), siblings(("up", "0"), ("down", "0"))
    (True, False)
    """
    size = len(common((a, b)))
    if len(a) <= size or len(b) <= size:
        return False
    x, y = a[size], b[size]
    return is_numbered(x) and is_numbered(y) and re.sub(r"\d+", "*", x) == re.sub(r"\d+", "*", y)


def unique(names: Iterable[str]) -> list[str]:
    """Append a number to repeated names, so that all names differ.

    >>> unique(["l", "l", "m"])
    ['l', 'l~2', 'm']
    """
    counts: Counter[str] = Counter()
    result = []
    for name in names:
        counts[name] += 1
        result.append(name if counts[name] == 1 else f"{name}~{counts[name]}")
    return result


class Modules:
    """Modules with operators on a graph's main stream, the path of the data through the network.

    Attributes:
        order: Dict from operator to its index in topological order.
        work: Dict from module to its number of operators with weights in the stream.
        layers: Dict from module to its number of layers: operators with weights, and norms.
        classes: Dict from class (see :meth:`class_of`) to its number of modules.
    """

    def __init__(self, graph: ArchGraph, stream: Stream) -> None:
        self.graph, self.stream = graph, stream
        self.order = {n.name: i for i, n in enumerate(graph.nodes)}
        self.work: Counter[Path] = Counter()
        self.layers: Counter[Path] = Counter()
        self._places: dict[str, Path] = {}
        self._children: dict[Path, set[str]] = {}
        layers: set[tuple[str, ...]] = set()
        chains = (*stream.towers, stream.pieces)
        for name in (n for pieces in chains for p in pieces for n in p.nodes):
            # A layer that is used several times counts once, in the module of its first use.
            if not self.is_layer(name) or self.weights(name) in layers:
                continue
            layers.add(self.weights(name))
            path = self.place(name)
            for size in range(len(path) + 1):
                self.work[path[:size]] += name in stream.heavy
                self.layers[path[:size]] += 1
                if size < len(path):
                    self._children.setdefault(path[:size], set()).add(path[size])
        self.classes = Counter(map(self.class_of, self._children))

    def place(self, name: str) -> Path:
        """Return the module to which an operator belongs.

        The caller is the module in whose forward the operator was traced. If the weights of the
        operator belong to a module inside the caller, this module is returned. Otherwise, the
        caller is returned.
        """
        if name not in self._places:
            node = self.graph.node[name]
            scope = path_of(node.scope)
            owners = [
                path_of(leaf)[:-1]
                for leaf in node.leaves()
                if self.graph.param[leaf].role != "constant"
            ]
            inner = common(owners)
            self._places[name] = inner if owners and under(inner, scope) else scope
        return self._places[name]

    def class_of(self, module: Path) -> tuple[Path, frozenset[str]]:
        """Return the class of a module: its path without numbers, and the names of its children."""
        pattern = tuple(re.sub(r"\d+", "*", part) for part in module)
        return pattern, frozenset(self._children.get(module, ()))

    def weights(self, name: str) -> tuple[str, ...]:
        """Return the parameters of a layer, which are equal for all uses of the same layer."""
        # A product of two results has no leaves, so it is identified by its own name.
        return self.stream.weights(name) or (f"%{name}",)

    def count(self, names: Iterable[str]) -> int:
        """Count layers; a layer that is used several times counts once."""
        return len({self.weights(n) for n in names})

    def lists(self, module: Path, path: Path) -> bool:
        """Return whether a path is in an item of a list of modules whose other items have layers.

        The list is ``module`` or inside ``module``. Layers are operators with weights in the main
        stream.
        """
        return any(
            is_numbered(path[k]) and self.work[path[:k]] > self.work[path[: k + 1]]
            for k in range(len(module), len(path))
        )

    def is_layer(self, name: str) -> bool:
        """Return whether an operator is a layer or a norm."""
        return name in self.stream.heavy or row(self.graph.node[name].op).normalises
