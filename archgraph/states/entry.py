"""How to compute one tensor of a target state: a source or an initialiser, maps, and a scale."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from archgraph.errors import RewriteError
from archgraph.graph.ir import Constant, Value, show
from archgraph.states.dimension_map import DimMap, composed
from archgraph.states.state import Slot, widened

Fill: TypeAlias = Callable[..., Tensor]


def _constant(tensor: Tensor, value: Constant) -> Tensor:
    dtype = cast(torch.dtype, getattr(torch, value.dtype))
    data = torch.frombuffer(bytearray(value.data), dtype=dtype)
    return tensor.copy_(data.reshape(value.shape))


def _of_torch(*names: str) -> dict[str, Fill]:
    return {name: getattr(nn.init, f"{name}_") for name in names}


_RANDOM = {
    **_of_torch("uniform", "normal", "trunc_normal", "orthogonal"),
    **_of_torch("kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal"),
}
_FIXED: dict[str, Fill] = {
    **_of_torch("zeros", "ones", "constant", "eye", "dirac"),
    "value": _constant,
}
#: Dict from name to initialiser: those of ``torch.nn.init``, and ``value``, which copies a constant
#: of a graph, its argument ``value``.
INITIALISERS = frozenset(_RANDOM) | frozenset(_FIXED)


@dataclass(frozen=True, slots=True)
class Initial:
    """The initialiser of a parameter or buffer that has no source, with its arguments.

    Attributes:
        name: One of :data:`INITIALISERS`.
        args: Keyword arguments of the initialiser, as pairs.
        shape: Shape to initialise, to which the entry's dimension maps are then applied.
        key: Determines the random values together with a seed, independently of other tensors.

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
                "unknown initialiser", found=self.name, expected=", ".join(sorted(INITIALISERS))
            )

    def make(self, dtype: torch.dtype, seed: int = 0) -> Tensor:
        """Return the initial values on the CPU; equal seeds and keys give equal values."""
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


@dataclass(frozen=True, slots=True)
class Entry:
    """How to compute one entry (parameter or buffer) of the target state.

    Attributes:
        source: Name of the entry in the source state; None if it is initialised.
        dims: Maps of the dimensions, None for the identity.
        scale: Factor on every value.
        init: The initialiser if ``source`` is None, otherwise None.

    >>> Entry("fc.weight", (DimMap.of(range(2), 4), None), scale=0.5)
    <Entry 0.5 · fc.weight[:2, :]>
    """

    source: str | None
    dims: tuple[DimMap | None, ...]
    scale: float = 1.0
    init: Initial | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.init is not None):
            raise RewriteError("entries need either a source or an initialiser", where=self.source)

    @staticmethod
    def kept(slot: Slot) -> Entry:
        """Return the entry that copies the source tensor with the same name.

        >>> Entry.kept(Slot("fc.bias", (4,), "float32"))
        <Entry fc.bias>
        """
        return Entry(slot.name, (None,) * len(slot.shape))

    @staticmethod
    def initialised(slot: Slot, name: str, **args: Value | Constant) -> Entry:
        """Return the entry that initialises a tensor with this slot's shape.

        >>> Entry.initialised(Slot("fc.bias", (4,), "float32"), "constant", val=0.5).pull(None)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        """
        return Entry(
            None,
            (None,) * len(slot.shape),
            init=Initial(name, tuple(sorted(args.items())), slot.shape, slot.name),
        )

    @property
    def unchanged(self) -> bool:
        """Whether the entry copies its source without a change."""
        return self.source is not None and self.scale == 1 and not any(self.dims)

    @property
    def sliced(self) -> bool:
        """Whether the entry is a (scaled) :meth:`view` of its source."""
        return self.source is not None and not self._rest()

    @property
    def selects(self) -> bool:
        """Whether every value is copied from the source, without a scale or a sum."""
        return self.scale == 1 and all(m is None or m.selects for m in self.dims)

    def then(self, other: Entry) -> Entry:
        """Return the entry that computes ``other`` from the source of this entry."""
        dims = tuple(itertools.starmap(composed, zip(self.dims, other.dims, strict=True)))
        return Entry(self.source, dims, self.scale * other.scale, self.init)

    def pull(
        self, x: Tensor | None, *, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> Tensor:
        """Compute the target's values from the source's, as a contiguous copy."""
        if self.init is not None:
            x = self.init.make(dtype, seed)
        assert x is not None
        wide = widened(x)
        if wide is not x and not self.selects:  # torch does not compute in eight bits
            return self.pull(wide).to(x.dtype)
        y = self.view(x)
        # Apply shrinking maps first, the strongest before the others, which then process less.
        # Apply lengthening maps from the last dimension on, so that the largest copy is row-wise.
        rest = sorted(
            self._rest(),
            key=lambda item: (
                (-item[0], 1)
                if item[1].length >= item[1].size
                else (-math.inf, item[1].length / item[1].size)
            ),
        )
        for dim, map_ in rest:
            y = map_.gather(y, dim)
        y = y.contiguous() if rest else y.clone(memory_format=torch.contiguous_format)
        return y if self.scale == 1 else y.mul_(self.scale)

    def push(self, y: Tensor, into: Tensor, alpha: float = 1.0) -> None:
        """Add ``alpha · Aᵀ y`` in place to ``into``, a tensor with the source's shape."""
        view, alpha, rest = self.view(into), alpha * self.scale, self._rest()
        alpha = 1 if alpha == 1 else alpha  # integer tensors refuse a floating-point factor
        if not rest:
            view.add_(y, alpha=alpha)
            return
        # Scatter the first dimension last: its slices are contiguous, so adding in place is fast.
        y = y.to(into.dtype)
        for dim, map_ in reversed(rest[1:]):
            y = map_.expand(y, dim)
        dim, map_ = rest[0]
        map_.scatter(y, dim, view, alpha)

    def view(self, x: Tensor) -> Tensor:
        """Return the view of a source tensor that the entry's slices select."""
        if not any(self.dims):
            return x
        return x[tuple((m and m.window) or slice(None) for m in self.dims)]

    def _rest(self) -> list[tuple[int, DimMap]]:
        """Return the dimensions whose map is not a single slice."""
        return [(d, m) for d, m in enumerate(self.dims) if m and not m.window]

    def __repr__(self) -> str:
        return f"<Entry {self}>"

    def __str__(self) -> str:
        origin = self.source if self.init is None else str(self.init)
        index = f"[{', '.join(':' if m is None else str(m) for m in self.dims)}]"
        factor = "" if self.scale == 1 else f"{self.scale:g} · "
        return f"{factor}{origin}{index if any(self.dims) else ''}"
