"""Find the largest submodel within a budget of parameters, multiply–accumulates or bytes."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from archgraph.analysis.axes import Axis, axes
from archgraph.analysis.cost import cost
from archgraph.analysis.cost_polynomial import CostPart, CostPolynomial
from archgraph.analysis.structure import structure
from archgraph.analysis.training_step import Optimizer
from archgraph.budgets.amounts import MEASURES, Budget, limit_of
from archgraph.budgets.search import Floats, Search, Tally
from archgraph.budgets.widths import AxisGroup, ClassCheck, smaller, widths_of_class
from archgraph.errors import AxisError, RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.skip import skip as leave_out
from archgraph.rewrites.take import take
from archgraph.states import Rewritten
from archgraph.states.importance import Importance, Scores, scores_of

FitShape: TypeAlias = Literal["free", "nested", "uniform"]


LEAST = 1e-12  # smallest fraction of scores whose logarithm is taken


@takes_graph
def fit(
    graph: ArchGraph,
    *,
    parameters: Budget | None = None,
    macs: Budget | None = None,
    bytes: Budget | None = None,
    activations: Budget | None = None,
    memory: Budget | None = None,
    batch: int | None = None,
    optimizer: Optimizer = "sgd",
    shape: FitShape = "free",
    importance: Scores | None = None,
    multiple: int = 1,
    keep: str | Sequence[str] = (),
    skip: str | Sequence[str] = (),
    like: object = None,
    verify: bool = False,
) -> Rewritten:
    """Return the largest submodel of a graph that is within all budgets.

    A budget is a fraction of the full model's cost (``0.5`` or ``"50%"``) or a cost (``2_000_000``
    or ``"2M"``). Numbers up to 1 are fractions. Layers are made narrower. Blocks are only removed
    if ``skip`` allows it.

    Args:
        graph: The architecture.
        parameters: Budget of the number of parameters.
        macs: Budget of multiply–accumulates of one example in evaluation.
        bytes: Budget of the size of weights and buffers in bytes, e.g. ``"50MB"``.
        activations: Budget of the size of all intermediate results of one example, in bytes.
        memory: Budget of the peak memory of a training step in bytes, as predicted by
            ``cost(graph).training(batch, optimizer)``.
        batch: Batch size of the training step, required by ``memory``.
        optimizer: Optimiser of the training step: the name of a class in ``torch.optim``, or
            ``momentum``.
        shape: How the sizes of different axes are related.

            - ``uniform``: The same fraction of every width is kept, as in :func:`archgraph.take`.
              In sections in which blocks may be removed, the same fraction of the blocks is kept.
              Attention keeps whole heads.
            - ``nested``: Like ``uniform``, but some axes may be one step larger if the budget
              allows this. The submodel for a smaller budget is a part of the submodel for a
              larger budget.
            - ``free``: Every axis has its own size, including the width of heads. Axes are widened
              until none can be wider. (Up to 5 % of a memory budget may remain unused.)
        importance: Scores, or a file of scores. The positions with the highest scores are kept
            instead of the first positions. With ``nested`` and ``free``, half of an axis then means
            the best positions that together have half of the axis' total score. The blocks with the
            lowest scores are removed first.
        multiple: Make sizes multiples of this number, because hardware computes with such sizes
            faster. Axes shorter than twice ``multiple``, numbers of heads, and axes that are not
            cut are not rounded.
        keep: Names, roles or patterns of axes that keep their size, and names of blocks that are
            not removed. The name of a block also selects the axes inside the block. The axis
            of the block's input and output is not selected, because other blocks share it.
        skip: Names or patterns of blocks that may be removed if necessary; ``"*"`` for all
            removable blocks. ``keep`` takes precedence.
        like: The original model of transformers (the model that was traced, or its folder) or of
            timm (``functools.partial(timm.create_model, name, …)``). If passed, only sizes that the
            model's class supports are chosen, so that :func:`archgraph.to_transformers` or
            :func:`archgraph.to_timm` can save the submodel. The search takes seconds, or minutes
            for a folder. In attention, only whole heads are removed. The model must not have
            adapters; add adapters to the submodel.
        verify: Verify the submodel as :func:`archgraph.take` and :func:`archgraph.skip` do.

    Raises:
        RewriteError: If no budget is passed; if a budget is invalid; if no submodel is within the
            budgets (the message gives the smallest possible cost).

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 64),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(64, 64),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(64, 2),
        ... )
        >>> graph = trace(net, torch.zeros(1, 8)).graph
        >>> cost(graph).macs, cost(fit(graph, macs=0.5).graph).macs
        (4736, 2324)
        >>> cost(fit(graph, macs="1k", bytes="10kB").graph).macs
        999
    """
    asked = {
        "parameters": parameters,
        "macs": macs,
        "bytes": bytes,
        "activations": activations,
        "memory": memory,
    }
    budgets = {name: budget for name, budget in asked.items() if budget is not None}
    _check_request(budgets, tuple(asked), shape, multiple)
    best = None if importance is None else scores_of(importance)
    costs = cost(graph).polynomial
    keep = [keep] if isinstance(keep, str) else keep
    scores = None if shape == "uniform" else best
    budgeted = _budgeted(graph, costs, budgets, batch, optimizer)
    widths, check = _widths(graph, keep, shape, like)
    blocks = _named_blocks(graph, costs, keep, skip)
    search = _search(graph, costs, budgeted, widths, scores, multiple, blocks)
    submodels = iter([search.start])
    if search.exceeded(search.start):
        _check_possible(search, costs)
        submodels = search.by_share(uniform=shape == "uniform")
        if shape == "free":
            submodels = search.narrower(search.filled(next(submodels)))
    refused: RewriteError | None = None
    # An operator may also refuse sizes: an LSTM's projection must be narrower than its input.
    for one in submodels:
        cut = functools.partial(_cut_to, graph, costs, smaller(widths, search.sizes(one.at)))
        try:
            small = cut(one.skipped, best)
            check(small)
        except RewriteError as error:
            refused = refused or error
        else:
            return cut(one.skipped, best, verify=True) if verify else small
    assert refused is not None
    raise refused


def _check_request(
    budgets: Mapping[str, Budget], measures: Sequence[str], shape: str, multiple: int
) -> None:
    """Check budgets, shape and multiple.

    Raises:
        RewriteError: If there is no budget; if the shape is unknown; if ``multiple`` is not a
            positive integer.
    """
    if not budgets:
        raise RewriteError("no budget", expected=f"one or more of {', '.join(measures)}")
    if shape not in ("free", "nested", "uniform"):
        raise RewriteError("unknown shape", found=shape, expected="free, nested or uniform")
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise RewriteError("not a multiple", where="multiple", found=multiple, expected="1 or more")


def _widths(
    graph: ArchGraph, keep: Sequence[str], shape: FitShape, like: object
) -> tuple[list[AxisGroup], ClassCheck]:
    """Return the groups of axes that are cut, and a check that a model's class has a submodel."""
    if like is None or like is False:
        return [AxisGroup((axis,)) for axis in _cut(graph, keep, shape)], lambda small: None
    if like is True:  # as written in a file
        hint = "pass the model; in a file, `like: true` requires a `python:` model"
        raise RewriteError("needs the model itself", where="like", hint=hint)
    from archgraph.foreign.class_check import class_check  # torch.export and sympy

    check = class_check(like)
    try:
        check(Rewritten.identity(graph))
    except RewriteError as error:
        raise RewriteError(
            "the model's class cannot construct the full network",
            where="like",
            found=error,
            hint="pass the model that was traced; adapters are added after the cut",
        ) from error
    return widths_of_class(graph, _cut(graph, keep, "uniform"), check), check


