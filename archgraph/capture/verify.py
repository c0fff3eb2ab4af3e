"""Verify: run a model and the module that is built from its graph side by side.

Each module is called twice in eval mode and twice in train mode, forward and backward, with the
same seed, and with two and three examples if the batch is open. Outputs, gradients of all
parameters, and buffers must agree. The comparison finds the effects of everything that a capture
cannot show, such as a function with a custom gradient, a hook, or an attribute that the next call
reads. Formulas are compared first, and numbers if formulas differ. Effects that occur only in a
later call, at another time or in larger batches are not detected. The built module uses the
parameters of the state without copying them, since they are not written to.

Backward passes also run without numbers. An earlier version skipped them if forwards recorded equal
autograd graphs, and did not notice wrong gradients of forty models. The reasons were calls of
``backward`` in forward, writes after a tensor was saved, and slices with equal digests. The user's
code is not analysed: 1,357 lines of such an analysis rejected none of 341 models from other
packages, and missed a function whose ``apply`` had another name.
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

_COPIES = 3  # of all leaves: two sets of gradients, and intermediate results
_ALIGNED = 64  # alignment of PyTorch's memory in bytes
_LOUD = 1e3  # factor of the incoming gradients of the second backward
# Kernels whose last bits differ from call to call: oneDNN's recurrent layers.
_UNSTEADY = frozenset({"aten::mkldnn_rnn_layer"})
_FLOOR = 1e-3  # share of the largest gradient: smaller ones are compared relative to it


@dataclass(frozen=True)
class _Results:
    """Results of one call: named tensors, and a description of the backward pass.

    Attributes:
        drew: Whether the call drew random numbers.
        backward: Number of nodes of each kind in the backward pass. It is equal for equal
            operators.
        functions: User functions with a custom gradient in the backward pass.
        recomputed: A buffer that the backward pass changed; empty if there is none.
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
        """Magnitude below which gradients are compared absolutely."""
        return _FLOOR * max(map(_largest, self.gradients.values()), default=0.0)


@dataclass(frozen=True)
class _Difference:
    """A difference between both modules in an output, a gradient or a buffer."""

    kind: str
    name: str
    far: str


