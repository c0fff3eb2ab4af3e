"""Training goes on after a rewrite: an optimiser's state is mapped as gradients are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from archgraph.errors import RewriteError
from archgraph.states.coverage import Coverage
from archgraph.states.entry import Entry
from archgraph.states.rewritten import Rewritten
from archgraph.states.state import Signature, State
from archgraph.states.transfer import Transfer, entry_of

#: What an optimiser calls its state, and how that follows a gradient that is multiplied by c:
#: 1: multiplied by c (averages of gradients); 2: by c² (averages of squares); 0: not at all
#: (counters, averages of steps that are normalised); -1: as weights are (averages of weights).
ORDERS: Mapping[str, int] = {
    "step": 0,
    "acc_delta": 0,
    "step_size": 0,
    "mu_product": 0,
    "ax": -1,
    "momentum_buffer": 1,
    "exp_avg": 1,
    "grad_avg": 1,
    "exp_inf": 1,
    "prev": 1,
    "exp_avg_sq": 2,
    "max_exp_avg_sq": 2,
    "square_avg": 2,
    "sum": 2,
}


def carry(
    transfer: Transfer | Rewritten,
    old: tuple[nn.Module, torch.optim.Optimizer],
    new: tuple[nn.Module, torch.optim.Optimizer],
    *,
    orders: Mapping[str, int] | None = None,
) -> None:
    """Give the optimiser of a rewritten network the state of the old network's optimiser.

    Momentum and Adam's moments are averages of gradients and of their squares, so they go where
    gradients go (:func:`pull_moments`); counters are copied; a parameter
    that the rewrite initialises or repeats (``deepen``, ``graft``) starts without state, as in a
    new optimiser.
    Learning rates and other settings are the new optimiser's own. A selection, a replication, its
    inverse and new blocks that are the identity train as the old network would have: what exactly
    holds is said in ``docs/maintaining/states.md``. Others change the function, so that
    no moment is the right one: a sum in equal parts (``narrow`` as printed) adds it up.

    Args:
        transfer: From the old network's state to the new one's.
        old: The network that was trained and its optimiser; not changed.
        new: The rewritten network and an optimiser of the same kind that made no step yet.
        orders: How further kinds of state follow a gradient, by name, as in ``ORDERS``.

    Raises:
        RewriteError: For optimisers of two kinds or of other parameters, or a kind of state that is
            not known; the new optimiser then stays unchanged.

    Example:
        >>> from archgraph import build, trace, widen
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> graph, state = trace(net, torch.zeros(1, 3))
        >>> optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        >>> net(torch.ones(5, 3)).square().mean().backward()
        >>> optimiser.step()
        >>> graph, transfer = widen(graph, sizes={"0.out": 6})
        >>> wide = build(graph, transfer.pull(net.state_dict()))
        >>> again = torch.optim.SGD(wide.parameters(), 0.1, momentum=0.9)
        >>> carry(transfer, (net, optimiser), (wide, again))
        >>> again.state[wide.get_parameter("2.weight")]["momentum_buffer"].shape
        torch.Size([2, 6])
    """
    if isinstance(transfer, Rewritten):
        transfer = transfer.transfer
    if type(old[1]) is not type(new[1]):
        kinds = f"{type(old[1]).__name__} and {type(new[1]).__name__}"
        raise RewriteError("optimisers of two kinds keep different state", found=kinds)
    stored: dict[str, dict[str, Any]] = {}
    for name, parameter in _named(*old, transfer.source):
        for kind, value in old[1].state.get(parameter, {}).items():
            stored.setdefault(kind, {})[name] = value
    # RMSprop's momentum is one of normalised steps.
    steps = {"momentum_buffer": 0} if "square_avg" in stored else {}
    known = {**ORDERS, **steps, **(orders or {})}
    without = repeated(transfer)
    targets = [(n, p) for n, p in _named(*new, transfer.target) if n not in without]
    updates: list[tuple[nn.Parameter, str, Any]] = []
    for kind, values in stored.items():
        moments = {k: v for k, v in values.items() if isinstance(v, Tensor)}
        plain = {k: v for k, v in values.items() if k not in moments}
        order = _order(kind, moments, old[0], known)
        mapped = pull_moments(transfer, moments, order=order)
        for name, parameter in targets:
            source = transfer.entries[name].source
            if source in moments:
                device = parameter.device if order else moments[source].device
                updates.append((parameter, kind, mapped[name].to(device)))
            elif source in plain:
                updates.append((parameter, kind, plain[source]))
    # Only now, so that a refusal leaves the new optimiser as it was.
    for parameter, kind, value in updates:
        new[1].state[parameter][kind] = value


def _named(
    module: nn.Module, optimiser: torch.optim.Optimizer, slots: Signature
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield an optimiser's parameters with the names that a transfer has for them."""
    shapes = {slot.name: slot.shape for slot in slots}
    name_of: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if shapes.get(name) == tuple(parameter.shape):
            name_of.setdefault(parameter, name)
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if parameter not in name_of:
                problem = "the optimiser has a parameter that its network or the transfer lacks"
                raise RewriteError(problem, found=f"one of shape {list(parameter.shape)}")
            yield name_of[parameter], parameter


