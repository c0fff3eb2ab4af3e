"""From a graph to another graph and the linear map between their states, one file each.

In: a graph, and what to change: by axis, block, section, layer or leaf. Out: ``Rewritten``, the new
graph and the transfer from states of the old one to states of the new one (``fold`` takes and gives
a state, ``split`` gives several graphs).

1. A row of ``registry`` says which function a keyword, a key of a file or an option calls, and how
   its value is read (``options``).
2. The function asks the analysis what the graph consists of, and makes the new graph:
   width (``take``, ``narrow``, ``widen``): positions of axes stay or are copied. ``cut`` selects;
   ``compensation`` divides what copies would count twice, ``moves`` where they are only moved.
   depth (``skip``, ``shorten``, ``graft``, ``deepen``): blocks go or are copied. ``splice`` plans a
   copy and inserts it, ``lengthen`` names it, ``sections`` keeps the sections.
   additions (``lora``, ``adapters``, ``step_sizes``, ``scaler``, ``exits``, ``ends_after``):
   operators beside a layer, on ``branches``, or ``heads``; ``fold`` puts low-rank layers
   and step sizes into weights.
   parts (``split``, ``train_only``): operators and leaves as they are.
3. ``insert`` starts new leaves and removes those that lost their module; the graph is checked.
4. With ``verify``, ``laws`` runs both networks on random weights in float64.

Between them holds: every entry of the new state has one source, an entry of the old state or an
initialiser, and a leaf that stays has its old name. The analysis of the graph before decides,
and no rewrite asks for the kind of a layer. The law is stated without it: positions that are left
out are zeros, blocks that are left out are silent (``silenced``), growth changes no result.
"""
