"""Create clients' tasks from the global model, average their results, and list the tested models.

Most methods call these functions and change a detail: the task from :func:`part`, the weights in
:func:`covered_mean`, or the models from :func:`by_tier`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from archgraph.errors import RunError
from archgraph.federation.contribution import Contribution, EntrySizes
from archgraph.federation.norms import NormName, NormPolicy
from archgraph.federation.objectives import TaskLoss
from archgraph.federation.robust_means import robust_means
from archgraph.federation.server_optimiser import Reached, followed
from archgraph.federation.state import GLOBAL, ServerState
from archgraph.federation.strategy import Evaluated
from archgraph.federation.tasks import Model, Program, Result, Task, WeightOf
from archgraph.federation.training import Train
from archgraph.federation.world import Tier, World
from archgraph.graph.ir import ArchGraph
from archgraph.states import Merger, Signature, State, Transfer, signature
from archgraph.states.copies import server_copies, state_to_device


def part(
    world: World,
    state: ServerState,
    client: int,
    *,
    tier: Tier | None = None,
    program: Program | None = None,
    mask_absent: bool = False,
    norm: NormName = "averaged",
    weights: State | None = None,
) -> Task:
    """Return a task in which a client trains its submodel of the global model.

    Args:
        world: The clients and tiers.
        state: The server's state, which contains the global weights.
        client: Id of the client.
        tier: Tier to train. Default: the client's tier in the family.
        program: Program to run. Default: training on the loss of the experiment's task.
        mask_absent: In the default program, set the logits of classes that do not occur in the
            client's data to 0.
        norm: How running statistics are treated; see :class:`NormPolicy`.
        weights: Weights of the submodel. Default: the global weights, mapped by the tier's
            ``transfer``.
    """
    tier = tier or world.tier_of(client)
    policy = NormPolicy(norm)
    if weights is None:
        weights = tier.transfer.pull(state.group(GLOBAL), copy=False)
    return Task(
        client=client,
        graph=tier.graph,
        state=weights,
        program=program or Train(TaskLoss(mask_absent=mask_absent)),
        private=policy.private(tier.graph),
        unmerged=policy.unmerged(tier.graph),
        transfer=tier.transfer,
        tier=tier.name,
    )


@functools.lru_cache(maxsize=1024)
def identity_of(graph: ArchGraph, names: tuple[str, ...]) -> Transfer:
    """Return an identity transfer for some tensors. With it, only these tensors are averaged."""
    slots = {slot.name: slot for slot in signature(graph)}
    return Transfer.identity(tuple(slots[name] for name in names))


def covered_mean(
    world: World,
    state: ServerState,
    results: Iterable[Result],
    *,
    weights: WeightOf = "examples",
    rows: Callable[[Result], Mapping[str, Tensor]] | None = None,
    sizes: Callable[[Result], Mapping[str, float]] | None = None,
) -> ServerState:
    """Return the state with the global weights replaced by the mean of all results.

    Each value is averaged over the clients whose model contains this value:
    ``θ = Σ w_c A_cᵀ θ_c / Σ w_c A_cᵀ 1``, where ``A_c`` is the transfer of client c. Values that no
    client's model contains stay unchanged, as do tensors in ``Result.unmerged``. One update is in
    memory at a time, in addition to up to ``World.wait`` bytes of collected updates. The
    experiment's key ``aggregate`` can select a robust mean; see :mod:`.robust_means`.

    Args:
        world: The clients and tiers.
        state: The server's state, which contains the global weights.
        results: Results of tasks from :func:`part`.
        weights: Weight of a client: ``examples`` (the total weight of the client's examples in the
            loss), ``uniform`` (1), or a function of the client's result.
        rows: Function of a client's result. It returns a dict from tensor name to a vector with one
            number per row of the tensor: 1 if the client's row is averaged, else 0. Default: all
            rows are averaged.
        sizes: Function of a client's result. It returns a dict from tensor name to a number, such
            as the tensor's norm. The client's tensor is divided by its number before averaging. The
            mean over clients is then multiplied by the mean of these numbers (FedFA's α).
    """

    def contributions() -> Iterator[Contribution]:
        for result in results:
            one = Contribution.of(result, world.graph, weights)
            yield one._replace(
                sizes=sizes(result) if sizes else {}, rows=rows(result) if rows else None
            )

    return group_means(world, state, contributions())


def group_means(
    world: World, state: ServerState, contributions: Iterable[Contribution]
) -> ServerState:
    """Return the state with each group of tensors replaced by the mean of its contributions.

    A group consists of all tensors whose names have the same prefix, such as ``global``; see
    :class:`ServerState`. Groups without a contribution stay unchanged.

    Args:
        world: Options of the means. ``World.aggregate`` limits the influence of single clients,
            ``World.means`` replaces the means (for differential privacy), and ``World.server`` is
            an optimiser that is applied to the means.
        state: The server's state, which contains the groups.
        contributions: Contributions of the clients, at most one per client and group. The iterable
            is read once.

    Raises:
        RunError: If a client contributes to a group twice, or differential privacy cannot be
            applied to a contribution.
    """
    # A second part of a client in one group would silently count it twice.
    contributions = _once(contributions)
    rules = world.aggregate
    if world.means is not None:
        after, reached = world.means(state, contributions)
    elif rules is not None and (rules.krum or rules.middle):
        after, reached = robust_means(rules, state, contributions)
    else:
        after, reached = _plain_means(world, state, contributions)
    return after if world.server is None else followed(world.server, state, after, reached)


def _plain_means(
    world: World, state: ServerState, contributions: Iterable[Contribution]
) -> tuple[ServerState, dict[str, Reached]]:
    # FedFA's α_c = mean_κ n_κ / n_c: each update is divided by n_c as it arrives and the sum is
    # multiplied by the mean at the end, so that one pass with one update in memory is enough.
    mergers: dict[str, Merger] = {}
    wholes: dict[str, ArchGraph | Signature] = {}
    sizes = EntrySizes()
    for one in contributions:
        wholes.setdefault(one.group, one.whole)
        if one.group not in mergers:
            before = state_to_device(state.group(one.group), world.merging)
            mergers[one.group] = Merger(one.whole, before, wait=world.wait)
        sizes.add(one)
        mergers[one.group].accumulate(one.update)
    reached = {}
    for group, merger in mergers.items():
        mean, coverage = merger.result(multiply=sizes.means(group))
        state = state.with_group(group, mean if world.merging == "cpu" else server_copies(mean))
        reached[group] = Reached(wholes[group], coverage)
    return state, reached


def _once(contributions: Iterable[Contribution]) -> Iterator[Contribution]:
    seen: set[tuple[int, str]] = set()
    for one in contributions:
        if (one.client, one.group) in seen:
            raise RunError("adds to a group twice", where=f"client {one.client}", found=one.group)
        seen.add((one.client, one.group))
        yield one


def by_tier(
    world: World,
    state: ServerState,
    *,
    norm: NormName = "averaged",
    runs: Sequence[str] = (),
    submodel: Callable[[Tier], Tier] | None = None,
    model: Callable[[Tier], Model] | None = None,
    private: bool | None = None,
    whole: Tier | bool = True,
    idle: bool = False,
) -> Iterator[Evaluated]:
    """Yield the models to test: the global model and one model per tier.

    A tier's model is also tested on the data of each client of the tier.

    Args:
        world: The clients and tiers.
        state: The server's state, which contains the global weights.
        norm: How running statistics are treated; see :class:`NormPolicy`.
        runs: Name of the tier of each client, indexed by client id. Default: the client's tier in
            the family.
        submodel: Function that maps a tier to the tier whose graph and transfer define the tested
            model. Default: the same tier.
        model: Function that maps a tier to the tested model. If set, ``submodel`` is ignored.
            Default: the submodel of the global model that ``submodel`` defines.
        private: Whether clients' private tensors are used when a model is tested on a client's
            data. Default: only if ``norm`` is ``local``.
        whole: Whether to test the global model. If a tier is passed, the tier's model is tested in
            place of the global model.
        idle: Whether to test tiers without clients, too.
    """
    policy, weights = NormPolicy(norm), state.group(GLOBAL)

    def pulled(tier: Tier) -> Model:
        part = tier if submodel is None else submodel(tier)
        return Model(part.graph, part.transfer.pull(weights, copy=False))

    model = model or pulled
    if whole:
        tested = Model(world.graph, weights) if whole is True else model(whole)
        yield Evaluated(GLOBAL, tested.graph, tested.state, statistics=policy.evaluation)
    for tier in world.tiers:
        clients = world.clients_of(tier.name)
        if runs:
            clients = tuple(client for client, name in enumerate(runs) if name == tier.name)
        if clients or idle:
            # Pulled only now: one tier's weights are in memory at a time.
            tested = model(tier)
            yield Evaluated(
                name=tier.name,
                graph=tested.graph,
                state=tested.state,
                clients=clients,
                statistics=policy.evaluation,
                private=policy.personal if private is None else private,
            )
