"""The operator table: one row per operator; nothing else asks what kind of layer something is.

What goes in: a node, that is an operator and its arguments by the names of ``schema``.

1. Look up (``table``): each family of operators has a file with its rows. A row is an ``Operator``
   (``operator``): rules as functions, and facts as fields. An operator without a row is unknown:
   nothing that it touches is cut.
2. Infer types (``infer``): in closed form where the row has one (``types``), else on tensors that
   have no data (``kernels``), with sizes as symbols where several are open (``symbols``).
3. State equations of axes (``equations``), and where results are zero on masked positions
   (``zeros``); :mod:`archgraph.analysis` solves them for the whole graph.
4. Answer what the others ask: cost of forward and ``backward``, first weights (``starts``), the
   layer of ``torch.nn`` (``layers``), what repeated positions do (``Growth``).
5. Name what operators are together (``idioms``: patterns of operators, in the language of
   ``patterns``, with names of the field), for pictures, pages and explanations.

What comes out: types, layouts, amounts, calls; never a graph, which rooms above make of them.

What holds:

- What an operator means stands in one file; families share helpers of ``pointwise`` and
  ``weighted``.
- A rule that does not understand its arguments pins axes instead: to pin is always right.
- A graph that passed ``check`` has nodes of known schemas and of the types that ``infer`` gives.
"""
