"""What every examination of the zoo reports, and how checks run one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import pydantic


@dataclass(frozen=True)
class Failure:
    """A check that a model does not pass: its error, and where in archgraph it arose."""

    check: str
    error: str
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What one examination found; plain values only, so that it travels as JSON."""

    parameters: int = 0
    memory: int = 0  # largest resident size of its process, in bytes
    seconds: dict[str, float] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()  # a check and why it was not run
    refused: tuple[tuple[str, str], ...] = ()  # what is not exported, and why
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a refusal is not a failure."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL``, or ``refused`` if something was refused with a reason."""
        return "FAIL" if not self.ok else "refused" if self.refused else "pass"

    def to_json(self) -> dict[str, Any]:
        """As plain dicts, lists and numbers."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        return pydantic.TypeAdapter(cls).validate_python(data)


Kind = TypeVar("Kind", bound=Findings)


class Checks:
    """Runs checks one by one; a failure is recorded and the next one runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.passed: list[str] = []
        self.failures: list[Failure] = []
        self.left_out: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        except Exception as error:
            self.failures.append(Failure(name, _first_line(error), _place(error)))
        else:
            self.passed.append(name)
        finally:
            self.seconds[name] = round(time.process_time() - start, 4)

    def report(self, kind: type[Kind], /, **figures: Any) -> Kind:
        """The findings of a kind, with what the checks gave."""
        return kind(
            **figures,
            seconds=dict(self.seconds),
            passed=tuple(self.passed),
            failures=tuple(self.failures),
            left_out=tuple(self.left_out),
        )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _place(error: Exception) -> str:
    """The last frames of this project, innermost first."""
    home = Path(__file__).resolve().parents[2]
    frames = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(home) and ".venv" not in path.parts:
            frames.append(f"{path.relative_to(home)}:{frame.lineno} {frame.name}")
    return " < ".join(frames[:-4:-1])
