"""How clients train, as a spec says it and as local training reads it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Count, Mistake, Share
from archgraph.language.optimisers import (
    NAMES,
    OptimiserChoice,
    check_optimiser,
    own_defaults,
    shared_options,
)
from archgraph.plain import Json

_Amount = Annotated[float, Field(ge=0)]
_Positive = Annotated[float, Field(gt=0)]


class ResizedCropOptions(Base):
    """Windows of images, drawn as by torchvision's ``RandomResizedCrop``.

    Source: Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, §6.
    """

    scale: tuple[Share, Share] = Field(
        default=(0.08, 1.0), description="smallest and largest share of an image's pixels"
    )
    ratio: tuple[_Positive, _Positive] = Field(
        default=(3 / 4, 4 / 3), description="smallest and largest ratio of width to height"
    )

    @pydantic.model_validator(mode="after")
    def _ascending(self) -> ResizedCropOptions:
        for key in ("scale", "ratio"):
            least, most = getattr(self, key)
            if least > most:
                said, expected = f"[{least:g}, {most:g}]", f"[{most:g}, {least:g}]"
                message = "begins with the larger number"
                raise Mistake(message, place=(key,), found=said, expected=expected)
        return self


class ColourJitterOptions(Base):
    """How much colours of images change, as in torchvision's ``ColorJitter``."""

    brightness: _Amount = Field(
        default=0.0, description="b: values are multiplied by a number from max(0, 1 - b) to 1 + b"
    )
    contrast: _Amount = Field(
        default=0.0, description="likewise, the distances of values from the image's mean grey"
    )
    saturation: _Amount = Field(
        default=0.0, description="likewise, the distances of colours from their own grey"
    )
    hue: Annotated[float, Field(ge=0, le=0.5)] = Field(
        default=0.0, description="largest turn of the hues, of a full one"
    )


class AugmentOptions(Base):
    """How training changes images at random, each time that it sees them.

    Source of ``mixup``: Zhang et al., *mixup: Beyond Empirical Risk Minimization*, ICLR 2018. Of
    ``cutmix``: Yun et al., *CutMix*, ICCV 2019.
    """

    crop: Count | None = Field(
        default=None,
        description="pixels of zeros around an image, of which a window of its size is cut",
    )
    resized_crop: ResizedCropOptions | None = Field(
        default=None,
        description="windows of random area and shape, scaled to the image's size; left out: none",
        examples=[{"scale": [0.5, 1.0]}],
    )
    flip: bool = Field(default=False, description="mirror every second image, left to right")
    colour_jitter: ColourJitterOptions | None = Field(
        default=None,
        description="changes of colours, in the range that values have before they are "
        "normalised; left out: none",
        examples=[{"brightness": 0.4, "hue": 0.1}],
    )
    mixup: _Positive | None = Field(
        default=None,
        description="α: an image is λ of itself and 1 - λ of another of its minibatch, and so is "
        "its loss, λ of Beta(α, α); left out: images are not mixed",
        examples=[0.2],
    )
    cutmix: _Positive | None = Field(
        default=None,
        description="α: a window of another image of the minibatch replaces 1 - λ of the pixels, "
        "λ of Beta(α, α) before the window is cut at the edge; with `mixup`, every minibatch "
        "draws one of both",
        examples=[1.0],
    )


# In the fall behind the rise of one cycle, and before it: those of Smith and Topin, as in PyTorch.
FIRST_RATE, LAST_RATE, RISE = 1 / 25, 1 / 25e4, 0.3


