"""Building blocks of federated methods: worlds, tasks, results, objectives, programs, strategies.

The training loop is in :mod:`archgraph.engine`. It creates a world, and then uses this package from
top to bottom::

    family     a file as read ──▶ Family: the global graph, a Tier with a transfer for each kind
    world      World: clients, tiers, seed, the experiment's options for averaging
    strategy   init, survey, surveyed; each round begin, and for each client send ──▶ Task
    tasks      Program(Work) ──▶ Outcome ──▶ Result; Train is the usual program
    strategy   examine each result; receive all results, one by one
    average    covered_mean, group_means of Contributions: the plain mean, robust_means or
               private_means, then server_optimiser ──▶ the next ServerState
    strategy   evaluated ──▶ the models that are tested

``low_rank``, ``personal``, ``private_parts``, ``by_class``, ``norms``, ``scaler`` and ``options``
are shared by several methods. ``learning`` defines the learning tasks, with losses
(``objectives``) and ``metrics``.

1. A strategy is a frozen dataclass, and its methods are pure functions. A :class:`ServerState`
   contains tensors and JSON values. A :class:`Program` is a frozen dataclass that can be pickled.
   Random numbers come from :func:`seeded`.
2. ``group_means`` implements the experiment's keys ``privacy`` and ``server``, and the robust means
   of ``aggregate`` (median, trimmed mean, Krum). A method that averages with ``group_means``
   supports these keys without extra code. The engine clips updates.
3. ``LearningTask.counts`` alone determines the weight of an example in losses, averages and
   metrics.

``docs/methods.md`` maps the published methods onto these types. A strategy needs only the names
below and ``archgraph`` itself; they are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
