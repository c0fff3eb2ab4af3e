"""Rewrites: functions from a graph to another graph and the linear map between their states.

A rewrite takes a graph and the change, by axis, block, section, layer or leaf. It returns
``Rewritten``: the new graph, and the transfer from states of the old graph to those of the new one.
(``fold`` also takes and returns a state, ``split`` returns several graphs.)

1. A row of ``registry`` maps a keyword, a key of a file or an option to a function, and gives the
   type of its value (``options``).
2. The function gets the axes and blocks of the graph from the analysis, and builds the new graph:
   width (``take``, ``narrow``, ``widen``): positions of axes are kept or copied. ``cut`` selects
   them; ``compensation`` divides the values that copies would count twice, ``moves`` does this
   through operators that only move positions. depth (``skip``, ``shorten``, ``graft``, ``deepen``):
   blocks are removed or copied. ``splice`` plans and inserts a copy, ``lengthen`` names it,
   ``sections`` keeps the sections. additions (``lora``, ``adapters``, ``step_sizes``, ``scaler``,
   ``exits``, ``ends_after``): operators next to a layer, on ``branches``, or ``heads``; ``fold``
   merges low-rank layers and step sizes into weights. parts (``split``, ``train_only``): operators,
   parameters and buffers are unchanged.
3. ``insert`` initialises new leaves and removes those whose module is gone; the graph is checked.
4. With ``verify``, ``laws`` runs both networks on random weights in float64.

Invariants: every entry of the new state comes from one entry of the old state or from an
    initialiser, and kept leaves have their old names. Rewrites use the analysis of the old graph,
    and never the kind of a layer. The laws do not use the analysis: they set removed positions to
    zero, remove the effect of removed blocks (``silenced``), and check that growth changes no
    result.
"""
