"""FlexFL's pool: layers with many zero activations are cut most; small submodels teach large ones.

Chen, Jia, Hu, Xie, Li, Chen: *FlexFL: Heterogeneous Federated Learning via APoZ-Guided Flexible
Pruning in Uncertain Scenarios*, IEEE TCAD 2024.

==========================  ======================================================================
symbol                      here
==========================  ======================================================================
``APoZ_l``                  ``apoz``: for each axis, the fraction of zeros in its activations
``1 - APoZ_l ln P_l / max``  :func:`rates`, P_l: :func:`own_parameters`, as in the code
pool L, M, S                :func:`widths`: for each tier, rates times the largest factor that fits
self-KD, λ, τ               ``distil``, ``temperature``: :class:`SelfDistillation`
aggregation                 ``covered_mean``, weighted by examples
==========================  ======================================================================

The paper's server trains on proxy data and measures APoZ on them. Here the server has no data, so
measured values must be passed as ``apoz``. Pruning by devices whose resources shrink between rounds
is not implemented. Each client trains the submodel of its tier.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

import archgraph as ag
from archgraph import federation as fl


def own_parameters(graph: ag.ArchGraph, axis: str) -> int:
    """Count the parameters of the layers whose outputs have this axis, e.g. as their channels.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.Linear(10, 3))
        >>> own_parameters(ag.trace(net, torch.zeros(1, 2)).graph, "0.out")  # weight and bias
        30
    """
    narrow = ag.take(graph, sizes={axis: ag.axes(graph)[axis].size - 1}).graph.node
    params = [
        graph.param[name]
        for layer in ag.layers(graph)
        if layer.node and narrow[layer.node].type != graph.node[layer.node].type
        for name in layer.entries
    ]
    return sum(math.prod(param.shape) for param in params if param.role == "parameter")


def rates(graph: ag.ArchGraph, apoz: Mapping[str, float]) -> dict[str, float]:
    """Return the rate of each axis that a uniform cut would narrow, from its fraction of zeros.

    In attention, the number of heads has a rate and the size of a head has none, as in
    :func:`archgraph.take`.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.Linear(10, 2))
        >>> rates(ag.trace(net, torch.zeros(1, 2)).graph, {"0.out": 0.75})
        {'0.out': 0.25}
    """
    counts = {
        axis.name: own_parameters(graph, axis.name) if axis.size > 1 else 1
        for axis in ag.axes(graph).independent()
    }
    logs = {name: math.log(max(count, 1)) for name, count in counts.items()}
    largest = max(logs.values(), default=0.0) or 1.0
    return {name: 1 - apoz[name] * log / largest for name, log in logs.items()}


def widths(graph: ag.ArchGraph, rate: Mapping[str, float], most: int) -> dict[str, int]:
    """Return axis sizes: rates times the largest factor for a maximum number of parameters.

    Axes without a rate keep their full size.
    """
    costs, free = ag.cost(graph).polynomial, ag.axes(graph).free

    def sizes(factor: int) -> dict[str, int]:
        shares = {name: min(max(one * factor / 1000, 0.01), 1.0) for name, one in rate.items()}
        return {a.name: math.ceil(round(shares.get(a.name, 1.0) * a.size, 9)) for a in free}

    factors = range(1, 100_001)  # up to 100: the least rate, 0.01, times it is 1
    count = bisect.bisect_right(factors, most, key=lambda f: costs.at(sizes(f)).parameters)
    return sizes(max(count, 1))


@dataclass(frozen=True)
class SelfDistillation:
    """Program that trains a submodel and distils from smaller submodels, which are its parts."""

    smaller: tuple[tuple[ag.ArchGraph, ag.Transfer], ...]
    weight: float
    temperature: float
    objective: fl.Objective = field(default_factory=fl.TaskLoss)

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Minimise ``L + λ τ² mean_i KL(p_i^τ ‖ p^τ)``, with no gradient through the p_i."""
        module = fl.module_of(work, training=True)
        parameters = dict(module.named_parameters())
        teachers = [
            (transfer, fl.module_of(fl.Model(graph, transfer.pull(work.state)), work.device))
            for graph, transfer in self.smaller
        ]
        macs = sum(ag.cost(graph).macs for graph, _ in ((work.graph, None), *self.smaller))
        executed = 0

        def soft(outputs: object, examples: fl.Examples) -> Tensor:
            logits = fl.counted_logits(work.learning.predictions(outputs), examples)
            return (logits / self.temperature).log_softmax(-1)

        def loss(examples: fl.Examples) -> Tensor:
            nonlocal executed
            executed += macs * len(examples.ids)
            outputs = module(*examples.inputs)
            total = self.objective(outputs, examples, work)
            answers = soft(outputs, examples)
            for transfer, teacher in teachers:
                with torch.no_grad():
                    sliced = transfer.pull(parameters, copy=False, partial=True)
                    outputs = functional_call(teacher.train(), sliced, examples.inputs)
                    taught = soft(outputs, examples)
                # The published code takes the mean over examples and classes.
                divergence = (taught.exp() * (taught - answers)).mean()
                total = total + self.weight * self.temperature**2 * divergence / len(teachers)
            return total

        metrics = {**fl.descend(work, parameters, loss), "macs": float(executed)}
        return fl.Outcome(ag.state_of(module), work.keep, metrics=metrics)


