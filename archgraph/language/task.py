"""The YAML of the learning task."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.errors import ErrorFacts
from archgraph.fields import Base, Mistake, bare
from archgraph.language.consent import PYTHON
from archgraph.language.named import WRITTEN, LibraryClass, library_class

Kind = Literal["classification", "multilabel", "regression", "segmentation", "next_token"]
OWN_METRICS = ("loss", "accuracy", "iou", "perplexity", "f1", "mse", "rmse", "mae", "r2")
MetricChoice = Annotated[str | LibraryClass, library_class("metric", OWN_METRICS), WRITTEN]
OWN = "own"
"""The kind of a task with only a user's objective."""


class TaskSpec(Base):
    """The learning task: outputs, loss and metrics."""

    kind: Kind | None = Field(
        default=None,
        description="`classification`: one class for each example. `multilabel`: 0 or 1 for each "
        "label. `regression`: numbers. `segmentation`: a class for each pixel. `next_token`: the "
        "next token at each position. Default: the outputs are known only to `objective`",
    )
    objective: Annotated[str, Field(pattern=r"^python:[^:]+:[^:]+$")] | None = Field(
        default=None,
        description="your own loss instead of the task's, `python:package.module:function`: maps "
        "predictions and targets of a batch to their mean loss or one per example",
        examples=["python:mine.losses:focal"],
    )
    metrics: tuple[MetricChoice, ...] = Field(
        default=(),
        description="metrics of tests: names of figures of the task, or classes of torchmetrics "
        "with their arguments; models are compared by the first",
        examples=[["r2", {"SpearmanCorrCoef": {}}]],
    )
    output: str | int | None = Field(
        default=None,
        description="the model's output to use, by key or position; default: the only one, or the "
        "one called logits",
        examples=["logits"],
    )
    auxiliary: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="weight of the training loss of each additional prediction of a model "
        "(GoogLeNet's auxiliary classifiers: 0.3); default: 0, only the main output is trained",
        examples=[0.3],
    )
    standardise: bool = Field(
        default=False,
        description="for regression: models learn targets minus their mean over the rows that are "
        "trained on (not those that `validation` holds out), divided by their standard deviation; "
        "metrics stay in the targets' own units",
    )

    @pydantic.model_validator(mode="after")
    def _defined(self) -> TaskSpec:
        if self.kind is None and self.objective is None:
            hint = "e.g. kind: regression"
            raise Mistake(
                "must name a kind or an objective", expected="kind, or objective", hint=hint
            )
        if self.standardise and self.kind != "regression":
            facts: ErrorFacts = {"found": self.kind or "no kind", "expected": "kind: regression"}
            raise Mistake("applies to numeric targets only", place=("standardise",), **facts)
        return self

    @property
    def function(self) -> str | None:
        """The objective as ``package.module:function``."""
        return None if self.objective is None else self.objective.removeprefix(PYTHON)


TaskChoice = Annotated[TaskSpec, bare("kind", str, Kind | TaskSpec)]
