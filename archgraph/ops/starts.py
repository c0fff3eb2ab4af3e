"""Initial values of leaves: torch.nn's defaults, and values that make an operator the identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.graph.ir import ArchGraph, Node

InitialiserKind = Literal["zeros", "ones", "uniform", "normal"]
# The name and arguments of a leaf's initialiser.
Start: TypeAlias = "tuple[str, Mapping[str, float | int]]"
# Initialisers, by argument, that make an operator return its input; a string is why there are none.
Identity: TypeAlias = "Mapping[str, Start] | str"


@dataclass(frozen=True, slots=True)
class Initialiser:
    """Initialiser of a leaf: ``uniform`` in ±``scale``, or ``normal``."""

    kind: InitialiserKind
    scale: float = 1.0


FixedShape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, FixedShape]  # of the leaves that an operator uses, by argument
# A constant initialiser, or a function of the leaf's shape and those of the operator's leaves.
Init: TypeAlias = Initialiser | Callable[[FixedShape, Shapes], Initialiser]
# For parameters that a model itself adds to or multiplies with activations: small, for little
# effect at first.
SMALL = Initialiser("normal", 0.02)


def leafless_identity(_graph: ArchGraph, _node: Node) -> Identity:
    """Return no leaves: an operator without leaves is the identity from the start, if ever."""
    return {}
