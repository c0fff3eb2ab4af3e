r"""FedFA: models of different depth and width are grown to full depth, scaled and averaged.

Park, Joe-Wong: *Federated Learning with Flexible Architectures* (text in Algorithms 1-3, §4.3,
§5.1, Tables 5, 6); architecture score: Li, Yang, Bhardwaj, Marculescu: *ZiCo*, ICLR 2023;
evolutionary search as in the code published with ZiCo.

=====================  ==================================================================
symbol                 here
=====================  ==================================================================
``A``                  ``World.tiers``, or all combinations of their sizes: :class:`Space`
``C_sel``, ``m``       the clients whose results arrive, and the number of these clients
``M_G``                group ``global`` of the server state
``M_c``                ``Result.state``
``N_{D_c}``            ``Result.examples``
``M_{95%,c}^{(l)}``    the weights whose norm :func:`inner_norm` computes
``n_c``                ``||M_{95%,c}^{(l)}||``
``α_c^{(l)}``          ``mean_κ n_κ / n_c``: the ``sizes`` of ``covered_mean``
``γ^{(l)}``            the merger's coverage
``⊕`` / ``⊖``          ``ag.graft`` (Algorithm 2) / ``ag.shorten`` (Algorithm 3)
=====================  ==================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl
from archgraph.errors import RejectedUpdate

Variant = Literal["both", "depth", "width"]
Architecture: TypeAlias = tuple[int, ...]  # blocks per section, then sizes of axes
Choice: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]  # axes that vary together, values

# Largest weight of a layer in units of its inner norm, which α divides by. In trained layers it is
# a fraction of the norm; a single weight of 1 among weights of 1e-20 would add 1e20 to the mean.
STEEPEST = 2.0**20


@dataclass(frozen=True)
class FedFA(fl.Averaging, fl.Masking):
    """Options of FedFA.

    Attributes:
        variant: Dimensions in which clients may differ (Table 1): depth and width, depth only, or
            width only.
        choice: How architectures are assigned to clients. ``family``: as in the family. With every
            other value, a fraction ``limited`` of the clients gets the smallest architecture, and
            the value determines the architecture of each remaining client. ``half_smallest``: a
            random one of the other architectures (§5.1). ``zico``: the architecture with the best
            ZiCo score on the client's data. ``search``: the architecture with the best ZiCo score
            that a search finds among all combinations of the depths and widths in the family (§5.1,
            Table 5).
        limited: Fraction of the clients that get the smallest architecture.
        steps: Number of architectures that a search generates by modifying earlier ones. With 0,
            ``search`` is the same as ``zico``. FedFA does not state a number; ZiCo uses 100,000 on
            ImageNet.
        population: Number of best architectures that a search keeps and modifies (ZiCo).
        macs: Maximum multiply-accumulates of an architecture in a search, as a fraction of those of
            the global model.
        scale: If True, multiply each layer by its factor α before averaging. If False, average the
            models without scaling.
        percentile: Fraction of a layer's weights from which the layer's norm is computed.
        inner: Weights from which the norm is computed. ``abs``: the weights with the smallest
            magnitudes. ``central``: the weights around the median (App. E).
        rms: If True, divide the norm by the square root of the number of weights used for the norm.
        scale_vectors: If True, scale all parameters, including biases and the parameters of norm
            layers. If False, scale only the weight tensors of layers.

    Example:
        >>> FedFA(percentile=0.9).inner
        'abs'
    """

    paper = "Federated Learning with Flexible Architectures"
    year = 2024
    serves = ("width", "depth")

    variant: Variant = "both"
    choice: Literal["family", "half_smallest", "zico", "search"] = "family"
    limited: float = fl.option(0.5, least=0, most=1)
    steps: int = fl.option(200, least=0, later=True)
    population: int = fl.option(512, least=1, later=True)
    macs: float = fl.option(1.0, above=0, most=1, later=True)
    scale: bool = True
    percentile: float = fl.option(0.95, above=0, most=1)
    inner: Literal["abs", "central"] = "abs"
    rms: bool = False
    scale_vectors: bool = False
    mask_absent: bool = True  # §5.1
    norm: Literal["averaged", "local", "static"] = "static"

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "paper": {"choice": "search"},
        "appendix_e": {"choice": "search", "inner": "central"},
    }

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model (line 3), and assign architectures (lines 1-2).

        Architectures that are chosen by ZiCo score are assigned later, in :meth:`surveyed`.

        Raises:
            RunError: If all architectures of the family exceed the bound ``macs`` of a search.
        """
        tiers = [c.name for c in world.clients]
        if self.choice != "family":
            smallest, *others = world.by_size
            limited = self._limited(world)
            draw = fl.seeded(world.seed, "fedfa choice")
            # Drawn for limited clients, too, so that a draw does not depend on which others are.
            for client in range(len(tiers)):
                pick = int(torch.randint(max(len(others), 1), (), generator=draw))
                tiers[client] = (smallest if client in limited or not others else others[pick]).name
        for name in set(tiers):
            _fit(world, name, self.variant)
        if self.choice == "search":
            space, *_ = self._start(world)
            _fit(world, space.name(space.smallest), self.variant)
        return fl.ServerState().with_group("global", world.state).with_values(tiers=tiers)

    def survey(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Task]:
        """Yield a task for each client whose architecture is chosen by ZiCo score (line 2).

        The task computes the scores of architectures on the client's data.
        """
        if self.choice not in ("zico", "search"):
            return
        weights = state.group("global")

        def model(tier: fl.Tier) -> fl.Model:
            tier = self._tier(world, tier.name)
            return fl.Model(tier.graph, tier.transfer.pull(weights, copy=False))

        zico = ZiCo(fl.TaskLoss(mask_absent=self.mask_absent))
        program: fl.Program = zico
        others: dict[str, fl.Model] = {}
        if self.choice == "zico":
            others = {tier.name: model(tier) for tier in world.tiers}
        else:
            program = ArchitectureSearch(*self._start(world), self.steps, self.population, zico)
        smallest = model(world.by_size[0])
        limited = self._limited(world)
        for client in world.clients:
            if client.id not in limited:
                yield fl.Task(
                    client=client.id,
                    graph=smallest.graph,
                    state=smallest.state,
                    program=program,
                    others=others,
                    # A search cuts its candidates out of the global weights at the client.
                    extras={} if others else weights,
                )

    def surveyed(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result]
    ) -> fl.ServerState:
        """Assign the architecture with the best score to each client (the smallest if tied)."""
        tiers = list(state.values["tiers"])
        for result in results:
            if self.choice == "search":
                values = tuple(result.extras["architecture"].tolist())
                tiers[result.client] = _space(world, self.variant).name(values)
                continue
            # From small to large: max takes the first if tied.
            scores = {t.name: result.metrics[f"zico/{t.name}"] for t in world.by_size}
            tiers[result.client] = max(scores, key=scores.__getitem__)
        return state.with_values(tiers=tiers)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the client's model ``M_c^t``, cut from the global model ``M_G^t`` (lines 7-9)."""
        tier, mask = self._tier(world, state.values["tiers"][client]), self.mask_absent
        return fl.part(world, state, client, tier=tier, mask_absent=mask, norm=self.norm)

    def examine(self, world: fl.World, result: fl.Result) -> fl.State:
        """Compute the norm ``n_c`` of every scaled layer of the client's model (lines 12, 18).

        Raises:
            RejectedUpdate: If a layer's norm is tiny compared with its largest weight, so that
                dividing by the norm would make this weight huge.
        """
        if not self.scale or result.transfer is None:  # a score is not averaged
            return {}
        fit = _fit(world, result.tier, self.variant)
        grafted = fit.graft.pull(result.state, copy=False, partial=True)
        scaled = self._scaled(fit.grafted)
        known: dict[int, Tensor] = {}  # a copied block's tensors are those of its source
        norms = {}
        for name in fit.grafted.state_names:
            if name in scaled and name in grafted:
                weights = grafted[name]
                if id(weights) not in known:
                    source = str(fit.graft.entries[name].source)
                    known[id(weights)] = torch.tensor(
                        self._norm(weights, source), dtype=torch.float64
                    )
                norms[name] = known[id(weights)]
        return norms

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Grow the clients' models to full depth, scale and average them (lines 11-22)."""

        def grafted(result: fl.Result) -> fl.Result:
            """Graft a client's model to the global depth (line 11, Algorithm 2)."""
            fit = _fit(world, result.tier, self.variant)
            # Where no engine has examined (a plain loop over strategies), here.
            norms = result.findings or self.examine(world, result)
            unmerged = {
                k for k, entry in fit.graft.entries.items() if entry.source in result.unmerged
            }
            return dataclasses.replace(
                result,
                state=fit.graft.pull(result.state, copy=False, partial=True),
                transfer=fit.up,
                unmerged=frozenset(unmerged),
                findings=norms,
            )

        def norms(result: fl.Result) -> dict[str, float]:
            return {name: float(norm) for name, norm in result.findings.items()}

        return fl.covered_mean(  # lines 17, 19, 20, 22
            world,
            state,
            map(grafted, results),
            weights=self.weights,
            sizes=norms if self.scale else None,
        )

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and each architecture's model on its clients' data."""
        runs, family = state.values["tiers"], [tier.name for tier in world.tiers]
        # The family's architectures come first, then those that only a search chose.
        names = [*(name for name in family if name in runs), *sorted({*runs} - {*family})]
        tiers = tuple(self._tier(world, name) for name in names)
        world = dataclasses.replace(world, tiers=tiers)
        return fl.by_tier(world, state, norm=self.norm, runs=runs)

    def _tier(self, world: fl.World, name: str) -> fl.Tier:
        """Return an architecture as a tier, restricted to the dimensions of the variant."""
        fit = _fit(world, name, self.variant)
        return fl.Tier(name, fit.graph, fit.down)

    def _start(self, world: fl.World) -> tuple[Space, tuple[Architecture, ...], int]:
        """Return the search space, the family's architectures within the bound, and the bound."""
        for tier in world.tiers:  # one that cannot be completed lacks a depth of the space
            _fit(world, tier.name, self.variant)
        space, full = _space(world, self.variant), ag.cost(world.graph).macs
        costs = {x: ag.cost(architecture(space, x).graph).macs for _, x in space.tiers}
        start = tuple(values for values, macs in costs.items() if macs <= self.macs * full)
        if not start:
            raise ag.RunError(
                "no architecture of the family is within the bound",
                where="strategy.fedfa.macs",
                found=self.macs,
                expected=f"at least {min(costs.values()) / full:.3g}",
            )
        return space, start, int(self.macs * full)

    def _limited(self, world: fl.World) -> frozenset[int]:
        """Return the clients that have resources for the smallest architecture only."""
        order = torch.randperm(len(world.clients), generator=fl.seeded(world.seed, "fedfa limited"))
        return frozenset(order[: math.ceil(self.limited * len(order))].tolist())

    def _scaled(self, graph: ag.ArchGraph) -> frozenset[str]:
        """Return the parameters that α multiplies."""
        if self.scale_vectors:
            return frozenset(p.name for p in graph.params if p.role == "parameter")
        return ag.layer_weights(graph)

    def _norm(self, weights: Tensor, name: str) -> float:
        """Compute ``n_c`` of one parameter; if all of its weights are outliers, use all of them.

        Raises:
            RejectedUpdate: If dividing by ``n_c`` would make the largest weight huge.
        """
        norm = inner_norm(weights, self.percentile, self.inner, rms=self.rms)
        # Most weights are 0, and so is their percentile: everything else is an outlier.
        norm = norm or inner_norm(weights, 1.0, rms=self.rms)
        largest = max(map(abs, torch.aminmax(weights.detach()))).item() if weights.numel() else 0.0
        if largest > STEEPEST * norm:
            problem = f"a weight of {largest:.3g}, and a norm of {norm:.3g} without outliers"
            raise RejectedUpdate("a few weights exceed all others", where=name, found=problem)
        return norm


