"""Write the report of one or more runs, once or after each round."""

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

# Seconds between two checks of a run that is followed, and between two reloads of its page.
LOOK, RELOAD = 1.0, 10


def report(
    folder: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    path: str | os.PathLike[str] | None = None,
    *,
    viewer: Callable[[Log], str | None] | None = None,
    follow: bool = False,
) -> Path:
    """Write an HTML page about one or several runs, which need not be finished.

    The page shows settings, tables, learning curves and architectures. If there are several runs,
    the page compares them.

    Args:
        folder: A run folder, several run folders, or folders that contain run folders. Runs that
            differ only in the seed are drawn as one curve with a band.
        path: File to write. Default: `report.html` in the (first) run folder.
        viewer: Function that returns an HTML page of a run's architectures, which is embedded in
            the report. Default: uses :func:`archgraph.viewer.view`.
        follow: Update the page of a single run after each round, until the run is no longer in
            progress. Until then, the page reloads itself, and does not show architectures.

    Returns:
        The page's path.

    Raises:
        RunError: If the folder is not a run folder, the page cannot be written, or ``follow`` is
            set for several runs.
    """
    viewer = viewer or functools.partial(page_text, "models")
    folders = run_folders([folder] if isinstance(folder, str | os.PathLike) else folder)
    target = Path(path or folders[0] / "report.html")
    if follow and len(folders) > 1:
        raise RunError(
            "only one run at a time can be followed",
            where="follow",
            found=plural(len(folders), "run"),
            hint="pass one run folder",
        )
    if len(folders) > 1:
        return write(target, runs_page(comparison(folders, unfinished=True, tiers=True), viewer))
    if follow:
        # Ctrl-C ends following, not the run. The final page does not reload itself.
        with contextlib.suppress(KeyboardInterrupt):
            _follow(folders[0], target)
    log = read_run(folders[0])
    return write(target, page(log, viewer(log)))


def _follow(folder: Path, path: Path) -> None:
    """Update the page of a run after each round, until no process writes the run any more."""
    done = -1
    while goes_on(folder):
        log = read_run(folder)
        if len(log.rounds) != done:
            done = len(log.rounds)
            write(path, page(log, reload=RELOAD))
        time.sleep(LOOK)
