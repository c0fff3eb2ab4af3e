"""Aggregation rules that limit the influence of a few clients on the aggregated weights.

Every rule is a row of :data:`RULES`. The row defines a key of ``aggregate`` with its validation and
JSON schema, a topic of ``archgraph help``, and a row of a table in the docs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import BeforeValidator, Field

from archgraph.fields import Base, Count, Mistake, bare
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.states.clipping import UpdateSize

# Below one half, so that some clients are always left.
Minority = Annotated[float, Field(ge=0, lt=0.5)]
Quorum = Annotated[
    Count,
    Field(description="number of clients that must train a weight; otherwise the weight stays"),
]


class KrumOptions(Base):
    """Options of ``krum``."""

    malicious: Minority = Field(
        description="fraction of a round's clients that may be malicious. It is rounded down to "
        "a number f of clients, and a round needs at least 2·f + 3 clients"
    )
    keep: Count = Field(
        default=1, description="number of updates that are averaged; more than 1 gives multi-Krum"
    )


class MedianOptions(Base):
    """Options of ``median``."""

    quorum: Quorum = 1

    def cut(self, count: int) -> int:
        """Return the number of values to drop at each end: all except the middle one or two."""
        return max((count - 1) // 2, 0)


class TrimmedMeanOptions(Base):
    """Options of ``trimmed_mean``."""

    share: Minority = Field(
        description="fraction of the clients' values that is dropped at each end; the number of "
        "dropped values is rounded down"
    )
    quorum: Quorum = 1

    def cut(self, count: int) -> int:
        """Return the number of values to drop at each end, out of `count`.

        Example:
            >>> [TrimmedMeanOptions(share=0.29).cut(n) for n in (3, 4, 100)]
            [0, 1, 29]
        """
        return rounded_share(self.share, count)


def rounded_share(share: float, count: int) -> int:
    """Return ``share * count``, rounded down: 0.29 of 100 is 29, not 28.999…."""
    # Rounded first: 0.29 · 100 is slightly less than 29 in binary.
    return math.floor(round(share * count, 9))


Clip = Annotated[float, Field(gt=0)] | Literal["median"]
KrumChoice = Annotated[KrumOptions, bare("malicious", (int, float), Minority | KrumOptions)]
TrimmedMeanChoice = Annotated[
    TrimmedMeanOptions, bare("share", (int, float), Minority | TrimmedMeanOptions)
]


@dataclass(frozen=True, slots=True)
class Rule:
    """An aggregation rule, with its key in files and its texts in help and docs.

    Attributes:
        name: Name of the key.
        options: Type of the key's value.
        help: A one-sentence description.
        example: A value, as YAML.
        promise: The guarantee that the rule gives.
        source: The publication that introduced the rule.
    """

    name: str
    options: object
    help: str
    example: str
    promise: str
    source: str


# In the order in which they are applied.
RULES: tuple[Rule, ...] = (
    Rule(
        "clip",
        Clip,
        "Scale updates down to a maximum L2 norm, or to the median root mean square of the "
        "updates in the round.",
        "median",
        "no update is larger than the bound",
        "Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019",
    ),
    Rule(
        "krum",
        KrumChoice,
        "Select the updates that are nearest to their neighbours; only these are averaged.",
        "{malicious: 0.2, keep: 3}",
        "if at least 2·f + 3 clients train the same weights, and at most f of these clients are "
        "malicious, the selected updates are near the majority; if clients have few weights in "
        "common, the selection is a heuristic",
        "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017",
    ),
    Rule(
        "median",
        MedianOptions,
        "Take the median of the clients' values for each weight; every client counts equally.",
        "{quorum: 3}",
        "if more than half of the clients that train a weight are honest, its new value lies "
        "between values of honest clients",
        "Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, "
        "Definition 1",
    ),
    Rule(
        "trimmed_mean",
        TrimmedMeanChoice,
        "Drop the smallest and largest of the clients' values for each weight, and average the "
        "others; every client counts equally.",
        "0.2",
        "if the number of malicious clients is at most the number of values dropped at each "
        "end, the new value lies between values of honest clients",
        "Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, "
        "Definition 2",
    ),
)

if TYPE_CHECKING:

    class _Rules(Base):
        clip: float | Literal["median"] | None = None
        krum: KrumOptions | None = None
        median: MedianOptions | None = None
        trimmed_mean: TrimmedMeanOptions | None = None

        def __init__(self, **rules: object) -> None: ...

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
    """Rules that limit the influence of single clients. They are applied in this order."""

    @pydantic.model_validator(mode="after")
    def _rules(self) -> AggregateSpec:
        if all(getattr(self, rule.name) is None for rule in RULES):
            raise Mistake("must name a rule", expected=f"one of {', '.join(r.name for r in RULES)}")
        if self.median is not None and self.trimmed_mean is not None:
            raise Mistake("names two replacements of the mean", found="median, trimmed_mean")
        return self

    @property
    def middle(self) -> MedianOptions | TrimmedMeanOptions | None:
        """The rule that replaces the mean of the updates; None if the mean is used."""
        return self.median or self.trimmed_mean

    def factor(self, size: UpdateSize, median: float) -> float:
        """Return the factor, at most 1, by which an update is scaled down to clip it.

        Args:
            size: Size of the update.
            median: Median root mean square of the round's updates; 0 means no limit.

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
        # A norm grows with the number of weights, which differs between tiers; a mean square does
        # not.
        largest, norm = (median, size.rms) if relative else (float(self.clip), size.norm)
        return largest / norm if norm > largest > 0 else 1.0


def _named(value: object) -> object:
    # `aggregate: median`, the one rule that needs no options.
    return {value: {}} if isinstance(value, str) else value


Aggregate = Annotated[
    AggregateSpec, BeforeValidator(_named, json_schema_input_type=Literal["median"] | AggregateSpec)
]


def rule_table() -> Table:
    """Return all rules, in the order in which they are applied.

    Example:
        >>> rule_table().rows[0][2]
        'clip: median'
    """
    rows = tuple((r.name, r.help, f"{r.name}: {r.example}", r.promise, r.source) for r in RULES)
    return Table("Rules", ("name", "what it does", "in a file", "guarantee", "source"), rows)
