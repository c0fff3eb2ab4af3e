"""The graph: frozen values that describe an architecture and nothing else.

An :class:`ArchGraph` is a list of :class:`Node` in topological order over :class:`Param` leaves.
It holds no weights (those are a ``State``: a dict from parameter name to tensor), so two equal
graphs are one architecture. ``print(graph)`` reads back through :func:`archgraph.graph.text.parse`.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import re
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from archgraph.errors import GraphError

if TYPE_CHECKING:
    import networkx

Role = Literal["parameter", "buffer", "constant"]

# Word of the printed form for the one symbolic size.
BATCH_WORD = "batch"


@dataclass(frozen=True, slots=True)
class Batch:
    """A size that is a multiple of the batch size: ``factor * batch ** power``.

    >>> str(Batch(64)), str(Batch() * 3), str(Batch(6) // 3), str(Batch() * Batch())
    ('64*batch', '3*batch', '2*batch', 'batch**2')
    """

    factor: int = 1
    power: int = 1

    def __mul__(self, other: Size) -> Batch:
        if isinstance(other, Batch):
            return Batch(self.factor * other.factor, self.power + other.power)
        return Batch(self.factor * other, self.power)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Batch:
        if self.factor % other:
            raise GraphError(f"{self} is not divisible by {other}")
        return Batch(self.factor // other, self.power)

    def at(self, batch: int) -> int:
        """Value for a concrete batch size."""
        return self.factor * int(batch**self.power)

    def __str__(self) -> str:
        power = BATCH_WORD if self.power == 1 else f"{BATCH_WORD}**{self.power}"
        return power if self.factor == 1 else f"{self.factor}*{power}"


Size: TypeAlias = int | Batch


def size_at(size: Size, batch: int) -> int:
    """Concrete value of a size for a batch size.

    >>> size_at(Batch(2), 8), size_at(3, 8)
    (16, 3)
    """
    return size.at(batch) if isinstance(size, Batch) else size


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor, e.g. ``float32[batch, 64, 8, 8]``."""

    shape: tuple[Size, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a node's result, printed ``%name``."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A use of a parameter, buffer or constant, printed as its bare state-dict key."""

    name: str

    def __str__(self) -> str:
        return leaf_word(self.name)


@dataclass(frozen=True, slots=True)
class Mode:
    """A value that depends on the mode: ``train(a, b)``; the flag itself prints as ``training``."""

    train: Value
    eval: Value

    def __str__(self) -> str:
        if self.train is True and self.eval is False:
            return "training"
        return f"train({show(self.train)}, {show(self.eval)})"


TRAINING = Mode(True, False)


@dataclass(frozen=True, slots=True)
class Atom:
    """A torch enumeration used as an argument (dtype, memory format), printed ``:float32``."""

    name: str

    def __str__(self) -> str:
        return f":{self.name}"


@dataclass(frozen=True, slots=True)
class Record:
    """A dict (``{a: 1}``) or, with a type name, a named tuple (``Name{a: 1}``) of values."""

    fields: tuple[tuple[str, Value], ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}{{{', '.join(f'{quote(k)}: {show(v)}' for k, v in self.fields)}}}"


# What an argument can be. Tuples nest.
Value: TypeAlias = (
    "bool | int | float | str | Batch | Ref | Leaf | Mode | Atom | Record"
    " | tuple[Value, ...] | None"
)
RESERVED = frozenset(
    {"None", "True", "False", "training", "train", BATCH_WORD, "inf", "+inf", "-inf", "nan"}
)


# A leaf's name is printed bare where it cannot be taken for anything else.
_WORD = re.compile(r"[^\s,()\[\]{}=%@:'\"*]+")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?)"
)


def leaf_word(name: str) -> str:
    """Printed form of a leaf's name: bare, or quoted where it would read as something else.

    >>> leaf_word("layer1.0.conv1.weight"), leaf_word("0"), leaf_word("train")
    ('layer1.0.conv1.weight', "@'0'", "@'train'")
    """
    plain = _WORD.fullmatch(name) and not _NUMBER.fullmatch(name) and name not in RESERVED
    return name if plain else f"@{quote(name)}"


def quote(text: str) -> str:
    """Python string literal in double or single quotes, always on one line."""
    return repr(text)


