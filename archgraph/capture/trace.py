"""Trace: convert an ``nn.Module`` and example inputs to an :class:`ArchGraph` and its state.

``torch.export`` captures the module in eval and in train mode. The passes of this package transform
each capture: inlining, folding, casts, writes, recurrent layers and spelling. Then the two captures
are merged. Differences become a :class:`~archgraph.graph.ir.Mode`, so that ``.train()`` and
``.eval()`` have the same effect on the built module as on the original.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archgraph.capture.examples import (
    NONE_OPEN,
    ExampleInputs,
    OpenAxes,
    buffers_on_meta,
    example_tensors,
    on_device_of,
)
from archgraph.capture.export import Captured, export_program
from archgraph.capture.failures import SWITCHES
from archgraph.capture.modes import reading_modes
from archgraph.capture.reconcile import live_flags, reconcile, same_inputs
from archgraph.capture.signature import open_axes, with_signature
from archgraph.capture.spell import OneMode, canonical
from archgraph.capture.surroundings import recording
from archgraph.capture.tape import Note, dtype_name
from archgraph.capture.unseen import (
    extra_state,
    other_classes,
    other_state,
    registered,
    shared,
    unregistered,
)
from archgraph.capture.verify import down_to_one
from archgraph.capture.verify import verify as verified
from archgraph.errors import GraphError, TraceError, TraceWarning
from archgraph.graph.ir import ArchGraph, Leaf, Param, Role, TensorType, walk
from archgraph.graph.passes import prune, renumber
from archgraph.graph.sizes import open_sizes
from archgraph.graph.values import BATCH_WORD
from archgraph.hints import listed
from archgraph.limits import LIMITS
from archgraph.machine import uncollected
from archgraph.ops import table
from archgraph.ops.check import check
from archgraph.ops.constants import constant


@dataclass(frozen=True, slots=True)
class Traced:
    """A captured model: its graph and its weights.

    It can be unpacked: ``graph, state = ag.trace(…)``.

    Attributes:
        graph: The architecture. It does not have a device.
        state: Dict from names to copies of parameters and buffers, on the model's device.
    """

    graph: ArchGraph
    state: dict[str, Tensor]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the graph, one sentence each.

        The notes describe operators that run in a single mode, settings that tracing fixed, such as
        the batch size, and differences between the graph and the model.
        """
        return self.graph.notes

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph, self.state))

    def __repr__(self) -> str:
        line, *notes = repr(self.graph).split("\n")
        return "\n".join((f"<Traced {line}, {len(self.state)} tensors>", *notes))

    def _repr_svg_(self) -> str | None:
        return self.graph._repr_svg_()

    def _repr_html_(self) -> str | None:
        return self.graph._repr_html_()


def trace(
    model: nn.Module,
    /,
    *args: object,
    train: bool = True,
    strict: bool = True,
    verify: bool = True,
    name: str = "",
    open: Mapping[str, Mapping[int, str]] = NONE_OPEN,
    **kwargs: object,
) -> Traced:
    """Capture a model as a graph and a state.

    The result can be unpacked: ``graph, state = ag.trace(…)``. The sizes of the example inputs are
    fixed in the graph, except for the batch and the sizes in ``open``. After the capture, the model
    is restored, including its weights, buffers, gradients, attributes and mode, and the state of
    the random number generators.

    Args:
        model: Any module that ``torch.export`` can capture.
        *args: Example inputs, passed separately, in the order of ``forward``. Dimension 0 of a
            tensor is the batch. A batch of one is enough. If ``forward`` treats a batch of one
            differently, the graph represents the computation for larger batches.
        train: If True, capture the train mode as well (dropout, batch statistics, auxiliary
            outputs). If False, calling ``.train()`` on the built module affects only norm layers
            and dropout.
        strict: If True, raise an error if the results, gradients or training steps of the graph
            would differ from the model's. Possible causes are hooks on gradients, parameters that
            share memory, attributes that ``forward`` sets for its next call, and differences that
            ``verify`` finds. If False, warn instead and add a note to the graph.
        verify: If True, run the model and the built module, and compare outputs, gradients and
            buffers. Both modules run forward and backward, twice in eval mode and twice in train
            mode. If the batch size is open, batches of two and three examples are used. For a model
            on the meta device, or if memory is insufficient, the comparison is skipped and a note
            is added to the graph. Differences that occur only in later calls, with other values or
            in larger batches are not detected.
        name: Name of the graph. Default: the name of the model's class.
        open: Sizes that stay open (dynamic). For example, ``{"ids": {1: "length"}}`` means that
            dimension 1 of the input ``ids`` has an open size with the name ``length``. Dimensions
            with the same name have the same size. If the batch dimension of an input is not
            dimension 0, name it ``batch`` in this dict. The key of a nested input is its path, such
            as ``images.0``. (If ``forward`` has an argument called ``open``, pass this argument by
            position.)
        **kwargs: Example inputs by name.

    Raises:
        TraceError: If the model cannot be captured, or if the graph would compute something else
            than the model. The error has the location and a hint.

    Example:
        >>> import torch
        >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> print(graph.nodes[-1])
        %linear: float32[batch, 2] = aten.linear(input=%input, weight=weight, bias=bias)
        >>> net = torch.nn.Conv1d(3, 2, 5, stride=2)
        >>> print(trace(net, torch.zeros(1, 3, 16), open={"input": {2: "length"}}).graph.nodes[-1])
        %conv1d: float32[batch, 2, (length + 1) // 2 - 2] = \
aten.conv1d(input=%input, weight=weight, bias=bias, stride=(2,))
    """
    with recording(model):
        return _captured(model, args, kwargs, train, strict, verify, name, open)


