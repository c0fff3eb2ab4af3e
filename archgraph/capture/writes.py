"""Writes: in-place operators become functional ones.

Needs a folded tape that knows its views. Promises that no call changes a tensor: a write to a view
becomes a new value of the tensor that it is a view of, later uses of that memory follow it, and
other views of it are taken anew where they are used next. What forward writes to a buffer is in
``updates``.
"""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from archgraph.capture.calls import arguments, canonical, is_identity
from archgraph.capture.tape import (
    FOLDED,
    IMPLIED,
    INSERTED,
    LITERAL,
    REGION,
    Region,
    Tape,
    View,
    insert,
    is_operator,
    memory,
    operator_name,
    region,
    tensor,
    where,
    writes,
    written,
)
from archgraph.errors import GraphError, TraceError
from archgraph.graph.ir import Ref, Value
from archgraph.ops import table
from archgraph.ops.schema import op_name, schema, to_value
from archgraph.ops.table import overwritten

_WHOLE, _PART = Ref("whole"), Ref("part")


def functional(tape: Tape, parameters: frozenset[str]) -> Tape:
    """The tape without in-place operators.

    Args:
        tape: A folded tape.
        parameters: Leaves that forward must not write to.

    Raises:
        TraceError: For a write that cannot be expressed, or to a parameter.
    """
    work = _Writing(tape, parameters)
    for node in tape.graph.nodes:
        work.step(node)
    return replace(
        tape,
        graph=work.graph,
        inputs={work.start[n]: name for n, name in tape.inputs.items()},
        leaves={work.start[n]: name for n, name in tape.leaves.items()},
        constants={work.start[n]: c for n, c in tape.constants.items()},
        views={},
        updates=work.updates,
        notes=(*tape.notes, *work.notes),
    )


