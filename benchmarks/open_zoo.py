"""Models of the zoo with open sizes: which can have them, and whether the graph then holds.

``python -m benchmarks.open_zoo --out FILE [NAME…]``: texts and sounds are traced with an open
length, images with an open height and width. A graph that is opened is compared with the model at
three sizes in results and gradients, and mask ≡ take is checked at two. A line of JSON per model is
appended as soon as it is measured; lines that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import archgraph as ag
from archgraph.capture.examples import at_size
from archgraph.capture.signature import forward_arguments, open_axes
from archgraph.capture.verify import _named_tensors
from archgraph.errors import ArchGraphError
from archgraph.graph.sizes import open_sizes, other_sizes
from tests.nets import Foreign
from tests.zoo.collection import Entry, entries, entry

Axes = dict[str, dict[int, str]]


def stated(foreign: Foreign) -> Axes:
    """Name the axes of a model's inputs that people would leave open."""
    named = forward_arguments(foreign.model, foreign.args, foreign.kwargs)
    axes: Axes = {}
    lengths: dict[int, str] = {}
    for name, value in named.items():
        if not isinstance(value, Tensor):
            continue
        if value.dim() == 4:
            axes[name] = {2: "height", 3: "width"}
        elif value.dim() >= 2:
            axis = max(range(1, value.dim()), key=lambda axis: value.shape[axis])
            size = value.shape[axis]
            label = f"length_{len(lengths) + 1}" if lengths else "length"
            axes[name] = {axis: lengths.setdefault(size, label)}
    return axes


def compared(foreign: Foreign, traced: ag.Traced, axes: Axes) -> list[dict[str, Any]]:
    """Compare a model with its built graph at three sizes: results and gradients."""
    sizes = {n: s for n, s in open_sizes(traced.graph).items() if n != "batch"}
    example = {name: size.example for name, size in sizes.items()}
    least = {name: max(size.low, size.example - 3, 2) for name, size in sizes.items()}
    built = ag.build(traced.graph, traced.state).eval()
    model = foreign.model.eval()
    inputs = (foreign.args, dict(foreign.kwargs))
    lines = []
    for values in (example, other_sizes(traced.graph), least):
        changed = inputs
        for name, value in values.items():
            changed = at_size(changed, open_axes(model, inputs, axes), name, value)
        results = []
        for module, call in ((model, changed), (built, _by_name(foreign, changed, traced))):
            for parameter in module.parameters():
                parameter.grad = None
            torch.manual_seed(0)
            outputs = list(_named_tensors(module(*call[0], **call[1])).values())
            smooth = [o for o in outputs if o.requires_grad]
            sum(o.float().square().mean() for o in smooth).backward()
            gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            results.append((outputs, gradients))
        (theirs, grads), (ours, built_grads) = results
        gap = max(_far(a, b) for a, b in zip(ours, theirs, strict=True))
        scale = max((g.abs().max().item() for g in grads.values()), default=0.0)
        slope = max(
            ((built_grads[n] - g).abs().max().item() for n, g in grads.items() if n in built_grads),
            default=0.0,
        )
        lines.append({"sizes": values, "results": gap, "gradients": slope / (scale or 1.0)})
    return lines


def _by_name(
    foreign: Foreign, call: tuple[tuple[object, ...], Mapping[str, object]], traced: ag.Traced
) -> tuple[tuple[object, ...], dict[str, object]]:
    named = forward_arguments(foreign.model, *call)
    return (), {name: named[name] for name, _ in traced.graph.inputs}


def _far(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    if not b.is_floating_point():
        return 0.0 if torch.equal(a, b) else 1.0
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item() if b.numel() else 0.0


def line(model: Entry) -> dict[str, Any]:
    """Measure a model."""
    foreign = model.make()
    first = stated(foreign)
    start = time.process_time()
    record: dict[str, Any] = {"model": f"{model.group}/{model.name}", "open": len(first)}
    traced, refusal = None, ""
    # Where height and width have to be equal, they are one size.
    square = {k: {d: "side" if len(v) > 1 else n for d, n in v.items()} for k, v in first.items()}
    for axes in (first, square):
        try:
            traced = ag.trace(foreign.model, *foreign.args, open=axes, **foreign.kwargs)
            break
        except ArchGraphError as error:
            # Without the folder where packages lie here.
            refusal = refusal or re.sub(r"\S*site-packages/", "", str(error))[:400]
    if traced is None:
        return record | {"refused": refusal}
    record["ranges"] = {n: s.range for n, s in open_sizes(traced.graph).items() if n != "batch"}
    record["seconds"] = round(time.process_time() - start, 2)
    record["calls"] = compared(foreign, traced, axes)
    try:
        ag.take(traced.graph, 0.5, verify=True)
        record["take"] = "holds"
    except ArchGraphError as error:
        record["take"] = str(error)[:300]
    return record


def main() -> None:
    """Measure models and print how many are opened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/open_zoo.jsonl"))
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    lines = args.out.read_text("utf-8").splitlines() if args.out.exists() else []
    done = {json.loads(text)["model"] for text in lines}
    models = [entry(n) for n in args.names] or [e for e in entries() if not e.heavy]
    for model in models:
        if f"{model.group}/{model.name}" in done:
            continue
        try:
            record = line(model)
        except Exception as error:  # a fault of ours: it is to be seen
            record = {"model": f"{model.group}/{model.name}", "fails": repr(error)[:400]}
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record)[:300], flush=True)


if __name__ == "__main__":
    main()
