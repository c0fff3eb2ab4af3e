"""Malformed YAML, run folders, weights, updates and ONNX files: ``python -m tests.trust.fuzz``.

Cases are seeded mutations of valid ones, used as a person or a run would use them. Each must be
refused with an error of archgraph or work; anything else is a fault: another exception, more than 5
seconds or 1 GiB, a process that dies, or a file that is written or removed outside the run folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import sheets
from tests.language import fuzzing
from tests.language.fuzzing import Result, Stage
from tests.trust.folders import broken_folder, use_folder
from tests.trust.forks import Tell, forked
from tests.trust.onnx_files import use_onnx, valid_file
from tests.trust.updates import use_update, valid_update
from tests.trust.weights import use_weights

MEMORY = 8 * 2**30  # of a whole process; that of a case is measured
PATIENCE = 60.0  # seconds until a case counts as one that hangs, whatever it waits for

Use = Callable[[random.Random, Path, Stage], None]
USES: Mapping[str, Use] = {
    "run folders": use_folder,
    "weights": use_weights,
    "updates": use_update,
    "ONNX files": use_onnx,
}
KINDS = ("YAML", *USES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Use many mutations; 0 where none does harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="these kinds only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a CSV file")
    options = parser.parse_args(arguments)
    kinds = options.kind or KINDS
    found: dict[str, list[Result]] = {}
    for at, kind in enumerate(kinds):
        count = (at + 1) * options.count // len(kinds) - at * options.count // len(kinds)
        found[kind] = list(run(kind, options.seed, count))
        outcomes = Counter(result.outcome for result in found[kind])
        print(kind, dict(outcomes), flush=True)  # noqa: T201 - the command's product
        for result in found[kind]:
            if result.fault:
                print(result, flush=True)  # noqa: T201 - the command's product
    if options.write:
        sheets.update(options.write, _rows(found), "mutations of")
    return 1 if any(result.fault for results in found.values() for result in results) else 0


def run(kind: str, seed: int, count: int) -> Iterator[Result]:
    """Results in order; a process that dies or hangs is replaced."""
    if kind == "YAML":
        fuzzing.sources()
    elif kind == "ONNX files":
        valid_file()
    else:
        broken_folder()
        valid_update()
    at = 0
    while at < count:
        begin = at

        def cases(tell: Tell, begin: int = begin) -> None:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                if kind == "YAML":
                    shutil.copytree(fuzzing.SPECS, folder, dirs_exist_ok=True)
                for number in range(begin, count):
                    tell(dataclasses.asdict(_one(kind, seed, number, folder)))

        try:
            for told in forked(cases, PATIENCE, MEMORY):
                yield Result(**told)
                at += 1
        except RuntimeError as error:
            yield Result(at, "crash", message=str(error)[-1200:])
            at += 1
            continue
        if at < count:
            yield Result(at, "died", message="ended without a word, or hung")
            at += 1


def _one(kind: str, seed: int, number: int, folder: Path) -> Result:
    """One case, in a process of its own kind, with an eye on what it writes."""
    watch = _watch()
    if kind == "YAML":
        watch.allowed = (str(folder), "/proc")
        result = fuzzing.measured(fuzzing.case(seed, number), folder)
    else:
        place = folder / str(number)
        watch.allowed = (str(place), "/proc")
        rng = random.Random(f"{seed}/{kind}/{number}")
        attempt = functools.partial(fuzzing.clocked, lambda s: USES[kind](rng, place, s))
        result = fuzzing.observed(number, attempt)
        watch.allowed = (str(folder),)
        shutil.rmtree(place, ignore_errors=True)
    if watch.seen and not result.fault:
        result = dataclasses.replace(result, outcome="wrote", message=str(watch.seen[:5]))
    watch.seen.clear()
    return result


class Watch:
    """An audit hook that notes what is written or removed elsewhere.

    Attributes:
        allowed: Folders in which anything may be written.
        seen: What was done outside them.
    """

    CHANGES = frozenset({
        "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate",
        "os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "subprocess.Popen",
        "os.system", "socket.connect",
    })  # fmt: skip

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.seen: list[str] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python for every event."""
        if event == "open":
            path, _, flags = args
            wrong = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._outside(path)
        else:
            # A folder that is open (dir_fd) was opened inside.
            relative = isinstance(args[-1] if args else None, int) and args[-1] >= 0
            wrong = event in self.CHANGES and not relative and self._outside(args[0])
        if wrong:
            self.seen.append(f"{event} {args[0]!r}")

    def _outside(self, path: Any) -> bool:
        if isinstance(path, int) or path in (None, os.devnull, b"/dev/null"):
            return False
        full = os.path.realpath(os.fsdecode(path))
        return not any(full == a or full.startswith(a + os.sep) for a in self.allowed)


@functools.cache
def _watch() -> Watch:
    """The one of this process: hooks stay."""
    return Watch()


def _rows(found: Mapping[str, Sequence[Result]]) -> Iterator[dict[str, object]]:
    """Yield the figures of each kind of file."""
    for kind, results in found.items():
        counts = Counter(r.outcome for r in results)
        yield {
            "mutations of": kind,
            "cases": len(results),
            "refused": counts["rejected"],
            "worked": counts["loaded"],
            "faults": sum(bool(r.fault) for r in results),
            "slowest, s": round(max(r.seconds for r in results), 1),
            "most memory, MiB": round(max(r.peak for r in results) / 2**20),
            "date": datetime.date.today(),
        }


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
