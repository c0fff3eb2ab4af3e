"""Errors in the user's code say their line; slips in a study are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from archgraph.errors import raised_in
from archgraph.studies.spec import cells, load_study
from tests.studies.test_study import STUDY


def test_an_error_says_the_innermost_line_of_the_users_code(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import json\n\ndef f():\n    return json.loads('{')\n")
    space: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises(ValueError) as caught:
        space["f"]()  # type: ignore[operator]
    assert raised_in(caught.value) == f"{file}:4 in f"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "average: average_accuracy",
            "average: averge_accuracy",
            r"is not a known metric; .*did you",
        ),
        ("seeds: [0, 1]", "seeds: [0, 0]", r"small.seeds\[1\]: occurs twice; found 0"),
        (
            "FL, Standalone",
            "FL, HeteroFL",
            r"compare\[0\]: compares a row or column with itself; found HeteroFL",
        ),
        (
            "FL, Standalone",
            "FL, Standalon",
            r"compare\[0\]\[1\]: is not a row or column; .*did you",
        ),
    ],
)
def test_slips_in_a_study_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in STUDY
    (tmp_path / "table1.yaml").write_text(STUDY.replace(old, new))
    with pytest.raises(Exception, match=message):
        cells(load_study(tmp_path / "table1.yaml"), "small")
