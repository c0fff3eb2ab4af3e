"""Format the reason of a failed call for a run's record."""

from __future__ import annotations

from archgraph.errors import RejectedUpdate

# Maximum number of characters of a reason in the record.
LONGEST = 1000


def reason(error: BaseException) -> str:
    """Format the reason why a client's work failed. The client may have written the text.

    Example:
        >>> reason(ValueError("no data")), reason(RejectedUpdate("too large", where="w"))
        ('ValueError: no data', 'w: too large')
    """
    try:
        text = str(error)[:LONGEST]
    except Exception as mute:
        text = f"its error cannot be printed ({type(mute).__name__})"
    text = printable(text)
    return text if isinstance(error, RejectedUpdate) else f"{type(error).__name__}: {text}"


def printable(text: str) -> str:
    """Shorten a text that a client may have written, and escape control characters.

    >>> len(printable("a" * 2000)), printable("a" + chr(27)).isprintable()
    (1000, True)
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[:LONGEST])
