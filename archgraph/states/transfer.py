"""The linear map between the states of two architectures: compose, pull, push, describe.

For every parameter and buffer of the target state, a :class:`Transfer` has an :class:`Entry`, which
defines how to compute this tensor from the source state. Together, the entries are a matrix ``A``:

- ``pull`` computes ``A θ``, the target's state from the source's (distribution).
- ``push`` computes ``Aᵀ θ'`` and its coverage ``|A|ᵀ|A| 1``, in the source's shapes (aggregation).
  If the transfer only selects values, the coverage counts how often each value was taken. If it
  replicates values or adds them up, ``push(pull(θ)) / coverage`` recovers the replicated values and
  divides sums into equal parts.
- ``describe`` describes the matrix as text.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph
from archgraph.states.coverage import Coverage, Slices
from archgraph.states.dimension_map import DimMap
from archgraph.states.entry import Entry
from archgraph.states.state import (
    Signature,
    Slot,
    State,
    accumulator,
    first_difference,
    missing,
    signature,
)
from archgraph.tables import Table

# Maximum number of table rows that a notebook shows.
SHOWN = 40


@dataclass(frozen=True, eq=False)
class Transfer:
    """A linear map from states of one architecture to states of another architecture.

    Attributes:
        source: Signature of the source state: names, shapes and dtypes.
        target: Signature of the target state.
        entries: Dict from each name in the target state to its :class:`Entry`, which defines how to
            compute this parameter or buffer. Do not modify the dict.
        notes: Remarks of rewrites, shown by :meth:`describe` and ignored by ``==``.

    Raises:
        RewriteError: If the target has a tensor without an entry, or an entry has no tensor in the
            target; if an entry does not fit the shapes; if the entry of a tensor of integers or
            bools does more than select values.

    >>> from archgraph.states import DimMap, Slot
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
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [slot.name for slot in self.target]
        if set(names) != set(self.entries):
            raise RewriteError(
                "entries and target differ", found=sorted(set(names) ^ set(self.entries))
            )
        # Share equal maps as one object: coverage finds equally mapped entries by identity.
        shared: dict[tuple[DimMap | None, ...], tuple[DimMap | None, ...]] = {}
        entries = {}
        for name in names:
            entry = self.entries[name]
            dims = shared.setdefault(entry.dims, entry.dims)
            if dims is not entry.dims:
                entry = Entry(entry.source, dims, entry.scale, entry.init)
            entries[name] = entry
        object.__setattr__(self, "entries", entries)
        sources = {slot.name: slot for slot in self.source}
        for slot in self.target:
            _check(slot, entries[slot.name], sources)

    @staticmethod
    def identity(graph: ArchGraph | Signature) -> Transfer:
        """Return the transfer that leaves every state unchanged."""
        slots = signature(graph)
        return Transfer(slots, slots, {slot.name: Entry.kept(slot) for slot in slots})

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 digest of the transfer; equal for equal transfers."""
        lines = [repr((self.source, self.target))]
        for name, entry in self.entries.items():
            dims = tuple(None if m is None else dataclasses.astuple(m) for m in entry.dims)
            lines.append(repr((name, entry.source, dims, entry.scale, entry.init)))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transfer) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[object, ...]:
        # Without cached values.
        return Transfer, (self.source, self.target, self.entries, self.notes)

    def then(self, other: Transfer) -> Transfer:
        """Return the transfer that applies this transfer, then ``other``.

        Raises:
            RewriteError: If the target of this transfer is not the source of ``other``.
        """
        if self.target != other.source:
            raise RewriteError(
                "target of the first transfer is not the source of the second",
                **first_difference(self.target, other.source),
            )
        entries = {
            name: entry if entry.source is None else self.entries[entry.source].then(entry)
            for name, entry in other.entries.items()
        }
        return Transfer(self.source, other.target, entries, self.notes + other.notes)

    def __rshift__(self, other: Transfer) -> Transfer:
        return self.then(other)

    def only(self, names: Container[str]) -> Transfer:
        """Return a transfer that computes only some of the target's tensors.

        Args:
            names: Names of the tensors to compute.

        >>> slots = (Slot("a", (2,), "float32"), Slot("b", (3,), "float32"))
        >>> Transfer.identity(slots).only({"b"})
        <Transfer 1 of 1 entries taken, 0 initialised; 5 → 3 values>
        """
        target = tuple(slot for slot in self.target if slot.name in names)
        return Transfer(
            self.source, target, {slot.name: self.entries[slot.name] for slot in target}
        )

    def pull(
        self,
        state: State,
        *,
        seed: int | torch.Generator = 0,
        copy: bool = True,
        partial: bool = False,
        gradients: bool = False,
    ) -> dict[str, Tensor]:
        """Compute the target's state from the source's, as contiguous copies.

        Args:
            state: A state of the source. Tensors that the target does not use may be missing.
            seed: Seed of parameters that the transfer initialises. The values of a parameter depend
                only on the seed and the name of the parameter. If ``seed`` is a generator, it
                draws the seed.
            copy: If False, unchanged tensors are not copied, but shared with ``state``.
            partial: If True, omit tensors of the target whose source is missing in ``state``. If
                False, a missing source raises an error.
            gradients: If True, gradients of the result flow back to ``state``. A submodel can then
                be trained as a function of the global model's weights (FjORD).

        Raises:
            RewriteError: If the state lacks a tensor, or a tensor has another shape.

        Example:
            >>> from archgraph.states import DimMap
            >>> slots = (Slot("w", (3,), "float32"),)
            >>> first = Transfer(
            ...     slots, (slots[0]._replace(shape=(1,)),), {"w": Entry("w", (DimMap.of([0], 3),))}
            ... )
            >>> full = torch.ones(3, requires_grad=True)
            >>> first.pull({"w": full}, gradients=True)["w"].sum().backward()
            >>> full.grad
            tensor([1., 0., 0.])
        """
        if isinstance(seed, torch.Generator):
            seed = int(torch.randint(2**62, (), generator=seed, device=seed.device))
        device = next((value.device for value in state.values()), None)
        result: dict[str, Tensor] = {}
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
            for name, entry in self.entries.items():
                value = self._computed(name, state, seed, copy, partial)
                if value is not None:
                    # Initialisers draw on the CPU: equal numbers on every device.
                    result[name] = value if entry.init is None else value.to(device=device)
        return result

    def entry(self, name: str, state: State) -> Tensor:
        """Compute one tensor of the result of :meth:`pull`, which may share memory with ``state``.

        Raises:
            RewriteError: As in :meth:`pull`.
        """
        value = self._computed(name, state, 0, copy=False, partial=False)
        assert value is not None
        return value

    def covered(self, part: State) -> dict[str, Tensor]:
        """Compute the target's tensors for which the dict ``part`` contains the source tensor."""
        names = (n for n, entry in self.entries.items() if entry.source in part) if part else ()
        return {name: self.entry(name, part) for name in names}

    def _computed(
        self, name: str, state: State, seed: int, copy: bool, partial: bool
    ) -> Tensor | None:
        """Compute an entry of the target; None if its source is missing."""
        entry, shape, dtype, index, same, result = self._plan[name]
        if entry.source is None:
            return entry.pull(None, dtype=dtype or torch.float32, seed=seed)
        value = state.get(entry.source)
        if value is None and partial:
            return None
        if value is None or value.shape != shape:
            value = entry_of(state, entry.source, shape)
        if same and not copy:
            return value
        if value.is_meta:  # a check only needs shapes
            return torch.empty(result, dtype=dtype or value.dtype, device=value.device)
        if index is None:
            value = entry.pull(value)
        else:
            value = value[index].clone(memory_format=torch.contiguous_format)
        return value if dtype is None else value.to(dtype)

    @torch.no_grad()
    def push(self, state: State) -> tuple[dict[str, Tensor], Coverage]:
        """Map a state of the target back to the source's shapes (the transpose of :meth:`pull`).

        If several tensors of the target come from one tensor of the source, their values are
        summed. Sums of half-precision tensors are computed in float32.

        Returns:
            A pair. The first item is a dict of the sums. If the target does not have a value of the
            source, its sum is zero. The second item is the :class:`Coverage`, which contains the
            divisor of each sum.

        Raises:
            RewriteError: If the state lacks a tensor, or a tensor has another shape.
        """
        shapes = {slot.name: slot.shape for slot in self.target}
        sums: dict[str, Tensor] = {}
        for name, entry in self.entries.items():
            if entry.source is None:
                continue
            value = entry_of(state, name, shapes[name])
            if entry.source not in sums:
                shape, dtype = self.shapes[entry.source], accumulator(value.dtype)
                sums[entry.source] = torch.zeros(shape, dtype=dtype, device=value.device)
            entry.push(value, sums[entry.source])
        numerator = {
            slot.name: sums[slot.name]
            if slot.name in sums
            else torch.zeros(slot.shape, dtype=accumulator(slot.torch_dtype))
            for slot in self.source
        }
        return numerator, self.coverage

    @functools.cached_property
    def coverage(self) -> Coverage:
        """The :class:`Coverage` that :meth:`push` returns; it is the same for all states."""
        return Coverage.of(self.shapes, self.entries.values())

    @functools.cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Dict from each name in the source state to its shape."""
        return {slot.name: slot.shape for slot in self.source}

    def describe(self) -> str:
        """Return a text that lists notes, changed target tensors, and unused source tensors."""
        used = {entry.source for entry in self.entries.values()}
        changed = self._changed()
        lines = [
            *self.notes,
            self.summary(),
            *(f"{slot} = {self.entries[slot.name]}" for slot in changed),
        ]
        if len(changed) < len(self.target):
            lines.append(f"unchanged: {len(self.target) - len(changed)} entries")
        lines += [f"dropped: {slot}" for slot in self.source if slot.name not in used]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"<Transfer {self.summary()}>"

    def _repr_html_(self) -> str:
        changed = self._changed()
        note = f"and {len(changed) - SHOWN} more: print(transfer)" if len(changed) > SHOWN else ""
        return Table(
            self.summary(),
            ("entry", "type", "from"),
            tuple(
                (slot.name, f"{slot.dtype} {list(slot.shape)}", str(self.entries[slot.name]))
                for slot in changed[:SHOWN]
            ),
            note=note,
        )._repr_html_()

    def summary(self) -> str:
        """Return a one-line summary.

        The line contains the number of tensors that are computed from the source, the number of
        tensors that are initialised, and the numbers of values in the source and in the target.
        """
        fresh = sum(entry.source is None for entry in self.entries.values())
        before, after = (sum(math.prod(s.shape) for s in x) for x in (self.source, self.target))
        return (
            f"{len(self.target) - fresh} of {len(self.target)} entries taken, "
            f"{fresh} initialised; {before:,} → {after:,} values"
        )

    def _changed(self) -> list[Slot]:
        """Return the entries that are not plain copies of the source entry of the same name."""
        return [
            slot
            for slot in self.target
            if (entry := self.entries[slot.name]).source != slot.name or not entry.unchanged
        ]

    @functools.cached_property
    def views(self) -> Mapping[str, Slices]:
        """Dict from target tensor to the slices of its source tensor.

        Only tensors that are slices of one source tensor, up to a factor, are in the dict.
        """
        return {
            name: tuple((m and m.window) or slice(None) for m in entry.dims)
            if any(entry.dims)
            else ()
            for name, entry in self.entries.items()
            if entry.sliced
        }

    @functools.cached_property
    def _plan(
        self,
    ) -> dict[
        str, tuple[Entry, torch.Size, torch.dtype | None, Slices | None, bool, tuple[int, ...]]
    ]:
        """By name: entry, source shape, new dtype, slices of a view, whether unchanged, shape.

        Most entries of most transfers are slices, and a model has hundreds of them, so nothing
        that stays the same is computed on each pull.
        """
        slots, plan = {slot.name: slot for slot in self.source}, {}
        for slot in self.target:
            entry, dtype = self.entries[slot.name], None
            shape = () if entry.source is None else slots[entry.source].shape
            if entry.source is None or slots[entry.source].dtype != slot.dtype:
                dtype = slot.torch_dtype
            index = self.views.get(slot.name) if entry.scale == 1 else None
            same = dtype is None and entry.unchanged
            plan[slot.name] = entry, torch.Size(shape), dtype, index, same, slot.shape
        return plan


def _check(slot: Slot, entry: Entry, sources: Mapping[str, Slot]) -> None:
    """Check that an entry produces its slot's shape."""
    source = sources.get(entry.source or "")
    if entry.init is not None:
        shape = entry.init.shape
    elif source is None:
        raise RewriteError("no such source entry", where=slot.name, found=entry.source)
    elif entry.selects or (slot.averaged and source.averaged):
        shape = source.shape
    else:
        raise RewriteError("integers and bools can only be selected", where=slot.name, found=entry)
    maps = list(zip(shape, entry.dims, strict=False))
    fits = all(m is None or m.size == size for size, m in maps)
    result = tuple(size if m is None else m.length for size, m in maps)
    if len(entry.dims) != len(shape) or not fits or result != slot.shape:
        raise RewriteError(
            "maps do not fit the shapes",
            where=slot.name,
            found=f"{entry} of a source of shape {shape}",
            expected=slot.shape,
        )


def entry_of(state: State, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of a state, and check its shape.

    Raises:
        RewriteError: If the state lacks the tensor, or the tensor has another shape.
    """
    expected = list(shape)
    if name not in state:
        raise RewriteError(
            "the state lacks an entry", where=name, expected=expected, **missing(name, state)
        )
    if (actual := list(state[name].shape)) != expected:
        raise RewriteError(
            "the state does not fit the transfer", where=name, found=actual, expected=expected
        )
    return state[name]
