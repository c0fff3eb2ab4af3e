"""Local training whose products are computed in bfloat16, while weights and what leaves are not."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from archgraph.engine.returned import outcome_of
from archgraph.federation import Outcome, Program, State, Work


def performed(program: Program, work: Work, device: str) -> Outcome:
    """What a program makes of its work, in the precision that ``local.precision`` asks for.

    Weights, gradients of weights, losses and statistics stay as they are: PyTorch's autocast
    converts what goes into products of matrices and convolutions. Converted weights are not cached,
    since a program changes weights in place.

    Args:
        program: What the client does.
        work: What it is given.
        device: Where it computes.
    """
    if work.local.precision is None:
        return outcome_of(program, program(work))
    with torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False):
        outcome = outcome_of(program, program(work))
    return dataclasses.replace(outcome, extras=_wide(outcome.extras), keep=_wide(outcome.keep))


def _wide(state: State) -> dict[str, Tensor]:
    """Activations that leave, in the type in which the server computes."""
    return {
        name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        for name, tensor in state.items()
    }