class LocalChanges(Base):
    """Keys of `local` that clients of a kind have instead of the run's; all others stay."""

    epochs: Count = Field(default=1, description="passes over the local data in one round")
    batch: Count = Field(default=32, description="examples in a minibatch")
    accumulate: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="minibatches whose gradients are averaged for one step, each by its examples; "
        "left out: every minibatch is a step",
        examples=[4],
    )
    optimiser: OptimiserChoice = Field(
        default="sgd",
        description="one of torch.optim, with options of its own behind the name; its state does "
        "not outlive the round",
        examples=[{"adamw": {"betas": [0.9, 0.99]}}],
    )
    lr: Annotated[float, Field(gt=0)] = Field(
        default=0.1,
        description="learning rate, from which schedules begin; left out, optimisers other than "
        "SGD and Adam take PyTorch's default",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="of SGD, RMSprop and Muon (whose default is PyTorch's)"
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="L2 coefficient; decoupled from the gradient in AdamW and Muon, whose default "
        "is PyTorch's",
    )
    schedule: Literal["steps", "cosine", "linear", "one_cycle"] = Field(
        default="steps",
        description="the rate falls at the milestones, along half a cosine or a line towards 0, or "
        "rises and falls along cosines (1/25 of lr, lr, 1/250,000 of lr)",
    )
    over: Literal["round", "run"] | None = Field(
        default=None,
        description="the schedule goes on with every step: through each round anew (`round`; "
        "where a method trains in parts, as FedRep does head and body, through each part), or "
        "once through the run (`run`); left out: once through the run, and the rate changes "
        "between rounds only",
        examples=["round"],
    )
    milestones: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(),
        description="rounds (≥ 1; over: round: steps) or fractions of the schedule (< 1) after "
        "which the rate falls",
    )
    decay: Annotated[float, Field(gt=0)] = Field(default=0.1, description="factor of each fall")
    warmup: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="rounds (≥ 1; over: round: steps) or a fraction of the schedule (< 1) in which "
        "the rate rises in equal steps to what it then falls from; the rise of one_cycle, 0.3 "
        "where left out",
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="largest norm of the gradient; left out: any"
    )
    fraction: Share = Field(
        default=1.0, description="share of the local data that is used in a round (FedADP: 0.2)"
    )
    patience: Count | None = Field(
        default=None,
        description="passes in a row without a lower mean training loss that end a client's round "
        "early; left out: all `epochs` are done (`validation` ends runs, by held-out examples)",
        examples=[1],
    )
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="decay of a mean of the weights over a round's steps (or over those of each "
        "part, where a method trains in parts), which a client returns instead of the last ones, "
        "running statistics included; left out: the last ones",
        examples=[0.99],
    )
    class_weights: (
        Literal["balanced"]
        | Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2)]
    ) | None = Field(
        default=None,
        description="weight of each class in the training loss, in the order of the classes; "
        "balanced: those of a client are inverse to how often it has them; left out: 1",
        examples=["balanced"],
    )
    label_smoothing: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="share of a target that is spread evenly over all classes in the training "
        "loss; left out: none",
        examples=[0.1],
    )
    proximal: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="μ of FedProx, with any strategy: μ/2 · ‖w − w_0‖² is added to the loss, w_0 "
        "being the weights that the training of the round begins with; left out: nothing is",
        examples=[0.01],
    )
    augment: AugmentOptions | None = Field(
        default=None, description="random changes of images in training; left out: none"
    )
    precision: Literal["bf16"] | None = Field(
        default=None,
        description="bf16: products of matrices and convolutions are computed in bfloat16, tests "
        "and weights are not; left out: in the weights' own type",
        examples=["bf16"],
    )

    @property
    def optimiser_name(self) -> str:
        """Name of the optimiser."""
        return self.optimiser if isinstance(self.optimiser, str) else next(iter(self.optimiser))

    @property
    def optimiser_options(self) -> dict[str, Json]:
        """Options behind the optimiser's name."""
        return {} if isinstance(self.optimiser, str) else self.optimiser[self.optimiser_name]


