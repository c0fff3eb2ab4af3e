"""Examine the zoo: ``python -m tests.zoo --jobs 2 --write docs/measured/zoo.csv``.

With ``--exam growth`` models are widened, deepened and split instead of cut, with ``--exam
hypernet`` their weights are generated, with ``--exam onnx`` they are exported, with ``--exam
skips`` each of their blocks is removed. ``docs/measured/index.md`` explains the columns.
Each model runs in a process of its own, bounded in memory and time. With ``--log`` an interrupted
run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.zoo import exam, exported, growth, hypernet, skips, table, tables
from tests.zoo.collection import GROUPS, Entry, entries, entry
from tests.zoo.report import Failure

GIGABYTES = 10  # of private memory for a model, 22 for one that runs alone
MINUTES = {"quick": 15, "full": 60}


class Exam(NamedTuple):
    """One way to examine a model, and how its reports are shown.

    ``figures`` are the columns of a model's row; ``also`` names a second file and gives its rows.
    """

    examine: Any
    report: Any
    line: Any
    figures: Any
    also: tuple[str, Any] | None = None


EXAMS = {
    "cuts": Exam(exam.examine, exam.Report, table.line, table.figures),
    "growth": Exam(
        growth.examine, growth.Report, growth.line, growth.figures, ("reasons", growth.reasons)
    ),
    "hypernet": Exam(
        hypernet.examine, hypernet.Report, hypernet.line, hypernet.figures,
        ("slots", hypernet.slots),
    ),
    "onnx": Exam(exported.examine, exported.Report, exported.line, exported.figures),
    "skips": Exam(skips.examine, skips.Report, skips.line, skips.figures),
}  # fmt: skip
Key = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the chosen models; 0 where all of them pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--exam", choices=EXAMS, default="cuts")
    parser.add_argument("--group", choices=GROUPS, action="append", help="these groups only")
    parser.add_argument(
        "--only", metavar="PATTERN", nargs="+", help="models by name, e.g. 'resnet*', in this order"
    )
    parser.add_argument("--level", choices=("quick", "full"), default="quick")
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        metavar="N",
        help="models at a time; 0: in this process, unbounded",
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="add each report to a file as it comes; what passes there is not examined again",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="begin no model after this time; those left are said to be not examined",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a CSV file")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="with --write: models that are not examined stay as the file has them",
    )
    parser.add_argument("--one", metavar="GROUP/NAME", help="examine here and print the report")
    options = parser.parse_args(arguments)
    if options.one:
        return _one(options.one, options.level, EXAMS[options.exam])

    groups = options.group or GROUPS
    every = [e for group in groups for e in entries(group)]
    wanted = [e for only in options.only or "*" for e in every if fnmatch.fnmatch(e.name, only)]
    chosen = list({(e.group, e.name): e for e in wanted}.values())
    if not chosen:
        parser.error("no such model")
    start = time.perf_counter()
    end = math.inf if options.minutes is None else start + 60 * options.minutes
    reports = _run(chosen, options.exam, options.level, options.jobs, options.log, end)
    found = [(e, reports[e.group, e.name]) for e in every if (e.group, e.name) in reports]
    if len(found) < len(chosen):
        print(f"{len(chosen) - len(found)} of {len(chosen)} not examined")  # noqa: T201 - the command's product
    passed = sum(r.ok for _, r in found)
    print(f"{passed} of {len(found)} pass, {time.perf_counter() - start:.0f} s")  # noqa: T201 - the command's product
    if options.write:
        kind = EXAMS[options.exam]
        tables.write(options.write, found, kind.figures, kind.also, keep=options.keep)
    return 0 if passed == len(found) else 1


def _run(
    chosen: Sequence[Entry], kind: str, level: str, jobs: int, log: Path | None, end: float
) -> dict[Key, Any]:
    """Reports by model; those that need the machine for themselves come last."""
    reports = _logged(chosen, kind, level, log)
    talk = threading.Lock()

    def examined(item: Entry) -> None:
        begin = time.perf_counter()
        if begin > end:
            return
        report = _subprocess(item, kind, level) if jobs else _here(item, level, EXAMS[kind])
        with talk:
            reports[item.group, item.name] = report
            if log:
                entry_ = {"exam": kind, "group": item.group, "name": item.name, "level": level}
                with log.open("a") as file:
                    file.write(json.dumps({**entry_, **report.to_json()}) + "\n")
            count = f"{len(reports):3}/{len(chosen)}"
            shown = EXAMS[kind].line(item, report, time.perf_counter() - begin)
            print(count, shown, flush=True)  # noqa: T201 - progress

    for several, group in ((jobs, False), (1, True)):
        with ThreadPoolExecutor(several or 1) as pool:
            due = [e for e in chosen if e.heavy is group and (e.group, e.name) not in reports]
            list(pool.map(examined, due))
    return reports


def _logged(chosen: Sequence[Entry], kind: str, level: str, log: Path | None) -> dict[Key, Any]:
    """Reports of an earlier run that passed, at this level or at full."""
    wanted = {(e.group, e.name) for e in chosen}
    found: dict[Key, Any] = {}
    for text in log.read_text().splitlines() if log and log.exists() else ():
        data = json.loads(text)
        key, at = (data.pop("group"), data.pop("name")), data.pop("level")
        if data.pop("exam", "cuts") != kind:
            continue
        report = EXAMS[kind].report.from_json(data)
        if key in wanted and at in (level, "full") and report.ok:
            found[key] = report
    return found


def _subprocess(item: Entry, kind: str, level: str) -> Any:
    command = [sys.executable, "-m", "tests.zoo", "--one", f"{item.group}/{item.name}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    limit = 60 * MINUTES[level]
    report = EXAMS[kind].report
    try:
        done = subprocess.run(
            [*command, "--exam", kind, "--level", level],
            capture_output=True, text=True, timeout=limit, env=environment, check=False,
            cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return report(failures=(Failure("time", f"not done after {limit} s"),))
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        lines = done.stderr.strip().splitlines() or ["no output"]
        return report(failures=(Failure("process", f"ended with {done.returncode}: {lines[-1]}"),))
    return report.from_json(json.loads(last))


def _one(name: str, level: str, kind: Exam) -> int:
    """The report of one model as the last line of the output."""
    item = entry(name)
    bound = (22 if item.heavy else GIGABYTES) * 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    report = _here(item, level, kind)
    print(json.dumps(report.to_json()))  # noqa: T201 - the command's product
    return 0


def _here(item: Entry, level: str, kind: Exam) -> Any:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        report = kind.examine(item.make(), level, item.name)
    except Exception as error:  # the model itself: it has no room, or cannot be made
        return kind.report(failures=(Failure("model", f"{type(error).__name__}: {error}"),))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return dataclasses.replace(report, memory=peak)


if __name__ == "__main__":
    sys.exit(main())
