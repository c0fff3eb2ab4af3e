"""Build: an :class:`ArchGraph` becomes an ``nn.Module`` again.

Each mode of the graph becomes one ``torch.fx.Graph``; its generated forward is compiled once per
graph and dispatched on ``self.training``.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Atom, Batch, Leaf, Param, Record, Ref, Value
from archgraph.graph.passes import specialise
from archgraph.ops.constants import tensor_of
from archgraph.ops.operator import Initialiser
from archgraph.ops.schema import from_atom, schema, torch_dtype
from archgraph.ops.table import initialiser
from archgraph.states import State


class Output(dict[str, Any]):
    """A model's named results: a dict whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


pytree.register_pytree_node(
    Output,
    lambda o: (list(o.values()), list(o)),
    lambda values, keys: Output(zip(keys, values, strict=True)),
    serialized_type_name="archgraph.Output",
)


class ArchModule(torch.nn.Module):
    """A module built from a graph.

    Attributes:
        arch: The graph. State-dict keys, training flags and outputs are those of the model that
            it was traced from.
    """

    arch: ArchGraph

    def _leaf(self, name: str) -> Any:
        """A leaf whose name is no expression of Python, or means something else there."""
        *path, last = name.split(".")
        module: torch.nn.Module = self
        for part in path:
            module = module._modules[part]  # type: ignore[assignment]  # build made it
        return module._parameters[last] if last in module._parameters else module._buffers[last]

    def extra_repr(self) -> str:
        """One line: name, operators, parameters."""
        return f"{self.arch.name}: {len(self.arch.nodes)} operators"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {k: v.detach().clone() for k, v in state_of(self).items()}
        return _rebuild, (self.arch, state, self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> ArchModule:
        copy = build(self.arch, state_of(self))
        copy.train(self.training)
        memo[id(self)] = copy
        return copy


def _rebuild(graph: ArchGraph, state: State, training: bool) -> ArchModule:
    return build(graph, state).train(training)


@takes_graph
def build(graph: ArchGraph, state: State | None = None, *, seed: int = 0) -> ArchModule:
    """Module that computes a graph.

    Args:
        graph: The architecture.
        state: Tensors by leaf name (copied, each where it is); without it leaves start as their
            operators' defaults.
        seed: Seed of the initialisation.

    Raises:
        GraphError: If the state lacks a leaf or has one of another shape.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> build(graph, state)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    values = dict(state) if state is not None else initial_state(graph, seed)
    kind: type[ArchModule] = graph._memo("archgraph.build", _module_class)
    module = kind()
    module.arch = graph
    tensors: dict[str, torch.Tensor] = {}
    devices = {v.device for v in values.values()}
    device = next(iter(devices)) if len(devices) == 1 else torch.device("cpu")
    for param in graph.params:
        if param.role == "constant":
            assert param.value is not None
            tensors[param.name] = tensor_of(param.value).to(device)
            continue
        value = values.get(param.name)
        if value is None:
            raise GraphError("state lacks a tensor", where=param.name, expected=str(param.type))
        if tuple(value.shape) != param.shape:
            raise GraphError(
                "state has another shape",
                where=param.name,
                found=tuple(value.shape),
                expected=param.shape,
            )
        tensors[param.name] = value.detach().to(torch_dtype(param.dtype), copy=True)
    leaves: dict[str, torch.Tensor] = {}
    for param in graph.params:
        leaf = leaves[param.name] = tensors[param.name]
        if param.role == "parameter":
            leaves[param.name] = leaf = torch.nn.Parameter(leaf, requires_grad=param.trainable)
        _register(module, param.name, leaf, param.role)
    for param in graph.params:  # last, where tied heads stand in the original's state dict
        for name in param.aliases:
            _register(module, name, leaves[param.name], param.role)
    return module


def _register(module: torch.nn.Module, name: str, leaf: torch.Tensor, role: str) -> None:
    """Place a leaf at its path; straight into the tables, which take every name that a module has.

    (``self.type = Linear(…)`` is a legal module name; ``add_module("type", …)`` refuses it.)
    """
    *path, last = name.split(".")
    if not all(part and part.isprintable() for part in (*path, last)):
        raise GraphError("a leaf's name is no path of attributes", found=name)
    for part in path:
        child = module._modules.get(part)
        if child is None:
            if part in module._parameters or part in module._buffers:
                raise GraphError("a leaf's name runs through another leaf", found=name)
            child = module._modules[part] = torch.nn.Module()
        module = child
    if last in module._modules or last in module._parameters or last in module._buffers:
        raise GraphError("two leaves have one place", found=name)
    if isinstance(leaf, torch.nn.Parameter):
        module._parameters[last] = leaf
    else:
        module._buffers[last] = leaf
        if role == "constant":
            module._non_persistent_buffers_set.add(last)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """State of a built module: owners only, detached views of its tensors, in graph order.

    Raises:
        GraphError: If the module was not built from a graph.
    """
    graph = getattr(module, "arch", None)
    if not isinstance(graph, ArchGraph):
        raise GraphError("not a module built by archgraph", found=type(module).__name__)
    full = module.state_dict(keep_vars=True)
    return {name: full[name].detach() for name in graph.state_names}


def load_state(module: torch.nn.Module, state: State) -> None:
    """Copy a state into a built module, in place.

    Raises:
        GraphError: If a tensor is missing or has another shape; nothing is copied then.
    """
    own = state_of(module)
    for name, tensor in own.items():
        if name not in state or state[name].shape != tensor.shape:
            found = tuple(state[name].shape) if name in state else "nothing"
            raise GraphError(
                "state does not fit", where=name, found=found, expected=tuple(tensor.shape)
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


@takes_graph
def initial_state(graph: ArchGraph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Fresh weights: each leaf as the operator that uses it says, drawn in graph order.

    Args:
        graph: The architecture.
        seed: Seed; equal seeds give equal states.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        p.name: _initial(p, initialiser(graph, p), generator)
        for p in graph.params
        if p.role != "constant"
    }


def _initial(param: Param, how: Initialiser | None, generator: torch.Generator) -> torch.Tensor:
    if param.value is not None:
        return tensor_of(param.value)
    dtype = torch_dtype(param.dtype)
    tensor = torch.zeros(param.shape, dtype=dtype)
    if how is None or not dtype.is_floating_point:
        return tensor
    match how.kind:
        case "zeros":
            return tensor
        case "ones":
            return tensor.fill_(how.scale)
        case "uniform":
            return tensor.uniform_(-how.scale, how.scale, generator=generator)
        case "normal":
            return tensor.normal_(0.0, how.scale, generator=generator)


# -- code -----------------------------------------------------------------------------------


def _module_class(graph: ArchGraph) -> type[ArchModule]:
    """A module class whose forward computes the graph in both modes."""
    evaluate, train = (_compile(specialise(graph, training=t)) for t in (False, True))
    if evaluate[1] == train[1]:
        forward = evaluate[0]
    else:
        forward = _dispatch(evaluate[0], train[0])
    return type("ArchModule", (ArchModule,), {"forward": forward, "__module__": __name__})


def _dispatch(evaluate: Callable[..., Any], train: Callable[..., Any]) -> Callable[..., Any]:
    """One forward for both modes, with the signature of either."""

    def forward(self: ArchModule, *args: Any, **kwargs: Any) -> Any:
        return (train if self.training else evaluate)(self, *args, **kwargs)

    forward.__signature__ = inspect.signature(evaluate)  # type: ignore[attr-defined]  # export reads it
    return forward


@functools.cache
def _plain(name: str) -> bool:
    """Whether ``self.NAME`` is the leaf of that name in generated code."""
    parts = name.split(".")
    usual = all((p.isidentifier() and not keyword.iskeyword(p)) or p.isdecimal() for p in parts)
    own = parts[0] == "arch" or hasattr(ArchModule, parts[0])
    return usual and not own and not any(hasattr(torch.nn.Module, p) for p in parts)


def _argument(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
        raise GraphError("argument of forward must be an identifier", where="inputs", found=name)
    return name


def _compile(graph: ArchGraph) -> tuple[Callable[..., Any], str]:
    code = fx_graph(graph).python_code("self")
    scope = dict(code.globals)
    exec(code.src, scope)  # generated by torch.fx from validated ATen operators
    return scope["forward"], code.src


def fx_graph(graph: ArchGraph) -> torch.fx.Graph:
    """The ``torch.fx`` graph of one mode (no :class:`~archgraph.graph.ir.Mode` left inside)."""
    fx = torch.fx.Graph()
    env: dict[str, torch.fx.Node] = {}
    get = torch.ops.aten
    placeholders = {k: fx.placeholder(_argument(k)) for k, _ in graph.inputs}

    def take_apart(value: Value, held: torch.fx.Node) -> None:
        match value:
            case Ref(name):
                env[name] = held
            case tuple():
                for index, item in enumerate(value):
                    take_apart(item, fx.call_function(operator.getitem, (held, index)))
            case Record():
                for key, item in value.fields:
                    take_apart(item, fx.call_function(_field, (held, key)))

    for key, value in graph.inputs:
        take_apart(value, placeholders[key])
    attributes: dict[str, torch.fx.Node] = {}
    sizes: dict[Batch, torch.fx.Node] = {}
    batched = next(
        (n.name for n in graph.nodes if n.op == "input" and n.shape and n.shape[0] == Batch()), None
    )
    first_input = next((n.name for n in graph.nodes if n.op == "input"), None)

    def size(value: Batch) -> torch.fx.Node:
        if value not in sizes:
            if batched is None:
                raise GraphError("a size depends on the batch, but no input has a batch axis")
            if value == Batch():
                sizes[value] = fx.call_function(get.sym_size.int, (env[batched], 0))
            elif value.power > 1:
                whole = size(Batch(value.factor, value.power - 1))
                sizes[value] = fx.call_function(operator.mul, (whole, size(Batch())))
            else:
                sizes[value] = fx.call_function(operator.mul, (size(Batch()), value.factor))
        return sizes[value]

    def lower(value: Value) -> Any:
        match value:
            case Ref(name):
                return env[name]
            case Leaf(name):
                if name not in attributes:
                    if _plain(name):
                        attributes[name] = fx.get_attr(name)
                    else:
                        call = (fx.get_attr("_leaf"), name)
                        attributes[name] = fx.call_method("__call__", call)
                return attributes[name]
            case Batch():
                return size(value)
            case Atom():
                return from_atom(value)
            case tuple():
                return [lower(v) for v in value]
            case _:
                return value

    def lower_tree(value: Value) -> Any:
        match value:
            case Record(fields, ""):
                keys, values = [k for k, _ in fields], [lower_tree(v) for _, v in fields]
                return fx.call_function(_output, (keys, values))
            case Record(fields, name):
                keys, values = [k for k, _ in fields], [lower_tree(v) for _, v in fields]
                return fx.call_function(_named, (name, keys, values))
            case tuple():
                return tuple(lower_tree(v) for v in value)
            case _:
                return lower(value)

    for node in graph.nodes:
        if node.op == "input":
            continue
        if node.op == "getitem":
            args = (lower(node.arg("source")), lower(node.arg("index")))
            env[node.name] = fx.call_function(operator.getitem, args)
            continue
        row = schema(node.op)
        given = {k: lower(v) for k, v in node.args}
        if row.makes_tensor and first_input is not None:
            given["device"] = fx.call_function(getattr, (env[first_input], "device"))
        positional, named = row.call_args(given)
        env[node.name] = fx.call_function(row.overload, tuple(positional), named)
    for buffer, value in graph.updates:
        fx.call_function(get.copy_.default, (lower(Leaf(buffer)), lower(value)))
    fx.output(lower_tree(graph.outputs))
    return fx


def _output(keys: list[str], values: list[Any]) -> Output:
    return Output(zip(keys, values, strict=True))


@functools.lru_cache(maxsize=256)
def _named_tuple(name: str, keys: tuple[str, ...]) -> Any:
    from collections import namedtuple

    return namedtuple(name, keys)


def _named(name: str, keys: list[str], values: list[Any]) -> Any:
    return _named_tuple(name, tuple(keys))(*values)


def _field(held: Any, key: str) -> Any:
    return held[key] if isinstance(held, Mapping) else getattr(held, key)


# fx prints functions by their qualified name: these must be importable from here.
torch.fx.wrap("_field")
torch.fx.wrap("_output")
torch.fx.wrap("_named")