class LocalOptions(LocalChanges):
    """How clients train.

    Source of the cosine: Loshchilov and Hutter, *SGDR*, ICLR 2017, Eq. 5. Of one cycle: Smith and
    Topin, *Super-Convergence*, 2018, in two phases of cosines as PyTorch has it.

    Example:
        >>> options = LocalOptions(lr=0.1, milestones=(0.5, 75))
        >>> [round(options.lr_at(t, 100), 6) for t in (1, 50, 51, 76)]
        [0.1, 0.1, 0.01, 0.001]
        >>> options = LocalOptions(lr=0.1, schedule="cosine", warmup=2)
        >>> [round(options.lr_at(t, 10), 6) for t in (1, 2, 3, 7, 10)]
        [0.05, 0.1, 0.1, 0.05, 0.003806]
        >>> options = LocalOptions(lr=0.1, schedule="linear", over="round")
        >>> [round(options.lr_at(3, 10, step, 4), 6) for step in (1, 2, 3, 4)]
        [0.1, 0.075, 0.05, 0.025]
    """

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _own_defaults(
        cls, values: Json, handler: pydantic.ModelWrapValidatorHandler[LocalOptions]
    ) -> LocalOptions:
        """Give keys that are left out the defaults of the optimiser; they still are left out.

        A kind of client with another optimiser has that one's, not the run's.
        """
        name = values.get("optimiser") if isinstance(values, dict) else None
        if isinstance(name, dict) and len(name) == 1:
            name = next(iter(name))
        if not isinstance(name, str) or name not in NAMES:
            return handler(values)
        options = handler({**own_defaults(name), **values})
        options.model_fields_set.difference_update(own_defaults(name).keys() - values.keys())
        return options

    @pydantic.model_validator(mode="after")
    def _is_read(self) -> LocalOptions:
        name, cosine = self.optimiser_name, self.schedule == "cosine"
        for key in ("momentum", "weight_decay"):
            if getattr(self, key) and key not in shared_options(name):
                hint = "remove it, or set it to 0 (a kind of client has the run's keys, too)"
                facts = {"found": getattr(self, key), "hint": hint}
                raise Mistake(f"is not an option of {name}", place=(key,), **facts)
        if self.optimiser_options:
            check_optimiser(name, self.optimiser_arguments)
        if self.decay != type(self).model_fields["decay"].default and not self.milestones:
            raise Mistake("requires `milestones`", place=("decay",), found=self.decay)
        if self.schedule != "steps" and self.milestones:
            of = "a cosine schedule" if cosine else f"schedule: {self.schedule}"
            hint = "leave them out, or write schedule: steps"
            raise Mistake(f"are ignored by {of}", place=("milestones",), hint=hint)
        if self.over is not None:
            if self.schedule == "steps" and not (self.milestones or self.warmup):
                hint = "write a schedule, milestones or warmup, or remove it"
                facts = {"found": self.over, "hint": hint}
                raise Mistake("has no schedule to go through", place=("over",), **facts)
        if self.patience is not None and self.patience >= self.epochs:
            hint = "raise `epochs`, or set it to null (`validation: {patience: …}` ends a run)"
            expected = f"less than `epochs` ({self.epochs})"
            facts = {"found": self.patience, "expected": expected, "hint": hint}
            raise Mistake("ends no round early", place=("patience",), **facts)
        return self

    @property
    def optimiser_arguments(self) -> dict[str, Json]:
        """What the optimiser's class is called with, beside the parameters."""
        shared = {key: getattr(self, key) for key in shared_options(self.optimiser_name)}
        return {**shared, **self.optimiser_options}

    def tuning(self) -> LocalOptions:
        """Return the options of tuning before a test, which belongs to no round.

        Every step is at `lr`, on all examples, and nothing draws back to the weights before or
        takes a mean of them.

        >>> options = LocalOptions(lr=0.1, schedule="cosine", over="run", proximal=1.0, ema=0.9)
        >>> tuning = options.tuning()
        >>> tuning.lr_at(10, 10, 3, 4), tuning.proximal, tuning.ema
        (0.1, None, None)
        """
        schedule = {"schedule": "steps", "over": None, "milestones": (), "warmup": 0.0}
        of_rounds = {"fraction": 1.0, "patience": None, "proximal": None, "ema": None}
        return self.model_copy(update=schedule | of_rounds)

    def changed(self, changes: LocalChanges) -> LocalOptions:
        """Return these options with what is said for a kind of client instead.

        >>> run = LocalOptions(lr=0.1, batch=8)
        >>> kind = run.changed(LocalChanges(lr=0.01))
        >>> kind.lr, kind.batch
        (0.01, 8)
        """
        said = {
            key: getattr(one, key)
            for one in (self, changes)
            for key in sorted(one.model_fields_set)
        }
        return type(self).model_validate(said)

    def lr_at(self, round: int, rounds: int, step: int = 1, steps: int = 1) -> float:
        """Return the learning rate of a step.

        Args:
            round: The round, counted from 1.
            rounds: All rounds.
            step: The step in the round, counted from 1; without `over` it does not matter.
            steps: All steps of the round.
        """
        if self.over == "round":
            return self._rate(step, steps, 1)
        if self.over == "run":
            return self._rate((round - 1) * steps + step, rounds * steps, steps)
        return self._rate(round, rounds, 1)

    def _rate(self, at: int, total: int, unit: int) -> float:
        """Return the rate at a position of so many, counted from 1; spans ≥ 1 are in units."""

        def span(value: float) -> float:
            return rounds_of(value, total) if value < 1 else value * unit

        rise = span(self.warmup)
        if self.schedule == "one_cycle":
            peak = max(span(self.warmup or RISE) - 1, 0)
            if at - 1 <= peak:
                return self._along(FIRST_RATE, 1, (at - 1) / peak if peak else 1)
            return self._along(1, LAST_RATE, (at - 1 - peak) / (total - 1 - peak))
        # Up: the rate is full in the round in which the warm-up ends. Down: so the cosine begins.
        if at <= rise:
            return self.lr * at / math.ceil(rise)
        done = (at - 1 - math.floor(rise)) / max(total - math.floor(rise), 1)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2  # SGDR, Eq. 5, of one period to 0
        if self.schedule == "linear":
            return self.lr * (1 - done)
        passed = sum(at > span(m) for m in self.milestones)
        return self.lr * self.decay**passed

    def _along(self, first: float, last: float, done: float) -> float:
        """Return the rate on half a cosine between two shares of `lr`."""
        return self.lr * (last + (first - last) * (1 + math.cos(math.pi * done)) / 2)


def rounds_of(span: float, rounds: int) -> float:
    """Return a number of rounds, or a fraction of all, as one: 0.29 of 100 is 29, not 28.999….

    >>> rounds_of(0.29, 100), rounds_of(7, 100)
    (29.0, 7)
    """
    return round(span * rounds, 9) if span < 1 else span
