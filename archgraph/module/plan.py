"""Plan which paths of a graph become ``torch.nn`` layers and which become blocks with a forward.

The work of a path is the list of operators that were traced inside the module at this path. A path
is a *layer* if its work is one operator that a ``torch.nn`` layer computes with the parameters and
buffers of the path. A path is a *block* if its work is contiguous in the graph. Other work stays in
the forward of an outer block. If such operators were moved together, the order of random draws
would change, and tracing the built module would produce another graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Mode,
    Node,
    Param,
    Polynomial,
    Record,
    Ref,
    Value,
    in_mode,
    refs,
    walk,
)
from archgraph.graph.passes import specialise
from archgraph.ops import table
from archgraph.ops.layers import TorchLayer
from archgraph.ops.recurrent import Stack, stack
from archgraph.ops.schema import op_schema

DEVICE = "device"  # argument of a block for the device of new tensors
# Arguments of a block: results, leaves, values that depend on the mode, dynamic sizes, DEVICE.
Need: TypeAlias = "Ref | Leaf | Mode | Polynomial | str"
Stretch: TypeAlias = tuple[Node, ...]  # work of one call of a block, in order
# For evaluation and for training, a dict from name to operator.
Modes: TypeAlias = tuple[Mapping[str, Node], ...]


@dataclass(frozen=True)
class ModulePlan:
    """The layers and blocks of a graph.

    Attributes:
        graph: The graph to build.
        layers: Dict from path to ``torch.nn`` layer.
        calls: Dict from operator to the arguments with which its layer is called.
        stacks: Dict from path to recurrent layer. Such a layer consists of several operators. The
            call of the layer replaces the first operator, and the other operators do not have
            arguments in ``calls``.
        work: All operators in order, without inputs, and without operators that increment the
            batch counters of layers.
        updates: Buffers that forward assigns and their new values, without batch counters.
        modes: For evaluation and for training, a dict from name to operator. Arguments that depend
            on the mode have their value in this mode.
    """

    graph: ArchGraph
    layers: Mapping[str, TorchLayer]
    calls: Mapping[str, tuple[Value, ...]]
    stacks: Mapping[str, Stack]
    work: Stretch
    updates: tuple[tuple[str, Value], ...]
    modes: Modes

    @staticmethod
    def of(graph: ArchGraph) -> ModulePlan:
        """Return the plan of a graph.

        1. Group operators and leaves by module path. A path that contains another path with
           operators or leaves is not a layer.
        2. A path is a layer if one ``torch.nn`` layer computes each of its operators, or if one
           recurrent layer computes all of them. The parameters and buffers of the layer must be
           exactly the leaves of the path.
        3. Layers increment their batch counters themselves, so remove the operators that increment
           them. If a norm has several paths that share a counter, either all of them become layers,
           or none.
        """
        paths = _Paths(graph)  # 1
        layers, counters = paths.counted()  # 2, 3
        absorbed = {name for buffer in counters for name in paths.steps[buffer]}
        return ModulePlan(
            graph,
            {path: next(iter(calls.values())) for path, calls in layers.items()},
            {name: call.inputs for calls in layers.values() for name, call in calls.items()},
            paths.stacks,
            tuple(n for n in graph.nodes if n.op != "input" and n.name not in absorbed),
            tuple((buffer, value) for buffer, value in graph.updates if buffer not in counters),
            paths.modes,
        )

    # -- blocks -----------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> Mapping[str, tuple[Stretch, ...]]:
        """Dict from path to its work, divided into contiguous runs, one for each call."""
        spans: dict[str, list[list[int]]] = {}
        for index, node in enumerate(self.work):
            for path in (*ancestors(node.scope), node.scope):
                ends = spans.setdefault(path, [])
                if ends and ends[-1][1] == index:
                    ends[-1][1] = index + 1
                else:
                    ends.append([index, index + 1])
        return {
            path: tuple(call for start, end in ends for call in _calls(path, self.work[start:end]))
            for path, ends in spans.items()
        }

    @cached_property
    def readers(self) -> Mapping[str, tuple[tuple[str, Value], ...]]:
        """Dict from result to its users, each with the argument that contains the result.

        For a result that forward returns, one of the users is ``""``.
        """
        readers: dict[str, list[tuple[str, Value]]] = {}
        values = [(node.name, value) for node in self.work for _, value in node.args]
        for user, value in (*values, ("", self.graph.outputs)):
            for item in scalars(value):
                for name in refs(item):
                    readers.setdefault(name, []).append((user, item))
        return {name: tuple(users) for name, users in readers.items()}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Dict from operator to its index in :attr:`work`; -1 for inputs."""
        inputs = {n.name: -1 for n in self.graph.nodes if n.op == "input"}
        return inputs | {n.name: index for index, n in enumerate(self.work)}

    def results(self, path: str, run: Stretch) -> tuple[Ref | Mode, ...]:
        """Return the results of ``run`` that are used outside of it, in order.

        A value that differs between training and evaluation is a single result if ``run`` computes
        both variants, or can take the other variant as an argument. The block then selects the
        variant by its own mode.
        """
        inside = {n.name for n in run}
        stored = {  # in buffers of other modules
            name
            for buffer, value in self.updates
            if not is_under(self.home[buffer], path)
            for name in refs(value)
        }
        results: dict[Ref | Mode, None] = {}
        for node in run:
            read = [v for user, v in self.readers.get(node.name, ()) if user not in inside]
            read += [Ref(node.name)] if node.name in stored else []
            for value in read:
                decides = isinstance(value, Mode) and self._has_sides(value, run, inside)
                results[value if decides else Ref(node.name)] = None  # type: ignore[index]  # a Mode
        return tuple(results)

    def _has_sides(self, value: Mode, run: Stretch, inside: Container[str]) -> bool:
        """Return whether ``run`` has both variants of a value, computed inside or before."""
        start = self.order[run[0].name]
        return all(
            isinstance(side, Leaf)
            or (isinstance(side, Ref) and (side.name in inside or self.order[side.name] < start))
            for side in (value.train, value.eval)
        )

    def needs(self, path: str, run: Stretch) -> tuple[Need, ...]:
        """Return the values that ``run`` uses but that do not come from it or its path.

        They are sorted by first use.

        1. Arguments of its operators and layers, and both variants of values that it selects by its
           mode. If both variants come from outside, the caller selects one.
        2. Dynamic sizes, except those that can be read from the shapes of these tensors. If there
           is no tensor, also the device for new tensors.
        """
        operands: Value = tuple(
            self.calls.get(n.name, tuple(value for _, value in n.args)) for n in run
        )
        items = (*scalars(operands), *self.results(path, run))
        inside = {n.name for n in run}
        needs = dict.fromkeys(n for item in items for n in self._outside(item, path, inside))  # 1
        tensors = [name for need in needs if (name := self.steady(need)) is not None]  # 2
        needs |= dict.fromkeys(self._untold(operands, tensors))
        if not tensors and any(makes_tensor(n) for n in run if n.name not in self.calls):
            needs[DEVICE] = None
        return tuple(needs)

    def _outside(self, item: Value, path: str, inside: set[str]) -> Iterator[Need]:
        """Yield the parts of an operand that do not come from ``inside`` or from the path."""
        match item:
            case Ref(name) if name not in inside:
                yield item
            case Leaf(name) if self.local_name(name, path) is None:
                yield item
            case Mode() if refs(item) and inside.isdisjoint(refs(item)):
                yield item
            case Mode():
                yield from self._outside(item.train, path, inside)
                yield from self._outside(item.eval, path, inside)

    def _untold(self, operands: Value, results: Sequence[str]) -> Iterator[Need]:
        """Yield the dynamic sizes in operands that are not in the shape of the given results."""
        sizes = (item for item in walk(operands) if isinstance(item, Polynomial))
        for name in sorted({name for size in sizes for name in size.names}):
            if all(self.telling(result, name) is None for result in results):
                yield Polynomial.of(name)

    def steady(self, need: Need) -> str | None:
        """Return the result that provides a needed value in both modes; None if there is none."""
        names = refs(need) if isinstance(need, Ref | Mode) else []
        both = isinstance(need, Mode) and len(names) == 2
        always = bool(names) and all(names[0] in mode for mode in self.modes)
        return names[0] if both or always else None

    def telling(self, name: str, size: str) -> tuple[int, int] | None:
        """Return the dimension of a result that is a multiple of a dynamic size, and the factor."""
        for dim, other in enumerate(self.graph.node[name].shape):
            if isinstance(other, Polynomial) and [*other.terms] == [(size,)]:
                return dim, other.terms[(size,)]
        return None

    def local_name(self, leaf: str, path: str) -> str | None:
        """Return the name of a leaf relative to a path; None if the leaf is not inside the path."""
        if not path:
            return leaf
        names = (leaf, *self.graph.param[leaf].aliases)
        return next((n[len(path) + 1 :] for n in names if n.startswith(f"{path}.")), None)

    @cached_property
    def home(self) -> Mapping[str, str]:
        """Dict from each assigned buffer to the innermost block that contains all of its users."""
        homes = {}
        for buffer, value in self.updates:
            nodes = [self.graph.node[name] for name in refs(value)]
            readers = [n for n in self.work if buffer in n.leaves()] + nodes
            read = Leaf(buffer) in walk(self.graph.outputs)
            paths = [*ancestors(nodes[0].scope)[1:], nodes[0].scope] if nodes and not read else []
            blocks = [
                path
                for path in paths
                if len(self.runs.get(path, ())) == 1
                and path not in self.layers
                and self.local_name(buffer, path) is not None
                and all(is_under(n.scope, path) for n in readers)
            ]
            homes[buffer] = blocks[-1] if blocks else ""
        return homes


