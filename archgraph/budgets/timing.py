"""Timing: seconds of every operator where it stands in its network, and of the whole network."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from archgraph.errors import GraphError, RunError
from archgraph.graph.ir import ArchGraph, Atom, Leaf, Node, Polynomial, Ref, Value, walk
from archgraph.graph.passes import specialise
from archgraph.graph.sizes import example_sizes
from archgraph.module.build import build
from archgraph.module.plan import makes_tensor
from archgraph.ops.schema import from_atom, op_schema
from archgraph.ops.table import row
from archgraph.rewrites.laws import random_inputs

# The first round brings code and weights into caches, and is not counted.
WARM_UP = 1
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a network takes.

    Attributes:
        operators: Seconds by operator; what a runtime merged into another operator has none.
        total: Seconds of the network.
    """

    operators: Mapping[str, float]
    total: float


Timer: TypeAlias = Callable[[Sequence[ArchGraph]], Sequence[Timing]]
"""Times several networks, best in turns, so that a slow moment of the machine is slow for all."""


@dataclass(frozen=True)
class TorchTimer:
    """Times networks in PyTorch.

    1. In each round, every network runs once operator by operator and once as a built module.
    2. Rounds go on until the time is over; there are at least ``ROUNDS`` of them.
    3. What is returned are medians over rounds.

    On one thread of the processor these are seconds of that thread, so that other programs do not
    count; else they are seconds of the clock on the wall.

    Attributes:
        batch: Examples per call.
        threads: Threads of the processor.
        training: Time a forward and a backward pass, in training; else a forward pass.
        device: Where: ``cpu``, ``cuda``.
        seconds: How long to go on.
    """

    batch: int = 1
    threads: int = 1
    training: bool = False
    device: str = "cpu"
    seconds: float = 60.0

    def __post_init__(self) -> None:
        where, expected = f"device {self.device}", "cpu, cuda or cuda:N"
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise RunError("cannot be used", where=where, expected=expected)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # a CPU build asserts
            reason = str(error).split("\n")[0][:200]
            raise RunError("cannot be used", where=where, found=reason) from error

    def __call__(self, graphs: Sequence[ArchGraph]) -> list[Timing]:
        """Return the medians of some networks.

        Raises:
            GraphError: If one cannot run with this batch size and mode.
        """
        return [run.timing() for run in self.runs(graphs)]

    def runs(self, graphs: Sequence[ArchGraph]) -> list[NetworkRun]:
        """Run some networks in turns, and return what each round took.

        Raises:
            GraphError: If one cannot run with this batch size and mode.
        """
        with _threads(self.threads):
            runs = [NetworkRun(graph, self) for graph in graphs]
            end, rounds = time.monotonic() + self.seconds, 0
            while rounds < WARM_UP + ROUNDS or time.monotonic() < end:
                for run in runs:
                    try:
                        run.once()
                    # Whatever kernels raise for sizes that they do not take.
                    except (IndexError, RuntimeError, TypeError, ValueError) as error:
                        reason = str(error).split("\n")[0][:200]
                        raise GraphError(
                            f"cannot be run with a batch of {self.batch}",
                            where=run.graph.name or None,
                            found=reason,
                        ) from error
                rounds += 1
        return runs

    def now(self) -> float:
        """Return the time in seconds, once the device has done what it was asked for."""
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)
            return time.perf_counter()
        return time.thread_time() if self.threads == 1 else time.perf_counter()


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class NetworkRun:
    """A network with weights and inputs, and the times of its rounds so far."""

    graph: ArchGraph
    timer: TorchTimer
    operators: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    totals: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        timer = self.timer
        self.module = build(self.graph, seed=0).train(timer.training).to(timer.device)
        tensors = self.module.named_parameters(remove_duplicate=False)
        by_name: dict[str, Tensor] = dict([*tensors, *self.module.named_buffers()])
        self.leaves = {param.name: by_name[param.name] for param in self.graph.params}
        self.inputs = pytree.tree_map_only(
            Tensor, lambda t: t.to(timer.device), random_inputs(self.graph, timer.batch)
        )
        self.work = specialise(self.graph, training=timer.training)
        last = {used: n.name for n in self.work.nodes for used in n.uses()}
        self.ends: dict[str, list[str]] = defaultdict(list)  # what is not read any more, by reader
        for used, reader in last.items():
            self.ends[reader].append(used)
        # Gradients flow into what a trained leaf had a part in.
        self.differentiated = {p.name for p in self.graph.params if p.trainable}
        for node in self.work.nodes:
            if not self.differentiated.isdisjoint((*node.uses(), *node.leaves())):
                self.differentiated.add(node.name)

    def once(self) -> None:
        """Run the network operator by operator, and as a whole."""
        with torch.set_grad_enabled(self.timer.training):
            self._operator_by_operator()
            self._whole()

    def timing(self) -> Timing:
        """Return the medians over rounds."""
        medians = {k: statistics.median(v[WARM_UP:]) for k, v in self.operators.items()}
        return Timing(medians, statistics.median(self.totals[WARM_UP:]))

    def _whole(self) -> None:
        now = self.timer.now
        begin = now()
        results = self.module(**self.inputs)
        if self.timer.training:
            torch.autograd.backward(*_with_ones(results))
        self.totals.append(now() - begin)
        self.module.zero_grad(set_to_none=True)

    def _operator_by_operator(self) -> None:
        now, values = self.timer.now, self._inputs()
        for node in self.work.nodes:
            if node.op == "input":
                continue
            operands = self._operands(node, values)
            call = self._call(node, operands)
            begin = now()
            result = call()
            seconds = now() - begin
            if self.timer.training:
                outputs, ones = _with_ones(result)
                inputs = [t for t in operands.values() if isinstance(t, Tensor) and t.requires_grad]
                if outputs and inputs:
                    begin = now()
                    torch.autograd.grad(outputs, inputs, ones, allow_unused=True)
                    seconds += now() - begin
            self.operators[node.name].append(seconds)
            values[node.name] = result
            for name in self.ends[node.name]:
                del values[name]

    def _inputs(self) -> dict[str, Any]:
        """Return the tensors of the inputs, by operator."""
        values: dict[str, Any] = {}
        for key, tree in self.graph.inputs:
            names = (item.name for item in walk(tree) if isinstance(item, Ref))
            tensors = (t for t in pytree.tree_leaves(self.inputs[key]) if isinstance(t, Tensor))
            values |= zip(names, tensors, strict=True)
        return {name: value for name, value in values.items() if self.graph.users[name]}

    def _operands(self, node: Node, values: Mapping[str, Any]) -> dict[Ref | Leaf, Any]:
        """Return what an operator uses: in training as leaves of a tape of its own."""
        operands = {
            item: values[item.name] if isinstance(item, Ref) else self.leaves[item.name]
            for item in node.operands()
        }
        if not self.timer.training:
            return operands
        return {item: self._taped(item.name, value) for item, value in operands.items()}

    def _taped(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):  # several results of one operator
            return [self._taped(name, item) for item in value]
        real = value.is_floating_point() or value.is_complex()
        return value.detach().requires_grad_(real and name in self.differentiated)

    def _call(self, node: Node, operands: Mapping[Ref | Leaf, Any]) -> Callable[[], Any]:
        """Return what runs an operator once."""

        def real(value: Value) -> Any:
            match value:
                case Ref() | Leaf():
                    return operands[value]
                case Polynomial():
                    return value.value(example_sizes(self.graph, self.timer.batch))
                case Atom():
                    return from_atom(value)
                case tuple():
                    return [real(item) for item in value]
                case _:
                    return value

        arguments = {name: real(value) for name, value in node.args}
        if node.op == "getitem":
            return lambda: arguments["source"][arguments["index"]]
        for name in row(node.op).contiguous:
            arguments[name] = arguments[name].contiguous()
        if makes_tensor(node):
            arguments["device"] = self.timer.device
        schema = op_schema(node.op)
        positional, keywords = schema.call_args(arguments)
        return lambda: schema.overload(*positional, **keywords)


def _with_ones(results: object) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of some results that have a gradient, and a gradient of ones for each."""
    tensors = [t for t in pytree.tree_leaves(results) if isinstance(t, Tensor) and t.requires_grad]
    return tensors, [torch.ones_like(t) for t in tensors]
