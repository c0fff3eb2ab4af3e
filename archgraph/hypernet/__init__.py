"""Weights for any architecture from one graph network at the server (RecipFL).

In: the clients' graphs and current states, and what is known of their data. Out: states
(``generate``), and the gradient of φ that moves them to what clients have trained (``pull_back``).

1. ``graphs``: a node for each operator, a slot (operator, argument, rank) for each tensor, and the
   order of a traversal, level by level over all graphs at once.
2. ``encoder``: a code for the current values of each tensor.
3. ``gnn``: features of nodes, made of the operator and the codes of its tensors, pass along the
   edges, forward and then backward.
4. ``decoders``, one for each slot: features become a code, and the code a tensor of any size.
5. ``network`` is all of this; ``server`` has φ's optimiser, and clients' states on disk.

- The first operator that uses a tensor owns it. A tensor is generated, or stays with the client by
  a rule (a buffer, frozen, unused, not real), or is refused.
- ``pull_back`` never holds all generated weights: a few tensors at a time, gaps become gradients of
  codes, and one backward pass leads from all codes to φ.

The extra ``hypernet`` brings PyTorch Geometric, which takes seconds to import: of all archgraph
only the strategy ``recipfl`` imports this package. Names are imported on first use.
"""

import lazy_loader

from archgraph.hints import optional_module

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    optional_module("torch_geometric")
    return _public(name)
