"""Base classes with the options that many strategies share.

A strategy may set another default, but it does not change the meaning of an option.
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
        weights: Weight of a client in averages. With ``examples``, the weight of a client is the
            total weight of its examples in the loss. If each example has one target, this is by
            default the number of examples. With ``uniform``, every client has weight 1.
        private: Names of parameters and buffers, or patterns such as ``fc.*``. These parameters and
            buffers stay with each client: they are neither sent nor merged.
    """

    averages = True
    weights: Weights = "examples"
    private: tuple[str, ...] = field(default=(), metadata={LATER: True})

    def private_entries(self, world: World, graph: ArchGraph) -> frozenset[str]:
        """Return the names of the parameters and buffers that match ``private``."""
        return named_entries(graph, self.private)


@dataclass(frozen=True)
class Averaging(Weighted):
    """Options of a strategy that averages models, including their normalisation layers.

    Attributes:
        norm: Treatment of running statistics. ``averaged``: running statistics are averaged like
            weights. ``local``: each client keeps its own running statistics. ``static``: training
            does not use running statistics. Running statistics are computed before each test.
    """

    norm: Literal["averaged", "local", "static"] = "averaged"


@dataclass(frozen=True)
class Masking(Strategy):
    """Options of a method whose clients may have no examples of some classes.

    Attributes:
        mask_absent: In training, set the logits of classes that do not occur in the client's data
            to 0.
    """

    mask_absent: bool = False
