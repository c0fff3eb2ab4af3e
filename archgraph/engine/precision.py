"""How a program computes: products in bfloat16, while weights are not."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from archgraph.engine.returned import outcome_of
from archgraph.federation import Outcome, Program, State, Work


def performed(program: Program, work: Work) -> Outcome:
    """Run a program on its work, in the precision that ``local.precision`` names.

    Weights, gradients of weights, losses and statistics stay as they are: PyTorch's autocast
    converts what goes into products of matrices and convolutions. Converted weights are not cached,
    since a program changes weights in place.

    Args:
        program: What the client does.
        work: What it is given.
    """
    if work.local.precision is None:
        return outcome_of(program, program(work))
    with torch.autocast(torch.device(work.device).type, torch.bfloat16, cache_enabled=False):
        outcome = outcome_of(program, program(work))
    return dataclasses.replace(outcome, extras=_wide(outcome.extras), keep=_wide(outcome.keep))


def _wide(state: State) -> dict[str, Tensor]:
    """Activations that leave, in the type in which the server computes."""
    return {
        name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        for name, tensor in state.items()
    }
