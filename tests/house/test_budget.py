"""No room holds more than its number, and no density, circle or name is worse than its limit."""

from __future__ import annotations

import pytest

from tests.house.budget import (
    Allowed,
    exceeded,
    measures,
    outside,
    read_measures,
    read_rooms,
    write_rooms,
)
from tests.house.counting import PACKAGE, Room, rooms, sources


def branching(cases: int) -> str:
    return "def f(a):\n" + "".join(f"    if a == {i}: pass\n" for i in range(cases))


@pytest.fixture
def house(tmp_path):
    """Return a function that writes files of a house, and where it is."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / "archgraph" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_no_room_exceeds_its_budget():
    wrong = exceeded(rooms(*PACKAGE, "benchmarks"), read_rooms())
    assert not wrong, "remove as much, or lower another room's number by it"


def test_the_house_keeps_its_measures():
    assert outside(measures(list(sources(*PACKAGE))), read_measures()) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ops/norms.py", "x = 1\ny = 2\nz = 3\n", "ops: 3 statements, 2 in"),
        ("ops/hard.py", branching(15), "ops: 1 above_15, 0 in"),
        ("ops/hard.py", branching(25), "ops: 1 above_25, 0 in"),
        ("ops/page.js", "a\nb\n", "ops: 2 lines, 0 in"),
        ("new/room.py", "x = 1\n", "new: 1 statements, 0 in"),
        ("plain.py", "x = 1\n", "top: 1 statements, 0 in"),
    ],
)
def test_what_exceeds_a_budget_is_named(house, name, text, expected):
    here = house({"ops/norms.py": "'''Norms.'''\nx = 1\ny = 2\n", "ops/easy.py": ""})
    budget = {"ops": Allowed(Room(2)), "total": Allowed(Room(2))}
    assert exceeded(rooms("archgraph", house=here), budget) == []
    wrong = exceeded(rooms("archgraph", house=house({name: text})), budget)
    assert any(one.startswith(expected) for one in wrong), wrong


def test_a_number_rises_only_if_another_falls(tmp_path):
    path = tmp_path / "budget.csv"
    write_rooms({"ops": Room(10), "graph": Room(5)}, {"ops": Allowed(Room(), aim=12)}, path)
    budget = read_rooms(path)
    assert budget["ops"] == Allowed(Room(12), 12)
    assert budget["total"].room == Room(17)
    moved = {"ops": Room(9), "graph": Room(5)}
    write_rooms(moved, budget, path)
    assert exceeded(moved, read_rooms(path)) == []
    grown = {"ops": Room(13), "graph": Room(5)}
    write_rooms(grown, budget, path)
    assert exceeded(grown, read_rooms(path)) == [
        "total: 18 statements, 17 in tests/house/budget.csv"
    ]
    write_rooms({"ops": Room(13), "graph": Room(4)}, budget, path)
    assert exceeded({"ops": Room(13), "graph": Room(4)}, read_rooms(path)) == []


@pytest.mark.parametrize(
    ("measure", "files"),
    [
        ("expressions per statement", {"a.py": "x = [1, 2, 3, 4, 5, 6, 7, 8]\n"}),
        ("comments per 1,000 lines of code", {"a.py": "x = 1\n"}),
        ("Any per 1,000 lines of code", {"a.py": "# why\nx: Any = 1\n"}),
        (
            "circles of imports",
            {
                "a.py": "def f():\n    from archgraph import b\n",
                "b.py": "if TYPE_CHECKING:\n    from .a import f\n",
            },
        ),
        (
            "public class names that occur twice",
            {"a.py": "class Run: pass\n", "b.py": "def f():\n    class Run: pass\n"},
        ),
    ],
)
def test_each_measure_is_held(house, measure, files):
    values = measures(list(sources("archgraph", house=house(files))))
    limits = {**read_measures(), "circles of imports": (0, 0)}
    assert any(text.startswith(measure) for text in outside(values, limits)), values
    plain = dict.fromkeys(files, "# why\nx = 1\n")
    fine = measures(list(sources("archgraph", house=house(plain))))
    assert outside(fine, limits) == []
