"""Layouts of dimensions, and their unification, in ``layouts``.

Input: equations between dimensions of tensors, which :mod:`archgraph.ops` adds for each operator.
Output: a layout for each dimension. :mod:`archgraph.analysis` names the axes of the layouts.

A layout is an axis (``Var`` while solving, then ``AxisRef``), a flattened product (``Prod``), a
concatenation (``Sum``), or a dimension that cannot be cut (``Fixed``). Unifying two layouts binds
an axis to the other layout, or refines both layouts to common factors or terms. If there are no
common factors or terms, both layouts are pinned.

1. Pinning is always correct: a pinned axis cannot be cut. Unification therefore never fails. A
   pinned axis keeps the reason of its first pin.
2. Open sizes and sizes of 1 are fixed. A layout that must equal a fixed layout is pinned.
3. If an axis is pinned, the layout to which it is bound is pinned, too.
"""
