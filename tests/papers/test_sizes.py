"""The sizes that NeFL and RecipFL print of their architectures, recomputed from the shipped files.

An entry of ``nefl.yaml`` or ``recipfl.yaml`` names a model or a family (its global model, one of
its kinds of client, or the mean over them), a measure and the figure as printed. It is met if ours
rounds to it in its own digits. ``rounding: down``: the paper cuts digits off here. ``known``: what
is found instead, and why; both fail once they are no longer needed.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import archgraph as ag

SPECS = Path(__file__).parents[2] / "specs"
UNITS = {"K": 10**3, "M": 10**6}


def entries() -> list[Any]:
    every = []
    for file in sorted(Path(__file__).parent.glob("*.yaml")):
        for entry in YAML(typ="safe").load(file)["figures"]:
            printed = entry["published"]
            several = printed.items() if isinstance(printed, dict) else [(None, printed)]
            # These models are traced for half a minute.
            marks = [pytest.mark.full] * ("bert" in entry.get("model", ""))
            for member, figure in several:
                one = {**entry, "published": figure, **({"member": member} if member else {})}
                what = ", ".join(filter(None, (file.stem, entry["what"], member)))
                every.append(pytest.param(one, id=what, marks=marks))
    return every


@functools.cache
def family(name: str) -> Any:
    return ag.resolve(ag.load_family(SPECS / name), python=True)


def ours(entry: dict[str, Any]) -> Fraction:
    """The figure as computed from the specs, exactly."""

    def measured(graph: ag.ArchGraph) -> int:
        return int(getattr(ag.cost(graph), entry.get("measure", "parameters")))

    if "model" in entry:
        return Fraction(measured(ag.load(SPECS / entry["model"], python=True)))
    of = family(entry["family"])
    chosen = [client.graph for client in of.clients if client.name == entry.get("member")]
    if entry.get("mean") == "members":
        chosen = [client.graph for client in of.clients]
    value = Fraction(sum(map(measured, chosen)), len(chosen))
    return value / measured(of.graph) if entry.get("share") else value


def agrees(printed: str | int, value: Fraction, down: bool = False) -> bool:
    """Whether a value rounds to a figure as printed, such as 6.71M; the middle rounds both ways."""
    text = str(printed).rstrip("KM")
    factor = UNITS.get(str(printed)[len(text) :], 1)
    unit = Fraction(factor, 10 ** len(text.partition(".")[2]))
    low = Fraction(text) * factor
    return low <= value < low + unit if down else 2 * abs(value - low) <= unit


@pytest.mark.sample(4)
@pytest.mark.parametrize("entry", entries())
def test_a_printed_size_is_met_or_the_difference_is_known(entry: dict[str, Any]) -> None:
    value, down = ours(entry), entry.get("rounding") == "down"
    met = agrees(entry["published"], value, down)
    known = entry.get("known")
    assert met == (known is None), f"{float(value):.6g}"
    assert known is None or agrees(known["ours"], value), f"{float(value):.6g}"
    assert not down or not agrees(entry["published"], value), "rounds to it: take `rounding` out"
