"""Run folders: settings, measurements, checkpoints, metrics, trackers.

Input: a resolved experiment with its facts, the line of each round, the states of server and
clients. Output: a folder, from which the run is resumed, and which reports read.

1. ``folder`` begins or resumes a run, holds the folder's lock, appends lines and keeps the last
   checkpoints. Facts identify the experiment; resuming with another one raises an error.
2. ``checkpoint``: a folder of tensor files, complete or absent, where unchanged files are links.
   ``client``: a client's private state. ``proof``: digests, and the environment of a run.
3. ``lines`` reads ``metrics.jsonl``; ``points`` converts it to figures and data frames,
   ``condense`` to fewer lines, ``progress`` to tables; ``right`` packs which test examples were
   classified correctly.
4. ``changes``: updates of a round. ``traffic``: bytes. ``trackers`` get every line.

- The line of a round is on disk before its checkpoint, and a run resumes from a checkpoint. A run
  that dies at any point repeats the rounds after its last checkpoint, with bit-identical results.
- All files of a checkpoint are compared with their digests before any is loaded. Damage is an error
  that names the last intact checkpoint; the user decides whether to return to it.
- Runs do not depend on trackers or on ``changes.jsonl``.

Submodules are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
