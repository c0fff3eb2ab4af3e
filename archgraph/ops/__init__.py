"""The operator table: one row for each operator. Other packages do not test for types of layers.

The input is a node: an operator and its arguments, with the names of ``schema``.

1. Look up the row in the table (``table``). A row is an ``Operator`` (``operator``): its fields are
   functions and constants that describe the operator. Each family of operators has a file with its
   rows. An operator without a row is unknown, and the axes of its operands are never cut.
2. Infer types (``infer``). Some rows have a formula (``types``). Otherwise, run the operator on
   tensors without data (``kernels``), or with symbolic sizes if sizes other than the batch are
   open, i.e. dynamic (``symbols``).
3. Compute the equations between axes (``equations``), and the positions at which results are zero
   if an axis is masked (``zeros``). :mod:`archgraph.analysis` solves the equations of a graph.
4. Return other properties of operators: the cost of forward and ``backward``, initial weights
   (``starts``), the ``torch.nn`` layer (``layers``), and the effect of repeated channels
   (``Growth``).
5. Find groups of operators with a common name, for figures and explanations. ``idioms`` describes
   them by patterns (``patterns``).

The functions return types, layouts, costs and calls. They do not build graphs.

Invariants:

- An operator is described in one file. Families share helper functions of ``pointwise`` and
  ``weighted``.
- If a rule cannot interpret its arguments, it pins the axes (forbids cutting them), which is always
  correct.
- If a graph passes ``check``, its nodes have known schemas and the types that ``infer`` computes.
"""
