"""How an entry that comes from nowhere gets its values: an initialiser of torch and its stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from archgraph.errors import RewriteError
from archgraph.graph.ir import Constant, Value, show


def _constant(tensor: Tensor, value: Constant) -> Tensor:
    dtype = cast(torch.dtype, getattr(torch, value.dtype))
    data = torch.frombuffer(bytearray(value.data), dtype=dtype)
    return tensor.copy_(data.reshape(value.shape))


_RANDOM: dict[str, Callable[..., Tensor]] = {
    "uniform": nn.init.uniform_,
    "normal": nn.init.normal_,
    "trunc_normal": nn.init.trunc_normal_,
    "kaiming_uniform": nn.init.kaiming_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "orthogonal": nn.init.orthogonal_,
}
_FIXED: dict[str, Callable[..., Tensor]] = {
    "zeros": nn.init.zeros_,
    "ones": nn.init.ones_,
    "constant": nn.init.constant_,  # val
    "eye": nn.init.eye_,
    "dirac": nn.init.dirac_,
    "value": _constant,  # value: archgraph.graph.ir.Constant
}
#: Initialisers by name: those of ``torch.nn.init`` with their argument names, and ``value``.
INITIALISERS = frozenset(_RANDOM) | frozenset(_FIXED)


@dataclass(frozen=True, slots=True)
class Initial:
    """How an entry without a source gets its values, as plain values.

    Attributes:
        name: One of :data:`INITIALISERS`.
        args: Its arguments by name.
        shape: The shape that is initialised; the entry's dimension maps apply after it.
        key: Names the random stream, so that neither other entries nor later rewrites change it.

    >>> Initial("constant", (("val", 0.5),), (3,), "fc.bias").make(torch.float32)
    tensor([0.5000, 0.5000, 0.5000])
    """

    name: str
    args: tuple[tuple[str, Value | Constant], ...]
    shape: tuple[int, ...]
    key: str

    def __post_init__(self) -> None:
        if self.name not in INITIALISERS:
            raise RewriteError(
                "no such initialiser",
                where=self.key,
                found=self.name,
                expected=", ".join(sorted(INITIALISERS)),
            )

    def make(self, dtype: torch.dtype, seed: int = 0) -> Tensor:
        """The initial values, the same for the same seed and key, on the CPU."""
        tensor = torch.empty(self.shape, dtype=dtype)
        args = dict(self.args)
        if self.name in _FIXED:
            return _FIXED[self.name](tensor, **args)
        digest = hashlib.sha256(f"{seed}/{self.key}".encode()).digest()
        stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return _RANDOM[self.name](tensor, **args, generator=stream)

    def __str__(self) -> str:
        args = (f"{k}={v if isinstance(v, Constant) else show(v)}" for k, v in self.args)
        return f"{self.name}({', '.join(args)})"
