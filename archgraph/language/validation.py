"""Held-out training examples, and the selection by them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Base, Count, bare

Part = Annotated[float, Field(gt=0, lt=1)]


class ValidationSpec(Base):
    """Held-out training examples, and selection of a round by them."""

    clients: Part = Field(
        description="share of every client's examples that is held out", examples=[0.1]
    )
    keep: Literal["last", "best"] = Field(
        default="last",
        description="final model: that of the last round, or of the best round on these examples",
    )
    patience: Count | None = Field(
        default=None,
        description="stop after this many consecutive tests without improvement; default: no limit",
    )
    metric: str | None = Field(
        default=None,
        description="metric of the selection; default: the task's first metric",
        examples=["loss"],
    )
    of: Literal["global", "worst", "local"] = Field(
        default="global",
        description="figure of the global model, of the worst tier, or the clients' mean",
    )

    @property
    def selects(self) -> bool:
        """Whether anything depends on the figures."""
        return self.keep == "best" or self.patience is not None


ValidationChoice = Annotated[ValidationSpec, bare("clients", (int, float), Part | ValidationSpec)]
