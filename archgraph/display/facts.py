"""Facts about an architecture: its axes, blocks and parameters, and the savings from cuts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from archgraph.display.pricing import Pricing, Saving


@dataclass(frozen=True, slots=True)
class Pin:
    """Why an axis cannot be cut.

    Attributes:
        why: The reason.
        operator: Kind of the operator that pins the axis; None if no operator uses the axis.
        node: Name of this operator in the graph.
        place: Module that calls the operator. If it is unknown, a parameter, a buffer or the model.
        source: Line of the user's code; None if unknown.
        remedy: A change of the model after which the axis could be cut.
    """

    why: str
    operator: str | None
    node: str | None
    place: str
    source: str | None
    remedy: str


@dataclass(frozen=True, slots=True)
class AxisFact:
    """An axis: dimensions of parameters and activations that can only be cut together.

    Attributes:
        name: Name of the axis.
        size: Number of positions, such as channels or features.
        role: ``channels``, ``heads``, ``head_dim``, ``value_dim``, ``hidden`` or ``cell``.
        free: Whether the axis can be cut.
        section: Section of the operator that computes the axis; empty if there is none.
        block: Block of this operator.
        spans: Norms, softmaxes and reductions that compute over the axis, as texts
            ``operator in module``. Cutting the axis changes their results.
        members: Parameters and buffers that have the axis, each with the number of the dimension.
        halved: Number of positions after halving the axis.
        saving: Savings from halving the axis; None for a pinned axis.
        pin: Why the axis cannot be cut; None for a free axis.
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
        name: Name of the role or the section.
        axes: Names of the axes.
        saving: Savings from halving all these axes.
    """

    name: str
    axes: tuple[str, ...]
    saving: Saving


@dataclass(frozen=True, slots=True)
class BlockFact:
    """A block of a graph, such as a residual block.

    Attributes:
        name: Name of the block.
        section: Name of the section that contains the block.
        kind: ``residual``, ``chain``, ``parallel``, ``dense`` or ``head``.
        removable: Whether the block can be skipped.
        reason: Why the block cannot be skipped; empty if it can.
        leaves: Parameters, buffers and constants that the block uses.
        axes: Axes that the block's operators compute.
        saving: Savings from skipping the block; None if it cannot be skipped.
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
        name: Key of the state dict.
        role: ``parameter``, ``buffer`` or ``constant``.
        shape: Shape of the tensor.
        layout: For each dimension, the axes from which it is built, as text.
        axes: Names of the axes in these layouts.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    layout: tuple[str, ...]
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """All facts about a graph. Dicts and tuples follow the order of the graph.

    Attributes:
        parameters: Number of parameters; tied parameters count once.
        macs: Multiply–accumulates for one example in evaluation.
        reach: Fraction of the parameters that have a free axis, from 0 to 1.
        halving: Savings from halving every free axis.
        axes: Dict from name to axis.
        roles: Dict from role to its free axes.
        sections: Dict from section to its free axes.
        blocks: Dict from name to block.
        leaves: Dict from name to parameter, buffer or constant.
        met: Dict from operator to the axes in its arguments and results.
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
