"""Run strategies: the round loop, a client's turn, evaluation.

Names are imported on first use, because torch and its friends take seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
