"""The pages of the zoo as they are drawn: arrows over titles, boxes and labels; type and width.

``python -m benchmarks.view_zoo --graphs FOLDER --out FILE NAME…``: each model is traced (once: its
graph is kept in the folder), its page is opened in Chromium at 1440 × 900 pixels, and looked at as
it opens and with one more level open. A line of JSON per model is appended as soon as it is
measured; models that are there are not measured again. Without names: all models but the heavy
ones. ``--table`` prints what the lines say.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import archgraph as ag
from archgraph.tables import Table
from archgraph.viewer import view
from benchmarks.bench_view import in_chromium
from tests.viewer.test_browser import CROSSED
from tests.zoo.collection import entries, entry

# Share of the pane that the picture takes, of the axis that it fills less.
USED = """() => {
  const pane = archgraph.app.panes[0];
  const { width, height } = pane.world.getBoundingClientRect();
  return { width: width / pane.host.clientWidth, height: height / pane.host.clientHeight };
}"""


def graph_of(name: str, folder: Path) -> ag.ArchGraph:
    """Return a model's graph, traced the first time."""
    path = folder / f"{name.replace('/', '-')}.yaml"
    if not path.exists():
        foreign = entry(name).make()
        traced = ag.trace(foreign.model, *foreign.args, verify=False, **foreign.kwargs)
        folder.mkdir(parents=True, exist_ok=True)
        ag.save(traced.graph, path)
    graph: ag.ArchGraph = ag.load(path)
    return graph


def looked_at(graph: ag.ArchGraph, tab: Any, path: Path) -> list[dict[str, Any]]:
    """Return what is seen of a page at first and one level further."""
    view(graph, path)
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]", timeout=60_000)
    looks = []
    for _ in range(2):
        looks.append({**tab.evaluate(CROSSED), **tab.evaluate(USED)})
        tab.click("#more")
    return looks


def summary(records: Sequence[dict[str, Any]]) -> Table:
    """Return how many pages have which fault at the first and at the second look."""
    rows = []
    for what in ("titles", "boxes", "labels"):
        several = [[r["model"] for r in records if r["looks"][i][what]] for i in (0, 1)]
        rows.append((f"arrows over {what}", *(f"{len(s)}: {', '.join(s[:6])}" for s in several)))
    small = [r["model"] for r in records if r["looks"][0]["least"] < 10.95]
    rows.append(("text below 11 px", f"{len(small)}: {', '.join(small[:6])}", ""))
    narrow = [
        r["model"] for r in records if r["looks"][0]["height"] > 1 and r["looks"][0]["width"] < 0.6
    ]
    rows.append(("taller than the pane, narrower than 60 %", f"{len(narrow)}: {narrow[:6]}", ""))
    return Table(f"{len(records)} pages", ("fault", "first look", "one level more"), tuple(rows))


def main() -> None:
    """Measure what is missing, or print what there is."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*")
    options.add_argument("--graphs", type=Path, default=Path(tempfile.gettempdir()) / "graphs")
    options.add_argument("--out", type=Path, default=Path("docs/measured/pages.jsonl"))
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    text = asked.out.read_text() if asked.out.exists() else ""
    records = [json.loads(line) for line in text.splitlines()]
    names = asked.names or [f"{e.group}/{e.name}" for e in entries() if not e.heavy]
    left = [name for name in names if name not in {r["model"] for r in records}]

    def look(tab: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in left:
                try:
                    looks = looked_at(graph_of(name, asked.graphs), tab, Path(folder) / "page.html")
                except Exception as error:
                    print(name, type(error).__name__, str(error)[:200])
                    continue
                record = {"model": name, "looks": looks}
                with asked.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                records.append(record)

    if not asked.table:
        in_chromium(look, repeats=1)
    print(summary(records))


if __name__ == "__main__":
    main()
