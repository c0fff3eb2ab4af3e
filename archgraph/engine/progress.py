"""What a person sees of a run: bars while it runs, a table per tier when it is done."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archgraph.analysis.cost import cost
from archgraph.federation import World
from archgraph.plain import Json
from archgraph.tables import Table, count

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# rich numbers the bars of a display in the order in which they are added.
ROUNDS: TaskID = 0  # type: ignore[assignment]  # a new type of int, defined where rich is imported
CLIENTS: TaskID = 1  # type: ignore[assignment]  # as above


@dataclass(frozen=True)
class Bars:
    """Two bars, rounds and the clients of this round; silent without a display.

    Example:
        >>> silent = Bars()
        >>> silent.round(1, 3)
        >>> silent.client_done()
    """

    display: Progress | None = None

    def round(self, number: int, clients: int) -> None:
        """A round of so many clients begins."""
        if self.display is not None:
            self.display.reset(CLIENTS, total=clients, note=f"round {number}")

    def client(self, name: str) -> None:
        """A client begins."""
        if self.display is not None:
            self.display.update(CLIENTS, note=name)

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """A client made a step."""
        if self.display is not None:
            self.display.update(ROUNDS, note=f"epoch {epoch + 1}, step {step + 1}, loss {loss:.3f}")

    def client_done(self) -> None:
        """A client is done."""
        if self.display is not None:
            self.display.advance(CLIENTS)

    def testing(self, name: str) -> None:
        """A model is being tested."""
        if self.display is not None:
            self.display.update(CLIENTS, note=f"testing {name}")

    def round_done(self, evaluation: Mapping[str, Json]) -> None:
        """A round is done, with its evaluation if there was one."""
        if self.display is not None:
            figures = evaluation.get("global", {})
            note = f"accuracy {figures['accuracy']:.2%}" if "accuracy" in figures else ""
            self.display.update(ROUNDS, advance=1, note=note)


@contextlib.contextmanager
def bars(rounds: int, done: int, *, show: bool = True) -> Iterator[Bars]:
    """Progress bars on standard error, where that is a terminal.

    Args:
        rounds: Number of rounds.
        done: Rounds that were done before.
        show: False: never.
    """
    if not (show and sys.stderr.isatty()):
        yield Bars()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Bars()
        return
    display = Progress(
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    )
    with display:
        display.add_task("rounds", total=rounds, completed=done, note="")
        display.add_task("clients", total=None, note="")
        yield Bars(display)


def table(world: World, evaluation: Mapping[str, Json], title: str = "") -> Table:
    """A row per tier: its size, its clients, and how its model did on all and on local test data.

    Args:
        world: Who took part.
        evaluation: As :class:`archgraph.engine.evaluate.Evaluator` returns it.
        title: Above the table.
    """
    models: Mapping[str, Mapping[str, Json]] = evaluation.get("models", {})
    text = any("perplexity" in figures for figures in models.values())
    graphs = {"global": world.graph, **{tier.name: tier.graph for tier in world.tiers}}
    rows = []
    for name, figures in models.items():
        size = cost(graphs[name]) if name in graphs else None
        members = sum(client.name == name for client in world.clients)
        rows.append(
            (
                name,
                str(len(world.clients) if name == "global" else members or "-"),
                "-" if size is None else count(size.parameters),
                "-" if size is None else count(size.macs),
                _perplexity(figures) if text else f"{figures['accuracy']:.2%}",
                f"{figures['local']['accuracy']:.2%}" if figures.get("local") else "-",
            )
        )
    worst = evaluation.get("worst", {}).get("name")
    columns = ("clients", "parameters", "MACs", "perplexity" if text else "accuracy", "local")
    return Table(
        title,
        ("model", *columns),
        tuple(rows),
        right=frozenset(range(1, 6)),
        strong=frozenset(i for i, row in enumerate(rows) if row[0] == "global"),
        note=f"worst: {worst}" if worst is not None and len(rows) > 1 else "",
    )


def _perplexity(figures: Mapping[str, Json]) -> str:
    value = figures.get("perplexity")
    return "-" if value is None else f"{value:.1f}"
