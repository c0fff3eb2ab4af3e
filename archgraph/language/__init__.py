"""What a person writes: models, families and experiments as YAML.

A model file has one of three forms: *authored* (blocks and sections), *flat* (every operator, as
:func:`save` writes it) or *python* (a callable that returns a module). Names are imported on first
use: a file that is only shown needs no families.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
