"""The command line: arguments only, each command is one call into the library.

Every mistake ends in one message on standard error and exit code 2 (`check` prints what is wrong
with a file below its name); `--debug` adds where it was raised. Nothing heavy is imported before a
command needs it: `archgraph --help` answers at once.
"""

# Each of these modules adds its commands to the application, in the order of `archgraph --help`.
from archgraph.cli import model, comparing, rewriting, files, runs, weights  # isort: skip
from archgraph.cli.app import app as app


def main() -> None:
    """Run the command `archgraph`."""
    app()


__all__ = ["app", "comparing", "files", "main", "model", "rewriting", "runs", "weights"]
