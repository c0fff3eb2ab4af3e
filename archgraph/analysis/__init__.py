"""What belongs together in a graph.

A graph goes in; nothing is changed. ``axes``, ``structure``, ``presence``, ``cost_polynomial``,
``cost`` and ``training_step`` are cached with it::

    graph ──▶ equations of ops ──▶ naming ──▶ axes        what is cut together, what is pinned
      ├─────▶ precision, unadapted                        the graph without casts and adapters
      │         stream                                    its cut nodes, and the pieces between
      │         modules, merging, blocks                  pieces of one block, by module
      │         sections                                  stem, stages, transitions, head
      │         removal, which asks axes ──▶ structure    blocks, and which may be left out
      └─────▶ presence ──▶ cost_polynomial ──▶ cost       of each submodel, without making it
                └─▶ training_step ──▶ training_memory     each allocation, from when until when

``forms`` compares parts by what they compute, ``outline`` whole graphs, line by line. ``positions``
and ``widths`` go from axes to leaves and back. ``choice`` reads what users choose of axes,
``roles`` and ``layers`` say what parts of a graph are to them.

1. Each dimension of a leaf or a result has one layout, of its size, in axes of ``axes``.
2. Each operator is in exactly one block, each block in exactly one section. Casts, adapters and
   what only training does make no further blocks.
3. A cost polynomial at the graph's own sizes is the graph's cost; at other sizes, with blocks left
   out, it is the cost of that submodel.
"""
