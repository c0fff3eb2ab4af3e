"""Capture: an ``nn.Module`` and example inputs become an :class:`ArchGraph` and its state.

``torch.export`` captures the module twice, in eval and in train mode. Both captures are brought to
canonical form, node by node, and then laid over one another: what differs between them becomes a
:class:`~archgraph.ir.Mode`, so that ``.train()`` and ``.eval()`` of the built module behave as the
original's do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import io
import itertools
import logging
import operator
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]  # no stubs exist
import torch
from torch.utils import _pytree as pytree

from archgraph.check import check
from archgraph.errors import GraphError, TraceError
from archgraph.ir import (
    TRAINING,
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
    replace,
    same,
    walk,
)
from archgraph.ops import table
from archgraph.ops.schema import canonical_args, op_name, schema, to_value

MAX_CONSTANT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Traced:
    """A captured model: its graph, its weights, and what could not be carried over exactly.

    It unpacks as ``graph, state``.
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
            is enough: it is repeated, since a batch of one cannot be told from a constant.
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
    args, kwargs = _grow_batch(args), _grow_batch(kwargs)
    notes: list[str] = []
    try:
        model.eval()
        draft = _Capture(model, args, kwargs, names).graph()
        if train:
            model.train()
            try:
                trained = _Capture(model, args, kwargs, names).graph()
            except TraceError as error:
                notes.append(f"train mode could not be captured ({error}); eval mode stands in")
                draft = _live_flags(draft)
            else:
                draft = _reconcile(draft, trained)
        else:
            draft = _live_flags(draft)
    finally:
        for module, mode in modes.items():
            module.training = mode
    graph = _finish(draft, model, names, name or type(model).__name__)
    own = getattr(model, "arch", None)
    if isinstance(own, ArchGraph) and _bare(own) == _bare(graph):
        graph = own.replace()  # the same architecture: keep its module scopes and sections
    check(graph)
    return Traced(graph, names.state(model), tuple(notes))


def _bare(graph: ArchGraph) -> ArchGraph:
    return graph.replace(
        nodes=tuple(dataclasses.replace(n, scope="") for n in graph.nodes), sections=()
    )


def _grow_batch(inputs: Any) -> Any:
    """Repeat examples of batch size one: export would take a size of one for a constant."""

    def grow(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.dim() and x.shape[0] == 1:
            return x.expand(2, *x.shape[1:]).contiguous()
        return x.detach().clone()  # one tensor given twice is still two inputs

    return pytree.tree_map(grow, inputs)


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
                    _tensor_type(tensor, None),
                    "parameter" if roles.get(key) else "buffer",
                    bool(tensor.requires_grad) if roles.get(key) else False,
                    tuple(k for k in keys if owner[k] == key and k != key),
                )
            )
        return _Names(owner, tuple(params))

    def state(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        full = model.state_dict()
        return {p.name: full[p.name].detach().clone() for p in self.params}


def _size(size: Any, where: str) -> Size:
    if isinstance(size, int):
        return size
    expr = sympy.expand(size.node.expr)
    symbols = sorted(expr.free_symbols, key=str)
    if not symbols:
        return int(expr)
    factor, rest = expr.as_coeff_Mul()
    powers = rest.as_powers_dict()
    if all(b.is_Symbol and e.is_Integer and e > 0 for b, e in powers.items()) and factor.is_Integer:
        return Batch(int(factor), int(sum(powers.values())))
    raise TraceError(
        "a size depends on the batch size in a way that a graph cannot say",
        where=where,
        found=str(expr),
        expected="a multiple of the batch size",
        hint="trace with train=False, or keep the batch axis apart from the others",
    )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_type(tensor: torch.Tensor, where: str | None) -> TensorType:
    return TensorType(tuple(_size(s, where or "") for s in tensor.shape), _dtype(tensor.dtype))


def constant(tensor: torch.Tensor) -> Constant:
    """A tensor as a value of the graph.

    Raises:
        TraceError: If it is larger than 256 MiB.
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.numel() * tensor.element_size() > MAX_CONSTANT_BYTES:
        raise TraceError("constant too large for a graph", found=f"{tuple(tensor.shape)}")
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return Constant(_dtype(tensor.dtype), tuple(tensor.shape), raw)


def _user_line(stack: str | None) -> str:
    """Innermost line of the user's own code in a stack trace, as ``file:line``."""
    torch_home = str(Path(torch.__file__).parent)
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack or "")
    own = [f for f in frames if not f[0].startswith(torch_home)]
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


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