def _cut_to(
    graph: ArchGraph,
    costs: CostPolynomial,
    sizes: Mapping[Axis, int],
    skipped: Collection[str],
    importance: Importance | None,
    *,
    verify: bool = False,
) -> Rewritten:
    """Return the submodel with the given sizes, without the skipped blocks."""
    gone = {name for block in skipped for name in costs.blocks[block]}
    cut = {axis: size for axis, size in sizes.items() if axis.name not in gone}
    small = take(graph, sizes=cut, importance=importance, verify=verify)
    return small >> leave_out(small.graph, sorted(skipped), verify=verify) if skipped else small


def _budgeted(
    graph: ArchGraph,
    costs: CostPolynomial,
    budgets: Mapping[str, Budget],
    batch: int | None,
    optimizer: Optimizer,
) -> dict[str, tuple[int, Sequence[CostPart]]]:
    """Return a dict from budget to its limit and cost polynomial.

    The upper bound of memory is the maximum of several polynomials. Each of them is a budget with
    the same limit: ``memory 1``, ``memory 2``, …
    """
    budgeted: dict[str, tuple[int, Sequence[CostPart]]] = {}
    for name, budget in budgets.items():
        if name == "memory":
            if batch is None:
                hint = "pass batch, e.g. batch=32; in a file batch: 32"
                raise RewriteError("needs the batch size of a training step", where=name, hint=hint)
            step = cost(graph).training(batch, optimizer)
            limit = limit_of(MEASURES[name], budget, step.total)
            for number, parts in enumerate(step.polynomial.bounds(), 1):
                budgeted[f"{name} {number}"] = limit, parts
        else:
            limit = limit_of(MEASURES[name], budget, _full(costs, name))
            budgeted[name] = limit, costs.parts[name]
    return budgeted


