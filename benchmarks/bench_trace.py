"""Tracing beside ``torch.export`` of the same model with a fixed batch, in processor seconds.

And beside a comparison of one gradient step of the model and of the built module, which tracing
does without: at 224 pixels and a batch of two. At last what of it the checks cost that find what no
capture shows: hooks, shared memory, attributes that forward changes, gradients of one's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import archgraph as ag
import archgraph.capture.hooks as hooks
import archgraph.capture.restored as restored
import archgraph.capture.surroundings as surroundings
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from tests.zoo.collection import entry

trace = importlib.import_module("archgraph.capture.trace")  # a function has this name, too
MODELS = ("resnet50", "vit_b_16", "swin_t", "densenet121")
CHECKED = ("torchvision/resnet50", "torchvision/swin_t", "transformers/bert")
CHECKS = (
    (trace, "assignments"),
    (trace, "shared"),
    (restored, "held"),
    (restored, "_insides"),
    (restored, "_parts"),
    (restored, "_replaced"),
    (surroundings, "other_gradient"),
    (hooks, "other_saved"),
)
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


def checks(name: str) -> dict[str, float]:
    """Processor seconds of a trace, and what of them the checks take."""
    foreign, spent, inside = entry(name).make(), 0.0, False

    def timed(check: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent, inside
            if inside:
                return check(*args, **kwargs)
            began, inside = time.process_time(), True
            try:
                found = check(*args, **kwargs)
                return list(found) if isinstance(found, Iterator) else found
            finally:
                spent, inside = spent + time.process_time() - began, False

        return call

    with contextlib.ExitStack() as stack:
        for module, check in CHECKS:
            stack.enter_context(mock.patch.object(module, check, timed(getattr(module, check))))
        every = tuple(map(timed, trace._CHECKS))
        stack.enter_context(mock.patch.object(trace, "_CHECKS", every))
        rows = []
        for _ in range(REPEATS):
            spent = 0.0
            whole = seconds(lambda: ag.trace(foreign.model, *foreign.args, **foreign.kwargs))
            rows.append((whole, spent))
    whole, part = min(rows)
    return {"trace, s": whole, "checks, s": part, "checks / trace": part / whole}


def seconds(work: Callable[[], None]) -> float:
    """Processor seconds of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print a line for each model."""
    logging.disable(logging.WARNING)  # what export logs on the way
    for measure, names in ((figures, MODELS), (checks, CHECKED)):
        for index, name in enumerate(names):
            row = measure(name)
            if not index:
                print(f"{'model':<24}" + "".join(f"{k:>18}" for k in row))
            print(f"{name:<24}" + "".join(f"{v:>18.2f}" for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
