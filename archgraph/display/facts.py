"""Facts about an architecture as frozen values: axes, blocks, leaves, operators, savings, pins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from archgraph.display.pricing import Pricing, Saving


@dataclass(frozen=True, slots=True)
class Pin:
    """Why an axis cannot be cut.

    Attributes:
        why: The cause, a short fact.
        operator: Operator that pins it; None if no operator uses it.
        node: Name of that operator in the graph.
        place: Module that calls the operator; a leaf or the model if none is known.
        source: Line of the user's code; None if unknown.
        remedy: A change of the model that would free it.
    """

    why: str
    operator: str | None
    node: str | None
    place: str
    source: str | None
    remedy: str


@dataclass(frozen=True, slots=True)
class AxisFact:
    """An axis.

    Attributes:
        name: Its name.
        size: Number of positions.
        role: ``channels``, ``heads``, ``head_dim``, ``value_dim``, ``hidden`` or ``cell``.
        free: Whether it may be cut.
        section: Section of the operator that makes it; empty if none does.
        block: Block of that operator.
        spans: Norms, softmaxes and reductions over it, as ``operator in module``.
        members: Leaves that are cut with it, each with the number of a dimension.
        halved: Number of positions after halving.
        saving: Savings from halving it; None for a pinned axis.
        pin: Why it is pinned; None for a free axis.
    """

    name: str
    size: int
    role: str
    free: bool
    section: str
    block: str
    spans: tuple[str, ...]
    members: tuple[tuple[str, int], ...]
    halved: int
    saving: Saving | None
    pin: Pin | None


@dataclass(frozen=True, slots=True)
class GroupFact:
    """The free axes of a role or a section.

    Attributes:
        name: The role or the section.
        axes: Names of the axes.
        saving: Savings from halving all of them.
    """

    name: str
    axes: tuple[str, ...]
    saving: Saving


@dataclass(frozen=True, slots=True)
class BlockFact:
    """A block.

    Attributes:
        name: Its name.
        section: Name of the section that contains the block.
        kind: ``residual``, ``chain``, ``parallel``, ``dense`` or ``head``.
        removable: Whether it can be skipped.
        reason: Why it cannot be skipped; empty if it can.
        leaves: Leaves that it uses.
        axes: Axes that it makes.
        saving: Savings from skipping it; None if it cannot be skipped.
    """

    name: str
    section: str
    kind: str
    removable: bool
    reason: str
    leaves: tuple[str, ...]
    axes: tuple[str, ...]
    saving: Saving | None


@dataclass(frozen=True, slots=True)
class LeafFact:
    """A parameter, buffer or constant.

    Attributes:
        name: State-dict key.
        role: ``parameter``, ``buffer`` or ``constant``.
        shape: Its shape.
        layout: Layout of each dimension; long concatenations are shortened.
        axes: Names of the axes in them.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    layout: tuple[str, ...]
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """All facts about a graph, each kind in the order of the graph.

    Attributes:
        parameters: Elements of all parameters, tied ones once.
        macs: Multiply–accumulates of one example in evaluation.
        reach: Share of the parameters that are on a free axis, 0 to 1.
        halving: Savings from halving every free axis.
        axes: Dict from name to axis.
        roles: Free axes by role.
        sections: Free axes by section.
        blocks: Dict from name to block.
        leaves: Dict from name to parameter, buffer or constant.
        met: Axes in the arguments and results of each operator.
        pricing: Computes the savings of other changes.
    """

    parameters: int
    macs: int
    reach: float
    halving: Saving
    axes: Mapping[str, AxisFact]
    roles: Mapping[str, GroupFact]
    sections: Mapping[str, GroupFact]
    blocks: Mapping[str, BlockFact]
    leaves: Mapping[str, LeafFact]
    met: Mapping[str, tuple[str, ...]]
    pricing: Pricing = field(compare=False, repr=False)
