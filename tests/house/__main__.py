"""Print what each room holds beside its budget: ``python -m tests.house``."""

from __future__ import annotations

import argparse
import sys

from tests.house.budget import (
    TOTAL,
    exceeded,
    measures,
    outside,
    read_measures,
    read_rooms,
    write_rooms,
)
from tests.house.counting import PACKAGE, Room, circles, rooms, sources, twice

parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
parser.add_argument("--write", action="store_true", help="write what rooms hold into budget.csv")
asked = parser.parse_args()

actual, budget = rooms(*PACKAGE, "benchmarks"), read_rooms()
if asked.write:
    write_rooms(actual, budget)
    budget = read_rooms()
package = sum((room for name, room in actual.items() if name != "benchmarks"), Room())
files = list(sources(*PACKAGE))
row = "{:26} {:>10} {:>7} {:>8} {:>8} {:>8}\n".format
lines = [row("room", "statements", "budget", "above 15", "above 25", "lines")]
for name, room in {**actual, "archgraph and strategies": package}.items():
    allowed = budget[name].room.statements if name in budget else ""
    lines.append(row(name, room.statements, allowed, room.above_15, room.above_25, room.lines))
lines.append(row("sum of the budget", "", budget[TOTAL].room.statements, "", "", ""))
lines += [f"{name}: {value:.3g}\n" for name, value in measures(files).items()]
lines += [f"  circle: {', '.join(group)}\n" for group in circles(files)]
lines += [f"  twice: {name}, {', '.join(places)}\n" for name, places in twice(files).items()]
wrong = exceeded(actual, budget) + outside(measures(files), read_measures())
lines += [f"too much: {text}\n" for text in wrong]
sys.stdout.writelines(lines)
sys.exit(bool(wrong))
