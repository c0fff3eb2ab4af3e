"""What a client has from earlier rounds, and its own randomness."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archgraph.states import State


@dataclass(frozen=True, eq=False)
class KeptByClient:
    """What a client kept from earlier rounds.

    Attributes:
        state: Entries of its model that never leave it (``Task.kept``).
        keep: What its program keeps beside (``Outcome.keep``).

    Example:
        >>> kept = KeptByClient({"bn.running_mean": torch.ones(2)}, {"momentum": torch.zeros(1)})
        >>> sorted(kept.flat())
        ['keep/momentum', 'state/bn.running_mean']
        >>> sorted(KeptByClient.from_flat(kept.flat()).state)
        ['bn.running_mean']
    """

    state: State = field(default_factory=dict)
    keep: State = field(default_factory=dict)

    def over(self, sent: State, names: frozenset[str] | None = None) -> dict[str, Tensor]:
        """A state that was sent, overlaid with what was kept of it (of some entries, if named).

        An entry of another shape stays as it was sent: the client now runs another architecture.
        """
        result = dict(sent)
        for name, tensor in self.state.items():
            wanted = name in sent if names is None else name in names
            if wanted and (name not in sent or sent[name].shape == tensor.shape):
                result[name] = tensor
        return result

    def flat(self) -> dict[str, Tensor]:
        """All tensors under one name each, as a checkpoint holds them."""
        return {f"state/{k}": v for k, v in self.state.items()} | {
            f"keep/{k}": v for k, v in self.keep.items()
        }

    @classmethod
    def from_flat(cls, tensors: State) -> KeptByClient:
        """Inverse of :meth:`flat`."""
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "keep": {}}
        for name, tensor in tensors.items():
            group, _, inner = name.partition("/")
            parts[group][inner] = tensor
        return cls(**parts)


# What a program can change for the whole process: how it is read, and how it is set.
_GLOBALS: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
]


@contextlib.contextmanager
def isolated(generator: torch.Generator, device: str = "cpu") -> Iterator[None]:
    """Seed the process's generators (dropout) from a client's; restore all global state afterwards.

    That is the generators of torch, NumPy and Python, grad mode, default dtype, threads, and
    deterministic mode.

    Example:
        >>> with isolated(torch.Generator()):
        ...     torch.set_default_dtype(torch.float64)
        >>> torch.get_default_dtype()
        torch.float32
    """
    where, seed = torch.device(device), generator.initial_seed()
    devices = [] if where.type == "cpu" else [where.index or 0]
    before = [read() for read, _ in _GLOBALS]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # programs may use it
    with torch.random.fork_rng(devices, device_type="cuda" if not devices else where.type):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  # as above
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # as above
            for (read, change), value in zip(_GLOBALS, before, strict=True):
                if read() != value:
                    change(value)
