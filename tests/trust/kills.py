"""Runs that are killed and go on: ``python -m tests.trust.kills``.

Small runs of several strategies are killed with SIGKILL at random moments, several times each,
resumed as a person would (``--resume`` where the folder exists), and at last left to end. Every
other run is asked for two rounds at first and prolonged when it has ended (``--set rounds=5
--resume``), with kills in both parts. Whatever is in the folder must then equal, bit for bit, what
an undisturbed run writes.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import archgraph as ag
from tests import sheets
from tests.trust.forks import silent

MODEL = Path(__file__).resolve().parents[2] / "specs" / "models" / "digits_cnn.yaml"
ONE = "[{name: all, count: 4, choose: {w1: 8}}]"
WIDTHS = "[{name: whole, count: 2, choose: {w1: 8}}, {name: half, count: 2, take: 0.5}]"
MIXED = (
    "[{name: small, count: 2, choose: {d1: 1, w2: 16}}, {name: deep, count: 1, choose: {d1: 2}},"
    " {name: wide, count: 1, choose: {w2: 24}}]"
)
DEPTHS = "[{name: short, count: 2, choose: {d1: 1}}, {name: long, count: 2, choose: {d1: 2}}]"
EDGE = "[{name: edge, count: 4, choose: {w1: 8}, ends_after: {section: stage1, head: 10}}]"
EXITS = (
    "[{name: first, count: 2, ends_after: {section: stage1}}, {name: whole, count: 2}],"
    " change: {add_exits: {stage1: 10}}"
)
# Clients and options of each method.
STRATEGIES = {
    "fedavg": (ONE, "{}"),
    "heterofl": (WIDTHS, "{}"),
    "depthfl": (EXITS, "{}"),
    "scalefl": (EXITS, "{}"),
    "fedfa": (MIXED, "{}"),
    "nefl": (MIXED, "{spread: 0}"),
    "fedadp": (MIXED, "{approximate: true}"),
    "fedin": (DEPTHS, "{}"),
    "fedrolex": (WIDTHS, "{}"),
    "fiarse": (WIDTHS, "{}"),
    "fjord": (WIDTHS, "{}"),
    "inclusivefl": (DEPTHS, "{}"),
    "feddistill": (MIXED, "{}"),
    "fedmd": (MIXED, "{subset: 20, public_epochs: 1}"),
    "fedproto": (MIXED, "{}"),
    "fml": (MIXED, "{}"),
    "fedgkt": (EDGE, "{after: stage1, server_epochs: 1}"),
    "clusteredfl": (ONE, "{mean_norm: 100, largest_norm: 0, after: 1}"),
    "recipfl": (MIXED, "{width: 16, hidden: 16, tile: 8, descriptor: id}"),
}
STAGES = ((5,), (2, 5))  # numbers of rounds that a run is asked for, one after the other
MOST = 8  # kills of one run
BEGUN = "run.yaml"  # what a run writes first
LIMIT = 120.0  # seconds for one attempt


@dataclass
class Report:
    """What became of the runs of one strategy."""

    kills: int = 0
    early: int = 0  # of these before the folder held a run
    writing: int = 0  # of these while something was written
    runs: int = 0
    longer: int = 0  # of these in two stages
    faults: list[str] = field(default_factory=list)  # dead ends and runs with other bits


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill runs; 0 where all of them end, with the bits of an undisturbed one."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    parser.add_argument("--workers", type=int, default=1, help="processes that train clients")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a CSV file")
    options = parser.parse_args(arguments)
    names = options.strategy or list(STRATEGIES)
    reports: dict[str, Report] = {}
    for at, name in enumerate(names):
        share = (at + 1) * options.kills // len(names) - at * options.kills // len(names)
        with tempfile.TemporaryDirectory() as folder:
            reports[name] = killed(
                name,
                share,
                random.Random(f"{options.seed} {name}"),
                Path(folder),
                options.workers,
            )
        print(name, reports[name], flush=True)  # noqa: T201 - the command's product
    if options.write:
        sheets.write(options.write, _rows(reports))
    return 1 if any(report.faults for report in reports.values()) else 0


def killed(name: str, kills: int, rng: random.Random, folder: Path, workers: int = 1) -> Report:
    """Kill runs of a strategy so many times in all."""
    spec = folder / "experiment.yaml"
    spec.write_text(_experiment(name, workers))
    report, whole = Report(), {}
    for stages in STAGES:
        out = folder / f"whole-{len(stages)}"
        for rounds in stages:
            if error := _attempt(spec, out, rounds, LIMIT):
                raise RuntimeError(f"{name} does not run: {error}")
        whole[stages] = time.time() - (out / BEGUN).stat().st_mtime, bits(out)
    while report.kills < kills:
        stages = STAGES[report.runs % len(STAGES)]
        report.runs += 1
        report.longer += len(stages) > 1
        out, (seconds, expected) = folder / f"run-{report.runs}", whole[stages]
        for rounds in stages:
            for moment, since in _moments(rng, seconds / len(stages), kills - report.kills):
                error = _attempt(spec, out, rounds, moment, since)
                if error != "":  # ended, for good or not
                    break
                report.kills += 1
                report.early += not (out / BEGUN).exists()
                report.writing += any(out.rglob(".draft-*"))
            if error:
                report.faults.append(f"dead end of run {report.runs}: {error}")
                break
        else:
            if found := differing(expected, bits(out)):
                report.faults.append(f"other bits in run {report.runs}: {', '.join(found)}")
    return report


def _moments(rng: random.Random, seconds: float, kills: int) -> Iterator[tuple[float, str]]:
    """When to kill what takes so long, and since when; at last it is left to end.

    A sixth of the moments lie within the first second of the process, the others after the run has
    begun: how long it takes until then says more of the machine than of the run.
    """
    for _ in range(min(rng.randint(1, MOST), kills)):
        early = rng.random() < 1 / 6
        yield rng.uniform(0, min(1, seconds) if early else seconds), "" if early else BEGUN
    yield LIMIT, ""


def _attempt(spec: Path, out: Path, rounds: int, moment: float, since: str = "") -> str | None:
    """Run, or go on with, an experiment for so many rounds in all, until a moment.

    Args:
        spec: The experiment.
        out: Its folder.
        rounds: How many.
        moment: Seconds.
        since: File of the folder from which on they are counted; empty: from the start.

    Returns:
        None if it ended before, its error if it failed, an empty text if it was killed.
    """
    log = spec.with_suffix(".log")
    log.write_text("")
    child = os.fork()
    if not child:
        try:
            silent()
            experiment = ag.load_experiment(spec).model_copy(update={"rounds": rounds})
            ag.run(experiment, out=out, resume=out.exists(), progress=False)
            os._exit(0)
        except BaseException:
            log.write_text(traceback.format_exc())
            os._exit(1)
    end = math.inf if since else time.monotonic() + moment
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if end == math.inf and (out / since).exists():
            end = time.monotonic() + moment
        if time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(min(0.002, max(end - time.monotonic(), 0)))
    if os.WIFSIGNALED(ended[1]):
        return "" if moment < LIMIT else f"not done after {LIMIT:.0f} s"
    return None if ended[1] == 0 else log.read_text() or "ended without a word"


def bits(folder: Path) -> dict[str, str]:
    """Digest of everything in a run folder that no clock decides, by file or line."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name == "server.json":
            values = json.loads(path.read_text())
            found[name] = {k: values[k] for k in ("round", "groups", "values")}
        elif path.name == "SHA256SUMS":  # of server.json, too, which holds times
            found[name] = [line for line in path.read_text().splitlines() if "/" in line]
        elif name == "metrics.jsonl":
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                found[f"{name}:{number}"] = _untimed(json.loads(line))
        else:
            found[name] = path.read_bytes().hex()
    return {
        k: hashlib.sha256(json.dumps(v, sort_keys=True).encode()).hexdigest()
        for k, v in found.items()
    }


