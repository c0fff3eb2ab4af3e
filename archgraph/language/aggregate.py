"""How a round's updates become one: rules that limit what a few clients can do to the mean.

Every rule is a row of :data:`RULES`. From it come the key of an experiment with its validation and
JSON schema, a topic of ``archgraph help``, and a row of the table in the docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Mistake
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.states.clipping import UpdateSize

Clip = Annotated[float, Field(gt=0)] | Literal["median"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as files, help and docs know it.

    Attributes:
        name: Of the key.
        options: Type of the key's value.
        help: What it does, in one sentence.
        example: A value, as YAML.
        promise: What holds afterwards.
        source: Who described it.
        main: The option that a bare value stands for; empty: a value is all there is.
    """

    name: str
    options: Any
    help: str
    example: str
    promise: str
    source: str
    main: str = ""


# In the order in which they are applied.
RULES: tuple[Rule, ...] = (
    Rule(
        "clip",
        Clip,
        "Scale larger updates down to an L2 norm, or to the median of the round's root mean "
        "squares.",
        "median",
        "no update is larger than the bound",
        "Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019",
    ),
)

if TYPE_CHECKING:

    class _Rules(Base):
        clip: float | Literal["median"] | None

        def __init__(self, **asked: Any) -> None: ...

else:
    _Rules = pydantic.create_model(
        "_Rules",
        __base__=Base,
        **{
            rule.name: (rule.options | None, Field(default=None, description=rule.help))
            for rule in RULES
        },
    )


class AggregateSpec(_Rules):
    """What limits the part of single clients in the mean; rules are applied in this order."""

    @pydantic.model_validator(mode="after")
    def _any(self) -> AggregateSpec:
        if all(getattr(self, rule.name) is None for rule in RULES):
            raise Mistake("names no rule", expected=f"one of {', '.join(r.name for r in RULES)}")
        return self

    def factor(self, size: UpdateSize, median: float) -> float:
        """Factor of an update that is clipped, at most 1.

        Args:
            size: Of the update.
            median: Of the round's root mean squares; 0 limits nothing.

        Example:
            >>> from archgraph.states.clipping import UpdateSize
            >>> AggregateSpec(clip=1.0).factor(UpdateSize(norm=4.0, values=100), median=0.1)
            0.25
            >>> AggregateSpec(clip="median").factor(UpdateSize(norm=4.0, values=100), median=0.1)
            0.25
        """
        if self.clip is None:
            return 1.0
        relative = self.clip == "median"
        largest, found = (median, size.rms) if relative else (float(self.clip), size.norm)
        return largest / found if found > largest > 0 else 1.0


def _long(value: Any) -> Any:
    """The long form of a rule's name, and of values that stand for their main option."""
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping):
        return value
    mains = {rule.name: rule.main for rule in RULES if rule.main}
    return {
        key: {mains[key]: inner} if key in mains and not isinstance(inner, Mapping) else inner
        for key, inner in value.items()
    }


Aggregate = Annotated[
    AggregateSpec,
    pydantic.BeforeValidator(_long, json_schema_input_type=AggregateSpec),
]


def rule_table() -> Table:
    """All rules, in the order in which they are applied.

    Example:
        >>> rule_table().rows[0][2]
        'clip: median'
    """
    rows = tuple((r.name, r.help, f"{r.name}: {r.example}", r.promise, r.source) for r in RULES)
    return Table(
        "Rules", ("name", "what it does", "in a file", "what holds afterwards", "source"), rows
    )
