"""Files are written whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from archgraph.errors import RunError
from archgraph.files import write


def test_a_file_is_replaced_in_one_step(tmp_path: Path):
    path = write(tmp_path / "new" / "a.txt", "one")
    assert write(path, b"two").read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_file_has_the_rights_of_any_new_file(tmp_path: Path):
    (tmp_path / "plain").write_text("")
    path = write(tmp_path / "a.txt", "one")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_what_cannot_be_written_leaves_everything_as_it_was(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "folder", tmp_path / "file" / "a.txt"):
        with pytest.raises(RunError, match=f"{path.name}: cannot write the file; found "):
            write(path, "lost")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"
