"""Keep some positions of some axes (HeteroFL, FjORD, FedRolex, NeFL, FedFA)."""

from __future__ import annotations

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.choice import Positions, Rounding, Shares, Sizes, chosen_axes
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.laws import mask_equals_take
from archgraph.states import Rewritten
from archgraph.states.importance import Scores, scores_of


@takes_graph
def take(
    graph: ArchGraph,
    shares: Shares | None = None,
    *,
    sizes: Sizes | None = None,
    positions: Positions | None = None,
    importance: Scores | None = None,
    rounding: Rounding = "ceil",
    allow_nothing: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Make a network narrower: keep only some positions (indices) of its axes.

    An axis is a set of dimensions that are cut together, such as the output channels of a layer and
    the input channels of the next layer. The shapes of all results and the sizes in constants and
    arguments are adapted.

    Args:
        graph: The wide architecture.
        shares: One fraction in (0, 1] for every width, or a dict from axis name, role or pattern to
            fraction. Each axis keeps its first ``ceil(fraction · size)`` positions. If the size of
            a dimension is a product of axes, such as number of heads times width of a head, one
            fraction for every width cuts only one of these axes. In attention, it cuts the number
            of heads. In grouped layers, it cuts the width of the groups
            (:meth:`archgraph.analysis.axes.Axes.independent`).
        sizes: Dict from axis name, role or pattern to the number of positions to keep, counted from
            the first.
        positions: Dict from axis name, role or pattern to the positions to keep, in their new
            order. For an axis that several arguments match, ``positions`` overrides ``sizes``, and
            ``sizes`` overrides ``shares``. In each dict, later items override earlier items.
        importance: Scores of the positions (the result of :func:`archgraph.importance`), or a file
            with scores. On axes that ``shares`` or ``sizes`` cut, the positions with the highest
            scores are kept instead of the first positions.
        rounding: ``ceil`` (HeteroFL, NeFL) or ``floor`` (ScaleFL, RecipFL's small nets).
        allow_nothing: If True, accept fractions that change no size, because all axes are pinned
            (cannot be cut) or because rounding gives the old sizes.
        verify: Check that the result computes the same as the original network in which all removed
            positions are set to zero (three forward passes in float64). The comparison leaves out
            axes over which the network computes a norm, a softmax or a reduction.

    Raises:
        RewriteError: If no shares, sizes or positions are passed; if a size or position is
            impossible; if fractions below 1 change no size and ``allow_nothing`` is False; if
            ``importance`` has no scores for an axis that is cut.
        AxisError: If an axis does not exist or is pinned. The message gives the reason.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> small = take(trace(net, torch.zeros(1, 3)).graph, 0.5)
        >>> {p.name: p.shape for p in small.graph.params if "weight" in p.name}
        {'0.weight': (4, 3), '2.weight': (2, 4)}
    """
    counts, chosen = chosen_axes(
        axes(graph), shares, sizes, positions, rounding=rounding, allow_nothing=allow_nothing
    )
    stay = {axis: np.arange(count) for axis, count in counts.items()} | chosen
    if importance is not None:
        scores = scores_of(importance)
        for axis in counts.keys() - chosen.keys():
            if counts[axis] < axis.size:
                stay[axis] = scores.best(axis, counts[axis])
    # An axis that keeps all positions in order is not cut.
    selection = {a.name: i for a, i in stay.items() if not np.array_equal(i, np.arange(a.size))}
    rewritten = cut_axes(graph, selection)
    if verify:
        mask_equals_take(graph, rewritten, selection)
    return rewritten
