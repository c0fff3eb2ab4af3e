"""Record the memory that a training step allocates in forward, backward and optimiser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from archgraph.analysis.cost_polynomial import CostPart, CostPolynomial, TensorSizes
from archgraph.analysis.presence import Needs, any_needs, least, presence
from archgraph.analysis.storages import Storage, storages
from archgraph.analysis.training_memory import (
    Allocation,
    MemoryPolynomial,
    TrainingMemory,
)
from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, per_graph, refs
from archgraph.graph.passes import specialise
from archgraph.graph.polynomial import Polynomial
from archgraph.ops.operands import Counted, numel
from archgraph.ops.schema import torch_dtype
from archgraph.ops.table import backward

ALWAYS: Needs = frozenset()
Optimizer: TypeAlias = "str | Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]"


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Memory that an optimiser needs for each parameter.

    Attributes:
        tensors: Number of tensors of the parameter's size that the optimiser stores.
        bytes: Size of other state that the optimiser stores (counters), in bytes.
        working: Number of temporary tensors of the parameter's size during an update.
    """

    tensors: int
    bytes: int
    working: int

    @classmethod
    def of(cls, optimizer: Optimizer) -> OptimizerState:
        """Measure the memory of an optimiser in one step with a small parameter.

        Args:
            optimizer: Name of an optimiser in ``torch.optim`` (case-insensitive), ``momentum`` for
                SGD with momentum, or a function that takes a list of parameters and returns an
                optimiser.

        Raises:
            GraphError: If ``torch.optim`` has no optimiser with the name; if the optimiser needs
                more than dense gradients (sparse gradients, a closure); if it stores tensors of
                another size than the parameter's.

        >>> [OptimizerState.of(name).tensors for name in ("sgd", "momentum", "adam", "AdamW")]
        [0, 1, 2, 2]
        """
        parameter = torch.nn.Parameter(torch.zeros(3, 5))
        steps = _factory(optimizer)([parameter])
        parameter.grad = torch.ones_like(parameter)
        try:
            steps.step()
        except (RuntimeError, TypeError) as error:  # sparse gradients, a closure
            message = "optimiser cannot step from gradients alone"
            raise GraphError(message, where=type(steps).__name__, found=str(error)) from error
        tensors = [v for v in steps.state[parameter].values() if isinstance(v, torch.Tensor)]
        large = [t for t in tensors if t.numel() > 1]
        if any(t.shape != parameter.shape for t in large):
            shapes = ", ".join(str(list(t.shape)) for t in large)
            message = "optimiser stores tensors that do not have the parameter's size"
            raise GraphError(message, found=shapes, expected=str([3, 5]))
        # `torch.optim` computes a denominator and its square root for one parameter at a time.
        working = min(len(large), 2) if len(large) > 1 else 0
        return cls(len(large), sum(t.nbytes for t in tensors if t.numel() == 1), working)


def _factory(
    optimizer: Optimizer,
) -> Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]:
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer.lower() == "momentum":
        return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    kinds = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    if optimizer.lower() not in kinds:
        known = ", ".join(sorted({"momentum", *kinds} - {"optimizer"}))
        raise GraphError("unknown optimiser", found=optimizer, expected=known)
    return kinds[optimizer.lower()]


def training_memory(graph: ArchGraph, batch: int, optimizer: Optimizer) -> TrainingMemory:
    """Predict the memory of a training step; see :meth:`archgraph.analysis.cost.Cost.training`."""
    if batch < 1:
        raise GraphError("a batch needs at least one example", found=batch)
    return training_step(graph, batch, OptimizerState.of(optimizer)).at()


@per_graph
def training_step(graph: ArchGraph, batch: int, state: OptimizerState) -> MemoryPolynomial:
    """Return every allocation of a training step.

    A step has one moment for the forward of each operator, one for the loss, one for the backward
    of each operator (the last operator first), and one for the update of each parameter.

    1. Weights, buffers, constants, the batch and the optimiser's state always exist.
    2. A result exists until its last use in forward. If operators saved the result for backward, it
       exists until the backward of the operator among them that ran first in forward.
    3. The loss saves tensors as large as the outputs, and allocates the gradients of the outputs.
    4. The gradient of a result is allocated in the backward of the last operator that uses the
       result, and freed in the backward of the operator that computed it. If an operator passes the
       gradient of its result on unchanged, its operand shares this gradient. Other operators that
       use the result allocate their contributions to the gradient.
    5. The gradient of a parameter exists until the end of the step.
    """
    return _Record(specialise(graph, training=True), graph, batch, state).made()


