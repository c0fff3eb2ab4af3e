"""Tables and pictures of weights: how alike blocks are, and how scales differ between models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from archgraph.display import colours
from archgraph.reports.plots import draw_line, panels
from archgraph.reports.sheets import NOTHING
from archgraph.studies.similarity import ScaleComparison, SectionSimilarity
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names of layers that fit below an axis.
NAMED = 40
# Differences from chance below this are not coloured more strongly than they are.
LEAST = 0.05


def similarity_tables(sections: Sequence[SectionSimilarity]) -> Iterator[Table]:
    """Yield a table per section, with a row per block.

    Example:
        >>> one = SectionSimilarity(
        ...     "layer1", ("a", "b"), ("a", "b"), ((None, 0.8), (0.8, None)), 0.65, 2
        ... )
        >>> [table] = similarity_tables([one])
        >>> table.rows
        (('a', '', '0.800'), ('b', '0.800', ''))
    """
    for section in sections:
        rows = (
            (name, *("" if value is None else f"{value:.3f}" for value in values))
            for name, values in zip(section.rows, section.values, strict=True)
        )
        layers = f"{plural(section.layers, 'layer')} of each block"
        yield Table(
            title=section.section,
            columns=("block", *section.columns),
            rows=tuple(rows),
            right=frozenset(range(1, len(section.columns) + 1)),
            note=f"{layers}; independent random weights: {section.chance:.3f}",
        )


def heat(sections: Sequence[SectionSimilarity], *, title: str = "") -> Figure:
    """Draw similarities of blocks, a panel per section, coloured by distance from chance.

    Args:
        sections: What :func:`archgraph.studies.similarity.block_similarity` gives; at least one.
        title: Heading.
    """
    from matplotlib.colors import LinearSegmentedColormap

    widths = [max(len(section.columns), 2) for section in sections]
    heights = max(len(section.rows) for section in sections)
    width, height = 1.6 + 0.85 * sum(widths), 1.9 + 0.55 * heights
    figure, axes = panels(width, len(widths), title, widths, height, points=(12, 8))
    scale = LinearSegmentedColormap.from_list("similarity", colours.SCALE)
    # What is not compared becomes NaN, and stays white.
    tables = [np.array(section.values, float) - section.chance for section in sections]
    # One scale for all panels, chance in its middle.
    most = max(LEAST, *(np.nanmax(np.abs(table)) for table in tables))
    for panel, section, table in zip(axes, sections, tables, strict=True):
        image = panel.imshow(table, cmap=scale, vmin=-most, vmax=most, aspect="auto")
        for i, values in enumerate(section.values):
            for j, value in enumerate(values):
                if value is not None:
                    text = f"{value:.2f}".removeprefix("0")
                    panel.text(j, i, text, ha="center", va="center", fontsize=8, color=colours.INK)
        columns, rows = (
            # Without the section's name, where something is left.
            [name.removeprefix(f"{section.section}.") or name for name in names]
            for names in (section.columns, section.rows)
        )
        panel.set_xticks(range(len(columns)), columns)
        panel.set_yticks(range(len(rows)), rows)
        panel.tick_params(axis="x", rotation=90 if max(map(len, section.columns)) > 12 else 0)
        title = f"{section.section}  (chance {section.chance:.2f})"
        panel.set_title(title, loc="left", fontsize=9, color=colours.INK)
        panel.spines[:].set_visible(False)
        panel.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("similarity − chance", fontsize=8, color=colours.INK)
    bar.ax.tick_params(labelsize=8, colors=colours.INK)
    bar.outline.set_visible(False)
    return figure


def scale_table(comparison: ScaleComparison) -> Table:
    """Tabulate layers: baseline magnitude; each model's ratio and distance in units of it.

    Example:
        >>> from archgraph.studies.similarity import Scale
        >>> comparison = ScaleComparison(
        ...     "a", ("w",), {"w": 2.0}, {"b": {"w": Scale(3.0, 1.5, 1.0)}, "c": {}}
        ... )
        >>> scale_table(comparison).rows
        (('w', '2', '1.500 · 0.500', '–'),)
    """
    rows = []
    for layer in comparison.layers:
        base = comparison.magnitudes[layer]
        scales = [model.get(layer) for model in comparison.models.values()]
        cells = (
            NOTHING if s is None else f"{s.ratio:.3f} · {_over(s.distance, base):.3f}"
            for s in scales
        )
        rows.append((layer, f"{base:.4g}", *cells))
    return Table(
        title=f"scales beside {comparison.baseline}",
        columns=("layer", comparison.baseline, *comparison.models),
        rows=tuple(rows),
        right=frozenset(range(1, len(comparison.models) + 2)),
        short=frozenset({0}),
        note=(
            "mean L1 norm of a weight map; of other models: theirs over it · mean distance of maps "
            "over it, on the positions that both have"
        ),
    )


def scale_plot(comparison: ScaleComparison) -> Figure:
    """Draw by layer and model the ratio of magnitudes, and the distance over the baseline's."""
    from pandas import Series  # takes half a second

    figure, axes = panels(11.0, 2, "", height=4.6, points=(12, 8))
    positions = {layer: i for i, layer in enumerate(comparison.layers)}
    for number, (name, model) in enumerate(comparison.models.items()):
        ratios = {positions[layer]: scale.ratio for layer, scale in model.items()}
        far = {positions[k]: _over(s.distance, comparison.magnitudes[k]) for k, s in model.items()}
        for panel, values in zip(axes, (ratios, far), strict=True):
            draw_line(panel, Series(values), name, number)
    axes[0].axhline(1.0, color=colours.INK, linewidth=1.0, zorder=1.5)
    for panel, what in zip(axes, ("average magnitude", "average distance"), strict=True):
        panel.set_title(f"{what} / magnitude of {comparison.baseline}", loc="left", fontsize=10)
        panel.grid(axis="y", color=colours.BLOCK, linewidth=0.8)
        panel.set_xlabel("layer", fontsize=9, color=colours.INK)
        if len(positions) <= NAMED:
            panel.set_xticks(range(len(positions)), list(positions), rotation=90, fontsize=7)
    low, high = axes[0].get_ylim()
    if low > 0 and high / low > 20:
        axes[0].set_yscale("log")
    if any(comparison.models.values()):
        axes[0].legend(frameon=False, fontsize=9)
    return figure


# A layer that is zero in the baseline has no ratio.
def _over(value: float, base: float) -> float:
    return value / base if base else math.inf if value else 0.0
