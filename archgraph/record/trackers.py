"""Trackers, which log every round to files or the console, in addition to `metrics.jsonl`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from archgraph.errors import ArchGraphError, RunError
from archgraph.files import write
from archgraph.hints import optional_module, unknown
from archgraph.language.elsewhere import suggestion
from archgraph.plain import Json
from archgraph.record.points import frame, points
from archgraph.record.progress import judge_of, measured
from archgraph.tables import plural


@dataclass(frozen=True)
class Beginning:
    """The data that a tracker receives before the first round.

    Attributes:
        name: Name of the experiment.
        rounds: Number of rounds.
        settings: All settings that affect the results, as JSON values.
        folder: The run folder, if any.
        lines: The lines of earlier rounds, if the run is resumed.
    """

    name: str
    rounds: int
    settings: Mapping[str, Json]
    folder: Path | None
    lines: Sequence[Mapping[str, Json]] = ()


class Tracker(Protocol):
    """An object that receives every line of ``metrics.jsonl``. Its errors do not stop the run."""

    def begin(self, run: Beginning) -> None:
        """Handle the start or the resumption of a run."""

    def round(self, line: Mapping[str, Json]) -> None:
        """Handle the end of a round. ``line`` is the round's line of ``metrics.jsonl``."""

    def end(self) -> None:
        """Handle the end of the run, which may have been interrupted."""


@dataclass
class CsvTracker:
    """Writes a CSV file with a row for each value: round, part, group, metric, value.

    Attributes:
        path: The file. Default: ``metrics.csv`` in the run folder.
    """

    path: str | os.PathLike[str] | None = None
    _file: Path = field(default=Path(), init=False)

    def begin(self, run: Beginning) -> None:
        """Write the header and, if the run is resumed, the values of earlier rounds."""
        self._file = _place(self.path, run, "csv", "metrics.csv")
        write(self._file, frame(run.lines).to_csv(index=False))

    def round(self, line: Mapping[str, Json]) -> None:
        """Append the values of a round."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(frame([line]).to_csv(index=False, header=False))

    def end(self) -> None:
        """Do nothing, since the file is complete after every round."""


def _place(path: str | os.PathLike[str] | None, run: Beginning, tracker: str, name: str) -> Path:
    """Return the path of a tracker's output: its option ``path``, or a name in the run folder."""
    if path is not None:
        return Path(path)
    if run.folder is None:
        raise RunError(
            "has no path to write to, since the run has no folder",
            where=f"trackers: {tracker}",
            hint=f"name a run folder (out), or write {{{tracker}: {{path: {name}}}}}",
        )
    return run.folder / name


@dataclass
class ConsoleTracker:
    """Prints a line per round on standard error."""

    stream: TextIO | None = None
    _rounds: int = field(default=0, init=False)

    def begin(self, run: Beginning) -> None:
        """Store the number of rounds, and print after which round a run resumes."""
        self._rounds = run.rounds
        if run.lines:
            done = run.lines[-1]["round"]
            ended = done >= run.rounds
            self._say("all rounds are done" if ended else f"resumes after round {done}")

    def round(self, line: Mapping[str, Json]) -> None:
        """Print the line."""
        parts = [plural(len(line.get("clients", ())), "client")]
        for key, word in (("rejected", "rejected"), ("failed", "failed")):
            if line.get(key):
                parts.append(f"{len(line[key])} {word}")
        for key, where in (("evaluation", ""), ("validation", "validation ")):
            block = line.get(key) or {}
            judge = judge_of(block)
            if "global" in block:
                parts.append(f"{where}{judge} {measured(judge, block['global'].get(judge))}")
        seconds = line.get("seconds", {}).get("total", 0.0)
        parts += [f"{seconds:.1f} s", *filter(None, [line.get("stopped")])]
        self._say(f"round {line['round']} of {self._rounds}: {', '.join(parts)}")

    def end(self) -> None:
        """Do nothing."""

    def _say(self, text: str) -> None:
        stream = self.stream or sys.stderr
        stream.write(f"{text}\n")
        stream.flush()


