"""The page of a run or of several as a file, written once, or after each round of a run."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from archgraph.errors import RunError
from archgraph.files import write
from archgraph.notebook import page_text
from archgraph.record.folder import goes_on
from archgraph.reports.comparison import comparison, run_folders
from archgraph.reports.run_page import page
from archgraph.reports.runs import Log, read_run
from archgraph.reports.runs_page import runs_page
from archgraph.tables import plural

# Seconds between two looks at a run that is followed, and between two loads of its page.
LOOK, RELOAD = 1.0, 10


def report(
    folder: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    path: str | os.PathLike[str] | None = None,
    *,
    viewer: Callable[[Log], str | None] | None = None,
    follow: bool = False,
) -> Path:
    """Write a page about a run, finished or not: facts, tables, curves, architectures.

    Of several runs, too: their communication, shared settings, and each architecture once.

    Args:
        folder: The run folder, or several of them, or folders that hold some: then runs that
            differ in the seed only are one curve with a band.
        path: Where to write. Default: `report.html` in the run folder, the first of several.
        viewer: Makes the page that shows a run's architectures, to stand inside this one.
            Default: that of :func:`archgraph.viewer.view`.
        follow: Write the page of one run after each of its rounds, until no process writes the
            run; until then the page reloads itself, and shows no architectures.

    Returns:
        The page's path.

    Raises:
        RunError: If the folder is not a run folder, the page cannot be written, or several runs
            are to be followed.
    """
    viewer = viewer or functools.partial(page_text, "models")
    folders = run_folders([folder] if isinstance(folder, str | os.PathLike) else folder)
    target = Path(path or folders[0] / "report.html")
    if follow and len(folders) > 1:
        raise RunError(
            "one run at a time is followed",
            where="follow",
            found=plural(len(folders), "run"),
            hint="name one run folder",
        )
    if len(folders) > 1:
        return write(target, runs_page(comparison(folders, unfinished=True, tiers=True), viewer))
    if follow:
        # Ctrl-C ends this, not the run. A page that is not written any more does not reload itself.
        with contextlib.suppress(KeyboardInterrupt):
            _follow(folders[0], target)
    log = read_run(folders[0])
    return write(target, page(log, viewer(log)))


def _follow(folder: Path, path: Path) -> None:
    """Write the page of a run after each of its rounds, until no process writes the run."""
    done = -1
    while goes_on(folder):
        log = read_run(folder)
        if len(log.rounds) != done:
            done = len(log.rounds)
            write(path, page(log, reload=RELOAD))
        time.sleep(LOOK)
