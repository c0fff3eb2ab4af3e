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
    """Return a dict from model name (``global``, a tier or a cluster) to architecture and weights.

    If clients have their own versions of a model, for example with private tensors, each version is
    included as ``NAME/CLIENT``.

    Args:
        folder: The run folder. The run need not be finished.
        data_root: Folder of the data. Default: the folder that the run used.
        data: The data, if it was passed to the run as an argument.
        python: Consent to run the Python code that the run's experiment and models name.
        tested: Use the running statistics with which each model is tested. Some methods compute
            them from training data before a test. If False, use the statistics in the checkpoint.

    Raises:
        ArchGraphError: If the folder is not a run folder, the run's experiment can no longer be
            prepared (for example, its data is missing), or its checkpoint is damaged.
    """
    path = run_folder(folder)
    setup = prepare(path / "run.yaml", data_root=data_root, data=data, python=python)
    # A run with `keep: best` does not end with its last round.
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
    """Yield the name and weights of each model, or of each client's version of a model.

    Versions that are fine-tuned before a test are not included, since a run does not store them.
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
