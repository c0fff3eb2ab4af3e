"""Graphs under construction: operators are appended in canonical form with inferred shapes.

Drafts append the operators that :func:`archgraph.capture.trace.trace` would capture, so that
tracing the built module gives the same graph back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from archgraph.errors import GraphError
from archgraph.graph.ir import (
    ArchGraph,
    Constant,
    Leaf,
    Node,
    Param,
    Ref,
    Role,
    Size,
    TensorType,
    Value,
)
from archgraph.graph.passes import prune, renumber
from archgraph.graph.polynomial import Polynomial
from archgraph.graph.sizes import OpenSize
from archgraph.limits import LIMITS
from archgraph.ops import table
from archgraph.ops.check import check
from archgraph.ops.infer import infer_call
from archgraph.ops.operator import Spelling
from archgraph.ops.schema import canonical_args

NO_SIZES: Mapping[str, OpenSize] = MappingProxyType({})


@dataclass
class GraphDraft:
    """A graph under construction.

    Attributes:
        nodes: Dict from name to node (an operator or an input), in order.
        leaves: Dict from name to leaf (parameter, buffer or constant), in order of creation.
        updates: Dict from buffer to the value that forward assigns to it.
        sizes: Dict from name to open (dynamic) size of the inputs, without the batch.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    leaves: dict[str, Param] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    sizes: dict[str, OpenSize] = field(default_factory=dict)

    def input(self, name: str, type_: TensorType, sizes: Mapping[str, OpenSize] = NO_SIZES) -> Ref:
        """Append an input of forward. ``sizes`` describes its open (dynamic) sizes."""
        here = [size for size in sizes.values() if Polynomial.of(size.name) in type_.shape]
        said = tuple(arg for s in here if s.name not in self.sizes for arg in s.argument())
        self.sizes |= {size.name: size for size in here}
        self.nodes[name] = Node(name, "input", said, type_)
        return Ref(name)

    def leaf(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        role: Role = "parameter",
        dtype: str = "float32",
        value: Constant | None = None,
    ) -> Leaf:
        """Append a parameter, buffer or constant.

        Raises:
            GraphError: If the name is already used, or the tensor is too large.
        """
        if name in self.leaves:
            raise GraphError("there are two leaves of one name", found=name)
        if math.prod(shape) > LIMITS.leaf_elements:
            raise GraphError(
                "tensor too large",
                where=name,
                found=list(shape),
                expected=f"at most {LIMITS.leaf_elements} elements",
            )
        type_, trainable = TensorType(shape, dtype), role == "parameter"
        self.leaves[name] = Param(name, type_, role, trainable, (), value)
        return Leaf(name)

    def types(self, value: Value) -> tuple[TensorType, ...]:
        """Return the types of an operator's results, or of a parameter, buffer or constant."""
        if isinstance(value, Ref):
            return self.nodes[value.name].types
        assert isinstance(value, Leaf)
        return (self.leaves[value.name].type,)

    def shape(self, value: Value) -> tuple[Size, ...]:
        """Return the shape of an operator's first result, or of a parameter, buffer or constant."""
        return self.types(value)[0].shape

    def call(self, op: str, args: Mapping[str, Value], scope: str) -> Ref:
        """Append an operator, unless it would return its input unchanged.

        Raises:
            GraphError: If the operator is unknown or does not fit its arguments.
        """
        # Checked here, because a single step may append any number of operators.
        if len(self.nodes) >= LIMITS.nodes:
            raise GraphError("too many operators", expected=f"at most {LIMITS.nodes}")
        bound = tuple(args.items()) if op == "getitem" else canonical_args(op, dict(args))
        node = Node("new", op, bound, scope=scope)
        type_ = self._infer(node)
        if op != "getitem" and (spelled := self._canonical(node, type_)) != node:
            node, type_ = spelled, self._infer(spelled)
        # An operator that returns its input is skipped, so that two spellings of a model give one
        # graph.
        first = node.args[0][1] if node.args else None
        if (
            isinstance(first, Ref)
            and type_ == self.nodes[first.name].type
            and table.is_identity(node.op, dict(node.args))
        ):
            return first
        # Temporary: canonical names follow when the graph is complete.
        name = f"n{len(self.nodes)}"
        self.nodes[name] = Node(name, node.op, node.args, type_, scope)
        return Ref(name)

    def _canonical(self, node: Node, type_: TensorType | tuple[TensorType, ...]) -> Node:
        """Return the canonical spelling of a call with results of a type."""
        results = type_ if isinstance(type_, tuple) else (type_,)
        sizes = {
            k: self.shape(v)
            for k, v in node.args
            # A value of several results does not have a single shape.
            if isinstance(v, Leaf) or (isinstance(v, Ref) and len(self.types(v)) == 1)
        }
        shapes = tuple(t.shape for t in results)
        op, args = table.canonical(Spelling(node.op, dict(node.args), sizes, shapes))
        return Node("new", op, canonical_args(op, args), scope=node.scope)

    def _infer(self, node: Node) -> TensorType | tuple[TensorType, ...]:
        """Infer the types of a call's results."""
        results = {name: self.nodes[name].type for name in node.uses()}
        leaves = {name: self.leaves[name].type for name in node.leaves()}
        try:
            probes = {name: size.probe for name, size in self.sizes.items()}
            return infer_call(node, results, leaves, probes)
        except GraphError as error:
            # Without its location, the temporary name `new`: the caller adds the line of the file.
            raise GraphError(error.message, **error.facts) from error

    def graph(
        self,
        outputs: Value,
        *,
        name: str = "",
        sections: tuple[tuple[str, tuple[str, ...]], ...] = (),
    ) -> ArchGraph:
        """Return the finished graph, checked, with canonical names and tensors in state-dict order.

        Raises:
            GraphError: If the graph is invalid.
        """
        inputs = tuple((n, Ref(n)) for n, node in self.nodes.items() if node.op == "input")
        params = tuple(state_order(tuple(self.leaves.values())))
        complete = self._whole(outputs).replace(inputs=inputs, params=params)
        graph = renumber(complete.replace(sections=sections, name=name))
        check(graph)
        return graph

    def unused(self, outputs: Value) -> tuple[str, ...]:
        """Return the names of the nodes on which no output depends."""
        live = prune(self._whole(outputs)).node
        return tuple(n for n in self.nodes if n not in live)

    def _whole(self, outputs: Value) -> ArchGraph:
        params, nodes = tuple(self.leaves.values()), tuple(self.nodes.values())
        return ArchGraph((), params, nodes, outputs, tuple(self.updates.items()))


def state_order(params: tuple[Param, ...]) -> Iterator[Param]:
    """Yield the parameters and buffers of a module, then those of its children, like a state dict.

    Constants are not part of a state dict and come last.
    """

    def visit(group: list[tuple[tuple[str, ...], Param]]) -> Iterator[Param]:
        children: dict[str, list[tuple[tuple[str, ...], Param]]] = {}
        direct = [p for path, p in group if len(path) == 1]
        # As nn.Module.state_dict does: a module's own tensors first, in any order of creation.
        yield from (p for p in direct if p.role == "parameter")
        yield from (p for p in direct if p.role == "buffer")
        for path, param in group:
            if len(path) > 1:
                children.setdefault(path[0], []).append((path[1:], param))
        for child in children.values():
            yield from visit(child)

    yield from visit([(tuple(p.name.split(".")), p) for p in params if p.role != "constant"])
    yield from (p for p in params if p.role == "constant")
