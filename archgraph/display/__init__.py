"""Pictures and words for graphs and runs; nothing here changes either.

Names are imported on first use: a table of a graph needs no Graphviz, and `matplotlib` takes long.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
