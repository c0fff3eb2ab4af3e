"""Insert the casts of autocast as separate calls.

Requires a tape (:mod:`~archgraph.capture.tape`) after constant folding. Guarantees that no call
depends on autocast: every argument that torch would cast is cast by a ``to.dtype`` right before the
operator. A parameter is cast once in each autocast region, as with autocast's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import PyTree

from archgraph.capture import calls
from archgraph.capture.places import under_no_grad
from archgraph.capture.tape import FOLDED, LITERAL, Tape
from archgraph.errors import TraceError
from archgraph.graph.ir import Param

# Key of a shared cast: leaf, number of writes to it so far, dtype, whether gradients pass.
_Key: TypeAlias = tuple[str | Param | None, int, torch.dtype, bool]
_TO = torch.ops.aten.to.dtype


def spell_casts(tape: Tape) -> Tape:
    """Insert the casts of autocast as separate calls.

    Raises:
        TraceError: If the effect of autocast is not a cast of arguments.
    """
    work = _Casting(tape)
    for node in list(tape.graph.nodes):
        if node.op != "call_function" or not calls.is_operator(node) or FOLDED in node.meta:
            continue
        if calls.writes(node):
            work.written[calls.memory(node)] += 1
        elif calls.region(node).autocast is not None and LITERAL not in node.meta:
            with tape.graph.inserting_before(node):
                work.rewrite(node)
    return tape


@dataclass
class _Casting:
    """Casts so far. All users of a parameter in a region share a cast until the next write."""

    tape: Tape
    leaf_casts: dict[_Key, fx.Node] = field(default_factory=dict)
    written: Counter[int | None] = field(default_factory=Counter)  # writes to each memory

    def rewrite(self, node: fx.Node) -> None:
        """Cast the arguments of a call that autocast would cast."""
        goal = _casts(node)
        if not goal:
            return

        def replaced(item: fx.Node) -> fx.Node:
            return self.cast(item, goal[item], node) if item in goal else item

        node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), replaced)

    def cast(self, item: fx.Node, dtype: torch.dtype, user: fx.Node) -> fx.Node:
        """Cast a value to another dtype."""
        tape = self.tape
        origin = item  # outside the regions into which it was passed
        while origin in tape.views and tape.views[origin].call is None:
            origin = tape.views[origin].parent
        leaf = tape.leaves.get(origin) or tape.constants.get(origin)
        # As in autocast's cache: one cast of a weight per region accumulates all gradients.
        graded = calls.region(user).grad and not under_no_grad(user.meta.get("stack_trace"))
        key = (leaf, self.written[calls.memory(item)], dtype, graded)
        if leaf is not None and key in self.leaf_casts:
            return self.leaf_casts[key]
        with torch.no_grad():
            val = item.meta["val"].to(dtype)
        new = calls.insert(tape.graph, _TO, (item, dtype), {}, like=user, val=val)
        if leaf is not None:
            self.leaf_casts[key] = new
        return new


def _casts(node: fx.Node) -> dict[fx.Node, torch.dtype]:
    """Return a dict from the arguments of a call that autocast casts to their new dtypes."""
    target, autocast = node.target, calls.region(node).autocast
    assert isinstance(target, torch._ops.OpOverload) and autocast is not None
    tensors = {
        n: value
        for n in node.all_input_nodes
        if (value := calls.fake_tensor(n)) is not None and value.is_floating_point()
    }
    if target._schema.is_mutable or target.namespace != "aten" or not tensors:
        return {}

    def dtypes(casts: Mapping[fx.Node, torch.dtype]) -> list[torch.dtype]:
        def current(n: fx.Node) -> object:
            return n.meta["val"].to(casts[n]) if n in casts else n.meta["val"]

        args, kwargs = pytree.tree_map_only(fx.Node, current, (node.args, node.kwargs))
        results = pytree.tree_leaves(target(*args, **kwargs))
        return [t.dtype for t in results if isinstance(t, Tensor)]

    watch = _Casts({id(v): n for n, v in tensors.items()})
    with torch.no_grad():
        with torch.autocast(*autocast, cache_enabled=False), watch:
            dtypes({})
        casts = watch.casts
        expected = [t.dtype for t in pytree.tree_leaves(node.meta["val"]) if torch.is_tensor(t)]
        if dtypes(casts) != expected:
            # Some operators do not get casts, but compute in float32.
            casts = dict.fromkeys(tensors, torch.float32)
            if dtypes(casts) != expected:
                raise TraceError(
                    f"a graph cannot express the effect of autocast on {target}; cast by hand",
                    where=calls.where(node),
                )
    return {n: d for n, d in casts.items() if n.meta["val"].dtype != d}


class _Casts(TorchDispatchMode):
    """Mode that records casts of the ``watched`` tensors before an operator runs."""

    def __init__(self, watched: dict[int, fx.Node]) -> None:
        super().__init__()
        self.watched = watched
        self.casts: dict[fx.Node, torch.dtype] = {}

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and id(args[0]) in self.watched:
            self.casts.setdefault(self.watched[id(args[0])], kwargs.get("dtype"))
        return func(*args, **kwargs)
