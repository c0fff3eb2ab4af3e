"""All strategies in one table: paper, supported clients, requirements and presets."""

from __future__ import annotations

from archgraph.federation.registry import find_strategy
from archgraph.federation.strategy import SERVES
from archgraph.language.help import strategy_names
from archgraph.tables import Table


def strategy_table() -> Table:
    """Return a table of all installed strategies.

    The columns are name, paper, year, supported clients, requirements and presets.

    Raises:
        SpecError: If a strategy cannot be imported.

    Example:
        >>> next(row for row in strategy_table().rows if row[0] == "heterofl")[:4]
        ('heterofl', 'HeteroFL', '2021', 'width, depth')
    """
    classes = {name: find_strategy(name) for name in strategy_names()}
    rows = [
        (
            name,
            cls.paper,
            "" if cls.year is None else str(cls.year),
            ", ".join(cls.serves),
            ", ".join(cls.requirements()),
            ", ".join(cls.presets),
        )
        for name, cls in classes.items()
    ]
    return Table(
        "Strategies",
        ("name", "paper", "year", "clients", "requires", "presets"),
        tuple(rows),
        frozenset({2}),
        note="; ".join(f"{word}: {meaning}" for word, meaning in SERVES.items()),
    )