@functools.lru_cache(maxsize=64)
def _taken(graph: ag.ArchGraph, sizes: tuple[tuple[str, int], ...]) -> ag.Rewritten:
    return ag.take(graph, sizes=dict(sizes), allow_nothing=True)


@dataclass(frozen=True)
class FlexFLPool(fl.PartAveraging):
    """Options of FlexFL's pool.

    Attributes:
        apoz: Fractions of zeros in the activations (APoZ). Each key of the dict selects axes by
            name, role or pattern, and its value is the fraction for these axes. Every axis that is
            cut needs a fraction.
        distil: λ, the weight of the distillation from smaller submodels to the client's submodel.
            With 0, clients train without distillation.
        temperature: τ, the temperature of the distillation.

    Example:
        >>> FlexFLPool(distil=0.0).temperature
        3.0
    """

    paper, year, serves = "FlexFL", 2024, ("width", "depth")

    apoz: Mapping[str, float] = field(default_factory=dict)
    distil: float = fl.option(10.0, least=0)
    temperature: float = fl.option(3.0, above=0)
    norm: Literal["averaged", "local", "static"] = "static"

    def init(self, world: fl.World) -> fl.ServerState:
        """Build the pool of submodels.

        Raises:
            RunError: If ``apoz`` lacks an axis that is cut, a tier is smaller than every submodel,
                or ``distil`` is set for a task without classes.
        """
        if self.distil and world.learning.form != "classes":
            message = f"distillation compares class probabilities, not {world.learning.name}"
            raise ag.RunError(message, where="strategy.flexfl_pool.distil", expected="distil: 0")
        axes, apoz = ag.axes(world.graph), dict[str, float]()
        for pattern, value in self.apoz.items():
            apoz |= dict.fromkeys((axis.name for axis in axes.match(pattern)), value)
        if missing := [a.name for a in axes.independent() if not 0 <= apoz.get(a.name, -1) <= 1]:
            raise ag.RunError(
                "FlexFL needs the fraction of zeros in the activations for every axis that it cuts",
                where="strategy.flexfl_pool.apoz",
                found=f"no fraction from 0 to 1 for {', '.join(missing)}",
                hint="measure it on proxy data and pass {AXIS: fraction}; nefl, heterofl and "
                "adaptivefl_pool need none",
            )
        rate, sizes = rates(world.graph, apoz), {}
        for tier in world.tiers:
            most = ag.cost(tier.graph).parameters
            sizes[tier.name] = widths(world.graph, rate, most)
            if (least := ag.cost(world.graph).polynomial.at(sizes[tier.name]).parameters) > most:
                where, expected = f"tier {tier.name}", f"at least {least} parameters"
                raise ag.RunError("smaller than every submodel", where=where, expected=expected)
        return fl.ServerState().with_group("global", world.state).with_values(sizes=sizes)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the submodel of the client's tier, to be trained with distillation."""
        tier = self._tier(world, state, world.tier_of(client))
        objective, cost = fl.TaskLoss(mask_absent=self.mask_absent), ag.cost(tier.graph).parameters
        pool = {one.graph: one for one in (self._tier(world, state, t) for t in world.by_size)}
        smaller = tuple(
            (one.graph, ag.nested(tier.transfer, one.transfer))
            for one in pool.values()
            if self.distil and ag.cost(one.graph).parameters < cost
        )
        program: fl.Program = fl.Train(objective)
        if smaller:
            program = SelfDistillation(smaller, self.distil, self.temperature, objective)
        return fl.part(world, state, client, tier=tier, program=program, norm=self.norm)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model, and the submodel of each tier."""
        submodel = functools.partial(self._tier, world, state)
        return fl.by_tier(world, state, norm=self.norm, submodel=submodel, idle=True)

    def _tier(self, world: fl.World, state: fl.ServerState, tier: fl.Tier) -> fl.Tier:
        """Return a tier with the widths of its submodel."""
        cut = _taken(world.graph, tuple(state.values["sizes"][tier.name].items()))
        return replace(tier, graph=cut.graph, transfer=cut.transfer)
