"""The models of a run, as its last checkpoint has them."""

from __future__ import annotations

import os
from pathlib import Path

from archgraph.engine.local import finite
from archgraph.engine.record import Record
from archgraph.engine.shard import Kept
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.strategy import Model, ServerState


def trained(
    folder: str | os.PathLike[str], *, data_root: str | os.PathLike[str] | None = None
) -> dict[str, Model]:
    """Architectures with weights by name: ``global``, tiers, clusters.

    A model that every client has in its own way is there once per client, as ``NAME/CLIENT``.

    Args:
        folder: The run folder; the run may be going on.
        data_root: Folder of the data; None: the run's.

    Raises:
        ArchGraphError: If it is no run folder, its experiment cannot be prepared any more (its data
            is gone, say), or its checkpoint is damaged.
    """
    place = Path(folder)
    if not (place / "run.yaml").is_file():
        raise RunError("no run folder", where=str(place), found="no run.yaml")
    setup = prepare(place / "run.yaml", data_root=data_root)
    checkpoint = Record.last(place, finite(setup.facts))
    server = ServerState(checkpoint.tensors, checkpoint.values)
    found: dict[str, Model] = {}
    for model in setup.strategy.evaluated(setup.world, server):
        if not (model.kept and model.clients):
            found[model.name] = Model(model.graph, model.state)
            continue
        for client in model.clients:
            own = Kept.from_flat(checkpoint.kept.get(client, {}))
            found[f"{model.name}/{client}"] = Model(model.graph, own.over(model.state))
    return found
