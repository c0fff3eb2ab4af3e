"""Conversion of names in a PEFT model to the names in the model without PEFT."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import torch

from archgraph.graph.ir import ArchGraph, Leaf
from archgraph.states import State

# Names that PEFT adds for a model, a layer with an adapter, and a completely trained module.
_WRAPPERS = re.compile(
    r"^(?:.*\.)?base_model\.model(?:\.|$)"
    r"|\.(?:base_layer|original_module|modules_to_save\.[^.]+)(?=\.|$)"
)
ADAPTER = ".lora_"


def author_name(name: str) -> str:
    """Return the name of a tensor or module without PEFT, from its name in a PEFT model.

    >>> author_name("base_model.model.h.0.query.base_layer.weight")
    'h.0.query.weight'
    >>> author_name("base_model.model.classifier.modules_to_save.default.dense.bias")
    'classifier.dense.bias'
    """
    return _WRAPPERS.sub("", name)


def unwrapped(graph: ArchGraph, state: State) -> tuple[ArchGraph, State]:
    """Rename the parameters and buffers of a PEFT model as in the model without PEFT.

    From names of adapters, only PEFT's prefix is removed. If several tensors get the same name,
    only the tensor that forward reads is kept.

    Args:
        graph: The graph of a PEFT model. Other graphs are returned unchanged.
        state: The state of the graph.
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
    """Return a dict from each name to its name without PEFT; tensors that are read come last.

    1. Skip inactive adapters, which forward does not read.
    2. If a weight has several names, ignore its name in a module that PEFT has replaced.
    """
    return {
        p.name: [author_name(n) for n in (p.name, *p.aliases) if ".original_module." not in n]
        or [author_name(p.name)]  # 2
        for p in sorted(graph.params, key=lambda p: bool(graph.leaf_users[p.name]))
        if graph.leaf_users[p.name] or ADAPTER not in p.name  # 1
    }


def author_model(model: Any) -> Any:
    """Return a transformers model with its weights, but without the wrappers of PEFT.

    Args:
        model: The model. A model without wrappers is returned unchanged.
    """
    # A completely trained module follows the module that it replaces, and gets its name.
    tensors = {author_name(name): tensor for name, tensor in model.state_dict().items()}
    if tensors.keys() == model.state_dict().keys():
        return model
    with torch.device("meta"):
        result = type(model)(copy.deepcopy(model.config))
    result.load_state_dict(tensors, strict=False, assign=True)
    return result
