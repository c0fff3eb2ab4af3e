"""Tables, plots and pages of runs, made from their run folders alone.

Names are imported on first use: `matplotlib` takes long.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
