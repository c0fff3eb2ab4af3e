"""Set the random numbers of Python and NumPy, to detect results that depend on them.

A graph does not draw numbers from Python or NumPy. Both libraries use a Mersenne Twister, whose
state can be set so that it returns any numbers, for example those that change the side of a branch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

_WORDS = 624  # words of a state; each is one of the next numbers before tempering
_HIGHEST = 2**32 - 1
_STEP = 2**12  # difference of successive numbers: those of one state are close and distinct


def generators() -> tuple[object, ...]:
    """Return the states of both generators, for comparison."""
    name, words, *rest = np.random.get_state()  # noqa: NPY002  # forward may use it
    return random.getstate(), name, np.asarray(words).tobytes(), *rest


def other_draws(parts: int) -> Iterator[None]:
    """Set both generators to a series of states, and restore them in the end.

    The range of the numbers is divided into ``parts`` equal parts. In each state, the next numbers
    rise from the start of one part. In the last state, they fall from the end of the range.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # forward may use it
    starts = [part * (_HIGHEST // parts) for part in range(parts)]
    rising = [[start + _STEP * i for i in range(_WORDS)] for start in starts]
    try:
        for numbers in (*rising, [_HIGHEST - number for number in rising[0]]):
            words = [*map(_untempered, numbers)]
            random.setstate((3, (*words, 0), None))
            state = np.array(words, np.uint32)
            np.random.set_state(("MT19937", state, 0, 0, 0.0))  # noqa: NPY002  # forward may use it
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002  # forward may use it


def _untempered(number: int) -> int:
    """Return the state word from which the Mersenne Twister computes a number.

    Source: Matsumoto and Nishimura, *Mersenne Twister*, 1998, equations 2.2 to 2.5, inverted in
    reverse order.
    """
    number ^= number >> 18
    number ^= number << 15 & 0xEFC60000
    word = number
    for _ in range(4):  # each step finds seven more bits
        word = number ^ (word << 7 & 0x9D2C5680)
    number = word
    for _ in range(2):  # each step finds eleven more bits
        word = number ^ (word >> 11)
    return word
