"""NeFL: clients train nested submodels, each with its own step sizes and norm layers.

Kang, Cha, Shin, Lee, Kang: *NeFL: Nested Model Scaling for Federated Learning with System
Heterogeneous Clients* (text in Algorithms 1-2, §IV, §V-A3, §V-B4, Appendix A, B-A).

=========================  ==============================================================
symbol                     here
=========================  ==============================================================
``N_s`` submodels          ``World.by_size`` (§IV: γ_1 ≤ … ≤ γ_Ns)
``γ_W``, ``γ_D``           the family's ``take`` and ``skip``: ``Tier.transfer``
``θ_c`` consistent         group ``global`` of the server state
``θ_ic,k`` inconsistent    group ``submodel/NAME``: step sizes, norms
``s_j`` step size          ``ag.add_step_sizes``: a scalar on the branch of every residual region
``M_k``                    a round's results from clients that drew submodel k
NeFedAvg                   ``group_means`` of group ``global``: consistent parameters
InconsistentParamAvg       ``group_means`` of group ``submodel/NAME``: inconsistent parameters
=========================  ==============================================================

NeFL-W, -D and -WD differ only in their families.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

import archgraph as ag
from archgraph import federation as fl

Steps = Literal["learnable", "constant", "off"]
Initial = Literal["ones", "ode"]
Inconsistent = Literal["auto", "norms", "none"]
Norm = Literal["per_submodel", "averaged", "static", "local"]


@dataclass(frozen=True)
class NeFL(fl.Weighted):
    """Options of NeFL.

    Attributes:
        steps: Step sizes, which are scalar factors of residual branches. ``learnable``: step sizes
            are trained. ``constant``: step sizes are not trained ("N/L" in the paper). ``off``:
            there are no step sizes. Every submodel has its own step sizes.
        initial: Initial step sizes. ``ones``: 1 for every block. ``ode`` (NeFL-DO): 1 + k for a
            block, where k is the number of blocks directly after this block that the submodel
            lacks.
        inconsistent: Norm layers that are separate for each submodel. ``auto``: norm layers with
            running statistics (§IV-B1), but not layer norms, which work better if they are shared
            (§V-B4). ``norms``: all norm layers. ``none``: no norm layers.
        spread: In each round, every client draws a submodel. In the order of submodels by size, the
            drawn submodel is at most ``spread`` places away from the client's own submodel (§V-A3).
        norm: How running statistics are treated. ``per_submodel``: averaged like the parameters of
            the same norm layer. ``averaged``: averaged over all submodels. ``static``: recomputed
            for evaluation. ``local``: kept by the client.

    Example:
        >>> NeFL(steps="constant").spread
        2
    """

    paper = "NeFL"
    year = 2025
    serves = ("width", "depth")

    steps: Steps = "learnable"
    initial: Initial = "ones"
    inconsistent: Inconsistent = "auto"
    spread: int = fl.option(2, least=0)
    weights: fl.Weights = "uniform"
    norm: Norm = "per_submodel"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "paper": {"steps": "learnable", "initial": "ones", "inconsistent": "auto", "spread": 2},
        "paper_nl": {"steps": "constant"},
        "paper_do": {"initial": "ode"},
        "paper_do_nl": {"steps": "constant", "initial": "ode"},
        # Three submodels (Table VI): clients keep to their own.
        "paper_fixed": {"spread": 0},
        # Norms of every kind are inconsistent.
        "official_code": {"inconsistent": "norms"},
    }

    def __post_init__(self) -> None:
        """Check that the options are compatible."""
        super().__post_init__()
        if self.initial == "ode" and self.steps == "off":
            message = "needs step sizes, and steps are off"
            raise ag.SpecError(message, where="initial", expected="steps: learnable or constant")
        if self.norm == "local" and self.spread:
            message = "kept statistics would have the size of the previous round's submodel"
            raise ag.SpecError(message, where="norm", expected="spread: 0, or another norm")

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``θ_c``, and each submodel's own initial parameters ``θ_ic``.

        Raises:
            RewriteError: If it is unclear which branch of a residual sum a step size multiplies.
        """
        state = fl.ServerState().with_group("global", world.state)
        for tier in world.tiers:
            submodel = self._submodel(world, tier)
            private = submodel.transfer.only(submodel.private).pull(world.state)
            state = state.with_group(f"submodel/{tier.name}", private)
        return state

    def drawn(self, world: fl.World, client: int, round: int) -> fl.Tier:
        """Draw a client's submodel for a round.

        The draw is uniform over the submodels that ``spread`` allows (§V-A3).
        """
        sizes = world.by_size
        index = [tier.name for tier in sizes].index(world.clients[client].name)
        # Limited to existing sizes, as in the published code: the smallest draws from fewer.
        near = sizes[max(index - self.spread, 0) : index + self.spread + 1]
        draw = fl.seeded(world.seed, "nefl submodel", round, client)
        return near[int(torch.randint(len(near), (), generator=draw))]

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the submodel that is drawn for the client in this round (Algorithm 1)."""
        tier = self.drawn(world, client, round)
        submodel = self._submodel(world, tier)
        task = fl.part(
            world,
            state,
            client,
            tier=replace(tier, graph=submodel.graph, transfer=submodel.transfer),
            norm=self.norm,
            weights=self._state(world, state, tier),
        )
        # Private parameters are sent, but averaged by the strategy and not in the global mean.
        return replace(task, unmerged=submodel.private | submodel.unmerged)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the clients' parameters.

        Consistent parameters are averaged over all clients, and inconsistent parameters only over
        the clients that trained the same submodel.
        """

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                consistent = fl.Contribution.of(result, world.graph, self.weights)
                group = f"submodel/{result.tier}"
                submodel = self._submodel(world, world.tier(result.tier))
                graph = submodel.graph
                names = tuple(name for name in graph.state_names if name in submodel.private)
                same = fl.identity_of(graph, names)
                private = {name: result.state[name] for name in names if name in result.state}
                # A mean of equal numbers may differ in its last bits; the others stay with the
                # client.
                still = (ag.frozen(graph) & private.keys()) | (frozenset(names) - private.keys())
                yield fl.Contribution(
                    result.client, group, same.source, same, private, consistent.weight, still
                )
                yield consistent

        return fl.group_means(world, state, contributions())

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate every submodel. The largest submodel is the global model."""

        def model(tier: fl.Tier) -> fl.Model:
            return fl.Model(self._submodel(world, tier).graph, self._state(world, state, tier))

        return fl.by_tier(
            world, state, norm=self.norm, model=model, whole=world.by_size[-1], idle=True
        )

    def _submodel(self, world: fl.World, tier: fl.Tier) -> NestedSubmodel:
        options = self.steps, self.initial, self.inconsistent, self.norm
        return submodel(world.graph, tier.graph, tier.transfer, *options)

    def _state(self, world: fl.World, state: fl.ServerState, tier: fl.Tier) -> fl.State:
        """Return a submodel's weights: shared ones cut from the global state, and private ones."""
        weights = self._submodel(world, tier).transfer.pull(state.group("global"), copy=False)
        return weights | state.group(f"submodel/{tier.name}")


