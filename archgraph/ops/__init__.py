"""The operator table: one row per operator. No other room asks what kind of layer something is.

The input is a node: an operator and its arguments by the names of ``schema``.

1. Look up the row (``table``): each family of operators has a file with its rows. A row is an
   ``Operator`` (``operator``): rules as functions and facts as fields. An operator without a row is
   unknown; the axes of its operands are never cut.
2. Infer types (``infer``): in closed form if the row has one (``types``), otherwise by running the
   operator on tensors without data (``kernels``), with symbolic sizes if several are open
   (``symbols``).
3. State equations of axes (``equations``), and where results are zero on masked positions
   (``zeros``); :mod:`archgraph.analysis` solves them for the whole graph.
4. Answer questions of other rooms: cost of forward and ``backward``, initial weights (``starts``),
   the ``torch.nn`` layer (``layers``), the effect of repeated positions (``Growth``).
5. Name groups of operators (``idioms``: patterns of operators, in the language of ``patterns``,
   with names of the field), for pictures, pages and explanations.

The output is types, layouts, amounts and calls, but never a graph: higher rooms build graphs.

Invariants:

- The meaning of an operator is defined in one file; families share helpers of ``pointwise`` and
  ``weighted``.
- A rule that cannot interpret its arguments pins the axes instead, which is always correct.
- A graph that passed ``check`` has nodes with known schemas and the types that ``infer`` computes.
"""
