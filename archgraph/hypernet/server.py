"""The server's step: φ follows what clients made of the weights that it gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archgraph.hypernet.network import GraphHypernetwork
from archgraph.ir import ArchGraph

if TYPE_CHECKING:
    from archgraph.ir import State


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
        >>> from archgraph.trace import trace
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
    torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimiser.step()
    return gap
