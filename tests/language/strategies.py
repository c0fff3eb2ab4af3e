"""Graphs that are well-formed as text, not as architectures: what the text syntax must carry."""

from __future__ import annotations

import keyword
import math
import operator

from hypothesis import strategies as st

from archgraph.graph import text
from archgraph.graph.ir import (
    RESERVED,
    TRAINING,
    ArchGraph,
    Atom,
    Constant,
    Leaf,
    Mode,
    Node,
    Param,
    Polynomial,
    Record,
    Ref,
    TensorType,
)
from archgraph.graph.values import leaf_word

identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name not in RESERVED
)
keys = st.lists(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_/+-]{0,5}", fullmatch=True), min_size=1, max_size=3
).map(".".join)
leaf_names = keys.filter(lambda name: leaf_word(name) == name) | st.sampled_from(sorted(RESERVED))
strings = st.text(
    st.characters(codec="utf-8") | st.sampled_from("'\"\\\n\t\x00\x85\u2028"), max_size=8
)
dtypes = st.sampled_from(sorted(text.ITEM_SIZES))
sizes = st.integers(0, 9)
names = st.sampled_from(["batch", "length", "height"]).map(Polynomial.of)
open_sizes = st.recursive(
    names,
    lambda inner: st.one_of(
        st.builds(operator.mul, inner, names | st.integers(1, 9)),
        st.builds(operator.add, inner, names | st.integers(-9, 9)),
        st.builds(operator.floordiv, inner, names | st.integers(2, 9)),
    ),
    max_leaves=3,
).filter(lambda size: isinstance(size, Polynomial))
types = st.builds(TensorType, st.lists(sizes | open_sizes, max_size=4).map(tuple), dtypes)
floats = st.floats(allow_nan=False) | st.just(math.inf) | st.just(1e-05)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | floats
    | strings
    # Outside of a graph, a bare name is a leaf.
    | open_sizes.filter(lambda size: str(size) not in ("length", "height"))
    | keys.map(Ref)
    | leaf_names.map(Leaf)
    | st.sampled_from(["float32", "contiguous_format"]).map(Atom)
    | st.just(TRAINING)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(Mode, inner, inner)
        | st.builds(
            Record,
            st.lists(st.tuples(strings, inner), max_size=2).map(tuple),
            st.just("") | identifiers,
        )
    ),
    max_leaves=6,
)


@st.composite
def params(draw: st.DrawFn) -> Param:
    name = draw(leaf_names)
    shape = tuple(draw(st.lists(sizes, max_size=3)))
    dtype = draw(dtypes)
    role = draw(st.sampled_from(text.ROLES))
    size = math.prod(shape) * text.ITEM_SIZES[dtype]
    value = None
    if role == "constant" or draw(st.booleans()):
        # A short pattern repeated is packed by zlib, noise is not: both forms occur.
        pattern = draw(st.binary(min_size=1, max_size=80))
        value = Constant(dtype, shape, (pattern * (size // len(pattern) + 1))[:size])
    trainable = draw(st.booleans()) if role == "parameter" else False
    aliases = tuple(draw(st.lists(leaf_names, max_size=2)))
    return Param(name, TensorType(shape, dtype), role, trainable, aliases, value)


arguments = st.lists(st.tuples(identifiers, values), max_size=3).map(tuple)
nodes = st.builds(
    Node,
    keys,
    st.sampled_from(["input", "getitem", "aten.conv2d", "aten.add.Tensor"]),
    arguments,
    types | st.lists(types, max_size=3).map(tuple),
    st.just("") | keys,
)
# An input has the open sizes: their names are leaves elsewhere.
OPEN = TensorType(tuple(map(Polynomial.of, ("batch", "length", "height"))), "float32")
graphs = st.builds(
    ArchGraph,
    inputs=st.lists(st.tuples(identifiers, values), max_size=2).map(tuple),
    params=st.lists(params(), max_size=3).map(tuple),
    nodes=st.lists(nodes, max_size=4).map(lambda nodes: (Node("open", "input", (), OPEN), *nodes)),
    outputs=values,
    updates=st.lists(st.tuples(leaf_names, values), max_size=2).map(tuple),
    sections=st.lists(st.tuples(strings, st.lists(strings, max_size=3).map(tuple)), max_size=2).map(
        tuple
    ),
    name=strings,
)
