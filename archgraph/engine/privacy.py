"""Requirements of an experiment's ``privacy``, and the ε that a run has spent.

The unit of privacy is a client with all its data. For rounds with all clients, and for Poisson
samples, neighbours differ in the presence of one client (Mironov, Talwar, Zhang: *Rényi
Differential Privacy of the Sampled Gaussian Mechanism*, 2019). For samples of a fixed size,
neighbours differ in the data of one client (Wang, Balle, Kasiviswanathan: *Subsampled Rényi
Differential Privacy*, AISTATS 2019, Theorem 27): this changes a sum by twice the clip, so the noise
counts half.
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

# Orders of the Rényi divergences; between whole numbers those of samples converge too slowly. The
# privacy loss distributions of dp-accounting are tighter (ε 2.38 instead of 2.60 for samples of 256
# of 60,000, σ 1.1, 60 passes), and run out of memory where there is little noise.
ORDERS = (*range(2, 64), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)


def check_privacy(experiment: Experiment, first: ServerState) -> None:
    """Raise an error for an experiment whose ``privacy`` cannot be guaranteed.

    Args:
        experiment: The experiment.
        first: The strategy's first state.

    Raises:
        RunError: If the strategy sends tasks before the first round, uses more of clients' results
            than their mean, or its weights or maps depend on their data; or if there is noise and
            the accountant is not installed.
    """
    strategy, world = experiment.strategy, experiment.world
    name = f"strategy {type(strategy).__name__}"
    if next(iter(each_returned(Task, strategy.survey(world, first), strategy, "survey")), None):
        raise RunError("asks clients before the first round, which is not private", where=name)
    clients = tuple(client.id for client in world.clients)
    begun = returned(ServerState, strategy.begin(world, first, 1, clients), strategy, "begin")
    try:
        census(experiment, begun, 1)
    except ArchGraphError as error:
        raise error.within(name, kind=RunError) from error
    noise = experiment.privacy.noise if experiment.privacy else 0
    # Version 0.6 needs attrs < 24, which constraints.txt pins: with a newer one, pip silently
    # installs version 0.0.2.
    if noise and importlib.util.find_spec("dp_accounting") is None:
        raise RunError(
            "accounting needs dp-accounting",
            where="privacy",
            hint=install_command("dp_accounting"),
        )


def census(experiment: Experiment, state: ServerState, round: int) -> Census:
    """Record the coverage of clients in a round.

    The strategy receives the results of all clients, unchanged.
    """
    coverage = Census()
    world = dataclasses.replace(experiment.world, means=coverage)
    # All clients: sums are divided by the expected coverage, not by that of the sampled ones.
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
                "uses more of clients' results than it averages, which is not private", found=error
            ) from error
        coverage.statistics[client.id] = frozenset(statistics(task.graph))
        yield _alone(dataclasses.replace(result, findings={}))


def dp_world(experiment: Experiment, state: ServerState, round: int) -> World:
    """Return the world of a round, with private means.

    Args:
        experiment: One with ``privacy``.
        state: The server's state, before anything is received.
        round: Counted from 1.
    """
    privacy, world = experiment.privacy, experiment.world
    assert privacy is not None
    # Seeded by the round: a resumed run adds the same noise, not the next.
    generator = seeded(world.seed, "privacy", round)
    if privacy.entropy == "system":  # with the run's seed that noise could be subtracted
        generator.seed()
    who = census(experiment, state, round)
    return dataclasses.replace(
        world, means=PrivateMeans(who, experiment.rate, privacy.clip, privacy.noise, generator)
    )


def weights_alone(results: Iterable[Result]) -> Iterator[Result]:
    """Yield results with only their weights: other values would reach the server without noise."""
    return map(_alone, results)


def _alone(result: Result) -> Result:
    names = ("others", "extras", "metrics", "findings")
    beside: dict[str, Any] = {
        name: Withheld(name, there=bool(getattr(result, name))) for name in names
    }
    return dataclasses.replace(result, **beside)


class _Absent(dict[str, Tensor]):
    """No extras, for `Strategy.examine`: a client that sends none is refused there."""

    def __missing__(self, name: str) -> Tensor:
        raise RejectedUpdate("extras", found=name)


class Withheld(Mapping[str, Any]):
    """Replacement of values that a client sends besides its weights: reading them is an error.

    Args:
        field: Field of the result.
        there: Whether the client sent any. If not, a strategy may ask for its truth value.

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
            expected="only what the mean of weights needs, under `privacy`",
            hint="remove `privacy`, or what reads them",
        )

    __getitem__ = __iter__ = __len__ = _refuse

    def __bool__(self) -> bool:
        """Return False if it is empty.

        Raises:
            RunError: If there is something.
        """
        return self._there and self._refuse()


def privacy_spent(experiment: Experiment, rounds: int, sampled: int) -> dict[str, Json]:
    """Return the privacy spent by a run, for the record of a round with a number of clients."""
    privacy = experiment.privacy
    if privacy is None:
        return {}
    clients = len(experiment.world.clients)
    value = epsilon(privacy, round(experiment.rate * clients), clients, rounds)
    return {"privacy": {"epsilon": value, "delta": privacy.delta, "sampled": sampled}}


@functools.lru_cache(maxsize=1024)
def epsilon(privacy: PrivacySpec, sampled: int, clients: int, rounds: int) -> float:
    """Return the ε that a number of rounds has spent, for the ``delta`` of the experiment.

    Args:
        privacy: Noise, δ, how clients are sampled.
        sampled: Clients in a round; for Poisson samples the expected number.
        clients: All clients.
        rounds: Number of finished rounds.

    Example:
        >>> epsilon(PrivacySpec(clip=1.0, noise=0, delta=1e-5), sampled=1, clients=10, rounds=1)
        inf
    """
    if privacy.noise == 0:
        return math.inf
    import dp_accounting as dp
    from dp_accounting import rdp

    # Neighbours by sampling: see the module's docstring.
    relation, noise = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(privacy.noise)
    if sampled == clients:
        event = noise
    elif privacy.sampling == "poisson":
        event = dp.PoissonSampledDpEvent(sampled / clients, noise)
    else:  # replacing a client changes a sum by twice the clip
        relation, half = dp.NeighboringRelation.REPLACE_ONE, dp.GaussianDpEvent(privacy.noise / 2)
        event = dp.SampledWithoutReplacementDpEvent(clients, sampled, half)
    accountant = rdp.RdpAccountant(ORDERS, relation).compose(event, rounds)
    return float(accountant.get_epsilon(privacy.delta))
