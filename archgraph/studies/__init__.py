"""Tables of experiments: cells by seeds, their figures and differences."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
