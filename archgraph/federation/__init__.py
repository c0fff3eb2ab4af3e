"""What a federated method is made of: worlds, tasks, results, objectives, programs, strategies.

No loop lives here. An engine asks a :class:`Strategy` for tasks, lets clients run their programs,
and hands the results back. Every value is frozen and travels: a :class:`ServerState` is tensors and
plain values (safetensors + JSON), a :class:`Program` is a frozen dataclass that pickles.

The table in ``docs/methods.md`` shows how each published method maps onto these types, and what it
asks of them.

The names below are all that a strategy needs beside ``archgraph`` itself; they are imported on
first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