@dataclass
class _Record:
    """Collects the allocations of a training step."""

    graph: ArchGraph
    both: ArchGraph
    batch: int
    state: OptimizerState
    allocations: list[Allocation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizes = TensorSizes.of_graph(self.both, self.batch)
        self.presence = presence(self.both)
        self.storages = storages(self.graph, self.batch)
        self.exits: dict[Storage, list[str]] = defaultdict(list)
        for name, ends in self.presence.stands_in.items():
            if Ref(name) in self.storages.tensors:
                known = (end for end in ends if Ref(end) in self.storages.tensors)
                self.exits[self.storages.of(Ref(name))] += known
        self.index = {node.name: number for number, node in enumerate(self.graph.nodes)}
        self.loss, self.users = len(self.graph.nodes), self.graph.leaf_users
        self.trained = [p for p in self.graph.params if p.trainable and self.users[p.name]]
        self.end = 2 * self.loss + len(self.trained)
        self.wants = self._wanted()
        self.outputs = [
            name for name in dict.fromkeys(refs(self.graph.outputs)) if self.wants[Ref(name)]
        ]

    def _wanted(self) -> dict[Ref | Leaf, bool]:
        """Return whether each result and each trained parameter needs a gradient."""
        wants: dict[Ref | Leaf, bool] = {Leaf(p.name): True for p in self.trained}
        for node in self.graph.nodes:
            floating = any(torch_dtype(t.dtype).is_floating_point for t in node.types)
            differentiable = floating and not backward(node).stops
            trained = any(wants.get(value, False) for value in node.operands())
            wants[Ref(node.name)] = differentiable and trained
        return wants

    # -- sizes --------------------------------------------------------------------------------

    def bytes_of_result(self, name: str, index: int) -> Polynomial:
        """Return the size of a result in bytes."""
        dtype = torch_dtype(self.graph.node[name].types[index].dtype)
        sizes = self.sizes.of(self.sizes.solved.value[name][index])
        return Polynomial({}) + numel(sizes) * dtype.itemsize

    def bytes_of_leaf(self, name: str) -> Polynomial:
        """Return the size of a leaf in bytes."""
        dtype = torch_dtype(self.graph.param[name].dtype)
        return Polynomial({}) + numel(self.sizes.operand(Leaf(name))) * dtype.itemsize

    # -- moments ------------------------------------------------------------------------------

    def back(self, name: str) -> int:
        """Return the moment of an operator's backward."""
        return 2 * self.loss - self.index[name]

    def moments(self) -> Iterator[tuple[str, Needs]]:
        """Yield a description of each moment, and the blocks that it needs."""
        there = self.presence.there
        names = [node.name for node in self.graph.nodes]
        yield from ((f"forward of %{name}", there[name]) for name in names)
        yield "loss", ALWAYS
        yield from ((f"backward of %{name}", there[name]) for name in reversed(names))
        for param in self.trained:
            yield (
                f"update of {param.name}",
                any_needs(there[n] for n in self.users[param.name]),
            )

    def add(
        self,
        kind: str,
        size: Polynomial,
        needs: Needs,
        start: int,
        end: int,
        absent: frozenset[str] = frozenset(),
        bound: Needs | None = None,
    ) -> None:
        """Record an allocation. ``bound`` is used only if it replaces another one (``absent``)."""
        if size.terms and start <= end:
            part, bound = CostPart(needs, size), bound if absent else needs
            self.allocations.append(Allocation(kind, part, start, end, absent, bound))

    def made(self) -> MemoryPolynomial:
        """Return the complete record."""
        self.standing()
        self.forward()
        self.backward()
        return MemoryPolynomial(
            CostPolynomial.of(self.both, {}),
            tuple(self.allocations),
            tuple(self.moments()),
            self.loss,
        )

    # -- tensors that always exist: 1, 5 ------------------------------------------------------

    def standing(self) -> None:
        """Record weights, buffers, inputs, the optimiser's state and gradients of parameters."""
        there = self.presence.there

        def stays(kind: str, size: Polynomial, needs: Needs, start: int = 0) -> None:
            self.add(kind, size, needs, start, self.end)

        for param in self.both.params:
            needs = any_needs(there[node] for node in self.both.leaf_users[param.name])
            kind = "weights" if param.role == "parameter" else "buffers"
            stays(kind, self.bytes_of_leaf(param.name), needs)
        for number, param in enumerate(self.trained):
            users, size = self.users[param.name], self.bytes_of_leaf(param.name)
            needs = any_needs(there[node] for node in users)
            stays("optimizer", self.state.tensors * size + self.state.bytes, needs)
            last = max(users, key=self.index.__getitem__)
            stays("gradients", size, needs, self.back(last))
            update = 2 * self.loss + 1 + number
            self.add("transient", self.state.working * size, needs, update, update)
        for node in self.graph.nodes:
            if node.op == "input":
                stays("inputs", self.bytes_of_result(node.name, 0), ALWAYS)

    # -- forward: 2, 3 ------------------------------------------------------------------------

    def forward(self) -> None:
        """Record results, and tensors saved for backward."""
        read: dict[Storage, list[str]] = defaultdict(list)
        saved: dict[Storage, set[str]] = defaultdict(set)
        for node in self.graph.nodes:
            for value in node.operands():
                read[self.storages.of(value)].append(node.name)
            if self.wants[Ref(node.name)]:
                for storage in self.saved_by(node):
                    saved[storage].add(node.name)
        for name in refs(self.graph.outputs):
            read[self.storages.of(Ref(name))].append("")
        for node in self.graph.nodes:
            for number in range(len(node.types)):
                storage = (node.name, number)
                if node.op != "input" and self.storages.of(Ref(node.name), number) == storage:
                    self.result_of(node, number, read, saved)
        for name in self.outputs:
            self.add("transient", self.bytes_of_result(name, 0), ALWAYS, self.loss, self.loss)

    def result_of(
        self,
        node: Node,
        number: int,
        read: Mapping[Storage, list[str]],
        saved: Mapping[Storage, set[str]],
    ) -> None:
        """Record a result, also for submodels in which it replaces results of skipped blocks.

        1. If operators save the result for backward, it exists until the backward of the first of
           them. Otherwise it exists until its last use.
        2. If blocks are skipped, the result also replaces their results. It then exists as long as
           the operators that save or use those results need it, unless it exists longer anyway.
        3. Upper bounds count only the first of these two allocations.
        """
        there, inside = self.presence.there, self.presence.within.get(node.name, ALWAYS)
        storage, start = (node.name, number), self.index[node.name]
        size = self.bytes_of_result(node.name, number)
        later = list(self.stands_for(storage))
        instead = [s for end, _ in later for s in saved.get(end, ())]
        savers, last = self.lifetime(storage, read, saved, start)
        if savers:  # 1, 3
            also = any_needs(there[s] for s in instead) if instead else None
            self.keep(size, [(self.index[s], there[s]) for s in savers], inside, start, also)
        else:
            self.add("transient", size, there[node.name], start, last)
        for end, absent in later:  # 2
            users, last = self.lifetime(end, read, saved, start)
            stays = [self.back(s) for s in savers if CostPart(there[s], size).there(absent)]
            if max(stays, default=-1) >= last:
                continue
            needs = any_needs(there[s] for s in users) if users else there[node.name]
            needs, kind = least(needs | inside), "saved" if users else "transient"
            self.add(kind, size, needs, start, last, absent, None if savers else needs)  # 3

    def lifetime(
        self,
        storage: Storage,
        read: Mapping[Storage, list[str]],
        saved: Mapping[Storage, set[str]],
        start: int,
    ) -> tuple[list[str], int]:
        """Return the operators that save a tensor, and the last moment at which it exists."""
        savers = sorted(saved.get(storage, ()), key=self.index.__getitem__)
        readers = (self.index.get(name, self.loss) for name in read.get(storage, ()))
        return savers, self.back(savers[0]) if savers else max(readers, default=start)

    def stands_for(self, storage: Storage) -> Iterator[tuple[Storage, frozenset[str]]]:
        """Yield the results that a result can replace, with the blocks that must be skipped."""
        pending = [(storage, frozenset[str]())]
        while pending:
            entry, absent = pending.pop()
            for end in self.exits.get(entry, ()):
                blocks = absent.union(*self.presence.within.get(end, ALWAYS))
                if blocks != absent:
                    pending.append((self.storages.of(Ref(end)), blocks))
                    yield pending[-1]

    def saved_by(self, node: Node) -> Iterator[Storage]:
        """Yield the operands and results that an operator saves; record its other saved tensors.

        1. Yield operands if a gradient that depends on them is needed. If the operator saves a copy
           of an operand, record the copy instead.
        2. Yield results.
        3. Record further tensors that the operator saves.
        """
        known, there = backward(node), self.presence.there[node.name]
        at = self.index[node.name]
        for name, needed in known.operands.items():  # 1
            wanting = any(
                self.wants.get(v, False) for n in needed.split() for v in _tensors(node, n)
            )
            if needed and not wanting:
                continue
            for value in _tensors(node, name):
                if name in known.matrices and (
                    size := self.copied(node, value, known.matrices[name])
                ):
                    self.keep(size, [(at, there)], ALWAYS, at)
                else:
                    yield self.storages.of(value)
        for number in known.results:  # 2
            yield self.storages.of(Ref(node.name), number)
        if known.extra is not None:  # 3
            for count, dtype in known.extra(self.counted(node)):
                size = Polynomial({}) + count * torch_dtype(dtype or node.dtype).itemsize
                self.keep(size, [(at, there)], ALWAYS, at)

    def copied(self, node: Node, value: Ref | Leaf, trailing: int) -> Polynomial | None:
        """Return the size in bytes of the saved copy of an operand; None if no copy is made.

        The operator expands the operand's leading dimensions to those of the result, and flattens
        them.
        """
        sizes, result = map(self.sizes.operand, (value, Ref(node.name)))
        repeated = trailing > 1 and len(sizes) > 2 and sizes[:-2] != result[:-2]
        if not repeated and not self.storages.copied(value, trailing):
            return None
        count = numel([*(result if repeated else sizes)[:-trailing], *sizes[-trailing:]])
        return Polynomial({}) + count * torch_dtype(_dtype(self.graph, value)).itemsize

    def keep(
        self,
        size: Polynomial,
        savers: list[tuple[int, Needs]],
        inside: Needs,
        start: int,
        instead: Needs | None = None,
    ) -> None:
        """Record a tensor that is saved until the backward of the first operator that saves it."""
        first = start
        for number in range(len(savers), 0, -1):
            needs = any_needs(needs for _, needs in savers[:number])
            bound = needs if instead is None else any_needs([needs, instead])
            last = 2 * self.loss - savers[number - 1][0]
            needs, bound = least(needs | inside), least(bound | inside)
            self.allocations.append(
                Allocation("saved", CostPart(needs, size), first, last, bound=bound)
            )
            first = last + 1

    # -- backward: 4 --------------------------------------------------------------------------

    def backward(self) -> None:
        """Record the gradients of results.

        From the last operator to the first:

        1. The gradient of an output is allocated by the loss. For any other result, the last
           operator that uses it matters: if this operator passes its gradient on, the result shares
           that gradient. Otherwise, a gradient is allocated in this operator's backward.
        2. Other operators that use the result allocate their contributions to the gradient.
        3. A gradient exists until the backward of the first operator whose result has it.
        """
        root: dict[str, str] = {}
        start: dict[str, tuple[int, Needs]] = {}
        end: dict[str, int] = {}
        for node in reversed(self.graph.nodes):
            if not self.wants[Ref(node.name)]:
                continue
            self.work(node)
            users = [n for n in self.graph.users[node.name] if self.wants[Ref(n)]]
            needs = self.presence.read[node.name]
            last = users[-1] if users else ""
            if node.name in self.outputs:  # 1
                root[node.name], start[node.name] = node.name, (self.loss, ALWAYS)
            elif not users:
                continue
            elif backward(self.graph.node[last]).passes and last in root:
                root[node.name] = root[last]
                first, others = start[root[last]]
                start[root[last]] = first, any_needs([others, needs])
            else:
                root[node.name], start[node.name] = node.name, (self.back(last), needs)
            for name in users if node.name in self.outputs else users[:-1]:  # 2
                if not backward(self.graph.node[name]).passes:
                    at = self.back(name)
                    self.add("transient", self.gradient(node), self.presence.there[name], at, at)
            maker = next(node.uses()) if node.op == "getitem" else node.name  # 3
            end[root[node.name]] = max(end.get(root[node.name], 0), self.back(maker))
        for name, (first, needs) in start.items():
            self.add("transient", self.gradient(self.graph.node[name]), needs, first, end[name])

    def work(self, node: Node) -> None:
        """Record the working memory of an operator's backward pass."""
        working, at = backward(node).working, self.back(node.name)
        for count, dtype in working(self.counted(node)) if working is not None else ():
            size = Polynomial({}) + count * torch_dtype(dtype or node.dtype).itemsize
            self.add("transient", size, self.presence.there[node.name], at, at)

    def counted(self, node: Node) -> Counted:
        """Return an operator with its sizes as polynomials, for the rules of the operator table."""
        stated = {
            name: self.sizes.of([layout])[0]
            for name, value in node.args
            if isinstance(value, int)
            and not isinstance(
                layout := self.sizes.solved.attributes.get((node.name, name)), int | Polynomial
            )
            and layout is not None
            and not isinstance(layout, tuple)
        }
        result = self.sizes.operand(Ref(node.name))
        return Counted(node, self.sizes.operand, result, stated)

    def gradient(self, node: Node) -> Polynomial:
        """Return the size of the gradients of a node's results in bytes."""
        return sum(
            (
                self.bytes_of_result(node.name, number)
                for number, type_ in enumerate(node.types)
                if torch_dtype(type_.dtype).is_floating_point
            ),
            Polynomial({}),
        )


def _tensors(node: Node, name: str) -> Iterator[Ref | Leaf]:
    """Yield the tensors of an argument."""
    value = node.arg(name)
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, (Ref, Leaf)):
            yield item


def _dtype(graph: ArchGraph, value: Ref | Leaf) -> str:
    return graph.node[value.name].dtype if isinstance(value, Ref) else graph.param[value.name].dtype
