"""Tracing beside ``torch.export`` of the same model with a fixed batch, in processor seconds.

And beside a comparison of one gradient step of the model and of the built module, which tracing
does without: at 224 pixels and a batch of two.
"""

from __future__ import annotations

import contextlib
import functools
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

    exported()
    traced()
    pairs = [(seconds(exported), seconds(traced)) for _ in range(REPEATS)]
    export, trace = (min(column) for column in zip(*pairs, strict=True))
    row = {"export, s": export, "trace, s": trace, "trace / export": trace / export}
    return row | comparison(name)


def comparison(name: str) -> dict[str, float]:
    """Processor seconds of a trace and of one gradient step of the model and of its graph."""
    import torchvision

    model, x = torchvision.models.get_model(name, weights=None), torch.randn(2, 3, 224, 224)
    began = time.process_time()
    graph, state = ag.trace(model, x)
    traced = time.process_time() - began

    def step(module: torch.nn.Module) -> None:
        module(x).square().mean().backward()

    modules = model.train(), ag.build(graph, state).train()
    steps = sum(seconds(functools.partial(step, module)) for module in modules)
    return {"trace at 224, s": traced, "both steps, s": steps, "steps / trace": steps / traced}


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
            print(f"{'model':<14}" + "".join(f"{k:>18}" for k in row))
        print(f"{name:<14}" + "".join(f"{v:>18.2f}" for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