def _captured(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    train: bool,
    strict: bool,
    verify: bool,
    name: str,
    open: Mapping[str, Mapping[int, str]],
) -> Traced:
    with _explaining_tuples(args):
        _check_ready(model, args, kwargs)
        axes = open_axes(model, (args, kwargs), open)
    differences = [note for check in _CHECKS for note in check(model)]
    unlike = _texts(differences, strict)
    # Known differences would only show again.
    compares = verify and not _differs(differences)
    capture = functools.partial(
        _traced,
        model,
        (args, kwargs),
        name or type(model).__name__,
        train=train,
        verify=compares,
        axes=axes,
    )
    with uncollected(), _explaining_tuples(args):
        traced, notes = _switching(model, capture)
    skipped = () if verify else ("not verified: traced with verify=False",)
    return _with_notes(traced, (*unlike, *_texts(notes, strict), *skipped))


def _switching(
    model: nn.Module, capture: Callable[[], tuple[Traced, list[Note]]]
) -> tuple[Traced, list[Note]]:
    """Capture a model; after a failure, try again with a setting that may avoid the failure."""
    changes: list[Note] = []
    left = dict(SWITCHES)
    with contextlib.ExitStack() as settings:
        while True:
            try:
                traced, notes = capture()
            except TraceError as error:
                switch = left.pop(type(error), None)
                change = settings.enter_context(switch(model)) if switch else []
                if not change:
                    raise
                changes += change
            else:
                return traced, [*changes, *notes]


def trace_own(
    model: nn.Module,
    kwargs: Mapping[str, Tensor],
    name: str,
    open: Mapping[str, Mapping[int, str]] = NONE_OPEN,
    fixed: str = "",
) -> Traced:
    """Capture a module of this package in eval mode, without running it.

    Since the module's code is known, the built module is not compared with it.

    Args:
        model: The module.
        kwargs: Example inputs by name.
        name: Name of the graph.
        open: Sizes that stay open, as for :func:`trace`.
        fixed: Reason why the batch has the example's size; empty if the batch is open.

    Raises:
        TraceError: If the module cannot be captured.
    """
    inputs: ExampleInputs = (), dict(kwargs)
    _check_ready(model, *inputs)
    axes = open_axes(model, inputs, open)
    with uncollected():
        traced, notes = _traced(
            model, inputs, name, limit=LIMITS.folded_bytes, axes=axes, fixed=fixed
        )
    return _with_notes(traced, _texts(notes, strict=True))


def _with_notes(traced: Traced, more: Iterable[str]) -> Traced:
    texts = dict.fromkeys((*traced.notes, *more))
    return dataclasses.replace(traced, graph=traced.graph.replace(notes=tuple(texts)))


def _differs(notes: Iterable[Note]) -> bool:
    return any(isinstance(note, TraceError) for note in notes)


