"""What a dimension can be: layouts, and their unification, in ``layouts``.

In: equations between dimensions of tensors, which :mod:`archgraph.ops` states operator by operator.
Out: a layout for each dimension, in axes to which :mod:`archgraph.analysis` gives names.

A layout is an axis (``Var`` while solving, then ``AxisRef``), a flattened product (``Prod``), a
concatenation (``Sum``), or ``Fixed``, which is no axis. To unify two layouts is to bind an axis to
the other one, or to refine both to common factors or terms; what has none is pinned.

1. To pin is always right: the axes cannot be cut, and the reason of the first pin stays with them.
   So unification never fails.
2. Open sizes and sizes of one are fixed. What equals something fixed is pinned.
3. An axis that is bound hands its pin on to all that it stands for.
"""
