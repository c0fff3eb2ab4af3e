"""A run while it goes on: a page from a server on this machine, which shows that run alone.

The pages are written into a temporary folder whenever they are asked for and the run has changed,
and served from there by the standard library. The server is bound to the loopback address, answers
only requests that name it as their host (a page elsewhere whose name leads here gets nothing), and
reads the run folder without changing it. The viewer stands in a frame of its own, with its own
policy: it is loaded once, and gets what further rounds changed.
"""

from __future__ import annotations

import functools
import html
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from archgraph.errors import ArchGraphError, RunError
from archgraph.fields import GLOBAL
from archgraph.files import write
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json
from archgraph.record.folder import goes_on
from archgraph.reports.page import (
    chart_script,
    first_chart,
    html_page,
    live_tables,
    opening,
    result,
    script_hash,
)
from archgraph.reports.runs import Log, read_run, seconds

LOOPBACK = "127.0.0.1"
INDEX, VIEWER = "index.html", "viewer.html"
# How often the page asks for a new round, in milliseconds.
EVERY = 2000
# Exchanges what changes when there is something new; what is open or closed stays so.
SCRIPT = f"""
let seen;
async function look() {{
  try {{
    const now = await (await fetch("/state.txt")).text();
    if (seen !== undefined && now !== seen) {{
      const text = await (await fetch("/")).text();
      const parts = () => [...document.querySelectorAll("details > summary")];
      const was = new Map(parts().map(s => [s.textContent, s.parentElement.open]));
      const next = new DOMParser().parseFromString(text, "text/html").querySelectorAll(".live");
      document.querySelectorAll(".live").forEach((part, i) => part.replaceWith(next[i]));
      window.archgraphCharts(document);
      for (const s of parts())
        s.parentElement.open = was.get(s.textContent) ?? s.parentElement.open;
    }}
    seen = now;
    const viewer = document.querySelector("iframe.viewer")?.contentWindow.archgraph;
    if (viewer && viewer.seen !== now) {{
      const rounds = await fetch("/rounds.json");
      if (rounds.ok) viewer.app.renew(await rounds.json());
      viewer.seen = now;
    }}
    document.body.classList.remove("gone");
  }} catch {{ document.body.classList.add("gone"); }}
  setTimeout(look, {EVERY});
}}
look();
"""
LOOK = """
progress { width: 100%; height: .7rem; margin-bottom: 1rem; }
.lost { display: none; } .gone .lost { display: block; font-weight: 600; }
"""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    f"frame-src 'self'; script-src {script_hash(chart_script())} {script_hash(SCRIPT)}; "
    "base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RunServer(ThreadingHTTPServer):
    """Serves the page of one run to this machine.

    Args:
        folder: The run folder.
        port: Where to listen; 0: any free port.
        viewer: Makes the page that shows a run's architectures; None: they are not shown.
        rounds: What that page is told of the rounds.

    Raises:
        RunError: If the folder is not a run folder, or the port cannot be used.
    """

    daemon_threads = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        port: int = 0,
        *,
        viewer: Callable[[Log], str] | None = None,
        rounds: Callable[[Log], Json] = lambda log: None,
    ) -> None:
        self.folder = read_run(folder).folder  # refuses what is not a run
        self.pages: dict[str, Callable[[], str]] = {
            INDEX: lambda: watch_page(read_run(self.folder), framed=viewer is not None),
            "state.txt": self.state,
        }
        if viewer is not None:
            self.pages[VIEWER] = lambda: viewer(read_run(self.folder))
            self.pages["rounds.json"] = lambda: json.dumps(rounds(read_run(self.folder)))
        self._written = dict.fromkeys(self.pages, "")
        # One each: the viewer may take seconds to draw.
        self._writing = {name: threading.Lock() for name in self.pages}
        self._site = tempfile.TemporaryDirectory()
        try:
            super().__init__(
                (LOOPBACK, port), functools.partial(_Request, directory=self._site.name)
            )
        except (OSError, OverflowError) as error:
            hint = "--port names another one"
            raise RunError("cannot listen", where=f"port {port}", found=error, hint=hint) from error

    def server_close(self) -> None:
        """Stop listening, and remove the pages."""
        super().server_close()
        self._site.cleanup()

    @property
    def address(self) -> str:
        """The URL at which a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which a request may call this server."""
        return frozenset(f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost"))

    def state(self) -> str:
        """Return a text that changes when the run has written a line, stops or is resumed."""
        lines = (self.folder / "metrics.jsonl").stat()
        return f"{lines.st_size} {lines.st_mtime_ns} {goes_on(self.folder)}"

    def write(self, name: str) -> None:
        """Write a page as the run is now, unless it was written in this state."""
        with self._writing[name]:
            # Before the page is made: a line that is written meanwhile is shown the next time.
            state = self.state()
            if self._written[name] != state:
                write(Path(self._site.name) / name, self.pages[name]())
                self._written[name] = state


class _Request(SimpleHTTPRequestHandler):
    """A request of a browser for one of the pages."""

    server: RunServer
    server_version, sys_version = "archgraph", ""

    def send_head(self) -> BinaryIO | None:
        """Write the page that is asked for and send its head; anything else gets an error."""
        name = self.path.removeprefix("/") or INDEX
        status, reason = HTTPStatus.OK, ""
        # A page elsewhere may resolve its own name to this machine (DNS rebinding), but cannot
        # choose the Host that a browser sends; twice the header is refused, too.
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            status, reason = HTTPStatus.FORBIDDEN, "not the name of this server"
        elif name not in self.server.pages:
            status, reason = HTTPStatus.NOT_FOUND, "nothing here"
        else:
            try:
                self.server.write(name)
            except (ArchGraphError, OSError) as error:
                status, reason = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        if reason:
            self.send_error(status, explain=reason)
            return None
        return super().send_head()

    def end_headers(self) -> None:
        """Say what a page may load; the viewer says itself which script is its own."""
        policy = "frame-ancestors 'self'" if self.path == f"/{VIEWER}" else POLICY
        for name, value in {"Content-Security-Policy": policy, **HEADERS}.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the user's."""


def watch_page(log: Log, *, framed: bool = False) -> str:
    """Return the page of a live run: progress, curves, and what is recorded of rounds and clients.

    Args:
        log: The run.
        framed: Whether the viewer stands beside the curves, outside of what is exchanged.
    """
    known = framed and isinstance(log.graphs.get(GLOBAL), ArchGraph)
    frame = f'<iframe class="viewer" title="Architectures" src="/{VIEWER}"></iframe>'
    body = [
        _live((*_progress(log), *result(log))),
        opening(_live([first_chart(log)]), frame if known else ""),
        _live(live_tables(log)),
    ]
    title, scripts = f"{log.name}: {_done(log)}", (chart_script(), SCRIPT)
    return html_page(title, body, scripts=scripts, head=f"<style>{LOOK}</style>")


def _live(parts: Iterable[str]) -> str:
    """Return a part of the page that is exchanged when the run has written something."""
    return f'<div class="live">{"".join(parts)}</div>'


def _progress(log: Log) -> Iterator[str]:
    yield '<p class="lost">The server has ended: this is what it showed last.</p>'
    rest = _left(log) if goes_on(log.folder) else _still(log)
    yield f"<p>{html.escape(_done(log) + rest)}</p>"
    yield (f'<progress aria-label="rounds" max="{_planned(log)}" value="{log.done}"></progress>')


def _planned(log: Log) -> int:
    return log.experiment.rounds if log.experiment else log.done


def _done(log: Log) -> str:
    return f"round {log.done} of {_planned(log)}"


def _still(log: Log) -> str:
    """Return what to say of a run that no process writes."""
    over = log.done >= _planned(log)
    return "" if over else ", not running now: archgraph run … --resume goes on"


def _left(log: Log) -> str:
    """Estimate how long it will take, from the rounds so far."""
    rounds = _planned(log) - log.done
    spent = sum(seconds(log.figures).values())
    if not log.done or rounds <= 0 or not spent:
        return ""
    left = spent / log.done * rounds
    return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"
