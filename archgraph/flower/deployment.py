"""Flower's deployment: a server and nodes on several machines.

Server and nodes read the experiment from the app that Flower distributes (:mod:`.starter` writes
the app). Settings that differ between machines, such as the path of the data, are in the run
configuration of the server and in the configuration of each node.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from archgraph.data import Dataset
from archgraph.data.form import DataForm, with_path
from archgraph.engine.experiment import Experiment
from archgraph.engine.facts import examples_digest, family_of
from archgraph.engine.local import execute
from archgraph.engine.rows import ClientRows
from archgraph.engine.world import prepare
from archgraph.errors import ArchGraphError, DataError, RunError
from archgraph.flower.client import PARTITION, client_app, client_of
from archgraph.flower.server import JOIN, Nodes
from archgraph.flower.starter import FORM
from archgraph.language import load_experiment
from archgraph.plain import Json, json_safe
from archgraph.record.folder import identity, resumable


def deployed_server(file: Path) -> ServerApp:
    """Return the ServerApp of a resolved experiment.

    The run configuration has these keys:

    - ``out``: the run folder.
    - ``resume``: whether to resume the run in this folder.
    - ``private``: where private states of clients are stored, ``node`` or ``server``.
    - ``join``: seconds to wait for nodes at the start.
    - ``data``: path of the data.
    - ``device``: the device, instead of that in the experiment.
    - ``python``: whether to run the Python code that the experiment names.

    Args:
        file: The experiment file of the app.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid, file, context.run_config)
        except ArchGraphError:
            sys.tracebacklimit = 0  # Flower prints the error, so omit the traceback
            raise

    return app


def serve(grid: Grid, file: Path, asked: Mapping[str, Json]) -> None:
    """Run the experiment of a file on the nodes of a grid.

    Raises:
        ArchGraphError: As for :func:`archgraph.engine.run`.
    """
    holder = asked.get("private", "node")
    if holder not in ("node", "server"):
        raise RunError("unknown holder", where="private", found=holder, expected="node or server")
    out, join, rows = Path(str(asked["out"])), float(asked.get("join", JOIN)), None
    nodes = Nodes(grid, clients_in(file), holder, join=join)
    if form_beside(file):
        nodes.meet(every=True)  # strategies need the number of examples of each client
        rows = tuple(sorted(nodes.rows.items()))
    experiment = machine_experiment(file, asked, rows)
    nodes.deadline = experiment.engine.deadline
    resume = bool(asked.get("resume", False)) and resumable(out)
    execute(experiment, elsewhere=nodes, out=out, resume=resume, name=out.name)


def deployed_client(file: Path) -> ClientApp:
    """Return the ClientApp of a resolved experiment.

    The configuration of a node must contain ``partition-id``, the number of its client. The keys
    ``data``, ``device`` and ``python`` are optional, as for the server. The optional key ``keep``
    is a folder for the client's private state; without it, this state is lost when the process of
    the node ends or the run is resumed.

    Args:
        file: The experiment file of the app.
    """
    return client_app(
        lambda context: client_experiment(file, context.node_config),
        _kept,
        lambda context: rows_report(file, context.node_config),
    )


def client_experiment(file: Path, configuration: Mapping[str, Json]) -> Experiment:
    """Return the experiment of a node, with all training examples or only those of its client.

    Raises:
        ArchGraphError: As for :func:`archgraph.engine.prepare`.
    """
    if not form_beside(file):
        return machine_experiment(file, configuration)
    client, clients = client_of(configuration), clients_in(file)
    if client not in range(clients):
        raise RunError("not a client", where=PARTITION, found=client, expected=f"0...{clients - 1}")
    data = own_data(file, str(configuration.get("data", "")))
    rows = {client: ClientRows.of(data, examples_digest(data))}
    return machine_experiment(file, {**configuration, "data": ""}, tuple(rows.items()), data)


def rows_report(file: Path, configuration: Mapping[str, Json]) -> dict[str, Json]:
    """Return facts about a node's data for the server; empty if each machine has all data."""
    if not form_beside(file):
        return {}
    data = own_data(file, str(configuration.get("data", "")))
    rows = ClientRows.of(data, examples_digest(data))
    if not configuration.get("labels", True):
        rows = dataclasses.replace(rows, histogram=None)
    return rows.report()


def _kept(context: Context, experiment: Experiment) -> Path | None:
    """Return the path of the file for a client's private state in an experiment.

    The result is None if the configuration of the node does not contain ``keep``.
    """
    asked = context.node_config
    if not asked.get("keep"):
        return None
    # Name it by the identity of the run, so that a run with more rounds finds the states.
    name = f"{identity(json_safe(experiment.facts))[:16]}-{client_of(asked)}.safetensors"
    return Path(str(asked["keep"])) / name


def form_beside(file: Path) -> DataForm | None:
    """Return the description of the data if each node has only its own rows; else None."""
    form = file.with_name(FORM)
    return DataForm.load(form.read_text(encoding="utf-8")) if form.exists() else None


# A process handles many messages, but reads its rows only once.
@functools.lru_cache(maxsize=1)
def own_data(file: Path, path: str) -> Dataset:
    """Read a node's own rows.

    Raises:
        DataError: If the configuration does not set the path of the data, or the data cannot be
            read (see :meth:`DataForm.read`).
    """
    form, spec = form_beside(file), load_experiment(file)
    if form is None or not path:
        raise DataError(
            "does not name the path of the node's rows",
            where="data",
            hint="start the node with --node-config 'partition-id=0 data=\"/path/of/its/rows\"'",
        )
    if not Path(path).exists():
        raise DataError("does not exist", where=path, found="no file or folder with this name")
    return form.read(spec.data, path, None if spec.task is None else spec.task.kind)


@functools.lru_cache(maxsize=1)
def clients_in(file: Path) -> int:
    """Return the number of clients of an experiment; each extra model counts as a client."""
    spec = load_experiment(file)
    names = [member.name for member in family_of(spec).clients for _ in range(member.count)]
    return len(names) + sum(len((spec.also or {}).get(name, ())) for name in names)


# A process handles many messages, but prepares the experiment only once.
@functools.lru_cache(maxsize=1)
def _prepared(
    file: Path,
    data: str,
    device: str,
    rows: tuple[tuple[int, ClientRows], ...] | None,
    alone: Dataset | None,
    *,
    python: bool,
) -> Experiment:
    spec = load_experiment(file)
    here = {"kind": "flower", **({"device": device} if device else {})}
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update=here)})
    known = None if rows is None else dict(rows)
    if alone is None:
        spec = spec.model_copy(update={"data": with_path(spec.data, data)})
    experiment = prepare(spec, data_root=data or None, data=alone, rows=known, python=python)
    form = form_beside(file)
    if form is not None and alone is None:
        form.check(DataForm.of(spec.data, experiment.data), data or "data")
    return experiment


def machine_experiment(
    file: Path,
    asked: Mapping[str, Json],
    rows: tuple[tuple[int, ClientRows], ...] | None = None,
    alone: Dataset | None = None,
) -> Experiment:
    """Prepare an experiment with the keys `data`, `device` and `python` of a configuration.

    Args:
        file: The experiment.
        asked: The configuration of the machine.
        rows: Pairs of a client and facts about its rows, if only its node has these rows.
        alone: The rows of a node's client, if the node has only these rows.

    Raises:
        ArchGraphError: As for :func:`archgraph.engine.prepare`.
    """
    texts = [str(asked.get(name, "")) for name in ("data", "device")]
    return _prepared(file, *texts, rows, alone, python=bool(asked.get("python", False)))
