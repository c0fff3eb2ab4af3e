"""Inlining: an exported program becomes one flat tape; its regions become switches of its calls.

Needs an exported program. Promises a tape without submodules: ``no_grad`` and ``autocast`` regions
are run in place (each call knows its :class:`~archgraph.capture.tape.Region`), ``torch.cond`` runs
both branches and picks with ``torch.where``, and each view knows what it is a view of.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from archgraph.capture import calls
from archgraph.capture.tape import IMPLIED, LITERAL, REGION, CapturedSizes, Region, Tape, View
from archgraph.errors import TraceError

_ALIAS = torch.ops.aten.alias.default
_DETACH = torch.ops.aten.detach.default
_WHERE = torch.ops.aten.where.self


def inline(
    program: torch.export.ExportedProgram, batch: str | None, owners: Mapping[str, str]
) -> Tape:
    """Make the tape of an exported program.

    ``batch`` is the symbol of the batch axis, ``owners`` the leaf of each state-dict key.

    Raises:
        TraceError: If a region, an input or a constant cannot be part of a graph.
    """
    work = _Inlining()
    inputs: dict[torch.fx.Node, str] = {}
    leaves: dict[torch.fx.Node, str] = {}
    labels: dict[torch.fx.Node, str] = {}
    specs = {getattr(s.arg, "name", ""): s for s in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        new = work.copy(node, Region())
        spec = specs[node.name]
        kind = spec.kind.name
        if kind == "USER_INPUT":
            if calls.stand_in(new) is not None:
                inputs[new] = node.name
        elif kind in ("PARAMETER", "BUFFER") and spec.target in owners:
            leaves[new] = owners[spec.target]
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            work.tensors[new] = _values(program.constants[spec.target], spec.target)
            labels[new] = spec.target
        else:
            raise _foreign(node, kind, str(spec.target))
    results = work.run(program.graph, program.graph_module, Region())
    work.graph.output(tuple(results))
    return Tape(
        work.graph,
        CapturedSizes(batch),
        inputs,
        leaves,
        work.tensors,
        labels,
        views_of(work.graph, work.same),
        notes=tuple(work.notes),
    )


def _foreign(node: torch.fx.Node, kind: str, name: str) -> TraceError:
    """Return the error for an input that is neither a leaf nor a tensor of forward's."""
    if kind in ("PARAMETER", "BUFFER"):
        return TraceError("the model's state has no entry of this name", where=name)
    return TraceError(
        "forward uses an object that is not a tensor",
        where=next((calls.where(user) for user in node.users), name),
        found=str(getattr(node.meta.get("val"), "class_fqn", kind)),
        hint="a generator: draw from torch's own random numbers (torch.manual_seed) instead",
    )


def _values(constant: torch.Tensor, name: str) -> torch.Tensor:
    """Copy a constant, where folding may change it."""
    if constant.is_meta:
        raise TraceError(
            "a constant has no values on the meta device",
            where=name,
            hint="make the model on another device, or make this a parameter",
        )
    return constant.detach().cpu().clone()


