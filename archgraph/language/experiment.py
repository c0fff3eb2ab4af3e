"""The YAML of experiments: data, a family, a strategy, and the number of rounds."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.errors import SpecError
from archgraph.fields import (
    Base,
    Count,
    Mistake,
    NamedChoice,
    Natural,
    Share,
    Version,
    bare,
)
from archgraph.hints import unknown
from archgraph.language.aggregate import Aggregate
from archgraph.language.data import Data, DataSpec, NamedData
from archgraph.language.document import FromFile
from archgraph.language.family import FamilySpec
from archgraph.language.local import Local, LocalOptions, rounds_of
from archgraph.language.privacy import PrivacySpec
from archgraph.language.server import Server
from archgraph.language.task import TaskChoice
from archgraph.language.validation import ValidationChoice
from archgraph.language.weights import WeightsSpec
from archgraph.plain import Json
from archgraph.tables import plural

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class AttackSpec(Base):
    """Malicious clients, which train on shuffled labels (FedFA, Eq. 1)."""

    fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="fraction of clients that are malicious"
    )
    intensity: Annotated[float, Field(ge=0)] = Field(default=20.0, description="λ of Eq. 1")
    among: Literal["clients", "own"] = Field(
        default="clients",
        description="clients: the labels of all malicious clients are shuffled together, as "
        "in the paper; own: the labels of each malicious client are shuffled separately",
    )
    within: Literal["tiers"] | None = Field(
        default=None,
        description="tiers: draw the same fraction of malicious clients from each kind of "
        "client, which reduces the variation between seeds; default: draw malicious clients "
        "from all clients, as in the paper",
        examples=["tiers"],
    )


class EvaluateSpec(Base):
    """Settings of evaluation."""

    every: Count = Field(default=1, description="rounds between two evaluations")
    after: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="start of the run that is not evaluated: a number of rounds (≥ 1), or a "
        "fraction of all rounds (< 1); default: none",
    )
    fine_tune: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="fine-tune a model on a client's own data for this number of epochs before "
        "it is tested on the client's classes. Fine-tuning uses all training data of the client "
        "and a constant learning rate; `schedule` and `proximal` do not apply",
    )
    trained: Literal[True] | None = Field(
        default=None,
        description="true: also test each client's model after local training and before "
        "aggregation (FedFA, §5.2)",
        examples=[True],
    )
    answers: Literal[True] | None = Field(
        default=None,
        description="true: record for each test example which models classified it correctly, "
        "so that studies can resample the examples (only for data with one class per example)",
        examples=[True],
    )
    batch: Count = Field(default=256, description="number of examples in a test batch")
    statistics: Count | None = Field(
        default=None,
        description="number of training examples from which the statistics of static norms "
        "(`norm: static`) are computed; default: all. The examples are processed in equal "
        "batches of at most 256",
    )

    def due(self, round: int, rounds: int) -> bool:
        """Return whether to evaluate after a round (counted from 1); always after the last one.

        Example:
            >>> late = EvaluateSpec(every=2, after=0.7)
            >>> [number for number in range(1, 12) if late.due(number, 11)]
            [8, 10, 11]
        """
        # Not rounded: with 0.7 of 11 rounds (7.7), the first evaluation is due in round 8.
        begun = round > rounds_of(self.after or 0.0, rounds)
        return round == rounds or (begun and round % self.every == 0)


# Entry points of this group are functions that run an experiment outside this process. They take
# the arguments of `archgraph.engine.execute`, and `data` and `python` of `archgraph.run`.
ENGINES = "archgraph.engines"
LOCAL = "local"


@functools.cache
def installed_engines() -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return a dict from the name of each installed engine except ``local`` to its entry point."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENGINES)}


def _installed(name: str) -> str:
    names = (LOCAL, *installed_engines())
    if name not in names:
        raise Mistake("is not an engine", **unknown(name, names))
    return name


EngineName = Annotated[
    str,
    pydantic.AfterValidator(_installed),
    pydantic.WithJsonSchema({"enum": [LOCAL, *installed_engines()]}),
]


class EngineSpec(Base):
    """Settings of the engine that runs the clients."""

    kind: EngineName = Field(
        default="local",
        description="local: train all clients on this machine; flower: train them in Flower's "
        "simulation, on one machine or a cluster of Ray",
    )
    device: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default="cpu",
        description="cpu, or a PyTorch device such as cuda; with a list, clients train on all "
        "devices in parallel, one process per device",
        examples=["cuda", ["cuda:0", "cuda:1"]],
    )
    workers: Count | None = Field(
        default=None,
        description="number of single-threaded processes that train clients in parallel; 1: "
        "everything runs in one process. Default on the CPU: the number of PyTorch's threads, "
        "but clients that train for less than 0.02 s stay in one process. Default on other "
        "devices: one process per device",
        examples=[4],
    )
    deadline: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="time limit for the training of a client in a round, in seconds; default: "
        "no limit",
        examples=[60.0],
    )
    memory: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="memory limit for the process of a client, in megabytes; default: no limit",
        examples=[2000.0],
    )

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the clients. The server uses the first one.

        Example:
            >>> EngineSpec(device="cuda").devices, EngineSpec(device=("cuda:0", "cuda:1")).devices
            (('cuda',), ('cuda:0', 'cuda:1'))
        """
        return (self.device,) if isinstance(self.device, str) else self.device

    @property
    def kind_of_device(self) -> str:
        """Type of the devices, without device indices.

        Example:
            >>> EngineSpec(device=("cuda:0", "cuda:1")).kind_of_device
            'cuda'
        """
        return self.devices[0].partition(":")[0]

    @property
    def places(self) -> tuple[str, ...]:
        """Devices (other than the CPU) on which clients train in separate processes, or empty.

        Example:
            >>> EngineSpec(device="cuda").places, EngineSpec(device="cuda", workers=2).places
            ((), ('cuda',))
        """
        # A deadline needs separate processes, since a client that exceeds it is ended with its
        # process.
        apart = len(self.devices) > 1 or (self.workers or 1) > 1 or self.deadline is not None
        return self.devices if apart and self.kind_of_device != "cpu" else ()

    @pydantic.model_validator(mode="after")
    def _devices_of_one_kind(self) -> EngineSpec:
        kinds = {name.partition(":")[0] for name in self.devices}
        # A device without a number is the first one: cuda is cuda:0.
        numbered = {name if ":" in name else f"{name}:0" for name in self.devices}
        several = len(self.devices) > 1
        if len(kinds) > 1 or len(numbered) < len(self.devices) or (several and kinds == {"cpu"}):
            raise Mistake(
                "must name different devices of one kind, or one processor",
                place=("device",),
                found=list(self.devices),
                hint="set the number of processes with engine.workers",
            )
        return self


