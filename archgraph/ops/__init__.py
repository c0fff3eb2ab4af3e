"""The operator table: one row per operator; nothing else asks what kind of layer something is."""

from archgraph.ops.operands import type_of
from archgraph.ops.operator import Growth, Operator
from archgraph.ops.schema import canonical_args, op_schema
from archgraph.ops.starts import Initialiser, Start
from archgraph.ops.table import (
    base,
    growth,
    initialiser,
    known,
    macs,
    normalisation,
    row,
    statistics,
)

__all__ = [
    "Growth",
    "Initialiser",
    "Operator",
    "Start",
    "base",
    "canonical_args",
    "growth",
    "initialiser",
    "known",
    "macs",
    "normalisation",
    "op_schema",
    "row",
    "statistics",
    "type_of",
]
