"""Run folders: what was asked, measured and kept; checkpoints, metrics, trackers.

In: a resolved experiment with its facts, the line of each round, the states of server and clients.
Out: a folder, from which the run is resumed, and which reports read.

1. ``folder`` begins or resumes a run, holds the folder's lock, appends lines and keeps the last
   checkpoints. Facts say which experiment it is; a resume refuses another one.
2. ``checkpoint``: a folder of tensor files, complete or absent, where what did not change is a
   link. ``client``: what a client keeps. ``proof``: digests, and where a run was computed.
3. ``lines`` reads ``metrics.jsonl``; ``points`` makes figures and data frames of it, ``condense``
   fewer lines, ``progress`` tables; ``right`` packs which test examples were answered rightly.
4. ``changes``: what a round changed. ``traffic``: bytes. ``trackers`` get every line.

- The line of a round is on disk before its checkpoint, and a run goes on from a checkpoint: one
  that dies anywhere repeats the rounds since, to the same bits.
- All files of a checkpoint are compared with their digests before any is loaded. Damage is an error
  that names the last intact checkpoint; to go back to it is the user's choice.
- Nothing of a run depends on trackers or on ``changes.jsonl``.

Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
