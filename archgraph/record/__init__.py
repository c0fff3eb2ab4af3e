"""Run folders: settings, metrics, checkpoints and trackers.

Input: a resolved experiment with its facts, the metrics of each round, and the states of server and
clients. Output: a run folder, from which a run can be resumed, and which reports read.

1. ``folder`` starts or resumes a run, locks the folder, appends lines and keeps the last
   checkpoints. Facts identify the experiment. Resuming with another experiment raises an error.
2. ``checkpoint`` writes a folder of tensor files, in which unchanged files are hard links.
   ``client`` is a client's private state. ``proof`` checks digests, and describes the environment
   of a run.
3. ``lines`` reads ``metrics.jsonl``. ``points`` converts it to single values and data frames,
   ``condense`` to fewer lines, and ``progress`` to tables. ``right`` encodes which test examples
   were classified correctly.
4. ``changes`` records how far parameters move in a round, ``traffic`` counts bytes, and
   ``trackers`` receive every line.

- The line of a round is written to disk before its checkpoint. A run that was killed at any point
  repeats the rounds after its last checkpoint, with bit-identical results.
- All files of a checkpoint are compared with their digests before a file is loaded. If a file is
  damaged, an error names the last intact checkpoint, from which the user can resume.
- Runs do not depend on trackers or on ``changes.jsonl``.

Submodules are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
