"""One run of a study: where it lies, whether it is done, and how it is run or gone on with."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

from archgraph.engine.facts import UNNAMED, family_of, local_by_kind, settled
from archgraph.engine.local import run
from archgraph.errors import is_installed
from archgraph.federation import configure
from archgraph.language import ExperimentSpec
from archgraph.language.consent import consent_given, python_names
from archgraph.language.data import NamedData
from archgraph.plain import Json, digest
from archgraph.processes.isolation import one_thread
from archgraph.record.folder import read_metrics
from archgraph.record.proof import sha256

# Signs of a digest in the name of a folder.
SIGNS = 16


def address(spec: ExperimentSpec) -> str:
    """Name of the folder of an experiment: equal experiments have one, in whatever study.

    The name does not depend on names (of the experiment, its files, its trackers) nor on which
    options were written out, and it does on how the experiment is tested, and on the user's code.

    Raises:
        SpecError: If the strategy is not known or refuses its options.
    """
    with spec.locating("strategy"):
        strategy = configure(spec.strategy_name, spec.strategy_options)
    # Data of the user's own is known by its content, which is not read here, but for its place.
    values = settled(spec, strategy, every=not spec.data.known)
    for name in (*UNNAMED, "seed"):
        values.pop(name, None)
    if spec.local_of:
        kinds = local_by_kind(spec).items()
        values["local_of"] = {k: of.model_dump(mode="json", exclude_none=True) for k, of in kinds}
    # Files by content where it is known: a path depends on the machine.
    if spec.weights is not None:
        more = spec.weights.model_dump(mode="json", exclude={"file", "published", "sha256"})
        content = spec.weights.sha256 or _content(Path(spec.weights.file))
        values["weights"] = {"of": content, **more}
    if isinstance(spec.data, NamedData) and spec.data.tokenizer is not None:
        file = Path(spec.data.tokenizer)
        values["tokenizer"] = _content(file / "tokenizer.json" if file.is_dir() else file)
    family = family_of(spec)
    clients = family.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name"})
    for member in (clients, *clients["clients"]):
        if member.get("model") not in (None, "join"):
            member["model"] = "below"  # the contents of these files stand in `models`
    models = [source.data for source in family.sources()]
    settings: Mapping[str, Json] = {**values, "family": clients, "models": models}
    if code := users_code(python_names(settings)):
        settings = {**settings, "code": code}
    # Strategy and seed are for people who look into the folder; the digest decides.
    name = spec.strategy_name.rpartition(":")[2]
    return f"{name}-{digest(settings)[:SIGNS]}-seed{spec.seed}"


def _content(file: Path) -> str:
    return sha256(file) if file.is_file() else file.name


def users_code(names: Iterable[str]) -> dict[str, str]:
    """Return digests of the modules that Python names lead to, by module, without comments.

    Those that they import count, too. Installed packages do not, archgraph among them: records say
    their versions. Without consent nothing is looked for.

    >>> users_code(["torch.nn:Linear"])
    {}
    """
    left, code = [name.partition(":")[0] for name in names], dict[str, str]()
    while left and consent_given():
        module = left.pop()
        # The package first: to look for a module in one imports it.
        if module in code or not _is_users(module.partition(".")[0]) or not _is_users(module):
            continue
        source = importlib.util.find_spec(module)
        assert source is not None and source.origin is not None
        tree = ast.parse(Path(source.origin).read_bytes())
        code[module] = digest(ast.unparse(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                name = "." * node.level + (node.module or "")
                of = importlib.util.resolve_name(name, source.parent) if node.level else name
                left += [of, *(f"{of}.{alias.name}" for alias in node.names)]
    return dict(sorted(code.items()))


def _is_users(module: str) -> bool:
    try:
        source = importlib.util.find_spec(module)
    except Exception:  # no module of this name; or what a package runs, which its run will say
        return False
    origin = source.origin if source is not None else None
    return origin is not None and origin.endswith(".py") and not is_installed(origin)


def finished(folder: Path, spec: ExperimentSpec) -> bool:
    """Return whether the run of an experiment in a folder is done."""
    if not (folder / "run.yaml").is_file():
        return False
    lines = read_metrics(folder)
    return bool(lines) and (lines[-1]["round"] >= spec.rounds or bool(lines[-1].get("stopped")))


def run_cell(
    spec: ExperimentSpec, folder: Path, *, data_root: Path | None = None, python: bool = False
) -> None:
    """Run an experiment in its folder, or go on with it there; on one thread.

    Raises:
        ArchGraphError: As :func:`archgraph.run`.
    """
    # Sums of threads depend on their number, and cells run side by side: one thread, the same bits.
    with one_thread():
        begun = folder.is_dir() and any(folder.iterdir())
        run(spec, out=folder, resume=begun, data_root=data_root, python=python, progress=False)
