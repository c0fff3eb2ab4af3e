"""Every rewrite: one file, and one row here.

A row holds facts. From them come the key of a family's files with its validation and JSON schema,
the option of ``archgraph rewrite``, the topic of ``archgraph help``, the table of the README, and a
test of its law. The order of the rows is the order in which a chain runs them. Nothing heavy is
imported before a row is used.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.graph.ir import ArchGraph
    from archgraph.states import Rewritten


@dataclass(frozen=True, slots=True)
class RewriteRow:
    """A rewrite as files, the command line and the docs know it.

    Attributes:
        name: Of the function, of the key in a file, and of the option.
        module: File in ``archgraph/rewrites`` that defines the function.
        options: Type of the key's value, a name in :mod:`archgraph.rewrites.options`.
        help: What it does, in one sentence.
        example: A value, as YAML.
        law: What stays true, in a few words; ``verify=True`` checks it where the function has it.
    """

    name: str
    module: str
    options: str
    help: str
    example: str
    law: str

    @property
    def function(self) -> Callable[..., Rewritten]:
        """The function itself."""
        rewrite = getattr(importlib.import_module(f"archgraph.rewrites.{self.module}"), self.name)
        assert callable(rewrite)
        return rewrite

    @property
    def value_type(self) -> Any:
        """Type of the value that a file gives."""
        return getattr(importlib.import_module("archgraph.rewrites.options"), self.options)

    def apply(self, graph: ArchGraph, value: Any, *, verify: bool = False) -> Rewritten:
        """Rewrite a graph as a file's value says.

        That is options by name, ``True`` for the defaults, or the function's first argument.

        Raises:
            RewriteError: If the rewrite cannot be applied.
        """
        function = self.function
        words: dict[str, Any] = {}
        if verify and "verify" in inspect.signature(function).parameters:
            words["verify"] = True
        if value is True:
            return function(graph, **words)
        if hasattr(value, "model_fields_set"):  # the long form of the key
            chosen = {key: getattr(value, key) for key in value.model_fields_set}
            return function(graph, **chosen, **words)
        return function(graph, value, **words)


ROWS: tuple[RewriteRow, ...] = (
    RewriteRow(
        "skip", "skip", "Skip",
        "Leave blocks out.",
        "[layer2.1]", "equals the original with these blocks bypassed",
    ),
    RewriteRow(
        "shorten", "shorten", "NumberBySection",
        "Keep a section's first blocks.",
        "{layer2: 1}", "equals the original with the other blocks bypassed",
    ),
    RewriteRow(
        "graft", "graft", "NumberBySection",
        "Lengthen a section by copies of its last block.",
        "{layer2: 4}", "skipping the copies restores the graph",
    ),
    RewriteRow(
        "deepen", "deepen", "NumberBySection",
        "Lengthen a section by blocks that start as the identity.",
        "{layer2: 4}", "same function",
    ),
    RewriteRow(
        "ends_after", "ends_after", "EndsAfter",
        "Cut the network off behind a section, at a new classifier or at the exit there.",
        "{section: layer1, head: 10}", "equals the classifier on that section's result",
    ),
    RewriteRow(
        "take", "take", "Take",
        "Keep part of some axes: a share, a number of positions, or chosen positions.",
        "0.5", "mask ≡ take: equals the original with all other positions masked to zero",
    ),
    RewriteRow(
        "narrow", "narrow", "Narrow",
        "Keep the first positions of axes and add to them the share of the others.",
        "0.5", "the graph of take; sums over the axes keep their total",
    ),
    RewriteRow(
        "widen", "widen", "Widen",
        "Widen axes by copying positions.",
        "1.5", "same function",
    ),
    RewriteRow(
        "add_step_sizes", "step_sizes", "NamesOrAll",
        "Give every residual branch, or those of some blocks, a learnable step size.",
        "true", "same function at step size 1",
    ),
    RewriteRow(
        "add_adapters", "adapters", "Count",
        "Give every residual branch an adapter of a given width that starts at zero.",
        "8", "same function",
    ),
    RewriteRow(
        "add_exits", "exits", "HeadBySection",
        "Add classifiers behind sections or blocks, each by its number of classes or its steps.",
        "{layer1: 10}", "main output unchanged",
    ),
    # Last, so that what was added can be named.
    RewriteRow(
        "train_only", "train_only", "SomeNames",
        "Train only the parameters that match these names or patterns.",
        "[layer2.*]", "same function, same state",
    ),
)  # fmt: skip

BY_NAME: Mapping[str, RewriteRow] = {row.name: row for row in ROWS}


def rewrite_table() -> Table:
    """All rewrites, in the order in which a chain runs them.

    Example:
        >>> rewrite_table().rows[0][2]
        'skip: [layer2.1]'
    """
    rows = tuple((row.name, row.help, f"{row.name}: {row.example}", row.law) for row in ROWS)
    return Table("Rewrites", ("name", "what it does", "in a file", "law"), rows)
