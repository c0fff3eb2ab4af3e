"""Studies: tables of experiments, with one run per cell and seed.

Input: a study file, and records of earlier runs. Output: a ``StudyResult``, and its tables.

1. ``spec`` reads the file: an experiment, its changes for each row, column and size, the metrics
   and the comparisons. Each cell is an ordinary experiment, or a trivial model that is fitted to
   the examples of an experiment.
2. ``cell`` computes the address of a run: a digest of its settings, the seed, ``BITS`` and the
   versions of torch and numpy. Cells with the same address share one run, also across studies.
3. ``study`` runs the cells that have neither a record nor a finished run folder, and resumes
   interrupted runs. ``trivial`` and ``trivial_models`` implement rows without a network.
   ``studies`` runs several files.
4. ``records`` stores the results of each finished run as a line of text. It contains the first
   round, with which the run can be checked, and the ``origin``: machine and program.
5. ``study`` computes the metrics of each seed (:mod:`archgraph.reports.comparison`), and
   ``outcomes`` computes intervals, p values and detectable differences. ``study_tables`` writes
   text, LaTeX and CSV.

- Tables are computed only from records. Run folders may be deleted, and a metric that is added
  later needs no new runs.
- Comparisons are written in the file before the runs, and use the same seeds for both sides. p
  values are corrected over all differences of a metric. A missing p value counts as 1, so that the
  corrected values do not depend on which runs end first.
- A trivial model has a record like a run, and never sees test labels.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
