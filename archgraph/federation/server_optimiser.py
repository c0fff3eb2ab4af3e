"""Server optimisers, which update the global weights from the mean of the clients' weights.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: *Adaptive Federated Optimization*,
ICLR 2021, Algorithm 2.

===========  =====================================================================================
symbol       here
===========  =====================================================================================
``x_t``      a group of tensors in the server's state (``global``, …)
``Δ_t``      the mean of the clients minus ``x_t``, for values that any client covers
``m_t``      ``moments/first/GROUP/NAME``; initially 0
``v_t``      ``moments/second/GROUP/NAME``; initially τ², in Flower 0
``η, τ``     ``ServerSpec``
===========  =====================================================================================

The optimiser can be combined with any kind of mean, and so with any strategy that averages. Values
that no client of a round covers stay unchanged, as do their moments. Running statistics, counters
and other buffers are set to the mean, since momentum could make a variance negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from archgraph.federation.state import ServerState
from archgraph.graph.ir import ArchGraph
from archgraph.language.server import ServerSpec
from archgraph.states import Signature, State, signature
from archgraph.states.state import accumulator

MOMENTS = "moments"


class Reached(NamedTuple):
    """The values that clients have updated in a round, for one group of the server's tensors.

    Attributes:
        architecture: Architecture whose weights form the group. If there is no such architecture:
            the signature of the group, that is, the name, shape and dtype of each tensor.
        coverage: Dict from tensor name to the total weight of the clients that updated each value;
            0 if no client did.
    """

    architecture: ArchGraph | Signature
    coverage: Mapping[str, Tensor]


def followed(
    options: ServerSpec, before: ServerState, means: ServerState, reached: Mapping[str, Reached]
) -> ServerState:
    """Apply a server optimiser, which moves the old weights towards the clients' means.

    1. For each parameter that any client covers, compute Δ, the mean minus the old value.
    2. Compute the new moments, and the step, from Δ.
    3. Keep the old moments and weights of values that no client covers.

    Args:
        options: The optimiser.
        before: The state before the round.
        means: The state with the means of the round's clients.
        reached: Dict from group to the values that the clients of the round updated.
    """
    moments = before.group(MOMENTS)
    for group, (architecture, coverage) in reached.items():
        old, new = before.group(group), means.group(group)
        for slot in signature(architecture):
            if slot.role != "parameter" or not slot.torch_dtype.is_floating_point:
                continue
            covered = (coverage[slot.name] > 0).to(old[slot.name].device)
            if not bool(covered.any()):
                continue
            wide = accumulator(slot.torch_dtype)
            value, mean = old[slot.name].to(wide), new[slot.name].to(wide)  # 1
            names = {part: f"{part}/{group}/{slot.name}" for part in ("first", "second", "count")}
            known = {part: moments[name] for part, name in names.items() if name in moments}
            step, after = _STEPS[options.optimiser](options, mean - value, known)  # 2
            for part, moment in after.items():  # 3
                start = known.get(part, _start(options, part, moment))
                moments[names[part]] = torch.where(covered, moment, start)
            stepped = (value + step).to(slot.torch_dtype)
            new[slot.name] = torch.where(covered, stepped, old[slot.name])
        means = means.with_group(group, new)
    return means.with_group(MOMENTS, moments)


def _start(options: ServerSpec, part: str, like: Tensor) -> Tensor:
    """Return the initial value of a moment."""
    paper = part == "second" and options.values["bias_correction"] == "none"
    return torch.full_like(like, options.values["tau"] ** 2 if paper else 0)


def _momentum(options: ServerSpec, delta: Tensor, known: State) -> tuple[Tensor, State]:
    """``m ← β m + Δ``, ``x ← x + η m`` (FedAvgM)."""
    first = options.values["momentum"] * known.get("first", torch.zeros_like(delta)) + delta
    return options.values["lr"] * first, {"first": first}


def _adaptive(options: ServerSpec, delta: Tensor, known: State) -> tuple[Tensor, State]:
    """``m ← β₁ m + (1 - β₁) Δ``, ``x ← x + η m / (√v + τ)``; ``v`` depends on the optimiser."""
    values, square = options.values, delta.square()
    lr, beta1, tau = values["lr"], values["beta1"], values["tau"]
    v = known.get("second", _start(options, "second", delta))
    first = beta1 * known.get("first", torch.zeros_like(delta)) + (1 - beta1) * delta
    if options.optimiser == "adagrad":
        second = v + square
    elif options.optimiser == "yogi":
        second = v - (1 - values["beta2"]) * square * torch.sign(v - square)
    else:
        second = values["beta2"] * v + (1 - values["beta2"]) * square
    step = lr * first / (second.sqrt() + tau)
    after = {"first": first, "second": second}
    if options.optimiser == "adam" and values["bias_correction"] == "flower":
        # Updates are counted per value: the bias correction of rarely covered values decays more
        # slowly. Flower's exponent is the round plus 1.
        count = known.get("count", torch.zeros_like(delta, dtype=torch.int32)) + 1
        power = count.double() + 1
        factor = (1 - values["beta2"] ** power).sqrt() / (1 - beta1**power)
        return step * factor.to(step.dtype), {**after, "count": count}
    return step, after


_STEPS = {"momentum": _momentum, "adam": _adaptive, "yogi": _adaptive, "adagrad": _adaptive}
