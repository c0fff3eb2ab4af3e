"""Capture: an ``nn.Module`` and example inputs become an :class:`ArchGraph` and its state.

``torch.export`` captures the module twice, in eval and in train mode. Both captures are brought to
canonical form, node by node, and then laid over one another: what differs between them becomes a
:class:`~archgraph.graph.ir.Mode`, so that ``.train()`` and ``.eval()`` of the built module behave
as the original's do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]  # no stubs exist
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from archgraph.capture.export import capture, under_no_grad, users_line
from archgraph.capture.reconcile import Draft, live_flags, reconcile, same_inputs
from archgraph.errors import GraphError, TraceError
from archgraph.graph.ir import (
    ArchGraph,
    Batch,
    Constant,
    Leaf,
    Mode,
    Node,
    Param,
    Record,
    Ref,
    Size,
    TensorType,
    Value,
    prune,
    renumber,
    walk,
)
from archgraph.ops import table, views
from archgraph.ops.check import check
from archgraph.ops.constants import constant
from archgraph.ops.infer import infer_call
from archgraph.ops.schema import canonical_args, op_name, schema, to_value, torch_dtype


@dataclass(frozen=True, slots=True)
class Traced:
    """A captured model: its graph, its weights, and what could not be carried over exactly.

    It unpacks as ``graph, state``.

    Attributes:
        graph: The architecture; it holds no device.
        state: Tensors by leaf name, copies, on the device where the model is.
        notes: What only one mode does, what was fixed while tracing, what the graph does
            otherwise than the model: one sentence each, with its place.
    """

    graph: ArchGraph
    state: dict[str, torch.Tensor]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph, self.state))


def trace(
    model: torch.nn.Module, /, *args: Any, train: bool = True, name: str = "", **kwargs: Any
) -> Traced:
    """Capture a model as a graph and a state; unpacks as ``graph, state``.

    Args:
        model: Any module that ``torch.export`` can capture; it is not changed.
        *args: Example inputs in forward's order; tensors have the batch as axis 0. One example
            is enough: it is repeated, since a batch of one cannot be told from a constant. (A
            forward that treats a batch of one otherwise is captured as it is for larger ones.)
        train: Capture train mode too (dropout, batch statistics, auxiliary outputs); without it
            the flags of norms and dropouts follow ``.train()`` and nothing else does.
        name: Label of the graph; default: the class name.
        **kwargs: Example inputs by name.

    Raises:
        TraceError: If the model cannot be captured; says where and what to do.

    Example:
        >>> import torch
        >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> print(graph.nodes[-1])
        %linear: float32[batch, 2] = aten.linear(input=%input, weight=weight, bias=bias)
    """
    if not isinstance(model, torch.nn.Module):
        raise TraceError("not a torch.nn.Module", found=type(model).__name__)
    lazy = [
        name
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if torch.nn.parameter.is_lazy(tensor)
    ]
    if lazy:
        raise TraceError(
            "a lazy module has no weights yet",
            where=lazy[0],
            hint="run the model once on an example before tracing it",
        )
    modes = {m: m.training for m in model.modules()}
    names = _Names.of(model)
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"example inputs do not fit forward: {error}",
            where=type(model).__name__,
            expected=f"forward{inspect.signature(model.forward)}",
        ) from None
    args, kwargs = _on_device_of(model, args), _on_device_of(model, kwargs)
    notes: dict[str, None] = {}
    try:
        model.eval()
        draft = _Capture(model, args, kwargs, names, notes).graph()
        if train:
            model.train()
            noted: dict[str, None] = {}
            try:
                trained = _Capture(model, args, kwargs, names, noted).graph()
                same_inputs(draft, trained, noted)
            except TraceError as error:
                _refuse_lost_statistics(draft.nodes)
                why = f"{error.where}: {error.message}" if error.where else error.message
                notes[f"train mode could not be captured ({why}); eval mode stands in"] = None
                draft = live_flags(draft, names.params)
            else:
                notes |= noted
                draft = reconcile(draft, trained, notes)
        else:
            draft = live_flags(draft, names.params)
    finally:
        for module, mode in modes.items():
            module.training = mode
    graph = _finish(draft, model, names, name or type(model).__name__, notes)
    own = getattr(model, "arch", None)
    if isinstance(own, ArchGraph) and _bare(own) == _bare(graph):
        graph = own.replace()  # the same architecture: keep its module scopes and sections
    check(graph)
    return Traced(graph, names.state(model), tuple(notes))


def _refuse_lost_statistics(nodes: Iterable[Node]) -> None:
    """A cumulative mean of batch statistics divides by a counter's value: no graph can say that."""
    for node in nodes:
        row = table.row(node.op)
        if row.statistics and node.arg(row.statistics[0]) and node.arg("momentum") == 0:
            raise TraceError(
                "running statistics would stay as they are: a norm without momentum divides by the "
                "number of batches so far",
                where=node.scope or f"%{node.name}",
                hint="give the norm a momentum, or trace with train=False to use it in evaluation",
            )


def _bare(graph: ArchGraph) -> ArchGraph:
    return graph.replace(
        nodes=tuple(dataclasses.replace(n, scope="") for n in graph.nodes), sections=()
    )


def _on_device_of(model: torch.nn.Module, inputs: Any) -> Any:
    """Example inputs where the model is, if it is in one place."""
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(devices) != 1:
        return inputs
    (device,) = devices

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, torch.Tensor) and x.device != device else x

    return pytree.tree_map(move, inputs)


