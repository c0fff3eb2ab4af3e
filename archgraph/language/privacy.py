"""Differential privacy of an experiment, as a spec says it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Base


class PrivacySpec(Base):
    """Differential privacy of what the server publishes, for whole clients.

    Source: McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language
    Models*, ICLR 2018, Algorithm 1 with the estimator of fixed denominator.
    """

    clip: Annotated[float, Field(gt=0)] = Field(
        description="C: largest L2 norm of what a client changes, over all that is averaged"
    )
    noise: Annotated[float, Field(ge=0)] = Field(
        description="σ: standard deviation of the noise on every sum, in units of C; 0: no promise"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="δ of (ε, δ): well below 1 by the number of clients"
    )
    sampling: Literal["fixed", "poisson"] = Field(
        default="fixed",
        description="`fixed`: a round has exactly the number of clients that `sample` says. "
        "`poisson`: each client takes part with that probability, which gives a smaller ε",
    )
    entropy: Literal["seed", "system"] = Field(
        default="seed",
        description="where noise comes from: the seed of the run, so that it can be repeated (for "
        "research), or the operating system; the choice of clients always follows from the seed",
    )
