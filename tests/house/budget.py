"""The budget: what each room may hold, and what holds for the house."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.house.counting import File, Room, circles, density, twice

HERE = Path(__file__).parent
ROOMS, MEASURES = HERE / "budget.csv", HERE / "measures.csv"
TOTAL = "total"
COLUMNS = tuple(field.name for field in dataclasses.fields(Room))


@dataclass(frozen=True)
class Allowed:
    """A row of the budget.

    Attributes:
        room: What it may hold.
        aim: Statements that it may hold in any case; None: as many as it has.
    """

    room: Room
    aim: int | None = None


def read_rooms(path: Path = ROOMS) -> dict[str, Allowed]:
    """Read the budget of each room, and of all together."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["room"]: Allowed(
                Room(*(int(row[name]) for name in COLUMNS)), int(row["aim"]) if row["aim"] else None
            )
            for row in csv.DictReader(file)
        }


def write_rooms(
    rooms: Mapping[str, Room], budget: Mapping[str, Allowed], path: Path = ROOMS
) -> None:
    """Write what each room holds as its budget.

    1. A room that holds less than its aim may hold that much.
    2. The total never rises: a room's number does only if others fall by as much.
    """
    rows: dict[str, Allowed] = {}
    for name, room in rooms.items():
        aim = budget[name].aim if name in budget else None
        at_least = max(room.statements, aim or 0)  # 1
        rows[name] = Allowed(dataclasses.replace(room, statements=at_least), aim)
    total = sum((row.room for row in rows.values()), Room())
    if TOTAL in budget:  # 2
        before = budget[TOTAL].room
        total = Room(*(min(getattr(total, name), getattr(before, name)) for name in COLUMNS))
    rows[TOTAL] = Allowed(total)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("room", *COLUMNS, "aim"))
        for name, row in rows.items():
            writer.writerow((name, *dataclasses.astuple(row.room), row.aim or ""))


def exceeded(rooms: Mapping[str, Room], budget: Mapping[str, Allowed]) -> list[str]:
    """Return what is above the budget, in words.

    The total is that of the numbers, not of what rooms hold: raising one means lowering another.
    """
    numbers = {name: row.room for name, row in budget.items() if name != TOTAL}
    checked = {**rooms, TOTAL: sum(numbers.values(), Room())}
    return [
        f"{name}: {actual} {column}, {most} in tests/house/budget.csv"
        for name, room in checked.items()
        for column in COLUMNS
        if (actual := getattr(room, column))
        > (most := getattr(budget[name].room if name in budget else Room(), column))
    ]


def measures(files: Sequence[File]) -> dict[str, float]:
    """Return what holds for all rooms of the package together."""
    return {
        **density(files),
        "circles of imports": len(circles(files)),
        "public class names that occur twice": len(twice(files)),
    }


def read_measures(path: Path = MEASURES) -> dict[str, tuple[float, float]]:
    """Read the least and the largest value that each measure may have."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["measure"]: (float(row["least"] or 0), float(row["most"] or math.inf))
            for row in csv.DictReader(file)
        }


def outside(values: Mapping[str, float], limits: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return which measures are outside their limits, in words."""
    return [
        f"{name}: {values[name]:.4g}, and {least:g} to {most:g} in tests/house/measures.csv"
        for name, (least, most) in limits.items()
        # As it is printed: the last digit is no fault.
        if not least <= round(values[name], 1) <= most
    ]
