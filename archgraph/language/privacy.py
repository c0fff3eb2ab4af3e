"""The YAML of differential privacy in an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Base


class PrivacySpec(Base):
    """Client-level differential privacy of the published models.

    Source: McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language
    Models*, ICLR 2018, Algorithm 1 with the fixed-denominator estimator.
    """

    clip: Annotated[float, Field(gt=0)] = Field(
        description="C: largest allowed L2 norm of a client's update, computed over all "
        "values that are averaged"
    )
    noise: Annotated[float, Field(ge=0)] = Field(
        description="σ: the noise that is added to the sum of the updates has the standard "
        "deviation σ · C; 0: no noise and no guarantee"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="δ of (ε, δ)-differential privacy; choose it well below 1 / number of clients"
    )
    sampling: Literal["fixed", "poisson"] = Field(
        default="fixed",
        description="`fixed`: every round has exactly `sample` clients. `poisson`: each "
        "client is sampled independently with probability `sample` / number of clients, which "
        "results in a smaller ε",
    )
    entropy: Literal["seed", "system"] = Field(
        default="seed",
        description="source of the noise. seed: the seed of the run, so that the run can be "
        "repeated (for research). system: the operating system. The sampling of clients "
        "always depends on the seed",
    )
