"""Small runs whose figures are known: if they change, ``BITS`` has to rise.

``python -m tests.engine.bits --write`` writes ``bits.json``: losses to six places, and digests of
the final states for each kind of machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import archgraph as ag
from archgraph.engine.bits import BITS
from archgraph.processes.isolation import one_thread
from archgraph.record.proof import environment
from archgraph.states.state import State
from tests.engine.families import DEPTHS, DIGITS, EXITS, MIXED, ONE, RANK, WIDTHS

FILE = Path(__file__).with_name("bits.json")
# Of losses on a kind of machine that the file does not list, relative.
TOLERANCE = 1e-3

_CNN = DIGITS.read_text()
_HEAD = "sections: [{name: body, steps: [%s]}, {name: head, steps: [linear: 10]}]"
_LSTM = _HEAD % "select: 0, lstm: 8, select: -1"
MODELS = {
    "cnn": _CNN,
    "group_norm": _CNN.replace("batch_norm", "group_norm: 4"),
    "vit": DIGITS.with_name("digits_vit.yaml").read_text(),
    "lstm": f"archgraph: 1\nname: lstm\ninputs: {{image: [1, 8, 8]}}\n{_LSTM}\n",
}
_ALL = "clients: [{name: all, count: 3}]"
# Of each cell: model, clients, strategy, further keys of the experiment.
CELLS: dict[str, tuple[str, str, str, str]] = {
    "batch norm": ("cnn", ONE, "{fedavg: {}}", ""),
    "group norm": ("group_norm", ONE, "{fedavg: {}}", ""),
    "transformer": ("vit", _ALL, "{fedavg: {}}", ""),
    "lstm": ("lstm", _ALL, "{fedavg: {}}", ""),
    "adapters": ("vit", RANK, "{fedit: {}}", ""),
    "HeteroFL": ("cnn", WIDTHS, "{heterofl: {}}", ""),
    "FedFA": ("cnn", MIXED, "{fedfa: {}}", ""),
    "NeFL": ("cnn", MIXED, "{nefl: {spread: 0}}", ""),
    "DepthFL": ("cnn", EXITS, "{depthfl: {}}", ""),
    "FedADP": ("cnn", MIXED, "{fedadp: {approximate: true}}", ""),
    "FedIN": ("cnn", DEPTHS, "{fedin: {}}", ""),
    "RecipFL": ("cnn", MIXED, "{recipfl: {width: 16, hidden: 16, tile: 8}}", ""),
    "FIARSE": ("cnn", WIDTHS, "{fiarse: {}}", ""),
    "robust mean": ("cnn", ONE, "{fedavg: {}}", "aggregate: {trimmed_mean: {share: 0.4}}"),
}


def machine() -> str:
    """Name the kind of this machine: processor without stepping, instructions, versions."""
    here = environment()
    torch_release, numpy_release = (m.__version__.partition("+")[0] for m in (torch, np))
    processor = here["processor"].partition(", stepping")[0]
    return f"{processor}, {here['instructions']}, torch {torch_release}, numpy {numpy_release}"


def measured(cell: str) -> tuple[list[float], str]:
    """Run a cell; return its losses, to six places, and the digest of its final state."""
    model, clients, strategy, more = CELLS[cell]
    with tempfile.TemporaryDirectory() as folder, one_thread():
        (Path(folder) / "model.yaml").write_text(MODELS[model])
        file = Path(folder) / "experiment.yaml"
        file.write_text(f"""\
archgraph: 1
name: bits
family: {{archgraph: 1, name: bits, model: model.yaml, {clients}}}
data: {{dataset: digits, limit: 48, partition: {{scheme: dirichlet, min_size: 5}}}}
strategy: {strategy}
rounds: 2
local: {{batch: 8, lr: 0.05, momentum: 0.9, weight_decay: 0.0001}}
evaluate: {{every: 2}}
{more}
""")
        run = ag.run(file, progress=False)
    assert run.sound, run.troubles
    return [float(f"{loss:.6f}") for loss in _losses(run.rounds)], _digest(run.server.tensors)


def _losses(rounds: Any) -> Iterator[float]:
    """Yield the losses of clients in each round, and figures of each model in the last test."""
    for line in rounds:
        yield from (client["loss"] for client in line["clients"])
    for model in rounds[-1]["evaluation"]["models"].values():
        yield from (model["loss"], model["accuracy"])


def _digest(state: State) -> str:
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode())
        total.update(state[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def read() -> dict[str, Any]:
    """Read the file."""
    known: dict[str, Any] = json.loads(FILE.read_text())
    return known


def change(cell: str, known: Mapping[str, Any], losses: list[float], state: str) -> str:
    """Describe how figures of a cell differ from the known ones; empty if they are those.

    On a kind of machine that the file does not list, losses may differ by the tolerance.
    """
    states, before = known["states"].get(machine()), known["losses"][cell]
    if states is not None:
        return "" if (losses, state) == (before, states[cell]) else f"{losses}, not {before}"
    near = np.allclose(losses, before, rtol=TOLERANCE, atol=0)
    return "" if near else f"{losses}, not {before} within {TOLERANCE:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    figures = {cell: measured(cell) for cell in CELLS}
    known: dict[str, Any] = read() if FILE.is_file() else {"bits": 0}
    same = known["bits"] == BITS
    if same and (changed := [c for c in CELLS if change(c, known, *figures[c])]):
        raise SystemExit(f"figures changed: raise BITS first ({', '.join(changed)})")
    losses = known["losses"] if same else {cell: of[0] for cell, of in figures.items()}
    states: dict[str, Any] = known["states"] if same else {}
    states[machine()] = {cell: of[1] for cell, of in figures.items()}
    content = {"bits": BITS, "losses": losses, "states": states}
    FILE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
