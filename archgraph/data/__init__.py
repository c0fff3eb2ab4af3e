"""Data sets as values: read from local files, checked byte for byte, kept compact.

In: ``data`` of an experiment, or an argument of ``ag.run``. Out: a ``Dataset`` (``values``), which
normalises examples when they are read, and the positions of each client's training examples.

1. ``doors`` has a reader for each kind of data. Known sets (``load``): ``source`` reads their facts
   in ``sets/``, ``files`` finds and verifies them; ``images``, ``cifar``, ``words``, ``pairs``
   decode. The user's own: ``folder``, ``table``, ``text``, ``huggingface``, ``function``; ``given``
   for tensors, torch datasets and streams. ``tokens`` encodes texts by a tokenizer that was trained
   before.
2. ``rows`` treats the user's rows alike (``Records``): some are set aside for tests, classes are
   numbered, statistics computed, owners recorded. ``targets`` reads them as the task says.
3. ``partition`` shares training examples out (``schemes``) unless the data says who owns them;
   ``validation`` holds some out, and selects a round by them.
4. ``imagined`` stands in for known sets in ``archgraph check``; ``form`` reads rows on another
   machine so that classes and columns mean the same there.

- Nothing is downloaded. Data files run no code: CIFAR's pickles are read by an unpickler that makes
  arrays and plain containers alone. Only ``data: {python: …}`` calls a function.
- Equal rows give equal bits, whatever they are read from. Test rows do not depend on the seed, so
  that all seeds are tested on the same ones.
- What targets mean is not guessed: without a task they have to be whole numbers, the classes.
"""

from archgraph.data.files import ROOT_VARIABLE as ROOT_VARIABLE
from archgraph.data.given import dataset_of as dataset_of
from archgraph.data.load import load_dataset as load_dataset
from archgraph.data.source import DATASETS as DATASETS
from archgraph.data.values import Dataset as Dataset
from archgraph.data.values import Indices as Indices
from archgraph.data.values import Split as Split
