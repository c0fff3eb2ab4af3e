"""Run folders with a fault: bytes, lines and values changed, digests made to fit or not."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import archgraph as ag
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.record.checkpoint import SUMS
from archgraph.record.proof import sha256
from archgraph.reports.run_tables import tiers
from archgraph.reports.runs import read_run
from tests.language.fuzzing import MUTATIONS, Stage

MODEL = Path(__file__).resolve().parents[2] / "specs" / "models" / "digits_cnn.yaml"
LAST = "checkpoints/round-000002"
SPEC = f"""\
archgraph: 1
name: mutated
family:
  archgraph: 1
  name: mutated
  model: {MODEL}
  clients: [{{name: whole, choose: {{w1: 8}}}}, {{name: half, choose: {{w1: 8}}, take: 0.5}}]
data: {{dataset: digits, limit: 60}}
strategy: {{heterofl: {{norm: local, scaler: false}}}}
rounds: 3
local: {{batch: 16, lr: 0.05, momentum: 0.9}}
evaluate: {{every: 3}}
seed: 0
"""
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**70, -(2**70), 0.5, 1e308, float("nan"), float("inf"),
    "", "x", "x" * 100_000, "\ud800", "../../../tmp/x", "/etc/passwd", "clients/../../x",
    "groups/000000.safetensors", [], {}, [[]], [1] * 10_000, {"": ""}, {"round": 1}, "0" * 64,
)  # fmt: skip


@functools.cache
def broken_folder() -> tuple[Experiment, Path]:
    """A run that died in its last round, and its experiment."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "experiment.yaml").write_text(SPEC)
    setup = prepare(ag.load_experiment(folder / "experiment.yaml"))
    execute(setup, out=folder / "run", progress=False)
    shutil.rmtree(folder / "run" / "checkpoints" / "round-000003")
    return setup, folder / "run"


def use_folder(rng: random.Random, place: Path, stage: Stage) -> None:
    """Put a fault into a run folder, look at the run and go on with it."""
    setup, folder = broken_folder()
    shutil.copytree(folder, place)
    files = sorted(p for p in place.rglob("*") if p.is_file())
    target = rng.choice([place / LAST / "server.json"] * len(files) + files)
    for _ in range(rng.choice((1, 1, 2))):
        target.write_bytes(rng.choice(_mutations(target))(rng, target.read_bytes()))
    if rng.random() < 0.5:
        _seal(place, target, folder)
    stage("read")
    _tolerated(lambda: tiers(read_run(place)))
    stage("resume")
    execute(setup, out=place, resume=True, progress=False)


def _tolerated(action: Callable[[], Any]) -> None:
    """What may be refused without the rest being refused."""
    try:
        action()
    except ag.ArchGraphError:
        pass


def _mutations(path: Path) -> list[Callable[[random.Random, bytes], bytes]]:
    bytewise = MUTATIONS["bytes"]
    if path.suffix == ".safetensors":
        return [mutate_header, *bytewise]
    return [mutate_json] * len(bytewise) + bytewise if path.suffix != ".yaml" else bytewise


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Another value, key or item somewhere in the last line."""
    *before, last = data.rstrip(b"\n").split(b"\n")
    try:
        value = json.loads(last)
    except ValueError:
        try:
            before, value = [], json.loads(data)
        except ValueError:
            return data
    try:
        return b"\n".join([*before, json.dumps(_changed(rng, value)).encode(), b""])
    except (ValueError, RecursionError):
        return data


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, rng.choice(("x", "", "0", "groups", key + "x")): value[key]}
            case _:
                return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    return rng.choice(ODD)


def mutate_header(rng: random.Random, data: bytes) -> bytes:
    """Another header of a safetensors file: its length, names, types, shapes or offsets."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.2:
        fitting = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
        return (fitting % 2**64).to_bytes(8, "little") + header + rest
    try:
        tensors = json.loads(header)
    except ValueError:
        return data
    name = rng.choice([*tensors])
    one = dict(tensors[name]) if isinstance(tensors[name], dict) else {}
    match rng.randrange(6):
        case 0:
            one["dtype"] = rng.choice(("F64", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "X", "", 3))
        case 1:
            one["shape"] = rng.choice(
                ([], [0], [1], [-1], [2**62], [2**32, 2**32], [1] * 100, "x", [1.5], None)
            )
        case 2:
            one["data_offsets"] = rng.choice(
                ([0, 0], [0, 2**63], [-4, 0], [8, 4], [0], [], "x", None, [0, 4])
            )
        case 3:
            return _packed(
                {**tensors, rng.choice(("", "x/y", "../x", "\ud800", name + "x")): one}, rest
            )
        case 4:
            return _packed({k: v for k, v in tensors.items() if k != name}, rest)
        case _:
            odd: tuple[Any, ...] = ({}, [], None, "x", {"dtype": "F32"})
            one = rng.choice(odd)
    return _packed({**tensors, name: one}, rest)


def _packed(tensors: Any, rest: bytes) -> bytes:
    header = json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + rest


def _seal(place: Path, target: Path, folder: Path) -> None:
    """Make the digests fit what is there, so that the fault lies behind them.

    The strategy's own values stay: what they must be is not the run folder's to know.
    """
    server = place / LAST / "server.json"
    try:
        values = json.loads(server.read_bytes())
        metrics = (place / "metrics.jsonl").read_bytes()[: values["metrics"]["bytes"]]
        if target.name == "metrics.jsonl":
            values["metrics"]["sha256"] = hashlib.sha256(metrics).hexdigest()
        if "values" in values:
            values["values"] = json.loads((folder / LAST / "server.json").read_bytes())["values"]
        server.write_text(json.dumps(values))
        text = (place / LAST / SUMS).read_text()
        for path in {server, target}:
            name = path.relative_to(place / LAST) if path.is_relative_to(place / LAST) else None
            text = re.sub(rf"^\w*  {name}$", f"{sha256(path)}  {name}", text, flags=re.MULTILINE)
        (place / LAST / SUMS).write_text(text)
    except (ValueError, KeyError, TypeError, OSError, AttributeError, RecursionError):
        pass
