"""Tables, plots and pages of runs, made from their run folders alone.

In: run folders, or records of studies. Out: pages, figures for print, tables as text, Markdown,
LaTeX and CSV.

1. ``runs`` reads a folder as a ``Log``, whose figures are one data frame.
2. ``comparison`` groups runs that differ in the seed only. ``measures``: each column is a selection
   of the frame. ``settings``: what is not the default.
3. ``run_tables`` and ``group_tables`` make ``sheets``: text, and the same values unrounded.
   ``plots`` and ``paper`` draw for print, ``charts`` for pages; ``header`` and ``headline`` are in
   words.
4. ``run_page`` and ``runs_page`` put ``parts`` together; ``page`` writes them, once or after each
   round. ``run_family`` is the family that the viewer in a page shows.

- Test data choose no round: a row has the last test, and the test after the round that is best on
  validation examples, one round for all models.
- A page loads nothing and runs no script of its own; the viewer's runs in a frame.
- A run folder has sizes of clients' models, not positions: ``run_family`` repeats their rewrites.

Names are imported on first use: `matplotlib` takes long.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
