"""Analysis of graphs: axes, blocks and sections, costs, and training memory.

Every function takes a graph and leaves the graph unchanged. ``axes``, ``structure``, ``presence``,
``cost_polynomial``, ``cost`` and ``training_step`` are cached with the graph::

    graph ──▶ equations of ops ──▶ naming ──▶ axes        dimensions that are cut together
      ├─────▶ precision, unadapted                        the graph without casts and adapters
      │         stream                                    the path of the data, divided into pieces
      │         modules, merging, blocks                  pieces of one block, by module
      │         sections                                  stem, stages, transitions, head
      │         removal, which uses axes ──▶ structure    blocks, and which are removable
      └─────▶ presence ──▶ cost_polynomial ──▶ cost       costs of all submodels
                └─▶ training_step ──▶ training_memory     lifetime of every allocation

``forms`` compares parts of graphs by their computation. ``outline`` compares graphs line by line.
``positions`` cuts parameters to some positions of axes, and ``widths`` finds the sizes of axes from
the shapes of parameters. ``choice`` reads the user's choice of axes. ``roles`` and ``layers`` find
layers, the head and features.

1. Each dimension of a parameter or a result has one layout: an axis, a product or a sum of axes, or
   a fixed number.
2. Each operator is in exactly one block, and each block is in exactly one section. Casts, adapters
   and operators that only training uses do not form blocks of their own.
3. The value of a cost polynomial at the graph's own sizes is the graph's cost. At other sizes, or
   with blocks skipped, the value is the cost of that submodel.
"""