@dataclass(frozen=True)
class _Call:
    """One call of both modules."""

    inputs: ExampleInputs
    training: bool
    backward: bool
    second: bool = False
    cast: bool = False  # under autocast
    sizes: str = ""  # at the end of a range

    @property
    def name(self) -> str:
        """Name of the call in messages."""
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
    """Run the backward pass of a call, and add the gradients to its results."""
    backward, functions = _backward(smooth)  # before it runs, since that frees the graph
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
    """Compare a model with the module that is built from its graph; undo all effects of the calls.

    1. Run both modules with numbers in eval mode.
    2. Run both without numbers. Equal formulas mean that both compute the same in all calls. If the
       modules draw random numbers, whose order depends on memory, train mode runs with numbers as
       well.
    3. If formulas differ, or forward reads numbers, run all calls with numbers.

    Args:
        model: The model.
        graph: Its graph.
        state: Its weights.
        captured: The capture of its forward, with example inputs.
        train: If True, compare train mode as well.
        unread: Modules whose buffers forward may change in the model but not in the built module,
            because no output depends on these modules. The graph already has a note about this.

    Returns:
        Errors for differences, and notes for everything that could not be compared.
    """
    formulas, notes = Formulas(), list[Note]()
    inputs, modes = captured.few(), (False, True) if train else (False,)

    def alike_in(training: bool) -> bool:
        with restored(model) as changed, _plainly(model), quiet():
            built = filled(graph, state, shared=True)
            work = _Verification(model, built, graph, changed, unread, captured.branches)
            work.compare(_Call(inputs, training, backward=False))
            return not work.notes and not work.reordered

    # First, so that values that forward stores outside of the model in its first call have numbers.
    alike = alike_in(training=False)  # 1
    alike = alike and _equal_formulas(formulas, model, graph, state, captured, modes, unread)  # 2
    if formulas.kept_outside():
        notes.append(
            "forward keeps results outside of the model (in a global, a class, a closure); results "
            "kept during tracing are NaN"
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
        # A forward may not accept other values, or another batch: then the example must do.
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
    if captured.branches or captured.observed.autocast:  # not every operator has a formula
        return False
    inputs = captured.few()
    other = redrawn(captured.larger(inputs))
    calls = [_Call(i, mode, True, i is other) for mode in modes for i in (inputs, other)]
    # Also twice without gradients: a call may read what the previous one stored.
    calls += [_Call(i, training=False, backward=False) for i in (inputs, other)]
    calls += (_Call(ends, training=False, backward=False) for _, ends in captured.ends())
    with restored(model) as changed, _plainly(model), quiet():
        built = filled(graph, state, shared=True)
        work = _Verification(model, built, graph, changed, unread, captured.branches)
        return work.equal_formulas(formulas, calls)


def down_to_one(model: nn.Module, graph: ArchGraph, state: State, captured: Captured) -> ArchGraph:
    """Return the graph with open sizes from 1 on, if graph and model agree at size 1.

    ``torch.export`` treats a size of 1 as a constant, so an export is valid from 2 on.
    """
    widened = captured.inputs  # each size is one if the graph is valid for one
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
                # In training, the model may refuse it (one value for batch statistics).
                agree.append(not differs and (training or not work.failed))
        if all(agree):
            graph, widened = wider, together
    return graph


def _too_large(state: State) -> str:
    """Return an error text if memory is too short for both modules; empty if it is sufficient."""
    needed = _COPIES * sum(tensor.nbytes for tensor in state.values())
    device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if needed <= free:
        return ""
    return f"it needs {needed / 2**30:.1f} GiB of memory, but {free / 2**30:.1f} GiB are free"


def _free_memory() -> float:
    """Return the free memory in bytes, at most the container's limit; infinity if unknown."""
    bounds = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        bounds.append(int(line.split()[1]) * 1024)
    # Inside a container, the figure above is the host's.
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # "max" if there is no limit
        used = int((group / "memory.current").read_text("ascii"))
        bounds.append(int((group / "memory.max").read_text("ascii")) - used)
    return min(bounds)


@contextlib.contextmanager
def _plainly(model: nn.Module) -> Iterator[None]:
    """Run operators as in the capture: do not compile, and do not fuse attention in eval mode."""
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
    """Mode that counts the operators that run, except views."""

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
    """Mode with equal random numbers for equal shapes, for any order of draws and memory format."""

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        # Draws follow the order of memory, which may differ between the two modules.
        plain = pytree.tree_map_only(Tensor, Tensor.contiguous, args)
        torch.manual_seed(sum(t.numel() for t in pytree.tree_leaves(args) if torch.is_tensor(t)))
        result = func(*plain, **kwargs)
        if func._schema.is_mutable and plain[0] is not args[0]:
            return args[0].copy_(result)
        return result


@dataclass
class _Verification:
    """Both modules, and their differences so far."""

    model: nn.Module
    built: nn.Module
    graph: ArchGraph
    changed: Callable[[], list[str]]
    unread: Collection[str]
    branches: bool  # on values: their operators cannot be observed
    notes: list[Note] = field(default_factory=list)
    failed: set[bool] = field(default_factory=set)  # modes
    reordered: bool = False  # random numbers, in training
    alike: bool = False  # whether later calls ran the operators of the first

    def __post_init__(self) -> None:
        self.parameters = dict(self.model.named_parameters())  # before the first call
        self.parts = _parts(self.model)

    def compare(self, call: _Call, instead: Sequence[ExampleInputs] = ()) -> None:
        """Run both modules and record differences; try ``instead`` if the model raises."""
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
            text = f"the built module raises in {call.name}, but the model does not: {reason}"
            self.notes.append(TraceError(text, where=type(self.model).__name__))
            return
        differences = [*self._differences(actual, expected, call)]
        if differences and expected.drew and not call.second:
            self.reordered = True  # the second call shows whether only the order differs
        elif differences:
            self.failed.add(call.training)
            self.notes.append(self._error(differences, call, expected))
        elif self.reordered and call.second:
            self.notes.append(
                f"in {_mode(call.training)} random numbers are drawn in another order: with equal "
                "seeds, draws differ from the model's"
            )
        elif not call.second:
            self.notes += [
                f"{_source(function)}: {_short(function)} defines its own backward, which agreed "
                "with autograd in the two calls compared; for other values it may not"
                for function in expected.functions
            ]

    def _lasting(self, results: _Results) -> TraceError | None:
        """Return an error if forward changed attributes of the model, or kept captured tensors."""
        forward = definition_of(type(self.model).forward)
        if replaced := sorted(_parts(self.model).items() ^ self.parts.items()):
            text = "forward makes or replaces this part, but the graph does not; call it once first"
            return TraceError(text, where=replaced[0][0], found=forward)
        if any(isinstance(tensor, FakeTensor) for tensor in results.outputs.values()):
            text = "forward stored a tensor of the capture where ag.trace cannot remove it"
            hint = "construct the model again and call it once before tracing"
            return TraceError(text, where=forward, hint=hint)
        return None

    def _built_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the built module that the model also has."""
        theirs = dict(self.built.named_parameters(remove_duplicate=False))
        return {name: theirs[name] for name in self.parameters if name in theirs}

    def _common_buffers(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the buffers that both modules have and that the graph updates."""
        both = (self.model, self.built)
        names, others = (dict(m.named_buffers(remove_duplicate=False)).keys() for m in both)
        return {
            name: buffer
            for name, buffer in module.named_buffers(remove_duplicate=False)
            if name in names & others and name.rpartition(".")[0] not in self.unread
        }

    def _arguments(self, module: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
        """Return copies of the inputs in the form that a module accepts."""
        args, kwargs = pytree.tree_map_only(Tensor, torch.clone, inputs)
        if module is self.model:
            return args, kwargs
        by_name = forward_arguments(self.model, args, kwargs)
        return (), {name: by_name[name] for name, _ in self.graph.inputs}  # only the tensors

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
        """Run a module without numbers; return the formulas of results, gradients and buffers.

        Raises:
            Unclear: If the call needs numbers.
        """
        module.train(call.training)
        args, kwargs = self._arguments(module, call.inputs)
        if not call.second:  # otherwise gradients accumulate, as over several backward passes
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
            raise Unclear("a custom backward pass")
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
        if not call.second or self.reordered:  # otherwise gradients accumulate
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
        """Return the mode for a call: equal random numbers, counted operators, or no mode."""
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

        # By position: an object of the model's class is a dict in the built module.
        ours, theirs = list(actual.outputs.values()), expected.outputs
        if len(ours) != len(theirs):
            yield _Difference("output", "", f"{len(ours)} tensors instead of {len(theirs)}")
            return
        for value, (name, other) in zip(ours, theirs.items(), strict=True):
            yield from _beyond("output", name, value, other, allowed)
        if call.backward:
            for name, gradient in expected.gradients.items():
                computed = actual.gradients.get(name)
                floor = functools.partial(getattr, expected, "floor")  # only if something differs
                yield from _beyond("gradient", name, computed, gradient, allowed, floor)
        buffers = dict(self.built.named_buffers(remove_duplicate=False))
        for name, buffer in self.model.named_buffers():
            if name in buffers and name.rpartition(".")[0] not in self.unread:
                yield from _beyond("buffer", name, buffers[name], buffer, allowed)

    def _same_operators(self, actual: _Results, expected: _Results) -> bool:
        """Return whether both run the same operators on the same memory format, bit for bit."""
        if expected.operators:
            alike = actual.operators == expected.operators
            steady = _UNSTEADY.isdisjoint(expected.operators)
            self.alike = alike and steady and self._same_memory()
        return self.alike and actual.backward == expected.backward

    def _same_memory(self) -> bool:
        """Return whether parameters of both modules have the same memory layout."""
        # Kernels sum in an order that depends on strides and on the alignment of vectors.
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
        """Return the error for differences in a call, with their sizes and the likely cause."""
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
            hint = "remove the code that changes gradients in forward, and pass use_reentrant=False"
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
            message = f"forward changes {attributes}, and later calls return other results"
        else:
            where, hint = forward, "pass changing values as inputs, keep lasting ones in buffers"
            message = (
                "the model and its graph compute different results: forward depends on something "
                "that a graph does not record (the time, whether gradients are recorded, whether "
                "it is captured, the effects of an earlier call)"
            )
        return TraceError(message, where=where, found=actual, hint=hint)


def _parts(model: nn.Module) -> dict[str, int]:
    """Return a dict from names to parameters of a model, and the names of its buffers."""
    parts = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    return parts | dict.fromkeys((name for name, _ in model.named_buffers()), 0)


def _source(function: type[Function]) -> str:
    """Return the location of a function's gradient."""
    return definition_of(inspect.unwrap(function.backward))


def _short(function: type[Function]) -> str:
    return function.__qualname__.rpartition(".")[2]


def _named_tensors(outputs: object) -> dict[str, Tensor]:
    """Return a dict from names to the tensors of a module's results, in order."""
    if dataclasses.is_dataclass(outputs) and type(outputs) not in pytree.SUPPORTED_NODES:
        outputs = {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}
    try:
        leaves = [(pytree.keystr(k) or "0", v) for k, v in pytree.tree_leaves_with_path(outputs)]
    except ValueError:  # a type that does not name its entries
        leaves = [(str(k), v) for k, v in enumerate(pytree.tree_leaves(outputs))]
    return {name: value for name, value in leaves if isinstance(value, Tensor)}


def _backward(results: Sequence[Tensor]) -> tuple[Counter[str], list[type[Function]]]:
    """Return the kinds of nodes and the functions in the backward pass of some results."""
    waiting = [r.grad_fn for r in results if r.grad_fn is not None]
    visited = set(waiting)
    functions: dict[type[Function], None] = {}
    names: Counter[str] = Counter()
    while waiting:
        node = waiting.pop()
        names[node.name()] += 1
        # By class, since `apply` may be bound to another name.
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
    """Return the incoming gradient of a result. Its large values detect clipping of gradients."""
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
    """Yield the difference of a tensor if it exceeds the tolerance for its dtype."""
    if actual is None and expected is None:
        return
    if actual is None or expected is None:
        which = "model" if actual is None else "graph"
        yield _Difference(kind, name, f"exists only in the {which}")
        return
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        types = (f"{t.dtype} {tuple(t.shape)}" for t in (actual, expected))
        yield _Difference(kind, name, " instead of ".join(types))
        return
    gap = largest_difference(actual, expected, floor)
    if gap > allowed(expected.dtype):
        yield _Difference(kind, name, f"differs by {gap:.1e} of its largest value")


def tolerance_of(dtype: torch.dtype) -> float:
    """Return the tolerance, relative to the largest value, for modules with different operators."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.sqrt(torch.finfo(dtype).eps)
    return 0.0


def largest_difference(
    actual: Tensor, expected: Tensor, floor: Callable[[], float] = float
) -> float:
    """Return the largest difference, divided by the larger of ``floor`` and the largest value."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return math.inf
    actual, expected = _dense(actual), _dense(expected)
    if torch.equal(actual, expected):  # the usual case, which makes no copies
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
