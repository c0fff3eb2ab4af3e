"""Rewrites: functions from a graph to another graph and the linear map between their states.

A rewrite takes a graph and options that name axes, blocks, sections, layers or parameters. It
returns a ``Rewritten``: the new graph, and the transfer, which maps states of the old graph to
states of the new one. (``fold`` also takes and returns a state, ``split`` returns several graphs.)

1. A row of the table in ``registry`` contains the function of a rewrite, its name (a keyword, a key
   in files and a command-line option), and the type of its options (``options``).
2. The function gets the axes and blocks of the graph from the analysis, and builds the new graph.

   - Width (``take``, ``narrow``, ``widen``): positions (indices) of axes are kept or copied.
     ``cut`` selects the positions. ``compensation`` divides weights, so that a sum does not count a
     copied position twice. ``moves`` finds these weights if other operators move the positions
     before the sum.
   - Depth (``skip``, ``shorten``, ``graft``, ``deepen``): blocks are removed or copied. ``splice``
     inserts a copy, ``lengthen`` names it, and ``sections`` updates the lists of blocks.
   - Additions (``lora``, ``adapters``, ``step_sizes``, ``scaler``, ``exits``, ``ends_after``): new
     operators are added next to a layer, on residual branches (``branches``), or as classifiers
     (``heads``). ``fold`` merges low-rank layers and step sizes into weights.
   - Parts (``split``, ``train_only``): operators, parameters and buffers are unchanged.
3. ``insert`` initialises new parameters and buffers, and removes unused ones of modules that no
   longer exist. Then the graph is checked.
4. With ``verify``, ``laws`` runs both networks on random weights in float64.

Invariants: each tensor of the new state comes from one tensor of the old state or from an
    initialiser. Parameters that are kept have their old names. Rewrites use the analysis of the old
    graph, and do not depend on the classes of layers. The checks of ``laws`` do not use the
    analysis. In the old network, they set the removed positions to zero and disable the removed
    blocks (``silenced``). Then they compare its results with those of the new network.
"""
