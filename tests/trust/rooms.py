"""Which files are mutated, how many mutants of them are drawn, and which tests must notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Room(NamedTuple):
    """A part of the library and its tests.

    Attributes:
        modules: Its files.
        tests: Files and folders of its tests; files of the library stand for their doctests.
        drawn: So many mutants are drawn.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    drawn: int


def _files(folder: str) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py")))


STATES = ("merge", "transfer", "dimension_map", "coverage", "entry", "updates")
AVERAGING = ("average", "contribution")
AVERAGED = ("laws", "fedavg", "heterofl", "fedfa", "allsmall", "standalone", "strategy")
POOLED = ("pool", "robust", "clipping", "spill")
LIMITED = ("robust_means", "private_means")
RECORD = ("folder", "checkpoint", "proof")
ROOMS = {
    "states": Room(
        tuple(f"archgraph/states/{name}.py" for name in STATES),
        ("archgraph/states", "tests/states", "tests/laws/test_transfer_laws.py"),
        90,
    ),
    "rewrites": Room(
        _files("archgraph/rewrites"),
        ("archgraph/rewrites", "tests/rewrites", "tests/laws", "tests/zoo/test_handmade.py"),
        70,
    ),
    "averaging": Room(
        tuple(f"archgraph/federation/{name}.py" for name in AVERAGING),
        (
            *[f"archgraph/federation/{name}.py" for name in AVERAGING],
            *[f"tests/strategies/test_{name}.py" for name in AVERAGED],
            "tests/engine/test_aggregate.py",
            "tests/engine/test_privacy.py",
        ),
        20,
    ),
    "strategies": Room(
        _files("strategies"),
        ("archgraph/strategies", "tests/strategies", "tests/engine/test_aggregate.py"),
        60,
    ),
    "record": Room(
        tuple(f"archgraph/record/{name}.py" for name in RECORD),
        (
            *[f"archgraph/record/{name}.py" for name in RECORD],
            "tests/record/test_run_record.py",
            "tests/engine/test_run_trained.py",
            "tests/data/test_validation.py",
            "tests/engine/test_tampering.py",
        ),
        40,
    ),
    "robust": Room(
        (
            *[f"archgraph/states/{name}.py" for name in POOLED],
            *[f"archgraph/federation/{name}.py" for name in LIMITED],
        ),
        (
            *[f"archgraph/states/{name}.py" for name in POOLED],
            *[f"archgraph/federation/{name}.py" for name in LIMITED],
            "tests/states/test_robust.py",
            "tests/states/test_clipping.py",
            "tests/engine/test_aggregate.py",
            "tests/engine/test_privacy.py",
        ),
        60,
    ),
    # Faults planted by hand alone.
    "relate": Room(
        (), ("tests/relate", "tests/laws/test_align_laws.py", "tests/zoo/test_handmade.py"), 0
    ),
    "capture": Room((), ("tests/capture/test_restored.py", "tests/capture/test_hostile.py"), 0),
}
