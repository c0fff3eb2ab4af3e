"""How large a page is, and how fast a browser shows it: networks of 5,000 and 50,000 operators.

The larger one folds to one block. Times are taken in Chromium: from opening the file until its
parts can be clicked, and from a click until a container is open. Without Chromium only sizes and
Python's own time are printed.

With ``--netron FILE.onnx …`` the same files are opened in Netron (`pip install netron`) and as
pages of archgraph, in the same browser: milliseconds until a node can be clicked, and how many
nodes are drawn then. Netron reads the file each time; a page is written once, before.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import archgraph as ag
from archgraph.graph.ir import BATCH, ArchGraph, Leaf, Node, Param, Ref, TensorType, Value
from archgraph.viewer import view

REPEATS = 5
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
# Operators of a block of the made network.
EACH = 5


def made(blocks: int, unlike: bool = False) -> ArchGraph:
    """A chain of residual blocks of five operators each; ``unlike``: no two neighbours are equal.

    Capturing a network of this size takes minutes, and its time is not what is measured.
    """
    params: list[Param] = []
    nodes = [Node("x", "input", type=TensorType((BATCH, 64), "float32"))]

    def leaf(name: str, *shape: int) -> Leaf:
        params.append(Param(name, TensorType(shape, "float32")))
        return Leaf(name)

    def add(name: str, op: str, scope: str, size: int = 64, **args: Value) -> Ref:
        kind = TensorType((BATCH, size), "float32")
        nodes.append(Node(name, op, tuple(args.items()), kind, scope))
        return Ref(name)

    y = Ref("x")
    for i in range(blocks):
        here, wide, act = f"layers.{i}", 128, "gelu"
        if unlike:
            act = ("gelu", "relu", "tanh", "sigmoid")[(i * i + i // 3) % 4]
        weight, bias = leaf(f"{here}.norm.weight", 64), leaf(f"{here}.norm.bias", 64)
        z = add(
            f"layer_norm_{i}",
            "aten.layer_norm",
            f"{here}.norm",
            input=y,
            normalized_shape=(64,),
            weight=weight,
            bias=bias,
        )
        first = leaf(f"{here}.fc1.weight", wide, 64)
        z = add(f"linear_{2 * i}", "aten.linear", f"{here}.fc1", wide, input=z, weight=first)
        z = add(f"{act}_{i}", f"aten.{act}", here, wide, self=z)
        second = leaf(f"{here}.fc2.weight", 64, wide)
        z = add(f"linear_{2 * i + 1}", "aten.linear", f"{here}.fc2", input=z, weight=second)
        y = add(f"add_{i}", "aten.add.Tensor", here, self=y, other=z)
    return ArchGraph((("x", Ref("x")),), tuple(params), tuple(nodes), y, name="made")


def in_chromium(look: Callable[[Any], None], repeats: int = REPEATS) -> None:
    """Show a new tab so many times as is measured."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        for _ in range(repeats):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            tab.set_default_timeout(120_000)
            look(tab)
            tab.close()
        browser.close()


def browsed(page: Path) -> dict[str, float]:
    """Milliseconds until the page can be used, and until a container is open, in Chromium."""
    ready, opening = [], []

    def look(tab: Any) -> None:
        tab.goto(page.as_uri())
        tab.wait_for_selector("body[data-ready]")
        ready.append(float(tab.evaluate("document.body.dataset.ready")))
        opening.extend(tab.evaluate(CLICKS))

    in_chromium(look)
    return {"ready": statistics.median(ready), "opening": max(opening)}


# Writes the moment of the first frame with what can be clicked, and how much of it there is.
FIRST = """(() => {
  const look = () => {
    const found = document.querySelectorAll("SELECTOR").length;
    if (found) requestAnimationFrame(() => {
      document.documentElement.dataset.first = `${performance.now()} ${found}`;
    });
    else requestAnimationFrame(look);
  };
  look();
})()"""


