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
        operator: Operator that pins it; None where no operator uses it.
        node: Name of that operator in the graph.
        place: Module that the operator was called in; a leaf or the model where none is known.
        source: Line of the user's code; None where the graph does not know it.
        remedy: What would free it.
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
        section: Section of the operator that makes it; empty where none does.
        block: Block of that operator.
        spans: Norms, softmaxes and reductions that run over it, as ``what in place``.
        members: Leaves that are cut with it, each with the number of a dimension.
        halved: Number of positions that stay when half of them go.
        saving: What that saves; None for a pinned axis.
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
    """Free axes that belong together: those of a role, or those that a section makes.

    Attributes:
        name: The role or the section.
        axes: Names of the axes.
        saving: What halving all of them saves.
    """

    name: str
    axes: tuple[str, ...]
    saving: Saving


@dataclass(frozen=True, slots=True)
class BlockFact:
    """A block.

    Attributes:
        name: Its name.
        section: Section that holds it.
        kind: ``residual``, ``chain``, ``parallel``, ``dense`` or ``head``.
        removable: Whether it can be left out.
        reason: Why not; empty where it can.
        leaves: Leaves that it uses.
        axes: Axes that it makes.
        saving: What leaving it out saves; None where it cannot be left out.
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
        layout: What each dimension is made of; long concatenations are shortened.
        axes: Names of the axes in them.
        operators: Names of the operators that use it.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    layout: tuple[str, ...]
    axes: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """All facts about a graph, each kind in the order of the graph.

    Attributes:
        parameters: Elements of all parameters, tied ones once.
        macs: Multiply–accumulates of one example in evaluation.
        reach: Share of the parameters that are on a free axis, 0 to 1.
        halving: What halving every free axis saves.
        axes: Axes by name.
        roles: Free axes by role.
        sections: Free axes by section.
        blocks: Blocks by name.
        leaves: Leaves by name.
        met: By operator, the axes in its arguments and results.
        pricing: Prices any other change of the graph.
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
