"""Check, before the first round, the tensors that stay with clients."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping

from archgraph.engine.experiment import Experiment
from archgraph.errors import GraphError, RewriteError, RunError
from archgraph.federation import GLOBAL, ServerState, Task, World, private_task
from archgraph.federation.private_parts import additions
from archgraph.hints import listed, nearest

# Number of rounds whose tasks are checked: a strategy that draws tiers may use a tier only later.
LOOKED = 10
HINT = "move the rewrite to the family's `change`, which changes the global model, too"


def check_private(experiment: Experiment, state: ServerState) -> None:
    """Check that ``private`` matches tensors, and that these are the same in every round.

    Raises:
        RunError: If a pattern does not match any tensor (the message suggests similar names), or a
            private tensor corresponds to different parts of the global model in different rounds.
    """
    world, where = experiment.world, "private"
    patterns: tuple[str, ...] = getattr(experiment.strategy, "private", ())
    if not patterns:
        return
    names = {n for p in world.graph.params for n in (p.name, *p.aliases)}
    before: dict[tuple[int, str], object] = {}
    for task in _tasks(experiment, state):
        names.update(n for p in task.graph.params for n in (p.name, *p.aliases))
        for name in task.private if task.transfer is not None else ():
            entry = task.transfer.entries.get(name) if task.transfer else None
            if before.setdefault((task.client, name), entry) != entry:
                raise RunError(
                    "private tensors belong to other parts of the global model in each round",
                    where=where,
                    found=name,
                    hint="give clients fixed parts of the model, or share this tensor",
                )
    for pattern in patterns:
        if pattern not in names and not fnmatch.filter(names, pattern):
            raise RunError(
                "matches no parameter or buffer",
                where=where,
                found=repr(pattern),
                hint=nearest(pattern, names, cutoff=0.0, count=3),
            )


def kept_additions(experiment: Experiment, state: ServerState) -> Mapping[str, list[str]]:
    """Return a dict from tier to the names of private tensors that the global model lacks.

    Tensors that the strategy merges itself, such as NeFL's step sizes, are not included.
    """
    world, added = experiment.world, dict[str, list[str]]()
    if not _with_additions(world) or not state.group(GLOBAL):
        return {}
    for task in _tasks(experiment, state):
        if task.transfer is not None and task.tier not in added:
            more = additions(task.graph, task.transfer) & task.private
            names = [name for name in task.graph.state_names if name in more]
            added |= {task.tier: names} if names else {}
    return added


def _tasks(experiment: Experiment, state: ServerState) -> Iterator[Task]:
    """Yield the tasks of the first rounds for one client of each tier, with private tensors."""
    world, strategy = experiment.world, experiment.strategy
    ids = tuple(client.id for client in world.clients)
    first = {world.clients[client].name: client for client in reversed(ids)}
    for round in range(1, LOOKED + 1):
        before = strategy.begin(world, state, round, ids)
        for client in sorted(first.values()):
            yield private_task(strategy, world, strategy.send(world, before, client, round))


@contextlib.contextmanager
def explained(world: World) -> Iterator[None]:
    """If a strategy's rewrite fails, name the tier's weights that the global model lacks."""
    try:
        yield
    except (RewriteError, GraphError) as error:
        for tier, names in _with_additions(world).items():
            raise RunError(
                f"the strategy cannot use weights that the global model lacks ({error.message})",
                where=": ".join(filter(None, (f"tier {tier}", error.where))),
                found=listed(names),
                hint=HINT,
            ) from error
        raise


def _with_additions(world: World) -> dict[str, list[str]]:
    """Return a dict from tier to the trained tensors that the global model lacks, if any."""
    tiers = world.tiers if world.graph.nodes else ()
    more = {tier.name: (tier.graph, additions(tier.graph, tier.transfer)) for tier in tiers}
    return {
        tier: [name for name in graph.state_names if name in names]
        for tier, (graph, names) in more.items()
        if names
    }
