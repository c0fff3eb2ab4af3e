"""The command line: only arguments, each command is one call into the library.

Every mistake ends in one message on standard error and exit code 2 (`check` prints a file's mistake
below its name); `--debug` adds where it was raised. Heavy imports wait until a command needs them:
`archgraph --help` answers at once.
"""

# Each of these modules adds its commands to the application, in the order of `archgraph --help`.
from archgraph.cli import model, comparing, rewriting, files, runs, weights  # isort: skip
from archgraph.cli.app import app as app


def main() -> None:
    """Run the command `archgraph`."""
    app()


__all__ = ["app", "comparing", "files", "main", "model", "rewriting", "runs", "weights"]
