"""Tracing beside one ``torch.export`` of the same model with a fixed batch: time and memory.

Processor seconds of one thread, the least of some repeats, each model in a process of its own. For
models above four exports a second line says where the time goes. Memory is the growth of the peak
during a trace over the bytes of the model's parameters; the returned state is one of it.
``python -m benchmarks.bench_trace NAME …`` measures some of the models.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph.capture import export, trace, verify

REPEATS, LARGE, SMALL = 3, 64, 2


def _vision(name: str, batch: int = SMALL, size: int = 224) -> tuple[nn.Module, Any]:
    make = getattr(importlib.import_module("torchvision.models"), name)
    return make(), torch.randn(batch, 3, size, size)


def _text(name: str) -> tuple[nn.Module, Any]:
    library = importlib.import_module("transformers")
    config = getattr(library, f"{name}Config")(use_cache=False)
    return getattr(library, f"{name}Model")(config), torch.ones(SMALL, 16, dtype=torch.int64)


def _unet() -> tuple[nn.Module, Any]:
    """Make the U-Net of Ronneberger et al. with half its channels: 7.8 million parameters."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (32, 64, 128, 256, 512)
            self.down = nn.ModuleList(map(_twice, (3, *widths), widths))
            self.up = nn.ModuleList(
                nn.ConvTranspose2d(2 * n, n, 2, 2) for n in reversed(widths[:-1])
            )
            self.join = nn.ModuleList(_twice(2 * n, n) for n in reversed(widths[:-1]))
            self.head = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for layer in self.down:
                x = layer(x if not kept else nn.functional.max_pool2d(x, 2))
                kept.append(x)
            for wider, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
                x = join(torch.cat([beside, wider(x)], 1))
            return self.head(x)

    return Net(), torch.randn(SMALL, 3, 64, 64)


def _twice(inside: int, out: int) -> nn.Module:
    def once(channels: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)

    return nn.Sequential(*once(inside), *once(out))


def _diffusers(name: str) -> tuple[nn.Module, Any]:
    library = importlib.import_module("diffusers")
    wide = {"block_out_channels": (32, 64), "layers_per_block": 1, "sample_size": 16}
    if name == "UNet2DModel":
        kinds = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
        return library.UNet2DModel(**wide, **kinds), (torch.randn(SMALL, 3, 16, 16), 1)
    kinds = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    model = library.UNet2DConditionModel(**wide, **kinds, cross_attention_dim=32)
    return model, (torch.randn(SMALL, 4, 16, 16), 1, torch.randn(SMALL, 8, 32))


def _tabnet() -> tuple[nn.Module, Any]:
    network = importlib.import_module("pytorch_tabnet.tab_network")
    group = torch.eye(16)
    return network.TabNet(16, 3, group_attention_matrix=group), torch.randn(SMALL, 16)


def _detector() -> tuple[nn.Module, Any]:
    library = importlib.import_module("transformers")
    config = library.RTDetrConfig(num_queries=30, decoder_layers=2)
    return library.RTDetrForObjectDetection(config), torch.randn(1, 3, 128, 128)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "ResNet-50": lambda: _vision("resnet50"),
    "ViT-B/16": lambda: _vision("vit_b_16"),
    "Swin-T": lambda: _vision("swin_t"),
    "DenseNet-121": lambda: _vision("densenet121"),
    "MobileNetV3-S": lambda: _vision("mobilenet_v3_small"),
    "U-Net, 7.8 M": _unet,
    "BERT-base": lambda: _text("Bert"),
    "GPT-2": lambda: _text("GPT2"),
    "ResNet-18, 64 px, batch 64": lambda: _vision("resnet18", LARGE, 64),
    "ResNet-18, 64 px, batch 2": lambda: _vision("resnet18", SMALL, 64),
    "UNet2DConditionModel": lambda: _diffusers("UNet2DConditionModel"),
    "UNet2DModel": lambda: _diffusers("UNet2DModel"),
    "TabNet": _tabnet,
    "RT-DETR": _detector,
    "ViT-L/16": lambda: _vision("vit_l_16"),
}

