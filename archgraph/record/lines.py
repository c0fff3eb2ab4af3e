"""The lines of ``metrics.jsonl``: one per round, each as a run writes it."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from archgraph.errors import RunError
from archgraph.plain import Json


def brief(error: Exception) -> str:
    """Return the first mistake that pydantic or json names, in one line."""
    return str(error).partition(" [type=")[0].replace("\n", " ")


class _Read(BaseModel):
    """A part of a line, as far as anything reads it; it may hold more."""

    # Extra keys pass: lines of other versions, and metrics of any name.
    model_config = ConfigDict(strict=True)


class _Report(_Read):
    """What became of a client."""

    client: int
    name: str = ""
    reason: str = ""
    malicious: bool = False
    seen: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0


class _Evaluation(_Read):
    """Figures of all models."""

    models: dict[str, dict[str, Json]] = {}
    worst: dict[str, Json] | None = None
    local: dict[str, Json] | None = None
    untuned: list[_Report] = []


class _Line(_Read):
    """One round."""

    round: int
    clients: list[_Report] = []
    rejected: list[_Report] = []
    failed: list[_Report] = []
    evaluation: _Evaluation | None = None
    seconds: dict[str, float] = {}


def parsed(content: bytes, path: Path) -> list[dict[str, Json]]:
    r"""Return the complete lines; a last one that was cut off is dropped.

    Args:
        content: Of the file.
        path: Of the file, for errors.

    Raises:
        RunError: If any other line is not that of a round; names it.

    Example:
        >>> parsed(b'{"round": 1}\n{"rou', Path("metrics.jsonl"))
        [{'round': 1}]
    """
    lines: list[dict[str, Json]] = []
    # What follows the last newline was cut off; without a cut it is empty.
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            _Line.model_validate(line)
        except (ValueError, RecursionError) as error:
            raise RunError("damaged line", where=f"{path}:{number}", found=brief(error)) from error
        lines.append(line)
    return lines
