"""Weights and the linear maps between the states of architectures."""

from archgraph.states.dimension_map import DimMap
from archgraph.states.entry import Entry
from archgraph.states.merge import Merger
from archgraph.states.rewritten import Rewritten
from archgraph.states.state import Signature, Slot, State, signature
from archgraph.states.transfer import Transfer
from archgraph.states.updates import Update, check_update

__all__ = [
    "DimMap",
    "Entry",
    "Merger",
    "Rewritten",
    "Signature",
    "Slot",
    "State",
    "Transfer",
    "Update",
    "check_update",
    "signature",
]