@dataclass(frozen=True)
class _Names:
    """State-dict keys of a model and who owns which tensor."""

    owner: Mapping[str, str]
    params: tuple[Param, ...]

    @staticmethod
    def of(model: torch.nn.Module) -> _Names:
        tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        roles = dict.fromkeys(tensors, "parameter")
        buffers = dict(model.named_buffers(remove_duplicate=False))
        keys = [k for k in model.state_dict(keep_vars=True) if k in tensors or k in buffers]
        tensors |= buffers
        first: dict[int, str] = {}
        owner: dict[str, str] = {}
        for key in keys:
            owner[key] = first.setdefault(id(tensors[key]), key)
        params = []
        for key in keys:
            if owner[key] != key:
                continue
            tensor = tensors[key]
            params.append(
                Param(
                    key,
                    _tensor_type(tensor),
                    "parameter" if roles.get(key) else "buffer",
                    bool(tensor.requires_grad) if roles.get(key) else False,
                    tuple(k for k in keys if owner[k] == key and k != key),
                )
            )
        return _Names(owner, tuple(params))

    @functools.cached_property
    def parameters(self) -> frozenset[str]:
        """Names of those that are parameters."""
        return frozenset(p.name for p in self.params if p.role == "parameter")

    def state(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        full = model.state_dict()
        return {p.name: full[p.name].detach().clone() for p in self.params}


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(map(int, tensor.shape)), _dtype(tensor.dtype))


def _identity(op: str, given: Mapping[str, Value], node: torch.fx.Node) -> bool:
    """Whether a call returns its first argument unchanged."""
    source = next((a for a in node.args if isinstance(a, torch.fx.Node)), None)
    before = source.meta.get("val") if source is not None else None
    after = node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    unchanged = before.dtype == after.dtype and tuple(map(str, before.shape)) == tuple(
        map(str, after.shape)
    )
    return unchanged and table.is_identity(op, given)


@dataclass(frozen=True, slots=True)
class _View:
    """Where a result's memory belongs: ``node`` made it as a view of ``parent``.

    ``node`` is None where the result is the parent itself.
    """

    parent: torch.fx.Node
    node: torch.fx.Node | None = None
    index: int = 0


