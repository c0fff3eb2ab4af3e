"""Submodels for a budget: how much of it is used, and how long the search takes.

``python -m benchmarks.bench_fit MODEL…``: model files, or names of the zoo; without any, the models
of ``specs/models`` and one of the zoo per family. Every submodel is made and counted again.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import archgraph as ag
from archgraph.budgets.amounts import MEASURES
from archgraph.errors import ArchGraphError
from archgraph.language import allowed
from archgraph.tables import Table
from tests.zoo.collection import entries, entry

MODELS = Path(__file__).parents[1] / "specs" / "models"


def graphs(names: list[str]) -> Iterator[tuple[str, ag.ArchGraph]]:
    """Yield architectures by name; those that cannot be read are said on standard error."""
    foreign = [
        e for group in ("torchvision", "transformers") for e in entries(group) if not e.heavy
    ]
    families = {re.split("[0-9_]", e.name)[0]: f"{e.group}/{e.name}" for e in foreign}
    for name in names or [*map(str, sorted(MODELS.glob("*.yaml"))), *families.values()]:
        try:
            if name.endswith(".yaml"):
                with allowed():
                    graph = ag.load(name)
                yield Path(name).stem, graph
            else:
                made = entry(name).make()
                yield name, ag.trace(made.model, *made.args, **made.kwargs).graph
        except ArchGraphError as error:
            print(f"{name}: {str(error)[:150]}", file=sys.stderr)


def main() -> None:
    """Print a row per model and measure."""
    rows, counts = [], Counter[str]()
    for name, graph in graphs(sys.argv[1:]):
        if not ag.axes(graph).free:
            counts["models without free axes"] += 1
            continue
        begin = time.process_time()
        full = ag.cost(graph)
        _ = full.polynomial
        built = time.process_time() - begin
        for measure in MEASURES:
            for share in (0.5, 0.25):
                begin = time.process_time()
                try:
                    small = ag.fit(graph, **{measure: share}).graph
                except ArchGraphError as error:
                    counts["refused"] += 1
                    rows.append((name, measure, f"{share}", "refused", str(error)[:90]))
                    continue
                spent = time.process_time() - begin
                used = getattr(ag.cost(small), measure) / (share * getattr(full, measure))
                counts["solved"] += 1
                counts["exceeded"] += used > 1
                counts["98 % used"] += used >= 0.98
                counts["1 s"] += spent <= 1
                if used < 0.98 or spent > 1:
                    row = (f"{100 * used:.1f} %", f"{spent:.2f} s, polynomials {built:.2f} s")
                    rows.append((name, measure, f"{share}", *row))
    columns = ("model", "of", "share", "used", "seconds")
    print(Table("Budgets not used to 98 %, or not within a second", columns, tuple(rows)))
    print(dict(counts))


if __name__ == "__main__":
    main()
