"""Folding: what depends on neither input nor parameter becomes a constant.

Needs a flat tape. Promises that every call left (not marked as folded) depends on an input, a
parameter, a buffer or a random draw, and that its other tensors are ``get_attr`` nodes with a
constant each. Writes in place are folded too, through views: a constant is what memory holds
right before the call that uses it. The model's own tensors are never written to.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture import calls
from archgraph.capture.tape import FOLDED, LITERAL, Tape, View
from archgraph.errors import GraphError, TraceError
from archgraph.graph.ir import Constant, Param, TensorType
from archgraph.ops import table
from archgraph.ops.constants import constant
from archgraph.ops.schema import op_name


def fold(tape: Tape, names: Collection[str], most: float = math.inf) -> Tape:
    """Replace what can be computed now by constants.

    Args:
        tape: The calls.
        names: State-dict keys of the model, which no constant may be called.
        most: Bytes of all that is computed.

    Raises:
        TraceError: If a constant is too large for a graph, or more is computed than is allowed.
    """
    work = _Folding(tape, names, dict(tape.tensors), dict(tape.views), most)
    before = {node: tape.tensors[node].clone() for node in tape.labels}
    for node in tape.tensors:
        node.meta[FOLDED] = True
    for node in list(tape.graph.nodes):
        work.follow(node)
        if node in work.real:
            continue
        result = work.result(node)
        if result is not None:
            work.real[node] = result
            node.meta[FOLDED] = True
        elif node.op == "output" or node.target is operator.getitem or calls.is_operator(node):
            work.bring_constants(node)
    notes = (
        TraceError(
            "forward changes a tensor in place that is not part of the state; the graph does not",
            where=name,
            hint="make it a persistent buffer (register_buffer)",
        )
        for node, name in tape.labels.items()
        if not torch.equal(tape.tensors[node].nan_to_num(), before[node].nan_to_num())
    )
    views = {
        node: replace(view, parent=work.stand_in.get(view.parent, view.parent))
        for node, view in work.views.items()
    }
    return replace(
        tape,
        tensors={},
        labels={},
        views=views,
        constants=work.constants,
        notes=(*tape.notes, *notes),
    )


@dataclass
class _Folding:
    """Results computed so far, and the nodes that stand for them.

    ``real`` are results that nothing can change; in-place calls run on their memory. Where a live
    call writes to it, a node right before that call takes the result's place (``stand_in``).
    """

    tape: Tape
    names: Collection[str]  # that no constant may have
    real: dict[torch.fx.Node, Any]
    views: dict[torch.fx.Node, View]
    left: float  # bytes
    constants: dict[torch.fx.Node, Param] = field(default_factory=dict)
    leaves: dict[Constant, Param] = field(default_factory=dict)  # equal constants are one leaf
    stand_in: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)

    def follow(self, node: torch.fx.Node) -> None:
        """Let a node use what stands in for its arguments."""
        if self.stand_in.keys() & set(node.all_input_nodes):
            node.args, node.kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs), lambda n: self.stand_in.get(n, n)
            )

    def result(self, node: torch.fx.Node) -> Any:
        """Run a call whose arguments are known; return None for all others."""
        if node.op != "call_function" or LITERAL in node.meta:
            return None
        if node.target is operator.getitem:
            source, index = node.args
            return self.real[source][index] if source in self.real else None  # type: ignore[index]  # an operator of several results
        if not calls.is_operator(node):
            return None
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        # A random draw differs at each call, even if its arguments do not.
        if torch.Tag.nondeterministic_seeded in target.tags:
            return None
        if (fill := table.call_row(op_name(target)).fill) is not None:
            return _filled(node, fill)
        try:
            args, kwargs = pytree.tree_map(self._now, (node.args, node.kwargs))
        except LookupError:
            return None
        self.take(node)
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if (autocast := calls.region(node).autocast) is not None:
                stack.enter_context(torch.autocast(*autocast))
            try:
                new = target(*args, **kwargs)
            except (IndexError, RuntimeError, TypeError, ValueError) as error:  # fakes let it pass
                raise TraceError(
                    "cannot be computed",
                    where=str(node),
                    found=str(error).partition("\n")[0],
                    expected="a constant",
                ) from error
        if table.base(op_name(target)).startswith("empty"):
            new.zero_()  # whatever memory holds is not part of an architecture
        return new

    def take(self, node: torch.fx.Node) -> None:
        """Count the bytes of a result that is computed now; a view has none."""
        new = [] if node in self.views else pytree.tree_leaves(node.meta.get("val"))
        size = sum(t.numel() * t.element_size() for t in new if isinstance(t, torch.Tensor))
        self.left -= size
        if self.left < 0:
            raise TraceError(
                "computes too much from constants",
                where=calls.where(node),
                found=f"{size:,} bytes at once",
            )

    def _now(self, item: Any) -> Any:
        """Evaluate an argument of a call that is run now; LookupError if it is unknown."""
        if isinstance(item, torch.device):
            return torch.device("cpu")
        if not isinstance(item, torch.fx.Node):
            return item
        if item in self.real:
            return self.real[item]
        size = item.meta.get("val")
        if isinstance(size, torch.SymInt) and not size.node.expr.free_symbols:
            return int(size)
        if isinstance(size, int):
            return size
        raise LookupError(item.name)

    def bring_constants(self, node: torch.fx.Node) -> None:
        """Give a live call the constants that it uses, and those that it writes to."""
        goal = calls.written(node) if calls.is_operator(node) and calls.writes(node) else None
        if goal is not None:
            self.revive(goal, node)
            self.follow(node)
        self.bring_numbers(node)
        if not self.real.keys() & set(node.all_input_nodes):
            return
        once: dict[torch.fx.Node, torch.fx.Node] = {}

        def use(item: torch.fx.Node) -> torch.fx.Node:
            if item in once or not isinstance(self.real.get(item), torch.Tensor):
                return once.get(item, item)
            once[item] = self.constant(item, node)
            return once[item]

        node.args, node.kwargs = torch.fx.node.map_arg((node.args, node.kwargs), use)

    def bring_numbers(self, node: torch.fx.Node) -> None:
        """Give a call tensors in place of complex numbers, which no argument of a graph can be."""
        target, result = node.target, calls.stand_in(node)
        if not isinstance(target, torch._ops.OpOverload) or result is None:
            return
        for position, (argument, value) in enumerate(
            zip(target._schema.arguments, node.args, strict=False)
        ):
            if isinstance(value, complex) and str(argument.type) == "Tensor":
                dtype = result.dtype if result.is_complex() else torch.complex64
                with self.tape.graph.inserting_before(node):
                    new = self.tape.graph.create_node("get_attr", "number")
                new.meta = {"val": result.new_empty((), dtype=dtype)}
                self.constants[new] = self.leaf(torch.tensor(value, dtype=dtype), None, new)
                node.update_arg(position, new)

    def revive(self, goal: torch.fx.Node, node: torch.fx.Node) -> None:
        """Turn constants that a live call is about to write to into values of the graph.

        All that shares it gets a stand-in, the one that is written to first.
        """
        memory = calls.memory(goal)
        shared = [
            n for n in self.real if calls.memory(n) == memory and calls.stand_in(n) is not None
        ]
        path = calls.path(goal, self.views)
        for item in sorted(shared, key=lambda n: path.index(n) if n in path else len(path)):
            self.stand_in[item] = self.constant(item, node)
        for item in shared:
            if item in self.views:
                view = self.views[item]
                parent = self.stand_in.get(view.parent, view.parent)
                self.views[self.stand_in[item]] = replace(view, parent=parent)
            del self.real[item]

    def constant(self, item: torch.fx.Node, user: torch.fx.Node) -> torch.fx.Node:
        """Insert a node right before its user that is what a real result is now."""
        with self.tape.graph.inserting_before(user):
            new = self.tape.graph.create_node("get_attr", item.name)
        new.meta = {k: v for k, v in item.meta.items() if k != FOLDED}
        self.constants[new] = self.leaf(self.real[item], self.tape.labels.get(item), item)
        return new

    def leaf(self, tensor: torch.Tensor, label: str | None, item: torch.fx.Node) -> Param:
        """Return the leaf that has a value; ``label``: what the module calls it."""
        try:
            value = constant(tensor)
        except GraphError as error:
            raise error.within(calls.where(item), kind=TraceError) from error
        if value not in self.leaves:
            used = {*self.names, *(p.name for p in self.leaves.values())}
            numbered = (f"constant_{i}" for i in itertools.count())
            name = next(
                n for n in itertools.chain([label] if label else [], numbered) if n not in used
            )
            type_ = TensorType(value.shape, value.dtype)
            self.leaves[value] = Param(name, type_, "constant", False, (), value)
        return self.leaves[value]


def _filled(node: torch.fx.Node, fill: int | str) -> torch.Tensor | None:
    """Evaluate ``zeros_like`` and others that use only shape and dtype of their argument."""
    result = node.meta["val"]
    if not isinstance(result, torch.Tensor) or not all(isinstance(s, int) for s in result.shape):
        return None
    value = node.args[-1] if fill == "argument" else fill
    if not isinstance(value, (int, float)):
        return None
    return torch.full(tuple(result.shape), value, dtype=result.dtype)
