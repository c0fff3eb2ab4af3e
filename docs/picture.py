"""Draw the picture of the README and the page of the front page: `make docs` runs this.

`docs/_static/network.svg` is written only where the picture would differ; `network.html` always.
`python docs/picture.py --photos` photographs the pages that `seeing.md` shows, in Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import archgraph as ag
from archgraph.display import coverage, render


def main() -> None:
    """Draw the demonstration's network with the clients that train each block, and its page."""
    with resources.as_file(resources.files("archgraph.demo")) as demo:
        family = ag.resolve(ag.load_family(demo / "network_family.yaml"))
    target = Path(__file__).parent / "_static" / "network.svg"
    ag.view(family, target.with_suffix(".html"))
    picture = render(ag.draw(family.graph, cover=coverage(family)))
    if not target.exists() or target.read_bytes() != picture:
        target.write_bytes(picture)


# The pages of `seeing.md`: a model or family, and what its address adds.
PHOTOS = {
    "page": ("specs/models/resnet18.yaml", ""),
    "seeing": ("specs/families/digits_widths.yaml", "#g=0.1.2"),
}


def photos() -> None:
    """Photograph pages as a window of 1440 × 860 pixels shows them."""
    root = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, address) in PHOTOS.items():
            page = Path(folder) / f"{name}.html"
            subject = root.parent / file
            ag.view(
                ag.resolve(ag.load_family(subject)) if "families" in file else ag.load(subject),
                page,
            )
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
            command += ["--hide-scrollbars", "--window-size=1440,860", "--virtual-time-budget=6000"]
            command += [f"--screenshot={root / '_static' / name}.png", f"{page.as_uri()}{address}"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    photos() if "--photos" in sys.argv else main()
