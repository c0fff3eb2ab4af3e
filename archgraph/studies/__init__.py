"""Tables of experiments: cells by seeds, their figures and differences.

In: a study file, and records of earlier runs. Out: a ``StudyResult``, and its tables.

1. ``spec``: an experiment, what rows, columns and sizes change in it, what is read and compared.
   Each cell is an ordinary experiment, or a trivial model that is fitted to its examples.
2. ``cell``: the address of a run: a digest of all that decides its figures, and the seed. Equal
   cells are one run, whichever studies they belong to.
3. ``study`` runs what has neither a record nor a finished folder; runs that were cut off go on.
   ``trivial`` and ``trivial_models`` are rows without a network; ``studies`` takes several files.
4. ``records``: each finished run leaves a line of text.
5. ``study`` reads figures by seed (:mod:`archgraph.reports.comparison`). ``outcomes``: intervals, p
   and what could have been detected. ``study_tables`` writes text, LaTeX and CSV.

- Tables are computed from records alone: run folders may be deleted, and a measure that is thought
  of later needs no new runs.
- What is compared is in the file before the runs, and always under the same seeds. p is corrected
  over all differences by one figure; one that is not measured yet counts as 1, so that no p depends
  on which runs end first. Verdicts are left to the reader.
- A trivial model leaves a record as a run does, and never sees labels of tests.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