# Where a trace spends its time: exports, which the passes and the range go with, and the calls.
_PLACES = (
    ("exports", export, "_export"), ("range of the batch", export, "ranges"),
    ("passes", trace, "canonical"), ("verify", trace, "verified"),
    ("of it without numbers", verify._Verification, "equal_formulas"),
    ("calls with numbers", verify._Verification, "_run"),
)  # fmt: skip


def figures(name: str) -> dict[str, float]:
    """Return seconds and memory of a model, measured in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, example = MODELS[name]()
    args = example if isinstance(example, tuple) else (example,)

    def exported() -> None:
        torch.export.export(model.eval(), args, strict=False)

    def traced() -> None:
        ag.trace(model.train(), *args)

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        exported()  # imports what it needs
        memory = _growth(traced) / sum(p.nbytes for p in model.parameters())
        rows = [(_seconds(exported), _seconds(traced)) for _ in range(REPEATS)]
        with _watched() as spent:
            traced()
    once, whole = map(min, zip(*rows, strict=True))
    return {"export": once, "trace": whole, "ratio": whole / once, "memory": memory, **spent}


def pruning() -> float:
    """Return what a trace, a cut in half and its weights cost over pruning by Torch-Pruning."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = importlib.import_module("torch_pruning")
    model, example = _vision("resnet50")

    def cut() -> None:
        graph, state = ag.trace(model, example)
        ag.take(graph, 0.5).transfer.pull(state)

    def pruned() -> float:
        copy, _ = _vision("resnet50")
        return _seconds(
            lambda: library.pruner.BasePruner(
                copy, example, library.importance.MagnitudeImportance(), pruning_ratio=0.5
            ).step()
        )

    cut(), pruned()  # import what they need
    return min(_seconds(cut) for _ in range(REPEATS)) / min(pruned() for _ in range(REPEATS))


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _growth(work: Callable[[], None]) -> int:
    """Return by how many bytes the peak of resident memory is above what was resident before."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak begins anew
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    _, _, rest = Path("/proc/self/status").read_text("ascii").partition(f"{name}:")
    return int(rest.split()[0]) * 1024


@contextlib.contextmanager
def _watched() -> Iterator[dict[str, float]]:
    """Add up the time that calls of some functions take."""
    spent = dict.fromkeys((place for place, _, _ in _PLACES), 0.0)

    def timed(place: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[place] += time.process_time() - began

        return call

    with contextlib.ExitStack() as stack:
        for place, owner, name in _PLACES:
            function = getattr(owner, name)
            stack.callback(setattr, owner, name, function)
            setattr(owner, name, timed(place, function))
        yield spent


def main(names: list[str] | None = None) -> None:
    """Print a line for each model, and the geometric mean of the ratios."""
    print(f"{'model':<28}{'export, s':>11}{'trace, s':>10}{'ratio':>8}{'memory':>8}")
    ratios = []
    for name in names or MODELS:
        command = [sys.executable, "-m", "benchmarks.bench_trace", "--one", name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"{name:<28}skipped: {done.stderr.strip().splitlines()[-1][:60]}")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        ratios.append(row["ratio"])
        cells = f"{row['export']:>11.2f}{row['trace']:>10.2f}{row['ratio']:>8.1f}"
        print(f"{name:<28}{cells}{row['memory']:>8.2f}", flush=True)
        if row["ratio"] > 4:
            places = (f"{place} {row[place] / row['export']:.1f}" for place, _, _ in _PLACES)
            print(f"    in exports: {', '.join(places)}")
    mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
    print(f"geometric mean {mean:.2f}, largest {max(ratios, default=0):.1f}")
    if not names:
        with contextlib.suppress(ModuleNotFoundError):
            print(f"trace, take and pull of ResNet-50 over Torch-Pruning's step: {pruning():.1f}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what export logs on the way
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(figures(sys.argv[2])))
    else:
        main(sys.argv[1:])
