"""How clients train, as a spec says it and as local training reads it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Count, Mistake, Share


class AugmentOptions(Base):
    """How training changes images at random, each time that it sees them."""

    crop: Count | None = Field(
        default=None,
        description="pixels of zeros around an image, of which a window of its size is cut",
    )
    flip: bool = Field(default=False, description="mirror every second image, left to right")


class LocalOptions(Base):
    """How clients train.

    Source of the cosine: Loshchilov and Hutter, *SGDR*, ICLR 2017, Eq. 5.

    Example:
        >>> options = LocalOptions(lr=0.1, milestones=(0.5, 75))
        >>> [round(options.lr_at(t, 100), 6) for t in (1, 50, 51, 76)]
        [0.1, 0.1, 0.01, 0.001]
        >>> options = LocalOptions(lr=0.1, schedule="cosine", warmup=2)
        >>> [round(options.lr_at(t, 10), 6) for t in (1, 2, 3, 7, 10)]
        [0.05, 0.1, 0.1, 0.05, 0.003806]
    """

    epochs: Count = Field(default=1, description="passes over the local data in one round")
    batch: Count = Field(default=32, description="examples in a minibatch")
    optimiser: Literal["sgd", "adam"] = Field(default="sgd", description="the optimiser")
    lr: Annotated[float, Field(gt=0)] = Field(
        default=0.1, description="learning rate in the first round"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description="of SGD")
    weight_decay: Annotated[float, Field(ge=0)] = Field(default=0.0, description="L2 coefficient")
    milestones: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(),
        description="rounds (≥ 1) or fractions of all rounds (< 1) after which the rate falls",
    )
    decay: Annotated[float, Field(gt=0)] = Field(default=0.1, description="factor of each fall")
    schedule: Literal["steps", "cosine"] = Field(
        default="steps",
        description="the rate falls at the milestones, or along half a cosine towards 0",
    )
    warmup: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="rounds (≥ 1) or a fraction of all rounds (< 1) in which the rate rises in "
        "equal steps to what it then falls from",
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="largest norm of the gradient; left out: any"
    )
    fraction: Share = Field(
        default=1.0, description="share of the local data that is used in a round (FedADP: 0.2)"
    )

    augment: AugmentOptions | None = Field(
        default=None, description="random crops and mirror images in training; left out: none"
    )
    precision: Literal["bf16"] | None = Field(
        default=None,
        description="bf16: products of matrices and convolutions are computed in bfloat16, tests "
        "and weights are not; left out: in the weights' own type",
        examples=["bf16"],
    )

    @pydantic.model_validator(mode="after")
    def _is_read(self) -> LocalOptions:
        if self.optimiser == "adam" and self.momentum:
            message = "is an option of SGD, which Adam ignores"
            raise Mistake(message, place=("momentum",), found=self.momentum)
        if self.decay != type(self).model_fields["decay"].default and not self.milestones:
            raise Mistake("requires `milestones`", place=("decay",), found=self.decay)
        if self.schedule == "cosine" and self.milestones:
            hint = "leave them out, or write schedule: steps"
            raise Mistake("are ignored by a cosine schedule", place=("milestones",), hint=hint)
        return self

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the learning rate in a round (counted from 1)."""
        rise = rounds_of(self.warmup, rounds)
        # Up: the rate is full in the round in which the warm-up ends. Down: so the cosine begins.
        if round <= rise:
            return self.lr * round / math.ceil(rise)
        if self.schedule == "cosine":
            done = (round - 1 - math.floor(rise)) / max(rounds - math.floor(rise), 1)
            return self.lr * (1 + math.cos(math.pi * done)) / 2  # SGDR, Eq. 5, of one period to 0
        passed = sum(round > rounds_of(m, rounds) for m in self.milestones)
        return self.lr * self.decay**passed


def rounds_of(span: float, rounds: int) -> float:
    """Return a number of rounds, or a fraction of all, as one: 0.29 of 100 is 29, not 28.999….

    >>> rounds_of(0.29, 100), rounds_of(7, 100)
    (29.0, 7)
    """
    return round(span * rounds, 9) if span < 1 else span