def show(value: Value) -> str:
    """Printed form of one argument value.

    >>> show((Ref("relu"), 2, Batch(4), Leaf("fc.weight"), TRAINING, 0.5))
    '(%relu, 2, 4*batch, fc.weight, training, 0.5)'
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        return repr(value)
    return str(value)


def walk(value: Value) -> Iterator[Value]:
    """Every scalar inside a value, both branches of a ``Mode`` included, left to right."""
    match value:
        case tuple():
            for item in value:
                yield from walk(item)
        case Mode():
            yield from walk(value.train)
            yield from walk(value.eval)
        case Record():
            for _, item in value.fields:
                yield from walk(item)
        case _:
            yield value


def replace(value: Value, change: Callable[[Value], Value]) -> Value:
    """The value with every scalar passed through ``change``."""
    match value:
        case tuple():
            return tuple(replace(item, change) for item in value)
        case Mode():
            train, eval_ = replace(value.train, change), replace(value.eval, change)
            return train if same(train, eval_) else Mode(train, eval_)
        case Record():
            return Record(tuple((k, replace(v, change)) for k, v in value.fields), value.name)
        case _:
            return change(value)


def same(a: Value, b: Value) -> bool:
    """Equality that tells ``True`` from ``1`` and ``1`` from ``1.0``."""
    return show(a) == show(b)


def in_mode(value: Value, training: bool) -> Value:
    """The value as it is in one mode: every ``Mode`` inside replaced by its branch."""
    match value:
        case tuple():
            return tuple(in_mode(item, training) for item in value)
        case Mode():
            return in_mode(value.train if training else value.eval, training)
        case Record():
            return Record(tuple((k, in_mode(v, training)) for k, v in value.fields), value.name)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that is part of the architecture (index tables, masks), as little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __str__(self) -> str:
        packed = zlib.compress(self.data, 9) if len(self.data) > 64 else None
        if packed is not None and len(packed) < len(self.data):
            return "zlib:" + base64.b64encode(packed).decode()
        return "raw:" + base64.b64encode(self.data).decode()


@dataclass(frozen=True, slots=True)
class Param:
    """A leaf of the graph: a parameter, a buffer of the state, or a constant of the architecture.

    ``aliases`` are further state-dict keys of the same tensor (tied weights). ``value`` is the
    initial value where no operator defines one (index tables, positional encodings); constants
    always have it and are not part of the state.
    """

    name: str
    type: TensorType
    role: Role = "parameter"
    trainable: bool = True
    aliases: tuple[str, ...] = ()
    value: Constant | None = None

    def __post_init__(self) -> None:
        if self.role != "parameter":  # nothing else can be trained
            object.__setattr__(self, "trainable", False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape (no batch axis in a leaf)."""
        return tuple(s for s in self.type.shape if isinstance(s, int))

    @property
    def dtype(self) -> str:
        """Element type, e.g. ``float32``."""
        return self.type.dtype

    def __str__(self) -> str:
        flags = "".join(f" alias {leaf_word(a)}" for a in self.aliases)
        if self.role == "parameter" and not self.trainable:
            flags += " frozen"
        value = f" = {self.value}" if self.value is not None else ""
        return f"{self.role} {leaf_word(self.name)}: {self.type}{flags}{value}"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application.

    Attributes:
        name: Unique in the graph.
        op: ``input``, ``getitem`` or an ATen overload, e.g. ``aten.conv2d``, ``aten.add.Tensor``.
        args: Arguments by schema name, schema order, only those that differ from the default.
        type: Type of the result; a tuple for operators with several results.
        scope: Module path that the call came from, e.g. ``layer1.0.conv1``.
        source: Line of the user's code, for messages; no part of equality.
    """

    name: str
    op: str
    args: tuple[tuple[str, Value], ...] = ()
    type: TensorType | tuple[TensorType, ...] = TensorType((), "float32")
    scope: str = ""
    source: str = field(default="", compare=False)

    def arg(self, name: str, default: Value = None) -> Value:
        """Argument by schema name, or the default where it is not given."""
        for key, value in self.args:
            if key == name:
                return value
        return default

    def with_args(self, **changes: Value) -> Node:
        """The node with some arguments replaced (those that it has keep their place)."""
        names = [k for k, _ in self.args]
        args = [(k, changes.get(k, v)) for k, v in self.args]
        args += [(k, v) for k, v in changes.items() if k not in names]
        return dataclasses.replace(self, args=tuple(args))

    @property
    def shape(self) -> tuple[Size, ...]:
        """Shape of the (first) result."""
        return self.types[0].shape

    @property
    def dtype(self) -> str:
        """Element type of the (first) result."""
        return self.types[0].dtype

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of all results."""
        return self.type if isinstance(self.type, tuple) else (self.type,)

    def uses(self) -> Iterator[str]:
        """Names of the nodes whose results it uses, in argument order, with repetition."""
        for _, value in self.args:
            for item in walk(value):
                if isinstance(item, Ref):
                    yield item.name

    def leaves(self) -> Iterator[str]:
        """Names of the leaves that it uses, in argument order, with repetition."""
        for _, value in self.args:
            for item in walk(value):
                if isinstance(item, Leaf):
                    yield item.name

    def __str__(self) -> str:
        kind = (
            f"({', '.join(map(str, self.type))}{',' if len(self.type) == 1 else ''})"
            if isinstance(self.type, tuple)
            else str(self.type)
        )
        args = ", ".join(f"{k}={show(v)}" for k, v in self.args)
        scope = f" @ {self.scope}" if self.scope else ""
        return f"%{self.name}: {kind} = {self.op}({args}){scope}"


