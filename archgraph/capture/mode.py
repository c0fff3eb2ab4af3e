"""One mode of a model in canonical form: what :func:`~archgraph.capture.spell.spell` makes."""

from __future__ import annotations

from dataclasses import dataclass

from archgraph.graph.ir import Constant, Node, Param, Value


@dataclass(frozen=True)
class OneMode:
    """A canonical capture of one mode.

    Attributes:
        inputs: Forward's arguments: name and tree of references to ``input`` nodes.
        nodes: Operators in program order; names are unique within the capture.
        outputs: Tree of what forward returns.
        updates: Last value of each buffer that forward writes to.
        constants: Leaves of the constants that folding made.
    """

    inputs: tuple[tuple[str, Value], ...]
    nodes: tuple[Node, ...]
    outputs: Value
    updates: dict[str, Value]
    constants: dict[Constant, Param]