def _search(
    graph: ArchGraph,
    costs: CostPolynomial,
    budgeted: Mapping[str, tuple[int, Sequence[CostPart]]],
    widths: Sequence[AxisGroup],
    importance: Importance | None,
    multiple: int,
    blocks: Collection[str],
) -> Search:
    """Return the search for the given budgets.

    1. For each possible size of a width, compute the fraction of its positions, or of its scores.
    2. The loss of a size is minus the logarithm of the fraction, times the elasticity of the cost.
    3. In each section, the last blocks are removed first, or the blocks with the lowest scores.
    """
    limits = {name: limit for name, (limit, _) in budgeted.items()}
    units = {name: (len(widths), size) for name, size in costs.axes.items()}
    units |= {a.name: (i, n) for i, w in enumerate(widths) for a, n in w.sizes(1).items()}
    tallies = {m: Tally(p, units, len(widths), costs.blocks) for m, (_, p) in budgeted.items()}
    full = np.array([width.units for width in widths], dtype=np.float64)
    grows = sum((tallies[m].elasticity(full) for m in limits), np.zeros(len(widths)))
    grids, shares, losses = [], [], []
    for width, grown in zip(widths, grows, strict=True):
        grid = np.array(width.grid(multiple))
        even = np.arange(1, width.units + 1) / width.units
        share = (even if importance is None else _share_of_scores(importance, width))[grid - 1]  # 1
        grids.append(grid)
        shares.append(share)
        losses.append(-grown * np.log(np.maximum(share, LEAST)))  # 2
    scores = importance.blocks if importance is not None else {}
    depths = []
    for section in structure(graph).sections:  # 3
        names = [b.name for b in reversed(section.blocks) if b.name in blocks]
        depths.append((len(section.blocks), sorted(names, key=lambda name: scores.get(name, 0.0))))
    return Search(tallies, limits, grids, shares, losses, depths)


def _share_of_scores(importance: Importance, width: AxisGroup) -> Floats:
    """Return, for each number of units, the fraction of a width's scores that the best have."""
    shares = []
    for axis, positions in width.sizes(1).items():
        total = np.cumsum(np.sort(importance.of(axis))[::-1])
        even = np.arange(1, axis.size + 1) / axis.size
        shares.append((total / total[-1] if total[-1] else even)[positions - 1 :: positions])
    return np.asarray(np.mean(shares, axis=0), dtype=np.float64)


def _full(costs: CostPolynomial, measure: str) -> int:
    return costs.polynomial(measure).value(costs.axes)


def _cut(graph: ArchGraph, keep: Sequence[str], shape: FitShape) -> list[Axis]:
    """Return the axes that may become smaller.

    Axes that match ``keep`` and ranks of adapters are excluded. A pattern in ``keep`` may also
    match only blocks. Unless the shape is ``free``, only one axis of each product of axes is
    returned.
    """
    stay: set[str] = set()
    for pattern in keep:
        try:
            stay.update(axis.name for axis in axes(graph).match(pattern))
        except AxisError:
            structure(graph).matching(pattern)
    among = [a for a in axes(graph).free if a.name not in stay and a.role != "rank"]
    cut = among if shape == "free" else axes(graph).independent(among)
    return [axis for axis in among if axis in cut]


def _named_blocks(
    graph: ArchGraph, costs: CostPolynomial, keep: Sequence[str], skip: str | Sequence[str]
) -> set[str]:
    """Return the blocks that the search may remove.

    A block is excluded if the axes of its input and output differ, because a cut could make their
    sizes unequal.
    """
    parts = structure(graph)
    stay = {b.name for b in parts.blocks if any(_is(b.name, pattern) for pattern in keep)}
    for name in [skip] if isinstance(skip, str) else skip:
        block = next((b for b in parts.blocks if b.name == name), None)
        if block is not None and not block.removable:
            message = "block cannot be removed"
            raise RewriteError(message, where=f"skip: {name}", found=block.reason)
    chosen = {b.name for b in parts.matching(skip)}
    return (chosen & costs.blocks.keys()) - costs.equal.keys() - stay


def _is(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def _check_possible(search: Search, costs: CostPolynomial) -> None:
    """Raise if even the smallest submodel exceeds a budget.

    Raises:
        RewriteError: If it does. The message names each such budget and the smallest possible cost.
    """
    least = search.smallest()
    binds = search.exceeded(least)
    if not binds:
        return
    sizes = search.sizes(least.at)
    amounts: dict[str, int] = {}
    for name in binds:  # several polynomials of one measure: use the largest value
        value = int(search.tallies[name].value(sizes, least.skipped))
        measure = name.partition(" ")[0]
        amounts[measure] = max(value, amounts.get(measure, 0))
    limits = {name.partition(" ")[0]: limit for name, limit in search.limits.items()}
    one = len(amounts) == 1

    def listed(values: Mapping[str, int]) -> str:
        texts = {measure: f"{values[measure]:,}" for measure in amounts}
        return ", ".join(text if one else f"{text} {m}" for m, text in texts.items())

    more = set(costs.blocks) - least.skipped
    advice = ["skip='*' allows removing blocks"] * bool(more and not least.skipped)
    advice += ["a budget above 1 is a cost, not a fraction"] * (min(limits.values()) < 100)
    raise RewriteError(
        "no submodel is within the budget",
        where=", ".join(amounts),
        found=f"{listed(amounts)} for the smallest",
        expected=f"at most {listed(limits)}",
        hint="; ".join(advice) or None,
    )
