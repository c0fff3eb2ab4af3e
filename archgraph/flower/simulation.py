"""Flower's simulation: clients run in Ray processes, on this machine or on a cluster.

Each process prepares the experiment once from its text. The server is a thread of this process.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from ruamel.yaml import YAML

from archgraph.engine.experiment import Experiment
from archgraph.engine.local import Run, execute
from archgraph.engine.rounds import Working
from archgraph.engine.world import prepare
from archgraph.errors import ArchGraphError, RunError
from archgraph.federation import Task
from archgraph.flower.client import client_app
from archgraph.flower.server import ASKED, Nodes
from archgraph.language import load_experiment
from archgraph.language.experiment import EngineSpec
from archgraph.plain import Json
from archgraph.record.client import ClientState


def run_simulated(experiment: Experiment, *, python: bool = False, **options: Any) -> Run:
    """Run an experiment in Flower's simulation.

    Args:
        experiment: The experiment. Each client process reads it again, once.
        python: Whether to run the Python code that the experiment names.
        options: As for :func:`archgraph.engine.execute`.

    Raises:
        ArchGraphError: As for :func:`archgraph.engine.run`.
    """
    runs: list[Run] = []
    ended = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        nodes = _Stoppable.of(grid, experiment)
        nodes.ended, nodes.join = ended, ASKED  # wait for all nodes, however slow the machine is
        if not options.get("progress", True):
            nodes.tell = lambda text: None
        runs.append(execute(experiment, elsewhere=nodes, **options))

    try:
        run_simulation(
            server,
            client_app(lambda context: _prepared(experiment.text, python)),
            len(experiment.world.clients),
            backend_config=_resources(experiment.engine),
        )
    except RuntimeError as error:
        # Flower wraps the errors of its server.
        cause = error.__cause__ or error
        if isinstance(cause, ArchGraphError):
            raise cause from error
        raise RunError(
            "Flower's simulation ended before the run",
            found=f"{type(cause).__name__}: {cause}".split("\n")[0],
            hint=(
                "`--resume` continues after the last checkpoint; `engine: local` works without Ray"
            ),
        ) from error
    finally:
        ended.set()
    return runs[0]


def _resources(engine: EngineSpec) -> dict[str, dict[str, Json]]:
    """Request a CPU for each client and, if the run uses GPUs, a fraction of a GPU.

    Ray uses all CPUs, or as many as ``workers``. A client's process only sees its own GPU.
    """
    on_device = engine.kind_of_device != "cpu"
    devices, workers = len(engine.devices), engine.workers
    if workers is None and devices > 1:
        workers = devices
    share = min(devices / (workers or devices), 1.0) if on_device else 0.0
    asked: dict[str, dict[str, Json]] = {"client_resources": {"num_cpus": 1, "num_gpus": share}}
    if workers is not None:
        asked["init_args"] = {"num_cpus": workers, **({"num_gpus": devices} if on_device else {})}
    return asked


class _Stoppable(Nodes):
    """Nodes of a server in a thread, which must end if the main thread is interrupted."""

    ended: threading.Event

    def _note(self, event: str, text: str, **facts: Json) -> None:
        if event != "joined":  # this machine may have thousands of nodes
            super()._note(event, text, **facts)

    def __call__(
        self, round: int, tasks: Iterable[Task], private: Mapping[int, ClientState]
    ) -> Iterator[Working]:
        for working in super().__call__(round, tasks, private):
            if self.ended.is_set():
                raise KeyboardInterrupt
            yield working


@functools.lru_cache(maxsize=2)
def _prepared(text: str, python: bool) -> Experiment:
    spec = load_experiment(YAML(typ="safe", pure=True).load(text))
    # A Ray process only sees its own GPU, whose number is always 0.
    engine = spec.engine.model_copy(update={"device": spec.engine.kind_of_device})
    return prepare(spec.model_copy(update={"engine": engine}), python=python)