@dataclass(frozen=True)
class NestedSubmodel:
    """A tier's architecture with step sizes, and the parameters that it does not share.

    Attributes:
        graph: The clients' architecture, with step sizes.
        transfer: Transfer from the global state to the submodel's state, which creates step sizes.
        private: Parameters and buffers that only this submodel has.
        unmerged: Further parameters and buffers that are not averaged with other submodels.
    """

    graph: ag.ArchGraph
    transfer: ag.Transfer
    private: frozenset[str]
    unmerged: frozenset[str]


@functools.lru_cache(maxsize=256)
def submodel(
    full: ag.ArchGraph,
    graph: ag.ArchGraph,
    transfer: ag.Transfer,
    steps: Steps = "learnable",
    initial: Initial = "ones",
    inconsistent: Inconsistent = "auto",
    norm: Norm = "per_submodel",
) -> NestedSubmodel:
    """Build a tier's architecture with its step sizes.

    Raises:
        RewriteError: If it is unclear which branch of a residual sum a step size multiplies.
    """
    rewritten = ag.Rewritten(graph, transfer)
    if steps != "off":
        after = left_out_after(full, graph, transfer) if initial == "ode" else {}
        starts = {name: 1.0 + k for name, k in after.items()}  # the others start at 1
        rewritten = rewritten >> ag.add_step_sizes(
            graph, initial=starts, learnable=steps == "learnable", allow_nothing=True
        )
    private = own_norms(rewritten.graph, inconsistent)
    unmerged = frozenset[str]()
    if norm != "per_submodel":
        private -= fl.NormPolicy("static").unmerged(rewritten.graph)
        unmerged = fl.NormPolicy(norm).unmerged(rewritten.graph)
    # Entries that do not come from the global state (step sizes) belong to this submodel alone.
    private |= {
        name for name, entry in rewritten.transfer.entries.items() if entry.source is None
    } - unmerged
    if steps == "constant":  # their values are part of the architecture
        private -= set(rewritten.graph.state_names) - set(graph.state_names)
    return NestedSubmodel(rewritten.graph, rewritten.transfer, private, unmerged)


