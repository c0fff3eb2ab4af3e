"""Flower's deployment: a server and its nodes, each on a machine of its own.

Both read the experiment from the app that Flower brings to them (:mod:`.starter` writes it). The
server's run configuration and a node's own configuration say what differs between machines.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.flower.client import PARTITION, client_app
from archgraph.flower.server import JOIN, Nodes
from archgraph.language import load_experiment
from archgraph.plain import Json, json_safe
from archgraph.record.folder import identity, resumable


def deployed_server(file: Path) -> ServerApp:
    """Return the ServerApp of a resolved experiment.

    The run's configuration says ``out`` (run folder), ``resume`` (go on with the run there),
    ``private`` (who holds what clients keep: ``node`` or ``server``), ``join`` (seconds to wait
    for nodes at the start), ``data`` (folder of the data), ``device`` (instead of the experiment's)
    and ``python`` (consent to run the code that the experiment names).

    Args:
        file: The experiment, beside the module of the app.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, file, context.run_config)

    return app


def serve(grid: Grid, file: Path, asked: Mapping[str, Json]) -> None:
    """Run the experiment of a file on the nodes of a grid.

    Raises:
        ArchGraphError: As :func:`archgraph.engine.run`.
    """
    holder = asked.get("private", "node")
    if holder not in ("node", "server"):
        raise RunError("unknown holder", where="private", found=holder, expected="node or server")
    experiment, out = _prepared(file, asked), Path(str(asked["out"]))
    nodes = Nodes.of(grid, experiment)
    nodes.holder, nodes.join = holder, float(asked.get("join", JOIN))
    resume = bool(asked.get("resume", False)) and resumable(out)
    execute(experiment, elsewhere=nodes, out=out, resume=resume, name=out.name)


def deployed_client(file: Path) -> ClientApp:
    """Return the ClientApp of a resolved experiment.

    A node's configuration says ``partition-id`` (which client it is), and may say ``data``,
    ``device`` and ``python`` as the server's does, and ``keep``: the folder in which it holds what
    the client keeps. Without one, that is lost with the node's process, and where a run is resumed.

    Args:
        file: The experiment, beside the module of the app.
    """
    return client_app(lambda context: _prepared(file, context.node_config), _kept)


def _kept(context: Context, experiment: Experiment) -> Path | None:
    """Return the file for what a client keeps, one per client and experiment.

    None if the node's configuration has no ``keep``.
    """
    asked = context.node_config
    if not asked.get("keep"):
        return None
    # As the server tells run folders apart: a prolonged run goes on with what its nodes hold.
    name = f"{identity(json_safe(experiment.facts))[:16]}-{asked[PARTITION]}.safetensors"
    return Path(str(asked["keep"])) / name


def _prepared(file: Path, asked: Mapping[str, Json]) -> Experiment:
    texts = {name: str(asked.get(name, "")) for name in ("data", "device")}
    return _read(file, **texts, python=bool(asked.get("python", False)))


# A process that serves many messages prepares its experiment once.
@functools.lru_cache(maxsize=1)
def _read(file: Path, *, data: str, device: str, python: bool) -> Experiment:
    spec = load_experiment(file)
    here = {"kind": "flower", **({"device": device} if device else {})}
    engine = spec.engine.model_copy(update=here)
    return prepare(
        spec.model_copy(update={"engine": engine}), data_root=data or None, python=python
    )
