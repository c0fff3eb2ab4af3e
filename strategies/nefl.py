"""NeFL: nested submodels, shallower and narrower, with step sizes and norms of their own.

Kang, Cha, Shin, Lee, Kang: *NeFL: Nested Model Scaling for Federated Learning with System
Heterogeneous Clients* (text in Algorithms 1-2, §IV, §V-A3, §V-B4, Appendix A, B-A).

=========================  ==============================================================
symbol                     here
=========================  ==============================================================
``N_s`` submodels          ``World.tiers`` by number of parameters (:func:`ladder`)
``γ_W``, ``γ_D``           the family's ``take`` and ``skip``: ``Tier.transfer``
``θ_c`` consistent         group ``global`` of the server state
``θ_ic,k`` inconsistent    group ``submodel/NAME``: step sizes, norms
``s_j`` step size          ``ag.add_step_sizes``: a scalar on the branch of every residual region
``M_k``                    the results of a round whose client drew submodel k
NeFedAvg                   ``ag.Merger`` of what is consistent: mean of those who cover it
InconsistentParamAvg       one :class:`Mean` per submodel of what is its own
=========================  ==============================================================

NeFL-W, -D and -WD differ in their families alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

import archgraph as ag
from archgraph.federation import (
    Evaluated,
    Json,
    NormPolicy,
    Result,
    ServerState,
    State,
    Strategy,
    Task,
    Tier,
    Train,
    World,
    seeded,
)

Steps = Literal["learnable", "constant", "off"]
Initial = Literal["ones", "ode"]
Inconsistent = Literal["auto", "norms", "none"]
Norm = Literal["per_submodel", "averaged", "static", "local"]


@dataclass(frozen=True)
class NeFL(Strategy):
    """Options of NeFL.

    Attributes:
        steps: Step sizes on residual branches: trained, kept as they start (N/L), or none. They are
            always inconsistent.
        initial: Where step sizes start. ``ones``; ``ode`` (NeFL-DO): at 1 + k where the global
            model goes on with k blocks that the submodel lacks.
        inconsistent: Which norm layers each submodel has for itself. ``auto``: those with running
            statistics (§IV-B1; layer norms do better when shared, §V-B4). ``norms``: all.
        spread: How many sizes below and above its own a client may draw in a round (§V-A3).
        weights: Weight of a client: 1, or its number of examples.
        norm: What becomes of running statistics: ``per_submodel``: as of their layer; else they are
            averaged over all submodels, recomputed for evaluation, or stay with the client.

    Example:
        >>> NeFL(steps="constant").spread
        2
    """

    steps: Steps = "learnable"
    initial: Initial = "ones"
    inconsistent: Inconsistent = "auto"
    spread: int = 2
    weights: Literal["uniform", "examples"] = "uniform"
    norm: Norm = "per_submodel"

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "paper": {"steps": "learnable", "initial": "ones", "inconsistent": "auto", "spread": 2},
        "paper_nl": {"steps": "constant"},
        "paper_do": {"initial": "ode"},
        "paper_do_nl": {"steps": "constant", "initial": "ode"},
        # Three submodels (Table VI): clients keep to their own.
        "paper_fixed": {"spread": 0},
        # Norms are inconsistent of whatever kind they are.
        "official_code": {"inconsistent": "norms"},
    }

    def __post_init__(self) -> None:
        """Check the range, and that the options go together."""
        if self.spread < 0:
            raise ag.SpecError("no spread", where="spread", found=self.spread, expected="0 or more")
        if self.initial == "ode" and self.steps == "off":
            raise ag.SpecError(
                "there is no step size to start",
                where="initial",
                found="ode, with steps off",
                expected="steps learnable or constant",
            )
        if self.norm == "local" and self.spread:
            raise ag.SpecError(
                "what a client keeps has the size of its last submodel",
                where="norm",
                found=f"local, with spread {self.spread}",
                expected="spread 0, or another norm",
            )

    def init(self, world: World) -> ServerState:
        """``θ_c``, and every submodel's ``θ_ic`` as the initial global weights have it.

        Raises:
            RewriteError: If a residual sum of a submodel has no single branch to scale.
        """
        state = ServerState().with_group("global", world.state)
        for tier in world.tiers:
            own = self._submodel(world, tier).own
            state = state.with_group(f"submodel/{tier.name}", own.pull(world.state))
        return state

    def drawn(self, world: World, client: int, round: int) -> Tier:
        """The submodel that a client trains in a round: uniform around its own size (§V-A3)."""
        sizes = ladder(world)
        own = [tier.name for tier in sizes].index(world.clients[client].name)
        near = sizes[max(own - self.spread, 0) : own + self.spread + 1]
        draw = seeded(world.seed, "nefl submodel", round, client)
        return near[int(torch.randint(len(near), (), generator=draw))]

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """A submodel for the client (Algorithm 1)."""
        tier = self.drawn(world, client, round)
        submodel = self._submodel(world, tier)
        return Task(
            client=client,
            graph=submodel.graph,
            state=self._state(world, state, tier),
            program=Train(),
            kept=NormPolicy(self.norm).kept(submodel.graph),
            tier=tier.name,
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """NeFedAvg of what is consistent, means within submodels of the rest (Algorithm 2)."""
        nested = ag.Merger(world.graph, state.group("global"))
        within: dict[str, Mean] = {}
        for result in results:
            tier = self.drawn(world, result.client, round)
            submodel = self._submodel(world, tier)
            weight = 1 if self.weights == "uniform" else result.examples
            nested.add(
                submodel.consistent, submodel.shared(result.state), weight=weight, trusted=True
            )
            group = f"submodel/{tier.name}"
            if group not in within:
                within[group] = Mean(state.group(group))
            within[group].add(result.state, weight)
        state = state.with_group("global", nested.result()[0])
        for group, mean in within.items():
            state = state.with_group(group, mean.result())
        return state

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Every submodel with its own ``θ_ic``; the largest is what is shown as the global one."""
        largest = ladder(world)[-1]
        for name, tier in [("global", largest), *((t.name, t) for t in world.tiers)]:
            yield Evaluated(
                name=name,
                graph=self._submodel(world, tier).graph,
                state=self._state(world, state, tier),
                clients=tuple(c.id for c in world.clients if c.name == name),
                statistics=NormPolicy(self.norm).evaluation,
                kept=self.norm == "local" and name != "global",
            )

    def _submodel(self, world: World, tier: Tier) -> Submodel:
        return submodel(
            world.graph,
            tier.graph,
            tier.transfer,
            self.steps,
            self.initial,
            self.inconsistent,
            self.norm,
        )

    def _state(self, world: World, state: ServerState, tier: Tier) -> State:
        """A submodel's weights: what is shared, cut out of the global ones, and what is its own."""
        made = self._submodel(world, tier)
        weights = made.rest.pull(state.group("global")) | state.group(f"submodel/{tier.name}")
        return {name: weights[name] for name in made.graph.state_names}


