"""Data sets as values: read from local files, checked byte for byte, kept compact.

Nothing is ever downloaded. `digits` comes with archgraph and works on a bare machine; the other
sets are read from their original files, plain, `.gz` or `.xz`, below one root folder. Each set is
one file in `sets/`; each format is one module. The user's own data comes as a folder, a table, a
text, a Hugging Face data set, a function or an argument: each is a row in `doors.py`.
"""

from archgraph.data.files import ROOT_VARIABLE as ROOT_VARIABLE
from archgraph.data.given import dataset_of as dataset_of
from archgraph.data.load import load_dataset as load_dataset
from archgraph.data.source import DATASETS as DATASETS
from archgraph.data.values import Dataset as Dataset
from archgraph.data.values import Indices as Indices
from archgraph.data.values import Split as Split
