"""Options that many methods share, described once: a strategy inherits them.

A method whose paper differs sets another default; the meaning of an option stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from archgraph.federation.private_parts import named_entries
from archgraph.federation.strategy import LATER, Strategy
from archgraph.federation.tasks import Weights
from archgraph.federation.world import World
from archgraph.graph.ir import ArchGraph


@dataclass(frozen=True)
class Weighted(Strategy):
    """Options of a method whose server averages clients' results.

    Attributes:
        weights: Weight of a client in averages: ``examples``, the weight of its examples in the
            loss (their number if each has one target), or ``uniform``, 1.
        private: Parameters and buffers that stay with each client from round to round, and are
            neither sent nor merged: names, or patterns of names (``fc.*``).
    """

    averages = True
    weights: Weights = "examples"
    private: tuple[str, ...] = field(default=(), metadata={LATER: True})

    def private_entries(self, world: World, graph: ArchGraph) -> frozenset[str]:
        """Return the entries that match ``private``."""
        return named_entries(graph, self.private)


@dataclass(frozen=True)
class Averaging(Weighted):
    """Options of a method that averages, with a choice of how running statistics are treated.

    Attributes:
        norm: How running statistics are treated: they are ``averaged`` like weights, stay with the
            client (``local``), or are not used in training and recomputed for evaluation
            (``static``).
    """

    norm: Literal["averaged", "local", "static"] = "averaged"


@dataclass(frozen=True)
class Masking(Strategy):
    """Options of a method whose clients may lack classes.

    Attributes:
        mask_absent: In training, set to 0 the logits of classes that a client's data lacks.
    """

    mask_absent: bool = False
