"""Make the pictures of README and documentation: `python docs/picture.py`, and with `--photos`.

`docs/_static/network.svg` is written only where the picture would differ; `network.html`, the page
of the front page, always. `--photos` also photographs pages in Chromium, and notes what they were
photographed from: a test fails when today's pages are others.
"""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import archgraph as ag
from archgraph.display import coverage, render
from archgraph.federation import Family

ROOT = Path(__file__).parents[1]
STATIC = ROOT / "docs" / "_static"
# For each screenshot: a model or family, the fragment of the page's address, and the window's size.
# Text of 13 pixels stays readable where a site shows the picture 830 pixels wide.
PHOTOS = {
    "client": ("archgraph/demo/network_family.yaml", "#as=client3", "1040,640"),
    "page": ("specs/models/resnet18.yaml", "", "1100,720"),
    "seeing": ("specs/families/digits_widths.yaml", "#g=0.1", "1100,720"),
}
# Digests of the pages that the screenshots show.
DIGESTS = STATIC / "photos.json"


def main() -> None:
    """Draw the demonstration's network with the clients that train each block, and its page."""
    ag.view(demonstration(), STATIC / "network.html")
    target, picture = STATIC / "network.svg", network()
    if not target.exists() or target.read_bytes() != picture:
        target.write_bytes(picture)


@functools.cache
def demonstration() -> Family:
    """Return the family of the demonstration."""
    with resources.as_file(resources.files("archgraph.demo")) as demo:
        return ag.resolve(ag.load_family(demo / "network_family.yaml"))


def network() -> bytes:
    """Return the picture of the demonstration's network, 4 inches wide."""
    family = demonstration()
    return render(ag.draw(family.graph, cover=coverage(family), title="", width="4in"))


def page(name: str) -> str:
    """Return a page for a screenshot."""
    file = ROOT / PHOTOS[name][0]
    clients = "family" in file.name or "families" in file.parts
    return ag.view(ag.resolve(ag.load_family(file)) if clients else ag.load(file))


def digests() -> dict[str, str]:
    """Return a digest of each page with a screenshot, including its scripts and styles."""
    return {name: hashlib.sha256(page(name).encode()).hexdigest() for name in PHOTOS}


def photos() -> None:
    """Take screenshots with 1.6 device pixels per CSS pixel, and record the pages' digests."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, address, size) in PHOTOS.items():
            file = Path(folder) / f"{name}.html"
            file.write_text(page(name))
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
            command += ["--hide-scrollbars", f"--window-size={size}", "--virtual-time-budget=6000"]
            command += ["--force-device-scale-factor=1.6"]
            command += [f"--screenshot={STATIC / name}.png", f"{file.as_uri()}{address}"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n")


if __name__ == "__main__":
    main()
    if "--photos" in sys.argv:
        photos()
