"""Recurrent operators: a layer over a sequence in one direction, and cells for a single step.

The rows of an input weight or a recurrent weight belong to gates. Each gate has one row for each
unit of the cell, and a cut keeps the same units in every gate. With a projection, the hidden state
has its own axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from archgraph.graph.ir import TRAINING, ArchGraph, Leaf, Node, Ref, TensorType, Value
from archgraph.layout.layouts import Fixed, fixed_size, product
from archgraph.ops.backward import Backward, as_large_as_result, saves
from archgraph.ops.equations import ORDER, PROJECT, Dims, Dirt, Equations
from archgraph.ops.layers import LayerRule, TorchLayer
from archgraph.ops.operands import Amount, Counted, leaf_shape, numel
from archgraph.ops.operator import Growth, Operator
from archgraph.ops.starts import FixedShape, Init, Initialiser, Shapes
from archgraph.ops.types import Args, SymbolicShape, certain, listed, number, positive, real
from archgraph.ops.zeros import Zeros, open_dims

# A cell's weights by the names in its layer; a sequence has them in `params`.
_CELL = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


def _weights(node: Node) -> tuple[Value, ...]:
    """Return those of input weight, recurrent weight, biases and projection that exist."""
    params = node.arg("params")
    return params if isinstance(params, tuple) else tuple(map(node.arg, _CELL.values()))


def _first_states(node: Node) -> tuple[Value, ...]:
    """Return the initial hidden state, and for an LSTM also the initial cell state."""
    states = node.arg("hx")
    return states if isinstance(states, tuple) else (states,)


# -- sequences and cells --------------------------------------------------------------------------
def _recurrent_axes(eq: Equations) -> list[Dims]:
    """w_ih = Prod(gates, units) × x[-1], w_hh = Prod(gates, units) × h[-1]; h[-1] = c[-1] = units.

    With a projection, w_hr = h[-1] × units instead.
    """
    node, time = eq.node, int(eq.node.arg("batch_first") is True)
    sequence = node.arg("params") is not None
    if node.arg("num_layers", 1) != 1 or node.arg("bidirectional") is True:
        return eq.opaque("several layers or directions in one operator, which trace splits up")
    weights = list(filter(eq.of, _weights(node)))
    inside, again, *projection = (w for w in weights if len(eq.of(w)) == 2)
    states = [eq.of(value) for value in _first_states(node)]
    hidden, units = states[0][-1], states[-1][-1]
    if not projection:
        eq.unify(hidden, units)
    gates = product((Fixed(fixed_size(eq.of(inside)[0]) // fixed_size(units)), units))
    for weight in weights:
        eq.unify(eq.of(weight)[0], hidden if weight in projection else gates)
    # Leaves are zero where masked, whatever the state is there, so the sums are exact.
    pairs = [(inside, eq.arg("input")[-1]), (again, hidden), *((w, units) for w in projection)]
    for weight, layout in pairs:
        eq.unify(eq.of(weight)[1], layout)
        factors = [(node.arg("input"), -1)] if weight is inside else []
        eq.contract(layout, [*factors, (weight, 1)], node.op.split(".")[1])
    lead = eq.arg("input")[:-1]
    if sequence:
        eq.pin([lead.pop(time)], ORDER, PROJECT)
    for state in states:
        eq.agree(lead, state[int(sequence) : -1])
    eq.role(hidden, "hidden")
    eq.role(units, "cell")
    return [[*eq.arg("input")[:-1], hidden], *states] if sequence else states


def _carried(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where an LSTM or GRU may be nonzero: masked units keep part of the first state."""
    return [dirt + eq.dirt_of(_first_states(eq.node)[-1]) for dirt in _renewed(eq, results)]


