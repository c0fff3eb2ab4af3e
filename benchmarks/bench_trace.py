"""Tracing beside ``torch.export`` of the same model with a fixed batch, in processor seconds.

And what it takes to verify a capture (four calls of the model and of the built module, which is
built for it) beside one call with backward of the model. Figures are the least of some repeats.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Callable

import torch

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from tests.capture.faithful import tensors
from tests.zoo.collection import entry

MODELS = (
    "torchvision/resnet50", "torchvision/vit_b_16", "torchvision/swin_t",
    "torchvision/densenet121", "transformers/bert", "transformers/gpt2",
)  # fmt: skip
REPEATS = 3


def figures(name: str) -> dict[str, float]:
    """Processor seconds of an export, a trace without and with verification, and a step."""
    foreign = entry(name).make()
    model, args, kwargs = foreign.model, foreign.args, foreign.kwargs

    def exported() -> None:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.export.export(model.eval(), args, kwargs, strict=False)

    def traced() -> None:
        ag.trace(model, *args, **kwargs, verify=False)

    def verified() -> None:
        ag.trace(model, *args, **kwargs)

    def step() -> None:
        model.train().zero_grad()
        results = [t for t in tensors(model(*args, **kwargs)) if t.requires_grad]
        torch.stack([t.square().mean() for t in results]).sum().backward()

    works = exported, traced, verified, step
    for work in works:
        work()
    rows = [[seconds(work) for work in works] for _ in range(REPEATS)]  # drift hits all of them
    export, trace, both, once = map(min, zip(*rows, strict=True))
    return {
        "export, s": export,
        "trace, s": trace,
        "trace / export": trace / export,
        "verify, s": both - trace,
        "step, s": once,
        "verify / step": (both - trace) / once,
    }


def seconds(work: Callable[[], None]) -> float:
    """Processor seconds of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print a line for each model."""
    logging.disable(logging.WARNING)  # what export logs on the way
    for index, name in enumerate(MODELS):
        row = figures(name)
        if not index:
            print(f"{'model':<24}" + "".join(f"{k:>16}" for k in row))
        print(f"{name:<24}" + "".join(f"{v:>16.2f}" for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
