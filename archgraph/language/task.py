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
"""Kind of a task that only an objective in Python defines."""


class TaskSpec(Base):
    """The learning task: outputs, loss and metrics."""

    kind: Kind | None = Field(
        default=None,
        description="`classification`: one class for each example. `multilabel`: 0 or 1 for "
        "each label. `regression`: numbers. `segmentation`: a class for each pixel. "
        "`next_token`: the next token at each position of a text. Default: `objective` alone "
        "defines the task",
    )
    objective: Annotated[str, Field(pattern=r"^python:[^:]+:[^:]+$")] | None = Field(
        default=None,
        description="your own loss function in place of the loss of the task, "
        "`python:package.module:function`. It receives predictions and targets of a batch, "
        "and returns their mean loss or a loss for each example",
        examples=["python:mine.losses:focal"],
    )
    metrics: tuple[MetricChoice, ...] = Field(
        default=(),
        description="metrics of the tests: names of metrics of the task, or classes of "
        "torchmetrics with their arguments; the first metric is used to compare models",
        examples=[["r2", {"SpearmanCorrCoef": {}}]],
    )
    output: str | int | None = Field(
        default=None,
        description="key or index of the model output to use; default: the only output, or "
        "the output named logits",
        examples=["logits"],
    )
    auxiliary: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="weight of the loss of each additional output in the training loss (0.3 for "
        "GoogLeNet's auxiliary classifiers); default: 0, so that only the main output is trained",
        examples=[0.3],
    )
    standardise: bool = Field(
        default=False,
        description="for regression: subtract the mean from the targets and divide them by "
        "their standard deviation, both computed over the training rows without those that "
        "`validation` holds out; metrics stay in the original units of the targets",
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
