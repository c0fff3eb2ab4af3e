"""How many examples a law tries."""

from __future__ import annotations

from hypothesis import settings


def at_most(number: int) -> settings:
    """Return settings for so many examples, or for fewer where the profile asks for fewer."""
    return settings(max_examples=min(number, settings().max_examples))
