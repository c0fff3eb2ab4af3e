"""Pictures and explanations of graphs; nothing here changes a graph.

A graph goes in, or a family; DOT text, pictures (SVG, PNG, PDF), tables and facts come out::

    sections ──▶ pieces ──▶ hierarchy ──▶ scene ──▶ dot ──▶ picture, gallery
      │            │          └─ runs of equal blocks       └─ Graphviz, in its own process
      │            └─ which operators share a box, and what feeds them
      └──▶ summary                                 sections and blocks as one table
    transfers ──▶ cover                            who feeds which leaf, with how much of it
    costs ──▶ pricing ──▶ facts, collect ──▶ explanation, explanation_tables
    a correspondence ──▶ difference                how two graphs differ

``labels``, ``legend`` and ``markup`` write what boxes say, ``paths`` finds the path that is drawn
straight, ``printed`` the most detail that is legible at a width of print, ``columns`` what stands
in which column of it. ``colours`` and ``style``
also serve the pages of other rooms.

1. A scene knows neither DOT nor colours. The page of :mod:`archgraph.viewer` is made of the same
   boxes, folds, labels and facts.
2. Savings are read off the cost polynomials; nothing is rewritten to price it.
3. Coverage is two numbers, since their product could not tell depth from width: the share of
   clients that have any of a part, and the share of its weights that these have.

Names are imported on first use: a table of a graph needs no Graphviz.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
