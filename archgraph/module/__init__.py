"""From a graph to an ``nn.Module``: generated code, new weights.

The input is a graph, and a state or the seed of a new one (``initial``). The output is an
``ArchModule`` with the state-dict keys, layers and modes of the model that the graph was traced
from.

1. ``plan``: work and leaves by module path. A path is a ``torch.nn`` layer if a single layer
   computes all of its work, a block if its work is contiguous, and otherwise a container.
2. ``code``: the work of the network and of each block, as one ``torch.fx`` graph per mode, and the
   Python code generated from it. A block is generated when other code first calls it.
3. ``build``: a template per graph: all modules in their places, without tensors. Building a module
   copies the template and fills in the tensors.
4. ``inputs``: the network's forward first compares its arguments with the graph's types.

Invariants: an operator runs in exactly one place: its layer, else the innermost block around it,
else the network's forward. A block takes what its work reads from outside and returns what others
read of it; both the caller and the block ask the plan. A leaf is an attribute at its path; a tied
leaf is one under each of its names.
"""
