"""FLoRA: adapters are stacked, so that the sum of their products is exact, and become the weights.

Wang, Shen, He, Sun, Wang, Lyu, Li: *FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations*, NeurIPS 2024, §3.

=====================================  ==================================================
symbol                                 here
=====================================  ==================================================
``ΔW = Σ p_k (α_k / r_k) B_k A_k``     ``[p_1 s B_1, p_2 s B_2, …] @ [A_1; A_2; …]``: the
                                       factor is on ``B`` alone
the stack of a round                   groups ``stack ROUND`` of the server's state
base weights of client k               stay with the client, which adds each stack that
                                       it gets
=====================================  ==================================================

Every round begins with new adapters, which the server draws. A client gets the base weights once,
then the stacks of all rounds since its last one: bytes count ``Σ r_k`` for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class Stacked:
    """The program of a client: add the stacks to the base weights, then train the adapters."""

    adapters: tuple[fl.LowRankAdapter, ...]
    train: fl.Program

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train with the base weights frozen; they stay with the client."""
        state = dict(work.state)
        for number in sorted({int(name.partition(" ")[0]) for name in work.extras}):
            for a in self.adapters:
                up, down = (work.extras[f"{number} {leaf}"] for leaf in (a.up, a.down))
                state[a.weight] = a.folded(state[a.weight], up, down)
        base = frozenset(a.weight for a in self.adapters)
        return self.train(replace(work, graph=fl.freeze(work.graph, base), state=state, extras={}))


@dataclass(frozen=True)
class FLoRA(fl.LowRankAveraging):
    """Options of FLoRA.

    Example:
        >>> FLoRA().serves
        ('rank',)
    """

    paper = "FLoRA"
    year = 2024
    serves = ("rank",)
    averages = False  # adapters are stacked

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model; refuse (RunError) one without low-rank adapters."""
        return super().init(world).with_values(seen={})

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send new adapters, and the base weights or the stacks of the rounds that it missed."""
        task, adapters = super().send(world, state, client, round), fl.low_rank(world.graph)
        base = frozenset(a.weight for a in adapters)
        weights, extras = task.state, dict[str, torch.Tensor]()
        if (last := state.values["seen"].get(str(client))) is not None:
            weights = {name: value for name, value in weights.items() if name not in base}
            for number in range(last, round):
                stack = state.group(f"stack {number}")
                extras |= {f"{number} {name}": value for name, value in stack.items()}
        return replace(
            task,
            graph=fl.freeze(task.graph, base, trainable=True),  # what is frozen is not stored
            state=weights,
            extras=extras,
            private=task.private | base,
            program=Stacked(adapters, task.program),
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Stack the adapters, add their products to the base weights, and draw new adapters."""
        adapters, arrived = fl.low_rank(world.graph), list[fl.Result]()
        mine = frozenset(leaf for a in adapters for leaf in (a.down, a.up))

        def others() -> Iterable[fl.Result]:
            for result in results:
                arrived.append(replace(result, state={n: result.state[n] for n in mine}))
                yield replace(result, unmerged=result.unmerged | mine)

        after = fl.covered_mean(world, state, others(), weights=self.weights)
        total = sum(result.weight(self.weights) for result in arrived)
        if not total:
            return after
        weights, stack = dict(after.group("global")), dict[str, torch.Tensor]()
        draw = int(torch.randint(2**62, (), generator=fl.seeded(world.seed, "flora", round)))
        fresh = ag.initial_state(world.graph, draw)
        for a in adapters:
            ups, downs = zip(*(a.matrices(result.state) for result in arrived), strict=True)
            shares = [a.scale * result.weight(self.weights) / total for result in arrived]
            up = torch.cat([share * up for share, up in zip(shares, ups, strict=True)], 1)
            dtype = weights[a.weight].dtype
            stack[a.up], stack[a.down] = up.to(dtype), torch.cat(downs).to(dtype)
            weights[a.weight] = a.folded(weights[a.weight], stack[a.up], stack[a.down])
            weights[a.down], weights[a.up] = fresh[a.down], torch.zeros_like(weights[a.up])
        seen = {**state.values["seen"], **{str(result.client): round for result in arrived}}
        after = after.with_group("global", weights).with_group(f"stack {round}", stack)
        return after.with_values(seen=seen)