def inner_norm(
    weights: Tensor,
    percentile: float = 0.95,
    inner: Literal["abs", "central"] = "abs",
    *,
    rms: bool = False,
) -> float:
    """Compute the norm ``||M_{95%}||₂`` of a layer's weights without outliers (line 12; §4.3).

    Args:
        weights: A layer's weights, any shape.
        percentile: Fraction p of the weights that count.
        inner: Weights that count. ``abs``: ``|w| ≤ q_p(|w|)``. ``central``: ``q_{(1-p)/2}(w) ≤ w ≤
            q_{(1+p)/2}(w)``.
        rms: If True, divide by the square root of the number of weights that count.

    Example:
        >>> inner_norm(torch.tensor([3.0, 4.0, 100.0]), 0.5)
        5.0
    """
    flat = weights.detach().flatten().to(torch.promote_types(weights.dtype, torch.float32))
    if not len(flat):
        return 0.0
    # A quantile lies between two sorted neighbours, so only ranks decide which weights count.
    last = len(flat) - 1
    first, final = 0, math.floor(percentile * last)
    if inner == "central":
        tail = (1 - percentile) / 2 * last
        first, final = sorted((math.ceil(tail), math.floor(last - tail)))
    squares, count = ag.squares_between(flat.cpu().numpy(), first, final, signed=inner == "central")
    return math.sqrt(squares / count if rms else squares)


