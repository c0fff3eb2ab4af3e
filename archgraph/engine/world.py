"""Prepare experiments: build graphs and weights, load data and distribute it to clients."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from archgraph.data import ROOT_VARIABLE, Dataset, Split
from archgraph.data.doors import data_from_python, read_data
from archgraph.data.partition import allot, class_histogram
from archgraph.data.validation import Selection, hold_out, subset
from archgraph.engine.classes import in_order_of_folder
from archgraph.engine.clients import further
from archgraph.engine.experiment import Experiment
from archgraph.engine.facts import as_resolved, deciding_facts, family_of, local_by_kind
from archgraph.engine.fit import (
    check_outputs,
    matched,
    results,
    with_main_output,
    with_spare_tokens,
)
from archgraph.engine.pretrained import pretrained_family
from archgraph.engine.privacy import check_privacy
from archgraph.engine.public import other_public, public_shard, reserve_public
from archgraph.engine.recalibration import check_enough_examples
from archgraph.engine.returned import each_returned, returned
from archgraph.engine.rows import NONE, ClientRows
from archgraph.engine.settings import check_local
from archgraph.engine.stays_with_clients import check_private, explained
from archgraph.engine.task import check_strategy, learning_task, standardised
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
from archgraph.federation.training_loss import trained_task
from archgraph.federation.world import Uncounted
from archgraph.graph.ir import Ref
from archgraph.hints import listed
from archgraph.language import ExperimentSpec, allowed, load_experiment
from archgraph.language.aggregate import AggregateSpec, rounded_share
from archgraph.language.data import DataSpec, IidSpec, NamedData
from archgraph.language.experiment import LOCAL, EngineSpec
from archgraph.language.local import LocalOptions
from archgraph.language.task import OWN
from archgraph.module.initial import initial_state
from archgraph.ops.table import statistics
from archgraph.tables import plural

T = TypeVar("T")

# Maximum number of bytes of results that are merged together.
WAIT = 2**28


def prepare(
    experiment: str | os.PathLike[str] | ExperimentSpec | Mapping[str, Any],
    *,
    data_root: str | os.PathLike[str] | None = None,
    data: object = None,
    imagined: Dataset | None = None,
    family: Family | None = None,
    rows: Mapping[int, ClientRows] | None = None,
    python: bool = False,
) -> Experiment:
    """Resolve an experiment: read its files, build its graphs, load and distribute its data.

    1. Configure the strategy, and build the architectures of the family.
    2. Read the data.
    3. Check that models, data and task match.
    4. Read initial weights, if they are in a file, and compute the number of clients per round.
    5. Distribute the training examples over the clients, except public examples.
    6. Hold out training examples for validation.
    7. Assemble the :class:`~archgraph.engine.experiment.Experiment`.

    Args:
        experiment: A file, the result of ``load_experiment``, or a dict with the keys of a file. In
            a dict, a model may be a graph or the result of ``ag.trace``.
        data_root: Folder of the data. Default: ``data.root`` in the experiment, or else the
            environment variable ``ARCHGRAPH_DATA``.
        data: Data to use instead of the experiment's data, in any form that
            :func:`archgraph.data.doors.data_from_python` accepts. The experiment's partition is
            still used.
        imagined: Placeholder for the data, so that an experiment can be checked without data.
            Default: load the data.
        family: The family, if it is already resolved.
        rows: If training data stays on the clients' machines, a dict from client to the indices of
            the client's training examples. On the server, the dict contains all clients. On the
            machine of a client, the dict contains only this client. Default: the training data is
            on this machine, and the experiment's partition distributes it.
        python: If True, allow running the Python code to which the experiment and its models refer.

    Raises:
        SpecError: If a file is invalid, or refers to Python code and ``python`` is False.
        RewriteError: If a client's architecture cannot be built.
        DataError: If the data is missing or damaged, or cannot be distributed as the experiment
            requires.
        RunError: If model, data and strategy do not match.
    """
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    with spec.locating("engine"):
        device = _device(spec.engine)
    draft = _Draft(spec, device, data_root, imagined is not None, rows)
    with allowed(python):
        draft.choose_method(family)
        draft.read_data(data, imagined)
        draft.fit_together()
        draft.plan_rounds()
        draft.share_out()
        draft.set_aside()
        return draft.experiment()


@dataclass(eq=False)
class _Draft:
    """An experiment in preparation: each stage sets fields that later stages read.

    Attributes:
        spec: The experiment's file; stage 2 adds the folder of the data, stage 5 its partition.
        device: Device of the server.
        data_root: Folder of the data.
        imagined: Whether zeros replace the data, for a dry run.
        rows: Dict from client to the numbers of its examples, if these are on the client's machine.
        strategy: The method (stage 1).
        family: The architectures (stages 1, 3 and 4).
        dataset: The data (stages 2, 3, 5 and 6).
        learning: The learning task (stages 3 and 6).
        by_kind: Dict from kind of client to its own options of local training (stage 3).
        sampled: Number of clients in a round (stage 4).
        shares: Indices of the training examples of each client (stages 5 and 6).
        public: Indices of the public examples (stage 5).
        other: Public examples from another data set (stage 6).
        held_out: Indices of the held-out examples (stage 6).
        selection: Options for selecting a round by its metrics on held-out examples (stage 6).
        seedless: The data before stages that depend on the seed (stage 6).
    """

    spec: ExperimentSpec
    device: str
    data_root: str | os.PathLike[str] | None
    imagined: bool
    rows: Mapping[int, ClientRows] | None
    strategy: Strategy = field(init=False)
    family: Family = field(init=False)
    dataset: Dataset = field(init=False)
    learning: LearningTask = field(init=False)
    by_kind: Mapping[str, LocalOptions] = field(init=False)
    sampled: int = field(init=False)
    shares: tuple[np.ndarray, ...] = field(init=False)
    public: np.ndarray = field(default_factory=lambda: np.arange(0))
    other: Split | None = None
    held_out: np.ndarray = field(init=False)
    selection: Selection | None = None
    seedless: Dataset = field(init=False)

    @property
    def members(self) -> list[Tier]:
        """The tier of each client."""
        return [member for member in self.family.clients for _ in range(member.count)]

    def choose_method(self, family: Family | None) -> None:
        """Configure the strategy and build the architectures of its clients (stage 1)."""
        spec = self.spec
        with spec.locating("strategy"):
            self.strategy = configure(spec.strategy_name, spec.strategy_options)
        self.family = family or resolve(family_of(spec))
        with spec.locating("strategy"):
            _check_options(spec, self.strategy, self.family)

    def read_data(self, data: object, imagined: Dataset | None) -> None:
        """Read the data that the experiment names, or that was passed as an argument (stage 2)."""
        spec = self.spec
        source, located = spec.data, spec.locating("data")
        if data is not None:  # the cause is not a line of the file
            source, located = DataSpec(partition=source.partition), contextlib.nullcontext()
        task = None if spec.task is None else spec.task.kind or OWN
        source, public = _rooted(source, self.data_root), _rooted(spec.public, self.data_root)
        with located:
            if imagined is None:
                imagined = read_data(source, task) if data is None else data_from_python(data, task)
        changed = {"data": source} if data is not None else {}
        self.spec = spec.model_copy(update=changed).completed(data=source, public=public)
        self.dataset = imagined

    def fit_together(self) -> None:
        """Match models, data and task, or raise an error if they do not fit (stage 3)."""
        spec, strategy, family = self.spec, self.strategy, self.family
        dataset = in_order_of_folder(with_spare_tokens(self.dataset, family), family_of(spec))
        with spec.locating("task"):
            learning = learning_task(spec.task, dataset)
        with spec.locating("strategy"):
            check_strategy(strategy, spec.strategy_name, learning)
        self.by_kind = local_by_kind(spec)
        with spec.locating("family"):
            family, dataset = matched(family, dataset, learning)
            learning = with_main_output(learning, list(family.models.values()))
        check_local(spec, self.by_kind, family, dataset, learning)
        self.family, self.dataset, self.learning = family, dataset, learning

    def plan_rounds(self) -> None:
        """Set the initial weights, and the number of clients in a round (stage 4)."""
        spec, clients = self.spec, len(self.members)
        if spec.weights is not None:
            with spec.locating("weights"):
                self.family = pretrained_family(
                    spec.weights, self.family, spec.seed, imagined=self.imagined
                )
        with spec.locating("sample"):
            self.sampled = _sampled(spec.sample, clients)
        with spec.locating("aggregate"):
            _check_rules(spec.aggregate, self.sampled)

    def share_out(self) -> None:
        """Distribute the training examples to the clients, and choose public examples (stage 5)."""
        spec, members = self.spec, self.members
        if self.rows is not None:
            _check_rows(spec, self.strategy, self.rows)
            self.shares = tuple(self.rows.get(i, NONE).positions() for i in range(len(members)))
        else:
            with spec.locating("family"):
                self.dataset = _assigned(family_of(spec).owners, self.dataset)
            self.shares = self._owned() if self.dataset.owners else self._partitioned()
        if self.dataset.train.stream is not None:
            _check_stream(spec, self.strategy, self.family)

    def _owned(self) -> tuple[np.ndarray, ...]:
        """Return the training examples of each client, if the data names the clients."""
        with self.spec.locating("data"):
            _check_owners(self.spec.data, self.dataset, len(self.members))
        with self.spec.locating("public"):
            shares = tuple(self.dataset.owners.values())
            shares, self.public = reserve_public(self.spec, shares, self.dataset)
        return shares

    def _partitioned(self) -> tuple[np.ndarray, ...]:
        """Distribute the training examples by the scheme of the experiment's ``partition``."""
        spec, dataset = self.spec, self.dataset
        # Public examples are removed before the partition, so that equal parts stay equal.
        with spec.locating("public"):
            every = (np.arange(len(dataset.train)),)
            (pool,), self.public = reserve_public(spec, every, dataset)
        scheme = spec.data.partition or IidSpec()
        with spec.locating("data", "partition"):
            parts = allot(
                dataset.train.targets[pool] if len(self.public) else dataset.train.targets,
                tiers=[member.name for member in self.members],
                seed=spec.seed,
                ordered=not dataset.separate,
                **scheme.model_dump(),
            )
        shares = tuple(pool[part] for part in parts)
        data = spec.data.model_copy(update={"partition": scheme})
        self.spec = spec.model_copy(update={"data": data})
        self.dataset = _noted(dataset, pool, shares)
        return shares

    def set_aside(self) -> None:
        """Hold out examples for validation, and scale inputs and targets without them (stage 6)."""
        spec, strategy, dataset = self.spec, self.strategy, self.dataset
        with spec.locating("public"):
            self.other = other_public(spec, strategy, dataset, imagined=self.imagined)
        with spec.locating("validation"):
            self.shares, self.held_out = hold_out(
                self.shares, spec.validation, spec.seed, ordered=dataset.consecutive
            )
            if spec.validation is not None:
                self.selection = Selection.of(spec.validation, self.learning)
        self.seedless = dataset  # held-out examples depend on the seed
        # Held-out examples do not affect the scaling of inputs and targets.
        scaled_by = np.arange(len(dataset.train))
        if len(self.held_out):
            seen = [*self.shares, *([self.public] if strategy.public else [])]
            scaled_by = np.unique(np.concatenate(seen))
            self.dataset = dataset.normalised_by(scaled_by)
        if spec.task is not None and spec.task.standardise:
            targets = self.dataset.train.targets[scaled_by]
            self.learning = standardised(self.learning, targets)

    def experiment(self) -> Experiment:
        """Assemble the experiment (stage 7)."""
        spec, strategy, family, dataset = self.spec, self.strategy, self.family, self.dataset
        world = self._world()
        return Experiment(
            world=world,
            strategy=strategy,
            data=dataset,
            # An additional model is trained on the examples of its client.
            shares=tuple(self.shares[client.owner] for client in world.clients),
            local=spec.local,
            by_kind=self.by_kind,
            evaluate=spec.evaluate,
            engine=spec.engine,
            attack=spec.attack,
            sampled=self.sampled,
            selection=self.selection,
            held_out=self.held_out,
            patience=spec.patience,
            bound=spec.bound,
            privacy=spec.privacy,
            text="" if self.imagined else as_resolved(spec, strategy),
            # The facts contain digests of the data, which a dry run does not have.
            facts={}
            if self.imagined
            else deciding_facts(spec, strategy, family, self.seedless, self.other, self.rows),
            locating=spec.locating,
        )

    def _world(self) -> World:
        spec, family, data = self.spec, self.family, self.dataset
        # The weights of a traced model or a file, or else random weights from the seed.
        state = family.state if family.state is not None else initial_state(family.graph, spec.seed)
        public = subset(data.train, self.public) if len(self.public) else self.other
        return World(
            graph=family.graph,
            state=state,
            clients=further(tuple(self._clients()), spec.also or {}),
            tiers=tuple(_started(t, family, state, spec.seed) for t in family.clients),
            classes=data.classes or 0,
            rounds=spec.rounds,
            seed=spec.seed,
            device=self.device,
            merging=self.device if _merges_there(spec, self.strategy) else "cpu",
            aggregate=spec.aggregate,
            learning=self.learning,
            public=None if public is None else public_shard(public, data),
            server=spec.server,
            wait=WAIT,
        )

    def _clients(self) -> Iterator[Client]:
        for i, (member, examples) in enumerate(zip(self.members, self.shares, strict=True)):
            if self.rows is not None:
                histogram = self.rows.get(i, NONE).counts
            elif self.dataset.train.stream is not None:
                histogram = Uncounted()
            else:
                targets = np.asarray(self.dataset.train.targets)[examples]
                histogram = tuple(class_histogram(targets, self.dataset.classes).tolist())
            client = Client(i, member.name, len(examples), histogram)
            yield replace(client, counted=self._counted(client))

    def _counted(self, client: Client) -> float | None:
        """Return the total weight of a client's targets in its loss; None if each counts 1."""
        if isinstance(client.histogram, Uncounted):
            return None if self.rows is None else self.rows.get(client.id, NONE).targets
        local = self.by_kind.get(client.name, self.spec.local)
        return trained_task(self.learning, local).counts_of(client.histogram)


