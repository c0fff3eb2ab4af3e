"""Figures change only in a commit that raises ``BITS``."""

from __future__ import annotations

import pytest

from archgraph.engine.bits import BITS
from tests.engine import bits

REFUSAL = "figures changed: raise BITS and say why, or mend it"


@pytest.mark.parametrize("cell", bits.CELLS)
def test_figures_are_those_of_bits(cell: str):
    known = bits.read()
    assert known["bits"] == BITS, (
        "write tests/engine/bits.json: python -m tests.engine.bits --write"
    )
    difference = bits.change(cell, known, *bits.measured(cell))
    assert not difference, f"{REFUSAL}: {difference}"


def test_a_change_is_seen_on_every_machine(monkeypatch: pytest.MonkeyPatch):
    known, cell = bits.read(), "FedFA"
    losses, state = known["losses"][cell], "1f2e"
    listed = {**known, "states": {bits.machine(): {cell: state}}}
    assert not bits.change(cell, listed, losses, state)
    assert bits.change(cell, listed, losses, "77aa")
    assert bits.change(cell, listed, [losses[0] + 1e-6, *losses[1:]], state)
    monkeypatch.setattr(bits, "machine", lambda: "another")
    assert not bits.change(cell, listed, [loss * 1.0009 for loss in losses], "77aa")
    assert bits.change(cell, listed, [*losses[:-1], losses[-1] * 1.0011], state)
