"""Checks of an experiment's ``privacy``, and the ε that a run has spent.

The unit of privacy is a client with all its data. For rounds with all clients, and for Poisson
samples, neighbouring data sets differ in the presence of one client (Mironov, Talwar, Zhang: *Rényi
Differential Privacy of the Sampled Gaussian Mechanism*, 2019). For samples of a fixed size,
neighbouring data sets differ in the data of one client (Wang, Balle, Kasiviswanathan: *Subsampled
Rényi Differential Privacy*, AISTATS 2019, Theorem 27). Replacing a client's data changes a sum by
up to twice the clip, so ε is computed with half the noise multiplier.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from torch import Tensor

from archgraph.engine.experiment import Experiment
from archgraph.engine.returned import each_returned, returned
from archgraph.engine.stream import ResultStream
from archgraph.errors import ArchGraphError, RejectedUpdate, RunError
from archgraph.federation import Outcome, Result, ServerState, Task, World, private_task, seeded
from archgraph.federation.private_means import Census, PrivateMeans
from archgraph.hints import install_command
from archgraph.language.privacy import PrivacySpec
from archgraph.ops.table import statistics
from archgraph.plain import Json

# Orders of the Rényi divergences; for samples, orders between whole numbers converge too slowly.
# The privacy loss distributions of dp-accounting are tighter (ε 2.38 instead of 2.60 for samples of
# 256 out of 60,000, σ 1.1, 60 passes), but run out of memory if there is little noise.
ORDERS = (*range(2, 64), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)


def check_privacy(experiment: Experiment, first: ServerState) -> None:
    """Check that an experiment's ``privacy`` can be guaranteed.

    Args:
        experiment: The experiment.
        first: The server's state before the first round.

    Raises:
        RunError: If the strategy sends tasks before the first round, uses more of clients' results
            than their mean, or uses weights or transfers that depend on clients' data. Also raised
            if noise is added and the package dp-accounting is not installed.
    """
    strategy, world = experiment.strategy, experiment.world
    name = f"strategy {type(strategy).__name__}"
    if next(iter(each_returned(Task, strategy.survey(world, first), strategy, "survey")), None):
        raise RunError("sends tasks before the first round, which is not private", where=name)
    clients = tuple(client.id for client in world.clients)
    begun = returned(ServerState, strategy.begin(world, first, 1, clients), strategy, "begin")
    try:
        census(experiment, begun, 1)
    except ArchGraphError as error:
        raise error.within(name, kind=RunError) from error
    noise = experiment.privacy.noise if experiment.privacy else 0
    # Version 0.6 needs attrs < 24, which constraints.txt pins. With a newer attrs, pip silently
    # installs version 0.0.2.
    if noise and importlib.util.find_spec("dp_accounting") is None:
        raise RunError(
            "accounting needs dp-accounting",
            where="privacy",
            hint=install_command("dp_accounting"),
        )


def census(experiment: Experiment, state: ServerState, round: int) -> Census:
    """Record which values each client would contribute to in a round.

    For this, the strategy receives results of all clients with unchanged weights.
    """
    coverage = Census()
    world = dataclasses.replace(experiment.world, means=coverage)
    # All clients, since sums are divided by the expected coverage, not that of the sampled clients.
    strategy, unchanged = experiment.strategy, _unchanged(experiment, state, round, coverage)
    results = ResultStream(unchanged, f"{type(strategy).__name__}.receive")
    strategy.receive(world, state, results, round)
    return coverage


def _unchanged(
    experiment: Experiment, state: ServerState, round: int, coverage: Census
) -> Iterator[Result]:
    strategy, world = experiment.strategy, experiment.world
    for client in world.clients:
        task = returned(Task, strategy.send(world, state, client.id, round), strategy, "send")
        task = private_task(strategy, world, task)
        result = task.result(Outcome(task.state, extras=_Absent()), client.examples)
        try:
            if task.others:
                raise RejectedUpdate("further models", found=", ".join(task.others))
            result = strategy.examined(world, result)
        except RejectedUpdate as error:
            raise RunError(
                "uses more of clients' results than their mean, which is not private", found=error
            ) from error
        coverage.statistics[client.id] = frozenset(statistics(task.graph))
        yield _alone(dataclasses.replace(result, findings={}))


def dp_world(experiment: Experiment, state: ServerState, round: int) -> World:
    """Return the world of a round, in which means are computed with differential privacy.

    Args:
        experiment: An experiment with ``privacy``.
        state: The server's state before it receives results.
        round: Index of the round, from 1.
    """
    privacy, world = experiment.privacy, experiment.world
    assert privacy is not None
    # Seeded by the round, so that a resumed run adds the same noise.
    generator = seeded(world.seed, "privacy", round)
    if privacy.entropy == "system":  # else the seed determines the noise, which could be subtracted
        generator.seed()
    who = census(experiment, state, round)
    return dataclasses.replace(
        world, means=PrivateMeans(who, experiment.rate, privacy.clip, privacy.noise, generator)
    )


def weights_alone(results: Iterable[Result]) -> Iterator[Result]:
    """Yield results in which only weights can be read, since other values would get no noise."""
    return map(_alone, results)


def _alone(result: Result) -> Result:
    names = ("others", "extras", "metrics", "findings")
    beside: dict[str, Any] = {
        name: Withheld(name, there=bool(getattr(result, name))) for name in names
    }
    return dataclasses.replace(result, **beside)


class _Absent(dict[str, Tensor]):
    """Missing extras, for `Strategy.examine`, which rejects a client that sends none."""

    def __missing__(self, name: str) -> Tensor:
        raise RejectedUpdate("extras", found=name)


class Withheld(Mapping[str, Any]):
    """Replaces values that a client sends in addition to its weights; reading them is an error.

    Args:
        field: Name of the result's field.
        there: Whether the client sent values. If not, the truth value of this object is False.

    Example:
        >>> Withheld("extras", there=True).get("logits")
        Traceback (most recent call last):
        archgraph.errors.RunError: receive: reads extras of clients, which would reach the server...
    """

    def __init__(self, field: str, *, there: bool) -> None:
        self._field, self._there = field, there

    def _refuse(self, *_: object) -> NoReturn:
        raise RunError(
            f"reads {self._field} of clients, which would reach the server without noise",
            where="receive",
            found=f"result.{self._field}",
            expected="only the weights of clients, since the experiment has `privacy`",
            hint="remove `privacy`, or the code that reads these values",
        )

    __getitem__ = __iter__ = __len__ = _refuse

    def __bool__(self) -> bool:
        """Return False if the client sent no values.

        Raises:
            RunError: If the client sent values.
        """
        return self._there and self._refuse()


def privacy_spent(experiment: Experiment, rounds: int, sampled: int) -> dict[str, Json]:
    """Return the privacy that a run has spent after a round, for the round's record."""
    privacy = experiment.privacy
    if privacy is None:
        return {}
    clients = len(experiment.world.clients)
    value = epsilon(privacy, round(experiment.rate * clients), clients, rounds)
    return {"privacy": {"epsilon": value, "delta": privacy.delta, "sampled": sampled}}


