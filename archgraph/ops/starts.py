"""How leaves start: as in torch.nn by default, and so that an operator returns its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.graph.ir import ArchGraph, Node

InitialiserKind = Literal["zeros", "ones", "uniform", "normal"]
# How a leaf starts: the name and arguments of an initialiser.
Start: TypeAlias = "tuple[str, Mapping[str, float | int]]"
# How leaves start, by argument, so that an operator returns its input; a text says why it cannot.
Identity: TypeAlias = "Mapping[str, Start] | str"


@dataclass(frozen=True, slots=True)
class Initialiser:
    """How a leaf starts: ``uniform`` up to ``scale`` on both sides of 0, or ``normal``."""

    kind: InitialiserKind
    scale: float = 1.0


FixedShape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, FixedShape]  # of the leaves that an operator uses, by argument
# How a leaf starts: always alike, or by its shape and those of the leaves beside it.
Init: TypeAlias = Initialiser | Callable[[FixedShape, Shapes], Initialiser]
# Parameters that a model adds to or multiplies with activations itself: small, so that they disturb
# little.
SMALL = Initialiser("normal", 0.02)


def leafless_identity(_graph: ArchGraph, _node: Node) -> Identity:
    """Return no leaves: an operator without any returns its input already, if it ever does."""
    return {}