def _check_options(spec: ExperimentSpec, strategy: Strategy, family: Family) -> None:
    """Check that the strategy supports the experiment's options."""
    if strategy.needs_global and not family.has_global:
        raise RunError(
            "the strategy needs a global model, which the family lacks",
            where=f"strategy.{spec.strategy_name}",
            hint="write `model: join` in the family, or the name of a model file",
        )
    for key in ("aggregate", "also", "server"):
        if getattr(spec, key) is not None:
            _check_averages(strategy, spec.strategy_name, key)
    if spec.server is not None and strategy.corrected:
        raise RunError(
            f"cannot be combined with `server`: {strategy.corrected}",
            where=f"strategy.{spec.strategy_name}",
            hint="remove `server`, or the strategy's own correction",
        )


def _check_stream(spec: ExperimentSpec, strategy: Strategy, family: Family) -> None:
    """Check that no option needs single examples of a stream, or numbers of examples per class."""
    for key, hint in (
        ("validation", "remove it"),
        ("public", "use another data set as public examples"),
        ("attack", "remove it"),
    ):
        if getattr(spec, key) is not None and not isinstance(getattr(spec, key), NamedData):
            raise RunError(
                "examples of a stream can be neither held out nor relabelled", where=key, hint=hint
            )
    keys = [key for key in ("mask_absent", "label_rows") if getattr(strategy, key, False)]
    instead = [f"{key}: false" for key in keys]
    if getattr(strategy, "norm", "") == "static" and any(
        statistics(t.graph) for t in family.clients
    ):
        keys, instead = [*keys, "norm: static"], [*instead, "another norm, e.g. norm: averaged"]
    if keys:
        raise RunError(
            "the options need counts of examples per class, or statistics of all examples, "
            "which streams do not have",
            where=f"strategy.{spec.strategy_name}",
            found=", ".join(keys),
            expected=", ".join(instead),
        )
    if strategy.reads_labels:
        raise RunError(
            "needs the number of examples per class of each client, which is unknown for streams",
            where=f"strategy.{spec.strategy_name}",
            hint="pass the data as a torch dataset with __len__ and __getitem__",
        )


