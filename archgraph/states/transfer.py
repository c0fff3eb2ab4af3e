"""The linear map between the states of two architectures: compose, pull, push, describe.

A :class:`Transfer` says for every entry of the target state where it comes from in the source
state: a source entry, one :class:`DimMap` per dimension, a scale; or an initialiser. Read as a
matrix ``A`` (the Kronecker product of its dimension maps, entry by entry) it has three readings:

- ``pull``: ``A θ``, the target's state from the source's (distribution);
- ``push``: ``Aᵀ θ'`` and its coverage ``|A|ᵀ|A| 1``, back in the source's shape (aggregation). For
  a map that only selects, the coverage is ``Aᵀ 1``: how often each position was kept. For one that
  weighs or adds up, this is the normalisation under which ``push(pull(θ)) / coverage`` gives back
  a replicated θ and shares a sum out in equal parts;
- ``describe``: the same in words.

Prefixes, windows and strides are slices all the way: no index tensor is ever made for them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Constant, Role, Value, per_graph, show
from archgraph.states.dimmap import DimMap, Vector, chain
from archgraph.states.state import State

__all__ = [
    "INITIALISERS",
    "Coverage",
    "DimMap",
    "Entry",
    "Init",
    "Rewritten",
    "Signature",
    "Slot",
    "Term",
    "Transfer",
    "accumulator",
    "compose",
    "signature",
]


class Slot(NamedTuple):
    """One entry of a signature: what a state must hold under this name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role = "parameter"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        return cast(torch.dtype, getattr(torch, self.dtype))

    @property
    def averaged(self) -> bool:
        """Whether values of this dtype can be scaled and averaged (not integers or bools)."""
        return self.torch_dtype.is_floating_point or self.torch_dtype.is_complex


Signature: TypeAlias = tuple[Slot, ...]


@per_graph
def _signature(graph: ArchGraph) -> Signature:
    return tuple(
        Slot(p.name, p.shape, p.dtype, p.role) for p in graph.params if p.role != "constant"
    )


def signature(graph: ArchGraph | Signature) -> Signature:
    """Names, shapes, dtypes and roles of an architecture's state, in its order.

    >>> from archgraph.graph.ir import ArchGraph, Param, TensorType
    >>> fc = Param("fc.weight", TensorType((10, 4), "float32"))
    >>> print(*signature(ArchGraph(inputs=(), params=(fc,), nodes=(), outputs=())))
    fc.weight: float32[10, 4]
    """
    return cast(Signature, _signature(graph)) if isinstance(graph, ArchGraph) else graph


