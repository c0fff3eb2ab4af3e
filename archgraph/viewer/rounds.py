"""Update norms and coverage of a run's global model, for each round and parameter."""

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

# Maximum number of rounds on the slider. From longer runs, evenly spaced rounds are selected.
STOPS = 100


def recorded_rounds(log: Log) -> dict[str, Json] | None:
    """Return the data of a run's rounds for its page; None if the run has not recorded any.

    If the recorded file is damaged, warn and return None. The page then has no colours by round.
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
    """Return the test metric of the global model by round; None if nothing was tested.

    If the global model was not tested, return the mean over the clients' models.
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
    """Return update norm and coverage of each parameter in up to ``STOPS`` rounds.

    Returns:
        A dict with the keys ``numbers`` (numbers of the selected rounds), ``norm`` (for each round,
        the update norm of each parameter), ``coverage`` (for each round, the index of a row of
        ``rows``; -1 if unknown), ``rows`` (coverage of each parameter), ``leaves`` (indices of the
        parameters in the graph) and ``top`` (largest norm of a round over all parameters, the upper
        end of the colour scale).
    """
    number = numbered(param.name for param in graph.params)
    selected, rows = evenly(changes, STOPS), Distinct()
    return {
        "numbers": [one.round for one in selected],
        "leaves": [number[name] for name in parameters(graph)],
        "norm": [one.norm for one in selected],
        "coverage": [  # coverage rarely changes between rounds, so equal rows are stored once
            -1 if one.coverage is None else rows.add(tuple(one.coverage)) for one in selected
        ],
        "rows": rows.rows,
        "top": max((math.hypot(*filter(None, one.norm)) for one in selected), default=0.0),
    }