@dataclass(frozen=True)
class ZiCo:
    """Program that scores architectures on a client's data, without training (Li et al., *ZiCo*).

    The score is ``Σ_l ln Σ_w mean|g_w| / std(g_w)``: a sum over layers l of weights w, with the
    mean and standard deviation of the gradient g_w over two minibatches. If there are too few
    examples for two minibatches, each has half of the examples. Weights with a deviation of zero
    are omitted. A higher score is better.

    Attributes:
        objective: Loss whose gradients are computed.
    """

    objective: fl.Objective = field(default_factory=fl.TaskLoss)

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Return the score of every model in ``Work.others`` as metric ``zico/NAME``."""
        score = self.scorer(work)
        return fl.Outcome(
            state=work.state,
            others={k: m.state for k, m in work.others.items()},
            metrics={f"zico/{name}": score(model) for name, model in work.others.items()},
        )

    def scorer(self, work: fl.Work) -> Callable[[fl.Model], float]:
        """Draw the client's minibatches; return the function that scores a model on them."""
        size = max(1, min(work.local.batch, work.data.examples // 2))
        batches = list(itertools.islice(work.data.batches(work.generator, size), 2))

        def score(model: fl.Model) -> float:
            module = fl.module_of(model, work.device, training=True)
            gradients: list[dict[str, Tensor]] = []
            for batch in batches:
                module.zero_grad(set_to_none=True)
                inputs = tuple(x.to(work.device) for x in batch.inputs)
                moved = batch._replace(inputs=inputs, targets=batch.targets.to(work.device))
                self.objective(module(*inputs), moved, work).backward()
                gradients.append(
                    {
                        k: p.grad.flatten().double()
                        for k, p in module.named_parameters()
                        if p.grad is not None and p.dim() > 1
                    }
                )
            return zico(gradients)

        return score


@dataclass(frozen=True)
class ArchitectureSearch:
    """Program that searches for the architecture with the best ZiCo score on a client's data.

    1. Score the family's architectures with at most ``macs`` multiply-accumulates.
    2. Draw one of the best architectures so far, and new values for two of its depths and widths.
       Score the result if it is new and has at most ``macs`` multiply-accumulates.
    3. After ``steps`` such draws, or when no architecture is left, return the best one (the first
       of several best ones).

    Attributes:
        space: The search space.
        start: The family's architectures with at most ``macs``, from small to large.
        macs: Maximum multiply-accumulates of a forward pass.
        steps: Number of architectures that are derived from others.
        population: Number of best architectures from which others are derived.
        zico: Program that computes the score.
    """

    space: Space
    start: tuple[Architecture, ...]
    macs: int
    steps: int
    population: int
    zico: ZiCo

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Return the best architecture (extra ``architecture``).

        The metrics are its score ``zico`` and the number of architectures ``scored``.
        """
        score = self.zico.scorer(work)
        options = [values for _, values in (*self.space.depths, *self.space.widths)]
        scores: dict[Architecture, float] = {}
        best: list[Architecture] = []  # the population
        seen: set[Architecture] = set()

        def draw(count: int) -> int:
            return int(torch.randint(count, (), generator=work.generator))

        def add(values: Architecture) -> None:
            seen.add(values)
            cut = architecture(self.space, values)
            if ag.cost(cut.graph).macs > self.macs:
                return
            scores[values] = score(fl.Model(cut.graph, cut.transfer.pull(work.extras)))
            best.append(values)
            if len(best) > self.population:
                best.remove(min(best, key=scores.__getitem__))

        for values in self.start:  # 1
            add(values)
        for _ in range(self.steps):  # 2
            if len(seen) == math.prod(map(len, options)):
                break
            child = list(best[draw(len(best))])
            for _ in range(2):
                at = draw(len(options))
                child[at] = options[at][draw(len(options[at]))]
            if (values := tuple(child)) not in seen:
                add(values)
        values = max(scores, key=scores.__getitem__)  # 3
        return fl.Outcome(
            state=work.state,
            extras={"architecture": torch.tensor(values, dtype=torch.int64)},
            metrics={"zico": scores[values], "scored": float(len(scores))},
        )


def zico(gradients: list[dict[str, Tensor]]) -> float:
    """Compute the ZiCo score from gradients: for each minibatch, a dict from layer to gradient.

    Example:
        >>> round(zico([{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 2.0])}]), 4)
        0.6931
    """
    score = 0.0
    for name in gradients[0]:
        layer = torch.stack([g[name] for g in gradients])
        deviation = layer.std(0, correction=0)
        varies = deviation > 0
        ratio = float((layer.abs().mean(0)[varies] / deviation[varies]).sum())
        score += math.log(ratio) if ratio > 0 else 0.0
    return score


@dataclass(frozen=True)
class Space:
    """The search space: all combinations of the depths and widths of a family's architectures.

    Attributes:
        graph: The global architecture.
        depths: Sections, each with the numbers of blocks that it may have.
        widths: Groups of axes that vary together, each with the sizes that it may have.
        tiers: Pairs of a tier's name and its architecture, as one value for each of ``depths`` and
            ``widths``.
    """

    graph: ag.ArchGraph
    depths: tuple[Choice, ...]
    widths: tuple[Choice, ...]
    tiers: tuple[tuple[str, Architecture], ...]

    @property
    def smallest(self) -> Architecture:
        """The architecture with the fewest blocks and the smallest widths."""
        return tuple(values[0] for _, values in (*self.depths, *self.widths))

    def name(self, values: Architecture) -> str:
        """Return the name of an architecture: its tier's name, or a list of its values."""
        for name, theirs in self.tiers:
            if theirs == values:
                return name
        kinds = {"d": values[: len(self.depths)], "w": values[len(self.depths) :]}
        name = "-".join(k + "-".join(map(str, of)) for k, of in kinds.items() if of)
        # A user may have chosen this name for another architecture; a name is read by its numbers
        # only.
        return f"{name}-searched" if name in dict(self.tiers) else name


