"""Profiling: the coefficients of a device, from submodels that are timed on it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, get_args

from archgraph.analysis.axes import axes
from archgraph.analysis.cost import cost
from archgraph.analysis.cost_polynomial import operator_sizes
from archgraph.budgets.latency import (
    Coefficients,
    DeviceProfile,
    ModelError,
    Runtime,
    signatures,
)
from archgraph.errors import RunError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.machine import processor
from archgraph.rewrites.skip import skip
from archgraph.rewrites.take import take

if TYPE_CHECKING:
    from archgraph.budgets.timing import Timer, Timing

# Below it an operator's time is mostly that of the clock.
SHORTEST = 2e-6
# Of each network, every fourth submodel is held out: the fit does not see it.
HELD_OUT = 4
# How far a network may differ from the sum of its operators before it is believed.
TRUST = 0.02


def profile(
    graphs: GraphLike | Sequence[GraphLike],
    *,
    batch: int = 1,
    threads: int = 1,
    training: bool = False,
    device: str = "cpu",
    runtime: Runtime = "torch",
    seconds: float = 60,
    submodels: int = 12,
    seed: int = 0,
    timer: Timer | None = None,
) -> DeviceProfile:
    """Time the operators of some models on this machine.

    1. Random submodels of each model are drawn, with axes of a tenth of their size and more, some
       with blocks left out. They run in turns, operator by operator and as a whole.
    2. The time of an operator is a sum over what it reads, writes and computes
       (:class:`archgraph.budgets.latency.Coefficients`): least squares without negative
       coefficients, per signature.
    3. A network takes longer than the sum of its operators: calls are stretched by one factor,
       work by another one.
    4. The error is that on every fourth submodel, with a fit to the others. Then all are fitted.

    Args:
        graphs: A model, or several.
        batch: Examples per call.
        threads: Threads of the processor.
        training: Time a training step, forward and backward, instead of a forward pass.
        device: Where the models run: ``cpu``, ``cuda``.
        runtime: What runs them: ``torch``, or ``onnxruntime`` on the processor.
        seconds: How long to go on, all models together.
        submodels: How many are drawn of each model, 4 or more.
        seed: Of the draws.
        timer: What times the submodels. Default: the runtime's.

    Raises:
        RunError: If the device or the runtime is not there.
        GraphError: If a model cannot run on it.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        ... )
        >>> graph = trace(net, torch.zeros(1, 8)).graph
        >>> laptop = profile(graph, seconds=0.1)
        >>> laptop.milliseconds(take(graph, 0.5)) > 0
        True
    """
    listed = [graph_of(g) for g in (graphs if isinstance(graphs, Sequence) else [graphs])]
    if not listed:
        raise RunError("nothing to profile", expected="one model or more")
    for name, number, least in (
        ("batch", batch, 1),
        ("threads", threads, 1),
        ("submodels", submodels, 4),
    ):
        if number < least:
            raise RunError("is too small", where=name, found=number, expected=f"{least} or more")
    if timer is None:
        timer = _timer(runtime, batch, threads, training, device, seconds)
    drawn = [[graph, *_submodels(graph, submodels, Random(seed))] for graph in listed]
    timings = iter(timer([graph for of_model in drawn for graph in of_model]))
    rows = [
        [TimedNetwork.of(g, next(timings), batch, training) for g in of_model] for of_model in drawn
    ]
    return DeviceProfile(
        _fitted(row for of_model in rows for row in of_model),
        _held_out(rows),
        _device_name(device),
        processor(),
        runtime,
        threads,
        batch,
        training,
        _versions(runtime),
    )


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """One operator of a submodel.

    Attributes:
        names: Under which it is fitted: its signature, and the operator alone.
        amounts: A call, and bytes and multiply–accumulates as in :class:`Coefficients`.
        seconds: What it took.
    """

    names: tuple[str, str]
    amounts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class TimedNetwork:
    """One submodel that was timed."""

    model: str
    operators: tuple[TimedOperator, ...]
    total: float

    @staticmethod
    def of(graph: ArchGraph, timing: Timing, batch: int, training: bool) -> TimedNetwork:
        """Return a submodel with its times."""
        full = {axis.name: axis.size for axis in axes(graph).free}
        names, operators = signatures(graph, training), []
        for sizes in operator_sizes(graph, batch, training):
            amounts = (sizes.read, sizes.weights, sizes.written, sizes.macs)
            operators.append(
                TimedOperator(
                    (names[sizes.node.name], sizes.node.op),
                    (1, *(amount.value(full) for amount in amounts)),
                    timing.operators.get(sizes.node.name, 0.0),
                )
            )
        return TimedNetwork(graph.name, tuple(operators), timing.total)


def _submodels(graph: ArchGraph, count: int, random: Random) -> Iterator[ArchGraph]:
    """Yield random submodels: a share for all axes, around which each of them has its own."""
    costs = cost(graph).polynomial
    removable = [name for name in costs.blocks if name not in costs.equal]
    for _ in range(count):
        share = random.uniform(0.25, 1)
        chosen = {
            name: range(max(1, round(size * min(1.0, max(0.1, share + random.uniform(-0.2, 0.2))))))
            for name, size in costs.axes.items()
        }
        rate = random.choice((0.0, 0.0, 0.3))
        skipped = [name for name in removable if random.random() < rate]
        gone = {name for block in skipped for name in costs.blocks[block]}
        cut = {k: v for k, v in chosen.items() if len(v) < costs.axes[k] and k not in gone}
        narrow = take(graph, positions=cut)
        yield (narrow >> skip(narrow.graph, skipped)).graph if skipped else narrow.graph


def _held_out(rows: Sequence[Sequence[TimedNetwork]]) -> tuple[ModelError, ...]:
    """Return the errors on every fourth submodel, with a fit to the others."""
    seen = [row for of_model in rows for n, row in enumerate(of_model) if (n + 1) % HELD_OUT]
    coefficients = _fitted(seen)
    errors = []
    for of_model in rows:
        relative = [
            abs(_predicted(row, coefficients) / row.total - 1)
            for row in of_model[HELD_OUT - 1 :: HELD_OUT]
        ]
        mean = sum(relative) / len(relative)
        first = of_model[0]
        errors.append(
            ModelError(first.model, 1e3 * first.total, len(relative), mean, max(relative))
        )
    return tuple(errors)


def _predicted(row: TimedNetwork, coefficients: Mapping[str, Coefficients]) -> float:
    """Return the seconds of a submodel."""
    return sum(map(sum, _shares(row, coefficients)))


def _shares(
    row: TimedNetwork, coefficients: Mapping[str, Coefficients]
) -> Iterator[tuple[float, float]]:
    """Yield what calls take, and what work takes, of each operator in seconds."""
    for operator in row.operators:
        name, alone = operator.names
        known = dataclasses.astuple(coefficients.get(name) or coefficients[alone])
        products = [c * amount / 1e9 for c, amount in zip(known, operator.amounts, strict=True)]
        yield products[0], sum(products[1:])


def _fitted(rows: Iterable[TimedNetwork]) -> dict[str, Coefficients]:
    """Return the coefficients by signature and operator, stretched to the times of networks."""
    import numpy as np
    from scipy.optimize import nnls

    listed = list(rows)
    by_name: dict[str, list[TimedOperator]] = defaultdict(list)
    for operator in (o for row in listed for o in row.operators):
        for name in dict.fromkeys(operator.names):
            by_name[name].append(operator)
    coefficients = {name: _least_squares(timed) for name, timed in sorted(by_name.items())}
    totals = np.array([row.total for row in listed])
    shares = np.array([np.sum([*_shares(row, coefficients)], axis=0) for row in listed])
    # Two further rows pull both factors gently to 1: one of a model's parts may be next to nothing.
    pull = TRUST * np.sqrt(len(totals))
    known = np.vstack((shares / totals[:, None], pull * np.eye(2)))
    calls, work = nnls(known, np.append(np.ones(len(totals)), [pull, pull]))[0]
    return {
        name: Coefficients(
            float(c.call * calls), *(float(v * work) for v in dataclasses.astuple(c)[1:])
        )
        for name, c in coefficients.items()
    }


def _least_squares(timed: Sequence[TimedOperator]) -> Coefficients:
    """Fit relative times by non-negative least squares."""
    import numpy as np
    from scipy.optimize import nnls

    amounts = np.array([o.amounts for o in timed], dtype=np.float64)
    seconds = np.array([o.seconds for o in timed])
    weights = 1 / np.maximum(seconds, SHORTEST)
    scale = np.maximum(amounts.max(axis=0), 1)
    factors = nnls(amounts / scale * weights[:, None], seconds * weights)[0]
    return Coefficients(*(1e9 * factors / scale).tolist())


def _timer(
    runtime: str, batch: int, threads: int, training: bool, device: str, seconds: float
) -> Timer:
    """Return what times networks in a runtime.

    Raises:
        RunError: If there is no such runtime, or it does not do that.
    """
    if runtime == "torch":
        from archgraph.budgets.timing import TorchTimer

        return TorchTimer(batch, threads, training, device, seconds)
    if runtime not in get_args(Runtime):
        raise RunError("unknown runtime", found=runtime, expected=" or ".join(get_args(Runtime)))
    if training or device != "cpu":
        wrong = "a training step" if training else f"device {device}"
        raise RunError("onnxruntime is timed in evaluation on the processor", found=wrong)
    from archgraph.budgets.onnx_timing import OnnxTimer

    return OnnxTimer(batch, threads, seconds)


def _device_name(device: str) -> str:
    import torch

    gpu = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if gpu else device


def _versions(runtime: str) -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in dict.fromkeys(("archgraph", "torch", runtime))}
