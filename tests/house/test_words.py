"""Texts for users stay short."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = [p for p in (ROOT / "docs").rglob("*.md") if not {"_build", "_generated"} & {*p.parts}]


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ([ROOT / "README.md"], 800),
        ([ROOT / "CHANGELOG.md"], 1_000),
        (DOCS, 40_000),
        ([ROOT / "docs" / "measured" / "index.md"], 1_500),
        ([ROOT / "docs" / "measured" / "results.md"], 300),
    ],
    ids=["README", "CHANGELOG", "docs", "measured", "results"],
)
def test_words(files: list[Path], most: int):
    assert files and 0 < sum(len(file.read_text().split()) for file in files) <= most
