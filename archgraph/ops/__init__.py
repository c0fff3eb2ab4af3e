"""The operator table: one row per operator; nobody else asks what kind of layer something is."""

from archgraph.ops.schema import canonical_args, schema
from archgraph.ops.table import (
    Initialiser,
    Row,
    base,
    initialiser,
    known,
    macs,
    normalisation,
    row,
    statistics,
    type_of,
)

__all__ = [
    "Initialiser",
    "Row",
    "base",
    "canonical_args",
    "initialiser",
    "known",
    "macs",
    "normalisation",
    "row",
    "schema",
    "statistics",
    "type_of",
]
