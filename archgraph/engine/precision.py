"""Mixed precision: matrix products of clients' programs in bfloat16."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from archgraph.engine.returned import outcome_of
from archgraph.federation import Outcome, Program, State, Work


def performed(program: Program, work: Work) -> Outcome:
    """Run a client's program with the precision that ``local.precision`` sets.

    PyTorch's autocast converts the inputs of matrix products and convolutions. Weights, their
    gradients, losses and statistics keep their dtype. Converted weights are not cached, since a
    program changes weights in place.

    Args:
        program: The client's program.
        work: The client's work.
    """
    if work.local.precision is None:
        return outcome_of(program, program(work))
    with torch.autocast(torch.device(work.device).type, torch.bfloat16, cache_enabled=False):
        outcome = outcome_of(program, program(work))
    return dataclasses.replace(outcome, extras=_wide(outcome.extras), keep=_wide(outcome.keep))


def _wide(state: State) -> dict[str, Tensor]:
    """Convert bfloat16 tensors that are sent or kept to float32."""
    return {
        name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        for name, tensor in state.items()
    }
