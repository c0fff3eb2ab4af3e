"""Generate weights for any architecture with one graph neural network on the server (RecipFL).

The network, a hypernetwork with parameters φ, takes the clients' graphs, their current states and
descriptors of their data. ``generate`` computes new states. ``pull_back`` computes the gradient of
φ that moves the generated states towards the states that clients trained.

1. ``graphs`` converts an architecture to a graph with a node for each operator. Each tensor has a
   slot: the operator and argument that use it, and its number of dimensions.
2. ``encoder`` computes a code, a vector that summarises the current values of a tensor.
3. ``gnn`` passes node features, built from the operator and the codes of its tensors, along the
   edges, forward and then backward.
4. ``decoders``, one for each slot, map node features to a tensor of any size.
5. ``network`` combines these; ``server`` has the optimiser of φ, and clients' states on disk.

- A tensor that several operators use belongs to the first of them. Buffers, and parameters that are
  frozen, unused or not floating-point, are not generated and stay on the client. If another tensor
  has no decoder, an error is raised.
- ``pull_back`` handles a few tensors at a time, so that the generated weights are never all in
  memory. The differences between generated and trained tensors give the gradients of the decoders'
  inputs. One backward pass from these inputs then computes the gradient of φ.

The extra ``hypernet`` installs PyTorch Geometric, which takes seconds to import. Within archgraph,
only the strategy ``recipfl`` imports this package. Names are imported on first use.
"""

import lazy_loader

from archgraph.hints import optional_module

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    optional_module("torch_geometric")
    return _public(name)