@contextlib.contextmanager
def _explaining_tuples(args: tuple[object, ...]) -> Iterator[None]:
    """Add a hint if the inputs were passed in one tuple, as for ``torch.export``."""
    try:
        yield
    except TraceError as error:
        single = args[0] if len(args) == 1 else None
        if type(single) in (tuple, list) and example_tensors(single):
            error.hint = "pass the inputs one by one, ag.trace(model, x, y), not in a tuple"
        raise


_CHECKS = (registered, extra_state, other_state, other_classes)  # of a model before its capture


def _texts(notes: Sequence[Note], strict: bool) -> tuple[str, ...]:
    """Return notes as text; if notes contain errors, raise the first or warn about all."""
    for note in notes:
        if isinstance(note, TraceError):
            if strict:
                hint = f"{note.hint}, or " if note.hint else ""
                note.hint = f"{hint}trace with strict=False to add a note instead"
                raise note
            warnings.warn(str(note), TraceWarning, stacklevel=3)
    return tuple(dict.fromkeys(map(str, notes)))


@dataclass(frozen=True)
class Leaves:
    """Parameters and buffers of a model.

    Attributes:
        owner: Dict from key of the state dict to name of the parameter or buffer. Tied parameters
            have several keys with the same name.
        params: The parameters and buffers.
    """

    owner: Mapping[str, str]
    params: tuple[Param, ...]

    @staticmethod
    def of(model: nn.Module) -> Leaves:
        """Return the parameters and buffers of a model; several keys may have the same tensor.

        A buffer that is not in the state dict is included only if it is on the meta device.
        Otherwise, its values become a constant of the graph.
        """
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        tensors = parameters | buffers
        keys: dict[int, list[str]] = {}
        unknown = (name for name, buffer in buffers.items() if buffer.is_meta)
        for key in dict.fromkeys((*model.state_dict(keep_vars=True), *unknown)):
            if key in tensors:
                keys.setdefault(id(tensors[key]), []).append(key)
        params = []
        for name, *aliases in keys.values():
            tensor = tensors[name]
            type_ = TensorType(tuple(map(int, tensor.shape)), dtype_name(tensor.dtype))
            role: Role = "parameter" if name in parameters else "buffer"
            params.append(Param(name, type_, role, tensor.requires_grad, tuple(aliases)))
        return Leaves({key: same[0] for same in keys.values() for key in same}, tuple(params))

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """Copy the current values of a model's parameters and buffers."""
        tensors = dict(model.named_buffers(remove_duplicate=False)) | model.state_dict()
        return {p.name: tensors[p.name].detach().clone() for p in self.params}


def _traced(
    model: nn.Module,
    inputs: ExampleInputs,
    name: str,
    *,
    train: bool = False,
    verify: bool = False,
    limit: float = math.inf,
    axes: OpenAxes = (),
    fixed: str = "",
) -> tuple[Traced, list[Note]]:
    """Capture a model; ``limit`` is the maximum size of all results of folding, in bytes.

    If the graph is not valid for a batch of one or two, for example because it uses half of the
    batch or the third example, the batch has the example's size.
    """
    again = functools.partial(
        _traced_as, model, inputs, name, train=train, verify=verify, limit=limit, axes=axes
    )
    try:
        return again(fixed=fixed)
    except GraphError as error:
        if fixed:
            raise
        reason = f"at other sizes {error.where} fails: {error.message}"
        return again(fixed=f"the batch size is fixed at that of the example: {reason}")