@dataclass
class TensorBoardTracker:
    """Writes event files for TensorBoard.

    Attributes:
        path: Folder of the files. Default: ``tensorboard`` in the run folder.
    """

    path: str | None = None
    _writer: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Check that the package is installed."""
        optional_module("tensorboard", kind=RunError, where="tensorboard")

    def begin(self, run: Beginning) -> None:
        """Open the files, and remove values of rounds that a resumed run repeats."""
        folder = _place(self.path, run, "tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run repeats rounds, whose earlier values must be removed.
        self._writer = SummaryWriter(str(folder), purge_step=len(run.lines) + 1)

    def round(self, line: Mapping[str, Json]) -> None:
        """Write the values of a round as scalars."""
        for point in points(line):
            if math.isfinite(point.value):
                self._writer.add_scalar(point.tag, point.value, point.round)
        self._writer.flush()

    def end(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()


TRACKERS: Mapping[str, Callable[..., Tracker]] = {
    "console": ConsoleTracker,
    "csv": CsvTracker,
    "tensorboard": TensorBoardTracker,
}
"""Dict from name to tracker."""


def tracker(choice: object) -> Tracker:
    """Create a tracker from its name and options, or return the caller's own tracker object.

    Raises:
        RunError: If the name is unknown, an option is invalid, or a package is not installed.

    Example:
        >>> tracker({"csv": {"path": "figures.csv"}}).path
        'figures.csv'
    """
    if isinstance(choice, Mapping):
        name, options = next(iter(choice.items()))
    elif isinstance(choice, str):
        name, options = choice, None
    elif all(callable(getattr(choice, method, None)) for method in ("begin", "round", "end")):
        return choice  # type: ignore[return-value]  # it has the methods
    else:
        expected = "a name, or an object with begin, round and end"
        raise RunError(
            "is not a tracker", where="trackers", found=type(choice).__name__, expected=expected
        )
    if name not in TRACKERS:
        mistake = unknown(str(name), TRACKERS)
        mistake["hint"] = suggestion(str(name), TRACKERS)
        raise RunError("unknown tracker", where="trackers", **mistake)
    if not isinstance(options, Mapping | None):
        expected = f"options by name, e.g. {{{name}: {{path: figures.csv}}}}"
        raise RunError("has invalid options", where="trackers", found=options, expected=expected)
    takes = ("path",) if hasattr(TRACKERS[name], "path") else ()
    for key, value in (options or {}).items():
        where = f"trackers.{name}.{key}"
        if key not in takes:
            raise RunError("unknown option", where=where, **unknown(key, takes))
        if not isinstance(value, str | os.PathLike | None):
            raise RunError("has a wrong value", where=where, found=repr(value), expected="text")
    return TRACKERS[name](**(options or {}))


class Trackers:
    """The trackers of a run. A tracker that fails is not called again.

    Attributes:
        notes: Descriptions of the failures, with their rounds.
    """

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._trackers = list(trackers)
        self.notes: list[str] = []

    def begin(self, run: Beginning) -> None:
        """Call ``begin`` of each tracker.

        Raises:
            ArchGraphError: If a tracker cannot be used as requested.
        """
        self._call("before the first round", lambda one: one.begin(run), strict=True)

    def round(self, line: Mapping[str, Json]) -> None:
        """Call ``round`` of each tracker."""
        self._call(f"in round {line['round']}", lambda one: one.round(line))

    def end(self) -> None:
        """Call ``end`` of each tracker."""
        # Only once, since an interrupted run calls this method twice.
        self._call("at the end", lambda one: one.end())
        self._trackers = []

    def _call(self, when: str, say: Callable[[Tracker], None], *, strict: bool = False) -> None:
        for one in list(self._trackers):
            try:
                say(one)
            except Exception as error:  # the run continues after any error of a service
                if strict and isinstance(error, ArchGraphError):
                    raise
                self._trackers.remove(one)
                name = type(one).__name__
                self.notes.append(f"{name} failed {when}: {type(error).__name__}: {error}")
