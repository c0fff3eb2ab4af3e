"""Errors of merging low-rank adapters of ranks 2, 4 and 8, by method.

``python -m benchmarks.low_rank_quality``: five small networks, three clients with weights of .5, .3
and .2, adapters that are random or trained. Relative errors, over all adapters of a network, of
what the server adds to the weights against ``Σ p_k s_k B_k A_k``. Seconds in all, no download.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph import federation as fl
from archgraph.strategies.flexlora import FlexLoRA
from archgraph.strategies.flora import FLoRA
from archgraph.strategies.hetlora import HetLoRA
from archgraph.strategies.rank_mean import RankMean
from archgraph.tables import Table

# The global model has the rank at which the mean of the products is exact.
RANKS, EXAMPLES = (2, 4, 8), (50, 30, 20)
WHOLE = sum(RANKS)
STEPS, RATE, BATCH = 30, 0.01, 8
METHODS: dict[str, fl.LowRankAveraging] = {
    "covered mean": RankMean(),
    "zero padding": HetLoRA(),
    "SVD": FlexLoRA(),
    "stacking": FLoRA(),
}
COLUMNS = ("covered mean", "zero padding", *(f"SVD to {r}" for r in (*RANKS, WHOLE)), "stacking")
Inputs = Mapping[str, Tensor]


def transformer(name: str, head: str, **sizes: int) -> nn.Module:
    """A network of transformers."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**sizes)
    net: nn.Module = getattr(transformers, f"{name}{head}")(config)
    return net


def convolutional(name: str, **options: Any) -> nn.Module:
    """A network of torchvision."""
    import torchvision.models

    net: nn.Module = getattr(torchvision.models, name)(num_classes=5, **options)
    return net


def words() -> Inputs:
    """Random tokens."""
    return {"input_ids": torch.randint(50, (BATCH, 12))}


def pixels(name: str) -> Callable[[], Inputs]:
    """Random images."""
    return lambda: {name: torch.randn(BATCH, 3, 32, 32, dtype=torch.float64)}


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 5}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "bert": (
        lambda: transformer(
            "Bert", "ForSequenceClassification", vocab_size=50, intermediate_size=64, **SIZES
        ),
        words,
    ),
    "vit": (
        lambda: transformer(
            "ViT", "ForImageClassification", image_size=32, patch_size=8, intermediate_size=64,
            **SIZES,
        ),
        pixels("pixel_values"),
    ),
    "gpt2": (
        lambda: transformer(
            "GPT2", "LMHeadModel", vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=16
        ),
        words,
    ),
    "resnet18": (lambda: convolutional("resnet18"), pixels("x")),
    "mobilenet_v2": (lambda: convolutional("mobilenet_v2", width_mult=0.25), pixels("x")),
}  # fmt: skip
THIN = {"resnet18": 0.125}  # shares of widths; the others are small


def world_of(name: str, seed: int) -> fl.World:
    """A network with adapters that alone are trained, and a client of each rank."""
    make, inputs = NETWORKS[name]
    torch.manual_seed(seed)
    graph, state = ag.trace(make().double().eval(), train=False, verify=False, **inputs())
    thin = ag.take(graph, THIN.get(name, 1.0)) >> (lambda g: ag.add_lora(g, WHOLE, alpha=2 * WHOLE))
    graph = ag.train_only(thin.graph, "*lora.*").graph
    tiers = []
    for rank in RANKS:
        low = ag.rank(graph, rank)
        tiers.append(fl.Tier(f"rank {rank}", low.graph, low.transfer))
    clients = tuple(fl.Client(i, t.name, EXAMPLES[i], ()) for i, t in enumerate(tiers))
    start = thin.transfer.pull(state)
    return fl.World(graph, start, clients, tuple(tiers), 0, 1, seed)


def random(world: fl.World, task: fl.Task, _: Callable[[], Inputs]) -> fl.State:
    """Random adapters of natural scale."""
    draw = fl.seeded(world.seed, "random", task.client)
    return {
        key: torch.randn(value.shape, generator=draw, dtype=value.dtype) / value.shape[1] ** 0.5
        if "lora." in key
        else value
        for key, value in task.state.items()
    }


def trained(world: fl.World, task: fl.Task, inputs: Callable[[], Inputs]) -> fl.State:
    """Adapters after some steps on random examples of the client's own."""
    torch.manual_seed(1000 * world.seed + task.client)
    graph = ag.train_only(task.graph, "*lora.*").graph  # FLoRA's base weights are sent as trainable
    net, batch = ag.build(graph, task.state).eval(), inputs()
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=RATE)
    with torch.no_grad():
        targets = torch.randint(5, outputs(net, batch).shape[:-1])
    for _ in range(STEPS):
        optimiser.zero_grad()
        F.cross_entropy(outputs(net, batch).flatten(0, -2), targets.flatten()).backward()
        optimiser.step()
    return {key: value.detach() for key, value in ag.state_of(net).items()}


def outputs(net: nn.Module, batch: Inputs) -> Tensor:
    """Logits [..., classes]."""
    answer = net(**batch)
    logits: Tensor = answer["logits"] if isinstance(answer, Mapping) else answer
    return logits


ADAPTERS = {"random": random, "trained": trained}


def errors(name: str, adapters: str, seed: int = 0) -> dict[str, float]:
    """Relative errors of a network's merged update, by column."""
    world, inputs = world_of(name, seed), NETWORKS[name][1]
    graph = world.graph
    every = fl.low_rank(graph)
    result: dict[str, float] = {}
    for method, strategy in METHODS.items():
        server = strategy.init(world)
        tasks = [strategy.send(world, server, client.id, 1) for client in world.clients]
        states = [ADAPTERS[adapters](world, task, inputs) for task in tasks]
        results = [
            task.result(fl.Outcome(state), EXAMPLES[task.client])
            for task, state in zip(tasks, states, strict=True)
        ]
        after = strategy.receive(world, server, iter(results), 1).group("global")
        exact = [
            sum(p * a.scale * a.product(s) for p, s in zip(EXAMPLES, states, strict=True))
            / sum(EXAMPLES)
            for a in every
        ]
        size = norm(exact)
        if method == "stacking":
            moved = [after[a.weight] - world.state[a.weight] for a in every]
            added = [
                (m.T if a.transposed else m).flatten(1) for a, m in zip(every, moved, strict=True)
            ]
            result[method] = norm(x - y for x, y in zip(added, exact, strict=True)) / size
            continue
        for rank in (*RANKS, WHOLE) if method == "SVD" else (WHOLE,):
            low = after if rank == WHOLE else ag.rank(graph, rank).transfer.pull(after)
            column = f"SVD to {rank}" if method == "SVD" else method
            added = [a.scale * a.product(low) for a in every]
            result[column] = norm(x - y for x, y in zip(added, exact, strict=True)) / size
    return result


def norm(matrices: Any) -> float:
    """Return the Frobenius norm of matrices together."""
    return float(torch.stack([m.square().sum() for m in matrices]).sum().sqrt())


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    seed = options.parse_args().seed
    torch.set_num_threads(1)
    rows = []
    for name in NETWORKS:
        for adapters in ADAPTERS:
            values = errors(name, adapters, seed)
            cells = (f"{v:.3f}" if v > 1e-4 else f"{v:.0e}" for v in (values[c] for c in COLUMNS))
            rows.append((name, adapters, *cells))
    print(Table("Relative errors", ("network", "adapters", *COLUMNS), tuple(rows)))


if __name__ == "__main__":
    main()