Engine = Annotated[EngineSpec, bare("kind", str, EngineName | EngineSpec)]


# Entry points of this group are strategies by name.
STRATEGIES = "archgraph.strategies"


@functools.lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> importlib.metadata.EntryPoints:
    """Return the entry points of strategies. Cached per search path, as a lookup takes 10 ms."""
    return importlib.metadata.entry_points(group=STRATEGIES)


def installed_strategy(name: str) -> importlib.metadata.EntryPoint:
    """Return the entry point of an installed strategy.

    Raises:
        SpecError: If no strategy has this name, or packages define different strategies with this
            name.

    Example:
        >>> installed_strategy("fedavg").value
        'archgraph.strategies.fedavg:FedAvg'
    """
    every = _entry_points(tuple(sys.path))
    # By value: a package may be on the path twice (installed, and as a working copy).
    offered = {entry.value: entry for entry in every.select(name=name)}
    if not offered:
        raise SpecError("unknown strategy", where="strategy", **unknown(name, sorted(every.names)))
    if len(offered) > 1:
        message = f"several packages define a strategy named {name}"
        raise SpecError(
            message,
            where="strategy",
            found=", ".join(sorted(offered)),
            hint="rename yours, or name the class: strategy: {python: 'package.module:Class'}",
        )
    return next(iter(offered.values()))


def strategy_options(cls: type[DataclassInstance]) -> list[dataclasses.Field[Json]]:
    """Return the options of a strategy: the fields of its own class, then inherited fields."""
    # `dataclasses.fields` begins with the base class; help begins with the method's own options.
    own_first = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    fields = (field for field in dataclasses.fields(cls) if field.init)
    return sorted(fields, key=lambda field: own_first.index(field.name))


# A name, a name and its options, or `python` with the options next to it.
StrategyChoice = Annotated[
    dict[str, Json],
    pydantic.WithJsonSchema(
        {
            "title": "Strategy",
            "anyOf": [
                {"type": "string"},
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
            ],
        }
    ),
]


_DEPENDS = "the effect of an update would depend on the other updates; `privacy` already clips"
# Keys that break the guarantee of `privacy`, and why. The proof assumes one clipped update per
# client.
_NOT_PRIVATE = {
    "aggregate": _DEPENDS,
    "bound": _DEPENDS,
    "also": "a client would return several updates per round, but `privacy` bounds only one",
    "validation": "metrics on the clients' held-out examples would select the published round "
    "without clipping or noise, and ε does not cover this",
}


