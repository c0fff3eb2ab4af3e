"""A page of every model of the zoo, and a list of them: ``python -m tests.zoo.gallery FOLDER``.

``make gallery`` writes those of ``docs/gallery.csv``, with a small picture of each. Each model has
a process of its own, as in an examination. What cannot be captured is listed with its reason.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import html
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import archgraph as ag
from archgraph.analysis.structure import structure
from archgraph.display.picture import render
from archgraph.display.scene import scene
from archgraph.display.style import STYLE
from archgraph.errors import RunError
from archgraph.files import write
from tests.zoo.collection import Entry, entries, entry

MINUTES = 15
# Of a small picture.
WIDTH = "5in"


def graph_of(item: Entry) -> ag.ArchGraph:
    """Trace a model."""
    foreign = item.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ag.trace(foreign.model, *foreign.args, strict=False, **foreign.kwargs).graph


def page(item: Entry, folder: Path, pictures: Path | None = None) -> Path:
    """Write the page of a model, and its small picture where there is a folder for these."""
    graph = graph_of(item)
    name = f"{item.group}-{item.name}"
    ag.view({item.name: graph}, path := folder / f"{name}.html")
    if pictures is not None:
        write(pictures / f"{name}.svg", thumbnail(graph))
    return path


def thumbnail(graph: ag.ArchGraph) -> bytes:
    """Draw a graph as a small SVG: a box per block, without what a pointer would show."""
    text = ag.draw(graph, detail="section", width=WIDTH, title="", legend=False)
    return render(re.sub(r' tooltip="(?:[^"\\]|\\.)*"', "", text))


def printed(graph: ag.ArchGraph, width: str) -> str:
    """Say which letters a picture has in print, and what its boxes stand for."""
    try:
        text = ag.draw(graph, width=width)
    except RunError as error:
        return str(error.hint)
    scale = box_of(text)[0] / box_of(re.sub(r'\tgraph \[size="[^"]*"\]\n', "", text))[0]
    parts = structure(graph).sections
    sections = [(part.name, [(block.name, block.nodes) for block in part.blocks]) for part in parts]
    overview = scene(graph, sections, detail="section")
    blocks = sum(bool(box.nodes) for box in overview.boxes)
    of = "block" if text.count('tooltip="%') >= blocks else "section"
    return f"{8 * min(scale, 1):.1f} pt, a box per {of}"


def box_of(text: str) -> tuple[float, float]:
    """Return width and height of the SVG of a DOT text, in points."""
    ((wide, tall),) = re.findall(r'<svg width="(\d+)pt" height="(\d+)pt"', render(text).decode())
    return float(wide), float(tall)


def listed(pages: Sequence[tuple[Entry, str]]) -> str:
    """The list of pages as HTML text; a model without a page has its reason."""
    rows = []
    for item, problem in pages:
        name = html.escape(item.name)
        link = f'<a href="{html.escape(f"{item.group}-{item.name}")}.html">{name}</a>'
        told = f"<td>{name}</td><td>{html.escape(problem)}</td>" if problem else f"<td>{link}</td>"
        rows.append(f"<tr><td>{html.escape(item.group)}</td>{told}</tr>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>The zoo</title>\n'
        f"<style>{STYLE}</style></head>\n<body><h1>The zoo</h1>\n<table>{''.join(rows)}</table>"
        "\n</body></html>\n"
    )


def _alone(item: Entry, folder: Path, pictures: Path | None) -> str:
    """Write a page in a process of its own; the reason where that fails."""
    name = f"{item.group}/{item.name}"
    command = [sys.executable, "-m", "tests.zoo.gallery", str(folder), "--one", name]
    command += ["--pictures", str(pictures)] if pictures else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60 * MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {MINUTES} minutes"
    lines = done.stderr.strip().splitlines() or ["no output"]
    return lines[-1] if done.returncode else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the chosen pages and their list."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.gallery", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="models by name")
    parser.add_argument("--list", metavar="CSV", type=Path, help="models of a file, by GROUP/NAME")
    parser.add_argument("--pictures", metavar="FOLDER", type=Path, help="small ones, of each page")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="models at a time")
    parser.add_argument("--one", metavar="GROUP/NAME", help="write this page here, and no list")
    options = parser.parse_args(arguments)
    if options.one:
        page(entry(options.one), options.folder, options.pictures)
        return
    if options.list:
        with options.list.open(newline="") as file:
            candidates = [entry(row["model"]) for row in csv.DictReader(file)]
    else:
        candidates = entries()
    chosen = [one for one in candidates if fnmatch.fnmatch(one.name, options.only)]
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        problems = list(pool.map(lambda one: _alone(one, options.folder, options.pictures), chosen))
    write(options.folder / "index.html", listed(list(zip(chosen, problems, strict=True))))


if __name__ == "__main__":
    main()
