"""A browser for all tests of pages, and pages to open in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.capture.trace import trace
from archgraph.federation.family import Family
from archgraph.federation.world import Tier
from archgraph.graph.ir import ArchGraph
from archgraph.record.changes import append, parameters
from archgraph.rewrites.shorten import shorten
from archgraph.rewrites.take import take
from archgraph.states import Rewritten
from archgraph.viewer import view
from tests.reports.test_follow import CONFIG, line

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Net(nn.Module):
    """A stem, three equal blocks, attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@pytest.fixture(scope="session")
def net() -> ArchGraph:
    graph = trace(Net(), torch.zeros(1, 5, 6)).graph
    return graph.replace(name="net")


@pytest.fixture(scope="session")
def family(net: ArchGraph) -> Family:
    """Two wide clients, one narrow one, and one without the last block."""
    narrow, short = take(net, {"channels": 0.5}), shorten(net, {"layers": 2})
    whole = Rewritten.identity(net)
    kinds = {"full": (whole, 2), "narrow": (narrow, 1), "short": (short, 1)}
    tiers = [Tier(k, one.graph, one.transfer, count=n) for k, (one, n) in kinds.items()]
    return Family(net, None, tuple(tiers), "pets")


@pytest.fixture
def run_folder(net: ArchGraph, tmp_path: Path) -> Path:
    """A run of three rounds: updates shrink, and the first one reaches half of each parameter."""
    folder = tmp_path / "run"
    for name in ("global", "whole"):
        ag.save(net, folder / "models" / f"{name}.yaml")
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "metrics.jsonl").write_text("".join(line(n, 0.25 * n) for n in (1, 2, 3)))
    for number, shares in enumerate((0.5, 1.0, None), start=1):
        many = len(parameters(net))
        norms = [float(i % 7) / 10**number for i in range(many)]
        reached = (
            {} if shares is None else {"coverage": [shares if i % 3 else 0.0 for i in range(many)]}
        )
        append(folder, {"round": number, "norm": norms, **reached})
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for the whole session."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium on this machine")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page of what is shown; at the end it must have said and requested nothing."""
    noise: list[str] = []
    contexts = []

    def open_page(
        shown: Any, *, hash: str = "", width: int = 1400, dark: bool = False, **options: Any
    ) -> Any:
        path = tmp_path / "page.html"
        view(shown, path, **options)
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda sent: noise.append(sent.url))
        page.goto(f"{path.as_uri()}{hash}")
        page.wait_for_selector("body[data-ready]")
        assert noise[:1] == [f"{path.as_uri()}"]  # the file itself
        noise.clear()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert noise == []
