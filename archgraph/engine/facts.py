"""The identity of an experiment: its YAML with all defaults, and facts that determine results."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping

import pydantic_core
import torch

from archgraph.data import Dataset, Split
from archgraph.engine.rows import ClientRows
from archgraph.federation import State, Strategy
from archgraph.federation.family import Family
from archgraph.federation.strategy import LATER
from archgraph.fields import Mistake
from archgraph.graph.ir import ArchGraph
from archgraph.language import ExperimentSpec, FamilySpec, load_family
from archgraph.language.code import users_code
from archgraph.language.consent import python_names
from archgraph.language.data import NamedData
from archgraph.language.local import LocalOptions
from archgraph.language.writing import yaml_text
from archgraph.module.initial import initial_state
from archgraph.plain import Json
from archgraph.states.state import equal

# Keys that a resumed run may change. They do not affect the weights of a run without failures.
NOT_FACTS = ("name", "out", "engine", "patience", "trackers")


def family_of(spec: ExperimentSpec) -> FamilySpec:
    """Return the family that an experiment refers to or contains."""
    return load_family(spec.family) if isinstance(spec.family, str) else spec.family


def local_by_kind(spec: ExperimentSpec) -> dict[str, LocalOptions]:
    """Return a dict from kind of client to its own options of local training.

    Raises:
        SpecError: If these options are inconsistent with the experiment's ``local``.
    """
    options: dict[str, LocalOptions] = {}
    family = family_of(spec)
    for index, member in enumerate(family.clients):
        if member.local is None:
            continue
        try:
            options[member.name] = spec.local.changed(member.local)
        except Mistake as mistake:
            at = ("clients", index, "local", *mistake.place)
            family.document_of(at).fail(at, mistake.message, **mistake.facts)
    return options


def as_resolved(spec: ExperimentSpec, strategy: Strategy) -> str:
    """Return the experiment as YAML with all defaults, which :func:`prepare` can read."""
    values = settled(spec, strategy, every=True)
    family = family_of(spec)
    values["family"] = family.model_dump(mode="json", by_alias=True, exclude_none=True)
    for kind, local in local_by_kind(spec).items():
        index = [member.name for member in family.clients].index(kind)
        # All keys: an omitted key would mean the run's value, whose default is written, too.
        run = dict.fromkeys(spec.local.written())
        values["family"]["clients"][index]["local"] = {**run, **local.written()}
    return yaml_text(values)


def settled(spec: ExperimentSpec, strategy: Strategy, *, every: bool = False) -> dict[str, Json]:
    """Return an experiment as JSON values with all defaults, without its family.

    Args:
        spec: The experiment.
        strategy: The experiment's strategy.
        every: If True, include values that do not affect results, such as the folder of the data.
    """
    # Unset options are omitted, so that runs from before an option existed stay comparable.
    values = spec.model_dump(mode="json", by_alias=True, exclude={"family"}, exclude_none=True)
    values["local"] = spec.local.written()
    options, name = _options(strategy), spec.strategy_name
    imported = "python" in spec.strategy
    values["strategy"] = {"python": name, **options} if imported else {name: options}
    if not every:
        known = ("partition", *spec.data.known)
        values["data"] = {key: value for key, value in values["data"].items() if key in known}
        if isinstance(spec.public, NamedData):  # identified by its content, like the data
            values["public"].pop("root", None)
    return values


def _options(strategy: Strategy) -> dict[str, Json]:
    """Return the options of a strategy; options that were added later only if they are set."""
    values: dict[str, Json] = pydantic_core.to_jsonable_python(strategy)
    for option in dataclasses.fields(strategy):
        if option.metadata.get(LATER) and getattr(strategy, option.name) == option.default:
            del values[option.name]
    return values


def code_of(spec: ExperimentSpec, strategy: Strategy) -> dict[str, str]:
    """Return digests of the user's Python modules that an experiment and its models name."""
    family = family_of(spec)
    written = family.model_dump(mode="json", by_alias=True)
    models = [source.data for source in family.sources()]
    return users_code(python_names([settled(spec, strategy, every=True), written, models]))


def deciding_facts(
    spec: ExperimentSpec,
    strategy: Strategy,
    family: Family,
    data: Dataset,
    public: Split | None = None,
    rows: Mapping[int, ClientRows] | None = None,
) -> Mapping[str, Json]:
    """Return everything that determines the weights of a run. Files are identified by content."""
    values, by_kind = settled(spec, strategy), local_by_kind(spec)
    state = None if family.state is None else _given(spec, family.graph, family.state)
    for name in (*NOT_FACTS, "evaluate", "weights"):  # weights are identified by their content
        values.pop(name, None)
    return {
        **values,
        "graph": family.graph.digest,
        "state": None if state is None else _content(state),
        "family": {
            member.name: {
                "count": member.count,
                "graph": member.graph.digest,
                "transfer": member.transfer.digest,
                "state": _content(member.source) if member.own else None,
                **({"local": by_kind[member.name].written()} if member.name in by_kind else {}),
            }
            for member in family.clients
        },
        "examples": _content(dict(_examples(data))),
        **({"rows": {str(i): one.report() for i, one in rows.items()}} if rows else {}),
        **({"code": code} if (code := code_of(spec, strategy)) else {}),
        **({"owners": _content(_owners(data))} if data.owners else {}),
        **({"public_examples": _content(_tensors(public))} if public is not None else {}),
    }


def _given(spec: ExperimentSpec, graph: ArchGraph, state: State) -> State:
    """Return the initial weights that do not depend on the seed."""
    if spec.weights is None or not spec.weights.fresh:
        return state
    drawn = initial_state(graph, spec.seed)
    return {name: tensor for name, tensor in state.items() if not equal(tensor, drawn[name])}


def examples_digest(data: Dataset) -> str:
    """Return the SHA-256 of a data set's training examples."""
    return _content(_tensors(data.train))


def _examples(data: Dataset) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a data set, and the normalisation of its inputs."""
    for part, split in (("train", data.train), ("test", data.test)):
        yield from ((f"{part}/{name}", tensor) for name, tensor in _tensors(split).items())


def _tensors(split: Split) -> State:
    """Return a dict from name to tensor of a split."""
    statistics = {"mean": split.mean, "std": split.std}
    examples = {"inputs": split.inputs, "targets": split.targets, **split.beside}
    if split.stream is not None:  # there is only one example
        examples = {name: rows[0].clone() for name, rows in examples.items()}
    return examples | {name: t for name, t in statistics.items() if t is not None}


def _owners(data: Dataset) -> State:
    """Return the examples of each owner. The order of owners matters, their names do not."""
    return {f"{i:06}": torch.from_numpy(part) for i, part in enumerate(data.owners.values())}


def _content(tensors: State) -> str:
    """Return the SHA-256 of tensors and their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):  # the digest does not depend on the order of a mapping
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