def _traced_as(
    model: nn.Module,
    inputs: ExampleInputs,
    name: str,
    *,
    train: bool,
    verify: bool,
    limit: float,
    axes: OpenAxes,
    fixed: str,
) -> tuple[Traced, list[Note]]:
    """Capture a model; the batch is open if ``fixed`` is empty.

    Raises:
        GraphError: If the graph is not valid for all batch sizes.
    """
    # Before the capture, which sets modes and, on the meta device, replaces buffers.
    flags, leaves = _flags(model), Leaves.of(model)
    with buffers_on_meta(model) as values:
        work = _Capture(model, on_device_of(model, inputs), leaves, values, limit, axes, fixed)
        draft, captured = work.both(train)
        buffers = dict(model.named_buffers(remove_duplicate=False)) | values
        graph, lost = _graph(draft, buffers, leaves, name)
        unread = _unread_statistics(draft, graph)
        notes = [*draft.notes, *unread.values(), *_partly_frozen(model, flags)]
        without_memory = any(t.is_meta for t in (*model.parameters(), *model.buffers()))
        if without_memory:
            unknown = f"; buffers without initial values: {', '.join(lost)}" if lost else ""
            notes.append(
                "the model is on the meta device: its state has no values, and it was not verified"
                + unknown
            )
        known = getattr(model, "arch", None)
        if isinstance(known, ArchGraph) and _bare(known) == _bare(graph):
            graph = known  # the same architecture: keep its module scopes and sections
        graph = graph.replace(flags=flags, shared=_shared(model))
        _check(graph, axes)
        traced = Traced(graph, leaves.state(model))
    if verify and not without_memory and not _differs(notes):
        notes += verified(model, graph, traced.state, captured, train=train, unread=unread)
        wider = down_to_one(model, graph, traced.state, captured)
        traced = dataclasses.replace(traced, graph=wider)
    return traced, notes


def _check(graph: ArchGraph, axes: OpenAxes) -> None:
    """Check a graph; report failures for other values of an open size as errors of the example.

    Raises:
        TraceError: If a derived size is valid only for the example's values.
    """
    try:
        check(graph)
    except GraphError as error:
        if not any(axes):
            raise
        names = ", ".join(name for name in open_sizes(graph) if name != BATCH_WORD)
        raise TraceError(
            f"{names}: derived sizes are valid only for the example",
            where=error.where,
            found=error.found,
            hint="trace an example with larger sizes, or remove a size from `open`",
        ) from error


@dataclass(frozen=True)
class _Capture:
    """Capture of a model, first in eval mode and then in train mode.

    Attributes:
        values: Values of buffers that are on the meta device during the capture.
        limit: Maximum size of all results that folding computes, in bytes.
        axes: For each input tensor, the axes that the user has opened.
        fixed: Reason why the batch has the example's size, if known before the capture.
    """

    model: nn.Module
    inputs: ExampleInputs
    leaves: Leaves
    values: Mapping[str, Tensor]
    limit: float
    axes: OpenAxes
    fixed: str

    def both(self, train: bool) -> tuple[OneMode, Captured]:
        """Return a capture of both modes and a capture of eval mode; restore the model's mode."""
        modes = {m: m.training for m in self.model.modules()}
        try:
            self.model.eval()
            with reading_modes() as readers:
                evaluated, captured = self.one()
            # If all differences between the modes are flags of operators, one capture has both.
            flagged = {n.scope for n in evaluated.nodes if table.row(n.op).training_flag}
            if not train or readers.follow_flags(self.model, flagged):
                return live_flags(evaluated, self.leaves.params), captured
            self.model.train()
            return self.reconciled(evaluated), captured
        finally:
            # Not .train(): a model's own version may freeze a part, or raise.
            for module, mode in modes.items():
                module.training = mode

    def one(self, fixed: str = "") -> tuple[OneMode, Captured]:
        """Return the canonical capture in the model's current mode.

        ``fixed`` is the reason why the batch has the example's size, if known.
        """
        captured = export_program(self.model, *self.inputs, fixed or self.fixed, self.axes)
        stored = captured.program.constants
        stored.update({name: self.values[name] for name in stored.keys() & self.values.keys()})
        owners = self.leaves.owner
        parameters = {p.name for p in self.leaves.params if p.role == "parameter"}
        spelt = canonical(captured.program, captured.names, owners, parameters, self.limit)
        constants = {k: v for k, v in stored.items() if torch.is_tensor(v)}
        unlike = shared(self.model, constants, spelt.updates)
        notes = (*spelt.notes, *unlike, *unregistered(self.model, constants))
        spelt = dataclasses.replace(spelt, notes=notes)
        return with_signature(self.model, captured, spelt), captured

    def reconciled(self, evaluated: OneMode) -> OneMode:
        """Return a capture of both modes; if train mode fails, use eval mode for both."""
        try:
            trained, _ = self.one(evaluated.fixed)
            same_inputs(evaluated, trained)
        except TraceError as error:
            remedy = f"{error.hint}, or " if error.hint else ""
            note = TraceError(
                "train mode could not be captured, and eval mode would replace it",
                where=error.where,
                found=error.message,
                hint=f"{remedy}trace with train=False if that is intended",
            )
            alone = dataclasses.replace(evaluated, notes=(*evaluated.notes, note))
            return live_flags(alone, self.leaves.params)
        return reconcile(evaluated, trained)


