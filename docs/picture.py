"""Draw the picture of the README: `make docs` runs this and writes `docs/_static/network.svg`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import archgraph as ag
from archgraph.display import coverage


def main() -> None:
    """Draw the demonstration's network with the share of clients that train each block."""
    with resources.as_file(resources.files("archgraph.demo")) as demo:
        family = ag.resolve(ag.load_family(demo / "network_family.yaml"))
    target = Path(__file__).parent / "_static" / "network.svg"
    ag.draw(family.graph, target, cover=coverage(family))


if __name__ == "__main__":
    main()
