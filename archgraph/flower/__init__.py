"""Run experiments on Flower: the server is a ServerApp, and each client is a ClientApp.

The input is an experiment. The output is its ``Run``, which is bit-identical to a local run on the
same processor model.

1. ``simulation`` starts a simulation: the nodes are Ray processes, each of which prepares the
   experiment, and the server is a thread of this process. ``deployment`` runs on several machines:
   server and nodes read the experiment from a Flower app that ``starter`` wrote, and the
   configuration of each machine sets its data and device.
2. ``server`` sends the tasks of a round to the nodes and reads their replies. Before the first
   round, it asks each node once which client the node runs.
3. ``records`` defines the messages. Architectures are sent as YAML, weights as safetensors, and the
   clients' programs as names of classes with their fields (``programs``).
4. ``client`` runs a task on a node like the local engine; ``keeping`` stores the private state of
   the client in a file.

- Only the clients' work runs on Flower. Round loop, checks, tests and run folder are those of the
  local engine, because Flower's strategies do not support updates of different shapes and cannot
  resume a run.
- No received code is executed. A node only creates objects of classes in ``archgraph.federation``,
  ``archgraph.states`` and the module of its own strategy.
- The new private state of a client is pending until the next task confirms that the server accepted
  the update. A round that is repeated or rejected therefore does not change the private state.

``flwr`` (extra ``flower``) is only imported when an experiment needs it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from archgraph.errors import RunError
from archgraph.hints import optional_module

if TYPE_CHECKING:
    from archgraph.engine.experiment import Experiment
    from archgraph.engine.local import Run

# Disable the telemetry of Flower and Ray. Ray's processes have the lowest priority by default, and
# would never be ready on a busy machine.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


def simulate(experiment: Experiment, *, data: object = None, **options: Any) -> Run:
    """Run an experiment in Flower's simulation (see :func:`.simulation.run_simulated`).

    Raises:
        RunError: If the extra ``flower`` is not installed, or Flower cannot run the experiment.
    """
    if data is not None or experiment.engine.memory is not None:
        what = "data in memory" if data is not None else "engine.memory"
        raise RunError(f"cannot run on Flower with {what}", where="engine: flower")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for package in ("flwr", "ray"):
        optional_module(package, kind=RunError, where="engine: flower")
    from archgraph.flower import simulation

    return simulation.run_simulated(experiment, **options)
