"""How the graphs of a page correspond: operators that are the same, and every difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archgraph.relate.correspond import Way, correspond
from archgraph.viewer.anatomy import Anatomy


def paired_operators(a: Anatomy, b: Anatomy, way: Way | None = None) -> dict[str, Any]:
    """Return the correspondence of two graphs in numbers of operators, as the page counts them.

    Args:
        a: The first graph.
        b: The second one.
        way: The transfer from A's states to B's; Default: the graphs are aligned by structure.
    """
    matched = correspond(a.graph, b.graph, way)
    numbers = tuple({name: i for i, name in enumerate(one.operators)} for one in (a, b))
    partner = {numbers[1][y]: numbers[0][x] for x, y in matched.nodes}

    def many(names: tuple[str, ...], known: Mapping[str, int]) -> list[int]:
        return [known[name] for name in names]

    return {
        "exact": int(matched.exact),
        "partner": [partner.get(i, -1) for i in range(len(b.operators))],
        "differences": [
            [
                one.kind,
                one.level,
                one.a,
                one.b,
                one.before,
                one.after,
                many(one.nodes_a, numbers[0]),
                many(one.nodes_b, numbers[1]),
            ]
            for one in matched.differences
        ],
    }
