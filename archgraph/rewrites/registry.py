"""The table of rewrites, with one row per rewrite.

A row defines the keyword of :func:`archgraph.rewrite`, the key in family files with its validation
and JSON schema, the option of ``archgraph rewrite``, the topic of ``archgraph help``, a row of the
table in the docs, and a test of the law. If several rewrites are requested, they run in the order
of the rows. The module of a rewrite is imported when the row is first used.

A package adds a rewrite with an entry point in the group ``archgraph.rewrites`` whose value is a
:class:`RewriteRow`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archgraph.errors import RewriteError, SpecError
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.graph.ir import ArchGraph
    from archgraph.states import Rewritten


GROUP = "archgraph.rewrites"


@dataclass(frozen=True, slots=True)
class RewriteRow:
    """A row of the table of rewrites, used by files, the command line and the docs.

    Attributes:
        name: Name of the keyword, of the key in a file, and of the command-line option.
        function: The rewrite, as ``package.module:function``. Its first argument is the graph.
        options: Type of the value in a file, as ``package.module:NAME``. A name without a module
            refers to :mod:`archgraph.rewrites.options`.
        help: Description in one sentence.
        example: An example value, as YAML.
        law: The property that the rewrite guarantees, in a few words. If the function has an
            argument ``verify``, ``verify=True`` checks the property.
    """

    name: str
    function: str
    options: str
    help: str
    example: str
    law: str

    def load(self) -> Callable[..., Rewritten]:
        """Import the function."""
        function = _imported(self.function)
        assert callable(function)
        return function

    @property
    def value_type(self) -> Any:
        """Type of the value in a file."""
        inside = ":" not in self.options
        return _imported(f"archgraph.rewrites.options:{self.options}" if inside else self.options)

    def apply(self, graph: ArchGraph, value: Any, *, verify: bool = False) -> Rewritten:
        """Rewrite a graph with a value from a file.

        The value is a mapping of options, ``True`` for the default options, or the function's first
        argument after the graph.

        Raises:
            RewriteError: If the rewrite cannot be applied.
        """
        if value is True:
            return apply(self.load(), graph, verify=verify)
        if hasattr(value, "model_fields_set"):  # a mapping of options
            chosen = {key: getattr(value, key) for key in value.model_fields_set}
            return apply(self.load(), graph, verify=verify, **chosen)
        return apply(self.load(), graph, value, verify=verify)


def apply(
    function: Callable[..., object],
    graph: ArchGraph,
    *values: object,
    verify: bool = False,
    **options: object,
) -> Rewritten:
    """Call a rewrite; pass ``verify`` if the function has this argument.

    Raises:
        RewriteError: If the rewrite cannot be applied; if the function does not return a
            :class:`Rewritten`.
    """
    from archgraph.states import Rewritten  # imports PyTorch: not before a row is used

    if verify and "verify" in inspect.signature(function).parameters:
        options["verify"] = True
    result = function(graph, *values, **options)
    if not isinstance(result, Rewritten):
        problem = f"returns {type(result).__name__} instead of ag.Rewritten(graph, transfer)"
        raise RewriteError(problem, where=getattr(function, "__qualname__", None))
    return result


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    return getattr(importlib.import_module(module), path)


SHIPPED: tuple[RewriteRow, ...] = (
    RewriteRow(
        "skip", "archgraph.rewrites.skip:skip", "Skip",
        "Remove blocks.",
        "[layer2.1]", "equals the original with the blocks' branches multiplied by zero",
    ),
    RewriteRow(
        "shorten", "archgraph.rewrites.shorten:shorten", "NumberBySection",
        "Keep only the first blocks of a section.",
        "{layer2: 1}", "equals the original with the removed branches multiplied by zero",
    ),
    RewriteRow(
        "graft", "archgraph.rewrites.graft:graft", "OrderBySection",
        "Copy a section's last block until the section has the given number of blocks, "
        "or list the section's blocks in a new order, with repetitions.",
        "{layer2: 4}", "skipping the copies restores the graph",
    ),
    RewriteRow(
        "deepen", "archgraph.rewrites.deepen:deepen", "NumberBySection",
        "Add new blocks, which compute the identity at first, to a section.",
        "{layer2: 4}", "same function",
    ),
    RewriteRow(
        "ends_after", "archgraph.rewrites.ends_after:ends_after", "EndsAfter",
        "End the network after a section, with a new classifier or an existing early exit.",
        "{section: layer1, head: 10}", "equals the classifier applied to the section's result",
    ),
    RewriteRow(
        "fit", "archgraph.budgets.fit:fit", "FitOptions",
        "Shrink the model to a budget of parameters, multiply–accumulates, bytes or memory.",
        "{macs: 0.5}", "the cost is within the budget; the laws of take and skip",
    ),
    RewriteRow(
        "take", "archgraph.rewrites.take:take", "Take",
        "Keep some of the positions (indices) along axes: a fraction, a number or a list.",
        "0.5", "mask ≡ take: equals the original with all other positions masked to zero",
    ),
    RewriteRow(
        "narrow", "archgraph.rewrites.narrow:narrow", "Narrow",
        "Keep the first positions (indices) along axes; add the removed weights to the kept ones.",
        "0.5", "same graph as take; sums of weights over the axes do not change",
    ),
    RewriteRow(
        "widen", "archgraph.rewrites.widen:widen", "Widen",
        "Widen axes by copying positions (indices along an axis, such as channels).",
        "1.5", "same function",
    ),
    RewriteRow(
        "add_step_sizes", "archgraph.rewrites.step_sizes:add_step_sizes", "NamesOrAll",
        "Add a learnable step size to every residual branch, or to those of some blocks.",
        "true", "same function at step size 1",
    ),
    RewriteRow(
        "add_adapters", "archgraph.rewrites.adapters:add_adapters", "Count",
        "Add an adapter, which outputs zero at first, to every residual branch.",
        "8", "same function",
    ),
    RewriteRow(
        "add_lora", "archgraph.rewrites.lora:add_lora", "Lora",
        "Add low-rank adapters, which output zero at first, to linear layers and convolutions.",
        "8", "same function",
    ),
    RewriteRow(
        "rank", "archgraph.rewrites.lora:rank", "Rank",
        "Reduce the rank of every low-rank adapter, keeping its first components.",
        "4", "mask ≡ take; the scale changes only if alpha is set",
    ),
    RewriteRow(
        "add_exits", "archgraph.rewrites.exits:add_exits", "HeadBySection",
        "Add early-exit classifiers after sections or blocks. "
        "The value for each is a number of classes, or a list of layers.",
        "{layer1: 10}", "main output unchanged",
    ),
    RewriteRow(
        "add_scaler", "archgraph.rewrites.scaler:add_scaler", "CheckedShare",
        "In training, divide hidden activations by the client's width rate (HeteroFL).",
        "0.5", "same function in evaluation",
    ),
    # Last, so that its patterns can name added leaves.
    RewriteRow(
        "train_only", "archgraph.rewrites.train_only:train_only", "SomeNames",
        "Train only the parameters that match these names or patterns.",
        "[layer2.*]", "same function, same state",
    ),
)  # fmt: skip


@functools.cache
def rewrite_rows() -> Mapping[str, RewriteRow]:
    """Return a dict from name to rewrite, in the order in which several rewrites run.

    Rewrites of other packages, sorted by name, run after those of archgraph and before
    ``train_only``, so that patterns in ``train_only`` can match parameters that other packages add.

    Raises:
        SpecError: If two packages provide rewrites with the same name.

    Example:
        >>> list(rewrite_rows())[:3]
        ['skip', 'shorten', 'graft']
    """
    entries = importlib.metadata.entry_points(group=GROUP)
    # A set: a package that is on the path twice provides equal rows.
    installed: set[RewriteRow] = {entry.load() for entry in entries}
    last = SHIPPED[-1]
    known: dict[str, RewriteRow] = {}
    for row in (*SHIPPED[:-1], *sorted(installed, key=lambda row: row.name), last):
        if row.name in known:
            functions = f"{known[row.name].function}, {row.function}"
            problem = "several packages provide a rewrite of this name"
            raise SpecError(problem, where=row.name, found=functions)
        known[row.name] = row
    return known


def rewrite_table() -> Table:
    """Return the table of all rewrites, in the order in which several rewrites run.

    Example:
        >>> rewrite_table().rows[0][2]
        'skip: [layer2.1]'
    """
    cells = tuple(
        (row.name, row.help, f"{row.name}: {row.example}", row.law)
        for row in rewrite_rows().values()
    )
    return Table("Rewrites", ("name", "what it does", "in a file", "law"), cells)
