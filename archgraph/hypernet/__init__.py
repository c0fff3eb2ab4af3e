"""Weights for any architecture from one graph network on the server (RecipFL).

The inputs are the clients' graphs, their current states, and descriptors of their data. The outputs
are states (``generate``), and the gradient of φ that moves these towards the states that clients
trained (``pull_back``).

1. ``graphs``: a node for each operator, a slot (operator, argument, rank) for each tensor, and the
   order of a traversal, level by level over all graphs at once.
2. ``encoder``: a code for the current values of each tensor.
3. ``gnn``: node features, built from the operator and the codes of its tensors, are passed along
   the edges, forward and then backward.
4. ``decoders``, one for each slot: turn features into a code, and the code into a tensor of any
   size.
5. ``network`` combines these; ``server`` has φ's optimiser, and clients' states on disk.

- The first operator that uses a tensor owns it. A tensor is generated, or stays on the client by a
  rule (a buffer, frozen, unused, not real), or is refused.
- ``pull_back`` never holds all generated weights. It handles a few tensors at a time, whose
  differences to the trained ones become gradients of codes; one backward pass leads from all codes
  to φ.

The extra ``hypernet`` installs PyTorch Geometric, which takes seconds to import. Within archgraph,
only the strategy ``recipfl`` imports this package. Names are imported on first use.
"""

import lazy_loader

from archgraph.hints import optional_module

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    optional_module("torch_geometric")
    return _public(name)
