"""Initial values of parameters and buffers: the defaults of torch.nn, and the identity."""

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
    """Initialiser of a parameter: ``uniform`` in ±``scale``, or ``normal``."""

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
    """Return an empty dict, for operators without parameters that are the identity."""
    return {}
