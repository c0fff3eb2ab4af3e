"""Architecture graphs for federated learning with heterogeneous models.

An architecture is a graph that contains no weights; its weights are a state, a dict of tensors. A
rewrite returns a new graph, and a linear map from the state of the old graph to that of the new
one.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
