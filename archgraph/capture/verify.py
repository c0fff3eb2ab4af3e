"""Verify: a model and the module that is built of its graph run side by side.

Two calls in evaluation, two in training, forward and backward, from one seed, with two and three
examples where the batch is open: outputs, gradients of all parameters and buffers must agree. So
whatever a capture cannot show (a function with a gradient of its own, a hook, an attribute that the
next call reads) is found by what it does. Formulas are compared first, then numbers if formulas do
not agree. What acts only at a later call, at another hour or in larger batches is out of reach. The
built module has the parameters of the state itself: nothing writes to them.

Backward passes run without numbers, too. While they were left out where both forwards recorded
equal autograd graphs, gradients of forty models differed without a word: by calls of ``backward``
in forward, by writes after a tensor was saved, by slices of equal digest. Code is not analysed for
what it may do later: 1,357 lines that did refused none of 341 models of other packages, and missed
a function whose ``apply`` was bound to another name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import PyTree

from archgraph.capture.examples import ExampleInputs, at_size, redrawn
from archgraph.capture.export import Captured
from archgraph.capture.failures import first_line
from archgraph.capture.formulas import Formulas, Unclear
from archgraph.capture.places import definition_of, is_users
from archgraph.capture.restored import restored
from archgraph.capture.signature import forward_arguments
from archgraph.capture.surroundings import quiet
from archgraph.capture.tape import Note
from archgraph.errors import TraceError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.sizes import open_sizes, with_open_sizes
from archgraph.graph.values import BATCH_WORD
from archgraph.module.build import filled
from archgraph.processes.isolation import seed_torch
from archgraph.states import State

_COPIES = 3  # of all leaves: two sets of gradients, results on the way
_ALIGNED = 64  # bytes: where memory of PyTorch's starts
_LOUD = 1e3  # factor of the gradients that come into the second backward
# Kernels whose last bits differ from call to call: oneDNN's recurrent layers.
_UNSTEADY = frozenset({"aten::mkldnn_rnn_layer"})
_FLOOR = 1e-3  # of the largest gradient: what is smaller is compared with that


@dataclass(frozen=True)
class _Results:
    """What one call gives: tensors by name, and what their backward pass runs through.

    Attributes:
        drew: Whether it drew random numbers.
        backward: How many nodes of each kind the backward pass has: equal where operators are.
        functions: Functions of the user's in it, with a gradient of their own.
        recomputed: A buffer that the backward pass changed; empty if it changed none.
    """

    outputs: Mapping[str, Tensor]
    operators: Counter[str]
    drew: bool
    gradients: Mapping[str, Tensor | None] = field(default_factory=dict)
    backward: Counter[str] = field(default_factory=Counter)
    functions: Sequence[type[Function]] = ()
    recomputed: str = ""

    @functools.cached_property
    def floor(self) -> float:
        """Return the magnitude below which gradients are compared absolutely."""
        return _FLOOR * max(map(_largest, self.gradients.values()), default=0.0)


@dataclass(frozen=True)
class _Difference:
    """Something that both modules have and that differs: an output, a gradient or a buffer."""

    kind: str
    name: str
    far: str


@dataclass(frozen=True)
class _Call:
    """How both modules are called."""

    inputs: ExampleInputs
    training: bool
    backward: bool
    second: bool = False
    cast: bool = False  # under autocast
    sizes: str = ""  # at the end of a range

    @property
    def name(self) -> str:
        """How messages name the call."""
        which = "the second call in " if self.second else ""
        more = f"{' under autocast' * self.cast}{' with ' * bool(self.sizes)}{self.sizes}"
        return f"{which}{_mode(self.training)}{more}"


def _with_gradients(
    forward: _Results,
    smooth: Sequence[Tensor],
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    call: _Call,
) -> _Results:
    """Run the backward pass of outputs and add what it gives."""
    backward, functions = _backward(smooth)  # before it runs, which frees it
    generator = torch.Generator().manual_seed(2)
    incoming = [_incoming(tensor, generator, call.second) for tensor in smooth]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    if smooth:
        torch.autograd.backward(smooth, incoming)
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    now = dict(module.named_buffers())
    changed = (n for n, b in buffers.items() if n in now and largest_difference(now[n], b))
    return dataclasses.replace(
        forward,
        gradients=gradients,
        backward=backward,
        functions=functions,
        recomputed=next(changed, ""),
    )


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def verify(
    model: nn.Module,
    graph: ArchGraph,
    state: State,
    captured: Captured,
    *,
    train: bool,
    unread: Collection[str] = (),
) -> list[Note]:
    """Compare a model with the module that is built of its graph; nothing of the calls stays.

    1. Run both with numbers in evaluation.
    2. Run both without numbers. Equal formulas say that both compute the same in all calls; where
       random numbers are drawn, whose order depends on memory, training runs with numbers as well.
    3. Where formulas differ, or forward looks at numbers, run all calls with numbers.

    Args:
        model: The model.
        graph: Its graph.
        state: Its weights.
        captured: What is known of its forward, with example inputs.
        train: Compare training, too.
        unread: Modules whose buffers move in the model alone, which is noted elsewhere.

    Returns:
        Errors for what differs, notes for what could not be compared.
    """
    formulas, notes = Formulas(), list[Note]()
    inputs, modes = captured.few(), (False, True) if train else (False,)

    def alike_in(training: bool) -> bool:
        with restored(model) as changed, _plainly(model), quiet():
            built = filled(graph, state, shared=True)
            work = _Verification(model, built, graph, changed, unread, captured.branches)
            work.compare(_Call(inputs, training, backward=False))
            return not work.notes and not work.reordered

    # First, so that what forward keeps outside of the model at its first call has numbers.
    alike = alike_in(training=False)  # 1
    alike = alike and _equal_formulas(formulas, model, graph, state, captured, modes, unread)  # 2
    if formulas.kept_outside():
        notes.append(
            "forward keeps results outside of the model (in a global, a class, a closure); what it "
            "kept while it was traced is NaN"
        )
    if alike and (not formulas.drew or alike_in(training=True)):
        return notes
    reason = _too_large(state)
    if reason:
        return [*notes, f"not verified: {reason}"]
    example, other = captured.inputs, redrawn(captured.larger(inputs))
    with restored(model) as changed, _plainly(model), quiet():  # 3
        built = filled(graph, state, shared=True)
        work = _Verification(model, built, graph, changed, unread, captured.branches)
        # Not every forward takes other values, or another batch: the example has to do then.
        instead = redrawn(inputs), redrawn(example), example
        for training in modes:
            work.compare(_Call(inputs, training, backward=training), (example,))
            cast = bool(captured.observed.autocast) and not training
            backward = training or not train
            work.compare(_Call(other, training, backward, second=True, cast=cast), instead)
        for sizes, ends in captured.ends():
            work.compare(_Call(ends, training=False, backward=False, sizes=sizes), (example,))
        return [*notes, *work.notes]


def _equal_formulas(
    formulas: Formulas,
    model: nn.Module,
    graph: ArchGraph,
    state: State,
    captured: Captured,
    modes: Collection[bool],
    unread: Collection[str],
) -> bool:
    """Return whether a model and the module of its graph have equal formulas in all calls."""
    if captured.branches or captured.observed.autocast:  # no formula for each operator
        return False
    inputs = captured.few()
    other = redrawn(captured.larger(inputs))
    calls = [_Call(i, mode, True, i is other) for mode in modes for i in (inputs, other)]
    # Twice without gradients as well: what a call leaves, the next one may read.
    calls += [_Call(i, training=False, backward=False) for i in (inputs, other)]
    calls += (_Call(ends, training=False, backward=False) for _, ends in captured.ends())
    with restored(model) as changed, _plainly(model), quiet():
        built = filled(graph, state, shared=True)
        work = _Verification(model, built, graph, changed, unread, captured.branches)
        return work.equal_formulas(formulas, calls)


def down_to_one(model: nn.Module, graph: ArchGraph, state: State, captured: Captured) -> ArchGraph:
    """Return the graph for open sizes of one, too, where it computes then what the model does.

    ``torch.export`` takes a size of one for a constant, so that it says nothing of it.
    """
    widened = captured.inputs  # with each size at one of which the graph holds for one
    for name, size in open_sizes(graph).items():
        if name == BATCH_WORD or size.low != 2 or _too_large(state):
            continue
        sizes = {**open_sizes(graph), name: dataclasses.replace(size, low=0)}
        wider = with_open_sizes(graph, sizes)
        alone, together = (
            at_size(inputs, captured.axes, name, 1) for inputs in (captured.inputs, widened)
        )
        with restored(model) as changed, _plainly(model), quiet():
            built = filled(wider, state, shared=True)
            agree = []
            for inputs, training in itertools.product((alone, together), (False, True)):
                work = _Verification(model, built, wider, changed, (), captured.branches)
                work.compare(_Call(inputs, training, backward=False))
                differs = any(isinstance(note, TraceError) for note in work.notes)
                # What the model refuses in training (one value for batch statistics) it may.
                agree.append(not differs and (training or not work.failed))
        if all(agree):
            graph, widened = wider, together
    return graph


def _too_large(state: State) -> str:
    """Return why memory is short for a model beside the built module; empty if it is not."""
    needed = _COPIES * sum(tensor.nbytes for tensor in state.values())
    device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if needed <= free:
        return ""
    return f"that takes {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"


def _free_memory() -> float:
    """Return the free memory in bytes, within the container's limit; inf if unknown."""
    bounds = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        bounds.append(int(line.split()[1]) * 1024)
    # A container sees the memory of its host above.
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no bound
        used = int((group / "memory.current").read_text("ascii"))
        bounds.append(int((group / "memory.max").read_text("ascii")) - used)
    return min(bounds)


