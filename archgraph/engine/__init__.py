"""Run strategies: prepare an experiment, run its rounds, test its models.

Input: an experiment (a file, a parsed file, or a dict with the same keys), and optionally data.

1. Prepare (``world``): build the models, load the data, check that they fit the method, and
   distribute the data among the clients. The result is an ``Experiment``, an immutable object with
   graphs and weights (its ``World``), data and settings.
2. Run rounds (``rounds``) in sequence. In each round, the strategy sends a ``Task`` to each client.
   A worker process or another machine does the client's work (``clientwork``; the training itself
   is in :mod:`archgraph.federation.training`) and returns its outcome as a ``Result``. The strategy
   reads the results one by one (``stream``) and merges them into the next ``ServerState``.
3. Test the models (``evaluate``, ``testing``) if a test is due, and record the round's metrics.

Output: a ``Run`` (``local``) with the last server state and the metrics of each round, and a run
folder.

Invariants of all stages:

- All random numbers are derived from seed, purpose, round and client. Results are therefore
  bit-identical for any number of workers, and after resuming. The only exception is the noise of
  ``privacy: {entropy: system}``.
- Everything is checked before it is merged: single updates in ``clientwork``, the sizes of a
  round's updates in ``rounds``, return values of strategies and programs in ``returned``.
- ``archgraph check`` runs everything up to the first round, with shapes instead of tensors where
  possible. Few errors can therefore occur in a run.

Names are imported on first use, because importing torch and similar libraries takes seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
