"""Run experiments on Flower: the server's loop as a ServerApp, a client as a ClientApp.

Input: an experiment. Output: its ``Run``, bit-identical to a local run on the same kind of machine.

1. ``simulation``: the nodes are Ray processes, each of which prepares the experiment from its text;
   the server is a thread of this process. ``deployment``: server and nodes read the experiment and
   its models from the app that ``starter`` wrote; each machine's configuration sets its data and
   device.
2. ``server``: ``Nodes`` is the ``Elsewhere`` of :mod:`archgraph.engine.rounds`. A node is asked
   once which client it is. All tasks of a round are sent together; their replies are read in turn.
3. ``records``: the messages. Architectures are sent as YAML, weights as safetensors, and
   ``programs`` as names of classes with plain fields.
4. ``client``: a node does the engine's ``ClientWork``; ``keeping`` stores the client's private
   state.

- Only the clients' work runs on Flower. Loop, checks, tests and run folder are those of the engine:
  Flower's strategies do not support updates of different shapes and cannot resume a run.
- No received code is executed. A node only creates values of ``archgraph.federation``,
  ``archgraph.states`` and the module of its own strategy.
- A client's private state is pending until the next task names the last update that the server
  accepted. A round that is repeated or rejected therefore has no effect on this state.

Only these modules import ``flwr`` (extra ``flower``), and only when an experiment needs it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from archgraph.errors import RunError
from archgraph.hints import optional_module

if TYPE_CHECKING:
    from archgraph.engine.experiment import Experiment
    from archgraph.engine.local import Run

# Disable the telemetry of Flower and Ray. Ray's processes have the lowest priority by default: on a
# busy machine they would never be ready.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


def simulate(experiment: Experiment, *, data: object = None, **options: Any) -> Run:
    """Run an experiment in Flower's simulation. See :func:`.simulation.run_simulated`.

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
