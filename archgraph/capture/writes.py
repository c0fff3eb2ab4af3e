"""Writes: replace in-place operators by functional operators.

Requires a tape (:mod:`~archgraph.capture.tape`) with recorded views, after constant folding.
Guarantees that no call changes a tensor. A write to a view becomes a new value of the tensor of
which it is a view. Later uses of this tensor use the new value, and other views of the tensor are
created again at their next use. ``updates`` contains the final values of buffers to which forward
writes.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx
from torch.fx.node import Argument, Target
from torch.utils import _pytree as pytree

from archgraph.capture import calls
from archgraph.capture.tape import (
    FOLDED,
    IMPLIED,
    INSERTED,
    LITERAL,
    REGION,
    Region,
    Tape,
    View,
)
from archgraph.errors import Inexpressible, TraceError
from archgraph.graph.ir import Ref, Value
from archgraph.ops import table
from archgraph.ops.operator import ViewWrite
from archgraph.ops.schema import Schema, op_name, op_schema, to_value

_WHOLE, _PART = Ref("whole"), Ref("part")  # placeholders in a view's arguments


def functionalised(tape: Tape, parameters: Collection[str]) -> Tape:
    """Replace in-place operators of a folded tape; forward must not write to ``parameters``.

    Raises:
        TraceError: If a graph cannot express a write, or if a write changes a parameter.
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

    ``now`` has the value of each result at its last use, and ``current_at`` the number of writes to
    its memory before this use. If there were more writes since then (``count``), the value is
    created again.
    """

    tape: Tape
    parameters: Collection[str]
    graph: fx.Graph = field(default_factory=fx.Graph)
    start: dict[fx.Node, fx.Node] = field(default_factory=dict)  # new nodes of inputs and leaves
    now: dict[fx.Node, fx.Node] = field(default_factory=dict)
    count: Counter[int | None] = field(default_factory=Counter)  # writes to each memory
    current_at: dict[fx.Node, int] = field(default_factory=dict)
    region: Region = field(default_factory=Region)  # of the current call
    updates: dict[str, fx.Node] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def step(self, node: fx.Node) -> None:
        """Process one node."""
        self.region = calls.region(node)
        if FOLDED in node.meta:
            return
        if node.op in ("placeholder", "get_attr"):
            self.start[node] = self.copy(node)
            self.hold(node, self.start[node])
        elif node.op == "output":
            self.graph.output(fx.node.map_arg(node.args[0], self.current))
        elif not calls.is_operator(node):
            if calls.fake_tensor(node) is not None:  # one result of several
                self.hold(node, self.copy(node))
        elif node.target.namespace != "aten":  # type: ignore[union-attr]  # an operator
            raise Inexpressible(
                f"operator outside ATen, {node.target}: write it with torch functions",
                where=calls.where(node),
            )
        elif calls.writes(node):
            self.write(node)
        else:
            self.hold(node, self.copy(node))

    def copy(self, node: fx.Node) -> fx.Node:
        """Copy a node that does not write, with the current values of its arguments."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.current)
        new = self.graph.create_node(node.op, _pure(node.target), args, kwargs, node.name)
        new.meta = node.meta.copy()
        return new

    def hold(self, node: fx.Node, value: fx.Node) -> None:
        """Record the current value of a result."""
        self.now[node] = value
        self.current_at[node] = self.count[calls.memory(node)]

    def current(self, node: fx.Node) -> fx.Node:
        """Return the value of a result after all writes to its memory."""
        if node not in self.now:
            return node
        if self.current_at[node] == self.count[calls.memory(node)]:
            return self.now[node]
        view = self.tape.views.get(node)
        if view is None:
            raise TraceError(
                f"memory of {node.name} was written in place through another tensor, and is used "
                "afterwards; write x = x + y instead of x += y",
                where=calls.where(node),
            )
        source = self.current(view.parent)
        self.hold(node, source if view.call is None else self.take(view, view.call, source))
        return self.now[node]

    def take(self, view: View, call: fx.Node, source: fx.Node) -> fx.Node:
        """Create a view again, from the current value of its source."""
        position = view.position
        before, after = fx.node.map_arg(
            (call.args[:position], call.args[position + 1 :]), self.current
        )
        kwargs = fx.node.map_arg(dict(call.kwargs), self.current)
        target = _pure(call.target)
        new = self.graph.create_node("call_function", target, (*before, source, *after), kwargs)
        # Under the switches of its user, not of the call that it repeats.
        flags = {INSERTED: True, REGION: self.region}
        new.meta = {k: v for k, v in call.meta.items() if k != FOLDED} | flags
        if calls.fake_tensor(call) is not None:
            return new
        part = self.graph.call_function(operator.getitem, (new, view.index))
        part.meta = new.meta | {"val": call.meta["val"][view.index]}
        return part

    # -- writing ----------------------------------------------------------------------------

    def write(self, node: fx.Node) -> None:
        """Replace an in-place operator by a functional operator, and update its memory."""
        target, line, goal = node.target, calls.where(node), calls.written(node)
        assert isinstance(target, torch._ops.OpOverload)
        op = _functional(target)
        if goal is None or op is None:
            why = "has no functional form" if goal else "changes several tensors"
            raise TraceError(f"in-place operator {target} {why}", where=line)
        val = goal.meta["val"]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.current)
        # `copy_` broadcasts its source to the memory that it writes.
        if op == "aten.copy":
            assert isinstance(args[1], fx.Node)
            new = self.expanded(args[1], val, node)
        else:
            new = self.call(
                op_schema(op).overload, *_arguments(target, op_schema(op), args, kwargs), node
            )
        # Memory keeps its dtype, even if the functional form would promote it.
        if new.meta["val"].dtype != val.dtype:
            new = self.call(_TO, (new, val.dtype), {}, node)
        # Values written in a `no_grad` region carry no gradients.
        if not self.region.grad:
            flags = {IMPLIED: True, REGION: self.region}
            new = calls.insert(self.graph, _DETACH, (new,), {}, like=node, val=val, **flags)
        self.assign(goal, new, node)
        self.hold(node, self.current(goal))

    def call(
        self,
        overload: torch._ops.OpOverload,
        args: Sequence[Argument],
        kwargs: Mapping[str, Argument],
        node: fx.Node,
    ) -> fx.Node:
        """Insert a call in place of another one, with its fake result."""
        fakes = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (args, kwargs))
        with torch.no_grad():
            val = overload(*fakes[0], **fakes[1])
        return calls.insert(self.graph, overload, tuple(args), kwargs, like=node, val=val)

    def expanded(self, source: fx.Node, goal: Tensor, node: fx.Node) -> fx.Node:
        """Expand the source of ``copy_`` to the shape of the memory that it writes."""
        sizes, line = self.tape.sizes, calls.where(node)
        if sizes.shape(source.meta["val"], line) == sizes.shape(goal, line):
            return source
        with warnings.catch_warnings():  # torch warns of the batch's symbol among the sizes
            warnings.simplefilter("ignore")
            return self.call(_EXPAND, (source, list(goal.shape)), {}, node)

    def assign(self, goal: fx.Node, new: fx.Node, node: fx.Node) -> None:
        """Update all results that share memory with ``goal``, whose value is now ``new``."""
        views, line = self.tape.views, calls.where(node)
        path = calls.path(goal, views)
        root = path[-1]
        leaf = self.tape.leaves.get(root)
        if leaf is not None and leaf in self.parameters:
            raise TraceError(
                f"forward writes to the parameter {leaf}; make it a buffer, or compute the changed "
                "value in forward without writing",
                where=line,
            )
        if root in self.tape.inputs:
            note = (
                f"forward changes its argument {self.tape.inputs[root]} in place ({line}); the "
                "graph computes the same without changing the argument"
            )
            self.notes[note] = None
        elif not self.region.grad and self.differentiable(self.current(root)):
            note = f"values written under no_grad pass no gradient ({line})"
            self.notes[note] = None
        # The complete path before any write: previous values are read through views of old memory.
        before = {n: self.current(n) for n in path}
        after = [(goal, new)]
        for child, parent in itertools.pairwise(path):
            new = self.put(views[child], before[parent], new, node)
            after.append((parent, new))
        self.count[calls.memory(goal)] += 1
        for changed, value in after:
            self.hold(changed, value)
        if leaf is not None:
            self.updates[leaf] = new

    def put(self, view: View, source: fx.Node, part: fx.Node, node: fx.Node) -> fx.Node:
        """Return the value of a tensor after its view became ``part``."""
        call, sizes, line = view.call, self.tape.sizes, calls.where(node)
        if call is None:
            return part

        def read(item: Argument, type_: str) -> Value:
            if isinstance(item, (list, tuple)):
                return tuple(read(i, type_) for i in item)
            if not isinstance(item, fx.Node):
                return to_value(item, type_)
            fake = calls.fake_tensor(item)
            return sizes.size(item.meta["val"], line) if fake is None else _WHOLE

        op, args = calls.canonical_call(call, calls.arguments(call, read), sizes)
        if calls.returns_unchanged(op, args, call):
            return part
        # Values written through `detach` pass no gradient; skip it if there is no gradient anyway.
        if op == "aten.detach" and not self.differentiable(source):
            return part
        value = view.parent.meta["val"]
        shape = sizes.shape(value, line)
        inverse = table.call_row(op).overwritten
        rewritten = inverse and inverse(ViewWrite(op, args, _WHOLE, _PART, shape, view.index))
        if rewritten is None:
            raise TraceError(
                f"writes in place through a view that cannot be written back, {op} of "
                f"{view.parent.name}; write x = x + y instead of x += y on the view",
                where=line,
            )
        # As pairs of real numbers, since some operators have a gradient only for these.
        pairs = value.is_complex() and table.row(rewritten[0]).real
        if pairs:
            dim = rewritten[1]["dim"]
            assert isinstance(dim, int)
            rewritten[1]["dim"] = dim + value.dim() if dim < 0 else dim
            source, part = self.paired(source, node), self.paired(part, node)
            value = source.meta["val"]
        values = {_WHOLE: source, _PART: part}
        kwargs = {k: values[v] if isinstance(v, Ref) else v for k, v in rewritten[1].items()}
        overload, flags = op_schema(rewritten[0]).overload, {LITERAL: True}
        new = calls.insert(self.graph, overload, (), kwargs, like=node, val=value, **flags)
        return self.call(_AS_COMPLEX, (new,), {}, node) if pairs else new

    def paired(self, value: fx.Node, node: fx.Node) -> fx.Node:
        """Convert complex numbers to pairs of real numbers; real numbers stay unchanged."""
        if not value.meta["val"].is_complex():
            return value
        if value.meta["val"].is_conj():
            value = self.call(_RESOLVE, (value,), {}, node)
        return self.call(_AS_REAL, (value,), {}, node)

    def differentiable(self, value: fx.Node) -> bool:
        """Return whether a gradient can pass through a value."""
        leaves = {self.start[n]: name for n, name in self.tape.leaves.items() if n in self.start}
        pending, visited = [value], set()
        while pending:
            item = pending.pop()
            val = calls.fake_tensor(item)
            if item in visited or not calls.region(item).grad:
                continue
            visited.add(item)
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
_AS_REAL = torch.ops.aten.view_as_real.default
_AS_COMPLEX = torch.ops.aten.view_as_complex.default
_RESOLVE = torch.ops.aten.resolve_conj.default
_EXPAND = torch.ops.aten.expand.default


