"""Recurrent layers: split an operator with several layers and directions into one for each.

Requires a tape (:mod:`~archgraph.capture.tape`) without in-place operators. Guarantees that every
recurrent operator over a sequence has one layer and runs forwards. A backward direction runs over
the flipped sequence. Each layer and direction can therefore have its own hidden size, and layers
can be removed as in other networks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from archgraph.capture import calls
from archgraph.capture.tape import Tape
from archgraph.graph.ir import Value
from archgraph.ops.constants import constant_tensor

_ATEN = torch.ops.aten
_SEQUENCES = (_ATEN.lstm.input, _ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input)
_ZEROS = (_ATEN.zeros.default, _ATEN.new_zeros.default)


def unstack(tape: Tape) -> Tape:
    """Split recurrent operators into one for each layer and direction, and connect these."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in list(tape.graph.nodes):
        if node.target in _SEQUENCES:
            formal = [argument.name for argument in node.target._schema.arguments]
            args = dict(zip(formal, node.args, strict=True))
            with tape.graph.inserting_before(node):
                replaced |= _Stack(tape, node, args).results()
    return replace(tape, updates={k: replaced.get(v, v) for k, v in tape.updates.items()})


@dataclass
class _Stack:
    """Expands one operator into its layers and directions.

    Attributes:
        runs: Sequence returned by each layer and direction, in its own order of time.
        last: For each kind of state, the last states of all layers and directions.
    """

    tape: Tape
    node: fx.Node
    args: dict[str, Any]  # nodes, lists of nodes and numbers, as in the operator's schema
    runs: list[fx.Node] = field(default_factory=list)
    last: list[list[fx.Node]] = field(default_factory=list)

    @property
    def time(self) -> int:
        """Dimension of the steps."""
        return 1 if self.args["batch_first"] else 0

    def results(self) -> dict[fx.Node, fx.Node]:
        """Expand the layers, and return the replacement of each result."""
        output = self.run()
        results: dict[fx.Node, fx.Node] = {}
        for item in list(self.node.users):
            index = item.args[1]
            assert isinstance(index, int)
            if index == 0:
                results[item] = output
            else:
                self.pick(item, index - 1)
                results[item] = self.joined(self.last[index - 1], 0)
            item.replace_all_uses_with(results[item])
            self.tape.graph.erase_node(item)
        self.tape.graph.erase_node(self.node)
        return results

    def run(self) -> fx.Node:
        """Expand the layers one after the other; return the resulting sequence."""
        args, output = self.args, self.node.meta["val"][0]
        layers, ways = args["num_layers"], 1 + args["bidirectional"]
        states = args["hx"] if isinstance(args["hx"], (list, tuple)) else [args["hx"]]
        self.last = [[] for _ in states]
        each, size = len(args["params"]) // (layers * ways), output.shape[-1] // ways
        x = args["input"]
        for layer in range(layers):
            outs = []
            for way in range(ways):
                at = layer * ways + way
                weights = args["params"][at * each : (at + 1) * each]
                value = output.narrow(-1, way * size, size)
                y = self.layer(
                    self.flipped(x, way), [self.state(s, at) for s in states], weights, value
                )
                outs.append(self.flipped(y, way))
            drops = args["dropout"] and layer + 1 < layers
            x = self.dropped(outs) if drops else self.joined(outs, -1)
        return x

    def layer(
        self, x: fx.Node, states: Sequence[fx.Node], weights: Sequence[fx.Node], value: Tensor
    ) -> fx.Node:
        """Insert a layer in one direction, record its last states, and return its sequence."""
        values = (value, *(s.meta["val"] for s in states))
        hx = list(states) if len(states) > 1 else states[0]
        changed = {"input": x, "hx": hx, "params": list(weights), "num_layers": 1, "dropout": 0.0}
        args = tuple((self.args | changed | {"bidirectional": False}).values())
        target = self.node.target
        assert callable(target)
        call = self.insert(target, args, values)
        parts = [self.insert(operator.getitem, (call, i), value) for i, value in enumerate(values)]
        for group, part in zip([self.runs, *self.last], parts, strict=True):
            group.append(part)
        return parts[0]

    def flipped(self, x: fx.Node, backwards: int) -> fx.Node:
        """Reverse a sequence in time."""
        args = (x, [self.time])
        return self.insert(_ATEN.flip.default, args, x.meta["val"]) if backwards else x

    def joined(self, parts: Sequence[fx.Node], dim: int) -> fx.Node:
        """Concatenate the results of several layers or directions."""
        value = torch.cat([part.meta["val"] for part in parts], dim)
        args = (list(parts), dim)
        return self.insert(_ATEN.cat.default, args, value) if len(parts) > 1 else parts[0]

    def dropped(self, outs: Sequence[fx.Node]) -> fx.Node:
        """Apply dropout between two layers, with time first in memory, as torch does."""
        x = self.joined([self.turned(out) for out in outs], -1)
        args = (x, self.args["dropout"], self.args["train"])
        return self.turned(self.insert(_ATEN.dropout.default, args, x.meta["val"]))

    def turned(self, x: fx.Node) -> fx.Node:
        """Swap time and batch of a sequence that has the batch first."""
        value = x.meta["val"].transpose(0, 1)
        first = self.args["batch_first"]
        return self.insert(_ATEN.transpose.int, (x, 0, 1), value) if first else x

    def state(self, stacked: fx.Node, at: int) -> fx.Node:
        """Return the initial state of one layer; each layer gets its own zeros."""
        value = stacked.meta["val"].narrow(0, at, 1)
        constant = self.tape.constants.get(stacked)
        known = constant.value if constant is not None else None
        if stacked.target in _ZEROS or (known is not None and not constant_tensor(known).any()):
            shape = self.tape.sizes.shape(value, calls.where(self.node))
            return self.insert(_ATEN.zeros.default, (shape,), value, dtype=value.dtype)
        return self.insert(_ATEN.slice.Tensor, (stacked, 0, at, at + 1), value)

    def pick(self, item: fx.Node, kind: int) -> None:
        """Replace a read of one layer's last state, so that it does not depend on other layers.

        The last hidden state is read as the last step of the layer's sequence.
        """
        for user in list(item.users):
            if user.target == _ATEN.select.int and user.args[1] == 0:
                at = user.args[2]
                assert isinstance(at, int)
                user.args = (self.last[kind][at], 0, 0) if kind else (self.runs[at], self.time, -1)

    def insert(
        self,
        target: Callable[..., object],
        args: tuple[Argument | Value, ...],
        value: object,
        **more: Argument,
    ) -> fx.Node:
        """Insert a call in place of the operator."""
        return calls.insert(self.tape.graph, target, args, more, like=self.node, val=value)
