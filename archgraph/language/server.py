"""The YAML of the server's optimiser."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Mistake, bare
from archgraph.plain import Json

ServerOptimiser = Literal["momentum", "adam", "yogi", "adagrad"]

# The keys of each optimiser, with their defaults.
_ADAPTIVE: dict[str, Json] = {"lr": 0.1, "beta1": 0.9, "tau": 0.001, "bias_correction": "none"}
DEFAULTS: dict[str, dict[str, Json]] = {
    "momentum": {"lr": 1.0, "momentum": 0.9},
    "adam": {**_ADAPTIVE, "beta2": 0.99},
    "yogi": {**_ADAPTIVE, "beta2": 0.99},
    "adagrad": _ADAPTIVE,
}

Decay = Annotated[float, Field(ge=0, lt=1)]


class ServerSpec(Base):
    """An optimiser at the server.

    Its gradient is the difference between the server's weights and the mean of the clients'
    weights.

    Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, Algorithm 2; momentum: Hsu,
    Qi, Brown, *Measuring the Effects of Non-Identical Data Distribution*, 2019.
    """

    optimiser: ServerOptimiser = Field(
        description="`momentum` (FedAvgM; SGD if `momentum` is 0), `adam`, `yogi` or "
        "`adagrad` (FedAdam, FedYogi, FedAdagrad)"
    )
    lr: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="η: server learning rate; default: 1 for `momentum`, 0.1 for the others",
    )
    momentum: Decay | None = Field(
        default=None,
        description="β of `momentum`: fraction of the last step that is added to the next step; "
        "default: 0.9",
        examples=[0.9],
    )
    beta1: Decay | None = Field(
        default=None,
        description="β₁ of FedAdam, FedYogi and FedAdagrad: decay of the first moment; "
        "default: 0.9",
        examples=[0.9],
    )
    beta2: Decay | None = Field(
        default=None,
        description="β₂ of FedAdam and FedYogi: decay of the second moment; default: 0.99",
        examples=[0.99],
    )
    tau: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="τ of FedAdam, FedYogi and FedAdagrad: added to the square root of the "
        "second moment; default: 0.001",
    )
    bias_correction: Literal["none", "flower"] | None = Field(
        default=None,
        description="`none`: second moments begin at τ², as in the paper. `flower`: second "
        "moments begin at 0, and the learning rate of FedAdam is corrected for it, as in "
        "Flower. Default: none",
        examples=["flower"],
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _is_flat(cls, value: Json) -> Json:
        if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in DEFAULTS:
            expected = f"{{optimiser: {name}, lr: …}}"
            message = "must name the optimiser with the key `optimiser`"
            raise Mistake(message, found=f"{{{name}: …}}", expected=expected)
        return value

    @pydantic.model_validator(mode="after")
    def _is_read(self) -> ServerSpec:
        known = DEFAULTS[self.optimiser]
        for key in sorted(self.model_fields_set - {"optimiser"} - known.keys()):
            if getattr(self, key) is not None:
                raise Mistake(
                    f"is not an option of {self.optimiser}",
                    place=(key,),
                    found=getattr(self, key),
                    expected=f"one of {', '.join(known)}",
                )
        return self

    @property
    def values(self) -> dict[str, Json]:
        """The options of the optimiser, including defaults.

        >>> ServerSpec(optimiser="momentum", lr=0.5).values
        {'lr': 0.5, 'momentum': 0.9}
        """
        said = {key: getattr(self, key) for key in DEFAULTS[self.optimiser]}
        return {
            key: DEFAULTS[self.optimiser][key] if value is None else value
            for key, value in said.items()
        }


Server = Annotated[ServerSpec, bare("optimiser", str, ServerOptimiser | ServerSpec)]
