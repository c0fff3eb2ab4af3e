"""Files of weights with a fault, as ``archgraph match --state FILE`` reads them."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from safetensors.torch import save

import archgraph as ag
from archgraph.engine.address import Address
from tests.language.fuzzing import MUTATIONS, Stage
from tests.trust.folders import MODEL, mutate_header


@functools.cache
def _valid() -> bytes:
    return save(ag.initial_state(ag.load(MODEL), 0))


def use_weights(rng: random.Random, place: Path, stage: Stage) -> None:
    """Read a mutated file as the weights of a model."""
    place.mkdir()
    file, data = place / "weights.safetensors", _valid()
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice([mutate_header, mutate_header, *MUTATIONS["bytes"]])(rng, data)
    file.write_bytes(data)
    stage("read")
    Address(MODEL).model(file)
