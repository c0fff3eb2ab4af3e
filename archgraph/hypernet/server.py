"""The server's side: φ's optimiser, and the clients' states that it holds."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from archgraph.errors import RunError, os_reason
from archgraph.states import wire

if TYPE_CHECKING:
    from archgraph.states import State


def follow_gradients(
    network: nn.Module, optimiser: torch.optim.Optimizer, clip: float = 50.0
) -> float:
    """Follow the gradients that one or several calls of ``pull_back`` have left.

    Source: RecipFL, Eq. 4 with descent's sign; Adam and the bound are those of the authors' code.

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
        hint = "lower the clients' learning rate, or bound what they may return"
        raise RunError("the hypernetwork's gradient is not finite", found=norm, hint=hint)
    if norm > clip:
        for gradient in gradients:
            gradient.mul_(clip / norm)
    optimiser.step()
    return norm


def optimiser_state(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's state per parameter, as tensors by ``key/parameter``.

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
        device = value.device if value.dim() == 0 else parameter.device
        optimiser.state[parameter][key] = value.to(device, copy=True)


def on_disk(state: State) -> dict[str, Tensor]:
    """Memory-map the tensors from a temporary file that is deleted with the last reference.

    The operating system reads pages when they are used and drops them when memory is short. The
    file is unlinked before this returns, so that nothing is left behind however the process ends.

    Args:
        state: Tensors of any devices.

    Returns:
        Tensors on the CPU, to be read only.

    Raises:
        RunError: If the folder for temporary files cannot be written.

    Example:
        >>> on_disk({"w": torch.ones(2)})
        {'w': tensor([1., 1.])}
    """
    if not state:
        return {}
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(".safetensors", "archgraph-")
        os.close(descriptor)
        wire.save_tensors(name, state)
        return wire.load_tensors(name)
    except (OSError, SafetensorError) as error:
        raise RunError(
            "clients' states cannot be written",
            where=tempfile.gettempdir(),
            found=os_reason(error),
            hint="free some space, name another folder in TMPDIR, or allow more memory",
        ) from error
    finally:
        # The mappings keep the content; without a name it cannot outlive the process.
        with contextlib.suppress(OSError):
            Path(name).unlink()
