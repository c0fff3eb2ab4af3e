"""Recurrent ONNX layers; the order of their gates differs from PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable

# Positions of PyTorch's gates in ONNX's order: LSTM i o f c → i f c o, GRU z r h → r z h.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh
}  # fmt: skip
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _gates(kind: str, tensor: Tensor) -> Tensor:
    parts = tensor.chunk(len(_ORDER[kind]))
    return torch.cat([parts[i] for i in _ORDER[kind]]) if len(parts) > 1 else tensor


def _params(kind: str, way: int, w: Tensor, r: Tensor, b: Tensor | None) -> Iterator[Tensor]:
    """Yield the weights of one direction in the order of PyTorch's function."""
    yield _gates(kind, w[way])
    yield _gates(kind, r[way])
    if b is not None:
        yield from (_gates(kind, part) for part in b[way].chunk(2))


def _layer(kind: str, at: Attributes, ways: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function of PyTorch; raise an error for settings that it does not support."""
    at.refuse("input_forget", 0)
    at.refuse("clip", None)
    at.refuse("layout", 0)
    if kind == "GRU" and not at.get("linear_before_reset", 0):
        raise SpecError(
            "applies the reset gate before its linear part",
            found="linear_before_reset=0",
            expected="linear_before_reset=1, as PyTorch exports it",
        )
    names = tuple(at.get("activations") or _ACTIVATIONS[kind] * ways)
    if kind == "RNN" and names == ("Relu",) * ways:
        return torch.rnn_relu
    if names != _ACTIVATIONS[kind] * ways:
        raise SpecError("has activations that PyTorch's layer does not have", found=names)
    return _FUNCTIONS[kind]


def _check_sizes(
    kind: str, ways: int, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, *states: Tensor
) -> None:
    """Raise an error if the sizes of inputs and weights do not match.

    ``torch.lstm`` and similar functions do not check sizes and would access memory out of bounds.
    """
    size = r.shape[-1]
    rows = len(_ORDER[kind]) * size
    pairs: list[tuple[Tensor, tuple[int, ...]]]
    pairs = [(w, (ways, rows, x.shape[2])), (r, (ways, rows, size))]
    pairs += [(b, (ways, 2 * rows))] if b is not None else []
    pairs += [(state, (ways, x.shape[1], size)) for state in states]
    for tensor, shape in pairs:
        if tuple(tensor.shape) != shape:
            raise SpecError("has other sizes", found=tuple(tensor.shape), expected=shape)


def _recurrent(
    kind: str, at: Attributes, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
    lengths: Tensor | None = None, h: Tensor | None = None, c: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> object:  # fmt: skip
    """Compute a recurrent layer with the function of PyTorch.

    1. Raise an error for features that PyTorch's layers do not have.
    2. Convert the gates of the weights to PyTorch's order. Reverse the sequence if the layer only
       runs backwards.
    3. Run the layer.
    4. Reverse the results if the layer only runs backwards; convert their axes to ONNX's order.
    """
    # 1.
    direction = at.get("direction", "forward")
    ways = 1 + (direction == "bidirectional")
    layer = _layer(kind, at, ways)
    if lengths is not None or peepholes is not None:
        raise SpecError("has lengths or peepholes", expected="neither")
    # 2.
    params = [part for way in range(ways) for part in _params(kind, way, w, r, b)]
    x = x.flip(0) if direction == "reverse" else x
    zero = x.new_zeros(ways, x.shape[1], r.shape[-1])
    h, c = (zero if state is None else state for state in (h, c))
    _check_sizes(kind, ways, x, w, r, b, h, c)
    # 3.
    states = (h, c) if kind == "LSTM" else h
    y, *last = layer(x, states, params, b is not None, 1, 0.0, False, ways == 2, False)
    # 4.
    y = y.flip(0) if direction == "reverse" else y
    y = y.reshape(y.shape[0], y.shape[1], ways, r.shape[-1]).transpose(1, 2)
    return at.results(y, *last)


RECURRENT: OnnxTable = {kind: OnnxRow(partial(_recurrent, kind)) for kind in _ORDER}
