"""Weights and the linear maps between the states of architectures."""

from archgraph.states.coverage import Coverage, Term
from archgraph.states.dimension_map import DimMap, chain
from archgraph.states.entry import INITIALISERS, Entry, Initial
from archgraph.states.merge import Merger
from archgraph.states.optimisers import carry, pull_moments
from archgraph.states.rewritten import Rewritten
from archgraph.states.state import Signature, Slot, State, accumulator, signature
from archgraph.states.transfer import Transfer
from archgraph.states.updates import check_update

__all__ = [
    "INITIALISERS",
    "Coverage",
    "DimMap",
    "Entry",
    "Initial",
    "Merger",
    "Rewritten",
    "Signature",
    "Slot",
    "State",
    "Term",
    "Transfer",
    "accumulator",
    "carry",
    "chain",
    "check_update",
    "pull_moments",
    "signature",
]
