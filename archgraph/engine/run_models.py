"""The models of a run, from its last checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from archgraph.engine.recalibration import as_tested
from archgraph.engine.world import prepare
from archgraph.federation import Evaluated, Model, ServerState, State, private_models
from archgraph.plain import json_safe
from archgraph.record.client import ClientState
from archgraph.record.folder import RunRecord, run_folder


def trained(
    folder: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    data: object = None,
    python: bool = False,
    tested: bool = False,
) -> dict[str, Model]:
    """Return a dict from name (``global``, tiers, clusters) to architecture and weights.

    A model of which clients have their own versions (created for them, or with private tensors) is
    included once per client, as ``NAME/CLIENT``.

    Args:
        folder: The run folder; the run may still be running.
        data_root: Folder of the data. Default: the run's.
        data: The data, if it was an argument of the run.
        python: Consent to run the Python code that the run's experiment and models name.
        tested: Use the running statistics with which each model is tested, which some methods
            compute from training data before a test. If False, use those of the checkpoint.

    Raises:
        ArchGraphError: If it is not a run folder, its experiment can no longer be prepared (e.g.
            its data is missing), or its checkpoint is damaged.
    """
    path = run_folder(folder)
    setup = prepare(path / "run.yaml", data_root=data_root, data=data, python=python)
    # A run with `keep: best` ends with another round than its last.
    best = setup.selection.chosen if setup.selection is not None else None
    checkpoint = RunRecord.last(path, json_safe(setup.facts), best)
    server = ServerState(checkpoint.tensors, checkpoint.values)
    strategy, world = setup.strategy, setup.world
    models = private_models(strategy, world, strategy.evaluated(world, server), every=True)
    private = {client: ClientState.from_flat(flat) for client, flat in checkpoint.private.items()}

    def as_run(model: Evaluated, state: State) -> State:
        return as_tested(setup, model, state) if tested else state

    return dict(versions(models, private, as_run))


def versions(
    models: Iterable[Evaluated],
    private: Mapping[int, ClientState],
    state_of: Callable[[Evaluated, State], State] = lambda _, state: state,
) -> Iterator[tuple[str, Model]]:
    """Yield names and weights, one at a time: of each model, or of each client's version of it.

    Fine-tuning before a test does not create separate versions: a run does not keep its result.
    """
    for model in models:
        if not (model.clients and (model.private or model.states is not None)):
            yield model.name, Model(model.graph, state_of(model, model.state))
            continue
        for client in model.clients:
            state = model.state if model.states is None else model.states(client)
            if model.private and client in private:
                state = private[client].over(state, current=model.current)
            yield f"{model.name}/{client}", Model(model.graph, state_of(model, state))
