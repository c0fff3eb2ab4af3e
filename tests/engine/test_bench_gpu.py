"""The benchmark of a GPU does all that it does there on a processor, small."""

from __future__ import annotations

import math

import pytest

from benchmarks import bench_gpu


@pytest.mark.full
def test_a_trial_gives_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    bench_gpu.main(["--dry"])
    lines = capsys.readouterr().out.splitlines()
    values = {line[14:56].strip(): float(line[56:]) for line in lines}
    assert len(values) == len(lines) == 9
    assert all(map(math.isfinite, values.values()))
    assert values["waits for the device in a step (aim: 0)"] == 0
