"""Pictures and explanations of graphs; nothing here changes a graph.

The input is a graph or a family, the output DOT text, pictures (SVG, PNG, PDF), tables or facts::

    sections ──▶ pieces ──▶ hierarchy ──▶ scene ──▶ dot ──▶ picture, gallery
      │            │          └─ runs of equal blocks       └─ Graphviz, in its own process
      │            └─ operators that share a box, and the operators that feed them
      └──▶ summary                                 sections and blocks as one table
    transfers ──▶ cover                            clients that feed a leaf, and their shares of it
    costs ──▶ pricing ──▶ facts, collect ──▶ explanation, explanation_tables
    a correspondence ──▶ difference                differences of two graphs

``labels``, ``legend`` and ``markup`` write the text of a picture, ``paths`` finds the path that is
drawn straight, ``printed`` the most detail that is legible at a width of print, ``columns`` the
boxes of each column. ``colours`` and ``style`` also serve the pages of other rooms.

1. A scene contains neither DOT nor colours. The page of :mod:`archgraph.viewer` shows the same
   boxes, folds, labels and facts.
2. Savings are computed from the cost polynomials, without rewriting the graph.
3. Coverage is two numbers, since one could not distinguish depth from width: the number of clients
   that have any of a part, and the mean share of its weights that a client has.

Names are imported on first use: a table of a graph needs no Graphviz.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
