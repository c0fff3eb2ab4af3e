"""archgraph: architectures as values, for federated learning with heterogeneous models.

The central idea: an architecture is a value, its weights are a state, and a rewrite is a function
from one architecture to another that also returns a linear map between their states.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
