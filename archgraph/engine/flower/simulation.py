"""Flower's simulation: the clients in Ray's processes, on this machine or on a cluster.

Every process prepares the experiment itself, once, from its text; the server is a thread here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from ruamel.yaml import YAML

from archgraph.engine.client import KeptByClient
from archgraph.engine.experiment import Experiment
from archgraph.engine.flower.client import client_app
from archgraph.engine.flower.server import ASKED, Nodes
from archgraph.engine.local import Run, execute
from archgraph.engine.turn import Working
from archgraph.engine.world import prepare
from archgraph.errors import ArchGraphError, RunError
from archgraph.federation import Task


def simulate(experiment: Experiment, *, python: bool = False, **options: Any) -> Run:
    """Run an experiment in Flower's simulation.

    Args:
        experiment: What is run; its clients read it anew, each process once.
        python: Consent to run the Python code that it names.
        options: As for :func:`archgraph.engine.execute`.

    Raises:
        ArchGraphError: As :func:`archgraph.engine.run`.
    """
    runs: list[Run] = []
    ended = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        nodes = _Stoppable.of(grid, experiment)
        nodes.ended, nodes.join = ended, ASKED  # all of them come, however slow the machine is
        runs.append(execute(experiment, elsewhere=nodes, **options))

    try:
        run_simulation(
            server,
            of_text(experiment.text, python=python),
            len(experiment.world.clients),
            backend_config=_resources(experiment.engine.workers),
        )
    except RuntimeError as error:
        cause = error.__cause__ or error
        if isinstance(cause, ArchGraphError):
            raise cause from error
        raise RunError(
            "Flower's simulation ended before the run did",
            found=f"{type(cause).__name__}: {cause}".split("\n")[0],
            hint="`--resume` goes on after the last checkpoint; `engine: local` needs no Ray",
        ) from error
    finally:
        ended.set()
    return runs[0]


def _resources(workers: int | None) -> Any:
    """One processor for a client, of all of the machine or cluster or of so many."""
    asked: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    return asked if workers is None else {**asked, "init_args": {"num_cpus": workers}}


class _Stoppable(Nodes):
    """Nodes whose server is a thread, which an interrupt of the main one must end."""

    ended: threading.Event

    def __call__(
        self, round: int, tasks: Iterable[Task], kept: Mapping[int, KeptByClient]
    ) -> Iterator[Working]:
        for working in super().__call__(round, tasks, kept):
            if self.ended.is_set():
                raise KeyboardInterrupt
            yield working


def of_text(text: str, *, python: bool = False) -> ClientApp:
    """The ClientApp of an experiment as it is resolved (``run.yaml``)."""
    return client_app(functools.partial(_here, text, python))


def _here(text: str, python: bool, context: Context) -> Experiment:
    return _prepared(text, python)


@functools.lru_cache(maxsize=2)
def _prepared(text: str, python: bool) -> Experiment:
    return prepare(YAML(typ="safe", pure=True).load(text), python=python)
