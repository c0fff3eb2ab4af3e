"""Convert the calls of a tape to nodes of a graph, in canonical form.

Requires a tape (:mod:`~archgraph.capture.tape`) without in-place operators and autocast. Guarantees
nodes in program order, with the argument names of the schemas and inferred types. Calls that return
their argument unchanged are dropped.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import Argument

from archgraph.capture import calls
from archgraph.capture.casts import spell_casts
from archgraph.capture.fold import fold_constants
from archgraph.capture.inline import inline
from archgraph.capture.places import under_no_grad, users_line
from archgraph.capture.recurrent import unstack
from archgraph.capture.tape import IMPLIED, INSERTED, LITERAL, Note, Tape
from archgraph.capture.writes import functionalised
from archgraph.errors import GraphError, Inexpressible, TraceError
from archgraph.graph.ir import Constant, Leaf, Node, Param, Polynomial, Ref, TensorType, Value
from archgraph.ops import table
from archgraph.ops.infer import infer_call
from archgraph.ops.schema import canonical_args, to_value
from archgraph.ops.types import ResultType


@dataclass(frozen=True)
class OneMode:
    """A capture of one mode in canonical form."""

    inputs: tuple[tuple[str, Value], ...]  # forward's arguments: trees of `input` nodes
    nodes: tuple[Node, ...]  # in program order; names are unique within the capture
    outputs: Value
    updates: dict[str, Value]  # last value of each buffer that forward writes to
    constants: dict[Constant, Param]  # created by folding
    fixed: str = ""  # why the batch has the example's size; empty if it is open
    notes: tuple[Note, ...] = ()  # differences of the graph from the module
    decided: Mapping[str, str] = field(default_factory=dict)  # line of branch, by deciding buffer


def canonical(
    program: torch.export.ExportedProgram,
    names: Mapping[str, str],
    owners: Mapping[str, str],
    parameters: Collection[str],
    most: float = math.inf,
) -> OneMode:
    """Run all passes on an exported program, and return the result.

    Args:
        program: The program.
        names: Dict from symbols to the names of open sizes.
        owners: Dict from keys of the state dict to the names of parameters and buffers.
        parameters: Parameters to which forward must not write.
        most: Maximum size of all results that folding computes, in bytes.

    Raises:
        TraceError: If a graph cannot express the program.
    """
    # Casts follow a leaf through the tape's views, which no longer exist once writes are
    # functional. Recurrent operators are expanded once nothing writes to their results.
    casts = spell_casts(fold_constants(inline(program, names, owners), owners, most))
    return spell(unstack(functionalised(casts, parameters)))


def spell(tape: Tape) -> OneMode:
    """Convert a tape to nodes, without the nested structure of forward's arguments and results.

    Raises:
        TraceError: If a graph cannot express an operator, a size or a number.
    """
    work = _Spelling(tape)
    for node in tape.graph.nodes:
        work.step(node)
    results = tuple(work.value(v) for v in tape.results)
    updates = {name: work.value(node) for name, node in tape.updates.items()}
    constants = {p.value: p for p in work.constants.values() if p.value is not None}
    return OneMode((), tuple(work.nodes.values()), results, updates, constants, notes=tape.notes)


@dataclass
class _Spelling:
    """Nodes so far by name, and the values of the tape's results."""

    tape: Tape
    nodes: dict[str, Node] = field(default_factory=dict)
    known: dict[fx.Node, Value] = field(default_factory=dict)
    types: dict[Leaf, TensorType] = field(default_factory=dict)
    constants: dict[Value, Param] = field(default_factory=dict)
    detached: set[Value] = field(default_factory=set)  # no gradient passes through them

    def step(self, node: fx.Node) -> None:
        """Convert one call."""
        if node.op in ("placeholder", "get_attr"):
            self.source(node)
        elif node.op != "call_function" or node in self.known:
            return
        elif node.target is operator.getitem:
            source, index = map(self.value, node.args)
            assert isinstance(source, Ref)
            # In the module of the operator that returns it, so that a layer has its own items.
            scope = self.nodes[source.name].scope
            args = (("source", source), ("index", index))
            type_ = self.tape.sizes.type(node.meta["val"], calls.where(node))
            self.known[node] = self.append(node, "getitem", args, type_, scope)
        elif calls.is_operator(node):
            self.known[node] = self.call(node)

    def source(self, node: fx.Node) -> None:
        """Convert an input to a node, and a parameter, buffer or constant to a ``Leaf``."""
        val, sizes = calls.fake_tensor(node), self.tape.sizes
        if node in self.tape.constants:
            param = self.tape.constants[node]
            self.known[node] = leaf = Leaf(param.name)
            self.constants[leaf], self.types[leaf] = param, param.type
        elif val is not None and node in self.tape.inputs:
            name = self.tape.inputs[node]
            self.nodes[name] = Node(name, "input", (), sizes.type(val, f"input {name}"))
            self.known[node] = Ref(name)
        elif val is not None and node in self.tape.leaves:
            self.known[node] = leaf = Leaf(self.tape.leaves[node])
            self.types[leaf] = sizes.type(val, leaf.name)

    def call(self, node: fx.Node) -> Value:
        """Convert a call of an operator, and return its result, which may be its argument."""
        assert isinstance(node.target, torch._ops.OpOverload)
        try:
            arguments = calls.arguments(node, self.value)
        except GraphError as error:
            raise error.within(calls.where(node), kind=TraceError) from error
        op = calls.operator_name(node.target)
        if IMPLIED in node.meta:
            return self.detach(arguments["self"], node)
        if LITERAL not in node.meta:
            op, arguments = calls.canonical_call(node, arguments, self.tape.sizes)
            if op == "" or calls.returns_unchanged(op, arguments, node):
                return next(iter(arguments.values()))
        row = table.row(op)
        if row.training_flag is not None and arguments.get(row.training_flag) is True:
            for name in row.statistics:  # ignore statistics of a norm that forward creates
                if arguments.get(name) in self.constants:
                    arguments[name] = None
        ref = self.emit(node, op, arguments)
        if INSERTED in node.meta or not calls.region(node).grad:
            return ref
        if under_no_grad(node.meta.get("stack_trace")):
            return self.detach(ref, node)  # export drops regions inside other regions
        return ref

    def detach(self, value: Value, node: fx.Node) -> Value:
        """Detach a value."""
        val = calls.fake_tensor(node)
        if val is None or not val.dtype.is_floating_point:
            return value
        if not isinstance(value, Ref) or value in self.detached:
            return value
        ref = self.emit(node, "aten.detach", {"self": value})
        self.detached.add(ref)
        return ref

    # -- values -----------------------------------------------------------------------------

    def value(self, item: Argument | Polynomial, type_: str = "") -> Value:
        """Convert an argument of a call to a value of the graph."""
        match item:
            case fx.Node():
                return self.known[item] if item in self.known else self.number(item)
            case list() | tuple():
                return tuple(self.value(i, type_) for i in item)
            case torch.SymInt():
                return self.tape.sizes.size(item)
            case Polynomial():
                return item
            case torch.device():  # a graph has no device
                return None
            case _:
                return to_value(item, type_)

    def number(self, node: fx.Node) -> Value:
        """Return a number that the capture computed."""
        val = node.meta.get("val")
        if isinstance(val, (torch.SymInt, int)) and not isinstance(val, bool):
            return self.tape.sizes.size(val, calls.where(node))
        if isinstance(val, (float, bool)):
            return val
        if isinstance(val, torch.SymFloat) and not free_unbacked_symbols(val):
            raise Inexpressible(
                "a number depends on an open size in a way that a graph cannot express",
                where=calls.where(node),
                found=str(val),
                hint="a graph can express sums, products and // of sizes: remove the size from "
                "`open`, or compute with it as a tensor",
            )
        raise Inexpressible(
            "a number depends on the values of a tensor; avoid .item(), int() and float()",
            where=calls.where(node),
        )

    # -- nodes ------------------------------------------------------------------------------

    def emit(self, node: fx.Node, op: str, arguments: dict[str, Value]) -> Ref:
        """Append an operator with the type of the call's result."""
        line, val, sizes = calls.where(node), node.meta["val"], self.tape.sizes
        try:
            args = canonical_args(op, arguments)
        except GraphError as error:
            raise TraceError(str(error), where=line) from error
        if isinstance(val, Tensor):
            return self.append(node, op, args, sizes.type(val, line))
        type_: ResultType = tuple(sizes.type(v, line) for v in val if v is not None)
        call = Node(node.name, op, args)
        results = {name: self.nodes[name].type for name in call.uses()}
        leaves = {name: self.types[Leaf(name)] for name in call.leaves()}
        with contextlib.suppress(GraphError):  # kernels may differ in unused results
            inferred = infer_call(call, results, leaves)
            type_ = inferred if isinstance(inferred, tuple) else type_
        return self.append(node, op, args, type_)

    def append(
        self,
        node: fx.Node,
        op: str,
        args: tuple[tuple[str, Value], ...],
        type_: ResultType,
        scope: str | None = None,
    ) -> Ref:
        """Append a node with the location of its call."""
        if table.row(op).macs is not None:
            self.check_dtypes(node, op, args)
        name = f"{node.name}~detached" if node.name in self.nodes else node.name
        modules = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(modules[-1][0]) if modules and scope is None else scope or ""
        line = users_line(node.meta.get("stack_trace"))
        source = f"{Path(line[0]).name}:{line[1]}" if line else ""
        self.nodes[name] = Node(name, op, args, type_, path, source)
        return Ref(name)

    def type_of(self, value: Value) -> ResultType | None:
        """Return the type of a value; None if it is not a tensor."""
        if isinstance(value, Ref):
            return self.nodes[value.name].type
        return self.types.get(value) if isinstance(value, Leaf) else None

    def check_dtypes(self, node: fx.Node, op: str, args: tuple[tuple[str, Value], ...]) -> None:
        """Raise if an operator multiplies different dtypes, which only fake tensors allow."""
        factors = [(k, self.type_of(v)) for k, v in args if isinstance(v, (Ref, Leaf))][:2]
        dtypes = {k: t.dtype for k, t in factors if isinstance(t, TensorType)}
        if len(set(dtypes.values())) > 1:
            raise TraceError(
                f"{op} multiplies tensors of different dtypes",
                where=calls.where(node),
                found=", ".join(f"{k} {v}" for k, v in dtypes.items()),
                hint="pass the example input in the model's dtype, or cast in forward",
            )