@dataclass
class _Inlining:
    """The flat graph so far.

    ``env`` says what a node of the program became: a node, or a plain value. What goes into a
    region or comes out of one is the ``same`` as its argument.
    """

    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    env: dict[torch.fx.Node, Any] = field(default_factory=dict)
    regions: dict[torch.fx.Node, list[Any]] = field(default_factory=dict)
    same: set[torch.fx.Node] = field(default_factory=set)
    tensors: dict[torch.fx.Node, torch.Tensor] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def copy(self, node: torch.fx.Node, region: Region) -> torch.fx.Node:
        """Copy a node of the program to the flat graph."""
        operators = (torch._ops.OpOverload, type(operator.getitem))
        if node.op == "call_function" and not isinstance(node.target, operators):
            if calls.stand_in(node) is not None:
                raise TraceError(
                    "forward runs functions batched or differentiated (torch.vmap, torch.func)",
                    where=calls.where(node),
                    found=str(getattr(node.target, "__name__", node.target)),
                    hint="write the batch axis out, or trace the submodule that does not",
                )
        new = self.graph.node_copy(node, lambda n: self.env.get(n, n))
        new.meta = {**node.meta, REGION: region}
        self.env[node] = new
        return new

    def alias(self, node: torch.fx.Node, value: Any, region: Region) -> None:
        """Make a node of the program stand for a value of the flat graph."""
        if not isinstance(value, torch.fx.Node) or calls.stand_in(node) is None:
            self.env[node] = value
            return
        new = calls.insert(self.graph, _ALIAS, (value,), {}, like=node, val=node.meta["val"])
        new.meta[REGION] = region
        self.same.add(new)
        self.env[node] = new

    def run(self, graph: torch.fx.Graph, owner: torch.nn.Module, region: Region) -> list[Any]:
        """Copy the calls of a graph; gives what it returns."""
        for node in graph.nodes:
            if node.op == "get_attr":
                target: Any = owner
                for part in str(node.target).split("."):
                    target = getattr(target, part)
                if isinstance(target, torch.Tensor):
                    new = self.copy(node, region)
                    self.tensors[new] = target.detach().cpu().clone()
            elif node.op == "output":
                results = torch.fx.node.map_arg(node.args[0], lambda n: self.env.get(n, n))
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

    def region(self, node: torch.fx.Node, owner: torch.nn.Module, around: Region) -> list[Any]:
        """Run a region that export keeps as a submodule; gives its results."""
        name = str(node.target)
        places = [
            i
            for i, a in enumerate(node.args)
            if isinstance(a, torch.fx.Node) and a.op == "get_attr"
        ]
        bodies = [getattr(owner, str(node.args[i].target), None) for i in places]  # type: ignore[union-attr]  # nodes, by the line above
        if name == "cond":
            return self.branches(node, bodies, around)
        kinds = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
        if len(bodies) != 1 or not isinstance(bodies[0], torch.fx.GraphModule) or name not in kinds:
            raise TraceError(
                "control flow that a graph cannot express",
                where=calls.where(node),
                found=f"torch.{name}",
                hint="unroll it (a Python loop of fixed length), or trace the submodule inside",
            )
        operands = node.args[places[0] + 1 :]
        if name == "wrap_with_autocast":
            device, dtype, enabled = node.args[:3]
            switch: Any = (device, dtype) if enabled else None
            inside = replace(around, autocast=switch)
            return self.body(bodies[0], operands, inside)
        inside = replace(around, grad=bool(node.args[0]))
        results = self.body(bodies[0], operands, inside)
        return results if inside.grad else self.detached(results)

    def body(self, inner: torch.fx.GraphModule, operands: Any, region: Region) -> list[Any]:
        """Run a submodule on some operands; gives what it returns."""
        formal = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for inside, outside in zip(formal, operands, strict=True):
            value = (
                self.env.get(outside, outside) if isinstance(outside, torch.fx.Node) else outside
            )
            self.alias(inside, value, region)
        return self.run(inner.graph, inner, region)

    def detached(self, results: list[Any]) -> list[Any]:
        """Detach the results of a ``no_grad`` region: no gradient passes through them."""
        new: dict[torch.fx.Node, torch.fx.Node] = {}
        for item in results:
            value = calls.stand_in(item)
            if value is None or not value.dtype.is_floating_point or item in new:
                continue
            new[item] = calls.insert(self.graph, _DETACH, (item,), {}, like=item, val=value)
            new[item].meta[IMPLIED] = True
            self.same.add(new[item])
        return [new.get(i, i) if isinstance(i, torch.fx.Node) else i for i in results]

    def branches(self, node: torch.fx.Node, bodies: list[Any], region: Region) -> list[Any]:
        """Run both branches of a ``torch.cond``; the condition picks between their results."""
        predicate, _, _, operands = node.args
        if calls.stand_in(predicate) is None:
            raise TraceError(
                "torch.cond on a size",
                where=calls.where(node),
                found=str(predicate),
                hint="a graph holds a single branch: write it without the condition",
            )
        if not all(isinstance(b, torch.fx.GraphModule) for b in bodies):
            raise TraceError("torch.cond without its branches", where=calls.where(node))
        sides = [self.body(b, operands, region) for b in bodies]
        picked: list[Any] = []
        for yes, no, val in zip(*sides, node.meta["val"], strict=True):
            if yes is no:
                picked.append(yes)
                continue
            args = (self.env[predicate], yes, no)  # type: ignore[index]  # a node, tested above
            new = calls.insert(self.graph, _WHERE, args, {}, like=node, val=val)
            new.meta |= {LITERAL: True, REGION: region}
            picked.append(new)
        line = calls.where(node)
        note = f"torch.cond at {line}: the graph runs both branches and picks with torch.where"
        self.notes[note] = None
        return picked


def views_of(
    graph: torch.fx.Graph, same: Collection[torch.fx.Node] = ()
) -> dict[torch.fx.Node, View]:
    """Map views to what they view; ``same`` results are their argument if they share memory."""
    views: dict[torch.fx.Node, View] = {}
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


def _view(node: torch.fx.Node) -> View | None:
    """Return which argument a result is a view of."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    storage, arguments = calls.memory(node), target._schema.arguments
    if storage is None:  # several results
        source = node.args[0] if node.args else None
        aliased = bool(arguments) and arguments[0].alias_info is not None
        return View(source, node) if aliased and isinstance(source, torch.fx.Node) else None
    for position, (argument, item) in enumerate(zip(arguments, node.args, strict=False)):
        if argument.alias_info is None or not isinstance(item, torch.fx.Node):
            continue
        if calls.memory(item) == storage:
            values_written = argument.alias_info.is_write
            same = values_written and torch.Tag.inplace_view not in target.tags
            return View(item) if same else View(item, node, position)
    out = node.kwargs.get("out")
    return View(out) if isinstance(out, torch.fx.Node) else None
