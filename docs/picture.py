"""Make the page that the documentation begins with: `make docs` runs this.

`docs/_generated/static/family.html` is the page of a family, with the submodels of a budget's slider.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import archgraph as ag

TARGET = Path(__file__).parent / "_generated" / "static" / "family.html"


def main() -> None:
    """Write the page of a family of residual networks, as FedFA's clients train them."""
    with resources.as_file(resources.files("archgraph") / "specs") as specs:
        family = ag.resolve(ag.load_family(specs / "families" / "fedfa_pre_resnet.yaml"))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    ag.view(family, TARGET, title="A residual network and its clients", budgets=True)


if __name__ == "__main__":
    main()
