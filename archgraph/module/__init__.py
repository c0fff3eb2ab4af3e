"""From a graph to an ``nn.Module``: generated code, fresh weights.

In: a graph, and a state or the seed of a new one (``initial``). Out: an ``ArchModule`` with the
state-dict keys, the layers and the modes of the model that the graph was traced from.

1. ``plan``: work and leaves by module path. A path is a layer of ``torch.nn`` where one computes
   all of its work, a block where its work stands together, else a container.
2. ``code``: the work of the network, and that of each block, as a ``torch.fx`` graph per mode, and
   Python generated from it. A block is generated when the code of another one first calls it.
3. ``build``: a template, once for each graph: all modules in their places, without tensors. To
   build is to copy it and to enter the tensors.
4. ``inputs``: the forward of the network first compares what it is given with the graph's types.

Between them holds: an operator runs in one place, its layer, else the innermost block around it,
else the network's forward. A block takes what its work reads from outside, and returns what is read
of it: caller and block both ask the plan. A leaf is an attribute at its path, and a tied one under
each of its names.
"""