def _check_rows(spec: ExperimentSpec, strategy: Strategy, rows: Mapping[int, ClientRows]) -> None:
    """Check that no option needs examples at the server, if clients' machines store them."""
    for client, known in rows.items():
        if strategy.reads_labels and known.histogram is None:
            raise RunError(
                "does not report its number of examples per class",
                where=f"client {client}",
                found="labels=false",
                expected=f"these numbers for {spec.strategy_name}",
                hint="start its node without labels=false, or choose another strategy",
            )
    attack = spec.attack is not None and spec.attack.among == "clients"
    aside = spec.public is not None and not isinstance(spec.public, NamedData)
    for key, value, hint in (
        ("validation", spec.validation, "remove it"),
        ("attack.among", attack, "write `among: own`"),
        ("public", aside, "remove it"),
        ("data.partition", spec.data.partition, "remove it"),
    ):
        if value:
            message = "needs the examples of all clients, but each node has only its own examples"
            with spec.locating(key.partition(".")[0]):
                raise RunError(message, where=key, hint=hint)


def _check_averages(strategy: Strategy, name: str, key: str) -> None:
    """Check that a strategy only averages, for a key that changes the averaging."""
    if key == "server" and not strategy.averages:
        raise RunError(
            "does not average the clients' weights, so a server optimiser cannot be used",
            where=f"strategy.{name}",
            found="`server`",
            hint="remove `server`, or choose a strategy that averages (fedavg, heterofl, …)",
        )
    if not strategy.averages:
        raise RunError(
            "the strategy does not only average the results of clients",
            where=f"strategy.{name}",
            found=f"`{key}`, which changes averages",
            hint="if your strategy merges only by `covered_mean` or `group_means`, set "
            "`averages = True`",
        )


