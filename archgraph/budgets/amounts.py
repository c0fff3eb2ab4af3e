"""Read budgets: fractions of the full model's cost, or numbers with a unit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from archgraph.errors import RewriteError
from archgraph.tables import count

Budget: TypeAlias = float | str
"""A fraction of the full cost (``0.5``, ``"50%"``) or a cost (``2_000_000``, ``"2M"``, ``"50MB"``).

Numbers up to 1 are fractions.
"""

_SUFFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_BYTES = {
    **{unit + "B": factor for unit, factor in _SUFFIX.items() if unit != "B"},
    **{unit + "iB": 2**power for unit, power in (("K", 10), ("M", 20), ("G", 30), ("T", 40))},
}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]+)?) ?([A-Za-z%]*)")


@dataclass(frozen=True, slots=True)
class BudgetMeasure:
    """A quantity that a budget can limit, such as parameters.

    Attributes:
        name: Keyword argument of :func:`archgraph.fit`, e.g. ``macs``.
        text: Description for help.
        units: Dict from each unit that a budget may have to its value.
        example: A budget to show in error messages, e.g. ``50MB``.
        unit: Unit to append to numbers in tables: ``B`` in ``1.5MB``.
    """

    name: str
    text: str
    units: Mapping[str, int]
    example: str
    unit: str = ""


MEASURES: Mapping[str, BudgetMeasure] = {
    measure.name: measure
    for measure in (
        BudgetMeasure("parameters", "parameters", _SUFFIX, "2M"),
        BudgetMeasure("macs", "multiply–accumulates per example", _SUFFIX, "10M"),
        BudgetMeasure("bytes", "the size of weights and buffers", _BYTES, "50MB", "B"),
        BudgetMeasure("activations", "all activations of one example", _BYTES, "8MB", "B"),
        BudgetMeasure("memory", "the memory of a training step", _BYTES, "50MB", "B"),
    )
}


def limit_of(measure: BudgetMeasure, budget: Budget, full: int) -> int:
    """Return the largest cost that a budget allows.

    Args:
        measure: The quantity that is limited.
        budget: A number up to 1 (a fraction of ``full``), a larger number (a cost), or a string: a
            number with ``%`` or with a unit of the measure.
        full: Cost of the full network.

    Raises:
        RewriteError: If the budget has none of these forms, or if it is a fraction outside (0, 1].

    Example:
        >>> [limit_of(MEASURES["macs"], b, 3_000) for b in (0.5, "50%", 1200, "1.2k")]
        [1500, 1500, 1200, 1200]
        >>> limit_of(MEASURES["bytes"], "1.5MiB", 3_000_000)
        1572864
    """
    parts = _FORM.fullmatch(budget.strip()) if isinstance(budget, str) else None
    if parts is not None:
        # Exact arithmetic: 0.1 is a tenth, not the nearest double.
        number, unit = Fraction(parts[1]), _known_unit(measure, *parts.groups())
    elif isinstance(budget, int | float) and not isinstance(budget, bool) and budget < math.inf:
        number, unit = Fraction(str(budget)), ""
    else:
        raise _not_a_budget(measure, budget)
    share = unit == "%" or (unit == "" and number <= 1)
    number /= 100 if unit == "%" else 1
    if number <= 0 or (share and number > 1):
        raise _not_a_budget(measure, budget)
    return math.floor(number * (full if share else measure.units.get(unit, 1)))


def _not_a_budget(measure: BudgetMeasure, budget: Budget) -> RewriteError:
    expected = f"a fraction such as 0.5 or 50%, or a number such as {measure.example}"
    return RewriteError("not a budget", where=measure.name, found=budget, expected=expected)


def _known_unit(measure: BudgetMeasure, number: str, unit: str) -> str:
    """Return the unit of a budget, after checking that it is ``%``, empty or a known unit."""
    if unit not in ("", "%") and unit not in measure.units:
        units = ", ".join(filter(None, measure.units))
        raise RewriteError(
            "unknown unit",
            where=measure.name,
            found=unit,
            expected=f"% or one of {units}",
            hint=_nearest(number, unit, measure.units),
        )
    return unit


def _nearest(number: str, unit: str, units: Mapping[str, int]) -> str | None:
    """Suggest a known unit that differs only in case or in a missing or extra ``B``.

    >>> _nearest("10", "m", _SUFFIX), _nearest("5", "Kb", _BYTES), _nearest("5", "m", _BYTES)
    ('did you mean 10M?', 'did you mean 5kB?', 'did you mean 5MB?')
    """
    text = unit.lower()
    meant = (text, f"{text}b", text.removesuffix("ib"), text.removesuffix("b"))
    known = {name.lower(): name for name in units if name}
    name = next((known[word] for word in meant if word in known), None)
    return None if name is None else f"did you mean {number}{name}?"


def amount_text(measure: BudgetMeasure, amount: float) -> str:
    """Format a cost with the unit of its measure.

    >>> amount_text(MEASURES["bytes"], 1_500_000), amount_text(MEASURES["macs"], 1_500_000)
    ('1.5MB', '1.5M')
    """
    return count(amount) + measure.unit
