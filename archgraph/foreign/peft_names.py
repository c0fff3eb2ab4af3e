"""Conversion of names in a PEFT model to those in the author's class."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import torch

from archgraph.graph.ir import ArchGraph, Leaf
from archgraph.states import State

# PEFT's wrappers of a model, of a layer with an adapter, and of a module trained as a whole.
_WRAPPERS = re.compile(
    r"^(?:.*\.)?base_model\.model(?:\.|$)"
    r"|\.(?:base_layer|original_module|modules_to_save\.[^.]+)(?=\.|$)"
)
ADAPTER = ".lora_"


def author_name(name: str) -> str:
    """Return the name in the author's class of a tensor or module in a PEFT model.

    >>> author_name("base_model.model.h.0.query.base_layer.weight")
    'h.0.query.weight'
    >>> author_name("base_model.model.classifier.modules_to_save.default.dense.bias")
    'classifier.dense.bias'
    """
    return _WRAPPERS.sub("", name)


def unwrapped(graph: ArchGraph, state: State) -> tuple[ArchGraph, State]:
    """Rename the leaves of a PEFT model's graph and state as in the model without PEFT.

    Leaves are parameters and buffers. For those of adapters, only PEFT's prefix is removed. If
    several leaves get the same name, the one that forward reads is kept.

    Args:
        graph: The graph of a PEFT model. Other graphs are returned unchanged.
        state: Its state.
    """
    names = _author_names(graph)
    if all(names.get(p.name) == [p.name, *p.aliases] for p in graph.params):
        return graph, state
    last = {new: old for old, (new, *_) in names.items()}
    first = {old: new for new, old in last.items()}
    new = graph.mapped(lambda v: Leaf(first[v.name]) if isinstance(v, Leaf) else v)
    params = (
        replace(p, name=first[p.name], aliases=tuple(names[p.name][1:]))
        for p in graph.params
        if p.name in first
    )
    new = new.replace(
        params=tuple(params),
        nodes=tuple(replace(n, scope=author_name(n.scope)) for n in new.nodes),
        updates=tuple((first[buffer], value) for buffer, value in new.updates),
    )
    known = first | {name: name for name in state if name not in graph.param}
    return new, {known[name]: tensor for name, tensor in state.items() if name in known}


def _author_names(graph: ArchGraph) -> dict[str, list[str]]:
    """Return the names of leaves without PEFT; leaves that forward reads come last.

    1. Skip inactive adapters, which forward does not read.
    2. Ignore a weight's name in a module that PEFT has replaced, if the weight has other names.
    """
    return {
        p.name: [author_name(n) for n in (p.name, *p.aliases) if ".original_module." not in n]
        or [author_name(p.name)]  # 2
        for p in sorted(graph.params, key=lambda p: bool(graph.leaf_users[p.name]))
        if graph.leaf_users[p.name] or ADAPTER not in p.name  # 1
    }


def author_model(model: Any) -> Any:
    """Return a model of transformers with its weights, but without PEFT's wrappers.

    Args:
        model: The model. It is returned unchanged if PEFT has not wrapped it.
    """
    # A module trained as a whole follows the module that it replaces, whose name it takes.
    tensors = {author_name(name): tensor for name, tensor in model.state_dict().items()}
    if tensors.keys() == model.state_dict().keys():
        return model
    with torch.device("meta"):
        result = type(model)(copy.deepcopy(model.config))
    result.load_state_dict(tensors, strict=False, assign=True)
    return result
