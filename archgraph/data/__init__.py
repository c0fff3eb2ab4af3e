"""Data sets as values: read from local files, checked byte for byte, stored compactly.

Input: ``data`` of an experiment, or an argument of ``ag.run``. Output: a ``Dataset`` (``values``),
    which normalises examples when they are read, and the indices of each client's training
    examples.

1. ``doors`` has a reader for each kind of data. Known sets (``load``): ``source`` reads their facts
   in ``sets/``, ``files`` finds and verifies them; ``images``, ``cifar``, ``words``, ``pairs``
   decode. User data: ``folder``, ``table``, ``text``, ``huggingface``, ``function``; ``given``
   for tensors, torch datasets and streams. ``tokens`` encodes texts with a pretrained tokenizer.
2. ``rows`` treats all user rows in the same way (``Records``): it sets some aside for tests,
   numbers classes, computes statistics and records owners. ``targets`` converts targets for the
   task.
3. ``partition`` divides training examples among clients (``schemes``), unless the data assigns
   them; ``validation`` holds some out and selects a round by them.
4. ``imagined`` replaces known sets in ``archgraph check``; ``form`` reads rows on another machine
   so that classes and columns mean the same there.

- Nothing is downloaded. Data files cannot run code: CIFAR's pickles are read by an unpickler that
  only builds arrays and plain containers. Only ``data: {python: …}`` calls a function.
- Equal rows give equal bits, whatever their source. Test rows do not depend on the seed, so all
  seeds are tested on the same rows.
- The meaning of targets is not guessed: without a task they must be integers, the classes.
"""

from archgraph.data.files import ROOT_VARIABLE as ROOT_VARIABLE
from archgraph.data.given import dataset_of as dataset_of
from archgraph.data.load import load_dataset as load_dataset
from archgraph.data.source import DATASETS as DATASETS
from archgraph.data.values import Dataset as Dataset
from archgraph.data.values import Indices as Indices
from archgraph.data.values import Split as Split
