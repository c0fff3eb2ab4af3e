"""Capture: an ``nn.Module`` and example inputs become an :class:`ArchGraph` and its state.

``torch.export`` captures the module in eval and in train mode. Each capture passes through
inlining, folding, casts, writes, recurrent layers and spelling, each a file of this room; then the
two are laid over one another: what differs becomes a :class:`~archgraph.graph.ir.Mode`, so that
``.train()`` and ``.eval()`` of the built module behave as the original's do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from archgraph.capture.caches import uncached
from archgraph.capture.casts import spell_casts
from archgraph.capture.examples import buffers_on_meta, on_device_of
from archgraph.capture.export import Captured, export_program
from archgraph.capture.failures import UnknownType, suggesting
from archgraph.capture.fold import fold
from archgraph.capture.hooks import registered
from archgraph.capture.inline import inline
from archgraph.capture.modes import reading_modes
from archgraph.capture.reconcile import live_flags, reconcile, same_inputs
from archgraph.capture.recurrent import unstack
from archgraph.capture.signature import with_signature
from archgraph.capture.spell import OneMode, spell
from archgraph.capture.surroundings import uncollected
from archgraph.capture.tape import Note, dtype_name
from archgraph.capture.unseen import (
    extra_state,
    other_classes,
    other_state,
    shared,
    unregistered,
)
from archgraph.capture.verify import verify as verified
from archgraph.capture.writes import functionalised
from archgraph.errors import TraceError, TraceWarning
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Role, TensorType, walk
from archgraph.graph.passes import prune, renumber
from archgraph.hints import listed
from archgraph.limits import LIMITS
from archgraph.ops import table
from archgraph.ops.check import check
from archgraph.ops.constants import constant


@dataclass(frozen=True, slots=True)
class Traced:
    """A captured model: its graph and its weights.

    It unpacks as ``graph, state``.

    Attributes:
        graph: The architecture; it holds no device.
        state: Tensors by leaf name, copies, on the device where the model is.
    """

    graph: ArchGraph
    state: dict[str, torch.Tensor]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the graph, one sentence each; ``repr`` shows them.

        They say what only one mode does, what tracing fixed (such as the size of a batch), and
        where the graph differs from the model.
        """
        return self.graph.notes

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph, self.state))

    def __repr__(self) -> str:
        line, *notes = repr(self.graph).split("\n")
        return "\n".join((f"<Traced {line}, {len(self.state)} tensors>", *notes))

    def _repr_svg_(self) -> str | None:
        return self.graph._repr_svg_()


def trace(
    model: torch.nn.Module,
    /,
    *args: Any,
    train: bool = True,
    strict: bool = True,
    verify: bool = True,
    name: str = "",
    **kwargs: Any,
) -> Traced:
    """Capture a model as a graph and a state; unpacks as ``graph, state``.

    The graph keeps every size of the example except the batch. Afterwards the model is as it was:
    weights, buffers, gradients, attributes, mode and random numbers.

    Args:
        model: Any module that ``torch.export`` can capture.
        *args: Example inputs, one argument each, in the order of ``forward``. Dimension 0 of a
            tensor is the batch. A batch of one is enough. (If ``forward`` branches on a batch of
            one, the graph computes what the model computes for larger batches.)
        train: Capture the train mode as well (dropout, batch statistics, auxiliary outputs). If
            False, only norms and dropouts of the built module follow ``.train()``.
        strict: Refuse a model whose graph would give other results, gradients or training steps:
            because of hooks on gradients, memory that two parameters share, attributes that the
            next call reads, or whatever ``verify`` finds. If False, warn instead and add a note.
        verify: Run the model and the built module side by side, two calls in eval mode and two in
            train mode with backward, and compare outputs, gradients and buffers. Skipped, with a
            note, for a model on the meta device or if memory is short. What only shows at a later
            call, or for other values, is not detected.
        name: Label of the graph. Default: the name of the model's class.
        **kwargs: Example inputs by name.

    Raises:
        TraceError: If the model cannot be captured, or its graph would differ from it; says where
            and what to do.

    Example:
        >>> import torch
        >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> print(graph.nodes[-1])
        %linear: float32[batch, 2] = aten.linear(input=%input, weight=weight, bias=bias)
    """
    with _explaining_tuples(args):
        _ready(model, args, kwargs)
    checked = itertools.chain(*(check(model) for check in _CHECKS))
    differences = [*checked]
    unlike = _said(differences, strict)
    with uncollected(), _explaining_tuples(args), suggesting(model):
        # What is known to differ would show again.
        compares = verify and not any(isinstance(note, TraceError) for note in differences)
        way = _Way(train, name or type(model).__name__, compares)
        traced, notes = _traced_uncached(model, args, kwargs, way)
    skipped = () if verify else ("not verified: traced with verify=False",)
    return _noted(traced, (*unlike, *_said(notes, strict), *skipped))