# -------------------------------------------------------------------------------- one entry


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
class Init:
    """How an entry without a source gets its values, as plain values.

    Attributes:
        name: One of :data:`INITIALISERS`.
        args: Its arguments by name.
        shape: The shape that is initialised; the entry's dimension maps apply after it.
        key: Names the random stream, so that neither other entries nor later rewrites change it.
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


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one entry of the target state comes from.

    Attributes:
        source: Name in the source state; ``None``: initialised.
        dims: One map per dimension, ``None`` for the identity.
        scale: Factor on every value.
        init: The initialiser; given exactly when ``source`` is ``None``.
    """

    source: str | None
    dims: tuple[DimMap | None, ...]
    scale: float = 1.0
    init: Init | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.init is not None):
            raise RewriteError("an entry has either a source or an initialiser", where=self.source)

    @staticmethod
    def initialised(slot: Slot, name: str, **args: Value | Constant) -> Entry:
        """An entry of this slot's shape that is initialised.

        >>> Entry.initialised(Slot("fc.bias", (4,), "float32"), "constant", val=0.5).pull(None)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        """
        init = Init(name, tuple(sorted(args.items())), slot.shape, slot.name)
        return Entry(None, (None,) * len(slot.shape), init=init)

    @property
    def unchanged(self) -> bool:
        """Whether it is a plain copy of its source."""
        return self.source is not None and self.scale == 1 and not any(self.dims)

    @property
    def sliced(self) -> bool:
        """Whether it is, but for its scale, one :meth:`view` of its source."""
        return self.source is not None and not self._rest()

    @property
    def selects(self) -> bool:
        """Whether every value is one source value, unscaled."""
        return self.scale == 1 and all(m is None or m.selects for m in self.dims)

    def then(self, other: Entry) -> Entry:
        """This entry, then ``other``, whose source it is."""
        dims = tuple(itertools.starmap(chain, zip(self.dims, other.dims, strict=True)))
        return Entry(self.source, dims, self.scale * other.scale, self.init)

    def magnitude(self) -> Entry:
        """The entry with the absolute values of its weights."""
        dims = tuple(None if m is None else m.magnitude() for m in self.dims)
        return dataclasses.replace(self, dims=dims, scale=abs(self.scale))

    def pull(
        self, x: Tensor | None, *, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> Tensor:
        """The target's values from the source's, a contiguous copy.

        Args:
            x: The source entry; not used when initialised.
            dtype: Element type of an initialised entry.
            seed: Of an initialised entry.
        """
        if self.init is not None:
            x = self.init.make(dtype, seed)
        assert x is not None
        y = self.view(x)
        # Maps that shrink go first, the strongest before others, which then touch less; those that
        # lengthen go from the last dimension on, so that the largest copy is one of whole rows.
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
        """Add ``alpha · Aᵀ y`` to ``into``, of the source's shape, in place."""
        view, alpha = self.view(into), alpha * self.scale
        alpha = 1 if alpha == 1 else alpha  # integers take no floating-point factor
        rest = self._rest()
        if not rest:
            view.add_(y, alpha=alpha)
            return
        # The first dimension comes last: its slices are contiguous, so they add into place well.
        y = y.to(into.dtype)
        for dim, map_ in reversed(rest[1:]):
            y = map_.expand(y, dim)
        dim, map_ = rest[0]
        map_.scatter(y, dim, view, alpha)

    def view(self, x: Tensor) -> Tensor:
        """The part of a source tensor that the single slices select."""
        if not any(self.dims):
            return x
        return x[tuple((m and m.window) or slice(None) for m in self.dims)]

    def _rest(self) -> list[tuple[int, DimMap]]:
        """Dimensions whose map is no single slice."""
        return [(d, m) for d, m in enumerate(self.dims) if m and not m.window]

    def __str__(self) -> str:
        origin = self.source if self.init is None else str(self.init)
        index = f"[{', '.join(':' if m is None else str(m) for m in self.dims)}]"
        factor = "" if self.scale == 1 else f"{self.scale:g} · "
        return f"{factor}{origin}{index if any(self.dims) else ''}"


# ------------------------------------------------------------------------------- coverage


Grid: TypeAlias = tuple[tuple[npt.NDArray[np.int64], ...], Vector]
Box: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """A share of one entry's coverage: what one target entry gives its source entry.

    Attributes:
        factor: Of the whole entry.
        dims: The target entry's maps.
        rows: Weights along the target entry's first dimension; empty: ones.
    """

    factor: float
    dims: tuple[DimMap | None, ...]
    rows: tuple[float, ...] = ()

    @staticmethod
    def of(entry: Entry, weight: float = 1.0, rows: tuple[float, ...] = ()) -> Term:
        """The coverage that an entry gives its source when it counts this much."""
        return Term(weight * entry.scale**2, entry.dims, rows)

    def vectors(self) -> Iterator[Vector | None]:
        """The vectors of the outer product that it is, ``None`` for ones; without the factor."""
        for dim, map_ in enumerate(self.dims):
            rows = np.asarray(self.rows) if self.rows and dim == 0 else None
            yield rows if map_ is None else map_.coverage(rows)


class Coverage(Mapping[str, Tensor]):
    """How much reached each position, by entry name: dense float64 tensors, made when looked up.

    What is kept is the sum of outer products that the coverage is made of; where an entry is
    covered evenly, the tensor looked up is one number, expanded.

    Args:
        shapes: Of every entry.
        terms: What covers them; an entry without any is not covered.

    >>> term = Term.of(Entry("w", (DimMap.of(range(2), 4), None)), weight=5)
    >>> coverage = Coverage({"w": (4, 3)}, {"w": [term]})
    >>> coverage["w"][:, 0].tolist(), coverage.share("w")
    ([5.0, 5.0, 0.0, 0.0], 0.5)
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Sequence[Term]]
    ) -> None:
        self._shapes = dict(shapes)
        self._terms = {name: tuple(terms.get(name, ())) for name in shapes}
        self._unit = 1.0
        # Entries of one shape that are covered alike (all norms of a width) share their grid. Maps
        # are told apart by identity: the terms keep them alive, and hashing them takes longer.
        self._grids: dict[tuple[Any, ...], tuple[Grid, list[tuple[Box, float]]]] = {}

    def __getitem__(self, name: str) -> Tensor:
        bounds, table = self.grid(name)
        for dim, edges in enumerate(bounds):
            if len(edges) > 2:
                table = np.repeat(table, np.diff(edges), axis=dim)
        return torch.from_numpy(np.array(table)).expand(self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def grid(self, name: str) -> Grid:
        """The coverage of an entry as cells of equal value.

        Returns:
            Per dimension the cells' edges (``0, …, extent``), and the table of their values.
        """
        bounds, table = self._alike(name)[0]
        return bounds, np.asarray(table * self._unit)

    def boxes(self, name: str, limit: int) -> list[tuple[Box, float]]:
        """The coverage of an entry as disjoint boxes that fill it, each of one value.

        Args:
            name: The entry.
            limit: With more cells than this, there are no boxes: look up the tensor.
        """
        (bounds, table), boxes = self._alike(name)
        if not boxes and table.size <= limit:
            edges = [part.tolist() for part in bounds]
            boxes.extend(_boxes(edges, (table * self._unit).tolist()))
        return boxes

    def times(self, factor: float) -> Coverage:
        """The coverage, every weight multiplied."""
        result = Coverage(self._shapes, self._terms)
        result._unit = self._unit * factor
        return result

    def share(self, name: str) -> float:
        """Fraction of an entry's positions that anything reached, 0 to 1."""
        bounds, table = self.grid(name)
        sizes: npt.NDArray[Any] = np.asarray(1)
        for edges in bounds:
            sizes = np.multiply.outer(sizes, np.diff(edges))
        return float((sizes * (table > 0)).sum() / max(sizes.sum(), 1))

    def _alike(self, name: str) -> tuple[Grid, list[tuple[Box, float]]]:
        shape, terms = self._shapes[name], self._terms[name]
        key = (shape, *[(id(term.dims), term.factor, term.rows) for term in terms])
        if key not in self._grids:
            self._grids[key] = _grid(shape, terms), []
        return self._grids[key]

    def __repr__(self) -> str:
        full = sum(self.share(name) == 1 for name in self)
        return f"Coverage({full} of {len(self)} entries covered everywhere)"


def _grid(shape: tuple[int, ...], terms: tuple[Term, ...]) -> Grid:
    products = [(term.factor, list(term.vectors())) for term in terms]
    bounds = []
    for dim, extent in enumerate(shape):
        changes = np.zeros(max(extent - 1, 0), dtype=bool)
        for _, vectors in products:
            if (vector := vectors[dim]) is not None:
                changes |= vector[1:] != vector[:-1]
        bounds.append(np.concatenate(([0], np.flatnonzero(changes) + 1, [extent])))
    table = np.zeros([len(edges) - 1 for edges in bounds])
    for factor, vectors in products:
        part = np.asarray(factor)
        for edges, vector in zip(bounds, vectors, strict=True):
            cells = np.ones(len(edges) - 1)
            if vector is not None and len(vector):
                cells = vector[edges[:-1]]
            part = np.multiply.outer(part, cells)
        table += part
    return tuple(bounds), table


def _boxes(bounds: Sequence[list[int]], table: Any, outer: Box = ()) -> Iterator[tuple[Box, float]]:
    """Cells of a table (nested lists) as boxes, equal neighbours along an axis joined."""
    if not bounds:
        yield outer, table
        return
    edges, start = bounds[0], 0
    for stop in range(1, len(table) + 1):
        if stop == len(table) or table[stop] != table[start]:
            here = slice(edges[start], edges[stop])
            yield from _boxes(bounds[1:], table[start], (*outer, here))
            start = stop


# ------------------------------------------------------------------------------- transfer


@dataclass(frozen=True, eq=False)
class Transfer:
    """A linear map from the states of one architecture to those of another.

    Attributes:
        source: What a source state holds.
        target: What a target state holds.
        entries: For every target name, where it comes from; a plain mapping, never changed.

    Raises:
        RewriteError: If an entry is missing, left over, or its maps do not fit the shapes; if an
            integer or bool entry is anything but selected.

    >>> w = Slot("w", (4, 3), "float32")
    >>> half = Transfer(
    ...     (w,), (w._replace(shape=(2, 3)),), {"w": Entry("w", (DimMap.of([0, 1], 4), None))}
    ... )
    >>> small = half.pull({"w": torch.arange(12.0).view(4, 3)})
    >>> small["w"].tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    >>> numerator, coverage = half.push(small)
    >>> (numerator["w"] / coverage["w"])[:, 0].tolist()
    [0.0, 3.0, nan, nan]
    >>> print(half.describe())
    1 of 1 entries taken, 0 initialised; 12 → 6 values
    w: float32[2, 3] = w[:2, :]
    """

    source: Signature
    target: Signature
    entries: Mapping[str, Entry]
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        sources = {slot.name: slot for slot in self.source}
        names = [slot.name for slot in self.target]
        if set(names) != set(self.entries):
            odd = sorted(set(names) ^ set(self.entries))
            raise RewriteError("entries are not the target's", found=odd, expected="no difference")
        # Equal maps become one object: entries that are mapped alike are found by identity.
        shared: dict[tuple[DimMap | None, ...], tuple[DimMap | None, ...]] = {}
        entries = {}
        for name in names:
            entry = self.entries[name]
            dims = shared.setdefault(entry.dims, entry.dims)
            if dims is not entry.dims:
                entry = Entry(entry.source, dims, entry.scale, entry.init)
            entries[name] = entry
        object.__setattr__(self, "entries", entries)
        for slot in self.target:
            self._check(slot, self.entries[slot.name], sources)

    @staticmethod
    def _check(slot: Slot, entry: Entry, sources: Mapping[str, Slot]) -> None:
        shape: tuple[int, ...]
        if entry.init is not None:
            shape = entry.init.shape
        elif entry.source is not None and entry.source in sources:
            shape = sources[entry.source].shape
            if not (entry.selects or (slot.averaged and sources[entry.source].averaged)):
                raise RewriteError(
                    "only a selection of integers is defined", where=slot.name, found=entry
                )
        else:
            raise RewriteError("no such source entry", where=slot.name, found=entry.source)
        made = tuple(
            size if m is None else m.length for size, m in zip(shape, entry.dims, strict=False)
        )
        meets = all(m is None or m.size == size for size, m in zip(shape, entry.dims, strict=False))
        if len(entry.dims) != len(shape) or not meets or made != slot.shape:
            raise RewriteError(
                "maps do not fit the shapes",
                where=slot.name,
                found=f"{entry} of a source of shape {shape}",
                expected=slot.shape,
            )

    @staticmethod
    def identity(graph: ArchGraph | Signature) -> Transfer:
        """The map that leaves every state as it is."""
        slots = signature(graph)
        return Transfer(
            slots, slots, {s.name: Entry(s.name, (None,) * len(s.shape)) for s in slots}
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the content: equal transfers share it."""
        if "digest" not in self._cache:
            lines = map(repr, (self.source, self.target, *self.entries.items()))
            self._cache["digest"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return cast(str, self._cache["digest"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transfer) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def then(self, other: Transfer) -> Transfer:
        """This map first, then ``other``: associative, with :meth:`identity` neutral.

        Raises:
            RewriteError: If ``other`` does not start where this one ends.
        """
        if self.target != other.source:
            raise RewriteError("transfers do not meet", **_difference(self.target, other.source))
        entries = {
            name: entry if entry.source is None else self.entries[entry.source].then(entry)
            for name, entry in other.entries.items()
        }
        return Transfer(self.source, other.target, entries)

    def __rshift__(self, other: Transfer) -> Transfer:
        return self.then(other)

    @torch.no_grad()
    def pull(self, state: State, *, seed: int | torch.Generator = 0) -> dict[str, Tensor]:
        """The target's state from the source's: contiguous copies, dtype and device kept.

        Args:
            state: A state of the source; entries that nothing comes from may be missing.
            seed: Of the initialised entries; each has its own stream, so that composing transfers
                or reordering entries changes nothing. A generator gives one seed.

        Raises:
            RewriteError: If the state lacks an entry or one has another shape.
        """
        if isinstance(seed, torch.Generator):
            seed = int(torch.randint(2**62, (), generator=seed, device=seed.device))
        result: dict[str, Tensor] = {}
        for name, entry, shape, dtype, index in self._plan:
            if entry.source is None:
                result[name] = entry.pull(None, dtype=dtype or torch.float32, seed=seed)
                continue
            value = state.get(entry.source)
            if value is None or value.shape != shape:
                value = self._entry(state, entry.source, self._source_shapes)
            if index is None:
                value = entry.pull(value)
            else:
                value = value[index].clone(memory_format=torch.contiguous_format)
            result[name] = value if dtype is None else value.to(dtype)
        taken = next((v.device for v in state.values()), None)
        if taken is not None and taken.type != "cpu":
            for name, entry in self.entries.items():
                if entry.source is None:
                    result[name] = result[name].to(taken)
        return result

    @torch.no_grad()
    def push(self, state: State) -> tuple[dict[str, Tensor], Coverage]:
        """The transpose: a target's state back in the source's shape, and what covers it.

        Several target entries that come from one source entry add up. Half precision is summed
        in float32.

        Returns:
            The numerator (zero where nothing comes back) and the :class:`Coverage`.

        Raises:
            RewriteError: If the state lacks an entry or one has another shape.
        """
        shapes = {slot.name: slot.shape for slot in self.target}
        sums: dict[str, Tensor] = {}
        for name, entry in self.entries.items():
            if entry.source is None:
                continue
            value = self._entry(state, name, shapes)
            if entry.source not in sums:
                sums[entry.source] = torch.zeros(
                    self._source_shapes[entry.source],
                    dtype=accumulator(value.dtype),
                    device=value.device,
                )
            entry.push(value, sums[entry.source])
        for slot in self.source:
            if slot.name not in sums:
                sums[slot.name] = torch.zeros(slot.shape, dtype=accumulator(slot.torch_dtype))
        return {slot.name: sums[slot.name] for slot in self.source}, self.coverage

    @property
    def coverage(self) -> Coverage:
        """What :meth:`push` covers of the source, whatever the state."""
        if "coverage" not in self._cache:
            self._cache["coverage"] = self._covered(())
        return cast(Coverage, self._cache["coverage"])

    def _covered(self, without: Collection[str]) -> Coverage:
        terms: dict[str, list[Term]] = {}
        for name, entry in self.entries.items():
            if entry.source is not None and name not in without:
                terms.setdefault(entry.source, []).append(Term.of(entry))
        return Coverage(self._source_shapes, terms)

    @property
    def repeated(self) -> frozenset[str]:
        """Entries that begin as copies of one which is still there under its own name."""
        stay = {name for name, entry in self.entries.items() if entry.source == name}
        return frozenset(
            name
            for name, entry in self.entries.items()
            if entry.source in stay and name not in stay
        )

    @torch.no_grad()
    def pull_moments(self, moments: State, *, order: int = 1) -> dict[str, Tensor]:
        """What an optimiser keeps per parameter, mapped so that training can go on.

        Gradients transform with the transpose's inverse, not with the weights: where a unit is
        replicated with its outgoing weights divided, the outgoing gradients stay and the incoming
        ones are divided. With coverage D = |A|ᵀ|A| 1 the first moment maps as A D⁻¹, the second as
        (|A| D⁻¹ 1) ∘ |A| D⁻¹, exact for replicas and for merging them again. Whatever is
        :attr:`repeated` takes no part: the original keeps what it has.

        Args:
            moments: By parameter name; parameters that the optimiser does not know may be missing.
            order: 1 for momentum and Adam's ``exp_avg``; 2 for ``exp_avg_sq``; 0 for what a factor
                on the gradient leaves as it is: a mean over what an entry is made of, or, without
                axes of the parameter (``step``), a copy; -1 for averages of weights.

        Returns:
            By target name; zeros for an initialised parameter and a repeated one.
        """
        if order not in (-1, 0, 1, 2):
            raise RewriteError("no such moment", found=order, expected="-1, 0, 1 or 2")
        repeated = self.repeated
        coverage = self._covered(repeated) if repeated else self.coverage
        result: dict[str, Tensor] = {}
        inverse: dict[str, Tensor] = {}
        for slot in self.target:
            entry = self.entries[slot.name]
            if entry.source is None or slot.name in repeated:
                if order and slot.role == "parameter":
                    result[slot.name] = torch.zeros(slot.shape, dtype=slot.torch_dtype)
                continue
            if entry.source not in moments:
                continue
            if order == 0 and moments[entry.source].shape != self._source_shapes[entry.source]:
                result[slot.name] = moments[entry.source].clone()
                continue
            value = self._entry(moments, entry.source, self._source_shapes)
            if order == -1:
                result[slot.name] = entry.pull(value)
                continue
            if order == 0:
                weights = entry.magnitude()
                total = weights.pull(torch.ones_like(value))
                mean = weights.pull(value) / total
                result[slot.name] = torch.where(total > 0, mean, 0)
                continue
            if entry.source not in inverse:
                covered = coverage[entry.source].to(value)
                inverse[entry.source] = torch.where(covered > 0, 1 / covered, 0)
            dual = inverse[entry.source]
            if order == 1:
                result[slot.name] = entry.pull(value * dual)
            else:
                magnitude = entry.magnitude()
                result[slot.name] = magnitude.pull(dual) * magnitude.pull(value * dual)
        return result

    def describe(self) -> str:
        """One line per target entry that changed, then what was dropped."""
        used = {entry.source for entry in self.entries.values()}
        fresh = sum(entry.source is None for entry in self.entries.values())
        before, after = (sum(math.prod(s.shape) for s in x) for x in (self.source, self.target))
        lines = [
            f"{len(self.target) - fresh} of {len(self.target)} entries taken, "
            f"{fresh} initialised; {before:,} → {after:,} values"
        ]
        same = 0
        for slot in self.target:
            entry = self.entries[slot.name]
            if entry.unchanged and entry.source == slot.name:
                same += 1
            else:
                lines.append(f"{slot} = {entry}")
        if same:
            lines.append(f"unchanged: {same} entries")
        lines += [f"dropped: {slot}" for slot in self.source if slot.name not in used]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()

    @functools.cached_property
    def _plan(self) -> list[tuple[str, Entry, torch.Size, torch.dtype | None, Box | None]]:
        """Per target entry: name, entry, source shape, dtype if it changes, slices if it is a view.

        Most entries of most transfers are slices; a model has hundreds, so nothing that stays the
        same is computed for each pull.
        """
        slots, plan = {slot.name: slot for slot in self.source}, []
        for slot in self.target:
            entry, index, dtype = self.entries[slot.name], None, None
            shape = () if entry.source is None else slots[entry.source].shape
            if entry.source is None or slots[entry.source].dtype != slot.dtype:
                dtype = slot.torch_dtype
            if entry.sliced and entry.scale == 1:
                index = tuple((m and m.window) or slice(None) for m in entry.dims)
            plan.append((slot.name, entry, torch.Size(shape), dtype, index))
        return plan

    @functools.cached_property
    def _source_shapes(self) -> dict[str, tuple[int, ...]]:
        return {slot.name: slot.shape for slot in self.source}

    @staticmethod
    def _entry(state: State, name: str, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
        if name not in state:
            raise RewriteError("the state lacks an entry", where=name, expected=list(shapes[name]))
        if tuple(state[name].shape) != shapes[name]:
            raise RewriteError(
                "the state does not fit the transfer",
                where=name,
                found=list(state[name].shape),
                expected=list(shapes[name]),
            )
        return state[name]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums of this dtype are kept in: float32 for half precision, else itself.

    >>> accumulator(torch.bfloat16), accumulator(torch.float64)
    (torch.float32, torch.float64)
    """
    short = dtype.is_floating_point and dtype.itemsize < 4
    return torch.float32 if short else dtype


def _difference(found: Signature, expected: Signature) -> dict[str, Any]:
    """Where two signatures first differ, as parts of an error."""
    for a, b in itertools.zip_longest(found, expected):
        if a != b:
            return {"where": (a or b).name, "found": a or "nothing", "expected": b or "nothing"}
    return {}


# ------------------------------------------------------------------------------- rewritten


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What every rewrite returns: the new graph, and the map to its states from the old one's.

    Unpacks as ``graph, transfer``; ``a >> b`` composes, where ``b`` is a rewrite of ``a.graph`` or
    a function from a graph to one.

    Raises:
        RewriteError: If the transfer does not end at the graph.
    """

    graph: ArchGraph
    transfer: Transfer

    def __post_init__(self) -> None:
        expected = signature(self.graph)
        if self.transfer.target != expected:
            raise RewriteError(
                "the transfer does not end at the graph",
                **_difference(self.transfer.target, expected),
            )

    @staticmethod
    def identity(graph: ArchGraph) -> Rewritten:
        """The rewrite that changes nothing, the start of a chain."""
        return Rewritten(graph, Transfer.identity(graph))

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph, self.transfer))

    def __rshift__(self, other: Rewritten | Callable[[ArchGraph], Rewritten]) -> Rewritten:
        after = other if isinstance(other, Rewritten) else other(self.graph)
        return Rewritten(after.graph, self.transfer.then(after.transfer))


def compose(transfers: Iterable[Transfer]) -> Transfer:
    """The transfers in order, as one.

    Raises:
        RewriteError: If there is none, or two do not meet.
    """
    parts = list(transfers)
    if not parts:
        raise RewriteError("nothing to compose", hint="Transfer.identity(graph) is neutral")
    return functools.reduce(Transfer.then, parts)
