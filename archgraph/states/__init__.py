"""States (dicts of tensors) of architectures, the linear maps between them, and their averages.

An *entry* is one parameter or buffer of a state. A *position* is an index along an axis. A client
*covers* a value of the global state if its model contains this value. A *fold* adds several
positions up into one.

A rewrite returns a transfer, a linear map ``A`` from a global state to a client's state. Clients'
updates are mapped back by the transpose of ``A``::

    Transfer: an Entry per leaf of the client         its source, a scale, or an initialiser
                a DimMap per dimension                slices, an index, weights or a fold
    global state θ ── pull ──▶ client's state ──▶ training ──▶ Update (state, weight, rows)
                                                                  │ updates: checked by name
    new state, Coverage ◀──── result ──── Merger ◀── add ─────────┤
    medians, Krum: robust ◀── slabs ───── Pool, on disk ◀── add ──┘

If any client covers a value, the new value is ``Σ w Aᵀ update / Σ w |A|ᵀ|A| 1``; for integers, it
is the clients' maximum. ``wire`` encodes tensors as bytes; ``lazy`` computes them on access.

1. ``push`` is the transpose of ``pull``. Transfers compose: ``(a >> b).pull(θ)`` is
   ``b.pull(a.pull(θ))``, and ``identity`` changes nothing.
2. An update is checked completely before it is added, so a rejected update changes nothing.
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