@functools.lru_cache(maxsize=16)
def combinations(graph: ag.ArchGraph, tiers: tuple[fl.Tier, ...], variant: Variant) -> Space:
    """Return the search space of a family; ``variant`` allows depths, widths or both to vary.

    1. Axes with equal sizes in every tier vary together. A tier that lacks one of two axes is
       ignored in their comparison.
    2. Depths and widths that are the same in all tiers do not vary.
    """
    blocks = [_depths(graph), *(_depths(tier.graph) for tier in tiers)]
    sizes = [{axis.name: axis.size for axis in ag.axes(graph).free}]
    sizes += [ag.widths(graph, tier.transfer) for tier in tiers]
    groups = _alike(sizes)  # 1
    depths = [((name,), [of[name] for of in blocks]) for name in blocks[0]]
    # For a tier that lacks an axis, its size in the largest one that has it.
    widths = [(tuple(n), [of.get(i, of[max(of)]) for i in range(len(sizes))]) for n, of in groups]
    deep, wide = (  # 2
        [(names, values) for names, values in rows if variant != other and len({*values}) > 1]
        for rows, other in ((depths, "width"), (widths, "depth"))
    )
    choices = [(names, tuple(sorted({*values[1:]}))) for names, values in deep + wide]
    return Space(
        graph,
        depths=tuple(choices[: len(deep)]),
        widths=tuple(choices[len(deep) :]),
        tiers=tuple(
            (t.name, tuple(of[i] for _, of in deep + wide)) for i, t in enumerate(tiers, 1)
        ),
    )


