"""One HTML file that shows architectures in a browser: opened, searched, compared, without network.

Names are imported on first use. The room is not called `view`: that is the function's name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
