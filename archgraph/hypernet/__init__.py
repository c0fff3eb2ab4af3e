"""Weights for any architecture from one graph network at the server (RecipFL).

The extra ``hypernet`` brings PyTorch Geometric, which takes seconds to import: nothing else of
archgraph imports this package. Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
