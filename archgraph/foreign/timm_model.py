"""Export of a rewritten timm model, as weights and arguments for ``timm.create_model``."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from archgraph.capture.surroundings import replaced
from archgraph.errors import GraphError
from archgraph.files import write
from archgraph.foreign.fit import Fit
from archgraph.foreign.search import Arguments
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.hints import optional_module
from archgraph.ops.schema import torch_dtype
from archgraph.states import State

# Arguments of timm.create_model that load weights.
_WEIGHTS = {"pretrained", "checkpoint_path"}


@takes_graph
def to_timm(
    graph: ArchGraph, /, state: State, name: str, file: str | os.PathLike[str], **args: Any
) -> dict[str, Any]:
    """Write the weights of a narrowed or shortened network to a file for ``timm.create_model``.

    The arguments of ``create_model`` for the new network are found by a search, which starts from
    the arguments of the original model (see :func:`archgraph.to_transformers`).

    Args:
        graph: A traced and rewritten timm model.
        state: The weights of the network.
        name: Name of the original model in timm.
        file: The safetensors file to write.
        **args: Arguments with which the original model was created.

    Returns:
        Arguments for the new network. ``timm.create_model(name, checkpoint_path=file,
        **arguments)`` creates it with its weights.

    Raises:
        RewriteError: If no arguments of ``create_model`` give the shapes of the network. The error
            names an axis that no arguments can produce.
        GraphError: If timm is not installed or does not have this model, or if the state does not
            fit the graph.

    Example:
        >>> import timm  # doctest: +SKIP
        >>> to_timm(small, weights, "resnet18", "small.safetensors")  # doctest: +SKIP
        {'layers': (1, 2, 2, 2)}
    """
    from safetensors.torch import save

    fit = timm_fit(name, **args)(graph)
    arguments = fit.arguments()
    net = fit.filled(arguments, state)
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in net.state_dict().items()}
    write(file, save(tensors, metadata={"format": "pt"}))
    return _without_weights(args) | _changed(fit.start, arguments)


def timm_fit(name: str, **args: Any) -> Callable[[ArchGraph], Fit]:
    """Return a function that fits a graph to the class of a timm model.

    Args:
        name: Name of the model.
        **args: Arguments with which the model was created.

    Raises:
        GraphError: If timm is not installed or does not have this model.
    """
    timm = optional_module("timm")
    if not timm.is_model(name):
        raise GraphError("timm does not have this model", found=name)
    model = timm.create_model(name, **args)
    with _recorded(type(model)) as calls:
        timm.create_model(name, **_without_weights(args))
    start: Arguments = calls[0]

    def make(arguments: Arguments) -> nn.Module:
        return timm.create_model(name, **(_without_weights(args) | _changed(start, arguments)))

    def beside(graph: ArchGraph) -> Fit:
        types = (torch_dtype(param.dtype) for param in graph.params)
        typed = copy.deepcopy(model).to(next(t for t in types if t.is_floating_point))
        return Fit(graph, typed, start, make, label=f"{type(model).__name__} of timm")

    return beside


def _without_weights(args: Arguments) -> Arguments:
    """Return the arguments without those that load the weights of the original model."""
    return {key: value for key, value in args.items() if key not in _WEIGHTS}


def _changed(start: Arguments, arguments: Arguments) -> Arguments:
    """Return the arguments that have changed."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in arguments.items()
        if value != start[key]
    }


@contextlib.contextmanager
def _recorded(kind: type[nn.Module]) -> Iterator[list[Arguments]]:
    """Record the arguments with which a class is constructed, including defaults.

    The function of timm that creates a model passes arguments to the class without storing them.
    """
    construct, calls = kind.__init__, list[Arguments]()
    signature = inspect.signature(construct)

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        values: Arguments = {}
        for key, value in {**bound.arguments, **kwargs}.items():
            # If an argument is a configuration, its fields are also arguments.
            values |= vars(value) if dataclasses.is_dataclass(type(value)) else {key: value}
        calls.append({k: v for k, v in values.items() if not isinstance(v, nn.Module | dict)})
        construct(self, *args, **kwargs)

    with replaced([(kind, "__init__", init)]):
        yield calls
