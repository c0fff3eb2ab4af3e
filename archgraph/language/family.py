"""The YAML of families and experiments as pydantic models; values only, nothing is built here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Count, Mistake, Name, Natural, Share, Version
from archgraph.language.document import Document
from archgraph.language.local import LocalOptions as LocalOptions
from archgraph.language.local import rounds_of
from archgraph.plain import Json
from archgraph.rewrite.registry import ROWS

# A file beside this one, or a model written in place.
ModelSource = str | dict[str, Json]

if TYPE_CHECKING:

    class Rewrites(Base):
        """What is done to an architecture; its keys are the rows of the registry."""

        def __init__(self, **asked: Any) -> None: ...

else:
    Rewrites = pydantic.create_model(
        "Rewrites",
        __base__=Base,
        __doc__="What is done to an architecture, in the order of the keys.",
        **{row.name: (row.value_type, Field(default=None, description=row.help)) for row in ROWS},
    )


class _Client(Base):
    name: Name = Field(description="name of this kind of client, e.g. for shares of the data")
    count: Count = Field(default=1, description="number of clients of this kind")
    model: ModelSource | None = Field(
        default=None, description="a model of its own, aligned to the global"
    )
    choose: dict[str, Natural] | None = Field(
        default=None, description="choices of the family's model; {}: those that it has written"
    )


class MemberSpec(Rewrites, _Client):
    """One kind of client: how its architecture comes from the global one.

    Without ``model`` and ``choose`` it starts from the global architecture; with ``choose`` from
    the family's model with other choices; with ``model`` from a model of its own. What it starts
    from is then rewritten.
    """

    @pydantic.model_validator(mode="after")
    def _one_start(self) -> MemberSpec:
        if self.model is not None and self.choose is not None:
            raise Mistake(
                "has both a model and choices",
                place=("choose",),
                hint="choices belong to one model",
            )
        return self


class FamilySpec(Base):
    """A global model and the architectures of its clients."""

    archgraph: Version = 1
    name: str = Field(default="", description="for tables and pages")
    model: Literal["join"] | ModelSource | None = Field(
        default=None,
        description="the global model: a file, or a model in place; join: the least architecture "
        "that contains every client's model; left out: there is none. With the last two every "
        "client has a model of its own",
    )
    choose: dict[str, Natural] = Field(
        default={},
        description="choices of the global model; each one left out is the largest that any client "
        "makes, so that the global model contains all",
    )
    change: Rewrites = Field(
        default=Rewrites(),
        description="what is done to the global model, and to it with a client's choices, first",
    )
    clients: Annotated[tuple[MemberSpec, ...], Field(min_length=1)] = Field(
        description="kinds of client, each with an architecture"
    )

    # Where it was read from, so that mistakes found later can still be pointed at.
    _document: Document | None = pydantic.PrivateAttr(None)

    @pydantic.model_validator(mode="after")
    def _global(self) -> FamilySpec:
        if self.model in (None, "join"):
            if self.choose:
                raise Mistake(
                    "has choices of a global model, and none", place=("choose",), expected="a model"
                )
            if self.change != Rewrites():
                raise Mistake(
                    "changes a global model, and none is given",
                    place=("change",),
                    expected="a model",
                )
            for index, member in enumerate(self.clients):
                if member.model is None:
                    raise Mistake(
                        "has no model",
                        place=("clients", index),
                        found=member.name,
                        expected="a model of its own, since the family "
                        + ("has no global one" if self.model is None else "is their join"),
                    )
        return self

    @pydantic.model_validator(mode="after")
    def _unique(self) -> FamilySpec:
        seen: set[str] = set()
        for index, member in enumerate(self.clients):
            if member.name in seen:
                raise Mistake(
                    "names two kinds of client alike",
                    place=("clients", index, "name"),
                    found=repr(member.name),
                    expected="a name of its own",
                )
            seen.add(member.name)
        return self


def _at_most_all(value: dict[str, float]) -> dict[str, float]:
    total = sum(value.values())
    if total > 1 and not math.isclose(total, 1):
        raise Mistake("share out more than there is", found=f"{total:g}", expected="at most 1")
    return value


Shares = (
    Annotated[
        dict[Name, Share],
        pydantic.AfterValidator(_at_most_all),
        Field(
            min_length=1,
            description="kind of client → share of all examples that its clients own in equal "
            "parts, with all classes in proportion; the others share the rest",
        ),
    ]
    | None
)


MinSize = Annotated[Count, Field(description="least number of examples of a client")]
Alpha = Annotated[
    float, Field(gt=0, description="concentration: the smaller, the more unequal are the classes")
]


class IidSpec(Base):
    """A random order cut into equal shards."""

    scheme: Literal["iid"] = Field(default="iid", description="the scheme")
    min_size: MinSize = 1
    shares: Shares = None


class DirichletSpec(Base):
    """Shares of each class drawn from a Dirichlet distribution."""

    scheme: Literal["dirichlet"] = Field(description="the scheme")
    alpha: Alpha = 0.5
    min_size: MinSize = 10
    balanced: bool = Field(
        default=False, description="a client that has its equal part already gets nothing more"
    )
    shares: Shares = None


class EqualDirichletSpec(Base):
    """As many examples for each client, in classes drawn from a Dirichlet distribution."""

    scheme: Literal["equal_dirichlet"] = Field(description="the scheme")
    alpha: Alpha = 0.5
    min_size: MinSize = 1
    shares: Shares = None


class ClassesSpec(Base):
    """So many classes for each client."""

    scheme: Literal["classes"] = Field(description="the scheme")
    per_client: Count = Field(default=2, description="classes of a client")
    assignment: Literal["first-deterministic", "deterministic", "random"] = Field(
        default="first-deterministic",
        description="which classes: in turn, in turn from a drawn first one, or drawn",
    )
    min_size: MinSize = 1
    shares: Shares = None


PartitionSpec = Annotated[
    IidSpec | DirichletSpec | EqualDirichletSpec | ClassesSpec, Field(discriminator="scheme")
]


class DataSpec(Base):
    """Which data, and who owns what of it."""

    dataset: str = Field(
        description="digits, mnist, fashion_mnist, cifar10, cifar100, wikitext2; mnli and snli (of "
        "both the development set only, split anew), sick"
    )
    root: str | None = Field(
        default=None, description="folder of the files; default: $ARCHGRAPH_DATA"
    )
    partition: PartitionSpec = Field(
        default=IidSpec(), description="how the training examples are divided among the clients"
    )
    limit: Count | None = Field(default=None, description="at most so many examples of each split")
    bptt: Count = Field(default=64, description="length of a text window, tokens")
    length: Count | None = Field(
        default=None, description="tokens of a pair of sentences, padding among them; default: 128"
    )
    vocabulary: Count | None = Field(
        default=None,
        description="most tokens of the vocabulary learned from pairs of sentences; default: 8192",
    )
    tokenizer: str | None = Field(
        default=None,
        description="folder of a pretrained model's tokenizer, used for pairs of sentences instead "
        "of a learned vocabulary; relative to this file",
    )


class AttackSpec(Base):
    """Malicious clients (FedFA, Eq. 1)."""

    kind: Literal["label_shuffle"] = Field(
        default="label_shuffle", description="malicious clients train on shuffled labels"
    )
    fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="share of clients that are malicious"
    )
    intensity: Annotated[float, Field(ge=0)] = Field(default=20.0, description="λ of Eq. 1")


class EvaluateSpec(Base):
    """When the server measures, and how."""

    every: Count = Field(default=1, description="rounds between two evaluations")
    after: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="rounds (≥ 1) or a fraction of all rounds (< 1) before the first evaluation",
    )
    fine_tune: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="passes over a client's own data before a model is tested on its classes",
    )
    batch: Count = Field(default=256, description="examples in a batch of a test")
    statistics: Count | None = Field(
        default=None, description="training examples that static norm statistics are taken from"
    )

    def due(self, round: int, rounds: int) -> bool:
        """Whether to measure after a round (counted from 1) of so many; always after the last.

        Example:
            >>> late = EvaluateSpec(every=2, after=0.7)
            >>> [number for number in range(1, 12) if late.due(number, 11)]
            [8, 10, 11]
        """
        begun = round > rounds_of(self.after or 0.0, rounds)
        return round == rounds or (begun and round % self.every == 0)


class EngineSpec(Base):
    """Where the clients run."""

    kind: Literal["local"] = Field(default="local", description="on this machine")
    device: str = Field(default="cpu", description="cpu, or a device of PyTorch such as cuda:0")


def _short_engine(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Engine = Annotated[
    EngineSpec,
    pydantic.BeforeValidator(_short_engine, json_schema_input_type=Literal["local"] | EngineSpec),
]


# A name and its options, or `python` and the options beside it.
StrategyChoice = Annotated[
    dict[str, Json],
    pydantic.WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "required": ["python"],
                    "properties": {"python": {"type": "string", "pattern": "^[^:]+:.+$"}},
                },
                {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": {"type": ["object", "null"]},
                },
            ]
        }
    ),
]


class ExperimentSpec(Base):
    """Data, a family, a strategy, and how long."""

    archgraph: Version = 1
    name: str = Field(description="name of the run and of its folder")
    family: str | FamilySpec = Field(description="a file, or a family in place")
    data: DataSpec = Field(description="which data, and who owns what of it")
    strategy: StrategyChoice = Field(
        description="one strategy and its options, e.g. {fedfa: {percentile: 0.95}}; or a class of "
        "your own beside its options, e.g. {python: 'mine:Mine', percentile: 0.95}"
    )
    rounds: Count = Field(description="number of rounds")
    sample: Share | Count = Field(
        default=1.0, description="clients in a round: a number, or a share written with a point"
    )
    local: LocalOptions = Field(default=LocalOptions(), description="how clients train")
    attack: AttackSpec | None = Field(default=None, description="malicious clients")
    evaluate: EvaluateSpec = Field(default=EvaluateSpec(), description="when the server tests")
    engine: Engine = Field(default=EngineSpec(), description="where the clients run")
    seed: Natural = Field(default=0, description="every random number follows from it")
    out: str | None = Field(default=None, description="run folder; default: runs/NAME")

    @pydantic.field_validator("strategy")
    @classmethod
    def _one_strategy(cls, value: dict[str, Json]) -> dict[str, Json]:
        if "python" in value:
            name = value["python"]
            if not (isinstance(name, str) and all(name.partition(":"))):
                raise Mistake(
                    "does not name a Python class",
                    place=("python",),
                    found=repr(name),
                    expected="package.module:Class",
                )
        elif len(value) != 1:
            raise Mistake(
                "must name exactly one strategy",
                found=", ".join(value) or "none",
                expected="one, e.g. {fedfa: {}}",
            )
        else:
            ((name, options),) = value.items()
            if not isinstance(options, dict | None):
                raise Mistake(
                    "must be options by name",
                    place=(name,),
                    found=repr(options),
                    expected="a mapping, e.g. {percentile: 0.95}",
                )
        return value

    @property
    def strategy_name(self) -> str:
        """Name of the strategy, or of its Python class (``package.module:Class``)."""
        return str(self.strategy.get("python", next(iter(self.strategy))))

    @property
    def strategy_options(self) -> dict[str, Json]:
        """Options of the strategy, as the file has them."""
        if "python" in self.strategy:
            return {key: value for key, value in self.strategy.items() if key != "python"}
        return dict(self.strategy[self.strategy_name] or {})