def _pure(target: Target) -> Target:
    """Return the form of an operator that is not in place: ``unsqueeze`` for ``unsqueeze_``."""
    if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
        return op_schema(calls.operator_name(target)).overload
    return target


def _functional(target: torch._ops.OpOverload) -> str | None:
    """Return the functional operator that computes the values written by an in-place operator."""
    packet = target._schema.name.partition("::")[2]
    plain = f"__{packet[3:]}" if packet.startswith("__i") else packet.removesuffix("_")  # __iand__
    packets = getattr(torch.ops.aten, plain, None)
    # By arguments first: `pow_.Scalar` is `pow.Tensor_Scalar`.
    for overload in (getattr(packets, name) for name in (packets.overloads() if packets else ())):
        if not overload._schema.is_mutable and _formal(overload) == _formal(target):
            return op_name(overload)
    suffix = "" if target._overloadname == "default" else f".{target._overloadname}"
    op = f"aten.{plain}{suffix}"
    return next((c for c in (op, table.functional(op)) if table.known(c)), None)


def _formal(overload: torch._ops.OpOverload) -> dict[str, str]:
    """Return the arguments of an operator and their types, without those for its result."""
    return {a.name: str(a.type) for a in overload._schema.arguments if not a.is_out}


def _arguments(
    target: torch._ops.OpOverload,
    functional: Schema,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument],
) -> tuple[list[Argument], dict[str, Argument]]:
    """Return the arguments of an in-place call for its functional form.

    The functional form may have its arguments in another order or with other names.
    """
    formal = target._schema.arguments
    by_name = {a.name: a.default_value for a in formal if a.has_default_value()}
    by_name |= dict(zip([a.name for a in formal], args, strict=False)) | dict(kwargs)
    names = [name for name in _formal(target) if name in by_name]
    others = names
    if not set(names) <= functional.by_name.keys():
        others = [a.name for a in functional.args]  # dropout_(self, …) is dropout(input, …)
    return functional.call_args(
        {other: by_name[name] for other, name in zip(others, names, strict=False)}
    )
