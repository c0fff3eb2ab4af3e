"""Shapes of operators that torch's stand-in tensors otherwise compute by a long decomposition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import fake_impls

_LEGIT = torch.ops.aten._native_batch_norm_legit.default
_NO_TRAINING = torch.ops.aten._native_batch_norm_legit_no_training.default


def _batch_norm(mode: Any, func: Any, input: torch.Tensor, *rest: Any, **named: Any) -> Any:
    """Result and batch statistics of a batch norm: the decomposition takes eleven operators."""
    trains = func is _LEGIT and (named["training"] if "training" in named else rest[4])
    with mode:
        statistics = [input.new_empty((input.shape[1] if trains else 0,)) for _ in range(2)]
        return (torch.empty_like(input), *statistics)


@contextlib.contextmanager
def short_ways() -> Iterator[None]:
    """Let stand-in tensors pass through these operators without their decompositions."""
    ways = dict.fromkeys((_LEGIT, _NO_TRAINING), _batch_norm)
    own = {op: way for op, way in ways.items() if op not in fake_impls.op_implementations_dict}
    fake_impls.op_implementations_dict.update(own)
    try:
        yield
    finally:
        for op in own:
            del fake_impls.op_implementations_dict[op]
