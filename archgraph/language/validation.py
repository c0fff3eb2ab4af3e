"""The YAML of validation: training examples that are held out to select a round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Base, Count, bare

Part = Annotated[float, Field(gt=0, lt=1)]


class ValidationSpec(Base):
    """Training examples that are held out to select a round."""

    clients: Part = Field(
        description="fraction of the training examples of every client that is held out",
        examples=[0.1],
    )
    keep: Literal["last", "best"] = Field(
        default="last",
        description="the final model: last: the model of the last round; best: the model of "
        "the round with the best metric on the held-out examples",
    )
    patience: Count | None = Field(
        default=None,
        description="stop after this many consecutive tests without improvement; default: no limit",
    )
    metric: str | None = Field(
        default=None,
        description="metric by which the best round is selected; default: the first metric of "
        "the task",
        examples=["loss"],
    )
    of: Literal["global", "worst", "local"] = Field(
        default="global",
        description="the model whose metric is compared: the global model, the worst tier "
        "(clients with one architecture), or the mean over the clients",
    )

    @property
    def selects(self) -> bool:
        """Whether the validation metrics select a round or stop the run."""
        return self.keep == "best" or self.patience is not None


ValidationChoice = Annotated[ValidationSpec, bare("clients", (int, float), Part | ValidationSpec)]
