"""Options of local training, as written in a spec."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.errors import ErrorFacts, RunError
from archgraph.fields import Base, Count, Mistake, Share
from archgraph.language.named import WRITTEN, LibraryClass, library_class
from archgraph.plain import Json

_Transform = Annotated[LibraryClass, library_class("transform"), WRITTEN]
# Options of SGD that may be set without `optimiser`.
_OF_SGD = ("lr", "momentum", "weight_decay")


class _Course:
    """The settings that a PyTorch schedule gives to an optimiser of a dummy parameter."""

    def __init__(
        self, optimiser: LibraryClass, schedule: LibraryClass, units: Mapping[str, int]
    ) -> None:
        import torch

        self._blank = optimiser.make({"params": [torch.zeros(1, 1, requires_grad=True)]})
        self._schedule = schedule.make({"optimizer": self._blank}, units)
        self._settings = list[dict[str, Json]]()

    def at(self, index: int) -> dict[str, Json]:
        while len(self._settings) <= index:
            if self._settings:
                self._blank.step()
                with warnings.catch_warnings(action="ignore"):  # of a sequence, about itself
                    self._schedule.step()
            (group,) = self._blank.param_groups
            set_by_schedules = ("lr", "momentum", "betas")
            self._settings.append({key: group[key] for key in set_by_schedules if key in group})
        return self._settings[index]


@functools.lru_cache(maxsize=256)
def _course(optimiser: LibraryClass, schedule: LibraryClass, rounds: int, steps: int) -> _Course:
    return _Course(optimiser, schedule, {"rounds": rounds, "steps": steps})


class LocalOptions(Base):
    """Options of local training, for all clients of a run or for the clients of one tier.

    Example:
        >>> halves = {"MultiStepLR": {"milestones": ["$rounds // 2"]}}
        >>> options = LocalOptions(lr=0.1, schedule=halves)
        >>> [round(options.settings_at(t, 100, 1, 1)["lr"], 6) for t in (1, 50, 51)]
        [0.1, 0.1, 0.01]
    """

    epochs: Count = Field(
        default=1, description="number of passes over the local data in one round"
    )
    batch: Count = Field(default=32, description="number of examples in a minibatch")
    accumulate: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="number of minibatches whose gradients are averaged for one step, "
        "weighted by their numbers of examples; default: 1",
        examples=[4],
    )
    optimiser: Annotated[LibraryClass, library_class("optimiser"), WRITTEN] | None = Field(
        default=None,
        description="a class of torch.optim with its arguments. The state of the optimiser is "
        "reset in every round. Default: SGD, with `lr`, `momentum` and `weight_decay`",
        examples=[{"AdamW": {"lr": 0.001, "betas": [0.9, 0.99]}}],
    )
    lr: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="learning rate of SGD; required without `optimiser`",
        examples=[0.05],
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="momentum of SGD; default: 0", examples=[0.9]
    )
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="weight decay of SGD; default: 0", examples=[0.0001]
    )
    schedule: Annotated[LibraryClass, library_class("schedule"), WRITTEN] | None = Field(
        default=None,
        description="a class of torch.optim.lr_scheduler with its arguments. In arguments, "
        "$rounds is the number of rounds and $steps is the number of steps per round. Default: "
        "the learning rate is constant",
        examples=[{"MultiStepLR": {"milestones": ["$rounds * 30 // 100"]}}],
    )
    over: Literal["round", "run"] | None = Field(
        default=None,
        description="when the schedule advances and restarts. Default: it advances after each "
        "round and never restarts. `run`: it advances after each step and never restarts. "
        "`round`: it advances after each step and restarts in each round. If a method trains "
        "head and body one after the other (FedRep), it restarts for each",
        examples=["round"],
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="maximum norm of the gradient; larger gradients are scaled down; default: "
        "no limit",
    )
    fraction: Share = Field(
        default=1.0,
        description="fraction of the local data that a client uses in a round (FedADP: 0.2)",
    )
    loss: Annotated[LibraryClass, library_class("loss"), WRITTEN] | None = Field(
        default=None,
        description="a class of torch.nn with its arguments, which is used as the training "
        "loss in place of the task's loss; default: the task's loss",
        examples=[{"CrossEntropyLoss": {"label_smoothing": 0.1}}],
    )
    proximal: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="μ of FedProx, for any strategy: adds μ/2 · ‖w − w_0‖² to the loss, where "
        "w_0 are the weights at the start of the training in the round; default: no such term",
        examples=[0.01],
    )
    transforms: Annotated[tuple[_Transform, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="classes of torchvision.transforms.v2 with their arguments, applied in order "
        "to each training image each time it is read; default: none",
        examples=[[{"RandomCrop": {"size": 32, "padding": 4}}, "RandomHorizontalFlip"]],
    )
    precision: Literal["bf16"] | None = Field(
        default=None,
        description="bf16: in training, compute matrix products and convolutions in bfloat16. "
        "Weights and tests keep their data type. Default: the data type of the weights",
        examples=["bf16"],
    )

    def consistent(self) -> LocalOptions:
        """Check that these options are consistent, and return them.

        Raises:
            Mistake: If one of the options would be ignored.
        """
        title = None if self.optimiser is None else self.optimiser.title
        for key in _OF_SGD:
            if title is not None and getattr(self, key) is not None:
                hint = f"write optimiser: {{{title}: {{{key}: …}}}}, or null here"
                facts: ErrorFacts = {"found": getattr(self, key), "hint": hint}
                raise Mistake("cannot be combined with `optimiser`", place=(key,), **facts)
        if self.over is not None and self.schedule is None:
            facts = {"found": self.over, "hint": "set `schedule`, or remove `over`"}
            raise Mistake("needs a schedule", place=("over",), **facts)
        return self

    @property
    def chosen(self) -> LibraryClass:
        """The option ``optimiser`` if set, else SGD with ``lr``, ``momentum`` and so on.

        >>> LocalOptions(lr=0.1, momentum=0.9).chosen.plain()
        {'SGD': {'lr': 0.1, 'momentum': 0.9}}
        """
        said = {key: getattr(self, key) for key in _OF_SGD if getattr(self, key) is not None}
        return self.optimiser or LibraryClass("optimiser", "torch.optim.SGD", said)

    def written(self) -> dict[str, Json]:
        """Return the options that were set, as plain values."""
        return self.model_dump(mode="json", exclude_none=True)

    def tuning(self) -> LocalOptions:
        """Return the options for fine-tuning before a test.

        Fine-tuning uses a constant learning rate, all examples, and no proximal term.
        """
        of_rounds = {"schedule": None, "over": None, "proximal": None}
        return self.model_copy(update={**of_rounds, "fraction": 1.0})

    def changed(self, changes: LocalOptions) -> LocalOptions:
        """Return a copy in which the options set in ``changes`` replace these options.

        If ``changes`` sets ``optimiser``, then ``lr``, ``momentum`` and ``weight_decay`` of these
        options are dropped.

        Raises:
            Mistake: If the result is inconsistent.

        >>> run = LocalOptions(lr=0.1, batch=8)
        >>> kind = run.changed(LocalOptions(lr=0.01))
        >>> kind.lr, kind.batch
        (0.01, 8)
        """
        said = {key: getattr(changes, key) for key in changes.model_fields_set}
        anew = {} if changes.optimiser is None else dict.fromkeys(_OF_SGD)
        return self.model_copy(update={**anew, **said}).consistent()

    def settings_at(self, round: int, rounds: int, step: int, steps: int) -> dict[str, Json]:
        """Return the optimiser settings (such as ``lr``) that the schedule sets for a step.

        Without a schedule, the dict is empty.

        Args:
            round: The round, counted from 1.
            rounds: Number of rounds.
            step: The step in the round, counted from 1. Used only if the option ``over`` is set.
            steps: Number of steps in the round.
        """
        if self.schedule is None:
            return {}
        places = {None: round, "round": step, "run": (round - 1) * steps + step}
        try:
            return _course(self.chosen, self.schedule, rounds, steps).at(places[self.over] - 1)
        except (ValueError, ArithmeticError, IndexError) as error:  # raised by PyTorch
            message, said = (
                "cannot set the learning rate",
                f"{self.schedule.title}: {error}",
            )
            raise RunError(message, where="local.schedule", found=said) from None


Local = Annotated[LocalOptions, pydantic.AfterValidator(LocalOptions.consistent)]


def rounds_of(span: float, rounds: int) -> float:
    """Return ``span`` in rounds. A value below 1 is a fraction of ``rounds``: 0.29 of 100 is 29.

    >>> rounds_of(0.29, 100), rounds_of(7, 100)
    (29.0, 7)
    """
    return round(span * rounds, 9) if span < 1 else span
