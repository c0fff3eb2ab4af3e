"""From a spec to an experiment: graphs, weights, clients with their shares of the data."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archgraph.data import ROOT_VARIABLE, Dataset
from archgraph.data.doors import read_data
from archgraph.data.given import dataset_of
from archgraph.data.partition import allot, class_histogram
from archgraph.data.validation import Selection, hold_out
from archgraph.engine.clients import further
from archgraph.engine.experiment import Experiment
from archgraph.engine.facts import as_resolved, facts, family_of
from archgraph.engine.fit import answers, check_images, matched, results, with_main_output
from archgraph.engine.lost import check_taken_up, explained
from archgraph.engine.pretrained import pretrained_family
from archgraph.engine.privacy import check_privacy
from archgraph.engine.returned import each_returned, returned
from archgraph.engine.task import check_strategy, learning_task
from archgraph.errors import RunError
from archgraph.federation import (
    Client,
    Evaluated,
    LearningTask,
    Logits,
    ServerState,
    State,
    Strategy,
    Tier,
    World,
    configure,
)
from archgraph.federation.family import Family, resolve
from archgraph.graph.ir import Ref
from archgraph.hints import listed
from archgraph.language import ExperimentSpec, allowed, load_experiment
from archgraph.language.aggregate import AggregateSpec, rounded_share
from archgraph.language.data import DataSpec, IidSpec, NamedData
from archgraph.language.experiment import EngineSpec
from archgraph.module.initial import initial_state
from archgraph.ops.table import statistics


def prepare(
    experiment: str | os.PathLike[str] | ExperimentSpec | Mapping[str, Any],
    *,
    data_root: str | os.PathLike[str] | None = None,
    data: object = None,
    imagined: Dataset | None = None,
    family: Family | None = None,
    python: bool = False,
) -> Experiment:
    """Resolve an experiment: read its files, make its graphs, load and share out its data.

    Args:
        experiment: A file, what was read from one, or keys and values as a file would say them,
            where a model may be a graph or what ``ag.trace`` returns.
        data_root: Folder of the data. Default: the spec's, else what ``ARCHGRAPH_DATA`` names.
        data: Data instead of those that the experiment names, in any form that
            :func:`archgraph.data.dataset_of` takes; its partition stays.
        imagined: What stands in for the data; such an experiment can begin, but it has neither text
            nor facts by which a run is recorded. Default: the data is loaded.
        family: The family, if it is resolved already.
        python: Consent to run the Python code that the experiment and its models name.

    Raises:
        SpecError: If a file cannot be understood, or names Python code without your consent.
        RewriteError: If a client's architecture cannot be made.
        DataError: If the data is missing or damaged, or cannot be shared out so.
        RunError: If model, data and strategy do not fit one another.
    """
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    with spec.locating("engine"):
        _check_processes(spec.engine)
        device = _device(spec.engine)
    with allowed(python):
        with spec.locating("strategy"):
            strategy = configure(spec.strategy_name, spec.strategy_options)
        family = family or resolve(family_of(spec))
    with spec.locating("strategy"):
        _check_options(spec, strategy, family)
    named, found = _data(spec, data, imagined, data_root, python)
    with allowed(python), spec.locating("task"):
        learning = learning_task(spec.task, found)
    with spec.locating("strategy"):
        check_strategy(strategy, spec.strategy_name, learning)
    with spec.locating("local"):
        check_images(spec.local.augment, found)
    with spec.locating("family"):
        family, found = matched(family, found, learning)
        learning = with_main_output(learning, list(family.models.values()))
    if spec.weights is not None:
        with spec.locating("weights"):
            family = pretrained_family(
                spec.weights, family, spec.seed, imagined=imagined is not None
            )
    kinds = [member.name for member in family.clients for _ in range(member.count)]
    with spec.locating("sample"):
        sampled = _sampled(spec.sample, len(kinds))
    if spec.spare is not None:
        with spec.locating("spare"):
            _check_spare(spec, spec.spare, sampled, len(kinds))
    if spec.aggregate is not None:
        with spec.locating("aggregate"):
            _check_rules(spec.aggregate, sampled)
    with spec.locating("family"):
        found = _assigned(family_of(spec).owners, found)
    if found.owners:
        with spec.locating("data"):
            shares = _owned(named, found, len(kinds))
    else:
        partition = named.partition or IidSpec()
        named = named.model_copy(update={"partition": partition})
        with spec.locating("data", "partition"):
            scheme = partition.model_dump()
            shares = allot(found.train.targets, tiers=kinds, seed=spec.seed, **scheme)
    spec = spec.model_copy(update={"data": named})
    selection = None
    with spec.locating("validation"):
        shares, held = hold_out(shares, spec.validation, spec.seed, ordered=found.kind == "text")
        if spec.validation is not None:
            selection = Selection.of(spec.validation, learning)
    world = _world(spec, family, found, shares, learning, device)
    return Experiment(
        world=world,
        strategy=strategy,
        data=found,
        shares=tuple(shares[client.owner] for client in world.clients),
        local=spec.local,
        evaluate=spec.evaluate,
        engine=spec.engine,
        attack=spec.attack,
        sampled=sampled,
        selection=selection,
        held=held,
        spare=spec.spare or 0,
        patience=spec.patience,
        bound=spec.bound,
        privacy=spec.privacy,
        text="" if imagined else as_resolved(spec, strategy),
        facts={} if imagined else facts(spec, strategy, family, found),
        locating=spec.locating,
    )


def _check_options(spec: ExperimentSpec, strategy: Strategy, family: Family) -> None:
    """Refuse what the strategy cannot do, or does not read."""
    if strategy.needs_global and not family.has_global:
        raise RunError(
            "the strategy needs a global model",
            where=f"strategy.{spec.strategy_name}",
            found="a family without one",
            expected="a model that contains the clients' models",
            hint="write `model: join` in the family, or name a model file",
        )
    for key in ("aggregate", "also"):
        if getattr(spec, key) is not None:
            _check_averages(strategy, spec.strategy_name, key)
    ignored = sorted(spec.local.model_fields_set & strategy.unread)
    if ignored:
        with spec.locating("local"):
            raise RunError(
                "the strategy's clients do not read it",
                where=f"local.{ignored[0]}",
                found=getattr(spec.local, ignored[0]),
                hint="leave it out",
            )


def _check_averages(strategy: Strategy, name: str, key: str) -> None:
    """Refuse a key that changes what is averaged, or how, where the strategy does more."""
    if not strategy.averages:
        raise RunError(
            "the strategy does not average by `covered_mean` or `group_means` alone",
            where=f"strategy.{name}",
            found=f"`{key}`, which changes what these do",
            expected="an experiment without it, or another strategy",
            hint="a strategy of your own that averages by them alone says `averages = True`",
        )


def _data(
    spec: ExperimentSpec,
    data: object,
    imagined: Dataset | None,
    data_root: str | os.PathLike[str] | None,
    python: bool,
) -> tuple[DataSpec, Dataset]:
    """Return the data of a run, and what says which they are; arguments as for :func:`prepare`."""
    named, located = spec.data, spec.locating("data")
    if data is not None:
        named, located = DataSpec(partition=spec.data.partition), contextlib.nullcontext()
    elif isinstance(named, NamedData):
        root = data_root or named.root or os.environ.get(ROOT_VARIABLE)
        path = None if root is None else str(Path(root).expanduser().absolute())
        named = named.model_copy(update={"root": path})
    task = None if spec.task is None else spec.task.kind
    with located, allowed(python):
        found = imagined or (dataset_of(data) if data is not None else read_data(named, task))
    return named, found


def _owned(named: DataSpec, data: Dataset, clients: int) -> tuple[np.ndarray, ...]:
    """Training examples of each client, as the data says."""
    if named.partition is not None:
        raise RunError(
            "the data is partitioned by client already",
            where="data.partition",
            found=f"a partition, and data of {len(data.owners)} clients ({data.name})",
            expected="one of them",
            hint="leave `partition` out, or the clients out of the data",
        )
    if len(data.owners) != clients:
        names = list(data.owners)
        raise RunError(
            "the family has another number of clients than the data",
            where="data",
            found=f"{clients} clients in the family",
            expected=f"{len(names)}: {listed(names)}",
            hint=f"let `count` of the family's clients add up to {len(names)}",
        )
    return tuple(data.owners.values())


def _assigned(owners: Sequence[str], data: Dataset) -> Dataset:
    """Return the data with its clients in the order in which the family names them."""
    if not owners:
        return data
    if sorted(owners) != sorted(map(str, data.owners)):
        raise RunError(
            "does not name the data's clients, each once",
            where="family.clients",
            found=", ".join(owners),
            expected=", ".join(map(str, data.owners)) or "data that says whose each example is",
        )
    own = {str(name): examples for name, examples in data.owners.items()}
    return dataclasses.replace(data, owners={name: own[name] for name in owners})


def begun(experiment: Experiment) -> ServerState:
    """Return the strategy's first state, once it is known that its models can be tested.

    Raises:
        RunError: If the strategy refuses this world, or :func:`testable` its models.
    """
    strategy, world = experiment.strategy, experiment.world
    with experiment.locating("strategy"), explained(world):
        first = returned(ServerState, strategy.init(world), strategy, "init")
    # A strategy that surveys its clients has its models only afterwards.
    if next(iter(strategy.survey(world, first)), None) is None:
        with experiment.locating("family"):
            testable(experiment, first)
    if experiment.privacy is not None:
        with experiment.locating("privacy"):
            _check_averages(strategy, type(strategy).__name__, "privacy")
            check_privacy(experiment, first)
    return first


def testable(experiment: Experiment, state: ServerState) -> None:
    """Check that models answer what is asked, and that what is said about tests is read.

    Raises:
        RunError: If a model's outputs do not fit the task, an option of ``evaluate`` changes the
            test of no model, or what a client trains would be thrown away.
    """
    strategy, asked = experiment.strategy, experiment.evaluate
    check_taken_up(experiment, state)
    learning = experiment.world.learning
    recomputed = tuned = several = False
    models = strategy.evaluated(experiment.world, state)
    for model in each_returned(Evaluated, models, strategy, "evaluated"):
        answers(model, experiment.data, learning)
        several |= any(not isinstance(given, Ref) for given in results(model.graph))
        recomputed |= model.statistics == "recompute" and bool(statistics(model.graph))
        tuned |= bool(model.clients) and model.program is None
    output = learning.predict.output if isinstance(learning.predict, Logits) else None
    for key, value in (("auxiliary", learning.auxiliary), ("output", output)):
        with experiment.locating("task"):
            if value and not several:
                raise RunError(
                    "changes nothing: each model gives a single result, in training, too",
                    where=f"task.{key}",
                    found=value,
                    hint="leave it out",
                )
    with experiment.locating("evaluate"):
        if asked.statistics is not None and not recomputed:
            raise RunError(
                "changes nothing: no model is tested with running statistics that are recomputed",
                where="evaluate.statistics",
                found=asked.statistics,
                expected="models with batch norm, and a strategy with `norm: static`",
                hint="leave it out",
            )
        if asked.fine_tune is not None and not tuned:
            raise RunError(
                "changes nothing: no model is tested on its clients as it was sent to them",
                where="evaluate.fine_tune",
                found=asked.fine_tune,
                expected="models with clients, and no training of the strategy's own before a test",
                hint="leave it out",
            )


def _world(
    spec: ExperimentSpec,
    family: Family,
    data: Dataset,
    shares: tuple[np.ndarray, ...],
    learning: LearningTask,
    device: str,
) -> World:
    members = [member for member in family.clients for _ in range(member.count)]
    clients = tuple(
        Client(
            id=i,
            name=member.name,
            examples=len(own),
            histogram=tuple(class_histogram(data.train.targets[own], data.classes).tolist()),
        )
        for i, (member, own) in enumerate(zip(members, shares, strict=True))
    )
    state = family.state if family.state is not None else initial_state(family.graph, spec.seed)
    return World(
        graph=family.graph,
        state=state,
        clients=further(clients, spec.also or {}),
        tiers=tuple(_started(t, family, state, spec.seed) for t in family.clients),
        classes=data.classes or 0,
        rounds=spec.rounds,
        seed=spec.seed,
        device=device,
        aggregate=spec.aggregate,
        learning=learning,
    )


def _started(tier: Tier, family: Family, state: State, seed: int) -> Tier:
    """Give a tier its first weights: its own model's, the global ones, or random ones."""
    if tier.own:
        return tier
    if family.has_global:
        return replace(tier, source=state)
    return replace(tier, source=initial_state(tier.graph, seed), own=True)


