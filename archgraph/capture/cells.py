"""Places of single values inside of what forward changes, and whether they moved over a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archgraph.capture.counting import Asked, counted, growing, plain
from archgraph.capture.held import Held
from archgraph.capture.prints import CONTAINERS, base, contents, essence, fingerprint, opaque
from archgraph.capture.spaces import Space

_FIXED = (str, bytes, tuple)  # containers that are replaced when they grow


@dataclass(frozen=True)
class HeldCell:
    """A place that holds a value."""

    read: Callable[[], Any]
    write: Callable[[Any], None]

    def inside(self) -> Iterator[HeldCell]:
        """This place and those inside of what it holds, each container once."""
        waiting, seen = [self], set()
        while waiting:
            cell = waiting.pop()
            yield cell
            value = cell.read()
            if not isinstance(value, CONTAINERS) or id(value) in seen:
                continue
            seen.add(id(value))
            kind = base(value)
            if issubclass(kind, dict):
                waiting += [_item(cell, kind, key) for key in kind.__iter__(value)]
            elif hasattr(kind, "__getitem__"):
                waiting += [_item(cell, kind, index) for index in range(kind.__len__(value))]


def _item(holder: HeldCell, kind: Any, key: Any) -> HeldCell:
    """The place of an item; that of a tuple stays as it is."""

    def write(value: Any) -> None:
        if hasattr(kind, "__setitem__"):
            kind.__setitem__(holder.read(), key, value)

    return HeldCell(lambda: kind.__getitem__(holder.read(), key), write)


def cells(kept: Held, changed: Mapping[str, str]) -> Iterator[HeldCell]:
    """The places of what forward changes."""
    for space in kept.spaces:
        for key in space.read():
            if space.name(key) in changed:
                yield HeldCell(
                    functools.partial(_value, space, key), functools.partial(space.write, key)
                )


def _value(space: Space, key: str) -> Any:
    return space.read().get(key)


class Trial:
    """A place over one call, with a value that notes what it is asked.

    Attributes:
        cell: The place.
        start: Its value before the call.
        asked: What forward asked the value.
        step: How far a number has moved.
    """

    def __init__(self, cell: HeldCell) -> None:
        self.cell, self.start, self.asked = cell, cell.read(), Asked()
        self.step: float = 0
        self._before = essence(self.start)
        self._print = fingerprint(self.start) if opaque(self.start) else None
        cell.write(growing(counted(self.start, self.asked), self.asked))
        self._wrapped = cell.read() is not self.start
        self._size = _size(cell.read())
        self.asked.length = False

    def acts(self, asks: bool) -> bool:
        """Whether the value has changed in a way that can act at a later call; notes the step.

        ``asks``: whether the code asks for lengths at all. Nothing tells how much of an iterator, a
        generator or an array is read: one that each call changes counts as one that acts.
        """
        start, now = self.start, plain(self.cell.read())
        if type(start) in (int, float) and isinstance(now, (int, float)):
            self.step = now - start
            return bool(self.step) and self.asked.otherwise
        if self._print is not None and fingerprint(now) != self._print:
            return True
        if self._size != _size(now):
            read = asks if isinstance(start, _FIXED) else self.asked.length or not self._wrapped
            return read
        return now is not start and not self._wrapped and essence(now) != self._before


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return len(contents(value)) if isinstance(value, CONTAINERS) else 0
