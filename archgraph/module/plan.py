"""Plan: which paths of a graph become layers of ``torch.nn``, which become blocks with a forward.

A path is a *layer* where all its work is one operator that a layer of ``torch.nn`` computes with
leaves of that path. It is a *block* where its work stands together in the graph's order: a module
whose arguments are what that work reads from outside, and whose results are what is read of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from archgraph.graph.ir import (
    ArchGraph,
    Batch,
    Leaf,
    Mode,
    Node,
    Param,
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
from archgraph.ops.schema import schema
from archgraph.ops.stacks import Stack, stack

# What a block is given beside results and leaves: the batch size, the device of new tensors.
BATCH, DEVICE = "batch size", "device"
Need: TypeAlias = "Ref | Leaf | Mode | str"
Stretch: TypeAlias = tuple[Node, ...]  # work of one call of a block, in order
Modes: TypeAlias = tuple[Mapping[str, Node], ...]  # operators of evaluation, of training, by name


@dataclass(frozen=True)
class ModulePlan:
    """The layers and blocks of a graph, by path.

    Attributes:
        graph: The graph.
        layers: Layers of ``torch.nn``; their tensors are leaves of their path.
        calls: What their operators are called with, by name.
        stacks: Those of them that are recurrent layers: each is several operators, of which the
            first one stands for the call and the others read nothing.
        work: All operators in order, without inputs and without the counters of layers.
        updates: Buffers that forward assigns, without the counters of layers.
        modes: The operators that run in evaluation and in training, by name, flags resolved.
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
        """The plan of a graph.

        1. Work is gathered by module path; a path inside of which another one has work or leaves
           is not a layer.
        2. Counters of batches, which layers advance themselves, are chains of additions of one.
        3. A path is a layer where each of its operators is the same layer of ``torch.nn``, whose
           parameters and buffers are the leaves of the path, all of them and no others.
        """
        paths: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op != "input":
                paths.setdefault(node.scope, []).append(node)
        owned: dict[str, dict[str, Param]] = {}
        for param in graph.params:
            for name in (param.name, *param.aliases):
                path, _, last = name.rpartition(".")
                owned.setdefault(path, {})[last] = param
        inner = {outer for path in (*paths, *owned) for outer in ancestors(path)}
        chains = _counters(graph)
        modes = tuple(specialise(graph, training=t).node for t in (False, True))
        layers: dict[str, TorchLayer] = {}
        calls: dict[str, tuple[Value, ...]] = {}
        stacks: dict[str, Stack] = {}
        absorbed: set[str] = set()
        for path, nodes in paths.items():
            if path in inner or not path:
                continue
            own = owned.get(path, {})
            found = _layers(graph, nodes, own, chains, modes)
            if found:
                layers[path] = layer = next(iter(found.values()))
                calls |= {name: call.inputs for name, call in found.items()}
                if layer.counts and layer.counter in own:
                    absorbed |= {own[layer.counter].name}
            elif (several := stack(graph, path, nodes)) and _owns(several.layer, own):
                layers[path], stacks[path] = several.layer, several
                calls |= dict.fromkeys((n.name for n in nodes), ())
                calls[nodes[0].name] = several.layer.inputs
        for buffer in tuple(absorbed):  # a norm under several names: all of them count, or none
            paths_of = {graph.node[name].scope for name in chains[buffer]}
            if not paths_of <= layers.keys():
                absorbed.discard(buffer)
                for path in paths_of & layers.keys():
                    del layers[path]
        calls = {name: inputs for name, inputs in calls.items() if graph.node[name].scope in layers}
        counted = {name for buffer in absorbed for name in chains[buffer]}
        work = tuple(n for n in graph.nodes if n.op != "input" and n.name not in counted)
        updates = tuple((k, v) for k, v in graph.updates if k not in absorbed)
        return ModulePlan(graph, layers, calls, stacks, work, updates, modes)

    # -- blocks -----------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> Mapping[str, tuple[Stretch, ...]]:
        """The work inside of each path, as stretches of the order; calls of one module apart."""
        spans: dict[str, list[list[int]]] = {}
        for index, node in enumerate(self.work):
            for path in (*ancestors(node.scope), node.scope):
                known = spans.setdefault(path, [])
                if known and known[-1][1] == index:
                    known[-1][1] = index + 1
                else:
                    known.append([index, index + 1])
        return {
            path: tuple(
                call for start, end in known for call in self._calls(path, self.work[start:end])
            )
            for path, known in spans.items()
        }

    def _calls(self, path: str, run: Stretch) -> Iterator[Stretch]:
        """The calls that a stretch of work is: a module that is called twice uses a leaf twice."""
        prefix = f"{path}."
        uses = Counter(
            leaf for n in run for leaf in dict.fromkeys(n.leaves()) if leaf.startswith(prefix)
        )
        count = min(uses.values(), default=1)
        size, rest = divmod(len(run), count)
        parts = [run[i * size : (i + 1) * size] for i in range(count)]
        like = [[(n.op, n.scope, tuple(n.leaves())) for n in part] for part in parts]
        same = count > 1 and not rest and all(part == like[0] for part in like)
        yield from parts if same else (run,)

    @cached_property
    def readers(self) -> Mapping[str, tuple[tuple[str, Value], ...]]:
        """What reads each result, and as which value: an operator, or ``""`` for forward."""
        found: dict[str, list[tuple[str, Value]]] = {}

        def read(user: str, value: Value) -> None:
            for item in scalars(value):
                for name in refs(item):
                    found.setdefault(name, []).append((user, item))

        for node in self.work:
            for _, value in node.args:
                read(node.name, value)
        read("", self.graph.outputs)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The place of each operator in the order of work; inputs come before."""
        inputs = {n.name: -1 for n in self.graph.nodes if n.op == "input"}
        return inputs | {n.name: index for index, n in enumerate(self.work)}

    def results(self, path: str, run: Stretch) -> tuple[Value, ...]:
        """The results of some work that are read outside of it, in order.

        A value that is one thing in training and another in evaluation is one result if the work
        has both, or can be given the other: the block decides by its own mode which it is.
        """
        inside = {n.name for n in run}
        found: dict[Value, None] = {}
        stored = {
            name
            for buffer, value in self.updates
            if not is_under(self.home[buffer], path)
            for name in refs(value)
        }
        for node in run:
            read = [v for user, v in self.readers.get(node.name, ()) if user not in inside]
            read += [Ref(node.name)] if node.name in stored else []
            for value in read:
                whole = isinstance(value, Mode) and self._is_one(value, run, inside)
                found[value if whole else Ref(node.name)] = None
        return tuple(found)

    def _is_one(self, value: Mode, run: Stretch, inside: Container[str]) -> bool:
        """Whether some work has both sides of a value, or can be given the one that it lacks."""
        start = self.order[run[0].name]
        return all(
            isinstance(side, Leaf)
            or (isinstance(side, Ref) and (side.name in inside or self.order[side.name] < start))
            for side in (value.train, value.eval)
        )

    def needs(self, path: str, run: Stretch) -> tuple[Need, ...]:
        """What some work reads from outside of it and of its path, in order of first use."""
        inside = {n.name for n in run}
        found: dict[Need, None] = {}
        sizes = makes = False

        def add(item: Value) -> None:
            if isinstance(item, Ref) and item.name not in inside:
                found[item] = None
            elif isinstance(item, Leaf) and self.place(item.name, path) is None:
                found[item] = None
            elif isinstance(item, Mode):
                if refs(item) and inside.isdisjoint(refs(item)):
                    found[item] = None  # decided outside
                else:
                    add(item.train)
                    add(item.eval)

        for node in run:
            operands = self.calls.get(node.name)
            if operands is None:
                operands = tuple(value for _, value in node.args)
                makes = makes or makes_tensor(node)
            for value in operands:
                sizes = sizes or any(isinstance(item, Batch) for item in walk(value))
                for item in scalars(value):
                    add(item)
        for result in self.results(path, run):
            if isinstance(result, Mode):
                add(result.train)
                add(result.eval)
        tensors = [name for item in found if (name := self.steady(item)) is not None]
        if sizes and not any(map(self.is_batched, tensors)):
            found[BATCH] = None
        if makes and not tensors:
            found[DEVICE] = None
        return tuple(found)

    def steady(self, need: Need) -> str | None:
        """The result that a block is given in both modes; None if it is another thing."""
        names = refs(need) if isinstance(need, Ref | Mode) else []
        given = isinstance(need, Mode) and len(names) == 2
        return names[0] if given or (names and self.is_always(names[0])) else None

    def is_always(self, name: str) -> bool:
        """Whether an operator runs in both modes."""
        return all(name in mode for mode in self.modes)

    def is_batched(self, name: str) -> bool:
        """Whether the first size of a result tells the batch size."""
        shape = self.graph.node[name].shape
        return bool(shape) and isinstance(shape[0], Batch) and shape[0].power == 1

    def place(self, leaf: str, path: str) -> str | None:
        """Where a leaf is, seen from a path; None if it is outside."""
        if not path:
            return leaf
        param = self.graph.param[leaf]
        inside = (n for n in (leaf, *param.aliases) if n.startswith(f"{path}."))
        name = next(inside, None)
        return None if name is None else name[len(path) + 1 :]

    @cached_property
    def home(self) -> Mapping[str, str]:
        """The innermost block that can assign each buffer: no other work reads the buffer."""
        homes = {}
        for buffer, value in self.updates:
            nodes = [self.graph.node[i.name] for i in walk(value) if isinstance(i, Ref)]
            readers = [n for n in self.work if buffer in n.leaves()] + nodes
            read = any(isinstance(i, Leaf) and i.name == buffer for i in walk(self.graph.outputs))
            paths = [*ancestors(nodes[0].scope), nodes[0].scope] if nodes and not read else []
            inside = [
                path
                for path in paths
                if path
                and len(self.runs.get(path, ())) == 1
                and path not in self.layers
                and self.place(buffer, path) is not None
                and all(is_under(n.scope, path) for n in readers)
            ]
            homes[buffer] = inside[-1] if inside else ""
        return homes


def scalars(value: Value) -> Iterator[Value]:
    """Every scalar inside a value; what depends on the mode is one, unless it is a structure."""
    match value:
        case tuple():
            for item in value:
                yield from scalars(item)
        case Record():
            for _, item in value.fields:
                yield from scalars(item)
        case Mode() if isinstance(value.train, tuple | Record | Mode) or isinstance(
            value.eval, tuple | Record | Mode
        ):
            yield from scalars(value.train)
            yield from scalars(value.eval)
        case _:
            yield value


def ancestors(path: str) -> list[str]:
    """All paths around a path, the root (an empty one) first.

    >>> ancestors("layer1.0.conv1")
    ['', 'layer1', 'layer1.0']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts))]


