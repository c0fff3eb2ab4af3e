"""Analysis of graphs: axes, blocks and sections, costs, and training memory.

Every function takes a graph and leaves it unchanged. ``axes``, ``structure``, ``presence``,
``cost_polynomial``, ``cost`` and ``training_step`` are cached with the graph::

    graph ──▶ equations of ops ──▶ naming ──▶ axes        axes that are cut together, pinned axes
      ├─────▶ precision, unadapted                        the graph without casts and adapters
      │         stream                                    its cut nodes, and the pieces in between
      │         modules, merging, blocks                  pieces of one block, by module
      │         sections                                  stem, stages, transitions, head
      │         removal, which uses axes ──▶ structure    blocks, and which are removable
      └─────▶ presence ──▶ cost_polynomial ──▶ cost       of every submodel, without building it
                └─▶ training_step ──▶ training_memory     lifetime of every allocation

``forms`` compares parts by their computation, ``outline`` compares graphs line by line.
``positions`` and ``widths`` map axes to leaves and back. ``choice`` reads the user's choice of
axes; ``roles`` and ``layers`` classify parts of a graph for the user.

1. Each dimension of a leaf or a result has one layout, of its size, in axes of ``axes``.
2. Each operator is in exactly one block, each block in exactly one section. Casts, adapters and
   operators that only training uses do not form blocks of their own.
3. A cost polynomial at the graph's own sizes is the graph's cost; at other sizes, or with blocks
   skipped, it is the cost of that submodel.
"""
