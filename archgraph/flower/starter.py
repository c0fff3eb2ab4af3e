"""Creation of a Flower app that runs an experiment; ``flwr run`` sends it to all machines."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ruamel.yaml import YAML

from archgraph.data.form import DataForm
from archgraph.engine.facts import as_resolved, family_of
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.files import write
from archgraph.hints import DISTRIBUTION
from archgraph.language import ExperimentSpec, load_experiment
from archgraph.language.consent import python_names
from archgraph.language.data import NamedData
from archgraph.language.yaml import is_onnx, read_document
from archgraph.plain import Json

# Maximum length of an app's name, which is a letter followed by letters, digits and hyphens.
LONGEST_NAME = 32

# Templates of the app's files, with placeholders in braces.
TEMPLATES = Path(__file__).parent / "app"

# Keys about data in the configuration of a node with only its own rows, and with all rows.
ROWS = {"own": ' data="/path/of/its/rows"', "all": ""}

# Description of the data in an app whose nodes only have their own rows.
FORM = "form.json"


def write_app(
    experiment: str | os.PathLike[str] | ExperimentSpec,
    folder: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    own_rows: bool = False,
    python: bool = False,
) -> list[Path]:
    """Write an app that runs an experiment on Flower's deployment.

    Args:
        experiment: An experiment file, or a parsed experiment.
        folder: Folder for the app, which must be new or empty.
        data_root: Folder of the data on this machine. Other machines set it in their configuration.
        own_rows: If True, each node only has the rows of its own client, and the app contains a
            description of the data (such as their shapes). By default, each machine has all rows.
        python: Whether to run the Python code that the experiment names.

    Returns:
        Paths of the files: project, server, client, resolved experiment, README with the commands,
        and the description of the data if ``own_rows`` is true.

    Raises:
        ArchGraphError: If the experiment cannot run, or the folder is not empty.
    """
    target = Path(folder)
    _check_empty(target)
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    if own_rows:  # the rows of the nodes are the partition
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"partition": None})})
    setup = prepare(spec, data_root=data_root, rows={} if own_rows else None, python=python)
    for where, value in (("engine.memory", setup.engine.memory), ("weights", spec.weights)):
        if value is not None:
            with spec.locating(where.partition(".")[0]):
                raise RunError(
                    "cannot be used in a Flower app",
                    where=where,
                    hint="remove it",
                )
    title = spec.name or target.resolve().name
    quoted = json.dumps(f"archgraph: {title}")
    name = re.sub("[^a-z0-9]+", "-", f"archgraph-{title}".lower())[:LONGEST_NAME].strip("-")
    resolved = as_resolved(_anywhere(spec), setup.strategy)
    code = python_names(YAML(typ="safe", pure=True).load(resolved))
    outside = sorted({f"`{one}`" for one in code if not one.startswith("archgraph.")})
    python_note = _filled("python.md", names=", ".join(outside)) if outside else ""
    clients, rows = len(setup.world.clients), "own" if own_rows else "all"
    texts = {
        "pyproject.toml": _filled("pyproject.toml", name=name, title=quoted),
        "server_app.py": _filled("module.py", role="server", name=name),
        "client_app.py": _filled("module.py", role="client", name=name),
        "experiment.yaml": resolved,
        "README.md": _filled(
            "README.md",
            title=title,
            clients=clients,
            python=python_note,
            rows=_filled(f"{rows}_rows.md"),
            data=ROWS[rows],
        ),
    }
    if own_rows:
        with spec.locating("data"):
            texts[FORM] = DataForm.of(spec.data, setup.data).dump()
    return [write(target / file, text) for file, text in texts.items()]


def _check_empty(target: Path) -> None:
    """Raise an error if a folder is not empty, or is a file."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError("is not empty", where=str(target), hint="name a folder that does not exist")


def _filled(template: str, **values: object) -> str:
    """Fill in the placeholders of a template."""
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return text.format(distribution=DISTRIBUTION, **values)


def _anywhere(spec: ExperimentSpec) -> ExperimentSpec:
    """Embed the models in an experiment, and remove the path of the data on this machine."""
    family, data = family_of(spec), spec.data
    # Other machines do not have the files and folders of this one.
    members = [m.model_copy(update={"model": _in_place(m.model)}) for m in family.clients]
    family = family.model_copy(update={"model": _in_place(family.model), "clients": tuple(members)})
    if isinstance(data, NamedData):
        data = data.model_copy(update={"root": None})
    return spec.model_copy(update={"family": family, "data": data})


def _in_place(model: str | dict[str, Json] | None) -> str | dict[str, Json] | None:
    """Replace the path of a model file by the file's content; return other models unchanged.

    Raises:
        RunError: If it is an ONNX file.
    """
    if isinstance(model, dict) and "onnx" in model:
        model = str(model["onnx"])
    if not isinstance(model, str) or model == "join":
        return model
    if is_onnx(model):
        raise RunError(
            "ONNX files cannot be sent by Flower",
            where=model,
            hint="`ag.save(ag.load(file).graph, 'model.yaml')` writes the architecture as YAML",
        )
    content: dict[str, Json] = json.loads(json.dumps(read_document(model).data))
    return content