def _flags(model: nn.Module) -> tuple[tuple[str, bool], ...]:
    """Return the ``training`` flags of modules that differ from the flag of their parent."""
    flags = {path: module.training for path, module in model.named_modules()}
    around = {path: flags.get(path.rpartition(".")[0], True) if path else True for path in flags}
    return tuple((path, flag) for path, flag in flags.items() if flag != around[path])


def _shared(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names of each module that a model has under several names."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return tuple(tuple(several) for several in names.values() if len(several) > 1)


def _partly_frozen(model: nn.Module, flags: tuple[tuple[str, bool], ...]) -> Iterator[str]:
    """Yield the note on modules that were in another mode than the model."""
    paths = [path for path, _ in flags if path]
    if paths:
        mode, other = ("train", "eval") if model.training else ("eval", "train")
        yield (
            f"{listed(paths)}: in {other} mode while the model is in {mode} mode; the built module "
            "starts with these flags, and .train() and .eval() set all of them, as on the model"
        )


def _check_ready(model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Raise an error for models and inputs that can never be captured."""
    if not isinstance(model, nn.Module):
        raise TraceError("not a torch.nn.Module", found=type(model).__name__)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                "a scripted module has no Python code to capture; trace the original module",
                where=path or type(model).__name__,
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise TraceError("has no values yet: run the lazy module once first", where=name)
    on_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    if not on_meta and any(tensor.is_meta for tensor in example_tensors((args, kwargs))):
        raise TraceError(
            "an example input has no values: it is on the meta device, and the model is not",
            where=type(model).__name__,
            hint='pass one with values: torch.zeros_like(x, device="cpu")',
        )
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"example inputs do not fit forward: {error}",
            where=type(model).__name__,
            expected=f"forward{signature}",
        ) from None


def _unread_statistics(draft: OneMode, graph: ArchGraph) -> dict[str, str]:
    """Return norms on which no output depends, which only update statistics, with notes."""
    alive = {leaf for node in graph.nodes for leaf in node.leaves()}
    notes = {}
    for node in draft.nodes:
        counted = [node.arg(name) for name in table.row(node.op).statistics]
        names = [leaf.name for leaf in counted if isinstance(leaf, Leaf)]
        if names and alive.isdisjoint(names):
            where = f"{node.scope}: " if node.scope else ""
            notes[names[0].rpartition(".")[0]] = (
                f"{where}no output depends on this norm: {' and '.join(names)} change in the "
                "model's train mode, but not in the graph"
            )
    return notes


def _bare(graph: ArchGraph) -> ArchGraph:
    return graph.replace(
        nodes=tuple(dataclasses.replace(n, scope="") for n in graph.nodes), sections=()
    )


def _graph(
    draft: OneMode, buffers: Mapping[str, Tensor], leaves: Leaves, name: str
) -> tuple[ArchGraph, list[str]]:
    """Return the graph of a capture, and the buffers that no operator initialises."""
    graph = ArchGraph(
        draft.inputs,
        leaves.params + tuple(draft.constants.values()),
        draft.nodes,
        draft.outputs,
        tuple(draft.updates.items()),
        name=name,
    )
    graph = renumber(prune(graph, leaves=False))
    used = {leaf for n in graph.nodes for leaf in n.leaves()}
    values = (graph.outputs, *(v for _, v in graph.updates))
    used |= {i.name for v in values for i in walk(v) if isinstance(i, Leaf)}
    params, lost = [], []
    for param in graph.params:
        if param.role == "constant" and param.name not in used:
            continue
        if param.role == "buffer" and table.initialiser(graph, param) is None:
            if buffers[param.name].is_meta:
                lost.append(param.name)
            else:
                param = dataclasses.replace(param, value=constant(buffers[param.name]))
        params.append(param)
    return graph.replace(params=tuple(params)), lost
