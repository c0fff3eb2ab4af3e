"""Layouts of dimensions, and their unification, in ``layouts``.

Input: equations between dimensions of tensors, which :mod:`archgraph.ops` states per operator.
Output: a layout for each dimension, in axes to which :mod:`archgraph.analysis` gives names.

A layout is an axis (``Var`` while solving, then ``AxisRef``), a flattened product (``Prod``), a
concatenation (``Sum``), or ``Fixed``, a dimension without an axis. To unify two layouts is to bind
an axis to the other layout, or to refine both to common factors or terms; layouts without common
ones are pinned.

1. Pinning is always correct: the axes cannot be cut, and keep the reason of their first pin. So
   unification never fails.
2. Open sizes and sizes of 1 are fixed. A layout that equals a fixed one is pinned.
3. If an axis is pinned, the layout that it is bound to is pinned, too.
"""
