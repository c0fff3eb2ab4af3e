"""Read data sets from local files or from Python, and divide them among clients.

Input: ``data`` of an experiment, or an argument of ``ag.run``. Output: a ``Dataset`` (module
    ``values``), which normalises examples when they are read, and the indices of each client's
    training examples.

1. ``doors`` calls the reader for each kind of ``data``. The data sets that ``load`` reads by name
   are described by files in ``sets/``: ``source`` reads these descriptions, ``files`` locates and
   verifies the data files, and ``images``, ``cifar``, ``words`` and ``pairs`` decode them. User
   data is read by ``folder``, ``table``, ``text``, ``huggingface`` and ``function``, and by
   ``given`` for tensors, torch datasets and streams. ``tokens`` encodes texts with a pretrained
   tokenizer.
2. ``rows`` processes the rows of user data (``Records``). It sets rows aside for tests, numbers
   classes, computes statistics and records the client of each row. ``targets`` converts targets for
   the task.
3. If the data does not assign training examples to clients, ``partition`` divides the examples by a
   scheme of ``schemes``. ``validation`` holds examples out of training, and selects the best round
   with them.
4. For ``archgraph check``, ``imagined`` returns zeros instead of the data sets that ``load`` reads.
   ``form`` reads rows on another machine with the same class names, categories and scales.

- Nothing is downloaded. Data files cannot run code: CIFAR's pickles are read by an unpickler that
  only builds arrays and standard containers. Only ``data: {python: …}`` calls a function.
- Equal rows from different sources give bit-identical data sets. Test rows do not depend on the
  seed, so runs with different seeds use the same test rows.
- The meaning of targets is not guessed. If no task is set, targets must be integer classes.
"""

from archgraph.data.files import ROOT_VARIABLE as ROOT_VARIABLE
from archgraph.data.given import dataset_of as dataset_of
from archgraph.data.load import load_dataset as load_dataset
from archgraph.data.source import DATASETS as DATASETS
from archgraph.data.values import Dataset as Dataset
from archgraph.data.values import Indices as Indices
from archgraph.data.values import Split as Split
