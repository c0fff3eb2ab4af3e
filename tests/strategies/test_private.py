"""`private`: what stays with clients, in every strategy that averages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archgraph as ag
from archgraph.engine.clients import read_clients
from archgraph.engine.local import Run
from archgraph.federation import (
    NormPolicy,
    Outcome,
    ServerState,
    classifier,
    configure,
    find_strategy,
    named_entries,
    private_models,
    private_task,
)
from archgraph.federation.options import Weighted
from archgraph.language.help import strategy_names
from tests.engine.families import STRATEGIES, experiment_of
from tests.nets import random_net

HEAD = "head.*"


def runs_of(name: str, folder: Path, private: str, **more: Any) -> Run:
    """A small run of a strategy whose ``private`` is set."""
    file = experiment_of(name, folder)
    text = file.read_text()
    options = STRATEGIES[name][1].strip("{}")
    old = f"{{{name}: {STRATEGIES[name][1]}}}"
    assert old in text
    new = f"{{{name}: {{{', '.join(filter(None, (options, private)))}}}}}"
    file.write_text(text.replace(old, new))
    return ag.run(file, progress=False, **more)


def test_print():
    print([n for n in strategy_names() if issubclass(find_strategy(n), Weighted)])
