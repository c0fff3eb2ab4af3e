"""What is sent and stored: every dtype of the format, and one message for every other."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.states import wire
from tests.nets import captured, with_parts


@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_every_dtype_of_the_format_arrives(dtype: str, tmp_path: Path) -> None:
    value = torch.zeros(4, dtype=getattr(torch, dtype))
    wire.save_tensors(tmp_path / "a.safetensors", {"w": value})
    for again in (
        wire.decode(wire.encode({"w": value}))["w"],
        wire.load_tensors(tmp_path / "a.safetensors")["w"],
    ):
        assert again.dtype == value.dtype and bytes(wire.raw(again)) == bytes(wire.raw(value))


def strange() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "values cannot be sent or stored; found complex128; expected one of bool, ": (
                torch.zeros(2, dtype=torch.complex128)
            ),
            "values cannot be sent or stored; found qint8": (
                torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
            ),
            "sparse_coo tensors cannot be sent or stored; expected a dense": torch.eye(
                2
            ).to_sparse(),
            "meta tensors cannot be sent or stored": torch.zeros(2, device="meta"),
            "nested tensors cannot be": torch.nested.nested_tensor([torch.ones(2)]),
        }


@pytest.mark.parametrize("message", list(strange()))
def test_what_the_format_lacks_is_named(message: str, tmp_path: Path) -> None:
    value = strange()[message]
    with pytest.raises(ag.RunError, match=rf"^clients: 1: fc\.weight: {message}"):
        wire.encode({"clients": [{}, {"fc.weight": value}]})
    with pytest.raises(ag.RunError, match=rf"^fc\.weight: {message}"):
        wire.save_tensors(tmp_path / "a.safetensors", {"fc.weight": value})
    assert not any(tmp_path.iterdir())


@with_parts(
    lambda dtype: {
        "fc": nn.Linear(4, 3),
        "filter": nn.Parameter(torch.ones(4, dtype=dtype)),
    }
)
def Filter(self, x: torch.Tensor) -> torch.Tensor:
    """A layer in the frequency domain."""
    y: torch.Tensor = self.fc(torch.fft.ifft(torch.fft.fft(x) * self.filter).real.float())
    return y


def test_a_run_with_complex_weights_is_recorded_or_refused_before_it_begins(tmp_path: Path) -> None:
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    for dtype in (torch.complex64, torch.complex128):
        experiment = {
            "name": "filters",
            "family": {
                "model": captured(Filter(dtype), x[:2]),
                "clients": [{"name": "a", "count": 2}],
            },
            "strategy": {"fedavg": {}},
            "rounds": 1,
            "local": {"epochs": 1, "batch": 10, "lr": 0.1},
            "data": {"dataset": "mine", "partition": {"scheme": "iid"}},
        }
        out = tmp_path / str(dtype)
        pair = ((x, y), (x, y))
        if dtype == torch.complex64:
            ag.run(experiment, data=pair, out=out, progress=False)
            assert (out / "metrics.jsonl").exists()
        else:
            with pytest.raises(ag.RunError, match=r"^global/filter: .* found complex128"):
                ag.run(experiment, data=pair, out=out, progress=False)
            assert not out.exists()