def _alike(sizes: list[dict[str, int]]) -> list[tuple[list[str], dict[int, int]]]:
    """Return axes that are equally wide in every tier, and their size in each that has them.

    Args:
        sizes: Sizes of axes by name, for the global architecture and each tier.
    """
    groups: list[tuple[list[str], dict[int, int]]] = []
    for axis in sizes[0]:
        mine = {i: of[axis] for i, of in enumerate(sizes) if axis in of}
        for names, theirs in groups:
            if all(theirs.get(i, size) == size for i, size in mine.items()):
                names.append(axis)
                theirs.update(mine)
                break
        else:
            groups.append(([axis], mine))
    return groups


def _space(world: fl.World, variant: Variant) -> Space:
    return combinations(world.graph, world.by_size, variant)


@functools.lru_cache(maxsize=256)
def architecture(space: Space, values: Architecture) -> ag.Rewritten:
    """Cut an architecture out of the global one: the first channels and the first blocks."""
    blocks = {name: n for ((name,), _), n in zip(space.depths, values, strict=False)}
    chosen = zip(space.widths, values[len(space.depths) :], strict=True)
    sizes = {axis: n for (axes, _), n in chosen for axis in axes}
    narrow = ag.take(space.graph, sizes=sizes, allow_nothing=True)
    return narrow >> ag.shorten(narrow.graph, blocks)