@dataclass
class _Writing:
    """The functional graph so far.

    Attributes:
        tape: What is rewritten.
        parameters: Leaves that forward must not write to.
        graph: Calls without writes.
        start: What placeholders and constants became.
        now: What a result is, as of its last look.
        count: How often each memory was written to.
        seen: The count of a result's memory at its last look.
        region: Switches of the current call.
        updates: Last value of each buffer that was written to.
        notes: What the graph does otherwise.
    """

    tape: Tape
    parameters: frozenset[str]
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    start: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    now: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    count: dict[int | None, int] = field(default_factory=dict)
    seen: dict[torch.fx.Node, int] = field(default_factory=dict)
    region: Region = field(default_factory=Region)
    updates: dict[str, torch.fx.Node] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def step(self, node: torch.fx.Node) -> None:
        """Take over one node."""
        self.region = region(node)
        if FOLDED in node.meta:
            return
        if node.op in ("placeholder", "get_attr"):
            self.start[node] = self.copy(node)
            self.hold(node, self.start[node])
        elif node.op == "output":
            self.graph.output(torch.fx.node.map_arg(node.args[0], self.current))
        elif not is_operator(node):
            if tensor(node) is not None:  # one result of several
                self.hold(node, self.copy(node))
        elif node.target.namespace != "aten":  # type: ignore[union-attr]  # an operator
            raise TraceError(
                "operator outside ATen",
                where=where(node),
                found=str(node.target),
                hint="write it with torch functions",
            )
        elif writes(node):
            self.write(node)
        else:
            self.hold(node, self.copy(node))

    def copy(self, node: torch.fx.Node) -> torch.fx.Node:
        """A node that changes nothing, with its arguments as they are now."""
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.current)
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            target = schema(operator_name(target)).overload  # unsqueeze_ and its like
        new = self.graph.create_node(node.op, target, args, kwargs, node.name)
        new.meta = node.meta.copy()
        return new

    def hold(self, node: torch.fx.Node, value: torch.fx.Node) -> None:
        """Say what a result is, as of now."""
        self.now[node] = value
        self.seen[node] = self.count.get(memory(node), 0)

    def current(self, node: torch.fx.Node) -> torch.fx.Node:
        """What a result is after all writes to the memory that it lives in; sizes stay."""
        if node not in self.now:
            return node
        if self.seen[node] == self.count.get(memory(node), 0):
            return self.now[node]
        view = self.tape.views.get(node)
        if view is None:
            raise TraceError(
                "memory was written in place through another tensor, and is used afterwards",
                where=where(node),
                found=f"{node.name}, which shares memory with what was written",
                hint="write x = x + y instead of x += y",
            )
        whole = self.current(view.parent)
        self.hold(node, whole if view.call is None else self.take(view, view.call, whole))
        return self.now[node]

    def take(self, view: View, call: torch.fx.Node, whole: torch.fx.Node) -> torch.fx.Node:
        """The view of what its source is now."""
        place = view.place
        before, after = torch.fx.node.map_arg(
            (call.args[:place], call.args[place + 1 :]), self.current
        )
        target = call.target
        assert isinstance(target, torch._ops.OpOverload)
        new = self.graph.create_node(
            "call_function",
            schema(operator_name(target)).overload if target._schema.is_mutable else target,
            (*before, whole, *after),
            torch.fx.node.map_arg(dict(call.kwargs), self.current),
        )
        flags = {INSERTED: True, REGION: self.region}
        new.meta = {k: v for k, v in call.meta.items() if k != FOLDED} | flags
        if tensor(call) is not None:
            return new
        part = self.graph.call_function(operator.getitem, (new, view.index))
        part.meta = new.meta | {"val": call.meta["val"][view.index]}
        return part

    # -- writing ----------------------------------------------------------------------------

    def write(self, node: torch.fx.Node) -> None:
        """An in-place operator becomes a functional one; later uses of its memory follow it."""
        target, place, goal = node.target, where(node), written(node)
        assert isinstance(target, torch._ops.OpOverload)
        if goal is None:
            raise TraceError(
                "an operator changes several tensors in place", where=place, found=str(target)
            )
        val = goal.meta["val"]
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.current)
        op = _functional(target, place)
        if op == "aten.copy":
            assert isinstance(args[1], torch.fx.Node)
            new = self.expanded(args[1], val, node)
        else:
            out = {a.name for a in target._schema.arguments if a.is_out}
            kwargs = {k: v for k, v in kwargs.items() if k not in out}
            overload = schema(op).overload
            made = _result(overload, args, kwargs, val)
            new = insert(self.graph, overload, args, kwargs, like=node, val=made)
        if new.meta["val"].dtype != val.dtype:
            with torch.no_grad():
                made = new.meta["val"].to(val.dtype)
            new = insert(self.graph, _TO, (new, val.dtype), {}, like=node, val=made)
        if not self.region.grad:
            new = insert(self.graph, _DETACH, (new,), {}, like=goal, val=val)
            new.meta |= {IMPLIED: True, REGION: self.region}
        self.assign(goal, new, node)
        self.hold(node, self.current(goal))

    def expanded(
        self, source: torch.fx.Node, goal: torch.Tensor, node: torch.fx.Node
    ) -> torch.fx.Node:
        """What ``copy_`` writes, in the shape of the memory that it is written to."""
        sizes, place, val = self.tape.sizes, where(node), source.meta["val"]
        if sizes.shape(val, place) == sizes.shape(goal, place):
            return source
        with torch.no_grad():
            val = val.expand(goal.shape)
        args = (source, list(goal.shape))
        return insert(self.graph, _EXPAND, args, {}, like=node, val=val)

    def assign(self, goal: torch.fx.Node, new: torch.fx.Node, node: torch.fx.Node) -> None:
        """Let everything that shares memory with ``goal`` follow, after that became ``new``."""
        views, place = self.tape.views, where(node)
        path = [goal]
        while path[-1] in views:
            path.append(views[path[-1]].parent)
        root = path[-1]
        leaf = self.tape.leaves.get(root)
        if leaf is not None and leaf in self.parameters:
            raise TraceError(
                "forward writes to a parameter",
                where=place,
                found=leaf,
                hint="make it a buffer, or compute the changed value anew in forward",
            )
        if root in self.tape.inputs:
            self.notes[
                f"forward changes its argument {self.tape.inputs[root]} in place ({place}); the "
                "graph computes the same and leaves the argument alone"
            ] = None
        elif not self.region.grad and self.differentiable(self.current(root)):
            text = f"what is written under no_grad lets no gradient through ({place})"
            self.notes[text] = None
        before = {n: self.current(n) for n in path}
        after = [(goal, new)]
        for child, parent in itertools.pairwise(path):
            new = self.put(views[child], before[parent], new, node)
            after.append((parent, new))
        own = memory(goal)
        self.count[own] = self.count.get(own, 0) + 1
        for changed, value in after:
            self.hold(changed, value)
        if leaf is not None:
            self.updates[leaf] = new

    def put(
        self, view: View, whole: torch.fx.Node, part: torch.fx.Node, node: torch.fx.Node
    ) -> torch.fx.Node:
        """What a tensor is after its view became ``part``."""
        call, sizes, place = view.call, self.tape.sizes, where(node)
        if call is None:
            return part
        assert isinstance(call.target, torch._ops.OpOverload)

        def read(item: Any, type_: str) -> Value:
            if isinstance(item, torch.fx.Node) and tensor(item) is None:
                return sizes.size(item.meta["val"], place)
            if isinstance(item, (list, tuple)):
                return tuple(read(i, type_) for i in item)
            return _WHOLE if isinstance(item, torch.fx.Node) else to_value(item, type_)

        op, given = canonical(operator_name(call.target), arguments(call, read), call, sizes)
        if is_identity(op, given, call):
            return part
        if op == "aten.detach" and not self.differentiable(whole):
            return part
        held = view.parent.meta["val"]
        made = overwritten(op, given, _WHOLE, _PART, sizes.shape(held, place), view.index)
        if made is None:
            raise TraceError(
                "writes in place through a view that cannot be written back",
                where=place,
                found=f"{op} of {view.parent.name}",
                hint="write x = x + y instead of x += y on the view",
            )
        stand_for = {_WHOLE: whole, _PART: part}
        kwargs = {k: stand_for[v] if isinstance(v, Ref) else v for k, v in made[1].items()}
        overload = schema(made[0]).overload
        new = insert(self.graph, overload, (), kwargs, like=node, val=held)
        new.meta[LITERAL] = True
        return new

    def differentiable(self, value: torch.fx.Node) -> bool:
        """Whether a gradient can pass through a value."""
        leaves = {self.start[n]: name for n, name in self.tape.leaves.items() if n in self.start}
        pending, seen = [value], set()
        while pending:
            item = pending.pop()
            val = tensor(item)
            if item in seen or not region(item).grad:
                continue
            seen.add(item)
            if val is not None and not val.dtype.is_floating_point:
                continue
            if item.op == "placeholder":
                if item not in leaves or leaves[item] in self.parameters:
                    return True
            elif item.target is not _DETACH:
                pending += item.all_input_nodes
        return False