def own_norms(graph: ag.ArchGraph, inconsistent: Inconsistent) -> frozenset[str]:
    """Return the parameters and buffers of norm layers that are separate for each submodel.

    Example:
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.LayerNorm(3)
        ... )
        >>> graph = ag.trace(net, torch.zeros(2, 2)).graph
        >>> sorted(own_norms(graph, "auto"))
        ['1.bias', '1.num_batches_tracked', '1.running_mean', '1.running_var', '1.weight']
        >>> len(own_norms(graph, "norms")), len(own_norms(graph, "none"))
        (7, 0)
    """
    norms = fl.NormPolicy("per_submodel").unmerged(graph)
    statistics = fl.NormPolicy("static").unmerged(graph)
    match inconsistent:
        case "norms":
            return norms
        case "none":
            return frozenset()
        case "auto":
            # By layer: scales and shifts are treated like the statistics that their operator uses.
            used = [set(node.leaves()) for node in graph.nodes]
            layers = set[str]().union(*(leaves for leaves in used if leaves & statistics))
            return norms & (statistics | layers)


def left_out_after(
    full: ag.ArchGraph, graph: ag.ArchGraph, transfer: ag.Transfer
) -> dict[str, int]:
    """Count how many global blocks a submodel lacks after each of its blocks (NeFL-DO).

    Only residual blocks of the same section count, up to the next block that the submodel has.
    Blocks are matched by the global parameters from which their own come. If several blocks use the
    same parameters, they are matched by name.

    Returns:
        Dict from block of the submodel to its count. Blocks with a count of 0 are omitted.

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
    residual = _residual(full)
    counterpart: dict[str, str] = {}  # a global block → the submodel's
    for name, leaves in _residual(graph).items():
        sources = {transfer.entries[leaf].source for leaf in leaves if leaf in transfer.entries}
        shared = {
            block: (len(sources & theirs), block == name)
            for block, theirs in residual.items()
            if sources & theirs
        }
        if shared:
            counterpart[max(shared, key=lambda block: shared[block])] = name
    counts: dict[str, int] = {}
    for section in ag.structure(full).sections:
        last = None
        for block in section.blocks:
            if block.name in counterpart:
                last = counterpart[block.name]
            elif block.name not in residual:
                last = None
            elif last is not None:
                counts[last] = counts.get(last, 0) + 1
    return counts


def _residual(graph: ag.ArchGraph) -> dict[str, set[str]]:
    """Return the parameters and buffers of every residual block."""
    return {
        block.name: {leaf for name in block.nodes for leaf in graph.node[name].leaves()}
        for block in ag.structure(graph).blocks
        if block.sums
    }