def _rooted(source: T, data_root: str | os.PathLike[str] | None) -> T:
    """Return a built-in data set with the folder of its files. Other data stays unchanged.

    The folder is an absolute path in run.yaml, so that a run can be resumed from another folder.
    """
    if not isinstance(source, NamedData):
        return source
    root = data_root or source.root or os.environ.get(ROOT_VARIABLE)
    path = None if root is None else str(Path(root).expanduser().absolute())
    return source.model_copy(update={"root": path})


def _check_owners(source: DataSpec, data: Dataset, clients: int) -> None:
    """Check that data with named clients has no partition, and fits the family."""
    names = list(data.owners)
    if source.partition is not None:
        raise RunError(
            f"the data is already partitioned by client ({data.name}, {len(names)} clients)",
            where="data.partition",
            hint="remove `partition`, or do not pass the data by client",
        )
    if len(names) != clients:
        raise RunError(
            "family and data have different numbers of clients",
            where="data",
            found=f"{clients} clients in the family",
            expected=f"{len(names)}: {listed(names)}",
        )


def _assigned(owners: Sequence[str], data: Dataset) -> Dataset:
    """Return the data with its clients in the order in which the family names them."""
    if not owners:
        return data
    by_name = {str(name): examples for name, examples in data.owners.items()}
    if sorted(owners) != sorted(by_name):
        raise RunError(
            "must name each client of the data once",
            where="family.clients",
            found=", ".join(owners),
            expected=", ".join(by_name) or "data with clients",
        )
    return dataclasses.replace(data, owners={name: by_name[name] for name in owners})


