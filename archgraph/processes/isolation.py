"""Let each client begin with the same state of the process, whatever ran before."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from numpy.random import mtrand

# Bound here, since a program may replace torch's attributes.
from torch import get_num_threads, set_num_threads


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, since the last bits of results depend on the number of threads.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    threads = get_num_threads()
    set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(threads)


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed PyTorch's random generators for the CPU and a device.

    ``torch.manual_seed`` would seed all devices. Without an accelerator, it records a stack trace,
    which takes 5 % of a small client's time.

    Example:
        >>> seed_torch(0, torch.device("cpu"))
        >>> torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
        True
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.manual_seed(seed)


# One generator state per nesting level of isolation.
_SPARE: list[np.random.MT19937] = []


@contextlib.contextmanager
def isolated(generator: torch.Generator, device: str = "cpu") -> Iterator[None]:
    """Seed the global random generators from a client's generator, and restore them afterwards.

    A program begins with one thread and with gradients enabled, even if the strategy has disabled
    them. Gradient mode, default dtype and number of threads are restored, too, so that results do
    not depend on what ran before in the process. Programs must not change other settings.

    Example:
        >>> with isolated(torch.Generator()):
        ...     torch.set_default_dtype(torch.float64)
        >>> torch.get_default_dtype()
        torch.float32
    """
    where, seed = torch.device(device), generator.initial_seed()
    devices = [] if where.type == "cpu" else [where.index or 0]
    python, dtype = random.getstate(), torch.get_default_dtype()
    # Programs may use NumPy's generator. It is seeded only, since restoring its state is slow.
    numpy, before = np.random.get_state(legacy=False), mtrand.get_bit_generator()  # noqa: NPY002
    bits = _SPARE.pop() if _SPARE else np.random.MT19937()
    mtrand.set_bit_generator(bits)
    with torch.random.fork_rng(devices, device_type="cuda" if not devices else where.type):
        seed_torch(seed, where)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  # as above
        try:
            # On exit, both modes are restored, even if a program has left them nested.
            with torch.inference_mode(False), one_thread():
                yield
        finally:
            random.setstate(python)
            mtrand.set_bit_generator(before)
            # A pending normal number, which is not part of the generator's state.
            if numpy["has_gauss"]:
                np.random.set_state(numpy)  # noqa: NPY002  # as above
            _SPARE.append(bits)
            torch.set_default_dtype(dtype)
