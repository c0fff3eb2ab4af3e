"""The same rows in every form in which data may come."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

CLIENTS = ("ann", "bob", "cid")


def rows(count: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Numbers ``[row, column]`` with two columns, three classes, and whose each row is."""
    draw = np.random.default_rng(seed)
    classes = np.arange(count) % 3
    inputs = draw.normal(size=(count, 2)) + classes[:, None]
    return inputs.astype(np.float32), classes, [CLIENTS[i % 5 % 3] for i in range(count)]


def pictures(count: int = 30, size: tuple[int, int] = (4, 5), seed: int = 0) -> np.ndarray:
    """Grey images, uint8 ``[image, 1, height, width]``."""
    return np.random.default_rng(seed).integers(0, 256, (count, 1, *size), dtype=np.uint8)


def write_table(
    path: Path, inputs: np.ndarray, targets: Any, clients: Any = None, separator: str = ","
) -> None:
    names = [f"x{i}" for i in range(inputs.shape[1])] + ["y"] + (["who"] if clients else [])
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=separator)
        writer.writerow(names)
        for i, row in enumerate(inputs):
            who = [clients[i]] if clients else []
            writer.writerow([*map(repr, row.tolist()), targets[i], *who])


def write_images(folder: Path, images: np.ndarray, classes: np.ndarray) -> None:
    """A folder for each class; files are named by their place, so that the order is known."""
    for place, (image, label) in enumerate(zip(images, classes, strict=True)):
        file = folder / str(label) / f"{place:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        Image.fromarray(pixels).save(file)


MODEL = """\
archgraph: 1
name: tiny
inputs: {x: %s}
sections:
  - name: body
    steps: [%s{linear: 6}, relu]
  - name: head
    steps: [{linear: %d}]
"""


def write_experiment(
    folder: Path,
    data: Mapping[str, Any] | None,
    *,
    shape: tuple[int, ...] = (2,),
    classes: int = 3,
    clients: int = 3,
    **more: Any,
) -> Path:
    """An experiment of one round, with its model and family beside it."""
    steps = "flatten, " if len(shape) > 1 else ""
    (folder / "model.yaml").write_text(MODEL % (list(shape), steps, classes))
    (folder / "family.yaml").write_text(
        "archgraph: 1\nname: tiny\nmodel: model.yaml\nclients:\n"
        f"  - {{name: all, count: {clients}}}\n"
    )
    lines = [
        "archgraph: 1",
        "name: own",
        "family: family.yaml",
        "strategy: {fedavg: {}}",
        "local: {epochs: 1, batch: 8, lr: 0.1}",
        *(f"{key}: {json.dumps(value)}" for key, value in {"rounds": 1, **more}.items()),
    ]
    if data is not None:
        lines += ["data:", *(f"  {key}: {json.dumps(value)}" for key, value in data.items())]
    file = folder / "experiment.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def bits(run: Any) -> dict[str, bytes]:
    """The weights that a run ends with."""
    (model,) = (m for m in run.models if m.name == "global")
    return {k: v.numpy().tobytes() for k, v in model.state.items()}


def split_of(
    inputs: Any, targets: Any, dtype: torch.dtype = torch.int64
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(inputs), torch.as_tensor(targets).to(dtype)