def differing(whole: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """What two runs do not have in common."""
    return sorted(k for k in {*whole, *other} if whole.get(k) != other.get(k))


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _untimed(v) for k, v in value.items() if k != "seconds"}
    return [_untimed(v) for v in value] if isinstance(value, list) else value


def _experiment(name: str, workers: int) -> str:
    clients, options = STRATEGIES[name]
    return f"""\
archgraph: 1
name: killed
family: {{archgraph: 1, name: killed, model: {MODEL}, clients: {clients}}}
data: {{dataset: digits, limit: 200, partition: {{scheme: dirichlet, alpha: 0.5}}}}
strategy: {{{name}: {options}}}
rounds: {STAGES[0][0]}
sample: 0.75
local: {{batch: 16, lr: 0.05, momentum: 0.9}}
evaluate: {{every: 2}}
{"public: 40" if name == "fedmd" else ""}
engine: {{workers: {workers}}}
seed: 0
"""


def _rows(reports: Mapping[str, Report]) -> Iterator[dict[str, object]]:
    """Yield the figures of each strategy."""
    for name, report in reports.items():
        yield {
            "strategy": name,
            "kills": report.kills,
            "before the run began": report.early,
            "while writing": report.writing,
            "runs": report.runs,
            "prolonged runs": report.longer,
            "equal bits": report.runs - len(report.faults),
            "dead ends": sum(fault.startswith("dead") for fault in report.faults),
            "date": datetime.date.today(),
        }


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
