"""Tables, plots and pages of runs, made from their run folders alone.

In: run folders, or records of studies. Out: pages, figures for print, tables as text, Markdown,
LaTeX and CSV.

1. ``runs`` reads a folder into a ``Log``, which has all metrics in one data frame.
2. ``comparison`` groups runs that differ only in the seed. ``measures`` computes the columns of its
   table from the data frame, ``settings`` lists the settings that differ from the defaults.
3. ``run_tables`` and ``group_tables`` build ``sheets``: tables with the text and the unrounded
   value of each cell. ``plots`` and ``paper`` draw for print, ``charts`` for pages; ``header`` and
   ``headline`` write text.
4. ``run_page`` and ``runs_page`` assemble ``parts``; ``page`` writes them, once or after each
   round. ``run_family`` rebuilds the family for the viewer inside a page.

- Test data never selects a round. Each row reports the last test and the test at the best round.
  The best round is selected on validation examples, once for all models.
- A page loads nothing and runs no script of its own; the viewer's script runs in a frame.
- A run folder stores sizes of the clients' models, not positions: ``run_family`` repeats the
  rewrites.

Submodules are imported on first use, because importing `matplotlib` is slow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
