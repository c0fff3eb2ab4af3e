"""Pictures and explanations of graphs; nothing here changes a graph.

Names are imported on first use: a table of a graph needs no Graphviz.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
