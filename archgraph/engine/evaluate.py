"""Tests of models: on all test data, and on each client's part of the test data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor, nn

from archgraph.data.partition import local_test_indices
from archgraph.engine.experiment import Experiment
from archgraph.engine.precision import performed
from archgraph.engine.recalibration import as_tested
from archgraph.engine.testing import Answers, answers
from archgraph.federation import (
    GLOBAL,
    Evaluated,
    LearningTask,
    Model,
    State,
    TaskLoss,
    Train,
    module_of,
    seeded,
)
from archgraph.federation.metrics import derived
from archgraph.module.build import load_state
from archgraph.plain import Json
from archgraph.processes.isolation import isolated, one_thread
from archgraph.processes.process import Died, attempted
from archgraph.processes.workers import Workers
from archgraph.record.client import ClientState
from archgraph.record.points import CLIENTS
from archgraph.record.right import RIGHT, packed
from archgraph.states import check_update
from archgraph.states.copies import server_copies, state_to_device
from archgraph.states.state import equal
from archgraph.states.updates import unsummable


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Tests the models of a strategy with the options in the experiment's key ``evaluate``."""

    experiment: Experiment
    workers: Workers = field(default_factory=Workers)
    untuned: list[Json] = field(default_factory=list)

    def __call__(
        self, models: Iterable[Evaluated], *, private: Mapping[int, ClientState], round: int
    ) -> dict[str, Json]:
        """Test all models, and return the metrics of each model and aggregated metrics.

        Returns:
            ``better``: for each metric, whether higher is better. The metric that ranks models
                comes first.
            ``models``: for each model, the task's metrics and ``loss`` on all test data,
                ``clients``, and ``local``. If clients have their own versions of the model, the
                metrics are means over these versions. ``clients`` is the number of clients that run
                the model; it is absent for a model that no client runs, such as the global model.
                ``local`` contains means over the model's clients. If each example has one class,
                each client is tested on the test examples of its own classes. ``masked`` is then
                the accuracy with the logits of its absent classes set to 0, and ``matched`` the
                accuracy with its training proportions of the classes, see :meth:`Answers.matched`.
                If not, only personal models have ``local`` metrics, from all test data.
            ``global``: metrics of the model with this name, or else the mean over all models.
            ``local``: mean over all clients, each tested with its tier's model.
            ``tenth``: for each metric, the mean over the tenth of the clients with the worst
                values.
            ``worst``: metrics of the tier that is worst in the metric that ranks models.
            ``right`` (with `evaluate.answers`): for each model, which test examples were classified
                correctly (:func:`archgraph.record.right.packed`).
            ``untuned``: for each client that could not be fine-tuned before its test, the reason.
        """
        # The evaluator is reused in all rounds.
        self.untuned.clear()
        figures: dict[str, dict[str, Json]] = {}
        clients: dict[str, dict[int, dict[str, float]]] = {}
        right: dict[str, Json] = {}
        first: _Tested | None = None
        for model in map(self._tuned, self._own(models)):
            name = model.name
            if model.personal and model.clients:
                plain, clients[name], counts = self._each(model, private, round)
            else:
                # The largest tier is often equal to the global model, which is tested first.
                known = first is not None and first.answers_for(model, self._classes(model.clients))
                tested = first if first is not None and known else self._tested(model)
                first = first or tested
                plain, clients[name] = tested.plain.summary(), self._shared(model, tested)
                counts = self._right(tested.plain)
            if counts is not None:
                versions = len(model.clients) if model.personal and model.clients else 1
                right[name] = packed(counts.numpy(), versions)
            metrics = self._learning.metrics
            figures[name] = dict(derived(plain, metrics))
            if model.clients:
                # Recorded next to the metrics, since records outlive run folders, which list the
                # clients.
                figures[name][CLIENTS] = len(model.clients)
            if clients[name]:
                figures[name]["local"] = derived(mean_of(clients[name].values()), metrics)
        more: dict[str, Json] = {RIGHT: right} if right else {}
        more |= {"untuned": list(self.untuned)} if self.untuned else {}
        return {**_together(figures, clients, self._learning), **more}

    @property
    def _learning(self) -> LearningTask:
        return self.experiment.world.learning

    def _own(self, models: Iterable[Evaluated]) -> Iterator[Evaluated]:
        """Yield the models, each with the clients that run it.

        Additional models of clients are skipped.
        """
        ids = {client.id for client in self.experiment.world.participants}
        for model in models:
            clients = tuple(client for client in model.clients if client in ids)
            if clients or not model.clients:
                yield dataclasses.replace(model, clients=clients)

    def _tuned(self, model: Evaluated) -> Evaluated:
        """Return the model with the fine-tuning that its clients do before a test."""
        passes = self.experiment.evaluate.fine_tune
        # The strategy's own fine-tuning has priority.
        if not passes or model.program is not None:
            return model
        return dataclasses.replace(
            model, program=Train(TaskLoss(predict=model.predict), epochs=passes)
        )

    def _tested(self, model: Evaluated) -> _Tested:
        """Test the model on all test data, without masks and with each mask of absent classes."""
        world = self.experiment.world
        asked = model.clients or tuple(c.id for c in world.clients)
        masks = () if model.personal else tuple(self._classes(asked))
        with one_thread():  # the same bits as a client's own version
            state = as_tested(self.experiment, model, model.state)
        module = module_of(Model(model.graph, state), world.device)
        plain, *masked = self._answers(module, model, masks, self.workers)
        return _Tested(model, plain, dict(zip(masks, masked, strict=True)))

    def _shared(self, model: Evaluated, tested: _Tested) -> dict[int, dict[str, float]]:
        """Return a common model's metrics for each client, on test examples of its own classes."""
        figures: dict[int, dict[str, float]] = {}
        for present, ids in self._classes(model.clients).items():
            # Without a test example of its classes, a client has no metrics.
            if len(at := self._examples(present)):
                figures |= self._local(ids, tested.plain, tested.masked[present], at)
        return figures

    def of_client(self, model: Evaluated, client: int) -> dict[str, float]:
        """Return the metrics of a model on the test data of a client.

        If each example has one class, the model is tested on the test examples of the client's
        classes. The dict is empty if there are no such examples. If examples do not have one class
        each, the model is tested on all test data.
        """
        model = dataclasses.replace(model, clients=(client,))
        tested = self._tested(model)
        if not self._learning.per_example:
            return tested.plain.summary()
        return self._shared(model, tested).get(client, {})

    def _each(
        self, model: Evaluated, private: Mapping[int, ClientState], round: int
    ) -> tuple[dict[str, float], dict[int, dict[str, float]], Tensor | None]:
        """Test each client's version of the model, on all test data and on the client's part.

        Returns the mean metrics on all test data, and each client's metrics on its part.

        The last value is the number of versions that classified each test example correctly, if
        recorded.
        """
        everywhere: list[dict[str, float]] = []
        right: list[Tensor] = []
        clients: dict[int, dict[str, float]] = {}
        # One module for all versions: their weights are loaded into it in turn.
        device = self.experiment.world.device
        module = module_of(Model(model.graph, model.state), device)

        def version(client: int) -> _Version:
            untuned: list[Json] = []
            before = private.get(client, ClientState())
            with one_thread():
                # The weights have no name, so that they are freed before the next client's are
                # created.
                load_state(
                    module,
                    state_to_device(
                        as_tested(
                            self.experiment,
                            model,
                            self._own_state(model, before, client, round, untuned),
                        ),
                        device,
                    ),
                )
            return self._version(model, module, client, untuned)

        for client, done in self.workers.calls(version, model.clients):
            # If a process dies, its test is repeated in this process.
            row = version(client) if isinstance(done, Died) else done
            everywhere.append(row["all"])
            right += [] if row["right"] is None else [row["right"]]
            if row["local"] is not None:
                clients[client] = row["local"]
            self.untuned.extend(row["untuned"])
        return mean_of(everywhere), clients, torch.stack(right).sum(0) if right else None

    def _right(self, plain: Answers) -> Tensor | None:
        """Return which test examples were classified correctly, if recorded."""
        recorded = self.experiment.evaluate.answers and self._learning.per_example
        return plain.right if recorded else None

    def _version(
        self, model: Evaluated, module: nn.Module, client: int, untuned: list[Json]
    ) -> _Version:
        """Return the metrics of a client's version, on all test data and on the client's part."""
        # Windows of text have no class: every client is tested on all windows.
        classes = tuple(self._classes([client]))
        plain, *masked = self._answers(module, model, classes, Workers())
        with one_thread():  # the same bits in any process
            local = None
            examples = self._examples(*classes) if classes else slice(None)
            if isinstance(examples, slice) or len(examples):
                figures = self._local([client], plain, masked[0] if masked else None, examples)
                local = figures[client]
            right = self._right(plain)
            return {"all": plain.summary(), "local": local, "right": right, "untuned": untuned}

    def _local(
        self, clients: Sequence[int], plain: Answers, masked: Answers | None, at: Tensor | slice
    ) -> dict[int, dict[str, float]]:
        """Return the metrics of clients that are tested on the same part of the test data."""
        figures = plain.summary(at)
        if masked is None:
            return dict.fromkeys(clients, figures)
        setup = self.experiment
        mixtures = [setup.world.clients[client].histogram for client in clients]
        matched = plain.matched(setup.data.test.targets, mixtures)
        figures["masked"] = masked.summary(at)["accuracy"]
        return {c: {**figures, "matched": m} for c, m in zip(clients, matched, strict=True)}

    def _classes(self, clients: Iterable[int]) -> dict[tuple[bool, ...], list[int]]:
        """Return a dict from classes to clients; empty for data without one class per example."""
        owners: dict[tuple[bool, ...], list[int]] = {}
        if self._learning.per_example and self.experiment.world.counted:
            for client in clients:
                present = tuple([n > 0 for n in self.experiment.world.clients[client].histogram])
                owners.setdefault(present, []).append(client)
        return owners

    def _examples(self, present: tuple[bool, ...]) -> Tensor:
        """Return the test examples of some classes."""
        targets = self.experiment.data.test.targets
        return torch.from_numpy(local_test_indices(targets, torch.tensor(present)))

    def _answers(
        self,
        module: nn.Module,
        model: Evaluated,
        masks: Sequence[tuple[bool, ...]],
        workers: Workers,
    ) -> list[Answers]:
        setup = self.experiment
        return answers(
            module,
            setup.data.test,
            learning=self._learning,
            predict=model.predict,
            masks=[torch.tensor(m) for m in masks],
            batch=setup.evaluate.batch,
            device=setup.world.device,
            workers=workers,
        )

    def _own_state(
        self, model: Evaluated, before: ClientState, client: int, round: int, untuned: list[Json]
    ) -> State:
        """Return a client's version of the model, with its private tensors, after fine-tuning.

        A version that cannot be fine-tuned (for example, if gradients are not finite) is tested
        without fine-tuning, with a note.
        """
        setup = self.experiment
        state = model.state if model.states is None else model.states(client)
        if model.private:
            state = before.over(state, current=model.current)
        if model.program is None:
            return state
        program = model.program
        generator = seeded(setup.world.seed, "evaluate", model.name, round, client)

        def tuned() -> State:
            with isolated(generator, setup.world.device):
                work = setup.work(
                    client, max(round, 1), model.graph, state, generator, keep=before.keep
                )
                work = dataclasses.replace(work, local=work.local.tuning())
                trained = server_copies(performed(program, work).state)
            check_update(model.graph, trained, fixed=unsummable(model.graph, state))
            return trained

        done = attempted(tuned)
        if isinstance(done, Died):  # after any error of the program, the other tests continue
            untuned.append({"client": client, "name": model.name, "reason": done.reason})
            return state
        return done


