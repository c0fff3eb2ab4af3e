"""Options that many methods share, described once: a strategy inherits them.

A method whose paper starts otherwise sets another default; what an option means stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from archgraph.federation.strategy import Strategy
from archgraph.federation.tasks import Weights


@dataclass(frozen=True)
class Weighted(Strategy):
    """Options of a method whose server averages what clients return.

    Attributes:
        weights: Weight of a client in averages: its number of examples, or 1 (``uniform``).
    """

    averages = True
    weights: Weights = "examples"


@dataclass(frozen=True)
class Averaging(Weighted):
    """Options of such a method that may treat running statistics in another way.

    Attributes:
        norm: What becomes of running statistics: they are ``averaged`` like weights, stay with the
            client (``local``), or are not used in training and recomputed for evaluation
            (``static``).
    """

    norm: Literal["averaged", "local", "static"] = "averaged"


@dataclass(frozen=True)
class Masking(Strategy):
    """Options of a method whose clients may lack classes.

    Attributes:
        mask_absent: Set the logits of classes that the client lacks to 0 in training.
    """

    mask_absent: bool = False