@dataclass(frozen=True, slots=True)
class ArchGraph:
    """An architecture: a DAG of operators over named leaves.

    Attributes:
        name: A label, no part of equality.
        inputs: Forward's arguments in order: name and tree of ``Ref`` to ``input`` nodes.
        params: Leaves in state-dict order.
        nodes: Operators in topological order (``input`` nodes first).
        outputs: Tree of ``Ref`` that forward returns; a ``Mode`` where training returns more.
        updates: Buffers that forward assigns: ``(buffer, value)``; ``None`` leaves it alone.
        sections: The user's own sections, ``(name, (block, ...))``; empty: found by analysis.
    """

    inputs: tuple[tuple[str, Value], ...]
    params: tuple[Param, ...]
    nodes: tuple[Node, ...]
    outputs: Value
    updates: tuple[tuple[str, Value], ...] = ()
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()
    name: str = field(default="", compare=False)
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the caches, which hold classes made at run time."""
        fields = (self.inputs, self.params, self.nodes, self.outputs, self.updates)
        return ArchGraph, (*fields, self.sections, self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> ArchGraph:
        return self  # a value

    @property
    def digest(self) -> str:
        """SHA-256 of the printed graph without its name: equal graphs share it."""
        return self._memo(
            "digest", lambda g: hashlib.sha256(g.text(title=False).encode()).hexdigest()
        )

    @property
    def node(self) -> Mapping[str, Node]:
        """Nodes by name."""
        result: Mapping[str, Node] = self._memo("node", lambda g: {n.name: n for n in g.nodes})
        return result

    @property
    def param(self) -> Mapping[str, Param]:
        """Leaves by name (owners only, not aliases)."""
        result: Mapping[str, Param] = self._memo("param", lambda g: {p.name: p for p in g.params})
        return result

    @property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes that use a node's result, by node name, in topological order."""

        def build(g: ArchGraph) -> Mapping[str, tuple[str, ...]]:
            users: dict[str, list[str]] = {n.name: [] for n in g.nodes}
            for n in g.nodes:
                for used in dict.fromkeys(n.uses()):
                    users[used].append(n.name)
            return {k: tuple(v) for k, v in users.items()}

        result: Mapping[str, tuple[str, ...]] = self._memo("users", build)
        return result

    @property
    def leaf_users(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes that use a leaf, by leaf name, in topological order."""

        def build(g: ArchGraph) -> Mapping[str, tuple[str, ...]]:
            users: dict[str, list[str]] = {p.name: [] for p in g.params}
            for n in g.nodes:
                for used in dict.fromkeys(n.leaves()):
                    users[used].append(n.name)
            return {k: tuple(v) for k, v in users.items()}

        result: Mapping[str, tuple[str, ...]] = self._memo("leaf_users", build)
        return result

    @property
    def state_names(self) -> tuple[str, ...]:
        """Keys of a full state: parameters and buffers, without aliases and constants."""
        return tuple(p.name for p in self.params if p.role != "constant")

    @property
    def nx(self) -> networkx.DiGraph:
        """Frozen networkx view: an edge from producer to user; node attribute ``node``."""
        # Loaded where it is needed: a graph that is only read or printed does without.
        import networkx

        def build(g: ArchGraph) -> networkx.DiGraph:
            view = networkx.DiGraph(name=g.name)
            view.add_nodes_from((n.name, {"node": n, "op": n.op}) for n in g.nodes)
            view.add_edges_from((u, n.name) for n in g.nodes for u in n.uses())
            return networkx.freeze(view)

        return self._memo("nx", build)

    def output_refs(self) -> tuple[str, ...]:
        """Names of the nodes that the outputs (of both modes) and the updates use."""
        values = (self.outputs, *(v for _, v in self.updates))
        return tuple(dict.fromkeys(i.name for v in values for i in walk(v) if isinstance(i, Ref)))

    def replace(self, **changes: Any) -> ArchGraph:
        """A copy with some fields changed (caches are not carried over)."""
        return dataclasses.replace(self, **changes)

    def text(self, *, title: bool = True) -> str:
        """Printed form; :func:`archgraph.graph.text.parse` reads it back."""
        lines = [f"graph {quote(self.name)}"] if title else []
        lines += [str(p) for p in self.params]
        lines += [str(n) for n in self.nodes]
        lines += [f"section {quote(k)} {show(v)}" for k, v in self.sections]
        lines += [f"update {leaf_word(k)} = {show(v)}" for k, v in self.updates]
        lines += [f"forward {k} = {show(v)}" for k, v in self.inputs]
        lines += [f"return {show(self.outputs)}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _memo(self, key: Hashable, make: Callable[[ArchGraph], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make(self)
        return self._cache[key]


def per_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache an analysis on the graph itself, so that it lives as long as the graph.

    What it takes beside the graph are hashable values, by position: each has its own result.
    """
    key = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def cached(graph: ArchGraph, *values: Hashable) -> Any:
        return graph._memo((key, *values), lambda graph: function(graph, *values))

    return cached


def specialise(graph: ArchGraph, *, training: bool) -> ArchGraph:
    """The graph as it runs in one mode: flags resolved, operators of the other mode removed.

    Raises:
        GraphError: If the mode has no output.
    """
    nodes = tuple(
        dataclasses.replace(n, args=tuple((k, in_mode(v, training)) for k, v in n.args))
        for n in graph.nodes
    )
    updates = tuple((k, in_mode(v, training)) for k, v in graph.updates)
    return prune(
        graph.replace(
            nodes=nodes,
            outputs=in_mode(graph.outputs, training),
            updates=tuple((k, v) for k, v in updates if v is not None),
        ),
        leaves=False,
    )


def prune(graph: ArchGraph, *, leaves: bool = True) -> ArchGraph:
    """The graph without operators that no output needs.

    Inputs stay, used or not: they are part of forward's signature. An update (a counter, say)
    stays while its module does anything for an output. Leaves that only removed operators used
    go with them; leaves that nothing ever used stay, since checkpoints hold them.
    """
    live: set[str] = set()

    def reach(value: Value) -> None:
        pending = [i.name for i in walk(value) if isinstance(i, Ref)]
        while pending:
            name = pending.pop()
            if name not in live:
                live.add(name)
                pending.extend(graph.node[name].uses())

    reach(graph.outputs)
    busy = {graph.node[name].scope for name in live}
    updates = []
    for buffer, value in graph.updates:
        scopes = {graph.node[i.name].scope for i in walk(value) if isinstance(i, Ref)}
        if not scopes or "" in scopes or scopes & busy:
            updates.append((buffer, value))
    for _, value in updates:
        reach(value)
    nodes = tuple(n for n in graph.nodes if n.name in live or n.op == "input")
    params = graph.params
    if leaves:
        used = {name for n in nodes for name in n.leaves()} | {k for k, _ in updates}
        used |= {i.name for i in walk(graph.outputs) if isinstance(i, Leaf)}
        gone = {name for n in graph.nodes if n.name not in live for name in n.leaves()}
        gone |= {k for k, _ in graph.updates}
        params = tuple(p for p in graph.params if p.name in used or p.name not in gone)
    return graph.replace(nodes=nodes, params=params, updates=tuple(updates))


def renumber(graph: ArchGraph) -> ArchGraph:
    """The graph with canonical node names: operator and ordinal (``relu``, ``relu_1``, …).

    Inputs keep their names. Equal architectures have equal canonical graphs.
    """
    taken = {n.name for n in graph.nodes if n.op == "input"}
    names: dict[str, str] = {name: name for name in taken}
    count: dict[str, int] = {}
    for n in graph.nodes:
        if n.op == "input":
            continue
        stem = n.op.split(".")[1] if "." in n.op else n.op
        while True:
            index = count.get(stem, 0)
            count[stem] = index + 1
            name = f"{stem}_{index}" if index else stem
            if name not in taken:
                break
        taken.add(name)
        names[n.name] = name

    def rename(value: Value) -> Value:
        return Ref(names[value.name]) if isinstance(value, Ref) else value

    return graph.replace(
        nodes=tuple(
            dataclasses.replace(
                n,
                name=names[n.name],
                args=tuple((k, replace(v, rename)) for k, v in n.args),
            )
            for n in graph.nodes
        ),
        inputs=tuple((k, replace(v, rename)) for k, v in graph.inputs),
        outputs=replace(graph.outputs, rename),
        updates=tuple((k, replace(v, rename)) for k, v in graph.updates),
    )
