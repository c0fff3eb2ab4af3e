"""Changes of each round: for each parameter, the norm of its change and its trained fraction.

``changes.jsonl`` in the run folder has a line per round, with a value for each parameter of
``models/global.yaml``. It is used only for plots, and runs do not depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError, model_validator
from torch import Tensor

from archgraph.errors import RunError
from archgraph.federation import GLOBAL, Result, ServerState
from archgraph.files import write
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json, json_safe
from archgraph.states import Transfer, signature
from archgraph.states.coverage import Coverage, Term
from archgraph.states.state import widened

FILE = "changes.jsonl"
# Digits of every number, more than plots need.
DIGITS = 4
# Number of sets of transfers whose coverage is cached. Methods that draw submodels have one set per
# round.
REMEMBERED = 64

_Way = tuple[Transfer, frozenset[str]]
_T = TypeVar("_T")


class RoundChange(BaseModel, strict=True, frozen=True, allow_inf_nan=False):
    """The changes of a round, with a value for each parameter of the global model, in order.

    Attributes:
        round: Number of the round, from 1.
        norm: For each parameter, the Euclidean norm of its change in the round; None if not finite.
        coverage: For each parameter, the fraction of its values that at least one accepted update
            contains. None if the strategy's tasks lack transfers.
    """

    round: int
    norm: Sequence[float | None]
    coverage: Sequence[float] | None = None

    @model_validator(mode="after")
    def _of_one_model(self) -> RoundChange:
        if self.coverage is not None and len(self.coverage) != len(self.norm):
            raise ValueError(f"{len(self.norm)} norms, but {len(self.coverage)} coverages")
        return self


class Changes:
    """Computes the lines of ``changes.jsonl``, one per round.

    Args:
        graph: The global model.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self._names = parameters(graph)
        self._source = signature(graph)
        # Transfers are compared by identity, since a digest may take longer than a round.
        self._ways: dict[tuple[int, frozenset[str]], _Way] = {}
        self._unknown = True
        self._known: dict[frozenset[tuple[int, frozenset[str]]], tuple[list[_Way], Json]] = {}

    def noted(self, results: Iterable[Result]) -> Iterator[Result]:
        """Yield the results of a round, and record which part of each parameter they contain."""
        self._ways, self._unknown = {}, False
        return self._note(results)

    def _note(self, results: Iterable[Result]) -> Iterator[Result]:
        for result in results:
            transfer, unmerged = result.transfer, frozenset(result.unmerged)
            key = (id(transfer), unmerged)
            if transfer is None or transfer.source != self._source:
                self._unknown = True
            elif key not in self._ways:
                self._ways[key] = transfer, unmerged
            # Released before the next client works, so that only one update is in memory.
            yield result
            del result

    def line(self, round: int, before: ServerState, after: ServerState) -> dict[str, Json] | None:
        """Return the line of a round; None if the server lacks weights of the global model."""
        old, new = before.group(GLOBAL), after.group(GLOBAL)
        if not self._names or any(name not in old or name not in new for name in self._names):
            return None
        norms = [_distance(old[name], new[name]) for name in self._names]
        line: dict[str, Json] = {"round": round, "norm": _short(torch.stack(norms).tolist())}
        known = self._ways or not self._unknown
        return json_safe(line | ({"coverage": self._coverage()} if known else {}))

    def _coverage(self) -> Json:
        key = frozenset(self._ways)
        if key not in self._known:
            if len(self._known) == REMEMBERED:
                self._known.clear()
            # The transfers are kept with the result, so that their ids are not reused.
            ways = list(self._ways.values())
            self._known[key] = ways, self._shares(ways)
        return self._known[key][1]

    def _shares(self, ways: Iterable[_Way]) -> Json:
        """Return the covered fraction of each parameter's values."""
        terms: dict[str, list[Term]] = {name: [] for name in self._names}
        for transfer, unmerged in ways:
            for name, entry in transfer.entries.items():
                if name not in unmerged and entry.source in terms:
                    terms[entry.source].append(Term.of(entry))
        shapes = {slot.name: slot.shape for slot in self._source if slot.name in terms}
        covered = Coverage(shapes, terms)
        return _short(covered.share(name) for name in self._names)


def _distance(before: Tensor, after: Tensor) -> Tensor:
    """Return the Euclidean norm of a change."""
    moved = widened(after) - widened(before)
    # Squares of small changes are summed in double precision.
    return torch.linalg.vector_norm(
        moved.abs() if moved.is_complex() else moved, dtype=torch.float64
    )


def evenly(items: Sequence[_T], most: int) -> Sequence[_T]:
    """Return at most ``most`` items: the first, the last, and evenly spaced items between them.

    >>> evenly(range(1, 300), 4), evenly("ab", 4)
    ([1, 100, 200, 299], ['a', 'b'])
    """
    last, many = len(items) - 1, min(len(items), most)
    return [items[round(i * last / max(many - 1, 1))] for i in range(many)]


def _short(values: Iterable[float]) -> Json:
    return [float(f"{x:.{DIGITS}g}") for x in values]


def parameters(graph: ArchGraph) -> tuple[str, ...]:
    """Return the names of the parameters that each line describes, in order."""
    return tuple(param.name for param in graph.params if param.role == "parameter")


def append(folder: Path, line: Json) -> None:
    """Append the line of a round to ``changes.jsonl``."""
    # Not synced to disk: runs do not depend on it.
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def keep_until(folder: Path, round: int) -> None:
    """Remove the lines of rounds after ``round``, and everything from a damaged line on."""
    path = folder / FILE
    if not path.is_file():
        return
    content, intact = path.read_bytes(), b""
    for text in content.splitlines(keepends=True):
        try:
            if not text.endswith(b"\n") or RoundChange.model_validate_json(text).round > round:
                break
        except ValidationError:
            break
        intact += text
    if intact != content:
        write(path, intact)


def read_changes(folder: Path, graph: ArchGraph) -> tuple[RoundChange, ...]:
    """Read the changes of all rounds of a run. A truncated last line is ignored.

    Args:
        folder: The run folder. If it has no ``changes.jsonl``, the result is empty.
        graph: The run's global model.

    Raises:
        RunError: If a line is damaged, or describes another model.
    """
    path, count, lines = folder / FILE, len(parameters(graph)), []
    content = path.read_bytes() if path.is_file() else b""
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        where = f"{path}:{number}"
        try:
            line = RoundChange.model_validate_json(text)
        except ValidationError as error:
            raise RunError("damaged line", where=where, found=error.errors()[0]["msg"]) from error
        if (norms := len(line.norm)) != count:
            raise RunError(
                "describes another model", where=where, found=f"{norms} parameters", expected=count
            )
        lines.append(line)
    return tuple(lines)