def _calls(path: str, run: Stretch) -> tuple[Stretch, ...]:
    """Divide contiguous work into calls: a module that is called twice uses its leaves twice."""
    prefix = f"{path}."
    uses = Counter(leaf for n in run for leaf in {*n.leaves()} if leaf.startswith(prefix))
    count = min(uses.values(), default=1)
    size, rest = divmod(len(run), count)
    parts = tuple(run[i * size : (i + 1) * size] for i in range(count))
    first, *others = ([(n.op, n.scope, tuple(n.leaves())) for n in part] for part in parts)
    return parts if not rest and all(part == first for part in others) else (run,)


def scalars(value: Value) -> Iterator[Value]:
    """Yield every scalar in a nested value.

    A value that depends on the mode counts as one scalar if both of its variants are scalars.
    """
    match value:
        case tuple():
            for item in value:
                yield from scalars(item)
        case Record():
            for _, item in value.fields:
                yield from scalars(item)
        case Mode(train, eval_) if any(
            isinstance(v, tuple | Record | Mode) for v in (train, eval_)
        ):
            yield from scalars(train)
            yield from scalars(eval_)
        case _:
            yield value


def ancestors(path: str) -> list[str]:
    """Return all paths that contain a path, starting with the root (the empty path).

    >>> ancestors("layer1.0.conv1")
    ['', 'layer1', 'layer1.0']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts))]


def joined(path: str, name: str) -> str:
    """Return the dotted name of a module or leaf in the module at a path."""
    return f"{path}.{name}" if path else name


def is_under(path: str, outer: str) -> bool:
    """Return whether a path equals another one or is inside it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def child(node: Node, path: str) -> str | None:
    """Return the child module of a path that contains an operator; None for the path itself."""
    if node.scope == path:
        return None
    return node.scope[len(path) + 1 if path else 0 :].split(".")[0]


