"""Build an ``nn.Module`` from a graph.

The input is a graph, and a state or the seed of a new state (``initial``). The output is an
``ArchModule`` with the state-dict keys, layers and modes of the model from which the graph was
traced.

1. ``plan`` decides which module each path of the model becomes. It is a ``torch.nn`` layer if a
   single layer computes all operators of the path. It is a block, with a generated forward, if its
   operators are contiguous in the graph. Otherwise it is a container without a forward.
2. ``code`` generates Python code for the forward of the network and of each block. There is one
   ``torch.fx`` graph for evaluation and one for training.
3. ``build`` creates a template for each graph, with all modules but without tensors. Building a
   module copies the template and fills in the tensors.
4. ``inputs`` checks the arguments of the network's forward.

Invariants: each operator runs in its layer, or else in the innermost block that contains it, or
else in the network's forward. The arguments of a block are the values that its operators use from
outside, and it returns the values that other operators use. A parameter is an attribute of the
module at its path, and a tied parameter is an attribute under each of its names.
"""
