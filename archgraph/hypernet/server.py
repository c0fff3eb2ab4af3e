"""The server's step: φ follows how clients changed the weights that it generated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from archgraph.errors import RunError
from archgraph.graph.ir import ArchGraph
from archgraph.hypernet.network import GraphHypernetwork

if TYPE_CHECKING:
    from archgraph.states import State


def update(
    network: GraphHypernetwork,
    optimiser: torch.optim.Optimizer,
    graphs: Sequence[ArchGraph],
    states: Sequence[State],
    trained: Sequence[State],
    descriptor: Tensor | None = None,
    weights: Sequence[float] | None = None,
    *,
    clip: float = 50.0,
) -> float:
    """One step of φ towards the weights that clients trained.

    The weights that clients were given are generated again, so that nothing of a round's forward
    pass lives while clients train.

    Args:
        network: The hypernetwork; changed in place.
        optimiser: Optimiser of its parameters.
        graphs: Each client's architecture.
        states: Each client's weights as the hypernetwork read them when it generated.
        trained: What each client trained from what was generated.
        descriptor: [clients, descriptor], as it was when generating.
        weights: Weight of each client; default 1.
        clip: Greatest norm of the gradient.

    Returns:
        Σ_m w_m ½‖θ̃_m − θ_m‖² before the step.

    Raises:
        GraphError: If states do not fit their graphs; φ is unchanged then.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> network = GraphHypernetwork.for_graphs([graph])
        >>> optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        >>> gaps = [update(network, optimiser, [graph], [state], [state]) for _ in range(10)]
        >>> gaps[-1] < gaps[0]
        True

    Source:
        RecipFL, Eq. 4 with descent's sign; Adam and the bound are those of the authors' code.
    """
    optimiser.zero_grad(set_to_none=True)
    gap = network.pull_back(graphs, states, trained, descriptor, weights)
    step(network, optimiser, clip)
    return gap


def step(network: GraphHypernetwork, optimiser: torch.optim.Optimizer, clip: float = 50.0) -> float:
    """Follow the gradients that one or several calls of ``pull_back`` have left.

    Args:
        network: The hypernetwork; changed in place.
        optimiser: Optimiser of its parameters.
        clip: Greatest norm of the gradient.

    Returns:
        The norm before it was bounded.

    Raises:
        RunError: If it is not finite; φ is unchanged then.
    """
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    # In double precision: squares of large gradients leave the range of float32.
    norm = float(sum(g.double().square().sum() for g in gradients)) ** 0.5
    if not math.isfinite(norm):
        raise RunError(
            "the hypernetwork's gradient is not finite",
            found=norm,
            hint="lower the clients' learning rate, or bound what they may return",
        )
    if norm > clip:
        for gradient in gradients:
            gradient.mul_(clip / norm)
    optimiser.step()
    return norm


def optimiser_state(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser keeps per parameter, as tensors by ``key/parameter``.

    A parameter that has never had a gradient has nothing.

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> adam = torch.optim.Adam(net.parameters())
        >>> net(torch.ones(1)).backward()
        >>> adam.step()
        >>> sorted(optimiser_state(net, adam))
        ['exp_avg/weight', 'exp_avg_sq/weight', 'step/weight']
    """
    return {
        f"{key}/{name}": value.detach().clone()
        for name, parameter in network.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def with_state(network: nn.Module, optimiser: torch.optim.Optimizer, state: State) -> None:
    """Give an optimiser what :func:`optimiser_state` found; tensors are copied."""
    parameters = dict(network.named_parameters())
    for path, value in state.items():
        key, _, name = path.partition("/")
        parameter = parameters[name]
        # A count of steps is a number on the CPU, whatever the device.
        where = value.clone() if value.dim() == 0 else value.to(parameter.device, copy=True)
        optimiser.state[parameter][key] = where
