"""The command that times models: what it writes and prints, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

import archgraph as ag
from tests.cli.terminal import call, refused


def test_a_family_is_profiled_by_its_global_model(here: Path):
    result = call(
        "profile",
        "family.yaml",
        "--seconds",
        "0",
        "--submodels",
        "4",
        "--batch",
        "2",
        "-o",
        "a.json",
    )
    assert result.exit_code == 0, result.output
    assert "held-out error" in result.stdout and "wrote a.json" in result.stdout
    profile = ag.DeviceProfile.load(here / "a.json")
    assert (profile.batch, profile.threads, profile.training) == (2, 1, False)
    assert [error.model for error in profile.errors] == ["tiny"]
    assert profile.milliseconds(ag.load(here / "model.yaml")) > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.yaml"], "none.yaml: cannot be read"),
        (["family.yaml:third"], "has no such model"),
        (["model.yaml", "--device", "nowhere"], "device nowhere: cannot be used"),
        (
            ["model.yaml", "--runtime", "onnxruntime", "--training"],
            "in evaluation on the processor",
        ),
    ],
)
def test_mistakes(here: Path, words: list[str], said: str):
    refused(call("profile", *words, "-o", "a.json"), said)
    assert not (here / "a.json").exists()