def is_under(path: str, outer: str) -> bool:
    """Whether a path is another one or inside of it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def makes_tensor(node: Node) -> bool:
    """Whether an operator makes a tensor on a device that it is told."""
    return node.op != "getitem" and schema(node.op).makes_tensor


def _layers(
    graph: ArchGraph,
    nodes: Sequence[Node],
    own: Mapping[str, Param],
    chains: Mapping[str, tuple[str, ...]],
    modes: Modes,
) -> dict[str, TorchLayer]:
    """The layer that all work of a path is, by operator; empty if that is not one layer.

    Beside it there may be items of its results, and tensors that are made for it (first states).
    A layer trains as its own mode says: where the graph has a constant, only that mode has it.
    """
    counting = {name for param in own.values() for name in chains.get(param.name, ())}
    called = [
        n for n in nodes if n.name not in counting and n.op != "getitem" and not makes_tensor(n)
    ]
    found = {n.name: layer for n in called if (layer := table.layer(graph, n)) is not None}
    layer = next(iter(found.values()), None)
    if layer is None or len(found) < len(called) or any(o != layer for o in found.values()):
        return {}
    for name, call in found.items():
        flags = [t for t, mode in enumerate(modes) if name in mode]
        if call.flag is not None and any(in_mode(call.flag, bool(t)) != bool(t) for t in flags):
            return {}
    counter = own.get(layer.counter) if layer.counts else None
    steps = chains.get(counter.name, ()) if counter else ()
    own_steps = [name for name in steps if graph.node[name].scope == nodes[0].scope]
    counted = len(own_steps) == len(called) if counter else not counting
    return found if counted and _owns(layer, own) else {}


def _owns(layer: TorchLayer, own: Mapping[str, Param]) -> bool:
    """Whether the leaves of a path are exactly those of a layer, by name, shape and role."""
    used = {name: value for name, value in layer.leaves.items() if value is not None}
    for name, value in used.items():
        param = own.get(name)
        if param is None or value != Leaf(param.name):
            return False
    made = layer.made()
    tensors = {**made._parameters, **made._buffers}
    return all(
        (tensor := tensors.get(name)) is not None
        and tuple(tensor.shape) == param.shape
        and (name in made._parameters) == (param.role == "parameter")
        and param.role != "constant"
        for name, param in own.items()
    )


def _counters(graph: ArchGraph) -> dict[str, tuple[str, ...]]:
    """Buffers that each call in training advances by one, and the operators that do it."""
    chains = {}
    stored = Counter(
        name for value in (graph.outputs, *(v for _, v in graph.updates)) for name in refs(value)
    )
    for buffer, value in graph.updates:
        step = value.train if isinstance(value, Mode) and value.eval is None else None
        chain: list[str] = []
        while isinstance(step, Ref):
            node = graph.node[step.name]
            users = graph.users[step.name]
            counts = node.op == "aten.add.Tensor" and dict(node.args).keys() == {"self", "other"}
            if not counts or node.arg("other") != 1 or users != tuple(chain[-1:]):
                break
            chain.append(node.name)
            step = node.arg("self")
        if step == Leaf(buffer) and chain and sum(stored[name] for name in chain) == 1:
            chains[buffer] = tuple(chain)
    return chains
