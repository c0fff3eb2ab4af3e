"""Inlining: convert an exported program to a tape, which is a list of calls.

The tape (:mod:`archgraph.capture.tape`) does not have submodules. ``no_grad`` and ``autocast``
regions are inlined, and each call has its :class:`~archgraph.capture.tape.Region`. For
``torch.cond``, both branches run, and ``torch.where`` selects a result. Each view refers to the
tensor of which it is a view. (If a region remained one operator, all of its axes would be pinned.)
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Argument

from archgraph.capture import calls
from archgraph.capture.tape import IMPLIED, LITERAL, REGION, CapturedSizes, Region, Tape, View
from archgraph.errors import TraceError

_ALIAS = torch.ops.aten.alias.default
_DETACH = torch.ops.aten.detach.default
_WHERE = torch.ops.aten.where.self


def inline(
    program: torch.export.ExportedProgram, names: Mapping[str, str], owners: Mapping[str, str]
) -> Tape:
    """Convert an exported program to a tape.

    ``names`` maps symbols to the names of open sizes. ``owners`` maps the keys of the state dict to
    the names of parameters and buffers.

    Raises:
        TraceError: If a region, an input or a constant cannot be part of a graph.
    """
    work = _Inlining()
    inputs: dict[fx.Node, str] = {}
    leaves: dict[fx.Node, str] = {}
    labels: dict[fx.Node, str] = {}
    specs = {getattr(s.arg, "name", ""): s for s in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        new = work.copy(node, Region())
        spec = specs[node.name]
        kind, name = spec.kind.name, str(spec.target)
        if kind == "USER_INPUT":
            if calls.fake_tensor(new) is not None:
                inputs[new] = node.name
        elif kind in ("PARAMETER", "BUFFER") and name in owners:
            leaves[new] = owners[name]
        # A buffer without an owner is not persistent: a constant, like tensors in attributes.
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            if program.constants[name].is_meta:
                raise TraceError(
                    "a constant has no values on the meta device: make it a buffer or a parameter, "
                    "or create it in forward on the device of an input",
                    where=name,
                )
            work.tensors[new] = _copied(program.constants[name])
            labels[new] = name
        elif kind == "PARAMETER":
            raise TraceError("the model's state has no entry with this name", where=name)
        else:
            raise TraceError(
                "forward uses an object that is not a tensor",
                where=next((calls.where(user) for user in node.users), name),
                found=str(getattr(node.meta.get("val"), "class_fqn", kind)),
                hint="instead of a generator, use torch's global random numbers, and seed them "
                "before the call (torch.manual_seed)",
            )
    results = work.run(program.graph, program.graph_module, Region())
    work.graph.output(tuple(results))
    return Tape(
        work.graph,
        CapturedSizes(names),
        inputs,
        leaves,
        work.tensors,
        labels,
        views_of(work.graph, work.same),
        notes=tuple(work.notes),
    )


def _copied(constant: Tensor) -> Tensor:
    """Copy a constant, since folding writes to the tensors that forward writes to."""
    return constant.detach().cpu().clone()


@dataclass
class _Inlining:
    """The flat graph so far.

    ``env`` maps a node of the program to a node of the flat graph, or to another value. ``same``
    contains the values that enter or leave a region, which equal their arguments.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    env: dict[fx.Node, Argument] = field(default_factory=dict)
    regions: dict[fx.Node, list[Argument]] = field(default_factory=dict)
    same: set[fx.Node] = field(default_factory=set)
    tensors: dict[fx.Node, Tensor] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def copy(self, node: fx.Node, region: Region) -> fx.Node:
        """Copy a node of the program to the flat graph."""
        operators = (torch._ops.OpOverload, type(operator.getitem))
        if node.op == "call_function" and not isinstance(node.target, operators):
            # Arithmetic on sizes is not an operator and returns no tensor.
            if calls.fake_tensor(node) is not None:
                raise TraceError(
                    "forward uses function transforms (torch.vmap, torch.func)",
                    where=calls.where(node),
                    hint="write out the batch axis, or trace a submodule without transforms",
                )
        new = self.graph.node_copy(node, lambda n: self.env.get(n, n))
        new.meta = {**node.meta, REGION: region}
        self.env[node] = new
        return new

    def alias(self, node: fx.Node, value: Argument, region: Region) -> None:
        """Map a node of the program to a value of the flat graph."""
        # A separate call, although it computes nothing: the two sides of a region's border have
        # different switches, by which casts and detached values differ.
        if not isinstance(value, fx.Node) or calls.fake_tensor(node) is None:
            self.env[node] = value
            return
        flags = {REGION: region}
        val = node.meta["val"]
        new = calls.insert(self.graph, _ALIAS, (value,), {}, like=node, val=val, **flags)
        self.same.add(new)
        self.env[node] = new

    def run(self, graph: fx.Graph, owner: nn.Module, region: Region) -> list[Argument]:
        """Copy the calls of a graph; return its results."""
        for node in graph.nodes:
            if node.op == "get_attr":
                target = operator.attrgetter(str(node.target))(owner)
                if isinstance(target, Tensor):
                    self.tensors[self.copy(node, region)] = _copied(target)
            elif node.op == "output":
                results = fx.node.map_arg(node.args[0], lambda n: self.env.get(n, n))
                assert isinstance(results, (tuple, list))
                return list(results)
            elif node.op != "call_function":
                continue
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                self.regions[node] = self.region(node, owner, region)
            elif node.target is operator.getitem and node.args[0] in self.regions:
                self.alias(node, self.regions[node.args[0]][node.args[1]], region)
            else:
                self.copy(node, region)
        raise AssertionError("a graph without an output")

    def region(self, node: fx.Node, owner: nn.Module, around: Region) -> list[Argument]:
        """Inline a region that export represents as a submodule; return its results."""
        # None only for operators that no case below handles.
        bodies: list[Any] = [
            getattr(owner, str(a.target), None)
            for a in node.args
            if isinstance(a, fx.Node) and a.op == "get_attr"
        ]
        match str(node.target), *node.args:
            case "cond", predicate, _, _, (*operands,):
                return self.branches(node, predicate, bodies, operands, around)
            case "wrap_with_autocast", str(device), dtype, enabled, _, _, *operands:
                assert dtype is None or isinstance(dtype, torch.dtype)
                switch = (device, dtype) if enabled else None
                return self.body(bodies[0], operands, replace(around, autocast=switch))
            case "wrap_with_set_grad_enabled", grad, _, *operands:
                inside = replace(around, grad=bool(grad))
                results = self.body(bodies[0], operands, inside)
                return results if inside.grad else self.detached(results)
        raise TraceError(
            f"torch.{node.target}: control flow that a graph cannot express",
            where=calls.where(node),
            hint="unroll it (a Python loop of fixed length), or trace the submodule inside",
        )

    def body(
        self, inner: fx.GraphModule, operands: Sequence[Argument], region: Region
    ) -> list[Argument]:
        """Inline a submodule that is applied to some operands; return its results."""
        formal = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for inside, outside in zip(formal, operands, strict=True):
            value = outside
            if isinstance(outside, fx.Node):
                value = self.env.get(outside, outside)
            self.alias(inside, value, region)
        return self.run(inner.graph, inner, region)

    def detached(self, results: list[Argument]) -> list[Argument]:
        """Detach the results of a ``no_grad`` region, so that no gradient passes through them."""
        new: dict[Argument, Argument] = {}
        for item in results:
            value = calls.fake_tensor(item)
            if value is None or not value.dtype.is_floating_point or item in new:
                continue
            assert isinstance(item, fx.Node)
            flags = {IMPLIED: True}
            call = calls.insert(self.graph, _DETACH, (item,), {}, like=item, val=value, **flags)
            self.same.add(call)
            new[item] = call
        return [new.get(i, i) if isinstance(i, fx.Node) else i for i in results]

    def branches(
        self,
        node: fx.Node,
        predicate: Argument,
        bodies: Sequence[fx.GraphModule],
        operands: Sequence[Argument],
        region: Region,
    ) -> list[Argument]:
        """Run both branches of a ``torch.cond``; the condition selects between their results."""
        if calls.fake_tensor(predicate) is None:
            raise TraceError(
                "torch.cond on a size: a graph contains a single branch, so rewrite it without",
                where=calls.where(node),
            )
        assert isinstance(predicate, fx.Node)
        sides = [self.body(body, operands, region) for body in bodies]
        picked: list[Argument] = []
        for yes, no, val in zip(*sides, node.meta["val"], strict=True):
            if yes is not no:
                args = (self.env[predicate], yes, no)
                flags = {LITERAL: True, REGION: region}
                yes = calls.insert(self.graph, _WHERE, args, {}, like=node, val=val, **flags)
            picked.append(yes)
        line = calls.where(node)
        note = (
            f"torch.cond at {line}: the graph runs both branches and selects with torch.where; if "
            "the gradient of the other branch is NaN, so is that of the graph"
        )
        self.notes[note] = None
        return picked