_TO = torch.ops.aten.to.dtype
_DETACH = torch.ops.aten.detach.default
_EXPAND = torch.ops.aten.expand.default


def _result(
    overload: torch._ops.OpOverload, args: Any, kwargs: Any, goal: torch.Tensor
) -> torch.Tensor:
    """A functional operator's result before it is written to memory."""
    values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    try:
        with torch.no_grad():
            made = overload(*values[0], **values[1])
    except Exception:  # arguments that the functional form takes in another way
        return goal
    return made if isinstance(made, torch.Tensor) else goal


@functools.cache
def _functional(target: torch._ops.OpOverload, place: str) -> str:
    """The functional counterpart of an in-place operator, under a schema that has one."""
    packet = target._schema.name.partition("::")[2]
    plain = f"__{packet[3:]}" if packet.startswith("__i") else packet.removesuffix("_")
    if plain != packet:
        suffix = "" if target._overloadname == "default" else f".{target._overloadname}"
        op = f"aten.{plain}{suffix}"
        candidates = [op, table.functional(op)]
    else:  # add.out: the overload with the same arguments but that one
        expected = [(a.name, str(a.type)) for a in target._schema.arguments if not a.is_out]
        packets = getattr(torch.ops.aten, plain)
        candidates = [
            op_name(overload)
            for overload in (getattr(packets, name) for name in packets.overloads())
            if [(a.name, str(a.type)) for a in overload._schema.arguments] == expected
        ]
    for candidate in filter(None, candidates):
        try:
            schema(candidate)
        except GraphError:
            continue
        return candidate
    raise TraceError("in-place operator without a functional form", where=place, found=str(target))


__all__ = ["functional"]
