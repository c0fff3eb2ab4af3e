"""A clock that is ahead: what forward computes from the time shows in a call at another time."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from types import ModuleType
from typing import Any

from archgraph.capture.places import is_users

_AHEAD = 36_061.61  # seconds: another hour, minute, second and fraction of one
_PAUSE = 0.02  # seconds, for clocks that are read in another way
_CLOCKS = tuple(
    name + unit
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
    for unit in ("", "_ns")
)
_SPELT = ("localtime", "gmtime", "ctime")


@contextlib.contextmanager
def later_clock() -> Iterator[None]:
    """Let the clocks of this thread go ahead, in the modules of users and in ``time``."""
    thread = threading.get_ident()
    clocks = [getattr(time, name) for name in _CLOCKS]
    moved = {id(clock): _moved(clock, thread) for clock in clocks}
    moved |= {id(getattr(time, name)): _spelt(getattr(time, name), thread) for name in _SPELT}
    moved |= {id(kind): _dates(kind, thread) for kind in (datetime.datetime, datetime.date)}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for module in [time, datetime, *_of_users()]:
        names = vars(module)
        replaced += ((names, key, v) for key, v in [*names.items()] if id(v) in moved)
    time.sleep(_PAUSE)
    try:
        for names, key, value in replaced:
            names[key] = moved[id(value)]
        yield
    finally:
        for names, key, value in replaced:
            names[key] = value


def clock_names(wanted: Set[str]) -> set[str]:
    """Of some names those under which a module of the user's has a clock."""
    clocks = {id(getattr(time, name)) for name in (*_CLOCKS, *_SPELT)}
    return {
        name
        for module in _of_users()
        for name in wanted & vars(module).keys()
        if id(vars(module)[name]) in clocks
    }


def _of_users() -> Iterator[ModuleType]:
    """Modules that are part of neither torch nor Python."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and is_users(file):
            yield module


def _moved(clock: Callable[[], float], thread: int) -> Callable[[], float]:
    """A clock that is ahead in one thread."""
    whole = clock.__name__.endswith("_ns")
    ahead = int(_AHEAD * 1e9) if whole else _AHEAD

    def moved() -> float:
        return clock() + (ahead if threading.get_ident() == thread else 0)

    return moved


def _spelt(function: Callable[[float], Any], thread: int) -> Callable[..., Any]:
    """A function of a time that is ahead in one thread where it is called without one."""
    clock = time.time

    def moved(seconds: float | None = None) -> Any:
        ahead = _AHEAD if threading.get_ident() == thread else 0
        return function(clock() + ahead if seconds is None else seconds)

    return moved


def _dates(kind: type[datetime.date], thread: int) -> Any:
    """A class of dates whose present is ahead in one thread."""
    day = datetime.timedelta(days=1, seconds=_AHEAD)

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, kind)

    # Dates and times as they are; only the present is another one.
    moved_kind = Kind("Moved", (kind,), {})

    def present(read: str) -> Any:
        def moved(*args: Any, **kwargs: Any) -> Any:
            now = getattr(kind, read)(*args, **kwargs)
            return now + day if threading.get_ident() == thread else now

        return staticmethod(moved)

    for read in ("now", "utcnow", "today"):
        if hasattr(kind, read):
            setattr(moved_kind, read, present(read))
    return moved_kind
