"""How many examples a law tries."""

from __future__ import annotations

from hypothesis import settings

USUAL = 50  # examples of the profile `ci`


def at_most(number: int) -> settings:
    """Return settings for so many examples: fewer with the profile `quick`, more with `full`."""
    profile = settings().max_examples
    if profile > USUAL:
        return settings(max_examples=number * profile // USUAL)
    return settings(max_examples=min(number, profile))
