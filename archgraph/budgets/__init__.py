"""Find the largest submodel within a budget.

The input is a graph, budgets, and optionally scores. The output is a ``Rewritten`` that ``take``
and ``skip`` build.

1. ``importance`` scores positions (indices along an axis, such as channels) by the weights that
   they affect and, if there is data, blocks by how much they change their input. Without scores,
   the first positions of an axis and the first blocks of a section are kept.
2. ``amounts`` reads budgets: fractions of the full cost, or numbers with a unit.
3. ``fit`` determines the possible sizes of each axis. Each size corresponds to a fraction of the
   number of positions, or of the sum of their scores. (For ``uniform`` submodels, scores only
   choose the positions.)
4. ``search`` lets one fraction decrease from 1 to 0, and reduces each axis and the depth of each
   section accordingly. It finds the first submodel within the budgets by bisection. For the shape
   ``free``, it then widens single axes as long as the submodel stays within the budgets.
5. ``fit`` builds the submodel, and ``report`` tabulates its costs next to the budgets.

- No submodel is built during the search, because cost polynomials (:mod:`archgraph.analysis`) give
  the exact costs. For memory, the search uses upper bounds. So no submodel exceeds a budget.
- Each step in which the fraction decreases makes the submodel cheaper, so bisection finds the first
  step within the budgets. Each submodel contains the smaller ones.
"""
