"""Run ``python -m archgraph``: the same as the command ``archgraph``."""

from archgraph.cli import main

if __name__ == "__main__":
    main()
