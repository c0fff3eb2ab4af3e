"""Tracing beside ``torch.export`` of the same model with a fixed batch, in processor seconds."""

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
from tests.zoo.collection import entry

MODELS = ("resnet50", "vit_b_16", "swin_t", "densenet121")
REPEATS = 3


def figures(name: str) -> dict[str, float]:
    """Least processor seconds of both over some repeats, run in turn so that drift hits both."""
    foreign = entry(f"torchvision/{name}").make()
    model = foreign.model.eval()

    def exported() -> None:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.export.export(model, foreign.args, foreign.kwargs, strict=False)

    def traced() -> None:
        ag.trace(model, *foreign.args, **foreign.kwargs)

    def seconds(work: Callable[[], None]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    exported()
    traced()
    pairs = [(seconds(exported), seconds(traced)) for _ in range(REPEATS)]
    export, trace = (min(column) for column in zip(*pairs, strict=True))
    return {"export, s": export, "trace, s": trace, "trace / export": trace / export}


def main() -> None:
    """Print a line for each model."""
    logging.disable(logging.WARNING)  # what export logs on the way
    for index, name in enumerate(MODELS):
        row = figures(name)
        if not index:
            print(f"{'model':<14}" + "".join(f"{k:>18}" for k in row))
        print(f"{name:<14}" + "".join(f"{v:>18.2f}" for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
