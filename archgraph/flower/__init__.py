"""Running strategies on Flower: the server's loop as a ServerApp, a client as a ClientApp.

In: an experiment. Out: its ``Run``, with the bits of a local run where the machines are alike.

1. ``simulation``: the nodes are Ray's processes, each of which prepares the experiment from its
   text; the server is a thread here. ``deployment``: server and nodes read it from the app that
   ``starter`` wrote, models included; each machine's configuration says where its data and device
   are.
2. ``server``: ``Nodes`` is the ``Elsewhere`` of :mod:`archgraph.engine.rounds`. A node is asked
   once which client it is. The tasks of a round leave together; their replies are read one by one.
3. ``records``: what travels. Architectures are YAML, weights safetensors, ``programs`` the names of
   classes with plain fields.
4. ``client``: a node does the engine's ``ClientWork``; ``keeping`` stores what its client keeps.

- Only the clients' work runs on Flower. Loop, checks, tests and run folder are the engine's:
  Flower's own strategies refuse updates of different shapes and cannot resume a run.
- Nothing that arrives is executed. A node makes values of ``archgraph.federation``,
  ``archgraph.states`` and the module of its own strategy, and no others.
- What a node keeps of a round is pending until the next task says which update the server took: a
  round that is repeated or refused leaves no trace.

The modules import ``flwr`` (extra ``flower``); nothing else of archgraph does, and it is not
imported before an experiment asks for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from archgraph.errors import RunError
from archgraph.hints import optional_module

if TYPE_CHECKING:
    from archgraph.engine.experiment import Experiment
    from archgraph.engine.local import Run

# Flower and Ray report their use to their makers unless they are told not to, and Ray's processes
# give way to all others: on a busy machine they would never be ready.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


def simulate(experiment: Experiment, *, data: object = None, **options: Any) -> Run:
    """Run an experiment in Flower's simulation; see :func:`.simulation.run_simulated`.

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
