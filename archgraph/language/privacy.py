"""The YAML of differential privacy in an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Base


class PrivacySpec(Base):
    """Client-level differential privacy of the published models.

    Source: McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language
    Models*, ICLR 2018, Algorithm 1 with the estimator of fixed denominator.
    """

    clip: Annotated[float, Field(gt=0)] = Field(
        description="C: largest L2 norm of a client's update, over all averaged values"
    )
    noise: Annotated[float, Field(ge=0)] = Field(
        description="σ: standard deviation of the noise on every sum, in units of C; 0: no "
        "guarantee"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="δ of (ε, δ): well below 1 / number of clients"
    )
    sampling: Literal["fixed", "poisson"] = Field(
        default="fixed",
        description="`fixed`: a round has exactly the number of clients in `sample`. `poisson`: "
        "each client is sampled with that probability, which results in a smaller ε",
    )
    entropy: Literal["seed", "system"] = Field(
        default="seed",
        description="source of the noise: the seed of the run, so that it can be repeated (for "
        "research), or the operating system; the choice of clients always follows from the seed",
    )
