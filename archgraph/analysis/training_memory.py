"""Memory of a training step: all allocations of forward, backward and optimiser as polynomials."""

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
    """Bytes of a training step, as PyTorch allocates them on a CPU.

    Gradients of parameters are allocated while tensors saved for backward are freed, so the total
    may be less than the sum of the parts. In seven networks, that sum was between 13 % too low and
    5 % too high. The total was within 2 %, except for ConvNeXt: copies that convolutions make in
    another memory format (4 to 8 %) are not counted.

    Attributes:
        weights: Bytes of all parameters.
        buffers: Bytes of running statistics and constants.
        inputs: Bytes of the batch.
        optimizer: Bytes of the optimiser's state.
        gradients: Bytes of the gradients of all trained parameters.
        saved: Other tensors saved for backward, at the end of forward.
        total: Peak of the allocated memory, in bytes.
        moment: Description of the moment of the peak.
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
        part: Size of the tensor in bytes, with the blocks that it needs.
        start: First moment at which it is allocated.
        end: Last moment at which it is allocated.
        absent: Blocks that must be skipped for it to exist, because it replaces their results.
        bound: Blocks that it, or its replacement when some are skipped, needs; None if it is itself
            a replacement.
    """

    kind: str
    part: CostPart
    start: int
    end: int
    absent: frozenset[str] = frozenset()
    bound: Needs | None = frozenset()

    def there(self, skipped: Collection[str]) -> bool:
        """Return whether the tensor exists when some blocks are skipped."""
        return self.absent.issubset(skipped) and self.part.there(skipped)


@dataclass(frozen=True)
class MemoryPolynomial:
    """Memory of a training step of every submodel, without building it.

    Attributes:
        costs: Sizes of axes and blocks, without measures.
        allocations: All tensors of a step.
        moments: Description of each moment, and the blocks that it needs.
        loss: The moment between forward and backward.
    """

    costs: CostPolynomial
    allocations: tuple[Allocation, ...]
    moments: tuple[tuple[str, Needs], ...]
    loss: int

    def at(
        self, sizes: Mapping[str, int] | None = None, skipped: Collection[str] = ()
    ) -> TrainingMemory:
        """Return the memory of a submodel.

        The result equals the memory of the cut graph, with one exception: a copy that becomes
        unnecessary when an axis is cut to one position still counts.

        Args:
            sizes: Sizes of cut axes by name; the other axes keep their size.
            skipped: Names of skipped blocks.

        Raises:
            AxisError: If there is no such free axis.
            GraphError: If a block does not exist, or cannot be skipped at these sizes.
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
        """Return polynomials whose maximum is never below the total of a submodel.

        The moments are divided into spans. The polynomial of a span has, for every monomial, the
        largest coefficient at any moment of the span. More spans give a tighter bound.

        1. Divide the span with the largest value at full sizes where the larger of its parts is
           smallest.
        2. Repeat until there are ``count`` spans, or the largest cannot be divided.

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