def trace_own(model: torch.nn.Module, kwargs: Mapping[str, torch.Tensor], name: str) -> Traced:
    """Capture a module of this package in eval mode, without running it.

    Its code is known, so no call has to show that the built module computes the same.

    Args:
        model: The module.
        kwargs: Example inputs by name.
        name: Label of the graph.

    Raises:
        TraceError: If it cannot be captured.
    """
    _ready(model, (), kwargs)
    with uncollected():
        traced, notes = _traced(model, (), kwargs, _Way(False, name, limited=True))
    return _noted(traced, _said(notes, strict=True))


def _noted(traced: Traced, more: Iterable[str]) -> Traced:
    texts = dict.fromkeys((*traced.notes, *more))
    return dataclasses.replace(traced, graph=traced.graph.replace(notes=tuple(texts)))


@dataclass(frozen=True)
class _Way:
    """How to capture: whether in train mode, too; under which name; whether to limit folding."""

    train: bool
    name: str
    verify: bool = False
    limited: bool = False


@contextlib.contextmanager
def _explaining_tuples(args: tuple[Any, ...]) -> Iterator[None]:
    """Add a hint where the inputs were passed in one tuple, as ``torch.export`` takes them."""
    try:
        yield
    except TraceError as error:
        single = args[0] if len(args) == 1 and type(args[0]) in (tuple, list) else ()
        if any(isinstance(value, torch.Tensor) for value in single):
            error.hint = "pass the inputs one by one, ag.trace(model, x, y), not in a tuple"
        raise


_CHECKS = (registered, extra_state, other_state, other_classes)  # of a model before its capture


def _said(notes: Sequence[Note], strict: bool) -> tuple[str, ...]:
    """Return notes as text; raise the first one that is an error, or warn of all of them."""
    for note in notes:
        if isinstance(note, TraceError):
            if strict:
                ways = filter(None, (note.hint, "trace with strict=False, which notes it"))
                note.hint = ", or ".join(ways)
                raise note
            warnings.warn(str(note), TraceWarning, stacklevel=3)
    return tuple(dict.fromkeys(map(str, notes)))


@dataclass(frozen=True)
class Leaves:
    """Leaves of a model: which leaf each state-dict key belongs to, and the leaves in order."""

    owner: Mapping[str, str]
    params: tuple[Param, ...]

    @staticmethod
    def of(model: torch.nn.Module) -> Leaves:
        """Return the leaves of a model; keys of one tensor are one leaf.

        A buffer outside of the state is one, too, where it has no values that a graph could hold.
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

    def state(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Copy the current values of a model's leaves."""
        tensors = dict(model.named_buffers(remove_duplicate=False)) | model.state_dict()
        return {p.name: tensors[p.name].detach().clone() for p in self.params}


def _traced_uncached(
    model: torch.nn.Module, args: Any, kwargs: Any, way: _Way
) -> tuple[Traced, list[Note]]:
    """Capture; where results are of a type that no graph holds, capture without what is cached."""
    try:
        return _traced(model, args, kwargs, way)
    except UnknownType:
        with uncached(model) as switches:
            if not switches:
                raise
            traced, notes = _traced(model, args, kwargs, way)
            return traced, [*switches, *notes]


