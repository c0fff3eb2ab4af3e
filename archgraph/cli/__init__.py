"""The command line: parses arguments; each command is one call into the library.

Every mistake gives one message on standard error and exit code 2 (`check` prints a file's mistake
below its name); `--debug` adds the traceback. Heavy modules are only imported by the commands that
need them, so that `archgraph --help` is fast.
"""

# Importing these modules adds their commands, in the order of `archgraph --help`.
from archgraph.cli import model, comparing, rewriting, files, runs, weights  # isort: skip
from archgraph.cli.app import app as app


def main() -> None:
    """Run the command `archgraph`."""
    app()


__all__ = ["app", "comparing", "files", "main", "model", "rewriting", "runs", "weights"]