def _sampled(sample: float | int, clients: int) -> int:
    """Clients in a round.

    >>> _sampled(0.1, 25), _sampled(1.0, 25), _sampled(7, 25), _sampled(0.01, 25)
    (3, 25, 7, 1)
    """
    if isinstance(sample, float):
        return max(int(sample * clients + 0.5), 1)
    if sample > clients:
        raise RunError(
            "more clients in a round than there are",
            where="sample",
            found=sample,
            expected=f"1...{clients}, or a share written with a point",
        )
    return sample


def _check_spare(spec: ExperimentSpec, spare: int, sampled: int, clients: int) -> None:
    """Refuse more spare clients than there are, and what compares all clients of a round."""
    if sampled + spare > clients:
        raise RunError(
            "more clients in a round than there are",
            where="spare",
            found=f"{sampled} and {spare} spare ones",
            expected=f"at most {clients} together",
            hint="lower `sample`",
        )
    median = spec.aggregate is not None and spec.aggregate.clip == "median"
    against = {
        "bound": spec.bound,
        "aggregate.clip": median,
        "privacy": spec.privacy,
        "also": spec.also,
    }
    refused = [name for name, value in against.items() if value]
    if refused:
        raise RunError(
            f"does not go together with `{refused[0]}`, which looks at all clients of a round",
            where="spare",
            found=spare,
            hint=f"leave out `spare` or `{refused[0]}`",
        )