def _traced(model: torch.nn.Module, args: Any, kwargs: Any, way: _Way) -> tuple[Traced, list[Note]]:
    flags = _flags(model)
    leaves = Leaves.of(model)
    with buffers_on_meta(model) as values:
        args, kwargs = on_device_of(model, (args, kwargs))
        draft, captured = _drafted(model, args, kwargs, leaves, values, way)
        tensors = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
        tensors = dict(model.named_buffers(remove_duplicate=False)) | tensors
        graph, lost = _graph(draft, tensors | values, leaves, way.name)
        unread = _unread_statistics(draft, graph)
        notes = [*draft.notes, *unread.values(), *_partly_frozen(model, flags)]
        without_memory = any(t.is_meta for t in tensors.values())
        if without_memory:
            text = (
                "the model is on the meta device: its state has no values, and nothing verified it"
            )
            unknown = f"; nothing says how these buffers start: {', '.join(lost)}" if lost else ""
            notes.append(text + unknown)
        known = getattr(model, "arch", None)
        if isinstance(known, ArchGraph) and _bare(known) == _bare(graph):
            graph = known  # the same architecture: keep its module scopes and sections
        graph = graph.replace(flags=flags, shared=_shared(model))
        check(graph)
        traced = Traced(graph, leaves.state(model))
    unlike = any(isinstance(note, TraceError) for note in notes)  # it would show again
    if way.verify and not without_memory and not unlike:
        state = traced.state
        notes += verified(model, graph, state, captured, train=way.train, unread=unread)
    return traced, notes


def _drafted(
    model: torch.nn.Module,
    args: Any,
    kwargs: Any,
    leaves: Leaves,
    values: Mapping[str, torch.Tensor],
    way: _Way,
) -> tuple[OneMode, Captured]:
    """Capture both modes as one, and evaluation by itself; the model's modes stay."""
    modes = {m: m.training for m in model.modules()}
    try:
        model.eval()
        with reading_modes() as readers:
            draft, captured = _one_mode(model, args, kwargs, leaves, values, limited=way.limited)
        # If every difference between the modes is a flag of an operator, one capture has both.
        flagged = {n.scope for n in draft.nodes if table.row(n.op).training_flag is not None}
        if way.train and not readers.follow_flags(model, flagged):
            model.train()
            draft = _both_modes(draft, model, args, kwargs, leaves, values)
        else:
            draft = live_flags(draft, leaves.params)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return draft, captured


def _flags(model: torch.nn.Module) -> tuple[tuple[str, bool], ...]:
    """Return the ``training`` flags of modules that differ from that of the module around them."""
    flags = {path: module.training for path, module in model.named_modules()}
    around = {path: flags.get(path.rpartition(".")[0], True) if path else True for path in flags}
    return tuple((path, flag) for path, flag in flags.items() if flag != around[path])


