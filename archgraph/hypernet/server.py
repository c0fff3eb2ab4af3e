"""Functions for the server: the optimiser of φ, and clients' states on disk."""

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
    """Take an optimiser step with gradients from :meth:`GraphHypernetwork.pull_back`.

    Source: RecipFL, Eq. 4, with the opposite sign; Adam and clipping are from the authors' code.

    Args:
        network: The hypernetwork; changed in place.
        optimiser: Optimiser of the hypernetwork's parameters.
        clip: Maximum norm of the gradient. A larger gradient is scaled down.

    Returns:
        The norm before clipping.

    Raises:
        RunError: If the norm is not finite. The parameters φ are then unchanged.
    """
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    # In double precision, since squares of large gradients overflow float32.
    norm = float(sum(g.double().square().sum() for g in gradients)) ** 0.5
    if not math.isfinite(norm):
        hint = "lower the clients' learning rate, or limit the size of their updates"
        raise RunError("the hypernetwork's gradient is not finite", found=norm, hint=hint)
    if norm > clip:
        for gradient in gradients:
            gradient.mul_(clip / norm)
    optimiser.step()
    return norm


def optimiser_state(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser as a dict from ``key/parameter`` to tensor.

    ``key`` is a key of the optimiser's state, such as ``exp_avg``, and ``parameter`` is the name of
    a parameter. Parameters that never had a gradient are omitted.

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
    """Copy the tensors that :func:`optimiser_state` returned into an optimiser's state."""
    parameters = dict(network.named_parameters())
    for path, value in state.items():
        key, _, name = path.partition("/")
        parameter = parameters[name]
        # A step counter is a number on the CPU, whatever the device.
        device = value.device if value.dim() == 0 else parameter.device
        optimiser.state[parameter][key] = value.to(device, copy=True)


def on_disk(state: State) -> dict[str, Tensor]:
    """Write tensors to a temporary file, and return memory-mapped copies.

    The operating system reads the data when a tensor is used, and drops the data when memory is
    short. The file is deleted with the last reference to the tensors, even if the process is
    killed.

    Args:
        state: Tensors on any devices.

    Returns:
        Tensors on the CPU, which must not be written to.

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
            hint="free some space, set TMPDIR to another folder, or allow more memory",
        ) from error
    finally:
        # The mappings keep the content; an unlinked file cannot outlive the process.
        with contextlib.suppress(OSError):
            Path(name).unlink()
