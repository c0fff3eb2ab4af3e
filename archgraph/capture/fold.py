"""Constant folding: results that do not depend on inputs or parameters become constants.

Requires a tape (:mod:`~archgraph.capture.tape`) without submodules. After folding, every call that
is not marked as folded depends on an input, parameter, buffer or random number. The constant
arguments of these calls are ``get_attr`` nodes, each with its own value. In-place writes are folded
as well, also through views: the value of a constant is the content of memory right before the call
that uses it. Folding never writes to the model's own tensors.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from archgraph.capture import calls
from archgraph.capture.tape import FOLDED, LITERAL, Tape, View
from archgraph.errors import GraphError, TraceError
from archgraph.graph.ir import Constant, Param, TensorType
from archgraph.ops import table
from archgraph.ops.constants import constant
from archgraph.ops.schema import op_name


def fold_constants(tape: Tape, names: Collection[str], most: float = math.inf) -> Tape:
    """Replace results that can be computed now by constants.

    1. If all arguments of a call are known, the call runs now on real tensors. All other calls are
       *live*.
    2. If a live call writes to known memory, all results that share this memory first become values
       of the graph, in such an order that views follow the tensor of which they are views. From
       then on, the graph computes them.
    3. For each known value that a live call reads, a constant is inserted before the call. The
       constant is the current content of memory, since later calls may write to the memory.

    Args:
        tape: The calls.
        names: State-dict keys of the model, which constants cannot use as names.
        most: Maximum size of all computed results, in bytes.

    Raises:
        TraceError: If a constant is too large for a graph, or the results exceed ``most``.
    """
    work = _Folding(tape, names, dict(tape.tensors), dict(tape.views), most)
    before = {node: tape.tensors[node].clone() for node in tape.labels}
    for node in tape.tensors:
        node.meta[FOLDED] = True
    for node in list(tape.graph.nodes):
        work.follow(node)
        if node in work.real:
            continue
        result = work.result(node)  # 1
        if result is not None:
            work.real[node] = result
            node.meta[FOLDED] = True
        elif node.op == "output" or node.target is operator.getitem or calls.is_operator(node):
            work.bring_constants(node)
    # Finite, so that NaN equals NaN.
    changed = (
        TraceError(
            "forward changes in place a tensor that is not part of the state; the graph does not",
            where=name,
            hint="make it a persistent buffer (register_buffer)",
        )
        for node, name in tape.labels.items()
        if not torch.equal(tape.tensors[node].nan_to_num(), before[node].nan_to_num())
    )
    views = {
        node: replace(view, parent=work.replacement.get(view.parent, view.parent))
        for node, view in work.views.items()
    }
    notes = (*tape.notes, *changed)
    return replace(tape, tensors={}, labels={}, views=views, constants=work.constants, notes=notes)


@dataclass
class _Folding:
    """Results computed so far, and the nodes that replace them.

    ``real`` contains the results that have been computed. Folded calls write to their memory. If a
    live call writes to the memory of a result, a node right before this call replaces the result
    (``replacement``).
    """

    tape: Tape
    names: Collection[str]  # names that constants cannot have
    real: dict[fx.Node, object]
    views: dict[fx.Node, View]
    left: float  # remaining bytes
    constants: dict[fx.Node, Param] = field(default_factory=dict)
    leaves: dict[Constant, Param] = field(default_factory=dict)  # equal constants are one leaf
    replacement: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def follow(self, node: fx.Node) -> None:
        """Replace the arguments of a node that have replacements."""
        if self.replacement.keys() & set(node.all_input_nodes):
            node.args, node.kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda n: self.replacement.get(n, n)
            )

    def result(self, node: fx.Node) -> object:
        """Run a call whose arguments are known; return None for all others."""
        if node.op != "call_function" or LITERAL in node.meta:
            return None
        if node.target is operator.getitem:
            source, index = node.args
            return self.real[source][index] if source in self.real else None  # type: ignore[index]  # an operator of several results
        target = node.target
        if not calls.is_operator(node) or not isinstance(target, torch._ops.OpOverload):
            return None
        # A random draw differs in each call, even with equal arguments.
        if torch.Tag.nondeterministic_seeded in target.tags:
            return None
        if (fill := table.call_row(op_name(target)).fill) is not None:
            return _filled(node, fill)
        try:
            args, kwargs = pytree.tree_map(self._now, (node.args, node.kwargs))
        except LookupError:
            return None
        self.count(node)
        autocast = calls.region(node).autocast
        with torch.no_grad(), torch.autocast(*autocast) if autocast else contextlib.nullcontext():
            try:
                new = target(*args, **kwargs)
            except calls.KERNEL_ERRORS as error:  # fake tensors let it pass
                reason = str(error).partition("\n")[0]
                raise TraceError(f"cannot be computed: {reason}", where=str(node)) from error
        if table.base(op_name(target)).startswith("empty"):
            new.zero_()  # uninitialised memory is not part of an architecture
        return new

    def count(self, node: fx.Node) -> None:
        """Count the bytes of a result that is computed now; views do not count."""
        new = [] if node in self.views else pytree.tree_leaves(node.meta.get("val"))
        size = sum(t.numel() * t.element_size() for t in new if isinstance(t, Tensor))
        self.left -= size
        # Before the call, so that an untrusted file cannot trigger the allocation.
        if self.left < 0:
            raise TraceError(
                f"computes too much from constants, {size:,} bytes at once", where=calls.where(node)
            )

    def _now(self, item: Argument) -> object:
        """Evaluate an argument of a call that runs now; raise LookupError if it is unknown."""
        if isinstance(item, torch.device):
            return torch.device("cpu")  # constants of a graph have no device
        if not isinstance(item, fx.Node):
            return item
        if item in self.real:
            return self.real[item]
        size = item.meta.get("val")
        is_open = isinstance(size, torch.SymInt) and size.node.expr.free_symbols
        if isinstance(size, (int, torch.SymInt)) and not is_open:
            return int(size)
        raise LookupError(item.name)

    def bring_constants(self, node: fx.Node) -> None:
        """Insert the constants that a live call uses, and those that it writes to."""
        goal = calls.written(node) if calls.is_operator(node) and calls.writes(node) else None
        if goal is not None:  # 2
            self.materialise(goal, node)
            self.follow(node)
        self.bring_numbers(node)
        used = [n for n in node.all_input_nodes if isinstance(self.real.get(n), Tensor)]
        new = {item: self.constant(item, node) for item in used}  # 3
        if new:
            node.args, node.kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda n: new.get(n, n)
            )

    def bring_numbers(self, node: fx.Node) -> None:
        """Replace complex numbers by tensors, since arguments of a graph cannot be complex."""
        target, result = node.target, calls.fake_tensor(node)
        if not isinstance(target, torch._ops.OpOverload) or result is None:
            return
        for position, value in enumerate(node.args):
            type_ = str(target._schema.arguments[position].type)
            if isinstance(value, complex) and type_ == "Tensor":
                dtype = result.dtype if result.is_complex() else torch.complex64
                with self.tape.graph.inserting_before(node):
                    new = self.tape.graph.create_node("get_attr", "number")
                new.meta = {"val": result.new_empty((), dtype=dtype)}
                self.constants[new] = self.leaf(torch.tensor(value, dtype=dtype), None, new)
                node.update_arg(position, new)

    def materialise(self, goal: fx.Node, node: fx.Node) -> None:
        """Replace constants by values of the graph before a live call writes to them.

        All results that share the memory are replaced, starting with the result that is written to.
        """
        memory = calls.memory(goal)
        shared = [n for n in self.real if memory is not None and calls.memory(n) == memory]
        path = calls.path(goal, self.views)
        for item in sorted(shared, key=lambda n: path.index(n) if n in path else len(path)):
            self.replacement[item] = self.constant(item, node)
        for item in shared:
            if item in self.views:
                view = self.views[item]
                parent = self.replacement.get(view.parent, view.parent)
                self.views[self.replacement[item]] = replace(view, parent=parent)
            del self.real[item]

    def constant(self, item: fx.Node, user: fx.Node) -> fx.Node:
        """Insert a node with the current value of a known result right before its user."""
        value = self.real[item]
        assert isinstance(value, Tensor)
        with self.tape.graph.inserting_before(user):
            new = self.tape.graph.create_node("get_attr", item.name)
        new.meta = {k: v for k, v in item.meta.items() if k != FOLDED}
        self.constants[new] = self.leaf(value, self.tape.labels.get(item), item)
        return new

    def leaf(self, tensor: Tensor, label: str | None, item: fx.Node) -> Param:
        """Return the constant with a value; ``label`` is its name in the module, or None."""
        try:
            value = constant(tensor)
        except GraphError as error:
            raise error.within(calls.where(item), kind=TraceError) from error
        if value not in self.leaves:
            used = {*self.names, *(p.name for p in self.leaves.values())}
            numbered = (f"constant_{i}" for i in itertools.count())
            names = itertools.chain([label] if label else [], numbered)
            name = next(name for name in names if name not in used)
            type_ = TensorType(value.shape, value.dtype)
            self.leaves[value] = Param(name, type_, "constant", False, (), value)
        return self.leaves[value]


def _filled(node: fx.Node, fill: int | str) -> Tensor | None:
    """Evaluate operators that use only the shape and dtype of an argument, like ``zeros_like``."""
    # So a mask with the shape of an input is a constant, although the input is unknown.
    result = node.meta["val"]
    if not isinstance(result, Tensor) or not all(isinstance(s, int) for s in result.shape):
        return None
    value = node.args[-1] if fill == "argument" else fill
    if not isinstance(value, (int, float)):
        return None
    return torch.full(tuple(result.shape), value, dtype=result.dtype)
