"""A Flower app from an experiment: what ``flwr run`` sends to a SuperLink and its SuperNodes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from archgraph.engine.facts import as_resolved, family_of
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.files import write
from archgraph.language import ExperimentSpec, load_experiment
from archgraph.language.consent import python_names
from archgraph.language.data import NamedData
from archgraph.language.yaml import is_onnx, read_document
from archgraph.plain import Json

# A name of an app: letters, digits and hyphens after a letter, and no longer.
LONGEST_NAME = 32

MODULE = '''"""The {role} of {name}, as Flower starts it."""

from pathlib import Path

from archgraph.flower.deployment import {function}

app = {function}(Path(__file__).with_name("experiment.yaml"))
'''

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = {title}
license = "Apache-2.0"
dependencies = ["archgraph[flower]"]

[tool.flwr.app]
publisher = "archgraph"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
out = "runs/{name}"  # run folder, from where the SuperLink was started
resume = false  # go on with the run in that folder
private = "node"  # who holds what clients keep: node or server
join = 120.0  # seconds to wait for nodes at the start
data = ""  # folder of the data; "": what ARCHGRAPH_DATA names
device = ""  # where the server computes; "": where the experiment says
python = false  # consent to run the Python code that the experiment names
"""

README = """# {title} on Flower

`experiment.yaml` is the experiment with {clients} clients; each SuperNode is one (`partition-id`).
Every machine needs `pip install 'archgraph[flower]'` and its data. The server's configuration
(`--run-config`) and that of each node (`--node-config`) name the folder of the `data`, and may name
a `device` (`device="cuda"`). A node's `keep` is the folder for what its client keeps.
Who starts the run names the SuperLink in `~/.flwr/config.toml`, with a whole path:

```toml
[superlink.fleet]
address = "HOST:8000"
root-certificates = "/home/me/app/ca.pem"
```

{python}Certificates and keys, for a server that others reach as `HOST` (by address: `IP:10.0.0.1`
instead of `DNS:HOST`; the server's own processes reach it as 127.0.0.1). `ca.key` and `server.key`
stay on the server. Each node has a key of its own (`client0`, `client1`, …), which stays there:

```console
$ openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 \\
    -subj /CN=ca -keyout ca.key -out ca.pem
$ openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 \\
    -subj /CN=HOST -addext subjectAltName=DNS:HOST,IP:127.0.0.1 \\
    -addext basicConstraints=critical,CA:FALSE \\
    -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem
$ ssh-keygen -q -t ecdsa -b 384 -N '' -f client0
```

The server, the nodes, the run. Each node has its own `partition-id` and key; a further node on one
machine needs a free port of its own, too (`--port 9095`):

```console
$ flower-superlink --host 0.0.0.0 --ssl-ca-certfile ca.pem --ssl-certfile server.pem \\
    --ssl-keyfile server.key --enable-supernode-auth --disable-runtime-dependency-installation
$ flwr supernode register client0.pub fleet
$ flower-supernode --superlink HOST:8000 --root-certificates ca.pem \\
    --auth-supernode-private-key client0 --node-config 'partition-id=0 keep="kept"'
$ flwr run . fleet --stream
$ flwr run . fleet --stream --run-config 'resume=true'
```
"""


# What an experiment that names Python code needs, by the names.
PYTHON = """It names Python code, which runs with your consent only: {names}.
Lay its modules into this folder, before `flwr run` packs it, or install them on every machine; say
`python=true` in `--run-config` of the run, and in `--node-config` of each node.

"""


def write_app(
    experiment: str | os.PathLike[str] | ExperimentSpec,
    folder: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    python: bool = False,
) -> list[Path]:
    """Write an app that runs an experiment on Flower's deployment.

    Args:
        experiment: A file, or what was read from one.
        folder: Where; it must not exist or be empty.
        data_root: Folder of the data on this machine; each other machine names its own.
        python: Consent to run the Python code that the experiment names.

    Returns:
        The files: project, server, client, experiment as resolved, commands.

    Raises:
        ArchGraphError: If the experiment cannot run, or the folder holds something.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RunError("is not empty", where=str(place), hint="name a folder that does not exist")
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    setup = prepare(spec, data_root=data_root, python=python)
    refused = {"engine.memory": setup.engine.memory, "weights": spec.weights}
    for where, value in refused.items():
        if value is not None:
            with spec.locating(*where.split(".")[:1]):
                raise RunError(
                    "an app of Flower's cannot say this to its nodes",
                    where=where,
                    expected="no bound on memory, and first weights from the seed",
                    hint="leave it out",
                )
    title = spec.name or place.resolve().name
    name = re.sub("[^a-z0-9]+", "-", f"archgraph-{title}".lower())[:LONGEST_NAME].strip("-")
    roles = {"server": "deployed_server", "client": "deployed_client"}
    resolved = as_resolved(_anywhere(spec), setup.strategy)
    outside = sorted(
        {
            one
            for one in python_names(YAML(typ="safe", pure=True).load(resolved))
            if not one.startswith("archgraph.")
        }
    )
    names = ", ".join(f"`{one}`" for one in outside)
    texts = {
        "pyproject.toml": PROJECT.format(name=name, title=json.dumps(f"archgraph: {title}")),
        **{
            f"{role}_app.py": MODULE.format(role=role, name=name, function=function)
            for role, function in roles.items()
        },
        "experiment.yaml": resolved,
        "README.md": README.format(
            title=title,
            clients=len(setup.world.clients),
            python=PYTHON.format(names=names) if outside else "",
        ),
    }
    return [write(place / file, text) for file, text in texts.items()]


def _anywhere(spec: ExperimentSpec) -> ExperimentSpec:
    """Embed an experiment's models, and drop the folder that its data has on this machine."""
    family, data = family_of(spec), spec.data
    members = [m.model_copy(update={"model": _in_place(m.model)}) for m in family.clients]
    family = family.model_copy(update={"model": _in_place(family.model), "clients": tuple(members)})
    if isinstance(data, NamedData):
        data = data.model_copy(update={"root": None})
    return spec.model_copy(update={"family": family, "data": data})


def _in_place(model: str | dict[str, Json] | None) -> Any:
    """Replace the path of a model file by the file's content; return other models as they are.

    Raises:
        RunError: If it is an ONNX file.
    """
    if not isinstance(model, str) or model == "join":
        return model
    if is_onnx(model):
        raise RunError(
            "Flower does not carry ONNX files",
            where=model,
            expected="a model in YAML",
            hint="`ag.save(ag.load(file).graph, 'model.yaml')` writes the architecture",
        )
    return json.loads(json.dumps(read_document(model).data))
