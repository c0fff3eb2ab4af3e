"""What a run folder tells: tables, curves, pages; whatever state the run was left in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle

from archgraph.errors import RunError
from archgraph.reports.charts import charts
from archgraph.reports.page import report
from archgraph.reports.plots import picture, save_figure
from archgraph.reports.run_page import page
from archgraph.reports.run_tables import tiers
from archgraph.reports.runs import Log, read_run, seconds, series


def line(number: int, *, tested: bool = True, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "round": number,
        "seconds": {"local": 3.0, "server": 0.5, "evaluate": 1.0, "record": 0.1, "total": 5.0},
        **more,
    }
    if tested:
        figures = {
            name: {
                "accuracy": base + number / 100,
                "loss": 1.0,
                "local": {"accuracy": 0.5, "loss": 1.0, "masked": 0.6},
            }
            for name, base in (("small", 0.5), ("large", 0.7), ("global", 0.6))
        }
        found["evaluation"] = {
            "models": figures,
            "global": figures["global"],
            "worst": {"name": "small", **figures["small"]},
        }
    return found


def log_of(rounds: Sequence[dict[str, Any]]) -> Log:
    """A run of these lines whose folder says nothing more."""
    return Log(Path("a"), "", tuple(rounds))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a run"
    place.mkdir()
    (place / "run.yaml").write_text("name: <tiny> & co\nrounds: 3\n")
    lines = [line(1, tested=False), line(2), line(3, rejected=[REJECTED])]
    (place / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    return place


REJECTED = {"client": 4, "name": "small", "reason": "fc.weight: <not> finite"}


def test_a_run_is_read_as_it_was_written(folder: Path):
    log = read_run(folder)
    assert [item["round"] for item in log.rounds] == [1, 2, 3]
    assert log.models == ("small", "large", "global")
    found = series(log.figures, part="test", group="large", metric="accuracy")
    assert found.to_dict() == {2: 0.72, 3: 0.73}


def test_a_line_that_a_crash_cut_off_is_left_out(folder: Path):
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 4, "evalua')
    assert [item["round"] for item in read_run(folder).rounds] == [1, 2, 3]


def test_a_run_is_shown_whose_experiment_has_a_flipped_bit(folder: Path):
    with (folder / "run.yaml").open("ab") as stream:
        stream.write(b"# \xff")
    assert len(read_run(folder).rounds) == 3


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(RunError) as caught:
        read_run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: not a run folder; found no run.yaml in it; "
        "expected run.yaml and metrics.jsonl"
    )


def test_the_table_has_a_row_per_model_and_marks_the_worst(folder: Path):
    found = tiers(read_run(folder))
    assert [row[0] for row in found.rows] == ["small", "large", "global"]
    assert found.columns == ("model", "accuracy", "on own classes", "")
    assert found.rows[0] == ("small", "53.00 %", "50.00 %", "worst")
    assert found.note == "3 rounds, 1 update rejected"
    assert found.strong == {2}


@given(st.lists(st.floats(0, 100), min_size=5, max_size=5))
def test_time_is_split_without_rest(parts: list[float]):
    local, server, evaluate, record, rest = parts
    total = local + server + evaluate + rest
    spent = {"local": local, "server": server, "evaluate": evaluate, "record": record}
    found = seconds(log_of([{"round": 1, "seconds": {**spent, "total": total}}]).figures)
    assert sum(found.values()) == pytest.approx(total + record, abs=1e-9)
    assert min(found.values()) >= 0.0


def test_curves_show_every_model_and_the_time(folder: Path):
    first, *_, last = charts(read_run(folder))
    (accuracy,), (time,) = first.figure.axes, last.figure.axes
    drawn = {item.get_label(): item for item in accuracy.get_lines()}
    assert list(drawn) == ["small", "large", "global"]
    assert np.asarray(drawn["small"].get_xdata()).tolist() == [2, 3]
    looks = {(item.get_color(), str(item.get_linestyle())) for item in drawn.values()}
    assert len(looks) == len(drawn)
    assert time.get_title(loc="left") == "seconds per round"
    widths = [bar.get_width() for bar in time.patches if isinstance(bar, Rectangle)]
    assert sum(widths) == pytest.approx(5.1, abs=1e-9)


def test_perplexity_is_drawn_where_there_is_one():
    better = {"perplexity": False, "accuracy": True}
    figures = [{"accuracy": 0.1, "perplexity": 200.0}, {"accuracy": 0.2, "perplexity": 100.0}]
    rounds = [
        {"round": i, "evaluation": {"better": better, "models": {"a": of}}}
        for i, of in enumerate(figures, 1)
    ]
    (panel,) = next(charts(log_of(rounds))).figure.axes
    assert np.asarray(panel.get_lines()[0].get_ydata()).tolist() == [200.0, 100.0]
    assert panel.get_yscale() == "log"
    assert tiers(log_of(rounds)).rows[0][1] == "100"


@pytest.mark.parametrize("rounds", [[], [{"round": 1}], [line(1, tested=False)]])
def test_a_run_without_a_test_can_be_drawn(rounds: list[dict[str, Any]]):
    assert picture(next(charts(log_of(rounds))).figure, "png").startswith(b"\x89PNG")


def test_pictures_are_the_same_every_time(folder: Path, tmp_path: Path):
    drawn, again = (next(charts(read_run(folder))).figure for _ in range(2))
    assert picture(drawn) == picture(again)
    save_figure(drawn, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_bytes() == picture(drawn)
    with pytest.raises(RunError, match="is not a picture format"):
        save_figure(drawn, tmp_path / "curves.gif")
    assert not (tmp_path / "curves.gif").exists()


class Outline(HTMLParser):
    """Which elements a page has, and whether they are closed in order."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Outline:
    outline = Outline()
    outline.feed(text)
    assert not outline.open
    return outline


def test_the_page_holds_everything_and_loads_nothing(folder: Path):
    path = report(folder)
    assert path == folder / "report.html"
    text = path.read_text()
    outline = read(text)
    assert "<script" not in text and "script-src" not in text and "default-src 'none'" in text
    assert 'http-equiv="refresh"' not in text
    assert all(link.startswith(("data:image/", "data:text/csv", "#")) for link in outline.links)
    words = "".join(outline.text)
    assert "name: <tiny> & co" in words
    assert "fc.weight: <not> finite" in words
    for name in ("small", "large", "global"):
        assert name in words


def test_a_page_of_a_run_that_just_began(folder: Path):
    (folder / "metrics.jsonl").write_text("")
    assert "Nothing was tested yet" in "".join(read(page(read_run(folder))).text)


def test_a_page_that_cannot_be_written_leaves_nothing(folder: Path):
    (folder / "file").write_text("kept")
    with pytest.raises(RunError, match="cannot write the file"):
        report(folder, folder / "file" / "report.html")
    assert sorted(p.name for p in folder.iterdir()) == ["file", "metrics.jsonl", "run.yaml"]
