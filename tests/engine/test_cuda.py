"""All strategies on a real GPU; skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.engine.local import Run
from tests.engine.families import STRATEGIES, experiment_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def ran(name: str, folder: Path, **engine: Any) -> Run:
    """A run of two rounds of a strategy, without dropout: devices draw other masks."""
    file = experiment_of(name, folder)
    model = folder / "dropping.yaml"
    model.write_text(model.read_text().replace("dropout: 0.2, ", ""))
    spec = ag.load_experiment(file)
    return ag.run(
        spec.model_copy(update={"engine": type(spec.engine).model_validate(engine)}),
        progress=False,
    )


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategy_on_a_gpu_gives_the_processors_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    here, there = ran(name, tmp_path), ran(name, tmp_path, device="cuda")
    assert not any(line["rejected"] or line["failed"] for line in there.rounds)
    # Adam's first steps are as long as they are, however small a gradient is.
    bound = 2e-2 if name == "recipfl" else 2e-3
    assert here.server.tensors.keys() == there.server.tensors.keys()
    for key, value in here.server.tensors.items():
        # RecipFL's moments stay on the device.
        found = there.server.tensors[key].cpu()
        torch.testing.assert_close(found, value, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", ["fedavg", "fedfa", "nefl", "recipfl"])
def test_processes_on_a_gpu_train_as_the_servers_does(name: str, tmp_path: Path) -> None:
    one, two = ran(name, tmp_path, device="cuda"), ran(name, tmp_path, device="cuda", workers=2)
    trained = [[line["client"] for line in round["clients"]] for round in one.rounds]
    assert trained == [[line["client"] for line in round["clients"]] for round in two.rounds]
    torch.testing.assert_close(two.server.tensors, one.server.tensors, rtol=0.0001, atol=0.0001)
