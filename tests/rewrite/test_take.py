"""What take says of a choice that is none."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.errors import RewriteError
from tests.rewrite.networks import mlp, traced


@pytest.mark.parametrize(
    "spec", [True, "0.out", None, {"0.out": [True, False]}, {"0.out": [0.5]}, {"0.out": "x"}]
)
def test_nonsense_to_take_is_one_message(spec):
    with pytest.raises(RewriteError, match=r"found|no axes are chosen"):
        ag.take(traced(mlp(), torch.zeros(1, 3)).graph, spec)
