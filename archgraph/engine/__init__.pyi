from .attack import Attack as Attack
from .attack import malicious as malicious
from .data import (
    DATASETS as DATASETS,
)
from .data import (
    Dataset as Dataset,
)
from .data import (
    Split as Split,
)
from .data import (
    dataset_of as dataset_of,
)
from .data import (
    load_dataset as load_dataset,
)
from .evaluate import Evaluator as Evaluator
from .experiment import Experiment as Experiment
from .local import Run as Run
from .local import execute as execute
from .local import run as run
from .partition import class_histogram as class_histogram
from .partition import local_test_indices as local_test_indices
from .recalibration import recalibrated as recalibrated
from .record import read_metrics as read_metrics
from .testing import answers as answers
from .trackers import Tracker as Tracker
from .world import prepare as prepare
