"""Nodes that hold their own rows alone: what they report, and the bits of the run."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Context, RecordDict

import archgraph as ag
from archgraph.data.folder import read_folder
from archgraph.data.form import DataForm
from archgraph.errors import ArchGraphError, DataError, RunError
from archgraph.flower.deployment import deployed_client, own_data, serve
from archgraph.flower.server import Nodes
from archgraph.flower.starter import write_app
from archgraph.language.data import FolderData

from .process_grid import ProcessGrid
from .test_deployment import equal, lines

MODEL = """
archgraph: 1
name: rows
inputs: {row: [5]}
sections:
  - {name: body, steps: [{linear: {out: 8}}, relu]}
  - {name: head, steps: [{linear: {out: 3}}]}
"""
HEADER = ["age", "dose", "city", "grade", "site"]
# The second site lacks a class and a city: alone, it would number the others otherwise.
SITES = {"north": ("abc", ("Bern", "Rom", "Ulm")), "south": ("ac", ("Rom", "Ulm"))}


def table(file: Path, rows: list[list[Any]]) -> Path:
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([HEADER, *rows])
    return file


@pytest.fixture
def app(tmp_path: Path) -> Callable[..., Path]:
    """An app whose nodes hold the rows of a site each, beside the tables `north` and `south`."""

    def write(strategy: str = "fedavg", **more: Any) -> Path:
        draw = random.Random(0)
        rows = {
            site: [
                [
                    draw.randint(20, 80),
                    draw.random(),
                    draw.choice(cities),
                    draw.choice(grades),
                    site,
                ]
                for _ in range(40)
            ]
            for site, (grades, cities) in SITES.items()
        }
        (tmp_path / "model.yaml").write_text(MODEL)
        table(tmp_path / "all.csv", rows["north"] + rows["south"])
        for site in SITES:
            table(tmp_path / f"{site}.csv", rows[site])
        table(tmp_path / "test.csv", rows["north"][:20])
        values = {
            "archgraph": 1,
            "name": "rows",
            "family": {"model": "model.yaml", "clients": [{"name": "all", "count": 2}]},
            "data": {
                "table": "all.csv",
                "target": "grade",
                "client": "site",
                "test": "test.csv",
            },
            "task": "classification",
            "strategy": {strategy: {}},
            "rounds": 2,
            "local": {"lr": 0.05, "batch": 8},
            **more,
        }
        (tmp_path / "experiment.yaml").write_text(json.dumps(values))
        write_app(tmp_path / "experiment.yaml", tmp_path / "app", own_rows=True)
        return tmp_path / "app" / "experiment.yaml"

    return write


def nodes(file: Path, **more: Any) -> ProcessGrid:
    grid, folder = ProcessGrid(deployed_client(file), 2), file.parents[1]
    for context, site in zip(grid.contexts.values(), SITES, strict=True):
        context.node_config |= {"data": str(folder / f"{site}.csv"), **more}
    return grid


@pytest.mark.parametrize("strategy", ["fedavg", "heterofl"])
def test_nodes_with_their_own_rows_have_the_bits_of_a_local_run(app, tmp_path, strategy, capsys):
    file = app(strategy)
    local, out = ag.run(tmp_path / "experiment.yaml", progress=False), tmp_path / "run"
    serve(nodes(file), file, {"out": str(out)})
    assert equal(out, local)
    said = capsys.readouterr().err
    assert "client 1 is on node 2, with 40 examples (" in said
    tested, expected = (run["evaluation"]["models"] for run in (lines(out)[-1], local.rounds[-1]))
    assert tested == json.loads(json.dumps(expected))


def test_what_only_the_clients_have_is_not_at_the_server(app, tmp_path):
    """Neither in the app nor in the run: the server reads its own rows alone."""
    file = app()
    rows = (tmp_path / "test.csv").read_text()
    text = "".join(path.read_text() for path in file.parent.iterdir())
    assert all(row not in text for row in rows.splitlines()[1:])
    for name in ("all.csv", "experiment.yaml", "model.yaml"):
        (tmp_path / name).unlink()
    with pytest.raises(ArchGraphError, match=r"all\.csv"):
        serve(nodes(file), file, {"out": str(tmp_path / "run")})


def test_label_counts_are_reported_where_the_node_agrees(app, tmp_path, capsys):
    file = app()
    serve(nodes(file, labels=False), file, {"out": str(tmp_path / "run")})
    assert "with 40 examples (classes not stated)" in capsys.readouterr().err
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert [client["classes"] for client in clients] == [[], []]


def test_a_strategy_that_reads_label_counts_says_so(app, tmp_path):
    file = app("heterofl")
    with pytest.raises(
        RunError,
        match=r"client 0: does not report its number .* expected these numbers for heterofl",
    ):
        serve(nodes(file, labels=False), file, {"out": str(tmp_path / "run")})


@pytest.mark.parametrize(
    "change, expected",
    [
        ("Rom", r"south\.csv: row 2: city: is not one of the known .* found 'Paris'"),
        ("site", r"data\.columns: there is no such column; found 'dose'"),
        ("", r"south\.csv: does not exist"),
    ],
)
def test_rows_that_do_not_fit_are_named_before_the_first_round(app, tmp_path, change, expected):
    file, south = app(), tmp_path / "south.csv"
    rows = [line.split(",") for line in south.read_text().splitlines()]
    if change == "Rom":
        rows[2][2] = "Paris"
    if change == "site":
        rows[0][1] = "doses"
    south.write_text("\n".join(map(",".join, rows)))
    if not change:
        south.unlink()
    with pytest.raises(RunError, match=f"clients without a node; found node 2: .*{expected}"):
        serve(nodes(file), file, {"out": str(tmp_path / "run"), "join": 0})


def test_a_node_that_comes_back_with_other_rows_is_refused(app, tmp_path):
    file, said = app(), list[str]()
    grid = nodes(file)
    fleet = Nodes(grid, 2, join=0, tell=said.append)
    fleet.meet(every=True)
    for number, more in ((3, ""), (4, "30,0.5,Rom,a,south\n")):
        with (tmp_path / "south.csv").open("a") as rows:
            rows.write(more)
        own_data.cache_clear()
        grid.contexts[number] = Context(
            0, number, dict(grid.contexts[2].node_config), RecordDict(), {}
        )
        fleet.meet()
    assert "client 1 is on node 3, with 40 examples" in said[-2]
    assert said[-1].startswith("node 4 (client 1) cannot take part: its rows have changed")


def test_the_servers_data_are_those_that_the_app_was_written_with(app, tmp_path):
    file = app()
    rows = (tmp_path / "all.csv").read_text().splitlines()
    (tmp_path / "all.csv").write_text("\n".join(rows[:-1]))
    with pytest.raises(
        DataError, match=("mean differ from those of the data that the app was created with")
    ):
        serve(nodes(file), file, {"out": str(tmp_path / "run")})


@pytest.mark.parametrize(
    "more, key, hint",
    [
        ({"validation": {"clients": 0.2}}, "validation", "remove it"),
        ({"public": 4}, "public", "remove it"),
        ({"attack": {}}, "attack.among", "write `among: own`"),
    ],
)
def test_what_needs_all_rows_at_the_server_is_refused_when_the_app_is_written(app, more, key, hint):
    with pytest.raises(RunError, match=f"{key}: needs the examples of all clients.*{hint}"):
        app(**more)


def test_images_are_read_in_the_size_and_by_the_classes_of_the_form(tmp_path):
    for number, name in enumerate(["cat", "dog", "owl"] * 4):
        folder = tmp_path / "all" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number * 9).save(folder / f"{number}.png")
    spec = FolderData(folder=str(tmp_path / "all"))
    data = read_folder(spec)
    form = DataForm.load(DataForm.of(spec, data).dump())
    (tmp_path / "one").mkdir()
    (tmp_path / "all" / "owl").rename(tmp_path / "one" / "owl")
    rows = form.read(spec, str(tmp_path / "one"))
    assert rows.train.targets.tolist() == [2] * 4
    as_there = replace(data.train, inputs=rows.train.inputs, targets=rows.train.targets)
    assert rows.train.batch([0])[0].equal(as_there.batch([0])[0])
