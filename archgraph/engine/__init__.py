"""Run strategies: prepare an experiment, run its rounds, test its models.

Input: a file, a spec, or a dict with its keys; data, if passed as an argument.

1. Prepare (``world``): method, data, compatibility checks, rounds, shares of the clients. An
   ``Experiment``, frozen: graphs and weights (its ``World``), data, settings.
2. Run rounds (``rounds``), one after the other. In each the strategy sends a ``Task`` to each
   client; a worker process or another machine returns its outcome, a ``Result`` (``clientwork``;
   the training itself is :mod:`archgraph.federation.training`); the strategy merges the results,
   read one by one (``stream``), into the next ``ServerState``.
3. Test (``evaluate``, ``testing``) when a test is due; record the line of the round.

Output: a ``Run`` (``local``): the last server state, a line per round, a folder.

Invariants of all stages:

- All randomness follows from seed, purpose, round and client: a run has the same bits whatever the
  number of workers, and when it is resumed. Only ``privacy: {entropy: system}`` draws other noise.
- Nothing unchecked is merged: each update is checked in ``clientwork``, its size relative to the
  others of the round in ``rounds``, results of strategies and programs in ``returned``.
- ``check`` covers everything up to the first round, on shapes where possible: a run refuses little
  else.

Names are imported on first use, because torch and similar libraries take seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
