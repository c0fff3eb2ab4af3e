"""Read the lines of ``metrics.jsonl``, which has one line per round."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from archgraph.errors import RunError
from archgraph.plain import Json


def brief(error: Exception) -> str:
    """Return the first error that pydantic or json reports, in one line."""
    return str(error).partition(" [type=")[0].replace("\n", " ")


class _Line(BaseModel, strict=True):
    """The keys of a line that every reader needs. A line may contain more keys."""

    round: int


def parsed(content: bytes, path: Path) -> list[dict[str, Json]]:
    r"""Return the complete lines; a truncated last line is ignored.

    Args:
        content: Content of the file.
        path: Path of the file, for errors.

    Raises:
        RunError: If another line is damaged; names the line.

    Example:
        >>> parsed(b'{"round": 1}\n{"rou', Path("metrics.jsonl"))
        [{'round': 1}]
    """
    lines: list[dict[str, Json]] = []
    # The text after the last newline is a truncated line, or empty.
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            _Line.model_validate(line)
        except (ValueError, RecursionError) as error:
            raise RunError("damaged line", where=f"{path}:{number}", found=brief(error)) from error
        lines.append(line)
    return lines