def _check_rules(rules: AggregateSpec, clients: int) -> None:
    """Refuse rounds that are too small for Krum's guarantee, or for a quorum."""
    if rules.middle is not None and rules.middle.quorum > clients:
        raise RunError(
            "a quorum that no round reaches: nothing would ever change",
            where="aggregate",
            found=f"quorum {rules.middle.quorum}",
            expected=f"at most {clients}, the clients of a round",
        )
    if rules.krum is None:
        return
    malicious = rounded_share(rules.krum.malicious, clients)
    if clients < 2 * malicious + 3:
        raise RunError(
            "too few clients in a round for Krum",
            where="aggregate.krum",
            found=f"{clients}, of which {malicious} may be malicious",
            expected=f"{2 * malicious + 3} or more",
            hint="lower `malicious`, or sample more clients",
        )
    if rules.krum.keep > clients - malicious:
        raise RunError(
            "Krum would keep malicious clients' updates, too",
            where="aggregate.krum.keep",
            found=rules.krum.keep,
            expected=f"at most {clients - malicious} of {clients}",
        )


def _check_processes(engine: EngineSpec) -> None:
    """Refuse what processes on a device cannot do."""
    if engine.memory is not None and engine.kind_of_device != "cpu":
        raise RunError(
            "is bounded on the processor only: a device reserves more than it uses",
            where="engine.memory",
            found=f"device {engine.device}",
            expected="cpu",
        )


def _device(engine: EngineSpec) -> str:
    """Return the device that the server uses.

    Raises:
        RunError: If one of the devices cannot be used.
    """
    names = engine.devices if engine.kind == "local" else engine.devices[:1]
    for name in names:
        trouble = _trouble(name)
        if trouble is not None:
            raise RunError(
                "cannot compute there",
                where="engine.device",
                found=f"{name!r} ({trouble.splitlines()[0]})",
                expected="cpu, or a device that this machine has and this build of PyTorch can use",
            )
    return names[0]


def _trouble(name: str) -> str | None:
    """Return why nothing can be computed on a device; None if it can."""
    try:
        torch.device(name)
    except RuntimeError:  # its text is a list of all that there is
        return "no such device is known to PyTorch"
    try:
        float(torch.zeros(1, device=name))  # `meta` has no values
    except NotImplementedError:  # as above
        return "this build of PyTorch computes nothing there"
    except (RuntimeError, AssertionError, ImportError) as error:
        return str(error).strip() or type(error).__name__
    return None
