"""Tables, plots and pages of runs.

Input: run folders, or records of studies. Output: HTML pages, plots for print, and tables as text,
Markdown, LaTeX and CSV.

1. ``runs`` reads a folder as a ``Log``, which contains all metrics in one data frame.
2. ``comparison`` groups runs that differ only in the seed. ``measures`` computes the columns of the
   comparison from the data frame, and ``settings`` lists settings that differ from the defaults.
3. ``run_tables`` and ``group_tables`` build ``sheets``: tables with the text and the unrounded
   value of each cell. ``plots`` and ``paper`` draw for print, ``charts`` for pages; ``header`` and
   ``headline`` write text.
4. ``run_page`` and ``runs_page`` assemble ``parts``; ``page`` writes them, once or after each
   round. ``run_family`` rebuilds the family for the viewer inside a page.

- Test data never selects a round. Each row reports the last test and the test at the best round.
  The best round is selected on validation examples, once for all models.
- A page loads no other files. The only script is the viewer's, which runs in a sandboxed frame.
- A run folder stores the sizes of the clients' models, but not which positions of the global model
  they have. ``run_family`` repeats the rewrites to find the positions.

Submodules are imported on first use, because importing `matplotlib` is slow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
