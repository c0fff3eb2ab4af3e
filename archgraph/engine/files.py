"""Experiment files: descriptions, help and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archgraph.errors import ArchGraphError
from archgraph.federation.files import checked_family
from archgraph.language.checking import Verdict
from archgraph.language.consent import allowed, needs_consent
from archgraph.language.kinds import NOT_IMPORTED, FileKind
from archgraph.language.yaml import read_document
from archgraph.tables import plural

if TYPE_CHECKING:
    import pydantic

    from archgraph.data import Dataset
    from archgraph.federation import State
    from archgraph.federation.family import Family
    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec


def verdict_of(spec: ExperimentSpec, path: Path, *, python: bool = False) -> Verdict:
    """Check an experiment that was read from a file and possibly modified; return a verdict.

    Args:
        spec: The experiment.
        path: File of the experiment.
        python: If True, allow running the Python code that the experiment refers to.
    """
    try:
        with allowed(python):
            return Verdict(path, "experiment", note=checked_experiment(spec, path.resolve(), {}))
    except ArchGraphError as error:
        return Verdict(path, "experiment", error)


def checked_experiment(
    spec: ExperimentSpec, path: Path, cache: dict[str, Any], *, begins: bool = False
) -> str:
    """Check everything that a run does before its first round, and return a summary.

    Args:
        spec: The experiment.
        path: The file that contains the experiment's family.
        cache: A dict for all files of one check, so that each family is resolved once.
        begins: If True, skip the check of the strategy's first state, because an experiment with
            the same first state was already checked.

    Raises:
        ArchGraphError: If the experiment cannot run.
    """
    # Imported here, since file kinds are registered before torch is imported.
    import torch

    from archgraph.data import Dataset
    from archgraph.data.doors import read_data
    from archgraph.federation import Strategy, configure
    from archgraph.language.data import PythonData
    from archgraph.record.trackers import tracker

    objective = spec.task.function if spec.task is not None else None
    closed = []  # Python code that is not imported
    if "python" in spec.strategy and needs_consent(spec.strategy_name, Strategy):
        closed.append(spec.strategy_name)
    else:
        with spec.locating("strategy"):
            configure(spec.strategy_name, spec.strategy_options)
    with spec.locating("trackers"):
        for choice in spec.trackers:
            tracker(choice)
    data = None
    if isinstance(spec.data, PythonData) and needs_consent(spec.data.python, Dataset):
        closed.append(spec.data.python)
    else:
        with spec.locating("data"):
            kind = None if spec.task is None else spec.task.kind
            data = read_data(spec.data, kind, check=True)
    text, family = checked_family(spec.family, path, cache)  # type: ignore[arg-type]  # was read
    if objective is not None and needs_consent(objective, torch.nn.Module):
        closed.append(objective)
    # The rest of a run up to its first round, unless this needs code that is not imported.
    if not closed and data is not None and family is not None:
        _check_start(spec, data, family, begins=begins)
    text = f"{spec.strategy_name}, {plural(spec.rounds, 'round')}; {text}"
    notes = () if data is None else data.notes
    return "; ".join((text, *notes, *(f"{name} {NOT_IMPORTED}" for name in closed)))


def _check_start(spec: ExperimentSpec, data: Dataset, family: Family, *, begins: bool) -> None:
    """Prepare a run up to its first round, on shapes alone if the strategy supports this."""
    from archgraph.engine.world import first_state, prepare

    prepared = prepare(spec, imagined=data, family=_shapes(family))
    if begins:
        return
    # On shapes alone, including the strategy's server-side computations.
    world = dataclasses.replace(prepared.world, device="meta")
    try:
        first_state(dataclasses.replace(prepared, world=world))
    except (NotImplementedError, RuntimeError):  # some strategies choose models by their weights
        first_state(prepare(spec, imagined=data, family=family))


def _shapes(family: Family) -> Family:
    """Replace the initial weights of a family by tensors without values."""
    import torch

    def state(graph: ArchGraph) -> State:
        leaves = (p for p in graph.params if p.role != "constant")
        return {p.name: torch.empty(p.shape, device="meta") for p in leaves}

    if family.has_global:
        return dataclasses.replace(family, state=state(family.graph))
    members = (
        member if member.own else dataclasses.replace(member, source=state(member.graph), own=True)
        for member in family.clients
    )
    return dataclasses.replace(family, clients=tuple(members))


def _check(path: Path, cache: dict[str, Any]) -> str:
    from archgraph import load_experiment

    family = read_document(path).data["family"]
    source = path.parent / family if isinstance(family, str) else path
    return checked_experiment(load_experiment(path), source.resolve(), cache)


def _schema() -> dict[str, Any]:
    from archgraph.language.experiment import ExperimentSpec

    return ExperimentSpec.model_json_schema()


def _mappings() -> Mapping[str, type[pydantic.BaseModel]]:
    from archgraph.language import data, experiment
    from archgraph.language.aggregate import AggregateSpec
    from archgraph.language.local import LocalOptions
    from archgraph.language.privacy import PrivacySpec
    from archgraph.language.server import ServerSpec
    from archgraph.language.task import TaskSpec
    from archgraph.language.validation import ValidationSpec
    from archgraph.language.weights import WeightsSpec

    return {
        "experiment": experiment.ExperimentSpec,
        "data": data.DataSpec,
        **{f"data.{key}": kind for key, kind in data.DOORS.items()},
        "iid": data.IidSpec,
        "dirichlet": data.DirichletSpec,
        "equal_dirichlet": data.EqualDirichletSpec,
        "classes": data.ClassesSpec,
        "whole": data.WholeSpec,
        "task": TaskSpec,
        "validation": ValidationSpec,
        "weights": WeightsSpec,
        "local": LocalOptions,
        "aggregate": AggregateSpec,
        "server": ServerSpec,
        "privacy": PrivacySpec,
        "attack": experiment.AttackSpec,
        "evaluate": experiment.EvaluateSpec,
        "engine": experiment.EngineSpec,
    }


EXPERIMENT = FileKind(
    "experiment", 2, frozenset({"family", "strategy", "rounds"}), _schema, _mappings, _check
)
