"""What clients train and the server would not take up: found before the first round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from archgraph.engine.experiment import Experiment
from archgraph.errors import GraphError, RewriteError, RunError
from archgraph.federation import GLOBAL, ServerState, Task, World
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed
from archgraph.ops.table import statistics
from archgraph.states import Transfer, signature

# Rounds whose tasks are looked at: where a strategy draws tiers, one may come up in a later round.
LOOKED = 10
HINT = "move the rewrite to the family's `change`, which changes the global model, too"


def check_taken_up(experiment: Experiment, state: ServerState) -> None:
    """Check that no client trains what the global model lacks and the strategy does not keep.

    A strategy says what it keeps by the first tasks that it sends: entries that stay with the
    client (``Task.private``), and those that it merges itself or leaves out (``Task.unmerged``). A
    mean reaches all others through the global model alone.

    Raises:
        RunError: Names the tier and the entries.
    """
    world, strategy = experiment.world, experiment.strategy
    open_tiers = set(_lacking(world))
    if not open_tiers or not state.group(GLOBAL):
        return
    here = signature(world.graph)
    # First those whose tier it is: mostly, one round then tells all.
    clients = sorted(world.clients, key=lambda client: client.name not in open_tiers)
    for round in range(1, LOOKED + 1):
        before = strategy.begin(world, state, round, tuple(client.id for client in world.clients))
        for client in clients:
            task = strategy.send(world, before, client.id, round)
            # Transfers from other groups of the state say nothing of the global model.
            if task.transfer is not None and task.transfer.source == here:
                _check(task, task.transfer, type(strategy).__name__)
            open_tiers.discard(task.tier)
            if not open_tiers:
                return


@contextlib.contextmanager
def explained(world: World) -> Iterator[None]:
    """Rewrites of a strategy that fail on a tier say that it has what the global model lacks."""
    try:
        yield
    except (RewriteError, GraphError) as error:
        for tier, names in _lacking(world).items():
            raise RunError(
                f"the strategy cannot use weights that the global model lacks ({error.message})",
                where=": ".join(filter(None, (f"tier {tier}", error.where))),
                found=listed(names),
                hint=HINT,
            ) from error
        raise


def _check(task: Task, transfer: Transfer, strategy: str) -> None:
    spared = task.private | task.unmerged
    lost = [name for name in _created(task.graph, transfer) if name not in spared]
    if lost:
        raise RunError(
            f"trains what the global model lacks: {strategy} would discard it after every round",
            where=f"tier {task.tier}",
            found=listed(lost),
            hint=HINT,
        )


def _lacking(world: World) -> dict[str, list[str]]:
    """By tier, what it trains and the global model lacks; tiers without are left out."""
    if not world.graph.nodes:
        return {}
    created = {tier.name: _created(tier.graph, tier.transfer) for tier in world.tiers}
    return {name: entries for name, entries in created.items() if entries}


def _created(graph: ArchGraph, transfer: Transfer) -> list[str]:
    """Entries that training changes and that come from nowhere."""
    # Constants and frozen entries are not lost: a new round creates the same again.
    changing = {p.name for p in graph.params if p.role == "parameter" and p.trainable}
    changing.update(statistics(graph))
    entries = transfer.entries.items()
    return [name for name, entry in entries if entry.source is None and name in changing]
