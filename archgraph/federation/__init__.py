"""What a federated method is made of: worlds, tasks, results, objectives, programs, strategies.

No loop lives here. An engine asks a :class:`Strategy` for tasks, lets clients run their programs,
and hands the results back. Every value is frozen and travels: a :class:`ServerState` is tensors and
plain values (safetensors + JSON), a :class:`Program` is a frozen dataclass that pickles.

How each published method maps onto these types is tabled in ``docs/methods.md``. That table asked
for more than a single model per task, hence:

- ``World.tiers``: the architectures that are offered, apart from who runs which (dynamic rates,
  architecture search, a new submodel every round);
- ``Task.kept``: entries of the state that stay with the client. The engine lays what a client kept
  over the state it is sent and takes the same entries out of what it returns (personal layers,
  local statistics, adapters on a frozen base, no communication at all);
- ``Task.others``, ``Outcome.others``, ``Result.others``: further models of the same client (large
  and small together), each validated like the first;
- ``Task.extras``/``Result.extras``: named tensors that are not weights (features, logits,
  statistics per width), and example ids in every minibatch, by which feature stores are keyed;
- ``Strategy.survey``/``surveyed``: tasks before the first round (architecture search);
- ``Evaluated.predict``, ``.kept``, ``.states``, ``.program``: exits that vote, personal entries,
  versions of a client's own, what it does before a test;
- ``round`` wherever a schedule may depend on it.

The names below are all that a strategy needs beside ``archgraph`` itself; they are imported on
first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
