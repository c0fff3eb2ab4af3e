"""What the rounds of a run changed in its global model: figures of every parameter, by round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from archgraph.errors import RunError
from archgraph.fields import GLOBAL
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json
from archgraph.record.changes import RoundChange, evenly, parameters, read_changes
from archgraph.record.progress import measured
from archgraph.reports.runs import Log, judge, rows_where, series
from archgraph.viewer.distinct import Distinct, numbered

# Rounds that the slider stops at; of a longer run they are spread evenly.
STOPS = 100


def recorded_rounds(log: Log) -> dict[str, Json] | None:
    """Return a run's rounds for the page; None if it has or recorded no global model.

    Lines that are damaged cost the colours, and not the page.
    """
    graph = log.graphs.get(GLOBAL)
    if not isinstance(graph, ArchGraph):
        return None
    try:
        changes = read_changes(log.folder, graph)
    except RunError as error:
        warnings.warn(f"no colours over the rounds: {error}", stacklevel=2)
        return None
    if not changes:
        return None
    return over_rounds(changes, graph) | {"tests": _tested(log)}


def _tested(log: Log) -> dict[str, Json] | None:
    """Return the figure by which models are judged, by round; None if nothing was tested.

    It is that of the global model, without one the mean over the clients' models.
    """
    name = judge([log])
    rows = rows_where(log.figures, part="test", metric=name)
    values = series(rows, group=GLOBAL)
    if not len(values):
        values = rows[rows["group"].isin(log.submodels)].groupby("round")["value"].mean().dropna()
    if not len(values):
        return None
    return {
        "name": name,
        "rounds": values.index.tolist(),
        "values": values.tolist(),
        "texts": [measured(name, value) for value in values],
    }


def over_rounds(changes: Sequence[RoundChange], graph: ArchGraph) -> dict[str, Json]:
    """Update norm and coverage of each parameter, one row for each round that is shown.

    Returns:
        ``numbers`` of the rounds, and by round ``norm`` and the number of a row of ``rows`` in
        ``coverage``, -1 where it is not known; ``leaves``: the leaf that each column is of;
        ``top``: the largest norm of all parameters together, the end of the colour scale.
    """
    number = numbered(param.name for param in graph.params)
    selected, rows = evenly(changes, STOPS), Distinct()
    return {
        "numbers": [one.round for one in selected],
        "leaves": [number[name] for name in parameters(graph)],
        "norm": [one.norm for one in selected],
        "coverage": [  # which seldom changes from round to round: equal rows are stored once
            -1 if one.coverage is None else rows.add(tuple(one.coverage)) for one in selected
        ],
        "rows": rows.rows,
        "top": max((math.hypot(*filter(None, one.norm)) for one in selected), default=0.0),
    }