def ladder(world: World) -> list[Tier]:
    """The submodels from the smallest to the largest (§IV: γ_1 ≤ … ≤ γ_Ns)."""
    return sorted(world.tiers, key=lambda tier: ag.cost(tier.graph).parameters)


class Mean:
    """Mean of states of one architecture: few numbers in many tensors, added up as one vector.

    Integers (counters) combine by maximum and bools keep their old values, as in ``ag.Merger``.

    Args:
        old: A state of that architecture.

    Example:
        >>> mean = Mean({"s": torch.tensor(1.0), "n": torch.tensor(0)})
        >>> mean.add({"s": torch.tensor(2.0), "n": torch.tensor(5)}, weight=1)
        >>> mean.add({"s": torch.tensor(6.0), "n": torch.tensor(3)}, weight=3)
        >>> mean.result()
        {'s': tensor(5.), 'n': tensor(5)}
    """

    def __init__(self, old: State) -> None:
        self._old = old
        self._names: dict[torch.dtype, list[str]] = {}
        for name, value in old.items():
            if value.dtype != torch.bool:
                self._names.setdefault(value.dtype, []).append(name)
        self._sums: dict[torch.dtype, Tensor] = {}
        self._unit = self._weight = 0.0

    @torch.no_grad()
    def add(self, state: State, weight: float) -> None:
        """Add a state; further entries of it do not matter."""
        self._unit = self._unit or weight
        weight /= self._unit  # equal weights are exactly 1
        self._weight += weight
        for dtype, names in self._names.items():
            flat = torch.cat([state[name].flatten() for name in names])
            total = self._sums.get(dtype)
            if not (dtype.is_floating_point or dtype.is_complex):
                self._sums[dtype] = flat if total is None else total.maximum(flat)
                continue
            flat = flat.to(torch.promote_types(dtype, torch.float32))
            self._sums[dtype] = flat * weight if total is None else total.add_(flat, alpha=weight)

    @torch.no_grad()
    def result(self) -> dict[str, Tensor]:
        """The mean, in the entries' types."""
        made = dict(self._old)
        for dtype, total in self._sums.items():
            if dtype.is_floating_point or dtype.is_complex:
                total = total / self._weight
            names = self._names[dtype]
            parts = total.split([self._old[name].numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                made[name] = part.view(self._old[name].shape).to(dtype, copy=True)
        return made


@dataclass(frozen=True)
class Submodel:
    """A tier's architecture with step sizes, and which of its entries are whose.

    Attributes:
        graph: What clients run.
        rest: Global state → the entries that are not its own.
        consistent: The part of ``rest`` that is averaged with other submodels.
        own: Global state → its own entries, as they start.
    """

    graph: ag.ArchGraph
    rest: ag.Transfer
    consistent: ag.Transfer
    own: ag.Transfer

    def shared(self, state: State) -> State:
        """The consistent entries of an update."""
        return {name: state[name] for name in self.consistent.entries}


@functools.lru_cache(maxsize=256)
def submodel(
    whole: ag.ArchGraph,
    graph: ag.ArchGraph,
    transfer: ag.Transfer,
    steps: Steps = "learnable",
    initial: Initial = "ones",
    inconsistent: Inconsistent = "auto",
    norm: Norm = "per_submodel",
) -> Submodel:
    """A tier's architecture with its step sizes.

    Args:
        whole: The global architecture.
        graph: The tier's.
        transfer: Global → tier.
        steps: As the option.
        initial: As the option.
        inconsistent: As the option.
        norm: As the option.

    Raises:
        RewriteError: If a residual sum has no single branch to scale.
    """
    made = ag.Rewritten(graph, transfer)
    if steps != "off":
        after = left_out_after(whole, graph, transfer) if initial == "ode" else {}
        starts = {name: 1.0 + k for name, k in after.items()}  # the others start at 1
        made = made >> ag.add_step_sizes(graph, initial=starts, learnable=steps == "learnable")
    entries = made.transfer.entries
    own = held(made.graph, inconsistent)
    unmerged = frozenset[str]()
    if norm != "per_submodel":
        own -= NormPolicy("static").left_out(made.graph)
        unmerged = NormPolicy(norm).left_out(made.graph)
    # What the global state has nothing of (step sizes) can be nobody else's.
    own |= {name for name, entry in entries.items() if entry.source is None} - unmerged
    if steps == "constant":  # their values are part of the architecture
        own -= set(made.graph.state_names) - set(graph.state_names)
    return Submodel(
        graph=made.graph,
        rest=_part(made.transfer, entries.keys() - own),
        consistent=_part(made.transfer, entries.keys() - own - unmerged),
        own=_part(made.transfer, own),
    )


def _part(transfer: ag.Transfer, names: Iterable[str]) -> ag.Transfer:
    """A transfer to some of its entries only."""
    wanted = set(names)
    return ag.Transfer(
        transfer.source,
        tuple(slot for slot in transfer.target if slot.name in wanted),
        {name: entry for name, entry in transfer.entries.items() if name in wanted},
    )


def held(graph: ag.ArchGraph, inconsistent: Inconsistent) -> frozenset[str]:
    """Entries of the norm layers that each submodel has for itself.

    Example:
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.LayerNorm(3)
        ... )
        >>> graph = ag.trace(net, torch.zeros(2, 2)).graph
        >>> sorted(held(graph, "auto"))
        ['1.bias', '1.num_batches_tracked', '1.running_mean', '1.running_var', '1.weight']
        >>> len(held(graph, "norms")), len(held(graph, "none"))
        (7, 0)
    """
    norms = NormPolicy("per_submodel").grouped(graph)
    statistics = NormPolicy("static").left_out(graph)
    match inconsistent:
        case "norms":
            return norms
        case "none":
            return frozenset()
        case "auto":
            used = [set(node.leaves()) for node in graph.nodes]
            layers = set[str]().union(*(leaves for leaves in used if leaves & statistics))
            return norms & (statistics | layers)


def left_out_after(
    whole: ag.ArchGraph, graph: ag.ArchGraph, transfer: ag.Transfer
) -> dict[str, int]:
    """Blocks of the global model that follow a submodel's block and that it lacks (NeFL-DO).

    Counted are residual blocks of the same section, up to the next one that is there. A block is
    recognised by the global entries that its own come from; of several (the rounds of a layer that
    is used again and again) by its name.

    Returns:
        By name of the submodel's block; those that lack nothing are left out.

    Example:
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        ...
        ...     def forward(self, x):
        ...         for layer in self.layers:
        ...             x = x + layer(x).relu()
        ...         return x
        >>> graph = ag.trace(Net(), torch.zeros(1, 4)).graph
        >>> small = ag.skip(graph, ["layers.1", "layers.2"])
        >>> left_out_after(graph, small.graph, small.transfer)
        {'layers.0': 2}
    """
    residual = _residual(whole)
    found: dict[str, str] = {}  # a global block → the submodel's
    for name, leaves in _residual(graph).items():
        sources = {transfer.entries[leaf].source for leaf in leaves if leaf in transfer.entries}
        shared = {
            block: (len(sources & theirs), block == name)
            for block, theirs in residual.items()
            if sources & theirs
        }
        if shared:
            found[max(shared, key=lambda block: shared[block])] = name
    counts: dict[str, int] = {}
    for section in ag.structure(whole).sections:
        last = None
        for block in section.blocks:
            if block.name in found:
                last = found[block.name]
            elif block.name not in residual:
                last = None
            elif last is not None:
                counts[last] = counts.get(last, 0) + 1
    return counts


def _residual(graph: ag.ArchGraph) -> dict[str, set[str]]:
    """Leaves of every block that adds to what enters it."""
    return {
        block.name: {leaf for name in block.nodes for leaf in graph.node[name].leaves()}
        for block in ag.structure(graph).blocks
        if block.sums
    }
