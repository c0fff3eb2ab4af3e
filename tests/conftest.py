"""What every test shares: offline, single-threaded workers, real data where there is some."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Importing it registers a device, beside which no worker is forked: for processes of its own alone.
collect_ignore = ["engine/with_device.py"]

# Before torch or any Hugging Face library is imported.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    FLWR_TELEMETRY_ENABLED="0",
    MPLBACKEND="Agg",
)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Libraries write to the temporary folder (torch_geometric: templates); give each session its own,
# and leave pytest's `tmp_path` where it can be looked at after a failure.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_scratch = tempfile.mkdtemp(prefix="archgraph-tests-")
os.environ["TMPDIR"] = tempfile.tempdir = _scratch
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)

import torch  # noqa: E402 - after the environment above

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# torchvision's wheel is a CUDA build: beside a CPU torch its extension does not load, and the
# package then fails on operators without a declaration. With their schemas declared its models work
# (its nms and its image decoding do not). The Library must outlive the session.
_torchvision: torch.library.Library | None = None
if importlib.util.find_spec("torchvision") is not None and torch.version.cuda is None:
    _torchvision = torch.library.Library("torchvision", "DEF")
    _torchvision.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _torchvision.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

# `ci` gives the same examples every time, and `full` more of them (`make full`);
# `HYPOTHESIS_PROFILE=explore` looks for new ones.
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, print_blob=True
)
hypothesis.settings.register_profile(
    "full", derandomize=True, deadline=None, max_examples=150, print_blob=True
)
hypothesis.settings.register_profile("quick", derandomize=True, deadline=None, max_examples=3)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `full` what a test with many cases leaves to `make full`.

    `sample(n)` on a test keeps every n-th of its cases.
    """
    cases: Counter[str] = Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % sample.args[0]:
                item.add_marker("full")
            cases[test] += 1


@pytest.fixture
def consent() -> Iterator[None]:
    """Files of this test may name Python code."""
    from archgraph.language import allowed

    with allowed():
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder with the real data sets: `ARCHGRAPH_DATA`, else `../shared/data` beside the checkout.

    Skips where neither exists. The variable is authoritative: a wrong value fails.
    """
    checkout = Path(__file__).resolve().parents[1]
    named = os.environ.get("ARCHGRAPH_DATA")
    root = Path(named) if named else checkout.parent / "shared" / "data"
    if named and not root.is_dir():
        pytest.fail(f"ARCHGRAPH_DATA names no folder: {root}")
    if not root.is_dir():
        pytest.skip("no real data: set ARCHGRAPH_DATA to a folder that holds fashion-mnist/ etc.")
    return root


def pytest_runtest_setup() -> None:
    """Forget how wide a terminal another test or a package has said that there is."""
    os.environ.pop("COLUMNS", None)


def pytest_runtest_call() -> None:
    """Each test begins with the same random numbers, whatever its fixtures drew."""
    torch.manual_seed(0)
