"""Operators that look up rows by index: embeddings, embedding bags, one-hot encoding."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, TensorType
from archgraph.layout.layouts import Fixed
from archgraph.ops.backward import saves
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.layers import TorchLayer, arguments_of, weighted
from archgraph.ops.operator import Growth, LinearMap, Operator
from archgraph.ops.starts import Initialiser
from archgraph.ops.types import Args, Uncertain, certain, real
from archgraph.ops.zeros import open_dims


# -- a row per index ------------------------------------------------------------------------------
def _embedding_axes(eq: Equations) -> list[Dims]:
    """Return the dimensions of the indices and w[1]; pin the rows, which are indexed by values."""
    w = eq.arg("weight")
    eq.pin([w[0]], "indexed by the input's values")
    return [[*eq.arg("indices"), w[1]]]


def _embedding_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where looked-up rows may be nonzero: not in masked columns of the table."""
    table = eq.dirt_of(eq.node.arg("weight"))
    return [open_dims(dims[:-1]) + table for dims in results]


def _embedding_type(args: Args) -> TensorType:
    """[rows, width] and indices […] give […, width]."""
    (table,) = real(args.get("weight"))
    indices = args.get("indices")
    certain(len(table.shape) == 2, set(args) <= {"weight", "indices", "padding_idx"})
    if not isinstance(indices, TensorType) or indices.dtype not in ("int64", "int32"):
        raise Uncertain
    return TensorType((*indices.shape, table.shape[1]), table.dtype)


_table = weighted(nn.Embedding, ("num_embeddings", "embedding_dim"), "indices")


def _embedding_layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.Embedding``."""
    layer, padding = _table(graph, node), node.arg("padding_idx", -1)
    if layer is None or not isinstance(padding, int):
        return None
    options = arguments_of(node, "scale_grad_by_freq", "sparse")
    if padding >= 0:  # -1 is none for the operator, but the last row for the layer
        options["padding_idx"] = padding
    return replace(layer, options={**layer.options, **options})


_embedding = Operator(
    _embedding_axes,
    _embedding_zero,
    init={"weight": Initialiser("normal")},
    sides={"weight": ("index", "out")},
    weighted=True,
    growth=Growth(affine={"weight": 1}),
    linear_map=LinearMap(
        "indices",
        transposed=True,
        steps=("padding_idx", "scale_grad_by_freq", "sparse"),
        lookup=True,
    ),
    type=_embedding_type,
    layer=_embedding_layer,
    backward=saves("indices"),
)


# -- a row per bag --------------------------------------------------------------------------------
def _bag_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of embedding bags, which sum or average consecutive rows."""
    w = eq.arg("weight")
    eq.pin([w[0]], "indexed by the input's values")
    for name in ("indices", "offsets", "per_sample_weights"):
        if eq.has(name):
            eq.pin(eq.arg(name), "bags are parts of one list")
    return [[*eq.fixed(eq.node.shape[:-1]), w[1]], *(eq.fixed(t.shape) for t in eq.node.types[1:])]


# Bags are summed, averaged or maximised, so there is no common rule for growth.
_bag = Operator(
    _bag_axes, _embedding_zero, init=_embedding.init, sides=_embedding.sides, weighted=True
)


# -- classes --------------------------------------------------------------------------------------
def _one_hot_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a one-hot encoding: classes are numbers, not channels."""
    return [[*eq.arg("self"), Fixed(eq.node.shape[-1])]]


ROWS = {
    "embedding": _embedding,
    "embedding_bag": _bag,
    "one_hot": Operator(_one_hot_axes),
}
