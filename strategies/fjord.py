"""FjORD: every client trains all widths up to its own; a width is drawn for each minibatch.

Horváth, Laskaridis, Almeida, Leontiadis, Venieris, Lane: *FjORD: Fair and Accurate Federated
Learning under heterogeneous targets with Ordered Dropout*, NeurIPS 2021 (§3-4, Algorithm 1).

========================  ===============================================================
symbol                    here
========================  ===============================================================
``w``                     group ``global`` of the server state
``P``, its widths ``p``   ``World.by_size``: the family's tiers, each contained in the next
``p_max^i``               the client's tier
``p ~ U(P), p ≤ p_max``   drawn in :class:`OrderedDropout`, once for each minibatch
``F_p``                   ``ag.nested``: the part of the client's model at width p
statistics of width p     groups ``statistics/NAME``; scales and shifts are shared and sliced
``w^(t+1)`` (Eq. 1)       ``group_means``: every value, over the clients whose model has it
========================  ===============================================================
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FjORD(fl.Weighted, fl.Masking):
    """Options of FjORD.

    Attributes:
        distil: If True, train the client's largest width in every step, and distil it into the
            width that is drawn for the minibatch (§3.2, temperature 1).
        norm: How running statistics are treated. ``per_width``: each width has its own statistics.
            ``static``: the statistics are recomputed for evaluation.

    Example:
        >>> FjORD(distil=True).norm
        'per_width'
    """

    paper = "FjORD"
    year = 2021
    serves = ("width", "depth")

    distil: bool = False
    norm: Literal["per_width", "static"] = "per_width"

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``w^0`` and the initial statistics of every width.

        Raises:
            RunError: If a tier is not contained in the next larger one, ``private`` names running
                statistics, or ``distil`` is set for a task without classes.
        """
        if self.distil and world.learning.form != "classes":
            message = f"distillation compares class probabilities, not {world.learning.name}"
            raise ag.RunError(message, where="strategy.fjord.distil", expected="distil: false")
        state = fl.ServerState().with_group("global", world.state)
        for tier in world.tiers:
            # Refuses tiers that are not nested before any client trains.
            nested_widths(world.by_size, tier.name)
            if staying := self.private_entries(world, tier.graph) & self._statistics(tier.graph):
                message = "running statistics are averaged per width and cannot be private"
                hint = "`norm: static` does not use running statistics"
                raise ag.RunError(message, where="private", found=min(staying), hint=hint)
            statistics = tier.transfer.only(self._statistics(tier.graph)).pull(world.state)
            state = state.with_group(f"statistics/{tier.name}", statistics)
        return state

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the model of width ``p_max``, and the statistics of all widths up to it."""
        tier = world.tier_of(client)
        nested = nested_widths(world.by_size, tier.name)
        objective = fl.TaskLoss(mask_absent=self.mask_absent)
        program = OrderedDropout(nested, self.distil, objective)
        statistics = {
            f"{width.name}/{name}": value
            for width in nested
            for name, value in state.group(f"statistics/{width.name}").items()
        }
        # "static": no statistics in the state. Each width's are sent as extras.
        task = fl.part(world, state, client, program=program, norm="static")
        return replace(task, extras=statistics)

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check the running statistics that the client returned for each width.

        Raises:
            RejectedUpdate: If the statistics of a width are invalid. The message names the first
                invalid ones.
        """
        if self.norm == "per_width":
            for width in nested_widths(world.by_size, result.tier):
                fl.check_statistics(width.graph, _of(width, result.extras), width.name)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average each value over the clients whose model has it.

        Running statistics are averaged separately for each width.
        """

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                contribution = fl.Contribution.of(result, world.graph, self.weights)
                yield contribution
                # A client has trained all widths up to its own, so it has statistics of each.
                for width in nested_widths(world.by_size, result.tier):
                    names = tuple(state.group(f"statistics/{width.name}"))
                    same = fl.identity_of(width.graph, names)
                    if names:
                        statistics, group = _of(width, result.extras), f"statistics/{width.name}"
                        yield fl.Contribution(
                            result.client, group, same.source, same, statistics, contribution.weight
                        )

        return fl.group_means(world, state, contributions())

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate every width with its own statistics. The largest width is the global model."""

        def model(tier: fl.Tier) -> fl.Model:
            weights = tier.transfer.pull(state.group("global"), copy=False)
            return fl.Model(tier.graph, weights | state.group(f"statistics/{tier.name}"))

        norm: Literal["static", "averaged"] = "static" if self.norm == "static" else "averaged"
        return fl.by_tier(world, state, norm=norm, model=model, whole=world.by_size[-1], idle=True)

    def _statistics(self, graph: ag.ArchGraph) -> frozenset[str]:
        """Return the running statistics that the server holds for a width."""
        return fl.NormPolicy("static").unmerged(graph) if self.norm == "per_width" else frozenset()


