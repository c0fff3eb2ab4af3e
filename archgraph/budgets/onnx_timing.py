"""Timing in onnxruntime: whole networks there, their operators in PyTorch."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from archgraph.budgets.timing import ROUNDS, WARM_UP, Timing, TorchTimer
from archgraph.graph.ir import ArchGraph
from archgraph.module.initial import initial_state
from archgraph.onnx import require_packages
from archgraph.onnx.export import export_onnx
from archgraph.onnx.session import open_session
from archgraph.rewrites.laws import random_inputs

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True)
class OnnxTimer:
    """Times networks in onnxruntime, optimised, on the processor.

    onnxruntime merges operators and changes layouts between them, so that the time of one of them
    alone says little. Operators are therefore timed in PyTorch, which tells what grows with what; a
    profile stretches them to the times of the networks here.

    Attributes:
        batch: Examples per call.
        threads: Threads of the processor.
        seconds: How long to go on, half of it here; exports come on top.
    """

    batch: int = 1
    threads: int = 1
    seconds: float = 60.0

    def __post_init__(self) -> None:
        require_packages("onnx", "onnxscript", "onnxruntime")

    def __call__(self, graphs: Sequence[ArchGraph]) -> list[Timing]:
        """Time some networks in turns.

        Raises:
            GraphError: If one cannot be exported or run.
        """
        operators = TorchTimer(self.batch, self.threads, seconds=self.seconds / 2)(graphs)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            sessions = [self._session(graph, path) for graph in graphs]
            totals = self._totals(sessions)
        return [Timing(t.operators, total) for t, total in zip(operators, totals, strict=True)]

    def _session(
        self, graph: ArchGraph, path: Path
    ) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """Return the session of a network, and its inputs."""
        export_onnx(graph, initial_state(graph), path, optimize=True, verify=False)
        session = open_session(path, graph.name, threads=self.threads)
        inputs = pytree.tree_leaves(random_inputs(graph, self.batch))
        tensors = (value for value in inputs if isinstance(value, torch.Tensor))
        names = (item.name for item in session.get_inputs())
        return session, {n: t.numpy() for n, t in zip(names, tensors, strict=True)}

    def _totals(
        self, sessions: Sequence[tuple[onnxruntime.InferenceSession, dict[str, Any]]]
    ) -> list[float]:
        """Return the medians over rounds."""
        # A single thread of onnxruntime is the one that calls it.
        now = time.thread_time if self.threads == 1 else time.perf_counter
        seconds: list[list[float]] = [[] for _ in sessions]
        end = time.monotonic() + self.seconds / 2
        while len(seconds[-1]) < WARM_UP + ROUNDS or time.monotonic() < end:
            for (session, inputs), times in zip(sessions, seconds, strict=True):
                session.run(None, inputs)  # the networks between two rounds fill the caches
                begin = now()
                session.run(None, inputs)
                times.append(now() - begin)
        return [statistics.median(times[WARM_UP:]) for times in seconds]
