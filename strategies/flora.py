"""FLoRA: the exact sum of the clients' adapters is sent as stacked factors, added to the weights.

Wang, Shen, He, Sun, Wang, Lyu, Li: *FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations*, NeurIPS 2024, §3.

=====================================  ==================================================
symbol                                 here
=====================================  ==================================================
``ΔW = Σ p_k (α_k / r_k) B_k A_k``     ``[p_1 s B_1, p_2 s B_2, …] @ [A_1; A_2; …]``: the
                                       factor is on ``B`` alone
the stack of a round                   groups ``stack ROUND`` of the server's state
base weights of client k               private to the client, which adds every stack that
                                       it receives
=====================================  ==================================================

Every round begins with new adapters, which the server draws. A client receives the base weights in
its first round. In each later round it receives the stacks of all rounds since its last one. A
stack has the rank ``Σ r_k``, by which its bytes are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class Stacked:
    """The program of a client: add the stacks to the base weights, then train the adapters."""

    adapters: tuple[fl.LowRankAdapter, ...]
    train: fl.Program

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Add the stacks, then train with the base weights frozen; these stay with the client."""
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
    in_pairs = True
    own_scales = True

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model.

        Raises:
            RunError: If the global model has no low-rank adapters, or if an adapter is sent to the
                server although the weight of its layer stays with the client or is also used
                without the adapter.
        """
        if tied := [a.weight for a in self.shared(world) if not a.alone]:
            raise ag.RunError(
                "FLoRA adds adapters to a weight, which is also used without its adapter",
                where=tied[0],
                hint="leave this layer without an adapter, or use another strategy",
            )
        private = self.private_entries(world, world.graph)
        if mine := [a.weight for a in self.shared(world) if a.weight in private]:
            raise ag.RunError(
                "FLoRA adds the adapters of all clients to a layer that is private",
                where="private",
                found=mine[0],
                hint="make the layer's adapter private, too",
            )
        return super().init(world).with_values(last={})

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send new adapters, and all adapters that were stacked since the client's last round.

        In the client's first round, the base weights are sent instead of the stacked adapters.
        """
        task, adapters = super().send(world, state, client, round), self.shared(world)
        base, extras = frozenset(a.weight for a in adapters), dict[str, Tensor]()
        last = state.values["last"].get(str(client), round)
        for number in range(last, round):
            stack = state.group(f"stack {number}")
            extras |= {f"{number} {name}": value for name, value in stack.items()}
        return replace(
            task,
            graph=fl.freeze(task.graph, base, trainable=True),  # frozen entries are not stored
            state={k: v for k, v in task.state.items() if last == round or k not in base},
            extras=extras,
            private=task.private | base,
            known=task.known - base,
            program=Stacked(adapters, task.program),
        )

    def merged(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Stack the adapters, add their products to the base weights, and draw new adapters."""
        adapters, arrived = self.shared(world), list[fl.Result]()
        mine = frozenset(leaf for a in adapters for leaf in (a.down, a.up))

        def others() -> Iterable[fl.Result]:
            for result in results:
                arrived.append(replace(result, state={n: result.state[n] for n in mine}))
                yield replace(result, unmerged=result.unmerged | mine)

        after = fl.covered_mean(world, state, others(), weights=self.weights)
        total = sum(result.weight(self.weights) for result in arrived)
        last = {**state.values["last"], **{str(r.client): round for r in arrived}}
        if not total:
            return after.with_values(last=last)
        weights, stack = dict(after.group("global")), dict[str, Tensor]()
        fresh = fl.fresh_factors(world, "flora", round)
        for a in adapters:
            ups, downs = list[Tensor](), list[Tensor]()
            for one in arrived:
                theirs = next(b for b in fl.low_rank(world.tier(one.tier).graph) if b.up == a.up)
                up, down = theirs.matrices(one.state)
                ups.append(theirs.scale * one.weight(self.weights) / total * up)
                downs.append(down)
            dtype = weights[a.weight].dtype
            stack[a.up], stack[a.down] = torch.cat(ups, 1).to(dtype), torch.cat(downs).to(dtype)
            weights[a.weight] = a.folded(weights[a.weight], stack[a.up], stack[a.down])
            weights[a.down], weights[a.up] = fresh[a.down], torch.zeros_like(weights[a.up])
        after = after.with_group("global", weights).with_group(f"stack {round}", stack)
        for number in range(min(state.values["last"].values(), default=0), min(last.values())):
            after = after.with_group(f"stack {number}", {})  # every client has it
        return after.with_values(last=last)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate models with the server's base weights, which include all stacked adapters."""
        base = frozenset(a.weight for a in self.shared(world))
        for model in super().evaluated(world, state):
            yield replace(model, current=base)