def views_of(graph: fx.Graph, same: Collection[fx.Node] = ()) -> dict[fx.Node, View]:
    """Return a dict from views to their sources; ``same`` results may be views of an argument."""
    views: dict[fx.Node, View] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            source, index = node.args
            view = views.get(source)
            if view is not None and calls.memory(view.parent) == calls.memory(node):
                views[node] = View(view.parent, source, view.position, index)
        elif calls.is_operator(node):
            view = _view(node)
            if view is not None:
                views[node] = View(view.parent) if node in same else view
    return views


def _view(node: fx.Node) -> View | None:
    """Return the argument of which a result is a view."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    storage, arguments = calls.memory(node), target._schema.arguments
    if storage is None:  # several results
        source = node.args[0] if node.args else None
        aliased = bool(arguments) and arguments[0].alias_info is not None
        return View(source, node) if aliased and isinstance(source, fx.Node) else None
    for position, (argument, item) in enumerate(zip(arguments, node.args, strict=False)):
        if argument.alias_info is None or not isinstance(item, fx.Node):
            continue
        if calls.memory(item) == storage:
            values_written = argument.alias_info.is_write
            same = values_written and torch.Tag.inplace_view not in target.tags
            return View(item) if same else View(item, node, position)
    out = node.kwargs.get("out")
    return View(out) if isinstance(out, fx.Node) else None
