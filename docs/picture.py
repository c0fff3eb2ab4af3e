"""Draw the picture of the README and the page of the front page: `make docs` runs this.

`docs/_static/network.svg` is written only where the picture would differ; `network.html` always.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    main()
