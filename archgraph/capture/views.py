"""Views: which results share memory with which, read off operator schemas and stand-in tensors."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch

from archgraph.capture import calls
from archgraph.capture.tape import View


def views_of(
    graph: torch.fx.Graph, same: Collection[torch.fx.Node] = ()
) -> dict[torch.fx.Node, View]:
    """What is a view of what; ``same`` results are their argument itself, if they share memory."""
    views: dict[torch.fx.Node, View] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            source, index = node.args
            view = views.get(source)
            if view is not None and calls.memory(view.parent) == calls.memory(node):
                views[node] = View(view.parent, source, view.place, index)
        elif calls.is_operator(node):
            view = _view(node)
            if view is not None:
                views[node] = View(view.parent) if node in same else view
    return views


def _view(node: torch.fx.Node) -> View | None:
    """Which argument a result is a view of."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    own, arguments = calls.memory(node), target._schema.arguments
    if own is None:  # several results
        source = node.args[0] if node.args else None
        aliased = bool(arguments) and arguments[0].alias_info is not None
        return View(source, node) if aliased and isinstance(source, torch.fx.Node) else None
    for place, (argument, item) in enumerate(zip(arguments, node.args, strict=False)):
        if argument.alias_info is None or not isinstance(item, torch.fx.Node):
            continue
        if calls.memory(item) == own:
            values_written = argument.alias_info.is_write
            same = values_written and torch.Tag.inplace_view not in target.tags
            return View(item) if same else View(item, node, place)
    out = node.kwargs.get("out")
    return View(out) if isinstance(out, torch.fx.Node) else None
