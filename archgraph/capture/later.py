"""Later calls: whether what forward keeps on its modules changes what it computes the next time.

A graph computes the same at every call, buffers apart. Forward may count its calls or keep a result
to look at; where that has an effect on a later call, a graph cannot follow. Nothing but a second
call tells the two apart, so where forward has assigned something, the model itself runs: once on
the example, and once more on it after another call.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.examples import tensors
from archgraph.capture.export import Captured
from archgraph.capture.surroundings import restored
from archgraph.capture.tape import Note
from archgraph.errors import TraceError


def assignments(model: torch.nn.Module, captured: Captured) -> list[Note]:
    """What is to be said of the attributes that forward changes: errors where they matter."""
    if not captured.changed:
        return []
    if not _differs(model, captured.args, captured.kwargs):
        return [
            f"{place}: forward changes {name}; a second call computes the same"
            for name, place in captured.changed.items()
        ]
    return [
        TraceError(
            f"forward changes {name}, and a later call computes something else; a graph does not",
            where=place,
            hint="make it a buffer (register_buffer), or trace with strict=False",
        )
        for name, place in captured.changed.items()
    ]


def _differs(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call after another one computes something else than the first; buffers apart.

    Also where the model cannot run: nothing is known then.
    """
    memory = {id(t): (t, t.detach().clone()) for t in _held(model)}

    def put_back() -> None:
        for tensor, before in memory.values():
            if not torch.equal(tensor, before):
                tensor.copy_(before)

    def call(given: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        positional, named = pytree.tree_map(
            lambda v: v.clone() if isinstance(v, torch.Tensor) else v, given
        )
        return [t.clone() for t in tensors(model(*positional, **named))]

    if any(tensor.is_meta for tensor, _ in memory.values()):
        return True
    given = args, kwargs
    with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with restored(model, {}):
                first = call(given)
            put_back()
            with restored(model, {}):
                call(pytree.tree_map(_another, given))
                put_back()
                second = call(given)
        except Exception:  # whatever the user's forward raises
            return True
        finally:
            put_back()
    return len(first) != len(second) or not all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _held(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers."""
    yield from model.parameters()
    yield from model.buffers()


def _another(value: Any) -> Any:
    """An input of another call: other numbers of the same kind."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    return value.flip(0) + 1 if value.is_floating_point() else value.flip(0)
