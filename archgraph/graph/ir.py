"""The graph: immutable classes that describe an architecture without weights.

An :class:`ArchGraph` has operators (:class:`Node`) in topological order, and the parameters,
buffers and constants (:class:`Param`) that they use. Weights are in a separate *state*, a dict from
names to tensors, so equal graphs are the same architecture.
:func:`archgraph.graph.text.parse` reads the printed form of a graph. The classes of
:mod:`archgraph.graph.values` can also be imported from here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from archgraph.graph.polynomial import Polynomial as Polynomial
from archgraph.graph.polynomial import Size as Size
from archgraph.graph.values import BATCH as BATCH
from archgraph.graph.values import BATCH_WORD as BATCH_WORD
from archgraph.graph.values import NESTING as NESTING
from archgraph.graph.values import RESERVED as RESERVED
from archgraph.graph.values import TRAINING as TRAINING
from archgraph.graph.values import Atom as Atom
from archgraph.graph.values import Constant as Constant
from archgraph.graph.values import Leaf as Leaf
from archgraph.graph.values import Mode as Mode
from archgraph.graph.values import Record as Record
from archgraph.graph.values import Ref as Ref
from archgraph.graph.values import Role as Role
from archgraph.graph.values import TensorType as TensorType
from archgraph.graph.values import Value as Value
from archgraph.graph.values import in_mode as in_mode
from archgraph.graph.values import leaf_word as leaf_word
from archgraph.graph.values import nested as nested
from archgraph.graph.values import quote as quote
from archgraph.graph.values import refs as refs
from archgraph.graph.values import replace as replace
from archgraph.graph.values import same_value as same_value
from archgraph.graph.values import show as show
from archgraph.graph.values import size_at as size_at
from archgraph.graph.values import walk as walk
from archgraph.notebook import embedded_svg, framed, page_text

if TYPE_CHECKING:
    import networkx

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor of the graph: a parameter, a buffer, or a constant.

    A tied tensor has several keys in the model's state dict. One of these keys is its name, and
    ``aliases`` are the others. ``value`` is the initial value of a buffer such as an index table or
    a positional encoding. A constant always has a ``value`` and is not part of the state.
    """

    name: str
    type: TensorType
    role: Role = "parameter"
    trainable: bool = True
    aliases: tuple[str, ...] = ()
    value: Constant | None = None

    def __post_init__(self) -> None:
        # Only parameters are trainable, so that equal leaves compare equal, whatever was passed.
        if self.role != "parameter":
            object.__setattr__(self, "trainable", False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor, as numbers."""
        return tuple([s for s in self.type.shape if isinstance(s, int)])  # a list is faster

    @property
    def dtype(self) -> str:
        """Name of the dtype, e.g. ``float32``."""
        return self.type.dtype

    def __str__(self) -> str:
        flags = "".join(f" alias {leaf_word(a)}" for a in self.aliases)
        if self.role == "parameter" and not self.trainable:
            flags += " frozen"
        value = f" = {self.value}" if self.value is not None else ""
        return f"{self.role} {leaf_word(self.name)}: {self.type}{flags}{value}"


_SCALAR = TensorType((), "float32")


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator.

    Attributes:
        name: Unique name in the graph.
        op: ``input``, ``getitem`` or an ATen overload, e.g. ``aten.conv2d``, ``aten.add.Tensor``.
        args: Pairs of argument name and value, in the order of the operator's schema. Arguments
            that equal their default are omitted.
        type: Type of the result; a tuple for operators with several results.
        scope: Module path of the call, e.g. ``layer1.0.conv1``.
        source: Line of the user's code, for messages; not part of equality.
    """

    name: str
    op: str
    args: tuple[tuple[str, Value], ...] = ()
    type: TensorType | tuple[TensorType, ...] = _SCALAR
    scope: str = ""
    source: str = field(default="", compare=False)

    def arg(self, name: str, default: Value = None) -> Value:
        """Return the argument with this name in the schema, or ``default`` if there is none."""
        for key, value in self.args:
            if key == name:
                return value
        return default

    def with_args(self, **changes: Value) -> Node:
        """Return the node with some arguments replaced or added."""
        # Schema order is part of equality, so a replaced argument keeps its position.
        names = [k for k, _ in self.args]
        args = [(k, changes.get(k, v)) for k, v in self.args]
        args += [(k, v) for k, v in changes.items() if k not in names]
        return dataclasses.replace(self, args=tuple(args))

    def mapped(self, change: Callable[[Value], Value]) -> Node:
        """Return a copy with ``change`` applied to each item of the nested arguments."""
        args = tuple((k, replace(v, change)) for k, v in self.args)
        # `dataclasses.replace` takes three times as long, and rewrites create many nodes.
        return Node(self.name, self.op, args, self.type, self.scope, self.source)

    @property
    def moded(self) -> bool:
        """Whether any argument has different values in training and in evaluation."""
        return any(isinstance(item, Mode) for _, value in self.args for item in nested(value))

    @property
    def shape(self) -> tuple[Size, ...]:
        """Shape of the first result."""
        return self.types[0].shape

    @property
    def dtype(self) -> str:
        """Dtype of the first result."""
        return self.types[0].dtype

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of all results."""
        return self.type if isinstance(self.type, tuple) else (self.type,)

    def operands(self) -> Iterator[Ref | Leaf]:
        """Yield references to the results, parameters, buffers and constants that the node uses.

        References are in the order of the arguments and may repeat.
        """
        for _, value in self.args:
            if isinstance(value, (Ref, Leaf)):  # the common case; walking takes three times as long
                yield value
            elif isinstance(value, NESTING):
                yield from (item for item in walk(value) if isinstance(item, (Ref, Leaf)))

    def uses(self) -> Iterator[str]:
        """Yield the names of the nodes whose results are arguments; names may repeat."""
        return (item.name for item in self.operands() if isinstance(item, Ref))

    def leaves(self) -> Iterator[str]:
        """Yield the parameters, buffers and constants that are arguments; names may repeat."""
        return (item.name for item in self.operands() if isinstance(item, Leaf))

    def __str__(self) -> str:
        types = ", ".join(map(str, self.types))
        if isinstance(self.type, tuple):
            types = f"({types}{',' if len(self.type) == 1 else ''})"
        args = ", ".join(f"{k}={show(v)}" for k, v in self.args)
        scope = f" @ {self.scope}" if self.scope else ""
        return f"%{self.name}: {types} = {self.op}({args}){scope}"


@dataclass(frozen=True, slots=True, repr=False)
class ArchGraph:
    """An architecture: an acyclic graph of operators, parameters, buffers and constants.

    Attributes:
        name: Name of the graph. Not compared by ``==``.
        notes: Remarks of :func:`trace`, for example about parts of the model that a graph cannot
            represent. Not compared by ``==``.
        inputs: The arguments of ``forward``, in order. Each is a pair of a name and a nested
            structure of references (``Ref``) to ``input`` nodes.
        params: Parameters, buffers and constants (leaves), in the order of the state dict.
        nodes: Operators in topological order, ``input`` nodes first.
        outputs: The results of ``forward``: a nested structure of references (``Ref``) to nodes. If
            the results in training and in evaluation differ, a ``Mode`` with both.
        updates: Pairs ``(buffer, value)`` for the buffers to which ``forward`` assigns a value. If
            the value is ``None`` for training or for evaluation, ``forward`` does not change the
            buffer in this mode.
        sections: The user's sections, as pairs ``(name, (block, ...))`` of a name and the names of
            blocks. A section without listed blocks contains the nodes whose scope starts with the
            name of the section. Default: sections are found automatically.
        flags: The ``training`` flags of modules at the time of the trace, as pairs ``(path,
            flag)``. A flag applies to the module at this path and its submodules. Later flags
            override earlier flags. Not compared by ``==``, and not printed.
        shared: Names of modules that occur at several paths of the model. Not compared by ``==``.
    """

    inputs: tuple[tuple[str, Value], ...]
    params: tuple[Param, ...]
    nodes: tuple[Node, ...]
    outputs: Value
    updates: tuple[tuple[str, Value], ...] = ()
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()
    name: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    flags: tuple[tuple[str, bool], ...] = field(default=(), compare=False)
    shared: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.digest)  # cached; hashing the fields would walk all nodes at every call

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the graph without caches, which contain classes created at run time."""
        return ArchGraph, tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.init)

    def __deepcopy__(self, memo: dict[int, object]) -> ArchGraph:
        return self  # frozen, so a copy could never differ

    @property
    def digest(self) -> str:
        """SHA-256 of the printed graph without name and notes. Equal graphs have equal digests."""
        return self._memo(
            "digest", lambda g: hashlib.sha256(g.text(title=False).encode()).hexdigest()
        )

    @property
    def node(self) -> Mapping[str, Node]:
        """Dict from name to node."""
        return self._memo("node", lambda g: MappingProxyType({n.name: n for n in g.nodes}))

    @property
    def param(self) -> Mapping[str, Param]:
        """Dict from name to parameter, buffer or constant. Aliases of tied tensors are not keys."""
        return self._memo("param", lambda g: MappingProxyType({p.name: p for p in g.params}))

    @property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """Dict from node name to the names of the nodes that use its result, in order."""
        return self._memo("users", lambda g: _users(g, g.node, Node.uses))

    @property
    def leaf_users(self) -> Mapping[str, tuple[str, ...]]:
        """Dict from parameter, buffer or constant to the names of the nodes that use it."""
        return self._memo("leaf_users", lambda g: _users(g, g.param, Node.leaves))

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of all parameters and buffers, without the aliases of tied tensors."""
        return self._memo(
            "state_names", lambda g: tuple(p.name for p in g.params if p.role != "constant")
        )

    @property
    def nx(self) -> networkx.DiGraph:
        """Frozen networkx graph with edges from nodes to users.

        The node attributes are ``node`` and ``op``.
        """
        # Imported on use: graphs can be read and printed without networkx.
        import networkx

        def build(g: ArchGraph) -> networkx.DiGraph:
            view = networkx.DiGraph(name=g.name)
            view.add_nodes_from((n.name, {"node": n, "op": n.op}) for n in g.nodes)
            view.add_edges_from((u, n.name) for n in g.nodes for u in n.uses())
            return networkx.freeze(view)

        return self._memo("nx", build)

    def output_refs(self) -> tuple[str, ...]:
        """Return the names of the nodes whose results are outputs or new values of buffers."""
        return self._memo(
            "output_refs",
            lambda g: tuple(dict.fromkeys(refs((g.outputs, *(v for _, v in g.updates))))),
        )

    def replace(self, **changes: Any) -> ArchGraph:
        """Return a copy of the graph with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def mapped(self, change: Callable[[Value], Value]) -> ArchGraph:
        """Return a copy with ``change`` applied to each item of arguments, outputs and updates."""
        return self.replace(
            nodes=tuple(n.mapped(change) for n in self.nodes),
            outputs=replace(self.outputs, change),
            updates=tuple((k, replace(v, change)) for k, v in self.updates),
        )

    def text(self, *, title: bool = True) -> str:
        """Return the printed form of the graph, which :func:`.text.parse` reads.

        If ``title`` is False, the name and the notes of the graph are omitted.
        """
        labels = [f"graph {quote(self.name)}", *(f"note {quote(note)}" for note in self.notes)]
        lines = labels if title else []
        lines += [str(p) for p in self.params]
        lines += [str(n) for n in self.nodes]
        lines += [f"section {quote(k)} {show(v)}" for k, v in self.sections]
        lines += [f"update {leaf_word(k)} = {show(v)}" for k, v in self.updates]
        lines += [f"forward {k} = {show(v)}" for k, v in self.inputs]
        lines += [f"return {show(self.outputs)}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        sizes = f"{len(self.nodes)} operators, {len(self.params)} leaves"
        return "\n  note: ".join((f"<ArchGraph {self.name!r}: {sizes}>", *self.notes))

    def _repr_svg_(self) -> str | None:
        """Return a drawing of the graph for a notebook; None if the graph is too large."""
        return page_text("picture", self)

    def _repr_html_(self) -> str | None:
        """Return an interactive page for a notebook; None if the graph is too large."""
        svg = self._repr_svg_()
        return (
            None if svg is None else framed(page_text("page", self), embedded_svg(svg), self.name)
        )

    def _memo(self, key: Hashable, make: Callable[[ArchGraph], R]) -> R:
        # The cache is not part of the value: results depend on the graph only. It is stored on the
        # graph, since a global cache by graph would keep every graph of a run alive.
        if key not in self._cache:
            self._cache[key] = make(self)
        return self._cache[key]


def _users(
    graph: ArchGraph, names: Iterable[str], used_by: Callable[[Node], Iterator[str]]
) -> Mapping[str, tuple[str, ...]]:
    """Return a dict from each node or leaf to the names of the nodes that use it."""
    users: dict[str, list[str]] = {name: [] for name in names}
    for node in graph.nodes:
        # Each node counts once: `add(x, x)` is a single user of x.
        for used in dict.fromkeys(used_by(node)):
            users[used].append(node.name)
    return MappingProxyType({name: tuple(nodes) for name, nodes in users.items()})


def per_graph(function: Callable[..., R]) -> Callable[..., R]:
    """Cache the results of a function on the graph, so that they live as long as the graph.

    Arguments after the graph must be positional and hashable. Each combination of arguments is
    cached separately.
    """
    key = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def cached(graph: ArchGraph, *values: Hashable) -> R:
        return graph._memo((key, *values), lambda graph: function(graph, *values))

    return cached
