r"""FedADP: every client's model is grown to the global architecture; all are then averaged.

Wang, Lv, Liu: *FedADP: Unified Model Aggregation for Federated Learning with Heterogeneous Model
Architectures* (text in §III, Algorithms 1-3); growth: Chen, Goodfellow, Shlens: *Net2Net*, ICLR
2016.

==========================  ===================================================================
symbol                      here
==========================  ===================================================================
``ω^t``                     group ``global`` of the server state
``ω_k``                     ``Result.state``
``W_k = n_k / n``           ``Result.examples``, divided by the sum over clients
NetChange(``ω^t, ω_k``)     :meth:`NetChange.sent`: To-Shallower, then To-Narrower (Algorithm 3)
NetChange(``ω_k, ω^t``)     :meth:`NetChange.grown`: To-Wider (Algorithm 2), then To-Deeper
``M_i``                     :func:`unit_copies`: the unit that each new unit copies
==========================  ===================================================================

In the following steps, ``G`` is the global architecture, ``g`` is ``G`` with the client's widths,
and ``c`` is ``g`` without the blocks that the client lacks. All three have the global model's
names. The client's model is ``c`` with other names:

    G ──narrow──▶ g ──skip──▶ c ═══ client ═══ c ──deepen──▶ g ──widen──▶ G

Narrowing comes first, because then a block whose input and output have different widths only in
``G`` can be skipped, too. Otherwise the order does not matter, except in dense blocks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl

Mode = Literal["paper", "net2net"]
Lacks = Mapping[str, Sequence[str]]  # blocks by section


@dataclass(frozen=True)
class FedADP(fl.Averaging, fl.Masking):
    """Options of FedADP.

    Attributes:
        narrow: How to remove units when the global model is cut to a client's width. ``paper``:
            keep the first k units, and add 1/k of the sum of the removed units to each kept unit
            (Algorithm 3). This changes what the model computes. ``net2net``: merge the copies of
            each unit that widening made. This undoes widening.
        redraw: Widening copies randomly drawn units. If True, these units are drawn again in every
            round. If False, they are drawn once per architecture.
        approximate: If False, raise an error if growing a client's model changes what the model
            computes. If True, grow the model anyway. Blocks that cannot be initialised as the
            identity are then copied from the old global model.

    Example:
        >>> FedADP(narrow="net2net").norm
        'averaged'
    """

    paper = "FedADP"
    year = 2025
    serves = ("width", "depth")

    narrow: Mode = "paper"
    redraw: bool = False
    approximate: bool = False

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "paper": {},
        "net2net": {"narrow": "net2net"},
    }

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``ω^0`` (Algorithm 1, line 2).

        Raises:
            RunError: If a client's architecture is not part of the global one, or cannot be grown
                to the global one without changing what it computes.
        """
        for tier in world.tiers:
            self.fit(world, tier)
        return fl.ServerState().with_group("global", world.state).with_values(drawn=0)

    def begin(
        self, world: fl.World, state: fl.ServerState, round: int, sampled: Sequence[int]
    ) -> fl.ServerState:
        """Compute the weights that are sent to each tier, once for all clients of the tier."""
        weights = state.group("global")
        for name in dict.fromkeys(world.clients[c].name for c in sampled):
            fit = self.fit(world, world.tier(name), state.values["drawn"])
            state = state.with_group(f"sent/{name}", fit.sent(weights))
        return state

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the client's part ``ω_k`` of the global model (NetChange, lines 5-7)."""
        tier = world.tier_of(client)
        fit = self.fit(world, tier, state.values["drawn"])
        return fl.part(
            world,
            state,
            client,
            mask_absent=self.mask_absent,
            norm=self.norm,
            weights=state.group(f"sent/{tier.name}") or fit.sent(state.group("global")),
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Grow the clients' models with NetChange, and average the grown models (lines 10, 12).

        ``ω^t ← Σ W_k NetChange(ω_k, ω^t)``. Widening copies randomly drawn units. The server state
        stores the round of this draw as ``drawn``, so that narrowing can later merge the same
        copies.
        """
        drawn = round if self.redraw else 0
        state = state.with_group("sent", {})
        # A median is not linear, so it needs every single grown model.
        if world.one_by_one:
            return self._each_grown(world, state, results, drawn)
        merged, coverage = self.merged(world, state.group("global"), results, drawn)
        if not coverage:
            return state
        return state.with_group("global", merged).with_values(drawn=drawn)

    def merged(
        self, world: fl.World, old: fl.State, results: Iterable[fl.Result], drawn: int = 0
    ) -> tuple[fl.State, Mapping[str, Tensor]]:
        """Return the mean of the grown models, and the total weight of the clients for each value.

        For each architecture, the clients' models are averaged before they are grown. The result is
        the same as the average of grown models: growing is a linear map plus newly initialised
        parameters, which are the same for all models of an architecture. Without results, return
        ``old`` and an empty dict.
        """
        means: dict[NetChange, ag.Merger] = {}
        totals: dict[NetChange, float] = {}
        for result in results:
            fit = self.fit(world, world.tier_of(result.client), drawn)
            weight = result.weight(self.weights)
            if fit not in means:
                means[fit], totals[fit] = (
                    ag.Merger(fit.same.source, fit.blank, wait=world.wait),
                    0.0,
                )
            means[fit].accumulate(
                fl.Update(fit.same, result.state, weight, unmerged=result.unmerged)
            )
            totals[fit] += weight
        if not totals:
            return old, {}
        merger, identity = (
            ag.Merger(world.graph, old, wait=world.wait),
            ag.Transfer.identity(world.graph),
        )
        unmerged = self._unmerged(world)
        # Popped: an architecture's mean is freed before the next one is grown.
        for fit in list(means):
            mean, _ = means.pop(fit).result()
            state = mean if fit.exact else fit.grown(mean, old)
            update = fl.Update(identity, state, totals[fit], unmerged=unmerged)
            merger.accumulate(update, through=fit.up if fit.exact else None)
        return merger.result()

    def _unmerged(self, world: fl.World) -> frozenset[str]:
        """Return the parameters and buffers of the global state that are not averaged."""
        private = (
            str(tier.transfer.entries[name].source)
            for tier in world.tiers
            for name in self.private_entries(world, tier.graph)
        )
        return fl.NormPolicy(self.norm).unmerged(world.graph).union(private)

    def _each_grown(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], drawn: int
    ) -> fl.ServerState:
        """Average with every client's model counted by itself, grown to the global one."""
        old, identity = state.group("global"), ag.Transfer.identity(world.graph)
        unmerged = self._unmerged(world)
        arrived = False

        def contributions() -> Iterator[fl.Contribution]:
            nonlocal arrived
            for result in results:
                arrived = True
                fit = self.fit(world, world.tier_of(result.client), drawn)
                grown = fit.grown({**fit.blank, **result.state}, old)
                one = fl.Contribution.of(result, world.graph, self.weights)
                yield one._replace(transfer=identity, state=grown, unmerged=unmerged)

        # Without results the global state still consists of the copies of an earlier round.
        state = fl.group_means(world, state, contributions())
        return state.with_values(drawn=drawn) if arrived else state

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and each architecture's model on its clients' data."""
        weights = state.group("global")

        def model(tier: fl.Tier) -> fl.Model:
            fit = self.fit(world, tier, state.values["drawn"])
            return fl.Model(fit.graph, fit.sent(weights))

        return fl.by_tier(world, state, norm=self.norm, model=model)

    def fit(self, world: fl.World, tier: fl.Tier, drawn: int = 0) -> NetChange:
        """Return the maps from the global model's weights to a tier's weights and back.

        Raises:
            RunError: If the tier's architecture is not part of the global one, or cannot be grown
                to the global one without changing what it computes. The message names the tier.
        """
        # Tiers with equal architectures share their copies.
        draw = fl.seeded(world.seed, "fedadp copies", tier.graph.digest, drawn)
        seed = int(torch.randint(2**62, (), generator=draw))
        try:
            down, approximate = tier.transfer, self.approximate
            return growth_fit(world.graph, tier.graph, down, self.narrow, seed, approximate)
        except ag.ArchGraphError as error:
            raise error.within(f"tier {tier.name}", kind=ag.RunError) from error


@dataclass(frozen=True, eq=False)
class NetChange:
    """The transfers from the global model to a client's architecture and back.

    Attributes:
        graph: The client's architecture.
        frame: The transfers that do not depend on which units are copied.
        widened: Transfer from the state of ``frame.filled`` to the part of the global state that
            can be grown (Algorithm 2).
        undo: If True, narrowing undoes widening. If False, it follows Algorithm 3.
    """

    graph: ag.ArchGraph
    frame: Frame
    widened: ag.Transfer
    undo: bool

    def sent(self, state: fl.State) -> fl.State:
        """Cut the client's state out of the global one."""
        if not self.undo:
            return self.frame.down.pull(state)
        wide = self.frame.reached.transfer.pull(state, copy=False)
        sums, covered = self.widened.push(wide)
        for name, entry in self.widened.entries.items():
            origin = str(entry.source)
            if entry.unchanged:
                sums[origin] = wide[name]
            else:  # ΣA y / ΣA² recovers the replicated value
                mean = sums[origin].div_(covered[origin].to(sums[origin]))
                sums[origin] = mean.to(wide[name].dtype)
        return self.frame.shorter.pull(sums)

    def grown(self, state: fl.State, old: fl.State) -> fl.State:
        """Grow the client's state to the global one, completed from the old global state."""
        grown = self.up.pull(state, copy=False)
        if self.exact:
            return grown
        # Entries and positions that the client does not reach keep the old global values.
        values, covered = self.frame.reached.transfer.push(grown)
        return {
            name: torch.where(covered[name].to(value.device) > 0, values[name].to(value), value)
            for name, value in old.items()
        }

    @functools.cached_property
    def exact(self) -> bool:
        """Whether the client's state determines all of the global state."""
        reached = self.frame.reached.transfer
        unchanged = all(entry.unchanged for entry in reached.entries.values())
        return unchanged and self.up.target == reached.source

    @functools.cached_property
    def up(self) -> ag.Transfer:
        """Transfer from the client's state to the part of the global state that can be grown."""
        return self.frame.deepened >> self.widened

    @functools.cached_property
    def same(self) -> ag.Transfer:
        """Identity transfer of the client's state."""
        return ag.Transfer.identity(self.graph)

    @functools.cached_property
    def blank(self) -> fl.State:
        """Zeros in the client's shapes, for parameters without updates; they take no memory."""
        return {
            s.name: torch.zeros((), dtype=s.torch_dtype).expand(s.shape) for s in self.same.target
        }


@functools.lru_cache(maxsize=64)
def growth_fit(
    server: ag.ArchGraph,
    client: ag.ArchGraph,
    down: ag.Transfer,
    mode: Mode,
    seed: int,
    approximate: bool = False,
) -> NetChange:
    """Return the transfers from the global model to a client's architecture and back.

    The family's transfer ``down`` only determines which parameters the client has, and how many
    channels of each axis. NetChange always keeps the first channels.

    Args:
        server: The global architecture.
        client: The client's architecture.
        down: Transfer from the global state to the client's.
        mode: How to narrow: the option ``narrow`` of :class:`FedADP`.
        seed: Seed of the draw of copies.
        approximate: See the option of :class:`FedADP`.

    Raises:
        RewriteError: If the client's architecture is not part of the global one, or cannot be grown
            to it exactly and ``approximate`` is False.
    """
    frame = _frame(server, client, down, approximate)
    wide, slim = ag.axes(frame.reached.graph).free, ag.axes(frame.filled).free
    small = {axis.name: axis.size for axis in slim}
    index = {
        axis.name: unit_copies(small[axis.name], axis.size, fl.seeded(seed, axis.name))
        for axis in wide
        if small.get(axis.name, axis.size) < axis.size
    }
    try:
        widened = ag.widen(frame.filled, positions=index, approximate=approximate).transfer
    except ag.ArchGraphError as error:
        raise _advised(error) from error
    if widened.target != frame.reached.transfer.target:
        single = [axis.name for axis in wide if axis.name not in small]
        message = "an axis of size 1 cannot be widened again"
        raise ag.RewriteError(message, where=single[0] if single else None)
    return NetChange(client, frame, widened, undo=mode == "net2net")


def unit_copies(size: int, wide: int, draw: torch.Generator) -> list[int]:
    """Return for each unit of a wider layer the old unit that it copies (Algorithm 2).

    The first units are the old ones, the others are random copies. If ``wide`` is a multiple of
    ``size``, all units are copied equally often, so that normalisation over the units does not
    change.

    Args:
        size: Number of units before widening.
        wide: Number of units after widening.
        draw: Random generator.

    Example:
        >>> unit_copies(3, 5, torch.Generator().manual_seed(0))[:3]
        [0, 1, 2]
        >>> sorted(unit_copies(2, 6, torch.Generator().manual_seed(0)))
        [0, 0, 0, 1, 1, 1]
    """
    if wide % size == 0:
        more = torch.randperm(wide - size, generator=draw) % size
    else:
        more = torch.randint(size, (wide - size,), generator=draw)
    return [*range(size), *more.tolist()]


@dataclass(frozen=True)
class Frame:
    """The transfers between a client and the global model that do not depend on drawn copies.

    Attributes:
        down: Transfer from the global state to the client's (Algorithm 3).
        shorter: Transfer from the state of ``filled`` to the client's.
        deepened: Transfer from the client's state to the state of ``filled``.
        filled: The global architecture with the client's widths (``g``), without those blocks that
            the client lacks and that cannot start as the identity.
        reached: The global architecture at full width, without the same blocks.
    """

    down: ag.Transfer
    shorter: ag.Transfer
    deepened: ag.Transfer
    filled: ag.ArchGraph
    reached: ag.Rewritten


@functools.lru_cache(maxsize=64)
def _frame(
    server: ag.ArchGraph, client: ag.ArchGraph, down: ag.Transfer, approximate: bool
) -> Frame:
    names = {name: str(e.source) for name, e in down.entries.items() if e.source is not None}
    for name in down.entries:
        if name not in names:
            raise ag.RewriteError("the global model has no such parameter", where=name)
    # Narrowed before blocks are skipped: a block whose width changes only in the global model can
    # then be skipped, too.
    free = {axis.name for axis in ag.axes(server).free}
    sizes = {name: size for name, size in ag.widths(server, down).items() if name in free}
    narrowed = ag.narrow(server, sizes=sizes)
    lacks, bodies = _lacking(narrowed.graph, set(names.values()))
    short = _without(narrowed.graph, lacks, bodies)
    entries = set(short.graph.state_names)
    if entries != set(names.values()) or len(entries) < len(names):
        odd = sorted(entries ^ set(names.values()))
        problem = f"{len(odd)} parameters that only one has" if odd else "a parameter taken twice"
        raise ag.RewriteError(
            "is not the global model without some of its blocks, and narrower",
            where=next(iter(odd), None),
            found=problem,
        )
    filled, left = _deepened(narrowed.graph, short.graph, lacks, bodies, approximate)
    same, shape = ag.Transfer.identity(client), short.transfer.target
    own_of = {k: dataclasses.replace(e, source=names[k]) for k, e in same.entries.items()}
    to_own = ag.Transfer(shape, same.target, own_of)
    from_own = ag.Transfer(same.source, shape, {names[k]: e for k, e in same.entries.items()})
    missing = {name: blocks for name, blocks in lacks.items() if name not in left}
    return Frame(
        down=narrowed.transfer >> short.transfer >> to_own,
        shorter=_without(filled.graph, missing, bodies).transfer >> to_own,
        deepened=from_own >> filled.transfer,
        filled=filled.graph,
        reached=_without(server, left, bodies),
    )


def _lacking(graph: ag.ArchGraph, present: Set[str]) -> tuple[Lacks, frozenset[str]]:
    """Return blocks that a client lacks, by section, and those with only a projection."""
    lacks: dict[str, list[str]] = {}
    bodies: set[str] = set()
    for block in ag.structure(graph).blocks:
        inside = set(block.nodes)
        # Weights that other blocks also use do not show whether this one is present.
        used = {
            leaf
            for node in block.nodes
            for leaf in graph.node[node].leaves()
            if graph.param[leaf].role != "constant" and inside.issuperset(graph.leaf_users[leaf])
        }
        body = bool(used & present) and block.shortcut not in ("", block.entry)
        if used - present and (body or not used & present):
            lacks.setdefault(block.section, []).append(block.name)
            bodies |= {block.name} if body else set()
    return lacks, frozenset(bodies)


def _without(graph: ag.ArchGraph, lacks: Lacks, bodies: Collection[str]) -> ag.Rewritten:
    """Remove blocks from the architecture, or everything in them but the projection."""
    names = [name for blocks in lacks.values() for name in blocks]
    # In two steps, since `skip` treats all blocks that it gets in the same way.
    shorter = ag.Rewritten.identity(graph)
    for projection in (False, True):
        if chosen := [name for name in names if (name in bodies) == projection]:
            shorter >>= ag.skip(shorter.graph, chosen, keep_projection=projection)
    return shorter


def _deepened(
    server: ag.ArchGraph,
    graph: ag.ArchGraph,
    lacks: Lacks,
    bodies: Collection[str],
    approximate: bool,
) -> tuple[ag.Rewritten, Lacks]:
    """Add missing blocks to an architecture; also return the blocks that cannot be added.

    Raises:
        RewriteError: If a missing block cannot start as the identity and ``approximate`` is False.
    """
    depths = {section.name: len(section.blocks) for section in ag.structure(server).sections}
    deep, left = ag.Rewritten.identity(graph), dict(lacks)
    for section in lacks:
        rest = {name: blocks for name, blocks in left.items() if name != section}
        try:
            longer = ag.deepen(deep.graph, {section: depths[section]}, like=server)
            if longer.graph.state_names != _without(server, rest, bodies).graph.state_names:
                raise ag.RewriteError("deepening does not yield the global model", where=section)
        except ag.ArchGraphError as error:
            if not approximate:
                raise _advised(error) from error
        else:
            deep, left = deep >> longer, rest
    return deep, left


def _advised(error: ag.ArchGraphError) -> ag.ArchGraphError:
    """Add advice to an error."""
    hint = (
        "with approximate: true the model is grown anyway; blocks that cannot start as the "
        "identity then come from the old global model"
    )
    return error.within("", kind=ag.RewriteError, hint=hint)