def _noted(data: Dataset, pool: np.ndarray, shares: Sequence[np.ndarray]) -> Dataset:
    """Return the data with a note on examples that no client gets."""
    left = pool[~np.isin(pool, np.concatenate(shares))]
    if not len(left):
        return data
    names = data.labels or tuple(map(str, range(data.classes or 0)))
    # No client gets examples without a class (-100).
    classes = [names[n] if n >= 0 else str(n) for n in np.unique(data.train.targets[left])]
    note = (
        f"data.partition: {len(left)} of {plural(len(pool), 'training example')} belong to no "
        f"client: the scheme gives their classes to none ({listed(classes)})"
    )
    return dataclasses.replace(data, notes=(*data.notes, note))


def first_state(experiment: Experiment) -> ServerState:
    """Return the strategy's first state, after checking that its models can be tested.

    Raises:
        RunError: If the strategy does not support this world, or its models cannot be tested.
    """
    strategy, world = experiment.strategy, experiment.world
    with experiment.locating("strategy"), explained(world):
        first = returned(ServerState, strategy.init(world), strategy, "init")
        check_private(experiment, first)
    # A strategy with a survey has its models only after the survey.
    if next(iter(strategy.survey(world, first)), None) is None:
        with experiment.locating("family"):
            testable(experiment, first)
    if experiment.privacy is not None:
        with experiment.locating("privacy"):
            _check_averages(strategy, type(strategy).__name__, "privacy")
            check_privacy(experiment, first)
    return first


