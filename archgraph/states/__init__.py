"""Weights and the linear maps between the states of architectures.

A rewrite gives a transfer ``A`` from a global state to a client's; updates come back by its
transpose::

    Transfer: an Entry per leaf of the client         its source, a scale, or an initialiser
                a DimMap per dimension                slices, an index, weights or a fold
    global state θ ── pull ──▶ client's state ──▶ training ──▶ Update (state, weight, rows)
                                                                  │ updates: checked by name
    new state, Coverage ◀──── result ──── Merger ◀── add ─────────┤
    medians, Krum: robust ◀── slabs ───── Pool, on disk ◀── add ──┘

A new value is ``Σ w Aᵀ update / Σ w |A|ᵀ|A| 1`` where any client covers it (of integers: the
largest). ``wire`` writes tensors as bytes, ``lazy`` computes them when they are asked for.

1. ``push`` is the transpose of ``pull``. Transfers compose: ``a >> b`` pulls what ``b`` pulls of
   what ``a`` pulls, and ``identity`` changes nothing.
2. An update is checked completely before it is added, so that a rejected one leaves no trace.
3. Values that no client covers and frozen values stay as they were, bit for bit.
"""

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
