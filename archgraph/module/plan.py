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

DEVICE = "device"  # of new tensors
# What a block is called with: results, leaves, values that a mode decides, open sizes, DEVICE.
Need: TypeAlias = "Ref | Leaf | Mode | Polynomial | str"
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
        """Return the plan of a graph.

        1. Work and leaves are gathered by module path. A path inside of which another one has work
           or leaves is not a layer.
        2. A path is a layer where each of its operators is the same layer of ``torch.nn``, or all
           are one recurrent layer, whose parameters and buffers are exactly the leaves of the path.
        3. Layers advance their counters of batches themselves, so that the operators that do it go.
           A norm under several names has one counter: all of its paths are layers, or none.
        """
        paths: dict[str, list[Node]] = {}  # 1
        for node in graph.nodes:
            if node.op != "input":
                paths.setdefault(node.scope, []).append(node)
        leaves: dict[str, dict[str, Param]] = {}
        for param in graph.params:
            for name in (param.name, *param.aliases):
                path, _, last = name.rpartition(".")
                leaves.setdefault(path, {})[last] = param
        inner = {"", *(outer for path in (*paths, *leaves) for outer in ancestors(path))}
        chains = _counters(graph)
        modes = tuple(specialise(graph, training=t).node for t in (False, True))
        layers: dict[str, TorchLayer] = {}
        calls: dict[str, tuple[Value, ...]] = {}
        stacks: dict[str, Stack] = {}
        for path, nodes in paths.items():  # 2
            if path in inner:
                continue
            tensors = leaves.get(path, {})
            if by_operator := _layers(graph, nodes, tensors, chains, modes):
                layers[path] = next(iter(by_operator.values()))
                calls |= {name: layer.inputs for name, layer in by_operator.items()}
            elif (recurrent := stack(graph, path, nodes)) and _are_leaves_of(
                recurrent.layer, tensors
            ):
                layers[path], stacks[path] = recurrent.layer, recurrent
                calls |= dict.fromkeys((n.name for n in nodes), ())
                calls[nodes[0].name] = recurrent.layer.inputs
        counted = {  # 3
            leaves[path][layer.counter].name
            for path, layer in layers.items()
            if layer.counts and layer.counter in leaves[path]
        }
        for buffer in tuple(counted):
            scopes = {graph.node[name].scope for name in chains[buffer]}
            if not scopes <= layers.keys():
                counted.remove(buffer)
                for path in scopes & layers.keys():
                    del layers[path]
        calls = {name: inputs for name, inputs in calls.items() if graph.node[name].scope in layers}
        absorbed = {name for buffer in counted for name in chains[buffer]}
        work = tuple(n for n in graph.nodes if n.op != "input" and n.name not in absorbed)
        updates = tuple((k, v) for k, v in graph.updates if k not in counted)
        return ModulePlan(graph, layers, calls, stacks, work, updates, modes)

    # -- blocks -----------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> Mapping[str, tuple[Stretch, ...]]:
        """The work inside of each path, as stretches of the order; calls of one module apart."""
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
        """What reads each result, and as which value: an operator, or ``""`` for forward."""
        readers: dict[str, list[tuple[str, Value]]] = {}
        values = [(node.name, value) for node in self.work for _, value in node.args]
        for user, value in (*values, ("", self.graph.outputs)):
            for item in scalars(value):
                for name in refs(item):
                    readers.setdefault(name, []).append((user, item))
        return {name: tuple(users) for name, users in readers.items()}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The number of each operator in the order of work; inputs come before."""
        inputs = {n.name: -1 for n in self.graph.nodes if n.op == "input"}
        return inputs | {n.name: index for index, n in enumerate(self.work)}

    def results(self, path: str, run: Stretch) -> tuple[Ref | Mode, ...]:
        """Return the results of some work that are read outside of it, in order.

        A value that is one thing in training and another in evaluation is one result if the work
        has both, or can be called with the other: the block decides by its own mode which it is.
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
        """Return whether some work has both sides of a value, or can be called with one of them."""
        start = self.order[run[0].name]
        return all(
            isinstance(side, Leaf)
            or (isinstance(side, Ref) and (side.name in inside or self.order[side.name] < start))
            for side in (value.train, value.eval)
        )

    def needs(self, path: str, run: Stretch) -> tuple[Need, ...]:
        """Return what some work reads from outside of it and of its path, in order of first use.

        1. What its operators and layers are called with, and both sides of what it decides by its
           mode. A value whose sides both come from outside is decided there.
        2. Open sizes that no result among that tells, and the device, if there is no result.
        """
        inside = {n.name for n in run}
        needs: dict[Need, None] = {}

        def add(item: Value) -> None:
            match item:
                case Ref(name) if name not in inside:
                    needs[item] = None
                case Leaf(name) if self.local_name(name, path) is None:
                    needs[item] = None
                case Mode() if refs(item) and inside.isdisjoint(refs(item)):
                    needs[item] = None
                case Mode():
                    add(item.train)
                    add(item.eval)

        operands: Value = tuple(
            self.calls.get(n.name, tuple(value for _, value in n.args)) for n in run
        )
        for item in (*scalars(operands), *self.results(path, run)):  # 1
            add(item)
        tensors = [name for need in needs if (name := self.steady(need)) is not None]  # 2
        sizes = (item for item in walk(operands) if isinstance(item, Polynomial))
        for open_size in sorted({name for size in sizes for name in size.names}):
            if all(self.telling(name, open_size) is None for name in tensors):
                needs[Polynomial.of(open_size)] = None
        if not tensors and any(makes_tensor(n) for n in run if n.name not in self.calls):
            needs[DEVICE] = None
        return tuple(needs)

    def steady(self, need: Need) -> str | None:
        """Return the result that a need is in both modes; None if it is another thing."""
        names = refs(need) if isinstance(need, Ref | Mode) else []
        both = isinstance(need, Mode) and len(names) == 2
        always = bool(names) and all(names[0] in mode for mode in self.modes)
        return names[0] if both or always else None

    def telling(self, name: str, size: str) -> tuple[int, int] | None:
        """Return the dimension of a result that tells an open size, and how many times it is it."""
        for dim, other in enumerate(self.graph.node[name].shape):
            if isinstance(other, Polynomial) and [*other.terms] == [(size,)]:
                return dim, other.terms[(size,)]
        return None

    def local_name(self, leaf: str, path: str) -> str | None:
        """Return the name of a leaf as seen from a path; None if it is outside."""
        if not path:
            return leaf
        names = (leaf, *self.graph.param[leaf].aliases)
        return next((n[len(path) + 1 :] for n in names if n.startswith(f"{path}.")), None)

    @cached_property
    def home(self) -> Mapping[str, str]:
        """The innermost block that can assign each buffer: no other work reads the buffer."""
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
    """Return the calls that a stretch of work is: a module called twice uses its leaves twice."""
    prefix = f"{path}."
    uses = Counter(leaf for n in run for leaf in {*n.leaves()} if leaf.startswith(prefix))
    count = min(uses.values(), default=1)
    size, rest = divmod(len(run), count)
    parts = tuple(run[i * size : (i + 1) * size] for i in range(count))
    first, *others = ([(n.op, n.scope, tuple(n.leaves())) for n in part] for part in parts)
    return parts if not rest and all(part == first for part in others) else (run,)


