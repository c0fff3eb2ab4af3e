"""All strategies in one table: paper, supported clients, presets and options."""

from __future__ import annotations

from collections.abc import Mapping

from archgraph.federation.registry import find_strategy
from archgraph.language.experiment import strategy_options
from archgraph.language.help import strategy_names
from archgraph.tables import Table

# Supported clients, with the values of `Strategy.serves`, and how a family specifies them.
SERVES: Mapping[str, str] = {
    "one": "one architecture for all clients",
    "width": "narrower clients (`take`)",
    "depth": "shallower clients (`shorten`, `skip`)",
    "exits": "the network up to one of its exits (`add_exits`, `ends_after`)",
    "split": "a network in parts: FedIN's share both ends, FedGKT's have the first part "
    "(`ends_after` with a head)",
    "rank": "smaller ranks of low-rank adapters (`rank`)",
    "any": "any architectures, also without a global model or shared weights",
}


def strategy_table() -> Table:
    """Return every installed strategy: paper and year, supported clients, presets, options.

    Raises:
        SpecError: If one cannot be imported.

    Example:
        >>> next(row for row in strategy_table().rows if row[0] == "heterofl")[:4]
        ('heterofl', 'HeteroFL', '2021', 'width, depth')
    """
    rows = []
    for name in strategy_names():
        cls = find_strategy(name)
        options = (field.name for field in strategy_options(cls))
        rows.append(
            (
                name,
                cls.paper,
                "" if cls.year is None else str(cls.year),
                ", ".join(cls.serves),
                ", ".join(cls.presets),
                ", ".join(options),
            )
        )
    return Table(
        "Strategies",
        ("name", "paper", "year", "clients", "presets", "options"),
        tuple(rows),
        frozenset({2}),
        note="; ".join(f"{word}: {meaning}" for word, meaning in SERVES.items()),
    )
