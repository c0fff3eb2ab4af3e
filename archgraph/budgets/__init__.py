"""Submodels for a device: training costs, losses of cuts, the best submodel for a budget.

Input: a graph, budgets, and scores if any. Output: a ``Rewritten``, built by ``take`` and ``skip``.

1. ``importance`` scores positions by everything that their cut removes, and blocks, with data, by
   their influence. Without scores the first positions stay, and the first blocks of a section.
2. ``amounts`` reads budgets: shares of the whole, or numbers with a unit.
3. ``fit`` determines the possible sizes of each axis and the share of each: of the positions, or of
   their scores (except for ``uniform`` submodels, where scores only choose positions).
4. ``search`` works on the cost polynomials of :mod:`archgraph.analysis`. A share falls from 1 to 0,
   and with it each axis, and each section whose blocks may be removed. The first submodel within
   the budgets is found by bisection; ``free`` then widens single axes while they hold.
5. ``fit`` builds the submodel; ``report`` tabulates its costs next to the budgets.

- No submodel is built during the search, and none exceeds its budget: the polynomials at its sizes
  are its costs. Memory is searched by bounds, which are never below it.
- Each change on the path makes the submodel cheaper, which is why bisection is exact; submodels on
  the path are nested.
"""
