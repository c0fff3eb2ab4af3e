"""Building blocks of federated methods: worlds, tasks, results, objectives, programs, strategies.

This package has no loop. :mod:`archgraph.engine` creates a world and calls the rest, from top to
bottom::

    family     a file as read ──▶ Family: the global graph, a Tier with a transfer for each kind
    world      World: clients, tiers, seed, the experiment's options for averaging
    strategy   init, survey, surveyed; each round begin, and for each client send ──▶ Task
    tasks      Program(Work) ──▶ Outcome ──▶ Result; Train is the usual program
    strategy   examine each result; receive all of them, as a stream
    average    covered_mean, group_means of Contributions: the plain mean, robust_means or
               private_means, then server_optimiser ──▶ the next ServerState
    strategy   evaluated ──▶ the models that are tested

``low_rank``, ``personal``, ``private_parts``, ``by_class``, ``norms``, ``scaler`` and ``options``
are shared by several methods. ``learning`` has a row for each task (``objectives``, ``metrics``).

1. A strategy is frozen and pure. A :class:`ServerState` is tensors and plain values (safetensors
   and JSON), a :class:`Program` a frozen dataclass that pickles; random draws depend on labels.
2. ``privacy``, ``server`` and the rules of ``aggregate`` that need all updates act inside
   ``group_means``: a method that averages there supports them without extra code. The engine does
   the clipping.
3. Only ``LearningTask.counts`` determines how much an example counts, in losses, weights and tests.

``docs/methods.md`` maps the published methods onto these types. A strategy needs only the names
below and ``archgraph`` itself; they are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
