"""Recurrent layers of ``torch.nn``, put together again from one operator per layer and direction.

A capture writes ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` out (:mod:`archgraph.capture.recurrent`), so
that each layer has a hidden size of its own. Where all sizes agree, they are one layer again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from archgraph.graph.ir import TRAINING, ArchGraph, Leaf, Node, Ref, Value
from archgraph.ops.layers import TorchLayer

_KINDS: dict[str, tuple[type[nn.Module], int, dict[str, Any]]] = {
    "aten.lstm.input": (nn.LSTM, 4, {}),
    "aten.gru.input": (nn.GRU, 3, {}),
    "aten.rnn_tanh.input": (nn.RNN, 1, {"nonlinearity": "tanh"}),
    "aten.rnn_relu.input": (nn.RNN, 1, {"nonlinearity": "relu"}),
}


@dataclass(frozen=True)
class Stack:
    """A recurrent layer and what its results are in the graph.

    Attributes:
        layer: The layer; it is called with a sequence, and first states unless they are zeros.
        output: The operator whose result is the sequence that comes out, if anything reads it.
        last: Those whose results are the last states (of an LSTM two), likewise.
        steps: Operators elsewhere that read the last state of one layer and direction: which of
            the last states, and the number of the layer and direction in it.
    """

    layer: TorchLayer
    output: str | None
    last: tuple[str | None, ...]
    steps: Mapping[str, tuple[int, int]]


def stack(graph: ArchGraph, path: str, nodes: Sequence[Node]) -> Stack | None:
    """Return the recurrent layer that all work of a module path is, called once, if it is one.

    1. The options are read off the operators; two directions are tried where the number is even.
    2. The operators that a capture of this layer would write are listed, in order, and compared
       with those of the path; results that nothing reads may be missing.
    3. What other work reads must be the sequence, the last states, or the last state of one layer
       and direction, which the module around the layer picks.
    """
    runs = [n for n in nodes if n.op in _KINDS]
    if not runs or any(n.op != runs[0].op for n in runs):
        return None
    start = graph.nodes.index(nodes[0])
    if graph.nodes[start : start + len(nodes)] != tuple(nodes):
        return None  # other work in between: an argument of the layer may not be there yet
    ways = (2, 1) if len(runs) % 2 == 0 else (1,)
    stacks = (_Writing(graph, path, nodes, runs, len(runs) // way, way).stack() for way in ways)
    return next((stack for stack in stacks if stack is not None), None)


def single_layers(graph: ArchGraph, nodes: Sequence[Node]) -> str:
    """Say which recurrent layer some work is that is not one layer of ``torch.nn``, and its sizes.

    Empty if it is none. ``torch.nn`` has one hidden size for all layers and directions; a cut may
    leave several.
    """
    runs = [n for n in nodes if n.op in _KINDS]
    if not runs:
        return ""
    kind, gates, _ = _KINDS[runs[0].op]
    sizes = [graph.param[_leaves(run)[0].name].shape[0] // gates for run in runs if _leaves(run)]
    return f"{kind.__name__} as single layers, hidden sizes {', '.join(map(str, sizes))}"


@dataclass
class _Writing:
    """The operators of a recurrent layer as they are compared, one by one.

    Attributes:
        graph: The graph.
        path: Path of the layer.
        nodes: All operators of the path.
        runs: Those of them that are one layer and direction.
        layers: How many layers there are.
        ways: How many directions.
        at: How many operators of the path have been compared.
    """

    graph: ArchGraph
    path: str
    nodes: Sequence[Node]
    runs: Sequence[Node]
    layers: int
    ways: int
    at: int = 0

    @property
    def first(self) -> Node:
        """The operator of the first layer."""
        return self.runs[0]

    @property
    def time(self) -> int:
        """Dimension of the steps."""
        return 1 if self.first.arg("batch_first") is True else 0

    def options(self) -> dict[str, Any]:
        """Return the arguments of the layer's constructor."""
        _, gates, more = _KINDS[self.first.op]
        names = [leaf.name for leaf in _leaves(self.first)]
        inside, again, *_ = (self.graph.param[name].shape for name in names)
        options: dict[str, Any] = {"input_size": inside[1], "hidden_size": inside[0] // gates}
        options |= {"num_layers": self.layers, "bidirectional": self.ways == 2}
        options |= {"bias": self.first.arg("has_biases"), "batch_first": bool(self.time)}
        drops = [n.arg("p") for n in self.nodes if n.op == "aten.dropout"]
        if drops:
            options["dropout"] = drops[0]
        if again[1] != options["hidden_size"]:
            options["proj_size"] = again[1]
        return options | more

    def stack(self) -> Stack | None:
        """Return the layer, if its operators are those of the path."""
        if any(len(_leaves(run)) < 2 or run.arg("train") != TRAINING for run in self.runs):
            return None
        options = self.options()
        if options.get("proj_size", 0) >= options["hidden_size"]:
            return None  # a cut may leave as many; torch.nn refuses that
        states = self.states()
        results = self.compared(options) if states is not None else None
        if results is None or self.at < len(self.nodes):
            return None
        output, last = results
        steps = self.steps(output, last)
        if steps is None:
            return None
        kind = _KINDS[self.first.op][0]
        inputs = (self.first.arg("input"), *(states or ()))
        names: Any = kind(**options, device="meta")._flat_weights_names
        leaves = [leaf for run in self.runs for leaf in _leaves(run)]
        if len(names) != len(leaves):
            return None
        layer = TorchLayer(kind, options, dict(zip(names, leaves, strict=True)), inputs)
        return Stack(layer, output, last, steps)

    def states(self) -> tuple[Value, ...] | None:
        """Return the argument with the first states: none if they are zeros; None if unclear."""
        inside = {n.name: n for n in self.nodes}
        first = _states(self.first)
        states: list[Value] = []
        for value in first:
            node = inside.get(value.name) if isinstance(value, Ref) else None
            if node is None and len(self.runs) == 1:
                states.append(value)
            elif node is not None and node.op == "aten.slice.Tensor":
                states.append(node.arg("self"))
            elif node is None or node.op != "aten.zeros":
                return None
        if len(states) not in (0, len(first)):
            return None
        return ((tuple(states) if len(states) > 1 else states[0]),) if states else ()

    def compared(
        self, options: Mapping[str, Any]
    ) -> tuple[str | None, tuple[str | None, ...]] | None:
        """Return the results, sequence and last states; None where an operator differs."""
        sequence: Value = self.first.arg("input")
        kinds = len(_states(self.first))
        last: list[list[Value]] = [[] for _ in range(kinds)]
        for layer in range(self.layers):
            outs: list[Value] = []
            for way in range(self.ways):
                run = self.runs[layer * self.ways + way]
                inside = self.flipped(sequence, way)
                if not self.called(run, inside):
                    return None
                parts = [self.item(run, index) for index in range(kinds + 1)]
                for states, part in zip(last, parts[1:], strict=True):
                    states.append(part)
                outs.append(self.flipped(parts[0], way))
            if options.get("dropout") and layer + 1 < self.layers:
                sequence = self.dropped(outs, options["dropout"])
            else:
                sequence = self.joined(outs, -1)
        ends = tuple(_name(self.joined(states, 0)) for states in last)
        return _name(sequence), ends

    def steps(
        self, output: str | None, last: Sequence[str | None]
    ) -> dict[str, tuple[int, int]] | None:
        """Return the operators that read one layer's last state; None if others read a result."""
        inside = {n.name for n in self.nodes}
        outer = self.path.rpartition(".")[0]
        numbers = {run.name: at for at, run in enumerate(self.runs)}
        steps = {}
        results = set(self.graph.output_refs())
        for node in self.nodes:
            readers = [n for n in self.graph.users[node.name] if n not in inside]
            if node.name in (output, *last) or not (readers or node.name in results):
                continue
            source = node.arg("source")
            if node.op != "getitem" or not isinstance(source, Ref) or node.name in results:
                return None
            index = node.arg("index")
            assert isinstance(index, int)
            step = (0, 0) if index else (self.time, -1)  # of the states, of the sequence
            for name in readers:
                reader = self.graph.node[name]
                picked = reader.arg("dim", 0), reader.arg("index")
                if reader.op != "aten.select.int" or picked != step or reader.scope != outer:
                    return None
                steps[name] = max(index - 1, 0), numbers[source.name]
        return steps

    # -- operators --------------------------------------------------------------------------------

    def next(self, op: str, /, **args: Value) -> Value:
        """Return the next operator of the path if it is this one; None otherwise."""
        node = self.nodes[self.at] if self.at < len(self.nodes) else None
        if node is None or node.op != op or any(node.arg(k) != v for k, v in args.items()):
            return None
        self.at += 1
        return Ref(node.name)

    def called(self, run: Node, sequence: Value) -> bool:
        """Return whether the next operators are the first states and the call of one layer."""
        for _ in _states(run):
            if self.next("aten.slice.Tensor") is None:
                self.next("aten.zeros")
        first = self.first
        alike = all(run.arg(k) == first.arg(k) for k in ("has_biases", "batch_first"))
        return alike and self.next(run.op, input=sequence) == Ref(run.name)

    def item(self, run: Node, index: int) -> Value:
        """Return one result of a call, if anything reads it."""
        return self.next("getitem", source=Ref(run.name), index=index)

    def flipped(self, value: Value, way: int) -> Value:
        """Return a sequence, turned around for the second direction."""
        return self.next("aten.flip", self=value, dims=(self.time,)) if way else value

    def joined(self, parts: Sequence[Value], dim: int) -> Value:
        """Return what several layers or directions give, side by side."""
        if len(parts) == 1:
            return parts[0]
        return self.next("aten.cat", tensors=tuple(parts), **({"dim": dim} if dim else {}))

    def dropped(self, outs: Sequence[Value], p: Value) -> Value:
        """Return the dropout between two layers, over memory with time first."""
        joined = self.joined([self.turned(out) for out in outs], -1)
        return self.turned(self.next("aten.dropout", input=joined, p=p, train=TRAINING))

    def turned(self, value: Value) -> Value:
        """Return a sequence with its first two dimensions swapped, if it has the batch first."""
        return self.next("aten.transpose.int", self=value) if self.time else value


def _leaves(run: Node) -> list[Leaf]:
    """Return the weights of one layer and direction."""
    params = run.arg("params")
    return [v for v in params if isinstance(v, Leaf)] if isinstance(params, tuple) else []


def _states(run: Node) -> tuple[Value, ...]:
    """Return the first states of one layer and direction."""
    states = run.arg("hx")
    return states if isinstance(states, tuple) else (states,)


def _name(value: Value) -> str | None:
    return value.name if isinstance(value, Ref) else None