@contextlib.contextmanager
def _plainly(model: nn.Module) -> Iterator[None]:
    """Run operators as captured: nothing compiled, no fused attention in evaluation."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    compiled = any(
        isinstance(m, torch._dynamo.OptimizedModule) or m._compiled_call_impl is not None
        for m in model.modules()
    )
    try:
        with torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class _Operators(TorchDispatchMode):
    """Counts the operators that run, in place or not; views compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        if not func.is_view:
            self.counts[func._schema.name.removesuffix("_")] += 1
        return func(*args, **(kwargs or {}))


class _SameDraws(TorchDispatchMode):
    """Equal draws for equal shapes, in whatever order they are made and lie in memory."""

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        # Numbers are drawn in the order of memory, which the two modules may lay out differently.
        plain = pytree.tree_map_only(Tensor, Tensor.contiguous, args)
        torch.manual_seed(sum(t.numel() for t in pytree.tree_leaves(args) if torch.is_tensor(t)))
        result = func(*plain, **kwargs)
        if func._schema.is_mutable and plain[0] is not args[0]:
            return args[0].copy_(result)
        return result


@dataclass
class _Verification:
    """Both modules, and what differs so far."""

    model: nn.Module
    built: nn.Module
    graph: ArchGraph
    changed: Callable[[], list[str]]
    unread: Collection[str]
    branches: bool  # by values: nothing can watch their operators
    notes: list[Note] = field(default_factory=list)
    failed: set[bool] = field(default_factory=set)  # modes
    reordered: bool = False  # random numbers, in training
    alike: bool = False  # whether later calls ran the operators of the first

    def __post_init__(self) -> None:
        self.parameters = dict(self.model.named_parameters())  # before the first call
        self.parts = _parts(self.model)

    def compare(self, call: _Call, instead: Sequence[ExampleInputs] = ()) -> None:
        """Run both modules and note what differs; ``instead``: inputs where the model raises."""
        if call.training in self.failed:
            return
        theirs = self._built_parameters()
        try:
            expected = self._run(self.model, self.parameters, call)
        except Exception as error:  # whatever the user's forward raises
            if instead:
                self.compare(dataclasses.replace(call, inputs=instead[0]), instead[1:])
                return
            self.failed.add(call.training)
            reason = f"the model raises {type(error).__name__}: {first_line(error)}"
            self.notes.append(f"not verified in {call.name}: {reason}")
            return
        if lasting := self._lasting(expected):
            self.failed |= {False, True}
            self.notes.append(lasting)
            return
        try:
            actual = self._run(self.built, theirs, call)
        except Exception as error:  # whatever the operators raise
            self.failed.add(call.training)
            reason = f"{type(error).__name__}: {first_line(error)}"
            text = f"the built module raises in {call.name} and the model does not: {reason}"
            self.notes.append(TraceError(text, where=type(self.model).__name__))
            return
        differences = [*self._differences(actual, expected, call)]
        if differences and expected.drew and not call.second:
            self.reordered = True  # the second call tells whether only the order differs
        elif differences:
            self.failed.add(call.training)
            self.notes.append(self._error(differences, call, expected))
        elif self.reordered and call.second:
            self.notes.append(
                f"in {_mode(call.training)} random numbers are drawn in another order: equal seeds "
                "give other draws than the model's"
            )
        elif not call.second:
            self.notes += [
                f"{_source(function)}: {_short(function)} defines its own backward, which agreed "
                "with autograd in the two calls compared; for other values it may not"
                for function in expected.functions
            ]

    def _lasting(self, results: _Results) -> TraceError | None:
        """Return an error for what forward left in the model, or what it kept of the capture."""
        forward = definition_of(type(self.model).forward)
        if replaced := sorted(_parts(self.model).items() ^ self.parts.items()):
            text = "forward makes or replaces this part, which the graph does not; do it once first"
            return TraceError(text, where=replaced[0][0], found=forward)
        if any(isinstance(tensor, FakeTensor) for tensor in results.outputs.values()):
            text = "forward stored a tensor of the capture where ag.trace cannot remove it"
            hint = "construct the model again and call it once before tracing"
            return TraceError(text, where=forward, hint=hint)
        return None

    def _built_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the built module that the model has, too."""
        theirs = dict(self.built.named_parameters(remove_duplicate=False))
        return {name: theirs[name] for name in self.parameters if name in theirs}

    def _common_buffers(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the buffers that both modules have and that a graph says how to update."""
        both = (self.model, self.built)
        names, others = (dict(m.named_buffers(remove_duplicate=False)).keys() for m in both)
        return {
            name: buffer
            for name, buffer in module.named_buffers(remove_duplicate=False)
            if name in names & others and name.rpartition(".")[0] not in self.unread
        }

    def _arguments(self, module: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
        """Return copies of inputs as a module takes them."""
        args, kwargs = pytree.tree_map_only(Tensor, torch.clone, inputs)
        if module is self.model:
            return args, kwargs
        by_name = forward_arguments(self.model, args, kwargs)
        return (), {name: by_name[name] for name, _ in self.graph.inputs}  # the tensors alone

    def equal_formulas(self, formulas: Formulas, calls: Sequence[_Call]) -> bool:
        """Return whether calls of both modules have equal formulas, forward and backward."""
        theirs = self._built_parameters()
        try:
            for call in calls:
                expected = self._formulas(formulas, self.model, self.parameters, call)
                if expected != self._formulas(formulas, self.built, theirs, call):
                    return False
        except Exception:  # whatever forward raises
            return False
        finally:
            self.built.zero_grad()
        return _parts(self.model) == self.parts and not formulas.unclear

    def _formulas(
        self,
        formulas: Formulas,
        module: nn.Module,
        parameters: Mapping[str, Tensor],
        call: _Call,
    ) -> PyTree:
        """Run a module without numbers; return formulas of all that a call gives and leaves.

        Raises:
            Unclear: If only numbers can tell.
        """
        module.train(call.training)
        args, kwargs = self._arguments(module, call.inputs)
        if not call.second:  # else gradients add up, as in a step of several
            for parameter in parameters.values():
                parameter.grad = None
        torch.default_generator.manual_seed(int(call.second))
        with formulas.of(parameters):
            with torch.set_grad_enabled(call.backward):
                outputs = list(_named_tensors(module(*args, **kwargs)).values())
            results = [(tensor.requires_grad, formulas.value(tensor)) for tensor in outputs]
            smooth = [tensor for tensor in outputs if tensor.requires_grad]
            _, functions = _backward(smooth)
            buffers = self._common_buffers(module)
            updated = {name: formulas.value(buffer) for name, buffer in buffers.items()}
            if smooth:
                generator = torch.Generator().manual_seed(2)
                incoming = [_incoming(tensor, generator, call.second) for tensor in smooth]
                torch.autograd.backward(smooth, incoming)
        after = {name: formulas.value(buffer) for name, buffer in buffers.items()}
        if functions or after != updated:
            raise Unclear("a backward pass of one's own")
        values = {name: formulas.value(parameter) for name, parameter in parameters.items()}
        gradients = {
            name: formulas.value(parameter.grad)
            for name, parameter in parameters.items()
            if parameter.grad is not None
        }
        return results, updated, values, gradients, torch.get_rng_state().tolist()

    def _run(self, module: nn.Module, parameters: Mapping[str, Tensor], call: _Call) -> _Results:
        module.train(call.training)
        args, kwargs = self._arguments(module, call.inputs)
        if not call.second or self.reordered:  # else gradients add up, as in a step of several
            for parameter in parameters.values():
                parameter.grad = None
        device = next((t.device for t in parameters.values()), torch.device("cpu"))
        seed_torch(int(call.second), device)
        drawn = torch.get_rng_state()
        operators = _Operators()
        cast = torch.autocast(device.type, torch.bfloat16, enabled=call.cast)
        with torch.set_grad_enabled(call.backward), self._watching(call, operators), cast:
            outputs = _named_tensors(module(*args, **kwargs))
        drew = not torch.equal(drawn, torch.get_rng_state())
        results = {name: tensor.detach().clone() for name, tensor in outputs.items()}
        forward = _Results(results, operators.counts, drew)
        smooth = [tensor for tensor in outputs.values() if tensor.requires_grad]
        return (
            _with_gradients(forward, smooth, module, parameters, call) if call.backward else forward
        )

    def _watching(
        self, call: _Call, operators: _Operators
    ) -> contextlib.AbstractContextManager[object]:
        """Return the mode that a call runs in: equal draws, counted operators, or none."""
        if self.reordered and call.second:
            return _SameDraws()
        counts = not (call.second or call.backward or self.branches)
        return operators if counts else contextlib.nullcontext()

    def _differences(
        self, actual: _Results, expected: _Results, call: _Call
    ) -> Iterator[_Difference]:
        exact = self._same_operators(actual, expected) and not call.cast

        def allowed(dtype: torch.dtype) -> float:
            rounding = tolerance_of(torch.bfloat16) if call.cast else 0.0
            return 0.0 if exact else max(tolerance_of(dtype), rounding)

        # By position: an object of the model's class is a dict of the built module.
        ours, theirs = list(actual.outputs.values()), expected.outputs
        if len(ours) != len(theirs):
            yield _Difference("output", "", f"{len(ours)} tensors instead of {len(theirs)}")
            return
        for value, (name, other) in zip(ours, theirs.items(), strict=True):
            yield from _beyond("output", name, value, other, allowed)
        if call.backward:
            for name, gradient in expected.gradients.items():
                computed = actual.gradients.get(name)
                floor = functools.partial(getattr, expected, "floor")  # where something differs
                yield from _beyond("gradient", name, computed, gradient, allowed, floor)
        buffers = dict(self.built.named_buffers(remove_duplicate=False))
        for name, buffer in self.model.named_buffers():
            if name in buffers and name.rpartition(".")[0] not in self.unread:
                yield from _beyond("buffer", name, buffers[name], buffer, allowed)

    def _same_operators(self, actual: _Results, expected: _Results) -> bool:
        """Return whether both compute the same on memory in the same order: then bits agree."""
        if expected.operators:
            alike = actual.operators == expected.operators
            steady = _UNSTEADY.isdisjoint(expected.operators)
            self.alike = alike and steady and self._same_memory()
        return self.alike and actual.backward == expected.backward

    def _same_memory(self) -> bool:
        """Return whether both modules lay out parameters alike in memory, so that bits repeat."""
        # Kernels sum in an order that depends on strides and on where vectors may begin.
        parameters = dict(self.built.named_parameters(remove_duplicate=False))
        return all(
            parameter.device.type == "cpu"
            and parameter.stride() == parameters[name].stride()
            and not parameter.data_ptr() % _ALIGNED
            for name, parameter in self.parameters.items()
        )

    def _error(
        self, differences: Sequence[_Difference], call: _Call, expected: _Results
    ) -> TraceError:
        """Build the error for what differs in a call: what, how far, and why if known."""
        first = differences[0]
        rest = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        actual = f"{first.kind} {first.name} {first.far} in {call.name}{rest}"
        forward = definition_of(type(self.model).forward)
        changed = self.changed() if call.second or call.training else []
        functions = expected.functions
        if first.kind == "gradient" and functions:
            where, names = _source(functions[0]), " and ".join(map(_short, functions))
            message = f"{names} defines its own gradient; a graph has the gradient of forward"
            hint = (
                "write forward so that its gradient is the right one (x + (y - x).detach() passes "
                "the gradient straight through)"
            )
        elif first.kind == "gradient":
            where = first.name
            hint = "remove what changes gradients in forward, and say use_reentrant=False"
            message = (
                "the gradients of the model and its graph differ: forward registers a hook, sets "
                "grad or requires_grad, or has a checkpoint with use_reentrant=True"
            )
        elif first.kind == "buffer" and expected.recomputed:
            where, hint = expected.recomputed, "call the norm outside of the checkpoint"
            message = (
                "the model's backward pass changes it: a checkpoint in forward is computed again, "
                "which updates statistics a second time; a graph updates them once"
            )
        elif changed:
            where, hint = forward, "make it a buffer (register_buffer)"
            attributes = ", ".join(changed[:3])
            message = f"forward changes {attributes}, and later calls give other results"
        else:
            where, hint = forward, "give what changes as an input, keep what stays in buffers"
            message = (
                "the model and its graph compute different results: forward depends on what a "
                "graph does not record (the time, whether gradients are recorded, whether it is "
                "captured, what an earlier call left)"
            )
        return TraceError(message, where=where, found=actual, hint=hint)


def _parts(model: nn.Module) -> dict[str, int]:
    """Return the parameters of a model by name, and the names of its buffers."""
    parts = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    return parts | dict.fromkeys((name for name, _ in model.named_buffers()), 0)


def _source(function: type[Function]) -> str:
    """Return where a function says what its gradient is."""
    return definition_of(inspect.unwrap(function.backward))


def _short(function: type[Function]) -> str:
    return function.__qualname__.rpartition(".")[2]


def _named_tensors(outputs: object) -> dict[str, Tensor]:
    """Return the tensors of a module's results by name, in order."""
    if dataclasses.is_dataclass(outputs) and type(outputs) not in pytree.SUPPORTED_NODES:
        outputs = {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}
    try:
        leaves = [(pytree.keystr(k) or "0", v) for k, v in pytree.tree_leaves_with_path(outputs)]
    except ValueError:  # a type that does not name its entries
        leaves = [(str(k), v) for k, v in enumerate(pytree.tree_leaves(outputs))]
    return {name: value for name, value in leaves if isinstance(value, Tensor)}


def _backward(results: Sequence[Tensor]) -> tuple[Counter[str], list[type[Function]]]:
    """Return what the backward pass of some results runs through: kinds of nodes, functions."""
    waiting = [r.grad_fn for r in results if r.grad_fn is not None]
    visited = set(waiting)
    functions: dict[type[Function], None] = {}
    names: Counter[str] = Counter()
    while waiting:
        node = waiting.pop()
        names[node.name()] += 1
        # Of the class, not of the name that `apply` was bound to.
        if isinstance(node, BackwardCFunction):
            function = node._forward_cls
            if is_users(_source(function)):
                functions[function] = None
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                waiting.append(following)
    return names, list(functions)


def _incoming(tensor: Tensor, generator: torch.Generator, second: bool) -> Tensor:
    """Return the incoming gradient of a result; large values reveal what clips them."""
    real = torch.empty((), dtype=tensor.dtype).real.dtype
    loud = min(_LOUD, torch.finfo(real).max ** 0.25) if second else 1.0
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * loud
    return drawn.to(tensor.device, tensor.dtype)


def _beyond(
    kind: str,
    name: str,
    actual: Tensor | None,
    expected: Tensor | None,
    allowed: Callable[[torch.dtype], float],
    floor: Callable[[], float] = float,
) -> Iterator[_Difference]:
    """Yield the difference of a tensor that is off by more than is allowed for its dtype."""
    if actual is None and expected is None:
        return
    if actual is None or expected is None:
        which = "model" if actual is None else "graph"
        yield _Difference(kind, name, f"is there in the {which} alone")
        return
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        types = (f"{t.dtype} {tuple(t.shape)}" for t in (actual, expected))
        yield _Difference(kind, name, " instead of ".join(types))
        return
    gap = largest_difference(actual, expected, floor)
    if gap > allowed(expected.dtype):
        yield _Difference(kind, name, f"differs by {gap:.1e} of its largest value")


def tolerance_of(dtype: torch.dtype) -> float:
    """Return how far results of other operators may be apart, relative to the largest value."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.sqrt(torch.finfo(dtype).eps)
    return 0.0


def largest_difference(
    actual: Tensor, expected: Tensor, floor: Callable[[], float] = float
) -> float:
    """Return the largest difference relative to the largest expected value, or a floor."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return math.inf
    actual, expected = _dense(actual), _dense(expected)
    if torch.equal(actual, expected):  # most are, and no copies are made for it
        return 0.0
    apart = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if not apart.any():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    gap = float((actual[apart].to(wide) - expected[apart].to(wide)).abs().max())
    largest = max(_largest(expected), floor())
    return gap / largest if largest and math.isfinite(gap) else math.inf


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()


def _largest(tensor: Tensor | None) -> float:
    """Return the largest finite magnitude."""
    if tensor is None:
        return 0.0
    values = _dense(tensor).abs()
    values = values[values.isfinite()]
    return float(values.max()) if values.numel() else 0.0
