"""The command line, whose commands parse arguments and call the library.

Every mistake gives one message on standard error and exit code 2 (`check` prints the mistakes of a
file below its name). `--debug` adds the traceback. Commands import large modules only when they
need them, so that `archgraph --help` is fast.
"""

# Importing these modules adds their commands, in the order of `archgraph --help`.
from archgraph.cli import model, comparing, rewriting, files, runs, weights  # isort: skip
from archgraph.cli.app import app as app


def main() -> None:
    """Run the command `archgraph`."""
    app()


__all__ = ["app", "comparing", "files", "main", "model", "rewriting", "runs", "weights"]
