"""Submodels for a device: what training costs, what a cut loses, the best one for a budget.

In: a graph, budgets, and scores if there are any. Out: a ``Rewritten``, made by ``take`` and
``skip``.

1. ``importance`` scores positions by all that a cut of them removes, and blocks, with data, by
   their influence. Without scores the first positions stay, and the first blocks of a section.
2. ``amounts`` reads budgets: shares of the whole, or numbers with a unit.
3. ``fit`` says which sizes each axis may have and which share each of them is: of the positions, or
   of their scores (but for ``uniform`` submodels, where scores only choose positions).
4. ``search`` works on the cost polynomials of :mod:`archgraph.analysis`. A share falls from 1 to 0,
   and with it each axis, and each section whose blocks may go. The first submodel within the
   budgets is found by bisection; ``free`` then widens single axes while they hold.
5. ``fit`` makes the submodel; ``report`` tabulates what it costs beside the budgets.

- No submodel is made during the search, and none exceeds its budget: the polynomials at its sizes
  are its costs. Memory is searched by bounds, which are never below it.
- Each change on the way makes the submodel cheaper, which is why bisection is exact; two submodels
  on the way lie within one another.
"""
