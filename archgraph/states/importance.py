"""Importance scores of the positions of a network's axes, and of its blocks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from archgraph.analysis.axes import Axis
from archgraph.errors import RejectedUpdate, RewriteError, os_reason
from archgraph.files import write
from archgraph.hints import unknown
from archgraph.states.wire import decode, encode
from archgraph.tables import Table, plural

# Heights of a table's bars, from zero to the largest score.
_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 16  # number of bars
AxisChoice: TypeAlias = Axis | str


@dataclass(frozen=True, repr=False)
class Importance:
    """Importance scores of blocks and of the positions of axes (such as single channels).

    Attributes:
        positions: Dict from axis name to one nonnegative score per position (index along the axis).
            Higher is more important. Accepts any sequence of numbers, a tensor or an array.
        blocks: Dict from block name to the importance of the block.
        method: Name of the method that computed the scores; shown in tables.

    Raises:
        RewriteError: If scores are negative, not finite, or not a list of numbers.

    Example:
        >>> scores = Importance({"fc1.out": [0.125, 0.5, 0.0, 0.375]})
        >>> scores.best("fc1.out", 2), scores.kept("fc1.out", 2)
        (array([1, 3]), 0.875)
        >>> print(scores.table())
        Importance by weights
        axis     positions  best half has  scores, in order
        ────────────────────────────────────────────────────
        fc1.out          4           88 %  ▂█ ▆
    """

    positions: Mapping[str, Sequence[float]]
    blocks: Mapping[str, float] = field(default_factory=dict)
    method: str = "weights"

    def __post_init__(self) -> None:
        scores = {name: _scores(name, values) for name, values in self.positions.items()}
        object.__setattr__(self, "positions", scores)

    def of(self, axis: AxisChoice) -> npt.NDArray[np.float64]:
        """Return the scores of an axis.

        Args:
            axis: The axis or its name. For an axis, the number of scores must equal its size.

        Raises:
            RewriteError: If the axis has no scores, or their number differs from the axis' size.
        """
        name = axis.name if isinstance(axis, Axis) else axis
        if name not in self.positions:
            raise RewriteError(
                "no importance scores for this axis", where=name, **unknown(name, self.positions)
            )
        scores = self.positions[name]
        if isinstance(axis, Axis) and len(scores) != axis.size:
            raise RewriteError(
                "the number of scores does not match the size of the axis",
                where=name,
                found=plural(len(scores), "score"),
                expected=plural(axis.size, "position"),
            )
        return np.asarray(scores)

    def best(self, axis: AxisChoice, count: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices of the highest scores of an axis; lower indices win ties.

        Args:
            axis: As in :meth:`of`.
            count: Number of positions.

        Raises:
            RewriteError: As in :meth:`of`.
        """
        # Double precision and a stable sort: ties are resolved in the same way on every machine.
        return np.sort(np.argsort(-self.of(axis), kind="stable")[:count])

    def kept(self, axis: AxisChoice, count: int) -> float:
        """Return the fraction of an axis' total score that belongs to the ``count`` best positions.

        Args:
            axis: As in :meth:`of`.
            count: Number of positions to keep.

        Raises:
            RewriteError: As in :meth:`of`.
        """
        scores = self.of(axis)
        total = math.fsum(scores)
        if not total:
            return min(count, len(scores)) / len(scores)
        return min(math.fsum(scores[self.best(axis, count)]) / total, 1.0)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the scores to a safetensors file atomically and return its path.

        Raises:
            RunError: If the file cannot be written.

        Example:
            >>> import tempfile
            >>> scores = Importance({"fc1.out": [0.25, 0.75]}, {"layer1.1": 0.5})
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Importance.load(scores.save(f"{folder}/scores.safetensors")) == scores
            True
        """
        content = {
            "importance": 1,
            "method": self.method,
            "positions": {
                name: torch.tensor(scores, dtype=torch.float64)
                for name, scores in self.positions.items()
            },
            "blocks": dict(self.blocks),
        }
        return write(path, encode(content))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Importance:
        """Read scores written by :meth:`save`.

        Raises:
            RewriteError: If the file is missing or does not contain scores.
        """
        problem, expected = "cannot read importance", "a file that Importance.save wrote"
        try:
            content = decode(Path(path).read_bytes())
            if content.pop("importance") != 1:
                raise ValueError("another version")
            return cls(**content)
        except OSError as error:
            raise RewriteError(
                problem, where=str(path), found=os_reason(error), expected=expected
            ) from None
        except (RejectedUpdate, LookupError, TypeError, ValueError, AttributeError) as error:
            raise RewriteError(problem, where=str(path), found=error, expected=expected) from error

    def plain(self) -> Mapping[str, Any]:
        """Return a dict from axis to scores.

        If blocks have scores, return a dict with all attributes instead.
        """
        if not self.blocks:
            return dict(self.positions)
        return {
            "positions": dict(self.positions), "blocks": dict(self.blocks), "method": self.method
        }  # fmt: skip

    def table(self) -> Table:
        """Return a table with a row per axis.

        The columns are the number of positions, the fraction of the axis' total score that belongs
        to the best half of the positions, and a bar chart of the scores.
        """
        half = {name: self.kept(name, (len(s) + 1) // 2) for name, s in self.positions.items()}
        rows = tuple(
            (name, str(len(scores)), f"{100 * half[name]:.0f} %", _bars(scores))
            for name, scores in self.positions.items()
        )
        columns = ("axis", "positions", "best half has", "scores, in order")
        scored = ", ".join(f"{name} {score:.3g}" for name, score in self.blocks.items())
        note = f"influence of blocks: {scored}" if scored else ""
        return Table(f"Importance by {self.method}", columns, rows, frozenset({1, 2}), note=note)

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        axes = plural(len(self.positions), "axis", "axes")
        return f"<Importance by {self.method}: {axes}, {plural(len(self.blocks), 'block')}>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


# Scores, a mapping from axis to scores, a mapping with the fields of Importance, or a file.
Scores: TypeAlias = "Importance | Mapping[str, Any] | str | os.PathLike[str]"


def scores_of(value: Scores) -> Importance:
    """Convert an argument to scores.

    Raises:
        RewriteError: If the argument does not contain scores.
    """
    if isinstance(value, Importance):
        return value
    if not isinstance(value, Mapping):
        return Importance.load(value)
    # An axis maps to a list of scores, so an axis may be called `positions`.
    long = isinstance(value.get("positions"), Mapping)
    return Importance(**value) if long else Importance(value)


def _scores(name: str, values: object) -> tuple[float, ...]:
    """Return the scores of an axis as plain numbers."""
    try:
        scores = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        scores = torch.empty(0)
    if scores.dim() != 1 or not len(scores) or not bool((scores.isfinite() & (scores >= 0)).all()):
        raise RewriteError(
            "not scores of positions",
            where=f"importance of {name}",
            found=str(values)[:60],
            expected="a finite number of at least 0 per position",
        )
    return tuple(scores.tolist())


def _bars(scores: Sequence[float]) -> str:
    """Draw scores as bars; where there are many, average neighbours."""
    columns = np.array_split(np.asarray(scores), min(len(scores), _COLUMNS))
    heights = np.array([column.mean() for column in columns])
    top = max(float(heights.max()), 1e-300)
    return "".join(_BARS[math.ceil(round(h / top * (len(_BARS) - 1), 9))] for h in heights)
