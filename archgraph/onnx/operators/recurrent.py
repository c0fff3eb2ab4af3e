"""Rows of recurrent layers, whose gates ONNX stacks in another order."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable
from archgraph.onnx.operators.sequences import walked

# Where PyTorch's gates stand among those of ONNX: LSTM i o f c → i f c o, GRU z r h → r z h.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _gates(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    parts = tensor.chunk(len(_ORDER[kind]))
    return torch.cat([parts[i] for i in _ORDER[kind]]) if len(parts) > 1 else tensor


def _fit(kind: str, ways: int, x: Any, w: Any, r: Any, b: Any, *states: Any) -> None:
    """Refuse other sizes than a layer has; PyTorch's functions read beyond the ends of those."""
    size = r.shape[-1]
    rows = len(_ORDER[kind]) * size
    wanted: list[tuple[Any, tuple[int, ...]]]
    wanted = [(w, (ways, rows, x.shape[2])), (r, (ways, rows, size))]
    wanted += [(b, (ways, 2 * rows))] if b is not None else []
    wanted += [(state, (ways, x.shape[1], size)) for state in states]
    for tensor, shape in wanted:
        if tuple(tensor.shape) != shape:
            raise SpecError("has other sizes", found=tuple(tensor.shape), expected=shape)


def _reset_first(
    x: torch.Tensor, h: torch.Tensor, params: list[torch.Tensor], each: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run, step by step, a GRU that resets before its linear part; PyTorch's resets after it."""
    ways, last = [], []
    for way, state in enumerate(h):
        w, r, *bias = params[way * each : (way + 1) * each]
        given = F.linear(x.flip(0) if way else x, w, bias[0] if bias else None)
        size, made = r.shape[1], []
        inner = bias[1] if bias else r.new_zeros(3 * size)
        for t in walked(x.shape[0]):
            both = F.linear(state, r[: 2 * size], inner[: 2 * size]) + given[t, :, : 2 * size]
            reset, keep = torch.sigmoid(both).chunk(2, -1)
            fresh = F.linear(reset * state, r[2 * size :], inner[2 * size :])
            state = torch.lerp(torch.tanh(given[t, :, 2 * size :] + fresh), state, keep)
            made.append(state)
        ways.append(torch.stack(made[::-1] if way else made))
        last.append(state)
    return torch.cat(ways, -1), torch.stack(last)


def _layer(kind: str) -> OnnxRow:
    def compute(
        at: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None,
        h: Any = None, c: Any = None, peepholes: Any = None,
    ) -> Any:  # fmt: skip
        direction = at.get("direction", "forward")
        at.refuse("input_forget", 0)
        at.refuse("clip", None)
        ways = 2 if direction == "bidirectional" else 1
        names = tuple(at.get("activations") or _ACTIVATIONS[kind] * ways)
        relu = kind == "RNN" and names == ("Relu",) * ways
        if names != _ACTIVATIONS[kind] * ways and not relu:
            raise SpecError("has other activations", found=names)
        if lengths is not None or peepholes is not None:
            raise SpecError("has lengths or peepholes", expected="neither")
        size = r.shape[-1]
        turned = bool(at.get("layout", 0))  # the batch comes first
        if turned:
            x, h, c = (v if v is None else v.transpose(0, 1) for v in (x, h, c))
        params: list[torch.Tensor] = []
        for way in range(ways):
            params += [_gates(kind, w[way]), _gates(kind, r[way])]
            if b is not None:
                params += [_gates(kind, part) for part in b[way].chunk(2)]
        if direction == "reverse":
            x = x.flip(0)
        zero = x.new_zeros(ways, x.shape[1], size)
        h = zero if h is None else h
        _fit(kind, ways, x, w, r, b, h, zero if c is None else c)
        options = (b is not None, 1, 0.0, False, ways == 2, False)
        if kind == "LSTM":
            y, *last = torch.lstm(x, (h, zero if c is None else c), params, *options)
        elif kind == "GRU" and not at.get("linear_before_reset", 0):
            y, *last = _reset_first(x, h, params, len(params) // ways)
        elif kind == "GRU":
            y, *last = torch.gru(x, h, params, *options)
        else:
            y, *last = (torch.rnn_relu if relu else torch.rnn_tanh)(x, h, params, *options)
        if direction == "reverse":
            y = y.flip(0)
        y = y.reshape(y.shape[0], y.shape[1], ways, size).transpose(1, 2)
        if turned:
            y, last = y.permute(2, 0, 1, 3), [v.transpose(0, 1) for v in last]
        return (y, *last)[: at.outputs] if at.outputs > 1 else y

    return OnnxRow(compute)


RECURRENT: OnnxTable = {kind: _layer(kind) for kind in _ORDER}
