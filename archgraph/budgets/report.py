"""Tables of the costs of a submodel, next to the budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archgraph.analysis.axes import axes
from archgraph.analysis.cost import Cost, cost
from archgraph.analysis.structure import structure
from archgraph.budgets.amounts import MEASURES, BudgetMeasure, amount_text, limit_of
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.options import FitOptions
from archgraph.tables import Table, per_cent

# The default training step for memory.
BATCH, OPTIMIZER = 32, "sgd"


@dataclass(frozen=True, slots=True)
class BudgetRange:
    """The range of possible budgets of a measure.

    Attributes:
        full: Cost of the full model.
        least: Cost of the smallest submodel with all blocks.
        without_blocks: Cost of the smallest submodel without removable blocks.
    """

    full: int
    least: int
    without_blocks: int


def budget_ranges(graph: ArchGraph) -> dict[str, BudgetRange]:
    """Return a dict from measure to the cost of a model and of its smallest submodels.

    Memory is the memory of a training step with 32 examples and SGD. No submodel is built, because
    costs are polynomials of the sizes.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> budget_ranges(trace(net, torch.zeros(1, 3)).graph)["macs"]
        BudgetRange(full=40, least=5, without_blocks=5)
    """
    known = cost(graph)
    costs, step = known.polynomial, known.training(BATCH, OPTIMIZER).polynomial
    ones = dict.fromkeys(costs.axes, 1)
    gone = costs.blocks.keys() - costs.equal.keys()
    points = [costs.at(), costs.at(ones), costs.at(ones, gone)]
    ranges = {
        name: BudgetRange(*(getattr(point, name) for point in points))
        for name in ("parameters", "macs", "bytes", "activations")
    }
    memory = (step.at(), step.at(ones), step.at(ones, gone))
    return ranges | {"memory": BudgetRange(*(point.total for point in memory))}


def range_table(ranges: Mapping[str, BudgetRange]) -> Table:
    """Return a table with the range of budgets, one row for each measure."""
    removable = any(one.least != one.without_blocks for one in ranges.values())
    columns = ("budget", "whole model", "least", *(["without blocks"] if removable else []))
    rows = []
    for name, one in ranges.items():
        values = [one.full, one.least, *([one.without_blocks] if removable else [])]
        label = name if name != "memory" else f"memory ({BATCH}, {OPTIMIZER})"
        rows.append((label, *(amount_text(MEASURES[name], value) for value in values)))
    note = "`archgraph fit` finds the submodel for a budget"
    return Table("Budgets", columns, tuple(rows), frozenset({1, 2, 3}), note=note)


def fit_tables(graph: ArchGraph, small: ArchGraph, options: FitOptions) -> tuple[Table, ...]:
    """Return a table of the costs of a model and its submodel, and a table of the narrower axes.

    Args:
        graph: The model.
        small: The submodel.
        options: Arguments of :func:`archgraph.fit`.

    Example:
        >>> import torch
        >>> from archgraph.budgets.fit import fit
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> costs, sizes = fit_tables(graph, fit(graph, macs=0.5).graph, FitOptions(macs=0.5))
        >>> costs.rows[1], sizes.rows
        (('macs', '40', '20', '20', '100.0 %'), (('0.out', '8', '4'),))
    """
    before, after = cost(graph), cost(small)
    rows = [
        _row(measure, before, after, options)
        for name, measure in MEASURES.items()
        if name != "memory" or options.memory is not None
    ]
    columns = ("measure", "whole model", "budget", "submodel", "of the budget")
    costs = Table("Cost", columns, tuple(rows), frozenset({1, 2, 3, 4}))
    sizes = {axis.name: axis.size for axis in axes(small).all}
    narrower = tuple(
        (axis.name, str(axis.size), str(sizes[axis.name]))
        for axis in axes(graph).free
        if sizes.get(axis.name, axis.size) < axis.size
    )
    stay = {block.name for block in structure(small).blocks}
    gone = [block.name for block in structure(graph).blocks if block.name not in stay]
    note = f"removed: {', '.join(gone)}" if gone else ""
    return costs, Table(
        "Axes", ("axis", "whole", "submodel"), narrower, frozenset({1, 2}), note=note
    )


def _row(measure: BudgetMeasure, before: Cost, after: Cost, options: FitOptions) -> tuple[str, ...]:
    """Return the row of a measure: the costs of the model and the submodel, and the budget."""
    name, budget = measure.name, getattr(options, measure.name)
    full, left = (_amount(name, of, options) for of in (before, after))
    limit = None if budget is None else limit_of(measure, budget, full)
    return (
        name if name != "memory" else f"memory ({options.batch}, {options.optimizer})",
        amount_text(measure, full),
        "" if limit is None else amount_text(measure, limit),
        amount_text(measure, left),
        "" if not limit else per_cent(left / limit, 1),
    )


def _amount(name: str, of: Cost, options: FitOptions) -> int:
    if name == "memory":
        return of.training(options.batch or 1, options.optimizer).total
    amount: int = getattr(of, name)
    return amount