def _renewed(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where an RNN cell may be nonzero.

    A unit with zero weights is zero after each step, and does not depend on its previous state.
    """
    weights = tuple(d for w in _weights(eq.node) for d in eq.dirt_of(w))
    return [open_dims(dims[:-1]) + weights for dims in results]


def _start(gates: int) -> Init:
    """Return a uniform initialiser in ±1/√units, the same for weights and biases."""

    def uniform(shape: FixedShape, shapes: Shapes) -> Initialiser:
        rows = shapes.get("params.0", shapes.get("w_ih", shape))[0]
        return Initialiser("uniform", 1 / math.sqrt(max(rows // gates, 1)))

    return uniform


def _no_identity(_graph: ArchGraph, _node: Node) -> str:
    """Return the reason why a recurrent operator cannot be the identity."""
    return "is recurrent: no weights make it return its input"


def _recurrent_macs(of: Counted) -> Amount:
    """Count the MACs: every step multiplies every weight matrix once."""
    shapes = map(of.sizes, _weights(of.node))
    entries = sum(numel(shape) for shape in shapes if len(shape) > 1)
    steps = of.arg("input")[:-1] if of.node.arg("params") is not None else ()
    return numel(steps) * entries


def _recurrent(gates: int, zero: Zeros = _carried) -> Operator:
    arguments = ("params", *_CELL.values())
    return Operator(
        _recurrent_axes,
        zero,
        _recurrent_macs,
        dict.fromkeys(arguments, _start(gates)),
        training_flag="train",
        sides=dict.fromkeys(arguments, ("out", "in")),
        weighted=True,
        growth=Growth(identity=_no_identity, nothing=("hx", *arguments)),
    )


# -- sequences: their layers are reassembled below ------------------------------------------------
def _sequence_type(gates: int) -> Callable[[Args], tuple[TensorType, ...]]:
    """Return the type rule of one layer in one direction, for all outputs and the last states."""

    def rule(args: Args) -> tuple[TensorType, ...]:
        states = args.get("hx")
        states = states if type(states) is tuple else (states,)
        (x, *states) = real(args.get("input"), *states)
        first, biased = (number(args, name, None, bool) for name in ("batch_first", "has_biases"))
        one_way = not number(args, "bidirectional", None, bool)
        certain(one_way, number(args, "num_layers", None, int) == 1, len(x.shape) == 3)
        batch, inside = x.shape[0 if first else 1], x.shape[2]
        hidden, units = positive((states[0].shape[-1], states[-1].shape[-1]))
        certain(*(s.shape[:-1] == (1, batch) for s in states), len(states) == 1 + (gates == 4))
        rows = gates * units
        shapes: list[SymbolicShape] = [(rows, inside), (rows, hidden), *[(rows,)] * (2 * biased)]
        shapes += [(hidden, units)] if hidden != units else []
        weights = real(x, *listed(args, "params"))[1:]
        certain([w.shape for w in weights] == shapes)
        return (TensorType((*x.shape[:2], hidden), x.dtype), *states)

    return rule


def _projects_nothing(node: Node) -> str:
    """Return an error for a projection to the same size: PyTorch detects one by its size only."""
    count = len(_weights(node))
    projected = count == 5 or (count == 3 and node.arg("has_biases") is not True)
    hidden, units = node.types[1].shape[-1], node.types[-1].shape[-1]
    same = projected and hidden == units
    return (
        f"a projection of {units} units to the same number, which PyTorch ignores" if same else ""
    )


def _sequence(gates: int, zero: Zeros = _carried) -> Operator:
    return replace(
        _recurrent(gates, zero), type=_sequence_type(gates), backward=_sequence_backward(gates)
    )


def _sequence_backward(gates: int) -> Callable[[Node], Backward]:
    """Save the input, and for every step the gates and their results.

    An LSTM is one kernel. Its memory follows oneDNN's layout without padding: the gates, two states
    and their three gradients for each step and direction, and the result.
    """

    def extra(of: Counted) -> list[tuple[Amount, str]]:
        first = of.node.arg("batch_first") is True
        x, numbers = of.arg("input"), numel(of.result)
        state = numel(of.result[:1] if first else of.result[1:2]) * of.result[2]
        tensors: list[tuple[Amount, str]] = [(numel(x), "")] if first else []
        per_number = {4: 4 + 10 + 1, 3: 7, 1: 1}[gates]
        tensors.append((per_number * numbers, ""))
        return [*tensors, (12 * state, "")] if gates == 4 else tensors

    def rule(node: Node) -> Backward:
        operands = (
            ("hx", "params") if node.arg("batch_first") is True else ("input", "hx", "params")
        )
        results = (0,) if gates == 4 else ()
        known = saves(*operands, results=results, extra=extra)
        return replace(known, working=_reordered if gates == 4 else None, checked=False)

    return rule


def _reordered(of: Counted) -> list[tuple[Amount, str]]:
    """Return the working memory of an LSTM's backward pass: gradients of gates, sorted weights."""
    weights = sum(numel(shape) for shape in map(of.sizes, _weights(of.node)) if len(shape) > 1)
    return [(4 * numel(of.result), ""), (weights, "")]


# -- cells ----------------------------------------------------------------------------------------
def _cell_backward(count: int) -> Backward:
    """Save gates and states, ``count`` numbers for each unit, in addition to the operands."""
    return saves("input", "hx", "w_ih", "w_hh", extra=as_large_as_result(count))


def _cell_layer(kind: type[nn.Module], gates: int, **more: Any) -> LayerRule:
    """Return the rule of a cell for a single step."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        leaves = {name: node.arg(argument) for name, argument in _CELL.items()}
        shape = leaf_shape(graph, leaves["weight_ih"])
        if len(shape) != 2:
            return None
        options = {"input_size": shape[1], "hidden_size": shape[0] // gates} | more
        options["bias"] = leaves["bias_ih"] is not None
        return TorchLayer(kind, options, leaves, (node.arg("input"), node.arg("hx")))

    return rule


ROWS = {
    "lstm": replace(_sequence(4), impossible=_projects_nothing),
    "gru": _sequence(3),
    **{f"rnn_{curve}": _sequence(1, _renewed) for curve in ("tanh", "relu")},
    "lstm_cell": replace(
        _recurrent(4), layer=_cell_layer(nn.LSTMCell, 4), backward=_cell_backward(5)
    ),
    "gru_cell": replace(
        _recurrent(3), layer=_cell_layer(nn.GRUCell, 3), backward=_cell_backward(6)
    ),
    **{
        f"rnn_{curve}_cell": replace(
            _recurrent(1, _renewed),
            layer=_cell_layer(nn.RNNCell, 1, nonlinearity=curve),
            backward=saves("input", "hx", "w_ih", "w_hh", results=(0,)),
        )
        for curve in ("tanh", "relu")
    },
}


# -- recurrent layers of torch.nn, reassembled ----------------------------------------------------
# A capture writes `nn.LSTM`, `nn.GRU` and `nn.RNN` as one operator per layer and direction
# (`archgraph.capture.recurrent`), so that each has its own hidden size. If all sizes agree, they
# are one layer again.

_KINDS: dict[str, tuple[type[nn.Module], int, dict[str, Any]]] = {
    "aten.lstm.input": (nn.LSTM, 4, {}),
    "aten.gru.input": (nn.GRU, 3, {}),
    "aten.rnn_tanh.input": (nn.RNN, 1, {"nonlinearity": "tanh"}),
    "aten.rnn_relu.input": (nn.RNN, 1, {"nonlinearity": "relu"}),
}


@dataclass(frozen=True)
class Stack:
    """A stacked recurrent layer of ``torch.nn``, and its results in the graph.

    Attributes:
        layer: The layer. It is called with a sequence, and with initial states if they are not
            zeros.
        output: The operator that returns the output sequence; None if no operator reads it.
        last: The operators that return the last states (two for an LSTM); None for a state that no
            operator reads.
        steps: Operators outside of the layer that read the last state of one layer and direction.
            Each comes with the index of the state, and the number of the layer and direction.
    """

    layer: TorchLayer
    output: str | None
    last: tuple[str | None, ...]
    steps: Mapping[str, tuple[int, int]]


def stack(graph: ArchGraph, path: str, nodes: Sequence[Node]) -> Stack | None:
    """Return the recurrent layer to which all operators of a module path belong, if there is one.

    1. Read the options from the operators, each of which computes one layer in one direction. If
       their number is even, also try two directions.
    2. List the operators that a capture of this layer would contain, in order, and compare them
       with the operators of the path. Results that no operator reads may be missing.
    3. Operators outside of the path may only read the sequence, the last states, or the last state
       of one layer and direction.
    """
    runs = [n for n in nodes if n.op in _KINDS]
    if not runs or any(n.op != runs[0].op for n in runs):
        return None
    start = graph.nodes.index(nodes[0])
    if graph.nodes[start : start + len(nodes)] != tuple(nodes):
        return None  # other work in between: an argument of the layer may not exist yet
    ways = (2, 1) if len(runs) % 2 == 0 else (1,)
    stacks = (_Writing(graph, path, nodes, runs, len(runs) // way, way).stack() for way in ways)
    return next((stack for stack in stacks if stack is not None), None)


def single_layers(graph: ArchGraph, nodes: Sequence[Node]) -> str:
    """Describe a stack of recurrent layers that a single layer of ``torch.nn`` cannot compute.

    In a layer of ``torch.nn``, the hidden size is the same for all layers and directions. After a
    cut, these sizes may differ. The result is empty if there is no such stack.
    """
    runs = [n for n in nodes if n.op in _KINDS]
    if not runs:
        return ""
    kind, gates, _ = _KINDS[runs[0].op]
    sizes = [graph.param[_leaves(run)[0].name].shape[0] // gates for run in runs if _leaves(run)]
    return f"{kind.__name__} as single layers, hidden sizes {', '.join(map(str, sizes))}"


@dataclass
class _Writing:
    """The operators of a recurrent layer while they are compared one by one.

    Attributes:
        graph: The graph.
        path: Path of the layer.
        nodes: All operators of the path.
        runs: Operators among them that compute one layer and direction each.
        layers: Number of layers.
        ways: Number of directions.
        at: Number of operators of the path compared so far.
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
        """Operator of the first layer."""
        return self.runs[0]

    @property
    def time(self) -> int:
        """Dimension of the time steps."""
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
        """Return the layer if its operators equal the operators of the path."""
        states = self.states()
        if states is None or any(len(_leaves(run)) < 2 for run in self.runs):
            return None
        options = self.options()
        if options.get("proj_size", 0) >= options["hidden_size"]:  # torch.nn has no such layer
            return None
        results = self.compared(options, states)
        # Operators that remain are other work of the path.
        steps = self.steps(*results) if results is not None and self.at == len(self.nodes) else None
        if results is None or steps is None:
            return None
        kind = _KINDS[self.first.op][0]
        # The layer's own order of weights: by layer, direction, then kind, as in a run.
        names: Any = kind(**options, device="meta")._flat_weights_names
        leaves = [leaf for run in self.runs for leaf in _leaves(run)]
        if len(names) != len(leaves):
            return None
        inputs = (self.first.arg("input"), *([tuple(states)] if len(states) > 1 else states))
        layer = TorchLayer(kind, options, dict(zip(names, leaves, strict=True)), inputs)
        return Stack(layer, *results, steps)

    def states(self) -> list[Value] | None:
        """Return the initial states of all layers: empty if they are zeros, None if unknown."""
        inside = {n.name: n for n in self.nodes}
        first = _first_states(self.first)
        states: list[Value] = []
        for value in first:
            node = inside.get(value.name) if isinstance(value, Ref) else None
            if node is None and len(self.runs) == 1:
                states.append(value)
            elif node is not None and node.op == "aten.slice.Tensor":
                # One of several layers takes its slice of the states passed to the module.
                states.append(node.arg("self"))
            elif node is None or node.op != "aten.zeros":
                return None
        # torch.nn takes either all initial states or none.
        return states if len(states) in (0, len(first)) else None

    def compared(
        self, options: Mapping[str, Any], states: Sequence[Value]
    ) -> tuple[str | None, tuple[str | None, ...]] | None:
        """Return the sequence and the last states; None if an operator differs."""
        sequence: Value = self.first.arg("input")
        kinds = len(_first_states(self.first))
        last: list[list[Value]] = []
        for start in range(0, len(self.runs), self.ways):
            outs: list[Value] = []
            for way, run in enumerate(self.runs[start : start + self.ways]):
                if not self.called(run, self.flipped(sequence, way), states):
                    return None
                # A result that nothing reads has no operator: None stands for it.
                out, *ends = (
                    self.next("getitem", source=Ref(run.name), index=index)
                    for index in range(kinds + 1)
                )
                last.append(ends)
                outs.append(self.flipped(out, way))
            if options.get("dropout") and start + self.ways < len(self.runs):
                # A capture applies dropout time-first, in the order in which torch.nn draws.
                joined = self.joined([self.turned(out) for out in outs], -1)
                dropped = self.next(
                    "aten.dropout", input=joined, p=options["dropout"], train=TRAINING
                )
                sequence = self.turned(dropped)
            else:
                sequence = self.joined(outs, -1)
        joint = tuple(_name(self.joined(ends, 0)) for ends in zip(*last, strict=True))
        return _name(sequence), joint

    def steps(
        self, output: str | None, last: Sequence[str | None]
    ) -> dict[str, tuple[int, int]] | None:
        """Return operators that read one layer's last state; None if others read results."""
        inside = {n.name for n in self.nodes}
        numbers = {run.name: at for at, run in enumerate(self.runs)}
        steps: dict[str, tuple[int, int]] = {}
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
            if not all(self._picks(name, index) for name in readers):
                return None
            steps |= dict.fromkeys(readers, (max(index - 1, 0), numbers[source.name]))
        return steps

    def _picks(self, name: str, index: int) -> bool:
        """Return whether an operator outside of the layer selects the last state from its results.

        Args:
            name: The operator.
            index: Index of the result: 0 for the sequence of outputs, others for the states.
        """
        reader, last = self.graph.node[name], (0, 0) if index else (self.time, -1)
        picked = reader.op, reader.arg("dim", 0), reader.arg("index")
        return picked == ("aten.select.int", *last) and reader.scope == self.path.rpartition(".")[0]

    # -- operators --------------------------------------------------------------------------------

    def next(self, op: str, /, **args: Value) -> Value:
        """Return the next operator of the path if it matches; None otherwise."""
        node = self.nodes[self.at] if self.at < len(self.nodes) else None
        if node is None or node.op != op or any(node.arg(k) != v for k, v in args.items()):
            return None
        self.at += 1
        return Ref(node.name)

    def called(self, run: Node, sequence: Value, states: Sequence[Value]) -> bool:
        """Return whether the next operators compute the initial states and one layer."""
        first, number = self.first, self.runs.index(run)
        for value, source in itertools.zip_longest(_first_states(run), states):
            if source is None:
                self.next("aten.zeros")  # unless it reuses another layer's
                if not isinstance(value, Ref) or self.graph.node[value.name].op != "aten.zeros":
                    return False
            elif value != source:
                # torch.nn passes each layer and direction the states at its own number.
                bounds = {"dim": None, "start": number, "end": number + 1}
                if self.next("aten.slice.Tensor", self=source, **bounds) != value:
                    return False
        alike = all(run.arg(k) == first.arg(k) for k in ("has_biases", "batch_first"))
        return alike and self.next(run.op, input=sequence) == Ref(run.name)

    def flipped(self, value: Value, way: int) -> Value:
        """Return a sequence, reversed for the second direction."""
        return self.next("aten.flip", self=value, dims=(self.time,)) if way else value

    def joined(self, parts: Sequence[Value], dim: int) -> Value:
        """Return the results of several layers or directions, concatenated."""
        if len(parts) == 1:
            return parts[0]
        # Default arguments are not written.
        return self.next("aten.cat", tensors=tuple(parts), **({"dim": dim} if dim else {}))

    def turned(self, value: Value) -> Value:
        """Return a sequence, with its first two dimensions swapped if it is batch-first."""
        if not self.time:
            return value
        return self.next("aten.transpose.int", self=value, dim0=0, dim1=1)


def _leaves(run: Node) -> list[Leaf]:
    """Return the weights of one layer and direction."""
    params = run.arg("params")
    return [v for v in params if isinstance(v, Leaf)] if isinstance(params, tuple) else []


def _name(value: Value) -> str | None:
    return value.name if isinstance(value, Ref) else None