@dataclass(frozen=True)
class Grafting:
    """The transfers between a client's architecture and the global one.

    Attributes:
        graph: The client's architecture.
        down: Transfer from the global state to the client's (Algorithm 3).
        grafted: The client's architecture, grafted to the global depth.
        graft: Transfer from the client's state to the grafted state (Algorithm 2).
        up: Transfer from the global state to the grafted state. Its transpose is used in the sum
            (line 19).
    """

    graph: ag.ArchGraph
    down: ag.Transfer
    grafted: ag.ArchGraph
    graft: ag.Transfer
    up: ag.Transfer


def _fit(world: fl.World, name: str, variant: Variant) -> Grafting:
    tiers = {tier.name: tier for tier in world.tiers}
    # Any other name is that of a search: :meth:`Space.name`.
    values = tuple(map(int, re.findall(r"\d+", name)))
    one = tiers.get(name) or architecture(_space(world, variant), values)
    return grafting(world.graph, one.graph, one.transfer, variant)


@functools.lru_cache(maxsize=256)
def grafting(
    server: ag.ArchGraph, client: ag.ArchGraph, down: ag.Transfer, variant: Variant
) -> Grafting:
    """Return the transfers between an architecture and the global one, for a variant of FedFA.

    Raises:
        RewriteError: If a section cannot be completed to the global depth.
    """
    full, depths = _depths(server), _depths(client)
    grafted = ag.graft(client, full, like=server)
    up = _at_source(grafted, down)
    match variant:
        case "both":
            return Grafting(client, down, grafted.graph, grafted.transfer, up)
        case "width":
            same = ag.Transfer.identity(grafted.graph)
            return Grafting(grafted.graph, up, grafted.graph, same, up)
        case "depth":
            shallow = ag.shorten(server, depths)
            again = ag.graft(shallow.graph, full, like=server)
            return Grafting(
                shallow.graph,
                shallow.transfer,
                again.graph,
                again.transfer,
                _at_source(again, shallow.transfer),
            )


def _depths(graph: ag.ArchGraph) -> dict[str, int]:
    return {section.name: len(section.blocks) for section in ag.structure(graph).sections}


def _at_source(grafted: ag.Rewritten, down: ag.Transfer) -> ag.Transfer:
    """Map global to grafted: a copied block takes the positions of its source (line 19)."""
    entries = {}
    for name, entry in grafted.transfer.entries.items():
        entry = entry if entry.source is None else down.entries[entry.source]
        # Parameters without a source in the client's state have no global source either.
        entries[name] = entry if entry.source is None else dataclasses.replace(entry, source=name)
    return ag.Transfer(down.source, grafted.transfer.target, entries)
