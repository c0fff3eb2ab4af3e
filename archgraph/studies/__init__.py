"""Tables of experiments: cells by seeds, their figures and differences.

Input: a study file, and records of earlier runs. Output: a ``StudyResult``, and its tables.

1. ``spec``: an experiment, its changes by row, column and size, the figures and comparisons.
   Each cell is an ordinary experiment, or a trivial model that is fitted to its examples.
2. ``cell``: the address of a run: a digest of its settings, the seed, ``BITS`` and the versions of
   torch and numpy. Equal cells are one run, in any study.
3. ``study`` runs cells with neither a record nor a finished folder; interrupted runs are resumed.
   ``trivial`` and ``trivial_models`` are rows without a network; ``studies`` takes several files.
4. ``records``: each finished run leaves a line of text, with its first round, by which it can be
   checked, and its ``origin``: machine and program.
5. ``study`` reads figures by seed (:mod:`archgraph.reports.comparison`). ``outcomes``: intervals, p
   and the detectable difference. ``study_tables`` writes text, LaTeX and CSV.

- Tables are computed only from records: run folders may be deleted, and a measure that is added
  later needs no new runs.
- Comparisons are in the file before the runs, and always under the same seeds. p is corrected
  over all differences by one figure; one that is not measured yet counts as 1, so that no p depends
  on which runs end first. Verdicts are left to the reader.
- A trivial model leaves a record like a run, and never sees test labels.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
