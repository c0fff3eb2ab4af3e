"""What is learned from the data, as an experiment says it."""

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
"""What is learned by an objective of the user's alone, without a kind."""


class TaskSpec(Base):
    """What is learned: outputs, loss and metrics."""

    kind: Kind | None = Field(
        default=None,
        description="`classification`: one class for each example. `multilabel`: 0 or 1 for each "
        "label. `regression`: numbers. `segmentation`: a class for each pixel. `next_token`: the "
        "next token at each position. Left out: nothing is known of the outputs but `objective`",
    )
    objective: Annotated[str, Field(pattern=r"^python:[^:]+:[^:]+$")] | None = Field(
        default=None,
        description="a loss of your own instead of the task's, `python:package.module:function`: "
        "of predictions and targets of a batch, their mean loss or one for each example",
        examples=["python:mine.losses:focal"],
    )
    metrics: tuple[MetricChoice, ...] = Field(
        default=(),
        description="what tests measure: names of figures of the task, or classes of torchmetrics "
        "with their arguments; models are compared by the first",
        examples=[["r2", {"SpearmanCorrCoef": {}}]],
    )
    output: str | int | None = Field(
        default=None,
        description="which output of the model is meant, by key or position; left out: the only "
        "one, or the one called logits",
        examples=["logits"],
    )
    auxiliary: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="weight in training of the loss of each further prediction that a model gives "
        "(GoogLeNet's auxiliary classifiers: 0.3); left out: 0, the main output alone is trained",
        examples=[0.3],
    )
    standardise: bool = Field(
        default=False,
        description="of a regression: models learn targets less their mean over the rows that are "
        "trained on (not those that `validation` holds out), divided by their standard deviation; "
        "metrics stay in the targets' own units",
    )

    @pydantic.model_validator(mode="after")
    def _defined(self) -> TaskSpec:
        if self.kind is None and self.objective is None:
            hint = "write kind: regression, say"
            raise Mistake("must name what is learned", expected="kind, or objective", hint=hint)
        if self.standardise and self.kind != "regression":
            facts: ErrorFacts = {"found": self.kind or "no kind", "expected": "kind: regression"}
            raise Mistake("applies to numeric targets only", place=("standardise",), **facts)
        return self

    @property
    def function(self) -> str | None:
        """The objective as ``package.module:function``."""
        return None if self.objective is None else self.objective.removeprefix(PYTHON)


TaskChoice = Annotated[TaskSpec, bare("kind", str, Kind | TaskSpec)]
