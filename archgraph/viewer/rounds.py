"""Changes of a run's global model in each round, with values for each parameter."""

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

# Maximum number of rounds on the slider; longer runs are sampled evenly.
STOPS = 100


def recorded_rounds(log: Log) -> dict[str, Json] | None:
    """Return the rounds of a run for its page; None without a global model or its changes.

    Damaged lines cause a warning, and the page has no colours by round.
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
    """Return the judging metric of the global model by round; None if nothing was tested.

    Without a global model, it is the mean over the clients' models.
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
    """Return update norm and coverage of each parameter, with a row for each selected round.

    Returns:
        ``numbers``: numbers of the rounds; ``norm``: norms by round; ``coverage``: number of a row
        of ``rows`` by round, -1 if unknown; ``leaves``: the leaf of each column; ``top``: the
        largest norm over all parameters, which is the end of the colour scale.
    """
    number = numbered(param.name for param in graph.params)
    selected, rows = evenly(changes, STOPS), Distinct()
    return {
        "numbers": [one.round for one in selected],
        "leaves": [number[name] for name in parameters(graph)],
        "norm": [one.norm for one in selected],
        "coverage": [  # which rarely changes between rounds, so equal rows are stored once
            -1 if one.coverage is None else rows.add(tuple(one.coverage)) for one in selected
        ],
        "rows": rows.rows,
        "top": max((math.hypot(*filter(None, one.norm)) for one in selected), default=0.0),
    }