class _Version(TypedDict):
    """A worker's results for a client's version, as plain values that can be sent."""

    all: dict[str, float]
    local: dict[str, float] | None
    right: Tensor | None
    untuned: list[Json]


@dataclass(frozen=True, eq=False)
class _Tested:
    """A tested model, with its predictions on the test data."""

    model: Evaluated
    plain: Answers
    masked: Mapping[tuple[bool, ...], Answers]

    def answers_for(self, other: Evaluated, masks: Iterable[tuple[bool, ...]]) -> bool:
        """Return whether another model has equal tensors, and so the same predictions."""
        mine = self.model
        return (
            set(masks) <= set(self.masked)
            and (mine.statistics, mine.predict) == (other.statistics, other.predict)
            and mine.graph == other.graph
            and all(equal(mine.state[k], other.state[k]) for k in mine.graph.state_names)
        )


def mean_of(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over several tests."""
    rows = list(rows)
    if len(rows) == 1:
        return dict(rows[0])
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]} if rows else {}


def worst_tenth(rows: Iterable[Mapping[str, float]], lower: Collection[str]) -> dict[str, float]:
    """For each metric, return the mean over the 10 % of clients with the worst values.

    Args:
        rows: Metrics of each client. The number of clients in the 10 % is rounded up.
        lower: The metrics for which lower is better.

    Example:
        >>> worst_tenth([{"accuracy": a / 10, "loss": 1 - a / 10} for a in range(10)], {"loss"})
        {'accuracy': 0.0, 'loss': 1.0}
    """
    rows = list(rows)
    worst: dict[str, float] = {}
    for name in rows[0] if rows else ():
        # NaN means that training diverged. It counts as the worst value.
        values = sorted(
            (row[name] for row in rows),
            key=lambda x: -math.inf if math.isnan(x) else -x if name in lower else x,
        )
        tenth = values[: math.ceil(len(values) / 10)]
        worst[name] = sum(tenth) / len(tenth)
    return worst


def _together(
    figures: dict[str, dict[str, Json]],
    clients: Mapping[str, Mapping[int, dict[str, float]]],
    learning: LearningTask,
) -> dict[str, Json]:
    """Return the global, local and worst-tier metrics, given the metrics of each model."""
    # The global model counts as a tier only if it is the only model.
    tiers = [name for name in figures if name != GLOBAL] or list(figures)
    personal = _personal(clients, tiers)
    everywhere = {
        name: {k: v for k, v in row.items() if k not in ("local", CLIENTS)}
        for name, row in figures.items()
    }
    result: dict[str, Json] = {"better": learning.better, "models": figures}
    if everywhere:
        result["global"] = everywhere.get(GLOBAL) or mean_of(everywhere.values())
        worst = _worst({name: everywhere[name][learning.judge] for name in tiers}, learning)
        if worst is not None:
            result["worst"] = {"name": worst, **everywhere[worst]}
    if personal:
        result["local"] = derived(mean_of(personal.values()), learning.metrics)
        lower = {name for name, more in learning.better.items() if not more}
        result["tenth"] = derived(worst_tenth(personal.values(), lower), learning.metrics)
    return result


def _personal(
    clients: Mapping[str, Mapping[int, dict[str, float]]], tiers: Sequence[str]
) -> dict[int, dict[str, float]]:
    """Return for each client the mean metrics over the tiers whose models it tested.

    Clients without a tier's model are tested with the global model.
    """
    personal = {
        client: mean_of(clients[name][client] for name in tiers if client in clients[name])
        for client in sorted({client for name in tiers for client in clients[name]})
    }
    return personal | {c: row for c, row in clients.get(GLOBAL, {}).items() if c not in personal}


def _worst(scores: Mapping[str, float], learning: LearningTask) -> str | None:
    """Return the metrics of the tier with the worst score. A tier that diverged is the worst.

    Returns None if no tier has a score, because all test targets are ignored.
    """
    if all(map(math.isnan, scores.values())):
        return None
    sign = -1 if learning.better[learning.judge] else 1
    badness = {k: math.inf if math.isnan(v) else sign * v for k, v in scores.items()}
    return max(badness, key=badness.__getitem__)