def first_seen(address: str, selector: str) -> tuple[float, int]:
    """Milliseconds until something can be clicked, and how much of it there is, in Chromium."""
    times: list[float] = []
    counts: list[int] = []

    def look(tab: Any) -> None:
        if address.startswith("http"):  # else Netron waits for an answer about cookies
            names = ("consent", "_ga")
            tab.context.add_cookies([{"name": n, "value": "1", "url": address} for n in names])
        tab.route(lambda url: not url.startswith(address), lambda route: route.abort())
        tab.add_init_script(FIRST.replace("SELECTOR", selector))
        tab.goto(address, wait_until="commit")
        # Netron replaces `eval`, so nothing may be evaluated in its page.
        tab.wait_for_selector("html[data-first]", state="attached")
        moment, found = tab.locator("html").get_attribute("data-first").split()
        times.append(float(moment))
        counts.append(int(found))

    in_chromium(look)
    return statistics.median(times), counts[-1]


def beside_netron(file: Path) -> Sequence[Any]:
    """Operators of a file; of Netron and of archgraph the milliseconds and what is drawn."""
    netron: Any = importlib.import_module("netron")  # no requirement of the project

    began = time.perf_counter()
    graph = ag.load(file).graph
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        view(graph, page)
        seconds = time.perf_counter() - began
        ours = first_seen(page.as_uri(), "body[data-ready] g.item[data-id]")
    host, port = netron.start(str(file), ("127.0.0.1", 0), browse=False)
    try:
        theirs = first_seen(f"http://{host}:{port}/", "body.default g.node")
    finally:
        netron.stop((host, port))
    return file.stem, len(graph.nodes), *map(round, theirs), *map(round, ours), round(seconds, 1)


# Close all, then open what is closed, one after the other; style and layout are part of the time.
CLICKS = """() => {
  document.getElementById("less").click();
  const times = [];
  for (let i = 0; i < 12; i++) {
    const shut = document.querySelector("g.item[aria-expanded='false'] > .toggle");
    if (!shut) break;
    const began = performance.now();
    shut.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    document.querySelector("g.world").getBoundingClientRect();
    times.push(performance.now() - began);
  }
  return times;
}"""


def measured(name: str, graph: ArchGraph) -> Sequence[Any]:
    """Name, operators, seconds in Python, kilobytes, milliseconds until ready and of opening."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        view(graph, page)
        seconds, size = time.perf_counter() - began, page.stat().st_size
        times = browsed(page) if shutil.which("chromium") else {"ready": "–", "opening": "–"}
    return name, len(graph.nodes), round(seconds, 1), size // 1000, *times.values()


def compared(files: Sequence[Path]) -> None:
    """Print a row for each file."""
    for name, missing in (
        ("netron", importlib.util.find_spec("netron") is None),
        ("chromium", not (shutil.which("chromium") or shutil.which("chromium-browser"))),
    ):
        if missing:
            print(f"skipped: {name} is not installed")
            return
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        "file, operators, Netron: ms, nodes drawn, archgraph: ms, boxes drawn, s in Python before"
    )
    for file in files:
        print(*beside_netron(file), sep=", ", flush=True)


def main() -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_view", description=__doc__)
    parser.add_argument("--netron", type=Path, nargs="+", metavar="FILE.onnx", default=())
    if files := parser.parse_args().netron:
        compared(files)
        return
    print("aims: 5,000 operators below 1,000 kB, ready in 1,000 ms; 50,000 folded in 2,000 ms;")
    print("a container opens in 100 ms")
    print("network, operators, s in Python, kB, ms until ready, ms of the slowest opening")
    for name, graph in (
        ("5,000, all unlike", made(5_000 // EACH, unlike=True)),
        ("5,000, folded", made(5_000 // EACH)),
        ("50,000, folded", made(50_000 // EACH)),
    ):
        print(*measured(name, graph), sep=", ", flush=True)


if __name__ == "__main__":
    main()