def makes_tensor(node: Node) -> bool:
    """Return whether an operator creates a new tensor and therefore has a device argument."""
    return node.op != "getitem" and op_schema(node.op).makes_tensor


class _Paths:
    """The operators and leaves of each module path of a graph.

    Attributes:
        work: Dict from path to its operators, in order.
        leaves: Dict from path to a dict from the name at this path to the leaf.
        steps: Dict from each counter of training calls to the operators that increment it.
        modes: For evaluation and for training, a dict from name to operator.
        stacks: Dict from path to recurrent layer, for those recognised so far.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.work: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op != "input":
                self.work.setdefault(node.scope, []).append(node)
        self.leaves: dict[str, dict[str, Param]] = {}
        for param in graph.params:
            for name in (param.name, *param.aliases):
                path, _, last = name.rpartition(".")
                self.leaves.setdefault(path, {})[last] = param
        self.steps = _counters(graph)
        self.modes = tuple(specialise(graph, training=t).node for t in (False, True))
        self.stacks: dict[str, Stack] = {}

    def layers(self) -> dict[str, dict[str, TorchLayer]]:
        """Return a dict from each path that is a layer to a dict from operator to layer call."""
        inner = {"", *(outer for p in (*self.work, *self.leaves) for outer in ancestors(p))}
        layers = {p: self.layer(p) or self.stack(p) for p in self.work if p not in inner}
        return {path: by_operator for path, by_operator in layers.items() if by_operator}

    def layer(self, path: str) -> dict[str, TorchLayer]:
        """Return a dict from operator to the layer call that computes it; empty if not a layer.

        1. One layer must compute all operators of the path, except ``getitem`` of its results, new
           tensors for it (initial states), and increments of its batch counter.
        2. A layer uses its own mode. If an operator's training flag is constant, the operator must
           run only in this mode.
        3. Each call must increment the batch counter once, if there is one.
        """
        counting = self._counting(path)
        called = [  # 1
            n
            for n in self.work[path]
            if n.name not in counting and n.op != "getitem" and not makes_tensor(n)
        ]
        layers = {n.name: call for n in called if (call := table.layer(self.graph, n)) is not None}
        layer = next(iter(layers.values()), None)
        if layer is None or len(layers) < len(called) or any(o != layer for o in layers.values()):
            return {}
        fits = (
            all(self._trains(name, call) for name, call in layers.items())  # 2
            and self._counts(layer, path, len(called))  # 3
            and self._has_leaves(path, layer)
        )
        return layers if fits else {}

    def stack(self, path: str) -> dict[str, TorchLayer]:
        """Return the same as :meth:`layer`, for one recurrent layer that computes all operators."""
        first, *others = self.work[path]
        recurrent = stack(self.graph, path, self.work[path])
        if recurrent is None or not self._has_leaves(path, recurrent.layer):
            return {}
        self.stacks[path] = recurrent
        silent = replace(recurrent.layer, inputs=())
        return {first.name: recurrent.layer, **dict.fromkeys((n.name for n in others), silent)}

    def counted(self) -> tuple[dict[str, dict[str, TorchLayer]], set[str]]:
        """Return the layers as in :meth:`layers`, and their batch counters.

        Layers whose counter is also incremented elsewhere are omitted.
        """
        layers = self.layers()
        counters = {
            self.leaves[path][layer.counter].name
            for path, by_operator in layers.items()
            for layer in by_operator.values()
            if layer.counts and layer.counter in self.leaves[path]
        }
        for buffer in tuple(counters):
            scopes = {self.graph.node[name].scope for name in self.steps[buffer]}
            if not scopes <= layers.keys():
                counters.remove(buffer)
                for path in scopes & layers.keys():
                    del layers[path]
        return layers, counters

    def _counting(self, path: str) -> set[str]:
        """Return the operators that increment counters among the leaves of a path."""
        params = self.leaves.get(path, {}).values()
        return {name for param in params for name in self.steps.get(param.name, ())}

    def _counts(self, layer: TorchLayer, path: str, calls: int) -> bool:
        """Return whether each call of a layer increments its counter, or no operator does."""
        counter = self.leaves.get(path, {}).get(layer.counter) if layer.counts else None
        if counter is None:
            return not self._counting(path)
        scopes = [self.graph.node[name].scope for name in self.steps.get(counter.name, ())]
        return scopes.count(path) == calls

    def _has_leaves(self, path: str, layer: TorchLayer) -> bool:
        """Return whether the parameters and buffers of a layer are exactly the leaves of a path."""
        leaves = self.leaves.get(path, {})
        for name, value in layer.leaves.items():
            if value is not None and (name not in leaves or value != Leaf(leaves[name].name)):
                return False
        module = layer.module()
        tables = {**module._parameters, **module._buffers}
        tensors = {name: tensor for name, tensor in tables.items() if tensor is not None}
        # The counter may be missing, because a layer without counter does not count.
        return tensors.keys() - {layer.counter} <= leaves.keys() <= tensors.keys() and all(
            tuple(tensors[name].shape) == param.shape
            and param.role == ("parameter" if name in module._parameters else "buffer")
            for name, param in leaves.items()
        )

    def _trains(self, name: str, layer: TorchLayer) -> bool:
        """Return whether the layer's training flag equals the mode, in all modes of an operator."""
        modes = [bool(training) for training, mode in enumerate(self.modes) if name in mode]
        return layer.flag is None or all(in_mode(layer.flag, mode) == mode for mode in modes)


def _counters(graph: ArchGraph) -> dict[str, tuple[str, ...]]:
    """Return a dict from each buffer that training calls increment by one to the additions.

    These additions must have no other users.
    """
    counters = {}
    stored = Counter(refs((graph.outputs, *(value for _, value in graph.updates))))
    for buffer, value in graph.updates:
        step = value.train if isinstance(value, Mode) and value.eval is None else None
        chain: list[str] = []
        while isinstance(step, Ref):
            node = graph.node[step.name]
            counts = node.op == "aten.add.Tensor" and dict(node.args).keys() == {"self", "other"}
            if not counts or node.arg("other") != 1 or graph.users[node.name] != tuple(chain[-1:]):
                break
            chain.append(node.name)
            step = node.arg("self")
        if step == Leaf(buffer) and chain and sum(stored[name] for name in chain) == 1:
            counters[buffer] = tuple(chain)
    return counters