def scalars(value: Value) -> Iterator[Value]:
    """Yield every scalar of a value; what depends on the mode is one, unless it is a structure."""
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
    """Return all paths around a path, the root (an empty one) first.

    >>> ancestors("layer1.0.conv1")
    ['', 'layer1', 'layer1.0']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts))]


def joined(path: str, name: str) -> str:
    """Return the path of a module or leaf inside of a path."""
    return f"{path}.{name}" if path else name


def is_under(path: str, outer: str) -> bool:
    """Return whether a path is another one or inside of it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def child(node: Node, path: str) -> str | None:
    """Return the module of an operator inside a path; None for the path itself."""
    if node.scope == path:
        return None
    return node.scope[len(path) + 1 if path else 0 :].split(".")[0]


def makes_tensor(node: Node) -> bool:
    """Return whether an operator makes a tensor on a device, which is an argument."""
    return node.op != "getitem" and op_schema(node.op).makes_tensor


def _layers(
    graph: ArchGraph,
    nodes: Sequence[Node],
    leaves: Mapping[str, Param],
    chains: Mapping[str, tuple[str, ...]],
    modes: Modes,
) -> dict[str, TorchLayer]:
    """Return the layer that all work of a path is, by operator; empty if that is not one layer.

    1. Beside its operators there may be items of its results, tensors that are allocated for it
       (first states), and the steps of its counter.
    2. A layer trains as its mode says: where the graph has a constant, only that mode has it.
    3. Each of its calls advances its counter once, where it has one.
    """
    counting = {name for param in leaves.values() for name in chains.get(param.name, ())}
    called = [  # 1
        n for n in nodes if n.name not in counting and n.op != "getitem" and not makes_tensor(n)
    ]
    layers = {n.name: layer for n in called if (layer := table.layer(graph, n)) is not None}
    layer = next(iter(layers.values()), None)
    if layer is None or len(layers) < len(called) or any(o != layer for o in layers.values()):
        return {}
    for name, call in layers.items():  # 2
        flags = [t for t, mode in enumerate(modes) if name in mode]
        if call.flag is not None and any(in_mode(call.flag, bool(t)) != bool(t) for t in flags):
            return {}
    counter = leaves.get(layer.counter) if layer.counts else None  # 3
    steps = chains.get(counter.name, ()) if counter else ()
    here = [name for name in steps if graph.node[name].scope == nodes[0].scope]
    counted = len(here) == len(called) if counter else not counting
    return layers if counted and _are_leaves_of(layer, leaves) else {}


def _are_leaves_of(layer: TorchLayer, leaves: Mapping[str, Param]) -> bool:
    """Return whether the leaves of a path are exactly those of a layer: name, shape and role."""
    for name, value in layer.leaves.items():
        if value is not None and (name not in leaves or value != Leaf(leaves[name].name)):
            return False
    module = layer.module()
    tables = {**module._parameters, **module._buffers}
    tensors = {name: tensor for name, tensor in tables.items() if tensor is not None}
    # The counter may be missing: a layer without one does not count.
    return tensors.keys() - {layer.counter} <= leaves.keys() <= tensors.keys() and all(
        tuple(tensors[name].shape) == param.shape
        and param.role == ("parameter" if name in module._parameters else "buffer")
        for name, param in leaves.items()
    )


def _counters(graph: ArchGraph) -> dict[str, tuple[str, ...]]:
    """Return the buffers that each call in training advances by one, and the operators for it.

    Such a buffer is a chain of additions of one, of which nothing else reads a result.
    """
    counters = {}
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
            counters[buffer] = tuple(chain)
    return counters
