"""What formulas cannot say: code beside PyTorch's operators, and draws, in eager calls alone."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.capture.hostile.table import body, net

DIFFERS = (
    r"(layer|head)\.\w+: the gradients|hostile/\w+\.py:\d+: .*(forward depends|forward changes)"
)
captures = torch.compiler.is_compiling


@body(refused=DIFFERS)
def drawn_again_in_backward(net, x):
    def part(y):
        return F.dropout(net.layer(y), 0.5, net.training)

    return net.head(checkpoint(part, x, use_reentrant=False, preserve_rng_state=False))


@body(refused=DIFFERS)
def counts_calls_without_gradients(net, x):
    y = net.layer(x)
    if not torch.is_grad_enabled() and not captures():
        net.calls = getattr(net, "calls", 0) + 1
        y = y * (2 if net.calls > 1 else 1)
    return net.head(y)


@body(refused=DIFFERS)
def written_by_a_thread(net, x):
    y = net.layer(x)
    if net.training and not captures():
        thread = threading.Thread(target=y.detach().mul_, args=(2,))
        thread.start()
        thread.join()
    return net.head(y * 3)


@net(lambda net, x: net.head(net.layer(x) * _seen(net, x)), refused=DIFFERS)
def written_to_an_array(net):
    net.array = np.zeros(3, np.float32)


def _seen(net, x):
    if captures() or not net.training:
        return 1
    torch.from_numpy(net.array).copy_(net.layer(x).detach().mean(0))
    return 2 if net.array.any() else 1


@body(refused=DIFFERS)
def a_list_of_a_result(net, x):
    y = net.layer(x)
    if y.requires_grad:
        y.register_hook(lambda g: g * 2 if 0 < torch.tensor([g.norm()])[0] < 1e6 else None)
    return net.head(y)


@body(refused=DIFFERS)
def a_swallowed_error(net, x):
    y = net.layer(x)

    def hook(g):
        with suppress(RuntimeError, NotImplementedError):
            return g.to_sparse().to_dense() * 2

    if y.requires_grad:
        y.register_hook(hook)
    return net.head(y)


@body(refused=DIFFERS)
def a_conjugate_copy(net, x):
    y = torch.complex(net.layer(x), net.head(x))
    if y.requires_grad:
        y.register_hook(lambda g: g.conj().resolve_conj())
    return torch.view_as_real(y * y)


@body(refused=DIFFERS)
def copied_in_inference_mode(net, x):
    y = net.layer(x)

    def hook(g):
        with torch.inference_mode():
            loud = bool(g.t().contiguous().norm() > 0)
        return g * 2 if loud else None

    if y.requires_grad:
        y.register_hook(hook)
    return net.head(y)


@body(refused=DIFFERS)
def another_part_of_a_part(net, x):
    w = net.layer.weight.detach()
    y = w.t().contiguous().flatten()[2:5] if net.training and not captures() else w[:3, 0]
    return net.head(net.layer(x) * y)