@dataclass
class _Draft:
    """A canonical capture of one mode; names are fx's, unique within the capture."""

    inputs: tuple[tuple[str, Value], ...]
    nodes: list[Node]
    outputs: Value
    updates: dict[str, Value]
    constants: dict[Constant, Param]


@dataclass
class _Capture:
    """One ``torch.export`` of a model, rewritten node by node into canonical form."""

    model: torch.nn.Module
    args: Any
    kwargs: Any
    names: _Names
    env: dict[torch.fx.Node, Value] = field(default_factory=dict)
    real: dict[torch.fx.Node, Any] = field(default_factory=dict)  # results that nothing can change
    labels: dict[torch.fx.Node, str] = field(default_factory=dict)  # their names, for buffers
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Constant, Param] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)

    def graph(self) -> _Draft:
        program = self._export()
        graph, signature = program.graph, program.graph_signature
        outer = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        users: list[Value] = []
        state = {**dict(program.constants)}
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
                self.env[node] = Ref(node.name)
                self.nodes.append(
                    Node(node.name, "input", (), _tensor_type(value, f"input {node.name}"))
                )
            elif kind in ("PARAMETER", "BUFFER") and spec.target in self.names.owner:
                self.env[outer[arg.name]] = Leaf(self.names.owner[spec.target])
            elif kind in ("BUFFER", "CONSTANT_TENSOR"):
                self.real[outer[arg.name]] = state[spec.target].detach().clone()
                self.labels[outer[arg.name]] = spec.target
            else:
                raise TraceError(
                    "the model uses something that is no tensor", where=str(spec.target), found=kind
                )
        self._run(graph, program.graph_module)
        output = next(n for n in graph.nodes if n.op == "output")
        results = [self._value(v) for v in output.args[0]]
        tree = pytree.tree_unflatten(results, program.call_spec.out_spec)
        args, kwargs = pytree.tree_unflatten(users, program.call_spec.in_spec)
        return _Draft(
            self._signature(args, kwargs), self.nodes, _tree(tree), self.updates, self.constants
        )

    def _export(self) -> torch.export.ExportedProgram:
        batch = torch.export.Dim("batch", min=2)

        def dims(x: Any) -> Any:
            return {0: batch} if isinstance(x, torch.Tensor) and x.dim() else None

        bound = inspect.signature(self.model.forward).bind(*self.args, **self.kwargs)
        shapes = {
            k: pytree.tree_map(dims, list(v) if isinstance(v, tuple) else v)
            for k, v in bound.arguments.items()
        }
        parameters = inspect.signature(self.model.forward).parameters
        for k, v in list(shapes.items()):
            if parameters[k].kind is inspect.Parameter.VAR_POSITIONAL:
                shapes[k] = tuple(v)
            elif parameters[k].kind is inspect.Parameter.VAR_KEYWORD:
                shapes |= shapes.pop(k)
        attempts: list[Any] = [shapes]
        # Different inputs may have different leading axes: let export find which are equal.
        attempts.append(
            pytree.tree_map(
                lambda d: {0: torch.export.Dim.AUTO} if isinstance(d, dict) else d,
                shapes,
                is_leaf=lambda d: d is None or (isinstance(d, dict) and 0 in d),
            )
        )
        error: Exception | None = None
        for dynamic in attempts:
            try:
                with _quiet():
                    return torch.export.export(
                        self.model, self.args, self.kwargs, dynamic_shapes=dynamic, strict=False
                    )
            except Exception as failure:  # export raises whatever the user's forward raises
                error = error or failure
        raise _capture_error(self.model, error) from error

    def _signature(self, args: Any, kwargs: Any) -> tuple[tuple[str, Value], ...]:
        bound = inspect.signature(self.model.forward).bind(*args, **kwargs)
        result: list[tuple[str, Value]] = []
        for key, value in bound.arguments.items():
            kind = inspect.signature(self.model.forward).parameters[key].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                result += [(k, _tree(v)) for k, v in value.items()]
            else:
                result.append((key, _tree(value)))
        return tuple((k, v) for k, v in result if any(isinstance(i, Ref) for i in walk(v)))

    # -- values ---------------------------------------------------------------------------

    def _value(self, value: Any, type_: str = "") -> Value:
        if isinstance(value, torch.fx.Node):
            if value in self.env:
                return self.env[value]
            if isinstance(self.real.get(value), torch.Tensor):
                return self._constant(self.real[value], self.labels.get(value))
            held = value.meta.get("val")
            if isinstance(held, (torch.SymInt, int)) and not isinstance(held, bool):
                return _size(held, value.name)
            if isinstance(held, (float, bool)):
                return held
            raise TraceError(
                "a number depends on the input's values or shape in a way that a graph cannot say",
                where=_user_line(value.meta.get("stack_trace")) or value.name,
                found=f"{value.target} -> {held}",
            )
        if isinstance(value, (list, tuple)):
            return tuple(self._value(v) for v in value)
        if isinstance(value, torch.SymInt):
            return _size(value, "")
        if isinstance(value, torch.device):
            return None
        return to_value(value, type_)

    def _constant(self, tensor: torch.Tensor, name: str | None = None) -> Leaf:
        value = constant(tensor)
        if value not in self.constants:
            taken = set(self.names.owner) | {p.name for p in self.constants.values()}
            numbered = (f"constant_{i}" for i in itertools.count())
            free = (label for label in ([name] if name else []) if label not in taken)
            label = next(free, None) or next(n for n in numbered if n not in taken)
            self.constants[value] = Param(
                label, _tensor_type(tensor, None), "constant", False, (), value
            )
        return Leaf(self.constants[value].name)

    # -- nodes ----------------------------------------------------------------------------

    def _run(self, graph: torch.fx.Graph, owner: torch.nn.Module) -> None:
        for node in graph.nodes:
            if node.op == "get_attr":
                held = owner
                for part in str(node.target).split("."):
                    held = getattr(held, part)
                if isinstance(held, torch.Tensor):
                    self.real[node] = held.detach().clone()
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
            return  # arithmetic on sizes: read off the result where it is used
        if isinstance(value, (torch.SymInt, torch.SymBool, int, bool, float)) or value is None:
            return  # sizes and assertions
        if self._fold(node, target):
            return
        if target.namespace != "aten":
            raise TraceError(
                "operator outside ATen",
                where=_user_line(node.meta.get("stack_trace")),
                found=str(target),
                hint="write it with torch functions",
            )
        given: dict[str, Value] = {}
        arguments = target._schema.arguments
        for argument, item in zip(arguments, node.args, strict=False):
            given[argument.name] = self._value(item, str(argument.type))
        for argument in arguments:
            if argument.name in node.kwargs:
                given[argument.name] = self._value(node.kwargs[argument.name], str(argument.type))
        if target._schema.is_mutable:
            self._mutate(node, target, given)
            return
        op, given = self._canonical(op_name(target), given, node)
        first = next(iter(given.values()), None)
        if op == "" or _identity(op, given, node):
            assert isinstance(first, (Ref, Leaf))
            self.env[node] = first
            return
        self.env[node] = self._emit(op, given, node)

    def _canonical(
        self, op: str, given: dict[str, Value], node: torch.fx.Node
    ) -> tuple[str, dict[str, Value]]:
        value = node.meta.get("val")
        shapes: tuple[Any, ...] = ()
        if isinstance(value, torch.Tensor):
            shapes = (tuple(_size(s, node.name) for s in value.shape),)
        elif isinstance(value, (list, tuple)):
            shapes = tuple(
                tuple(_size(s, node.name) for s in v.shape) for v in value if v is not None
            )
        sizes = {}
        assert isinstance(node.target, torch._ops.OpOverload)
        for argument, item in zip(node.target._schema.arguments, node.args, strict=False):
            held = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
            if isinstance(held, torch.Tensor):
                sizes[argument.name] = tuple(_size(s, node.name) for s in held.shape)
        return table.canonical(op, given, sizes, shapes)

    def _emit(self, op: str, given: dict[str, Value], node: torch.fx.Node) -> Value:
        try:
            args = canonical_args(op, given)
        except GraphError as error:
            raise TraceError(
                str(error), where=_user_line(node.meta.get("stack_trace")) or node.name
            ) from error
        held = node.meta.get("val")
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ""
        where = _user_line(node.meta.get("stack_trace"))
        if isinstance(held, torch.Tensor):
            type_: Any = _tensor_type(held, where)
        else:
            results = held if isinstance(held, (tuple, list)) else ()
            type_ = tuple(_tensor_type(v, where) for v in results if isinstance(v, torch.Tensor))
        self.nodes.append(Node(node.name, op, args, type_, path, where))
        return Ref(node.name)

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
            return item

        args, kwargs = pytree.tree_map(real, (node.args, node.kwargs))
        if missing:
            return False
        with torch.no_grad():
            self.real[node] = target(*args, **kwargs)
        return True

    def _getitem(self, node: torch.fx.Node) -> None:
        source, index = node.args
        if source in self.real:
            self.real[node] = self.real[source][index]  # type: ignore[index]  # an int
            return
        if not isinstance(source, torch.fx.Node) or source not in self.env:
            return
        held = self.env[source]
        if isinstance(held, tuple):  # results of an inlined region
            self.env[node] = held[index]  # type: ignore[index]  # an int
            return
        assert isinstance(held, Ref)
        value = node.meta["val"]
        where = _user_line(node.meta.get("stack_trace"))
        scope = next(n.scope for n in reversed(self.nodes) if n.name == held.name)
        self.nodes.append(
            Node(
                node.name,
                "getitem",
                (("source", held), ("index", int(index))),  # type: ignore[arg-type]  # an int
                _tensor_type(value, where),
                scope,
                where,
            )
        )
        self.env[node] = Ref(node.name)

    def _inline(self, node: torch.fx.Node, owner: torch.nn.Module) -> None:
        """Regions under ``no_grad`` or ``autocast`` that export keeps as a submodule."""
        name = str(node.target)
        body = next(
            (a for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"), None
        )
        inner = getattr(owner, str(body.target), None) if body is not None else None
        if not isinstance(inner, torch.fx.GraphModule) or "grad_enabled" not in name:
            raise TraceError(
                "control flow that a graph cannot say",
                where=_user_line(node.meta.get("stack_trace")),
                found=name,
            )
        position = node.args.index(body)
        actual = node.args[position + 1 :]
        formal = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for inside, outside in zip(formal, actual, strict=True):
            if isinstance(outside, torch.fx.Node) and outside in self.env:
                self.env[inside] = self.env[outside]
            elif isinstance(outside, torch.fx.Node) and outside in self.real:
                self.real[inside] = self.real[outside]
        self._run(inner.graph, inner)
        output = next(n for n in inner.graph.nodes if n.op == "output")
        results = []
        assert isinstance(output.args[0], (tuple, list))
        for item in output.args[0]:
            value = self._value(item)
            if not node.args[0] and isinstance(value, Ref) and isinstance(item, torch.fx.Node):
                value = self._detach(value, item)
            results.append(value)
        self.env[node] = tuple(results)

    def _detach(self, value: Ref, node: torch.fx.Node) -> Value:
        held = node.meta["val"]
        if not held.dtype.is_floating_point:
            return value
        name = f"{value.name}_detach{len(self.nodes)}"
        self.nodes.append(Node(name, "aten.detach", (("self", value),), _tensor_type(held, None)))
        return Ref(name)

    def _mutate(self, node: torch.fx.Node, target: Any, given: dict[str, Value]) -> None:
        """An in-place operator becomes a functional one; later uses of its input follow it."""
        where = _user_line(node.meta.get("stack_trace")) or node.name
        packet = target._schema.name.partition("::")[2]
        op = f"aten.{packet.removesuffix('_')}"
        if target._overloadname != "default":
            op += f".{target._overloadname}"
        written = node.args[0]
        assert isinstance(written, torch.fx.Node)
        held = self.env.get(written)
        memory = _memory(written, self.real)
        sharing = {
            k
            for k in (*self.env, *self.real)
            if k is not written and _memory(k, self.real) == memory
        }
        same_tensor = {k for k in sharing if k in self.env and self.env[k] == held}
        shared = sharing - same_tensor
        whole = [k for k in shared if isinstance(self.env.get(k), Leaf)]
        if whole:
            raise TraceError(
                "writes in place through a view of a parameter or buffer",
                where=where,
                found=f"{packet} on {written.name}, a view of {self.env[whole[0]]}",
                hint="assign the whole buffer",
            )
        later = _used_after(node, shared)
        if later:
            raise TraceError(
                "writes in place through a view, and the other views are used afterwards",
                where=where,
                found=f"{packet} on {written.name}, which shares memory with {', '.join(later)}",
                hint="write x = x + y instead of x += y on a slice",
            )
        source = given.get("src")
        if op == "aten.copy" and isinstance(source, (Ref, Leaf)):
            new: Value = source
            src_node = node.args[1]
            before, after = written.meta.get("val"), getattr(src_node, "meta", {}).get("val")
            if (
                before is None
                or after is None
                or _tensor_type(before, None) != _tensor_type(after, None)
            ):
                new = self._emit(op, given, node)
        else:
            if packet.endswith("_"):
                op = _functional(op, where)
                names = [a.name for a in schema(op).args]  # dropout_ calls its input otherwise
                given = dict(zip(names, given.values(), strict=False)) if "self" in given else given
            op, given = self._canonical(op, given, node)
            new = self._emit(op, given, node)
        for alias in (node, written, *same_tensor):
            self.env[alias] = new
        if isinstance(held, Leaf):
            if any(p.name == held.name and p.role == "parameter" for p in self.names.params):
                raise TraceError("forward writes to a parameter", where=where, found=held)
            self.updates[held.name] = new


def _memory(node: torch.fx.Node, real: Mapping[torch.fx.Node, Any]) -> int | None:
    """What storage a result lives in; a copy lives in its own, a view in its source's."""
    value = real.get(node, node.meta.get("val"))
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _used_after(node: torch.fx.Node, holders: set[torch.fx.Node]) -> list[str]:
    """Names of those of ``holders`` that a later node uses."""
    later: list[str] = []
    current = node.next
    while holders and current.op != "root":
        later += [a.name for a in current.all_input_nodes if a in holders]
        current = current.next
    return list(dict.fromkeys(later))


def _functional(op: str, where: str) -> str:
    """The functional counterpart of an in-place operator, under a schema that has one."""
    for candidate in (op, table.FUNCTIONAL.get(op, "")):
        if candidate:
            try:
                schema(candidate)
            except GraphError:
                continue
            return candidate
    raise TraceError("in-place operator without a functional form", where=where, found=op)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what export logs and prints on the way: its reason reappears in our error."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _capture_error(model: torch.nn.Module, error: Exception | None) -> TraceError:
    """Where and why ``torch.export`` gave up, in one sentence."""
    text = str(error).strip()
    frames: list[str] = []
    trace_back = error.__traceback__ if error is not None else None
    home = str(Path(torch.__file__).parent)
    while trace_back is not None:
        code = trace_back.tb_frame.f_code
        if not code.co_filename.startswith(home) and code.co_filename != __file__:
            frames.append(f"{code.co_filename}:{trace_back.tb_lineno} in {code.co_name}")
        trace_back = trace_back.tb_next
    quoted = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    own = [f"{f}:{line} in {name}" for f, line, name in quoted if not f.startswith(home)]
    hint = "give example inputs of the shapes that forward expects"
    if "data-dependent" in text or "Unsupported" in text or "GuardOnDataDependent" in text:
        hint = (
            "forward branches on values of tensors; use torch.where or torch.cond, "
            "or trace the submodule that does not branch"
        )
    first = text.splitlines()[0] if text else type(error).__name__
    return TraceError(
        f"{type(model).__name__} cannot be captured: {first}",
        where=next(iter([*reversed(own), *reversed(frames)]), None),
        hint=hint,
    )


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


def _live_flags(draft: _Draft) -> _Draft:
    """Eval capture alone: let the flags of norms and dropouts follow the module's mode."""
    nodes = []
    for node in draft.nodes:
        flag = table.row(node.op).training_flag
        if flag is not None and node.arg(flag) is False:
            node = node.with_args(**{flag: TRAINING})
        nodes.append(node)
    return dataclasses.replace(draft, nodes=nodes)


def _reconcile(evaluated: _Draft, trained: _Draft) -> _Draft:
    """Lay two captures over one another; what differs becomes a ``Mode``."""

    def key(node: Node) -> tuple[Any, ...]:
        return node.op, node.scope, tuple(node.leaves()), str(node.type)

    a, b = evaluated.nodes, trained.nodes
    keys_a, keys_b = [key(n) for n in a], [key(n) for n in b]
    merged: list[tuple[Node | None, Node | None]] = []
    if keys_a == keys_b:
        merged = list(zip(a, b, strict=True))
    else:
        matcher = difflib.SequenceMatcher(a=keys_a, b=keys_b, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag == "equal":
                merged += zip(a[i1:i2], b[j1:j2], strict=True)
            else:
                merged += [(n, None) for n in a[i1:i2]] + [(None, n) for n in b[j1:j2]]
    names: dict[tuple[bool, str], str] = {}
    for index, (left, right) in enumerate(merged):
        label = f"~{index}"  # no argument of forward can be called so
        if left is not None and left.op == "input":
            label = left.name
        if left is not None:
            names[False, left.name] = label
        if right is not None:
            names[True, right.name] = label
    constants = dict(evaluated.constants)
    labels: dict[str, str] = {}
    for value, param in trained.constants.items():
        if value not in constants:
            taken = {p.name for p in constants.values()}
            label = param.name
            while label in taken:
                label += "_train"
            constants[value] = dataclasses.replace(param, name=label)
        labels[param.name] = constants[value].name

    def rename(value: Value, training: bool) -> Value:
        def one(item: Value) -> Value:
            if isinstance(item, Ref):
                return Ref(names[training, item.name])
            if isinstance(item, Leaf) and training and item.name in labels:
                return Leaf(labels[item.name])
            return item

        return replace(value, one)

    def join(left: Value, right: Value) -> Value:
        if same(left, right):
            return left
        if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
            return tuple(join(x, y) for x, y in zip(left, right, strict=True))
        return Mode(right, left)

    nodes = []
    for left, right in merged:
        if left is None or right is None:
            node, training = (left, False) if left is not None else (right, True)
            assert node is not None
            args = tuple((k, rename(v, training)) for k, v in node.args)
            nodes.append(dataclasses.replace(node, name=names[training, node.name], args=args))
            continue
        la = {k: rename(v, False) for k, v in left.args}
        ra = {k: rename(v, True) for k, v in right.args}
        together: dict[str, Value] = {}
        for k in [*la, *(k for k in ra if k not in la)]:
            default = schema(left.op).by_name[k].default if left.op.startswith("aten.") else None
            together[k] = join(la.get(k, default), ra.get(k, default))
        args = (
            canonical_args(left.op, together)
            if left.op.startswith("aten.")
            else tuple(together.items())
        )
        nodes.append(dataclasses.replace(left, name=names[False, left.name], args=args))
    outputs_eval = rename(evaluated.outputs, False)
    outputs_train = rename(trained.outputs, True)
    outputs = (
        outputs_eval if same(outputs_eval, outputs_train) else Mode(outputs_train, outputs_eval)
    )
    updates: dict[str, Value] = {}
    for k in [*evaluated.updates, *(k for k in trained.updates if k not in evaluated.updates)]:
        left_value = rename(evaluated.updates[k], False) if k in evaluated.updates else None
        right_value = rename(trained.updates[k], True) if k in trained.updates else None
        updates[k] = join(left_value, right_value)
    inputs = tuple((k, rename(v, False)) for k, v in evaluated.inputs)
    return _Draft(inputs, nodes, outputs, updates, constants)


def _finish(draft: _Draft, model: torch.nn.Module, names: _Names, name: str) -> ArchGraph:
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
    params = []
    for param in graph.params:
        if param.role == "buffer" and table.initialiser(graph, param) is None:
            param = dataclasses.replace(param, value=constant(tensors[param.name]))
        params.append(param)
    return graph.replace(params=tuple(params))


__all__ = ["Traced", "constant", "trace"]
