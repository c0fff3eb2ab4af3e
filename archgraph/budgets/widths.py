"""Determine the possible sizes of axes: all sizes, or those that a model's class supports."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from archgraph.analysis.axes import Axis
from archgraph.errors import RewriteError
from archgraph.foreign.fit import unnumbered
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.take import take
from archgraph.states import Rewritten

ClassCheck = Callable[[Rewritten], object]
"""Function that raises a RewriteError if the model's class cannot construct a network."""


@dataclass(frozen=True)
class AxisGroup:
    """Axes that are cut together, each to the same fraction of its size.

    Every axis is divided into the same number of equal parts, called units.

    Attributes:
        axes: The axes that are cut together.
        step: The number of units changes in multiples of this number.
    """

    axes: tuple[Axis, ...]
    step: int = 1

    @property
    def units(self) -> int:
        """The largest number of equal parts into which every axis can be divided."""
        return math.gcd(*(axis.size for axis in self.axes))

    def sizes(self, units: int) -> dict[Axis, int]:
        """Return a dict from axis to the axis' size with this number of units."""
        return {axis: axis.size // self.units * units for axis in self.axes}

    def grid(self, multiple: int) -> list[int]:
        """Return the numbers of units, ascending, for which sizes are multiples of ``multiple``.

        Numbers of heads, and axes shorter than ``2 * multiple``, need not be multiples.
        """
        bound = [a for a in self.axes if a.role != "heads" and a.size >= 2 * multiple]
        units = self.units
        steps = range(self.step, units, self.step)
        allowed = [n for n in steps if all(a.size // units * n % multiple == 0 for a in bound)]
        return [*allowed, units]


def smaller(widths: Sequence[AxisGroup], units: Iterable[float]) -> dict[Axis, int]:
    """Return a dict from axis to its new size, for axes that become smaller.

    Args:
        widths: Groups of axes that are cut together.
        units: For each group, the number of units (equal parts of its axes) to keep.
    """
    chosen = (width.sizes(int(number)) for width, number in zip(widths, units, strict=True))
    return {axis: n for sizes in chosen for axis, n in sizes.items() if n < axis.size}


def widths_of_class(graph: ArchGraph, among: Iterable[Axis], check: ClassCheck) -> list[AxisGroup]:
    """Return the groups of axes that a model's class allows to be narrower, by trying sizes.

    1. Axes of equal size whose names differ only in layer numbers form one group, called a width.
    2. Halve one width at a time. If the class requires that other widths change as well, unite
       these widths. If the class does not support the network for another reason, the width is not
       cut.
    3. Find the smallest step by which the class can reduce the width, among the divisors of the
       width. The step may be greater than 1, for example because the class requires multiples of
       the number of heads.

    Args:
        graph: The network.
        among: Axes that may be cut.
        check: Function that raises an error if the class does not support a network.
    """
    alike: dict[tuple[str, int], list[Axis]] = {}
    for axis in among:
        alike.setdefault((unnumbered(axis.name), axis.size), []).append(axis)
    waiting, result = [AxisGroup(tuple(group)) for group in alike.values()], list[AxisGroup]()  # 1
    while waiting:
        width = waiting.pop(0)
        tied = _tied(graph, width, width.units // 2, check)  # 2
        if tied is None:
            result.append(replace(width, step=_step(graph, width, check)))  # 3
            continue
        others = [w for w in (*result, *waiting) if not tied.isdisjoint(a.name for a in w.axes)]
        waiting = [w for w in waiting if w not in others]
        result = [w for w in result if w not in others]
        if others:
            waiting.append(AxisGroup(tuple(itertools.chain(width.axes, *(w.axes for w in others)))))
    return result


def _step(graph: ArchGraph, width: AxisGroup, check: ClassCheck) -> int:
    """Return the smallest divisor of a width by which the class can reduce the width."""
    units = width.units
    for step in range(1, units // 2 + 1):
        half = 2 * step == units
        if units % step == 0 and (half or _tied(graph, width, units - step, check) is None):
            return step
    return units


def _tied(
    graph: ArchGraph, width: AxisGroup, units: int, check: ClassCheck
) -> frozenset[str] | None:
    """Return the uncut axes that prevent a cut; None if the class supports the network."""
    try:
        check(take(graph, sizes=width.sizes(max(units, 1))))
    except RewriteError as error:
        return error.tied
    return None