def _order(
    kind: str, moments: Mapping[str, Tensor], module: nn.Module, known: Mapping[str, int]
) -> int:
    """Return how a kind of state follows gradients; numbers of larger parameters are copied."""
    if kind in known:
        return known[kind]
    if all(m.numel() == 1 and module.get_parameter(k).numel() > 1 for k, m in moments.items()):
        return 0
    hint = "1 if it averages gradients, 2 for their squares, -1 for weights, 0 to copy it"
    hint = f"pass orders={{{kind!r}: …}}: {hint}"
    raise RewriteError("how this state follows gradients is not known", where=kind, hint=hint)


def repeated(transfer: Transfer) -> frozenset[str]:
    """Return the entries that begin as copies of one which is still there under its own name."""
    stay = {name for name, entry in transfer.entries.items() if entry.source == name}
    return frozenset(
        name
        for name, entry in transfer.entries.items()
        if entry.source in stay and name not in stay
    )


@torch.no_grad()
def pull_moments(transfer: Transfer, moments: State, *, order: int = 1) -> dict[str, Tensor]:
    """Map what an optimiser stores per parameter, so that training can go on.

    Gradients transform with the transpose's inverse, not with the weights: where a unit is
    replicated with its outgoing weights divided, the outgoing gradients stay and the incoming
    ones are divided. With coverage D = |A|ᵀ|A| 1 the first moment maps as A D⁻¹, the second as
    (|A| D⁻¹ 1) ∘ |A| D⁻¹, exact for replicas and for merging them again. What is
    :func:`repeated` takes no part: the original keeps its moments.

    Args:
        transfer: From the old state to the new one.
        moments: By parameter name; parameters that the optimiser does not know may be missing.
        order: 1 for momentum and Adam's ``exp_avg``; 2 for ``exp_avg_sq``; 0 for what a factor
            on the gradient does not change: a mean over what an entry is composed of, or, without
            axes of the parameter (``step``), a copy; -1 for averages of weights.

    Returns:
        By target name; zeros for an initialised parameter and a repeated one.

    Raises:
        RewriteError: For another order, or moments of another shape than their parameter.
    """
    if order not in (-1, 0, 1, 2):
        raise RewriteError("no such moment", found=order, expected="-1, 0, 1 or 2")
    without = repeated(transfer)
    coverage = Coverage.of(
        transfer.shapes, (e for name, e in transfer.entries.items() if name not in without)
    )
    inverse: dict[str, Tensor] = {}  # D⁻¹ by source entry
    result: dict[str, Tensor] = {}
    for slot in transfer.target:
        entry = transfer.entries[slot.name]
        source = entry.source
        if source is None or slot.name in without:
            if order and slot.role == "parameter":
                result[slot.name] = torch.zeros(slot.shape, dtype=slot.torch_dtype)
        elif source not in moments:
            continue
        elif order == 0 and moments[source].shape != transfer.shapes[source]:
            result[slot.name] = moments[source].clone()
        else:
            value = entry_of(moments, source, transfer.shapes[source])
            if order > 0 and source not in inverse:
                covered = coverage[source].to(value)
                inverse[source] = torch.where(covered > 0, 1 / covered, 0)
            result[slot.name] = _moment(entry, value, order, inverse.get(source))
    return result


def _moment(entry: Entry, value: Tensor, order: int, inverse: Tensor | None) -> Tensor:
    if order == -1:
        return entry.pull(value)
    magnitude = entry.magnitude()
    if inverse is None:
        total = magnitude.pull(torch.ones_like(value))
        return torch.where(total > 0, magnitude.pull(value) / total, 0)
    if order == 1:
        return entry.pull(value * inverse)
    return magnitude.pull(inverse) * magnitude.pull(value * inverse)