@functools.lru_cache(maxsize=1024)
def epsilon(privacy: PrivacySpec, sampled: int, clients: int, rounds: int) -> float:
    """Return the ε that a run has spent after a number of rounds, at the experiment's ``delta``.

    Args:
        privacy: Noise, δ and sampling of clients.
        sampled: Number of clients in a round; for Poisson samples, the expected number.
        clients: Number of all clients.
        rounds: Number of finished rounds.

    Example:
        >>> epsilon(PrivacySpec(clip=1.0, noise=0, delta=1e-5), sampled=1, clients=10, rounds=1)
        inf
    """
    if privacy.noise == 0:
        return math.inf
    import dp_accounting as dp
    from dp_accounting import rdp

    # The docstring of the module defines neighbouring data sets for each kind of sampling.
    relation, noise = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(privacy.noise)
    if sampled == clients:
        event = noise
    elif privacy.sampling == "poisson":
        event = dp.PoissonSampledDpEvent(sampled / clients, noise)
    else:  # replacing a client's data changes a sum by up to twice the clip
        relation, half = dp.NeighboringRelation.REPLACE_ONE, dp.GaussianDpEvent(privacy.noise / 2)
        event = dp.SampledWithoutReplacementDpEvent(clients, sampled, half)
    accountant = rdp.RdpAccountant(ORDERS, relation).compose(event, rounds)
    return float(accountant.get_epsilon(privacy.delta))
