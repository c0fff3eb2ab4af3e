"""A Flower app from an experiment: what ``flwr run`` sends to a SuperLink and its SuperNodes."""

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

# A name of an app: letters, digits and hyphens after a letter, and no longer.
LONGEST_NAME = 32

# What the app's files say, but for the names in braces.
TEMPLATES = Path(__file__).parent / "app"

# What a node's configuration says of its data, where it has its own rows and where it has all.
ROWS = {"own": ' data="/path/of/its/rows"', "all": ""}

# Beside the experiment in an app whose nodes hold their own rows alone.
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
        experiment: A file, or what was read from one.
        folder: Where; it must not exist or be empty.
        data_root: Folder of the data on this machine; each other machine names its own.
        own_rows: Whether each node has its client's rows alone, which no other machine sees; the
            form of the experiment's data goes into the app. Default: every machine has all rows.
        python: Consent to run the Python code that the experiment names.

    Returns:
        The files: project, server, client, experiment as resolved, commands; form of the rows.

    Raises:
        ArchGraphError: If the experiment cannot run, or the folder holds something.
    """
    target = Path(folder)
    _check_empty(target)
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    if own_rows:  # a partition of rows that each node has already
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"partition": None})})
    setup = prepare(spec, data_root=data_root, rows={} if own_rows else None, python=python)
    for where, value in (("engine.memory", setup.engine.memory), ("weights", spec.weights)):
        if value is not None:
            with spec.locating(where.partition(".")[0]):
                raise RunError(
                    "an app of Flower's cannot say this to its nodes",
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
    """Raise if a folder holds something, or is a file."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError("is not empty", where=str(target), hint="name a folder that does not exist")


def _filled(template: str, **values: object) -> str:
    """Return the text of a template with values in place of its names."""
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return text.format(distribution=DISTRIBUTION, **values)


def _anywhere(spec: ExperimentSpec) -> ExperimentSpec:
    """Embed an experiment's models, and drop the folder that its data has on this machine."""
    family, data = family_of(spec), spec.data
    # Other machines have neither the files of this one nor its folders.
    members = [m.model_copy(update={"model": _in_place(m.model)}) for m in family.clients]
    family = family.model_copy(update={"model": _in_place(family.model), "clients": tuple(members)})
    if isinstance(data, NamedData):
        data = data.model_copy(update={"root": None})
    return spec.model_copy(update={"family": family, "data": data})


def _in_place(model: str | dict[str, Json] | None) -> str | dict[str, Json] | None:
    """Replace the path of a model file by the file's content; return other models as they are.

    Raises:
        RunError: If it is an ONNX file.
    """
    if isinstance(model, dict) and "onnx" in model:
        model = str(model["onnx"])
    if not isinstance(model, str) or model == "join":
        return model
    if is_onnx(model):
        raise RunError(
            "Flower does not carry ONNX files",
            where=model,
            hint="`ag.save(ag.load(file).graph, 'model.yaml')` writes the architecture as YAML",
        )
    content: dict[str, Json] = json.loads(json.dumps(read_document(model).data))
    return content
