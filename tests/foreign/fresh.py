"""Loads folders in a process of its own, which knows of them what stands in them alone.

For each folder that it is told on its standard input it writes what the model computes for
``inputs.safetensors`` into ``outputs.safetensors``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers

import tests.conftest  # noqa: F401 - offline, and torchvision beside a CPU torch


def answer(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
    inputs = safetensors.torch.load_file(folder / "inputs.safetensors")
    with torch.no_grad():
        result = model(**inputs)
    tensors = {k: v.contiguous() for k, v in result.items() if isinstance(v, torch.Tensor)}
    safetensors.torch.save_file(tensors, folder / "outputs.safetensors")


if __name__ == "__main__":
    for line in sys.stdin:
        answer(Path(line.strip()))
        sys.stdout.write("done\n")
        sys.stdout.flush()
