"""Build: an :class:`ArchGraph` becomes an ``nn.Module`` again.

Each mode of the graph becomes one ``torch.fx.Graph``; its generated forward is compiled once per
graph and dispatched on ``self.training``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.graph.passes import specialise
from archgraph.module.code import compiled
from archgraph.module.initial import initial_state
from archgraph.ops.constants import tensor_of
from archgraph.ops.schema import torch_dtype
from archgraph.states import State


class ArchModule(torch.nn.Module):
    """A module built from a graph.

    Attributes:
        arch: The graph. State-dict keys, training flags and outputs are those of the model that
            it was traced from.
    """

    arch: ArchGraph

    def _leaf(self, name: str) -> Any:
        """A leaf whose name is not a Python expression, or means something else there."""
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
        GraphError: If the state lacks a leaf or has one of another shape, or has different values
            for tied ones.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> build(graph, state)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    values = dict(state) if state is not None else initial_state(graph, seed)
    _check_tied(graph, values)
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
        raise GraphError("a leaf's name is not a path of attributes", found=name)
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


@takes_graph
def state_dict(graph: ArchGraph, state: State) -> dict[str, torch.Tensor]:
    """A state as the ``state_dict`` of the model that the graph was traced from.

    A state has each tensor once. A model with tied weights has them in its ``state_dict`` under
    each of their names, and ``load_state_dict`` asks for all of them.

    Raises:
        GraphError: If the state lacks a tensor or has one of another shape, or has different values
            for tied ones.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> tied[1].weight = tied[0].weight
        >>> graph, state = trace(tied, torch.zeros(1, 2))
        >>> sorted(state_dict(graph, state).keys() - state.keys())
        ['1.weight']
        >>> tied.load_state_dict(state_dict(graph, state))
        <All keys matched successfully>
    """
    params = [param for param in graph.params if param.role != "constant"]
    _fits(state, {param.name: param.shape for param in params})
    _check_tied(graph, state)
    return {name: state[param.name] for param in params for name in (param.name, *param.aliases)}


def load_state(module: torch.nn.Module, state: State) -> None:
    """Copy a state into a built module, in place.

    Raises:
        GraphError: If a tensor is missing or has another shape, or tied ones differ; nothing is
            copied then.
    """
    own = state_of(module)
    _fits(state, {name: tuple(tensor.shape) for name, tensor in own.items()})
    _check_tied(cast(ArchModule, module).arch, state)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


def _fits(state: State, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a state that lacks a tensor or has one of another shape."""
    for name, shape in shapes.items():
        found = tuple(state[name].shape) if name in state else "nothing"
        if found != shape:
            raise GraphError("state does not fit", where=name, found=found, expected=shape)


def _check_tied(graph: ArchGraph, state: State) -> None:
    """Refuse a state that has a tensor under several names, with different values."""
    for param in graph.params:
        for name in param.aliases:
            if name not in state or param.name not in state:
                continue
            one, other = state[param.name], state[name]
            if not _equal(one, other):
                raise GraphError(
                    "tied tensors have different values",
                    where=name,
                    found=f"other values than {param.name}",
                    expected="the same, since the graph has one tensor for both",
                    hint=f"leave {name} out, or trace the model with its weights untied",
                )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same values; NaN equals NaN."""
    if (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()):
        return True
    return one.shape == other.shape and bool(
        torch.isclose(one, other.to(one), rtol=0, atol=0, equal_nan=True).all()
    )


# -- code -----------------------------------------------------------------------------------


def _module_class(graph: ArchGraph) -> type[ArchModule]:
    """A module class whose forward computes the graph in both modes."""
    evaluate, train = (compiled(specialise(graph, training=t)) for t in (False, True))
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