class Width(NamedTuple):
    """A width that a client trains.

    Attributes:
        name: Name of the tier with this width.
        graph: Architecture with this width.
        transfer: Transfer from the client's own model to this width.
    """

    name: str
    graph: ag.ArchGraph
    transfer: ag.Transfer


@functools.lru_cache(maxsize=64)
def _widths(tiers: tuple[fl.Tier, ...]) -> tuple[Width, ...]:
    """Return the architectures from the smallest to the last, each as a part of the last."""
    last = tiers[-1]
    result = []
    for tier in tiers:
        try:
            inside = ag.nested(last.transfer, tier.transfer)
        except ag.RewriteError as error:
            hint = "heterofl, nefl and fedfa serve clients whose models are not nested"
            where = f"tier {tier.name} is not a part of tier {last.name}"
            raise error.within(where, kind=ag.RunError, hint=hint) from error
        result.append(Width(tier.name, tier.graph, inside))
    return tuple(result)


def nested_widths(sizes: tuple[fl.Tier, ...], name: str) -> tuple[Width, ...]:
    """List the widths that a client trains: its own and all smaller ones, as parts of its model.

    Args:
        sizes: The tiers from the smallest to the largest.
        name: The client's tier.

    Raises:
        RunError: If a smaller tier is not a part of the client's tier.
    """
    index = [tier.name for tier in sizes].index(name)
    # Without weights: the cache neither compares nor keeps them.
    return _widths(tuple(replace(tier, source={}) for tier in sizes[: index + 1]))


def _of(width: Width, extras: fl.State) -> dict[str, Tensor]:
    """Return the extras that belong to a width."""
    prefix = f"{width.name}/"
    return {k.removeprefix(prefix): v for k, v in extras.items() if k.startswith(prefix)}


@dataclass(frozen=True)
class OrderedDropout:
    """Program that trains nested widths, which are slices of one model's parameters.

    Attributes:
        widths: The widths, from the narrowest to the client's own.
        distil: Whether narrower widths learn from the client's own width.
        objective: Loss of a width.
    """

    widths: tuple[Width, ...]
    distil: bool = False
    objective: fl.Objective = field(default_factory=fl.TaskLoss)

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return the client's state with the statistics of each width."""
        module = fl.module_of(work)
        parameters = dict(module.named_parameters())
        modules = {
            width.name: fl.module_of(
                fl.Model(width.graph, width.transfer.pull(work.state) | _of(width, work.extras)),
                work.device,
            ).train()
            for width in self.widths
        }
        largest = self.widths[-1]
        macs = {width.name: ag.cost(width.graph).macs for width in self.widths}
        executed = 0

        def outputs(width: Width, examples: fl.Examples) -> object:
            nonlocal executed
            executed += macs[width.name] * len(examples.ids)
            # Slices of the same parameters: the gradients of all widths add up in one model.
            sliced = width.transfer.pull(parameters, copy=False, partial=True, gradients=True)
            return functional_call(modules[width.name], sliced, examples.inputs)

        def loss(examples: fl.Examples) -> Tensor:
            # The work's generator: a resumed run draws the same widths.
            drawn = int(torch.randint(len(self.widths), (), generator=work.generator))
            width = self.widths[drawn]
            answers = outputs(width, examples)
            if not self.distil or width is largest:
                return self.objective(answers, examples, work)
            # The largest width learns from the targets, the drawn one from the largest.
            taught = outputs(largest, examples)
            logits, targets = (
                fl.counted_logits(work.learning.predictions(y), examples) for y in (answers, taught)
            )
            hard = self.objective(taught, examples, work)
            return hard + functional.cross_entropy(logits, targets.detach().softmax(-1))

        metrics = {
            **fl.descend(work, parameters, loss),
            "macs": float(executed),
        }
        statistics = {
            name: value
            for width in self.widths
            for inner, value in ag.state_of(modules[width.name]).items()
            if (name := f"{width.name}/{inner}") in work.extras
        }
        return fl.Outcome(ag.state_of(module), work.keep, extras=statistics, metrics=metrics)