def _shared(model: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names of each module that a model has under several names."""
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return tuple(tuple(several) for several in names.values() if len(several) > 1)


def _partly_frozen(model: torch.nn.Module, flags: tuple[tuple[str, bool], ...]) -> Iterator[str]:
    """Yield the note on modules that were in another mode than the model."""
    paths = [path for path, _ in flags if path]
    if paths:
        mode, other = ("train", "eval") if model.training else ("eval", "train")
        yield (
            f"{listed(paths)}: in {other} mode while the model is in {mode} mode; the built module "
            "starts with these flags, and .train() and .eval() set all of them, as on the model"
        )


def _ready(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Refuse what cannot be captured before trying."""
    if not isinstance(model, torch.nn.Module):
        raise TraceError("not a torch.nn.Module", found=type(model).__name__)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                "a scripted module has no Python to capture",
                where=path or type(model).__name__,
                hint="trace the module that it was scripted from",
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise TraceError(
                "a lazy module has no weights yet",
                where=name,
                hint="run the model once on an example before tracing it",
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


def _one_mode(
    model: torch.nn.Module,
    args: Any,
    kwargs: Any,
    leaves: Leaves,
    values: Mapping[str, torch.Tensor],
    *,
    limited: bool = False,
    fixed: str = "",
) -> tuple[OneMode, Captured]:
    """Return the canonical capture of a model in the mode that it is in.

    ``values`` are those of buffers that are on the meta device for the capture; ``fixed`` says why
    the batch has the example's size, where that is known.
    """
    captured = export_program(model, args, kwargs, fixed)
    stored = captured.program.constants
    stored.update({name: values[name] for name in stored.keys() & values.keys()})
    tape = inline(captured.program, captured.batch, leaves.owner)
    parameters = frozenset(p.name for p in leaves.params if p.role == "parameter")
    folded = fold(tape, leaves.owner, LIMITS.folded_bytes if limited else math.inf)
    spelt = spell(unstack(functionalised(spell_casts(folded), parameters)))
    constants = {k: v for k, v in captured.program.constants.items() if torch.is_tensor(v)}
    unlike: list[Note] = [*shared(model, constants, spelt.updates), *unregistered(model, constants)]
    spelt = dataclasses.replace(spelt, notes=(*spelt.notes, *unlike))
    return with_signature(model, captured, spelt), captured


def _both_modes(
    evaluated: OneMode,
    model: torch.nn.Module,
    args: Any,
    kwargs: Any,
    leaves: Leaves,
    values: Mapping[str, torch.Tensor],
) -> OneMode:
    """Return a capture that is right in train mode too; without one, eval mode stands in."""
    try:
        trained, _ = _one_mode(model, args, kwargs, leaves, values)
        if evaluated.fixed and not trained.fixed:
            trained, _ = _one_mode(model, args, kwargs, leaves, values, fixed=evaluated.fixed)
        same_inputs(evaluated, trained)
    except TraceError as error:
        _refuse_lost_statistics(evaluated.nodes)
        note = TraceError(
            "train mode could not be captured, and eval mode would stand in for it",
            where=error.where,
            found=error.message,
            hint="trace with train=False if that is meant",
        )
        alone = dataclasses.replace(evaluated, notes=(*evaluated.notes, note))
        return live_flags(alone, leaves.params)
    return reconcile(evaluated, trained)


def _refuse_lost_statistics(nodes: Iterable[Node]) -> None:
    """Refuse a cumulative mean of batch statistics: no graph can divide by a counter's value."""
    for node in nodes:
        row = table.row(node.op)
        if row.statistics and node.arg(row.statistics[0]) and node.arg("momentum") == 0:
            raise TraceError(
                "running statistics would not be updated: a norm without momentum divides by the "
                "number of batches so far",
                where=node.scope or f"%{node.name}",
                hint="give the norm a momentum, or trace with train=False to use it in evaluation",
            )


def _unread_statistics(draft: OneMode, graph: ArchGraph) -> dict[str, str]:
    """Return norms that only count, with a note each: no output depends on them."""
    alive = {leaf for node in graph.nodes for leaf in node.leaves()}
    notes = {}
    for node in draft.nodes:
        counted = [node.arg(name) for name in table.row(node.op).statistics]
        names = [leaf.name for leaf in counted if isinstance(leaf, Leaf)]
        if names and alive.isdisjoint(names):
            where = f"{node.scope}: " if node.scope else ""
            notes[names[0].rpartition(".")[0]] = (
                f"{where}no output depends on this norm: {' and '.join(names)} move in the model's "
                "train mode and stay as they are in the graph"
            )
    return notes


def _bare(graph: ArchGraph) -> ArchGraph:
    return graph.replace(
        nodes=tuple(dataclasses.replace(n, scope="") for n in graph.nodes), sections=()
    )


def _graph(
    draft: OneMode, tensors: Mapping[str, torch.Tensor], leaves: Leaves, name: str
) -> tuple[ArchGraph, list[str]]:
    """Build the graph of a capture; return it and buffers that no operator initialises."""
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
            if tensors[param.name].is_meta:
                lost.append(param.name)
            else:
                param = dataclasses.replace(param, value=constant(tensors[param.name]))
        params.append(param)
    return graph.replace(params=tuple(params)), lost