def testable(experiment: Experiment, state: ServerState) -> None:
    """Check that models' outputs fit the task, and that options of tests have an effect.

    Raises:
        RunError: If a model's outputs do not fit the task, if there are too few examples for
            running statistics, or if an option of ``evaluate`` would have no effect.
    """
    strategy, asked = experiment.strategy, experiment.evaluate
    learning = experiment.world.learning
    recomputed = tuned = several = False
    models = strategy.evaluated(experiment.world, state)
    for model in each_returned(Evaluated, models, strategy, "evaluated"):
        check_outputs(model, experiment.data, learning)
        several |= any(not isinstance(value, Ref) for value in results(model.graph))
        if model.statistics == "recompute" and statistics(model.graph):
            recomputed, examples = True, len(experiment.training)
            with experiment.locating("evaluate"):
                check_enough_examples(model.graph, min(asked.statistics or examples, examples))
        tuned |= bool(model.clients) and model.program is None
    output = learning.predict.output if isinstance(learning.predict, Logits) else None
    single = "each model returns a single output, also in training"
    stored = "no model is tested with recomputed running statistics (`norm: static`)"
    untuned = "no model can be fine-tuned before its test"
    # Each key, its value, whether any model uses it, and the reason if none does.
    for section, key, value, read, reason in (
        ("task", "auxiliary", learning.auxiliary or None, several, single),
        ("task", "output", output or None, several, single),
        ("evaluate", "statistics", asked.statistics, recomputed, stored),
        ("evaluate", "fine_tune", asked.fine_tune, tuned, untuned),
    ):
        if value is not None and not read:
            with experiment.locating(section):
                raise RunError(
                    f"changes nothing: {reason}",
                    where=f"{section}.{key}",
                    found=value,
                    hint="remove it",
                )


def _merges_there(spec: ExperimentSpec, strategy: Strategy) -> bool:
    """Return whether updates stay on the device until they are averaged.

    This requires that no rule compares updates, and that clients work in the server's process.
    """
    other = spec.aggregate, spec.privacy, spec.bound
    alone = spec.engine.kind == LOCAL and not spec.engine.places
    return strategy.averages and alone and all(rule is None for rule in other)


def _started(tier: Tier, family: Family, state: State, seed: int) -> Tier:
    """Return a tier with initial weights: its own, those of the global model, or random ones."""
    if tier.own:
        return tier
    if family.has_global:
        return replace(tier, source=state)
    return replace(tier, source=initial_state(tier.graph, seed), own=True)


def _sampled(sample: float | int, clients: int) -> int:
    """Return the number of clients in a round.

    >>> _sampled(0.1, 25), _sampled(1.0, 25), _sampled(7, 25), _sampled(0.01, 25)
    (3, 25, 7, 1)
    """
    if isinstance(sample, float):
        return max(int(sample * clients + 0.5), 1)
    if sample > clients:
        raise RunError(
            "more clients in a round than the family has",
            where="sample",
            found=sample,
            expected=f"1...{clients}, or a fraction with a decimal point",
        )
    return sample


def _check_rules(rules: AggregateSpec | None, clients: int) -> None:
    """Check that rounds have enough clients for Krum's guarantee and for the quorum."""
    if rules is None:
        return
    if rules.middle is not None and rules.middle.quorum > clients:
        raise RunError(
            f"a round of {clients} clients never reaches the quorum: the model would never change",
            where="aggregate",
            found=rules.middle.quorum,
        )
    if rules.krum is None:
        return
    malicious = rounded_share(rules.krum.malicious, clients)
    if clients < 2 * malicious + 3:  # Blanchard et al., NeurIPS 2017, §4: n > 2f + 2
        raise RunError(
            "too few clients in a round for Krum",
            where="aggregate.krum",
            found=f"{clients} clients, of which {malicious} may be malicious",
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


def _device(engine: EngineSpec) -> str:
    """Return the device that the server uses.

    Raises:
        RunError: If a device cannot be used.
    """
    if engine.memory is not None and engine.kind_of_device != "cpu":
        raise RunError(
            "can be limited only on a CPU, since a device reserves more memory than it uses",
            where="engine.memory",
            found=f"device {engine.device}",
        )
    # The other devices are for Flower's clients, which may run on other machines.
    names = engine.devices if engine.kind == "local" else engine.devices[:1]
    for name in names:
        if (trouble := _trouble(name)) is not None:
            raise RunError(
                "this machine, or this build of PyTorch, cannot use the device",
                where="engine.device",
                found=f"{name!r} ({trouble.splitlines()[0]})",
            )
    return names[0]


def _trouble(name: str) -> str | None:
    """Return the reason why a device cannot be used; None if it can."""
    try:
        torch.device(name)
    except RuntimeError:  # the error lists all devices
        return "PyTorch does not know this device"
    try:
        float(torch.zeros(1, device=name))  # the device `meta` has no values
    except NotImplementedError:  # as above
        return "this build of PyTorch cannot compute on it"
    except (RuntimeError, AssertionError, ImportError) as error:
        return str(error).strip() or type(error).__name__
    return None
