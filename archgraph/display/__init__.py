"""Pictures, tables and explanations of graphs.

The input is a graph or a family. The output is DOT text, a picture (SVG, PNG, PDF) or a table::

    sections ──▶ pieces ──▶ hierarchy ──▶ scene ──▶ dot ──▶ picture, gallery
      │            │          └─ runs of equal blocks       └─ Graphviz, in its own process
      │            └─ operators that share a box, and the arrows between them
      └──▶ summary                                 sections and blocks as one table
    transfers ──▶ cover                            clients that update each parameter
    costs ──▶ pricing ──▶ facts, collect ──▶ explanation, explanation_tables
    a correspondence ──▶ difference                differences of two graphs

``labels``, ``legend`` and ``markup`` write the text of a picture. ``paths`` finds the path that is
drawn as a straight line. ``printed`` finds the most detail that is legible at a given width on
paper, and ``columns`` divides a tall picture into columns. ``colours`` and ``style`` are also used
by the pages of other packages.

1. A scene (the boxes and arrows of a picture) contains neither DOT nor colours. The page of
   :mod:`archgraph.viewer` shows the same boxes, repeated blocks, labels and facts.
2. Savings are computed from the cost polynomials, without rewriting the graph.
3. Coverage is two numbers: how many clients have any weight of a part, and which fraction of the
   part's weights a client has on average. One number could not distinguish a client that lacks the
   block from a client that has a narrower block.

Submodules are imported on first use, so that tables do not need Graphviz.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
