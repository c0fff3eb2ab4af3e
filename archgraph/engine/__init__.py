"""Run strategies: prepare an experiment, run its rounds, test its models.

To read in this order: :mod:`archgraph.engine.local` (``run``, from a file to its last round),
:func:`archgraph.engine.world.prepare` and :mod:`archgraph.engine.experiment` (what a run consists
of), :mod:`archgraph.engine.rounds` (a round, step by step), :mod:`archgraph.engine.clientwork`
(what a client does, and what is checked of it), :mod:`archgraph.engine.evaluate` (how models are
tested). A client trains in :mod:`archgraph.federation.training`.

Names are imported on first use, because torch and its friends take seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
