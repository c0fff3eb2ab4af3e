"""The predicted memory of a training step, of a network and of all its submodels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from archgraph.analysis.cost_polynomial import CostPart, CostPolynomial
from archgraph.analysis.presence import Needs
from archgraph.graph.polynomial import Monomial, Polynomial
from archgraph.tables import Table

KINDS = ("weights", "buffers", "inputs", "optimizer", "gradients", "saved")


@dataclass(frozen=True, repr=False)
class TrainingMemory:
    """Predicted memory of a training step, as PyTorch allocates it on a CPU, in bytes.

    The total may be less than the sum of the other values, because gradients of parameters are
    allocated while tensors saved for backward are freed. In seven networks, the total differed by
    at most 2 % from the memory that PyTorch allocated. The exception is ConvNeXt, where copies that
    convolutions make in another memory format (4 to 8 %) are not counted.

    Attributes:
        weights: Bytes of all parameters.
        buffers: Bytes of running statistics and constants.
        inputs: Bytes of the batch.
        optimizer: Bytes of the optimiser's state.
        gradients: Bytes of the gradients of all trained parameters.
        saved: Bytes of other tensors that are saved for backward, at the end of forward.
        total: Peak of the allocated memory.
        moment: Description of the moment of the peak, such as the backward of an operator.
        polynomial: Memory of all submodels of the graph.
    """

    weights: int
    buffers: int
    inputs: int
    optimizer: int
    gradients: int
    saved: int
    total: int
    moment: str
    polynomial: MemoryPolynomial = field(compare=False)

    def __repr__(self) -> str:
        parts = ", ".join(f"{getattr(self, kind):,} {kind}" for kind in KINDS)
        return f"<TrainingMemory: {self.total:,} bytes in the {self.moment}; {parts}>"

    def _repr_html_(self) -> str:
        rows = [(kind, f"{getattr(self, kind):,}") for kind in KINDS]
        rows.append((f"most at once: {self.moment}", f"{self.total:,}"))
        title = "Bytes of a training step"
        return Table(title, ("part", "bytes"), tuple(rows), frozenset({1}))._repr_html_()


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor and its lifetime.

    Attributes:
        kind: One of ``KINDS``, or ``transient``.
        part: Size of the tensor in bytes, and the blocks that a submodel must have to allocate it.
        start: First moment of the step (such as the forward of an operator) at which the tensor is
            allocated.
        end: Last moment at which the tensor is allocated.
        absent: Blocks that a submodel with this tensor must not have, because the tensor replaces
            results of these blocks.
        bound: Blocks that a submodel with this tensor, or with its replacement, needs. Used for
            upper bounds; None if the tensor is itself a replacement.
    """

    kind: str
    part: CostPart
    start: int
    end: int
    absent: frozenset[str] = frozenset()
    bound: Needs | None = frozenset()

    def there(self, skipped: Collection[str]) -> bool:
        """Return whether the tensor exists in a submodel without the ``skipped`` blocks."""
        return self.absent.issubset(skipped) and self.part.there(skipped)


@dataclass(frozen=True)
class MemoryPolynomial:
    """Memory of a training step of every submodel, computed without building the submodel.

    Attributes:
        costs: A cost polynomial without terms. Only its sizes of axes and its removable blocks are
            used.
        allocations: All tensors of a training step, with their lifetimes.
        moments: For each moment of the step (such as the forward of an operator), its description,
            and the blocks that a submodel needs for the moment to occur.
        loss: Index of the moment between forward and backward.
    """

    costs: CostPolynomial
    allocations: tuple[Allocation, ...]
    moments: tuple[tuple[str, Needs], ...]
    loss: int

    def at(
        self, sizes: Mapping[str, int] | None = None, skipped: Collection[str] = ()
    ) -> TrainingMemory:
        """Return the memory of a submodel.

        The result equals the prediction for the cut graph, with one exception: if an axis is cut to
        one position, a copy that becomes unnecessary still counts.

        Args:
            sizes: Dict from the name of an axis to its size. Other axes keep their size.
            skipped: Names of skipped blocks.

        Raises:
            AxisError: If there is no free axis with a name in ``sizes``.
            GraphError: If a block does not exist, is not removable, or cannot be skipped at these
                sizes.
        """
        all_sizes = self.costs.sizes(sizes or {}, skipped)
        gone = {name for block in skipped for name in self.costs.blocks[block]}
        changes = [0] * (len(self.moments) + 1)
        parts = dict.fromkeys(KINDS, 0)
        for allocation in self.allocations:
            if not allocation.there(skipped):
                continue
            size = allocation.part.polynomial.without(gone).value(all_sizes)
            changes[allocation.start] += size
            changes[allocation.end + 1] -= size
            kind, forward = allocation.kind, allocation.start <= self.loss <= allocation.end
            if kind in parts and (kind != "saved" or forward):
                parts[kind] += size
        there = [not any(b.issubset(skipped) for b in needs) for _, needs in self.moments]
        totals = [
            total if present else 0
            for total, present in zip(itertools.accumulate(changes), there, strict=False)
        ]
        peak = max(range(len(totals)), key=totals.__getitem__)
        return TrainingMemory(
            **parts, total=totals[peak], moment=self.moments[peak][0], polynomial=self
        )

    def bounds(self, count: int = 8) -> tuple[tuple[CostPart, ...], ...]:
        """Return polynomials whose maximum is an upper bound of the total of every submodel.

        The moments of the step, such as the forward of each operator, are divided into intervals.
        The polynomial of an interval has, for every monomial, the largest coefficient at any moment
        of the interval. More intervals give a tighter bound.

        1. Select the interval whose polynomial has the largest value at full sizes. Divide it so
           that the larger value of its two parts is as small as possible.
        2. Repeat until there are ``count`` intervals, or the interval has only one moment.

        Args:
            count: Maximum number of polynomials.
        """
        import numpy as np

        keys: dict[tuple[Needs, Monomial], int] = {}
        entries: list[tuple[int, int, int, int]] = []
        for allocation in self.allocations:
            if allocation.bound is None:
                continue
            for monomial, factor in allocation.part.polynomial.terms.items():
                row = keys.setdefault((allocation.bound, monomial), len(keys))
                entries.append((row, allocation.start, allocation.end, factor))
        factors = np.zeros((len(keys), len(self.moments) + 1))
        for row, start, end, factor in entries:
            factors[row, start] += factor
            factors[row, end + 1] -= factor
        factors = factors.cumsum(axis=1)[:, :-1]
        worth = np.array([math.prod(self.costs.axes[n] for n in m) for _, m in keys], dtype=float)
        spans = [(worth @ factors.max(axis=1), 0, len(self.moments))]
        while len(spans) < count:
            spans.sort()
            _, start, end = spans[-1]
            if end - start < 2:
                break
            span = factors[:, start:end]
            left = worth @ np.maximum.accumulate(span, axis=1)
            right = worth @ np.maximum.accumulate(span[:, ::-1], axis=1)
            cut = int(np.maximum(left[:-1], right[::-1][1:]).argmin())
            middle = start + cut + 1
            spans[-1:] = [(left[cut], start, middle), (right[::-1][cut + 1], middle, end)]
        return tuple(
            tuple(
                CostPart(needs, Polynomial({monomial: int(highest[row])}))
                for (needs, monomial), row in keys.items()
                if highest[row]
            )
            for _, start, end in spans
            for highest in [factors[:, start:end].max(axis=1)]
        )