class ExperimentSpec(FromFile):
    """An experiment: data, a family of architectures, a strategy, and a number of rounds."""

    archgraph: Version = 1
    name: str = Field(description="name of the run and of its folder")
    family: str | FamilySpec = Field(description="a family file, or an inline family")
    data: Data = Field(
        default=DataSpec(), description="the data, and how it is divided among the clients"
    )
    task: TaskChoice | None = Field(
        default=None,
        description="the learning task; default: predict the class of each example, or the "
        "next token",
    )
    weights: WeightsSpec | None = Field(
        default=None,
        description="a file with the global model's initial weights; default: the model's own "
        "weights, or else weights drawn from the seed",
    )
    strategy: StrategyChoice = Field(
        description="name of a strategy, e.g. fedavg; a strategy with options, e.g. {fedfa: "
        "{percentile: 0.95}}; or your own class with its options, e.g. {python: 'mine:Mine', "
        "percentile: 0.95}"
    )
    rounds: Count = Field(description="number of rounds")
    sample: Share | Count = Field(
        default=1.0,
        description="number of clients per round, or a fraction of the clients, written with a "
        "decimal point",
    )
    also: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] | None = Field(
        default=None,
        min_length=1,
        description="tier (kind of client) → further tiers whose models its clients train in "
        "addition to their own, e.g. {strong: [weak]} (RecipFL, §5.1). The update of each "
        "additional model is weighted like the client's own update. A client is tested only on "
        "its own model",
        examples=[{"strong": ["weak"]}],
    )
    patience: Count = Field(
        default=5, description="stop after this many consecutive rounds without an accepted update"
    )
    bound: Annotated[float, Field(ge=1)] | None = Field(
        default=None,
        description="limit on the change of a client's weights, as a multiple of the median "
        "change in the round; larger updates are refused. The updates of a round are stored "
        "on disk until all have arrived",
        examples=[3.0],
    )
    aggregate: Aggregate | None = Field(
        default=None,
        description="rules that limit the influence of single clients on the aggregated weights",
    )
    privacy: PrivacySpec | None = Field(
        default=None, description="client-level differential privacy; default: none"
    )
    validation: ValidationChoice | None = Field(
        default=None,
        description="training examples that are held out to select a round; default: none",
    )
    public: Count | NamedData | None = Field(
        default=None,
        description="examples that every client has in addition to its own (FedMD). A number: "
        "this number of training examples is set aside before `data.partition` divides the "
        "rest. A mapping: another data set that archgraph knows by name, with the same input "
        "shape, e.g. {dataset: mnist, limit: 500}. Default: none",
        examples=[200],
    )
    local: Local = Field(default=LocalOptions(), description="options of local training")
    server: Server | None = Field(
        default=None,
        description="an optimiser of the server, which uses the change of the clients' mean "
        "as its gradient; default: the clients' mean replaces the weights",
        examples=[{"optimiser": "adam", "lr": 0.01}],
    )
    attack: AttackSpec | None = Field(default=None, description="malicious clients; default: none")
    evaluate: EvaluateSpec = Field(default=EvaluateSpec(), description="settings of evaluation")
    engine: Engine = Field(default=EngineSpec(), description="settings of the engine")
    trackers: tuple[NamedChoice, ...] = Field(
        default=(),
        description="trackers that log every round, in addition to metrics.jsonl: console, "
        "csv, tensorboard; with options, e.g. {csv: {path: figures.csv}}",
        examples=[["tensorboard"]],
    )
    seed: Natural = Field(default=0, description="seed of all random numbers")
    out: str | None = Field(default=None, description="run folder; default: runs/NAME")

    @pydantic.field_validator("strategy", mode="before")
    @classmethod
    def _one_strategy(cls, value: object) -> object:
        if isinstance(value, str):
            return {value: {}}
        if not isinstance(value, dict):
            return value
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
            names = ", ".join(map(str, value)) or "none"
            raise Mistake(
                "must name exactly one strategy", found=names, expected="one, e.g. {fedfa: {}}"
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

    @pydantic.model_validator(mode="after")
    def _private_alone(self) -> ExperimentSpec:
        for key, why in _NOT_PRIVATE.items():
            if self.privacy is not None and getattr(self, key) is not None:
                raise Mistake("cannot be combined with `privacy`", place=(key,), hint=why)
        return self

    @pydantic.model_validator(mode="after")
    def _rate_is_set(self) -> ExperimentSpec:
        if self.local.optimiser is None and self.local.lr is None:
            hint = "write `local: {lr: 0.05}`, or an optimiser with its arguments"
            raise Mistake("the learning rate is missing", place=("local", "lr"), hint=hint)
        return self

    def summary(self) -> str:
        """Summarise strategy, data and number of rounds."""
        family = Path(self.family).name if isinstance(self.family, str) else self.family.summary()
        return f"{self.name}: {self.strategy_name}, {plural(self.rounds, 'round')}; {family}"

    @property
    def strategy_name(self) -> str:
        """Name of the strategy, or of its Python class (``package.module:Class``)."""
        # The options of a Python class are next to `python`, in any order.
        return str(self.strategy.get("python", next(iter(self.strategy))))

    @property
    def strategy_options(self) -> dict[str, Json]:
        """Options of the strategy, as written in the file."""
        if "python" in self.strategy:
            return {key: value for key, value in self.strategy.items() if key != "python"}
        return dict(self.strategy[self.strategy_name] or {})