@dataclass
class _Capture:
    """One ``torch.export`` of a model, rewritten node by node into canonical form.

    In-place operators become functional ones: a write to a view becomes a new value of the tensor
    that it is a view of, and other views of that memory are taken anew when they are used next.
    """

    model: torch.nn.Module
    args: Any
    kwargs: Any
    names: _Names
    notes: dict[str, None] = field(default_factory=dict)
    batch: str | None = None  # the symbol of the batch axis
    env: dict[torch.fx.Node, Value] = field(default_factory=dict)
    real: dict[torch.fx.Node, Any] = field(default_factory=dict)  # results that nothing can change
    labels: dict[torch.fx.Node, str] = field(default_factory=dict)  # their names, for buffers
    views: dict[torch.fx.Node, _View] = field(default_factory=dict)
    roots: dict[torch.fx.Node, str] = field(default_factory=dict)  # arguments of forward
    buffers: dict[torch.fx.Node, str] = field(default_factory=dict)
    writes: dict[int | None, int] = field(
        default_factory=dict
    )  # per memory, how often it was written
    seen: dict[torch.fx.Node, int] = field(default_factory=dict)  # and how often when it was made
    regions: dict[torch.fx.Node, list[Any]] = field(default_factory=dict)
    casting: list[tuple[str, torch.dtype, bool]] = field(default_factory=list)
    cast: dict[tuple[Value, torch.dtype, bool], Value] = field(default_factory=dict)
    grad: bool = True
    detached: set[Value] = field(default_factory=set)
    still: set[Value] = field(default_factory=set)  # made under no_grad
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, Node] = field(default_factory=dict)  # the same by name
    types: dict[Value, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    constants: dict[Constant, Param] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)

    def graph(self) -> Draft:
        captured = capture(self.model, self.args, self.kwargs)
        self.args, self.kwargs, self.batch = captured.args, captured.kwargs, captured.batch
        self.notes |= dict.fromkeys(captured.notes)
        program = captured.program
        graph, signature = program.graph, program.graph_signature
        outer = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        self.taken = set(outer)
        self.types = {Leaf(p.name): p.type for p in self.names.params}
        users: list[Value] = []
        kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for spec in signature.input_specs:
            kind = spec.kind.name
            arg = spec.arg
            if kind == "USER_INPUT":
                node = outer.get(arg.name)
                value = node.meta.get("val") if node is not None else None
                if node is None or not isinstance(value, torch.Tensor):
                    users.append(None)
                    continue
                users.append(Ref(node.name))
                self._hold(node, Ref(node.name))
                self.roots[node] = node.name
                type_ = self._type(value, f"input {node.name}")
                self._add(Node(node.name, "input", (), type_))
            elif kind in ("PARAMETER", "BUFFER") and spec.target in self.names.owner:
                owner = self.names.owner[spec.target]
                self._hold(outer[arg.name], Leaf(owner))
                self.buffers[outer[arg.name]] = owner
            elif kind in ("BUFFER", "CONSTANT_TENSOR"):
                tensor = program.constants[spec.target].detach()
                if tensor.is_meta:
                    raise TraceError(
                        "a constant has no values on the meta device",
                        where=spec.target,
                        hint="make the model on another device, or make this a parameter",
                    )
                self.real[outer[arg.name]] = tensor.cpu().clone()
                self.labels[outer[arg.name]] = spec.target
                kept.append((spec.target, tensor.cpu(), self.real[outer[arg.name]]))
            else:
                raise TraceError(
                    "the model uses something that is no tensor", where=str(spec.target), found=kind
                )
        self._run(graph, program.graph_module)
        output = next(n for n in graph.nodes if n.op == "output")
        results = [self._value(v) for v in output.args[0]]
        for name, before, after in kept:
            if not torch.equal(before.nan_to_num(), after.nan_to_num()):
                self._note(
                    f"forward changes {name}, which is not part of the state; the graph does not"
                )
        tree = pytree.tree_unflatten(results, program.call_spec.out_spec)
        args, kwargs = pytree.tree_unflatten(users, program.call_spec.in_spec)
        return Draft(
            self._signature(args, kwargs), self.nodes, _tree(tree), self.updates, self.constants
        )

    def _signature(self, args: Any, kwargs: Any) -> tuple[tuple[str, Value], ...]:
        signature = inspect.signature(self.model.forward)
        bound, given = signature.bind(*args, **kwargs), signature.bind(*self.args, **self.kwargs)
        result: list[tuple[str, Value]] = []
        for key, value in bound.arguments.items():
            parameter = signature.parameters[key]
            fixed = [
                x
                for x in pytree.tree_leaves(given.arguments[key])
                if x is not None and not isinstance(x, torch.Tensor)
            ]
            if fixed and given.arguments[key] is not parameter.default:
                self._note(f"argument {key} is fixed in the graph: {', '.join(map(repr, fixed))}")
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                result += [(k, _tree(v)) for k, v in value.items()]
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                for index, item in enumerate(value):
                    label = f"{key}_{index}"
                    while label in signature.parameters:
                        label += "_"
                    result.append((label, _tree(item)))
            else:
                result.append((key, _tree(value)))
        return tuple((k, v) for k, v in result if any(isinstance(i, Ref) for i in walk(v)))

    def _note(self, text: str) -> None:
        self.notes[text] = None

    # -- values ---------------------------------------------------------------------------

    def _size(self, size: Any, where: str) -> Size:
        if isinstance(size, int):
            return size
        expr = sympy.expand(size.node.expr)
        symbols = {str(s) for s in expr.free_symbols}
        if not symbols:
            return int(expr)
        factor, rest = expr.as_coeff_Mul()
        powers = rest.as_powers_dict()
        if not symbols <= {self.batch}:
            raise TraceError(
                "a size depends on the values of a tensor",
                where=where or None,
                found=str(expr),
                hint="keep the shape and mask instead (torch.where, multiplication by the mask), "
                "or trace the submodule that does not",
            )
        if (
            all(b.is_Symbol and e.is_Integer and e > 0 for b, e in powers.items())
            and factor.is_Integer
        ):
            return Batch(int(factor), int(sum(powers.values())))
        raise TraceError(
            "a size depends on the batch size in a way that a graph cannot say",
            where=where or None,
            found=str(expr).replace(str(self.batch), "batch"),
            expected="a multiple of the batch size",
            hint="keep the batch axis apart from the others",
        )

    def _shape(self, tensor: torch.Tensor, where: str) -> tuple[Size, ...]:
        return tuple(self._size(s, where) for s in tensor.shape)

    def _type(self, tensor: torch.Tensor, where: str) -> TensorType:
        return TensorType(self._shape(tensor, where), _dtype(tensor.dtype))

    def _value(self, value: Any, type_: str = "") -> Value:
        if isinstance(value, torch.fx.Node):
            if value in self.env:
                return self._current(value)
            if isinstance(self.real.get(value), torch.Tensor):
                return self._constant(self.real[value], self.labels.get(value))
            held = value.meta.get("val")
            if isinstance(held, (torch.SymInt, int)) and not isinstance(held, bool):
                return self._size(held, _where(value))
            if isinstance(held, (float, bool)):
                return held
            raise TraceError(
                "a number depends on the values of a tensor",
                where=_where(value),
                found=str(value.target),
                hint="keep it a tensor: leave out .item(), int() and float()",
            )
        if isinstance(value, (list, tuple)):
            return tuple(self._value(v) for v in value)
        if isinstance(value, torch.SymInt):
            return self._size(value, "")
        if isinstance(value, torch.device):
            return None
        return to_value(value, type_)

    def _hold(self, node: torch.fx.Node, value: Value) -> None:
        """Say what a result is, as of now."""
        self.env[node] = value
        self.seen[node] = self.writes.get(_memory(node), 0)

    def _current(self, node: torch.fx.Node) -> Value:
        """What a result is after all writes to the memory that it lives in."""
        if self.seen[node] == self.writes.get(_memory(node), 0):
            return self.env[node]
        view = self.views.get(node)
        if view is None:
            raise TraceError(
                "memory was written in place through another tensor, and is used afterwards",
                where=_where(node),
                found=f"{node.name}, which shares memory with what was written",
                hint="write x = x + y instead of x += y",
            )
        whole = self._value(view.parent)
        if view.node is not None:
            whole = self._take(view, whole)
        self._hold(node, whole)
        return whole

    def _spelt(self, view: _View, whole: Value) -> tuple[str, dict[str, Value]]:
        """The call that made a view, in canonical form, of what its source is now."""
        node = view.node
        assert node is not None and isinstance(node.target, torch._ops.OpOverload)
        arguments = [a.name for a in node.target._schema.arguments]
        given: dict[str, Value] = {}
        for name, item in (*zip(arguments, node.args, strict=False), *node.kwargs.items()):
            given[name] = whole if item is view.parent else self._value(item)
        return self._canonical(_metadata_only(node.target), given, node)

    def _take(self, view: _View, whole: Value) -> Value:
        """The view of what its source is now."""
        op, given = self._spelt(view, whole)
        node = view.node
        assert node is not None
        if _identity(op, given, node):
            return whole
        made = self._emit(op, given, node)
        held = node.meta["val"]
        if isinstance(held, torch.Tensor):
            return made
        assert isinstance(made, Ref)
        return self._result(made, view.index, held[view.index], node)

    def _constant(self, tensor: torch.Tensor, name: str | None = None) -> Leaf:
        value = constant(tensor)
        if value not in self.constants:
            taken = set(self.names.owner) | {p.name for p in self.constants.values()}
            numbered = (f"constant_{i}" for i in itertools.count())
            free = (label for label in ([name] if name else []) if label not in taken)
            label = next(free, None) or next(n for n in numbered if n not in taken)
            self.constants[value] = Param(label, _tensor_type(tensor), "constant", False, (), value)
        leaf = Leaf(self.constants[value].name)
        self.types[leaf] = self.constants[value].type
        return leaf

    # -- nodes ----------------------------------------------------------------------------

    def _run(self, graph: torch.fx.Graph, owner: torch.nn.Module) -> None:
        for node in graph.nodes:
            if node.op == "get_attr":
                held = owner
                for part in str(node.target).split("."):
                    held = getattr(held, part)
                if isinstance(held, torch.Tensor):
                    self.real[node] = held.detach().cpu().clone()
            elif node.op == "call_function":
                self._call(node, owner)

    def _call(self, node: torch.fx.Node, owner: torch.nn.Module) -> None:
        target, value = node.target, node.meta.get("val")
        if target is operator.getitem:
            self._getitem(node)
            return
        if isinstance(target, torch._ops.HigherOrderOperator):
            self._inline(node, owner)
            return
        if not isinstance(target, torch._ops.OpOverload):
            if isinstance(value, torch.Tensor):
                raise TraceError(
                    "forward runs functions batched or differentiated (torch.vmap, torch.func)",
                    where=_where(node),
                    found=str(getattr(target, "__name__", target)),
                    hint="write the batch axis out, or trace the submodule that does not",
                )
            return  # arithmetic on sizes: read off the result where it is used
        if value is None or isinstance(
            value, (torch.SymInt, torch.SymBool, torch.SymFloat, int, bool, float)
        ):
            return  # sizes and assertions
        self._see_view(node, target)
        if self._fold(node, target):
            return
        if target.namespace != "aten":
            raise TraceError(
                "operator outside ATen",
                where=_where(node),
                found=str(target),
                hint="write it with torch functions",
            )
        given = self._given(node, target)
        if target._schema.is_mutable and torch.Tag.inplace_view not in target.tags:
            self._mutate(node, target, given)
            return
        op, given = self._canonical(_metadata_only(target), given, node)
        first = next(iter(given.values()), None)
        if op == "" or _identity(op, given, node):
            assert isinstance(first, (Ref, Leaf))
            self._hold(node, first)
            return
        row = table.row(op)
        if row.training_flag is not None and given.get(row.training_flag) is True:
            for name in row.statistics:  # nobody reads what a norm made inside forward has counted
                held = given.get(name)
                if isinstance(held, Leaf) and held.name not in self.names.owner:
                    given[name] = None
        made = self._emit(op, given, node)
        if self.grad and under_no_grad(node.meta.get("stack_trace")):
            made = self._detach(made, node)  # export leaves out regions inside other regions
        self._hold(node, made)

    def _given(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> dict[str, Value]:
        """Arguments of a call by name, cast as the autocast region around it casts them."""
        casts = self._casts(node, target)

        def value(item: Any, type_: str) -> Value:
            if isinstance(item, (list, tuple)) and any(i in casts for i in item):
                return tuple(value(i, type_) for i in item)
            held = self._value(item, type_)
            dtype = casts.get(item) if isinstance(item, torch.fx.Node) else None
            return held if dtype is None else self._cast(held, dtype, node, item)

        given: dict[str, Value] = {}
        arguments = target._schema.arguments
        for argument, item in zip(arguments, node.args, strict=False):
            given[argument.name] = value(item, str(argument.type))
        for argument in arguments:
            if argument.name in node.kwargs:
                given[argument.name] = value(node.kwargs[argument.name], str(argument.type))
        return given

    def _canonical(
        self, op: str, given: dict[str, Value], node: torch.fx.Node
    ) -> tuple[str, dict[str, Value]]:
        value, where = node.meta.get("val"), _where(node)
        shapes: tuple[Any, ...] = ()
        if isinstance(value, torch.Tensor):
            shapes = (self._shape(value, where),)
        elif isinstance(value, (list, tuple)):
            shapes = tuple(self._shape(v, where) for v in value if v is not None)
        sizes = {}
        assert isinstance(node.target, torch._ops.OpOverload)
        for argument, item in zip(node.target._schema.arguments, node.args, strict=False):
            held = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
            if isinstance(held, torch.Tensor):
                sizes[argument.name] = self._shape(held, where)
        return table.canonical(op, given, sizes, shapes)

    def _emit(
        self, op: str, given: dict[str, Value], node: torch.fx.Node, held: Any = None
    ) -> Value:
        """Append an operator; its type is that of ``node``'s result unless ``held`` is given."""
        try:
            args = canonical_args(op, given)
        except GraphError as error:
            raise TraceError(str(error), where=_where(node)) from error
        held = node.meta.get("val") if held is None else held
        if isinstance(held, (torch.Tensor, TensorType)):
            type_: Any = held if isinstance(held, TensorType) else self._type(held, _where(node))
        else:
            results = held if isinstance(held, (tuple, list)) else ()
            type_ = tuple(self._type(v, _where(node)) for v in results if v is not None)
            call = Node(node.name, op, args)
            made = {k: self.made[k].type for k in call.uses()}
            leaves = {k: self.types[Leaf(k)] for k in call.leaves()}
            with contextlib.suppress(GraphError):  # kernels may differ in results that nobody uses
                inferred = infer_call(call, made, leaves)
                type_ = inferred if isinstance(inferred, tuple) else type_
        return self._append(node, op, args, type_)

    def _append(
        self, node: torch.fx.Node, op: str, args: tuple[tuple[str, Value], ...], type_: Any
    ) -> Ref:
        if table.row(op).macs is not None:
            self._check_dtypes(node, op, args)
        name, index = node.name, 0
        while name in self.taken:
            index += 1
            name = f"{node.name}~{index}"
        self.taken.add(name)
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ""
        place = users_line(node.meta.get("stack_trace"))
        source = f"{Path(place[0]).name}:{place[1]}" if place else ""
        self._add(Node(name, op, args, type_, path, source))
        if not self.grad:
            self.still.add(Ref(name))
        return Ref(name)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        self.made[node.name] = node
        self.types[Ref(node.name)] = node.type

    def _check_dtypes(
        self, node: torch.fx.Node, op: str, args: tuple[tuple[str, Value], ...]
    ) -> None:
        """Products of different dtypes run on a capture's stand-in tensors, but nowhere else."""
        found = {}
        factors = [(k, v) for k, v in args if isinstance(v, (Ref, Leaf))][:2]
        for key, value in factors:
            type_ = self.types.get(value)
            if isinstance(type_, TensorType):
                found[key] = type_.dtype
        if len(set(found.values())) > 1:
            raise TraceError(
                f"{op} multiplies tensors of different dtypes",
                where=_where(node),
                found=", ".join(f"{k} {v}" for k, v in found.items()),
                hint="give the example input in the model's dtype, or cast in forward",
            )

    def _see_view(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> None:
        """Note of which argument a result is a view, if it is one."""
        memory = _memory(node)
        arguments = target._schema.arguments
        if memory is None:
            held = node.meta.get("val")
            several = isinstance(held, (list, tuple))
            if several and arguments and arguments[0].alias_info is not None:
                source = node.args[0]
                if isinstance(source, torch.fx.Node):
                    self.views[node] = _View(source, node)
            return
        for argument, item in zip(arguments, node.args, strict=False):
            if argument.alias_info is not None and isinstance(item, torch.fx.Node):
                if _memory(item) == memory:
                    written = argument.alias_info.is_write
                    same = written and torch.Tag.inplace_view not in target.tags
                    self.views[node] = _View(item, None if same else node)
                    return
        out = node.kwargs.get("out")
        if isinstance(out, torch.fx.Node):
            self.views[node] = _View(out)

    def _fold(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
        """Run what depends on neither input nor parameter, in-place writes through views too."""
        if torch.Tag.nondeterministic_seeded in target.tags:
            return False
        held = node.meta.get("val")
        if isinstance(held, torch.Tensor) and table.is_filled(op_name(target)):
            if all(isinstance(s, int) for s in held.shape):
                value = table.fill_value(op_name(target), node.args[-1])
                if isinstance(value, (int, float)):
                    self.real[node] = torch.full(tuple(held.shape), value, dtype=held.dtype)
                    return True
            return False
        missing = False

        def real(item: Any) -> Any:
            nonlocal missing
            if isinstance(item, torch.fx.Node):
                if item in self.real:
                    return self.real[item]
                size = item.meta.get("val")
                if isinstance(size, int):
                    return size
                if isinstance(size, torch.SymInt) and not size.node.expr.free_symbols:
                    return int(size)
                missing = True
            return torch.device("cpu") if isinstance(item, torch.device) else item

        args, kwargs = pytree.tree_map(real, (node.args, node.kwargs))
        if missing:
            return False
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if self.casting and self.casting[-1][2]:
                stack.enter_context(torch.autocast(*self.casting[-1][:2]))
            made = target(*args, **kwargs)
        if table.base(op_name(target)).startswith("empty"):
            made.zero_()  # whatever memory holds is no part of an architecture
        self.real[node] = made
        return True

    def _getitem(self, node: torch.fx.Node) -> None:
        source, index = node.args
        assert isinstance(source, torch.fx.Node) and isinstance(index, int)
        if source in self.real:
            self.real[node] = self.real[source][index]
        if source in self.regions:  # results of an inlined region
            inner = self.regions[source][index]
            if isinstance(inner, torch.fx.Node):
                if _memory(inner) == _memory(node):
                    self.views[node] = _View(inner)
                if inner in self.real:
                    self.real[node] = self.real[inner]
                    return
                self._hold(node, self._value(inner))
            else:
                self._hold(node, inner)
            return
        view = self.views.get(source)
        if view is not None and _memory(view.parent) == _memory(node):
            self.views[node] = _View(view.parent, source, index)
        if source in self.real or source not in self.env:
            return
        held = self.env[source]
        assert isinstance(held, Ref)
        self._hold(node, self._result(held, index, node.meta["val"], node))

    def _result(self, several: Ref, index: int, held: torch.Tensor, node: torch.fx.Node) -> Ref:
        """One result of an operator with several."""
        args: tuple[tuple[str, Value], ...] = (("source", several), ("index", index))
        made = self._append(node, "getitem", args, self._type(held, _where(node)))
        self.nodes[-1] = dataclasses.replace(self.nodes[-1], scope=self.made[several.name].scope)
        return made

    # -- regions --------------------------------------------------------------------------

    def _inline(self, node: torch.fx.Node, owner: torch.nn.Module) -> None:
        """Regions that export keeps as a submodule: ``no_grad``, ``autocast``, ``torch.cond``."""
        name = str(node.target)
        bodies = [
            getattr(owner, str(a.target), None)
            for a in node.args
            if isinstance(a, torch.fx.Node) and a.op == "get_attr"
        ]
        if name == "cond":
            self._branches(node, bodies)
            return
        inner = bodies[0] if len(bodies) == 1 else None
        kinds = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
        if not isinstance(inner, torch.fx.GraphModule) or name not in kinds:
            raise TraceError(
                "control flow that a graph cannot say",
                where=_where(node),
                found=f"torch.{name}",
                hint="unroll it (a Python loop of fixed length), or trace the submodule inside",
            )
        body = next(a for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        position = node.args.index(body)
        before = self.grad
        if name == "wrap_with_autocast":
            device, dtype, enabled = node.args[:3]
            self.casting.append((device, dtype, bool(enabled)))  # type: ignore[arg-type]
        else:
            self.grad = bool(node.args[0])
        results = self._body(inner, node.args[position + 1 :])
        if name == "wrap_with_autocast":
            self.casting.pop()
        elif not self.grad:
            for item in results:
                if isinstance(item, torch.fx.Node) and item not in self.real:
                    self._hold(item, self._detach(self._value(item), item))
        self.grad = before
        self.regions[node] = results

    def _body(self, inner: torch.fx.GraphModule, actual: Any) -> list[Any]:
        """Run a region; gives what it returns, as nodes of the region."""
        formal = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for inside, outside in zip(formal, actual, strict=True):
            if not isinstance(outside, torch.fx.Node):
                self._hold(inside, self._value(outside))
                continue
            if _memory(inside) == _memory(outside):
                self.views[inside] = _View(outside)
            if outside in self.env:
                self._hold(inside, self._value(outside))
            elif outside in self.real:
                self.real[inside] = self.real[outside]
        self._run(inner.graph, inner)
        output = next(n for n in inner.graph.nodes if n.op == "output")
        assert isinstance(output.args[0], (tuple, list))
        return list(output.args[0])

    def _branches(self, node: torch.fx.Node, bodies: list[Any]) -> None:
        """``torch.cond``: both branches run, and the condition picks between their results."""
        predicate, _, _, operands = node.args
        if not isinstance(predicate, torch.fx.Node) or not isinstance(
            predicate.meta.get("val"), torch.Tensor
        ):
            raise TraceError(
                "torch.cond on a size",
                where=_where(node),
                found=str(predicate),
                hint="a graph holds one of the branches: write it without the condition",
            )
        if not all(isinstance(b, torch.fx.GraphModule) for b in bodies):
            raise TraceError("torch.cond without its branches", where=_where(node))
        sides = [[self._value(v) for v in self._body(b, operands)] for b in bodies]
        held = node.meta["val"]
        picked: list[Any] = []
        for index, (yes, no) in enumerate(zip(*sides, strict=True)):
            given = {"condition": self._value(predicate), "self": yes, "other": no}
            alike = yes == no
            picked.append(yes if alike else self._emit("aten.where.self", given, node, held[index]))
        self._note(
            f"torch.cond at {_where(node)}: the graph runs both branches and picks with torch.where"
        )
        self.regions[node] = picked

    def _casts(
        self, node: torch.fx.Node, target: torch._ops.OpOverload
    ) -> dict[torch.fx.Node, torch.dtype]:
        """Which arguments the autocast region around a call casts, as torch itself does it."""
        if not self.casting or not self.casting[-1][2]:
            return {}
        device, dtype, _ = self.casting[-1]
        tensors = {
            n: n.meta["val"]
            for n in node.all_input_nodes
            if isinstance(n.meta.get("val"), torch.Tensor) and n.meta["val"].is_floating_point()
        }

        def call(casts: Mapping[torch.fx.Node, torch.dtype]) -> Any:
            def held(n: torch.fx.Node) -> Any:
                val = n.meta["val"]
                return val.to(casts[n]) if n in casts else val

            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), held)
            return target(*args, **kwargs)

        if target._schema.is_mutable or not tensors:
            return {}
        with torch.no_grad(), torch.autocast(device, dtype, cache_enabled=False):
            watch = _Casts({id(v): n for n, v in tensors.items()})
            with watch:
                call({})
        casts = watch.found
        made = pytree.tree_leaves(node.meta["val"])
        with torch.no_grad():
            found = [t.dtype for t in pytree.tree_leaves(call(casts))]
        if found != [t.dtype for t in made if isinstance(t, torch.Tensor)]:
            # Some operators are told to compute in float32 instead of being given casts.
            casts = dict.fromkeys(tensors, torch.float32)
            with torch.no_grad():
                found = [t.dtype for t in pytree.tree_leaves(call(casts))]
            if found != [t.dtype for t in made if isinstance(t, torch.Tensor)]:
                raise TraceError(
                    "autocast does here what a graph cannot say",
                    where=_where(node),
                    found=str(target),
                    hint="cast by hand, or take this operator out of the region",
                )
        return {n: d for n, d in casts.items() if n.meta["val"].dtype != d}

    def _cast(self, value: Value, dtype: torch.dtype, node: torch.fx.Node, item: Any) -> Value:
        """A value in another dtype; a parameter is cast once, as autocast's own cache does."""
        key = (value, dtype, self.grad and not under_no_grad(node.meta.get("stack_trace")))
        if key in self.cast:
            return self.cast[key]
        type_ = TensorType(self._shape(item.meta["val"], _where(node)), _dtype(dtype))
        given = {"self": value, "dtype": to_value(dtype)}
        made = self._emit("aten.to.dtype", given, node, type_)
        if isinstance(value, Leaf):
            self.cast[key] = made
        return made

    def _detach(self, value: Value, node: torch.fx.Node) -> Value:
        held = node.meta.get("val")
        if not isinstance(held, torch.Tensor) or not held.dtype.is_floating_point:
            return value
        if not isinstance(value, Ref) or value in self.detached:
            return value
        made = self._emit("aten.detach", {"self": value}, node)
        self.detached.add(made)
        return made

    # -- writes ---------------------------------------------------------------------------

    def _mutate(
        self, node: torch.fx.Node, target: torch._ops.OpOverload, given: dict[str, Value]
    ) -> None:
        """An in-place operator becomes a functional one; later uses of its memory follow it."""
        where = _where(node)
        arguments = target._schema.arguments
        places = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        given_nodes = dict(zip([a.name for a in arguments], node.args, strict=False)) | node.kwargs
        written = given_nodes.get(places[0]) if len(places) == 1 else None
        if not isinstance(written, torch.fx.Node):
            raise TraceError(
                "an operator changes several tensors in place", where=where, found=str(target)
            )
        held = written.meta["val"]
        op = _functional(target, places[0], where)
        if op == "aten.copy":
            new = self._copied(node, written, given)
        else:
            if any(a.is_out for a in arguments):
                given.pop(places[0])
            else:
                first = schema(op).args[0].name  # dropout_ calls its input otherwise
                given = {first if k == places[0] else k: v for k, v in given.items()}
            op, given = self._canonical(op, given, node)
            new = self._emit(op, given, node, self._made(op, node, target, held))
            new = self._as(new, held, node)
        if not self.grad:
            new = self._detach(new, written)
        self._write(written, new, node)
        self._hold(node, self._value(written))

    def _copied(
        self, node: torch.fx.Node, written: torch.fx.Node, given: dict[str, Value]
    ) -> Value:
        source, held = given.get("src"), written.meta["val"]
        type_ = self.types.get(source) if isinstance(source, (Ref, Leaf)) else None
        if not isinstance(type_, TensorType):
            return self._emit("aten.copy", given, node)
        goal = self._type(held, _where(node))
        if type_.shape != goal.shape:
            given = {"self": source, "size": goal.shape}
            source = self._emit("aten.expand", given, node, TensorType(goal.shape, type_.dtype))
        return self._as(source, held, node)

    def _as(self, value: Value, held: torch.Tensor, node: torch.fx.Node) -> Value:
        """A value in the dtype of the memory that it is written to."""
        type_ = self.types.get(value)
        if not isinstance(type_, TensorType) or type_.dtype == _dtype(held.dtype):
            return value
        return self._cast(value, held.dtype, node, _Held(held))

    def _made(
        self, op: str, node: torch.fx.Node, target: torch._ops.OpOverload, held: torch.Tensor
    ) -> TensorType:
        """Type of a functional operator's result before it is written to memory."""
        skip = {a.name for a in target._schema.arguments if a.is_out}
        kwargs = {k: v for k, v in node.kwargs.items() if k not in skip}

        def val(n: torch.fx.Node) -> Any:
            return n.meta["val"]

        args, kwargs = torch.fx.node.map_arg((node.args, kwargs), val)
        overload = schema(op).overload
        try:
            with torch.no_grad():
                made = overload(*args, **kwargs)
        except Exception:  # arguments that the functional form takes in another way
            made = held
        return self._type(made if isinstance(made, torch.Tensor) else held, _where(node))

    def _write(self, written: torch.fx.Node, new: Value, node: torch.fx.Node) -> None:
        """Everything that shares memory with ``written``, after that became ``new``."""
        where = _where(node)
        path = [written]
        while path[-1] in self.views:
            path.append(self.views[path[-1]].parent)
        root = path[-1]
        leaf = self.buffers.get(root)
        if leaf is not None and leaf in self.names.parameters:
            raise TraceError(
                "forward writes to a parameter",
                where=where,
                found=leaf,
                hint="make it a buffer, or compute the changed value anew in forward",
            )
        if root in self.roots:
            self._note(
                f"forward changes its argument {self.roots[root]} in place ({where}); the graph "
                "computes the same and leaves the argument alone"
            )
        elif not self.grad and self._differentiable(self._value(root)):
            self._note(f"what is written under no_grad lets no gradient through ({where})")
        before = {n: self._value(n) for n in path}
        now = [(written, new)]
        for child, parent in itertools.pairwise(path):
            new = self._put(self.views[child], before[parent], new, node)
            now.append((parent, new))
        memory = _memory(written)
        assert memory is not None
        for other in [n for n in self.real if _memory(n) == memory]:
            del self.real[other]
            if other not in before:
                self.env[other], self.seen[other] = None, -1  # taken anew from its source
        self.writes[memory] = self.writes.get(memory, 0) + 1
        for changed, value in now:
            self._hold(changed, value)
        if leaf is not None:
            self.updates[leaf] = new

    def _differentiable(self, value: Value) -> bool:
        """Whether a gradient can pass through a value."""
        pending, seen = [value], set()
        while pending:
            item = pending.pop()
            if item in seen or item in self.still or not isinstance(item, (Ref, Leaf)):
                continue
            seen.add(item)
            type_ = self.types.get(item)
            if isinstance(type_, TensorType) and not torch_dtype(type_.dtype).is_floating_point:
                continue
            if isinstance(item, Leaf):
                if item.name in self.names.parameters:
                    return True
                continue
            node = self.made[item.name]
            if node.op == "input":
                return True
            if node.op != "aten.detach":
                pending += [i for _, v in node.args for i in walk(v)]
        return False

    def _put(self, view: _View, whole: Value, part: Value, node: torch.fx.Node) -> Value:
        """What a tensor is after its view became ``part``."""
        if view.node is None:
            return part
        source = view.parent.meta["val"]
        op, given = self._spelt(view, whole)
        if _identity(op, given, view.node):
            return part
        if op == "aten.detach" and not self._differentiable(whole):
            return part
        shape = self._shape(source, _where(node))
        call = views.overwritten(op, given, whole, part, shape, view.index)
        if call is None:
            raise TraceError(
                "writes in place through a view that cannot be written back",
                where=_where(node),
                found=f"{op} of {view.parent.name}",
                hint="write x = x + y instead of x += y on the view",
            )
        return self._emit(*call, node, source)


@dataclass(frozen=True)
class _Held:
    """A stand-in for a node of which only the tensor is known."""

    tensor: torch.Tensor

    @property
    def meta(self) -> dict[str, torch.Tensor]:
        return {"val": self.tensor}


class _Casts(TorchDispatchMode):
    """Sees which of some tensors are cast on the way into an operator, and to what."""

    def __init__(self, watched: dict[int, torch.fx.Node]) -> None:
        super().__init__()
        self.watched = watched
        self.found: dict[torch.fx.Node, torch.dtype] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and id(args[0]) in self.watched:
            self.found.setdefault(self.watched[id(args[0])], kwargs.get("dtype"))
        return func(*args, **kwargs)


def _where(node: torch.fx.Node) -> str:
    """Place of a call in the user's code, or its name in the capture."""
    place = users_line(node.meta.get("stack_trace"))
    return f"{place[0]}:{place[1]}" if place else node.name


def _memory(node: torch.fx.Node) -> int | None:
    """What storage a result lives in; a copy lives in its own, a view in its source's."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _metadata_only(target: torch._ops.OpOverload) -> str:
    """Graph name of an operator; ``unsqueeze_`` and its like change no value: ``unsqueeze``."""
    op = op_name(target)
    if torch.Tag.inplace_view not in target.tags:
        return op
    namespace, packet, *overload = op.split(".")
    return ".".join((namespace, packet.removesuffix("_"), *overload))


@functools.cache
def _functional(target: torch._ops.OpOverload, written: str, where: str) -> str:
    """The functional counterpart of an in-place operator, under a schema that has one."""
    packet = target._schema.name.partition("::")[2]
    inplace = packet.endswith("_") or packet.startswith("__i")
    plain = f"__{packet[3:]}" if packet.startswith("__i") else packet.removesuffix("_")
    op = f"aten.{plain}"
    if inplace and target._overloadname != "default":
        op += f".{target._overloadname}"
    candidates = [op, table.FUNCTIONAL.get(op, "")]
    if not inplace:  # add.out: the overload with the same arguments but that one
        expected = [(a.name, str(a.type)) for a in target._schema.arguments if a.name != written]
        found = getattr(torch.ops.aten, plain)
        for name in found.overloads():
            arguments = getattr(found, name)._schema.arguments
            if [(a.name, str(a.type)) for a in arguments] == expected:
                candidates.append(op_name(getattr(found, name)))
        candidates = candidates[1:]
    for candidate in candidates:
        if candidate:
            try:
                schema(candidate)
            except GraphError:
                continue
            return candidate
    raise TraceError("in-place operator without a functional form", where=where, found=str(target))


def _tree(value: Any) -> Value:
    """A Python structure of values: dicts become records, lists tuples."""
    if isinstance(value, (Ref, Leaf, Mode)) or value is None:
        return value
    if isinstance(value, Mapping):
        return Record(tuple((str(k), _tree(v)) for k, v in value.items() if v is not None))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return Record(tuple((k, _tree(v)) for k, v in fields if v is not None))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return Record(tuple((k, _tree(v)) for k, v in pairs), type(value).__name__)
    if isinstance(value, (tuple, list)):
        return tuple(_tree(v) for v in value)
    return to_value(value)


def _finish(
    draft: Draft, model: torch.nn.Module, names: _Names, name: str, notes: dict[str, None]
) -> ArchGraph:
    used = {leaf for n in draft.nodes for leaf in n.leaves()}
    used |= {i.name for i in walk(draft.outputs) if isinstance(i, Leaf)}
    constants = tuple(p for p in draft.constants.values() if p.name in used)
    graph = ArchGraph(
        inputs=draft.inputs,
        params=names.params + constants,
        nodes=tuple(draft.nodes),
        outputs=draft.outputs,
        updates=tuple(draft.updates.items()),
        name=name,
    )
    graph = renumber(prune(graph, leaves=False))
    tensors = model.state_dict()
    params, lost = [], []
    for param in graph.params:
        if param.role == "buffer" and table.initialiser(graph, param) is None:
            if tensors[param.name].is_meta:
                lost.append(param.name)
            else:
                param = dataclasses.replace(param, value=constant(tensors[param.name]))
        params.append(param)
    if any(t.is_meta for t in tensors.values()):
        text = "the model is on the meta device: its state has shapes and no values"
        if lost:
            text += f"; nothing says how these buffers start: {', '.join(lost)}"
        notes[text] = None
    return graph.replace(params=tuple(params))


__all__ = ["Traced", "trace"]
