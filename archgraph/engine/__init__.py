"""Run strategies: prepare an experiment, run its rounds, test its models.

Input: a file, a spec, or a dict with its keys; data, if passed as an argument.

1. Prepare (``world``): load method and data, check that they fit, and assign the clients' shares.
   The result is an ``Experiment``, which is frozen: graphs and weights (its ``World``), data,
   settings.
2. Run rounds (``rounds``) in sequence. In each round, the strategy sends a ``Task`` to each client.
   A worker process or another machine does the client's work (``clientwork``; the training itself
   is in :mod:`archgraph.federation.training`) and returns its outcome as a ``Result``. The strategy
   reads the results one by one (``stream``) and merges them into the next ``ServerState``.
3. Test (``evaluate``, ``testing``) when a test is due, and record a line for the round.

Output: a ``Run`` (``local``): the last server state, a line per round, a folder.

Invariants of all stages:

- All randomness is derived from seed, purpose, round and client: results are bit-identical for any
  number of workers, and after resuming. Only ``privacy: {entropy: system}`` draws other noise.
- Nothing unchecked is merged: each update is checked in ``clientwork``, its size relative to the
  others of the round in ``rounds``, results of strategies and programs in ``returned``.
- ``check`` covers everything up to the first round, on shapes where possible: few errors are left
  for later rounds.

Names are imported on first use, because torch and similar libraries take seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
