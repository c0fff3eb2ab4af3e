"""From a spec to an experiment: graphs, weights, clients with their shares of the data."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pydantic_core
import torch
from ruamel.yaml import YAML

from archgraph.engine.attack import malicious
from archgraph.engine.data import ROOT_VARIABLE, Dataset, load_dataset
from archgraph.engine.evaluate import GLOBAL
from archgraph.engine.experiment import Experiment, Options
from archgraph.engine.partition import allot
from archgraph.engine.shard import histogram
from archgraph.errors import RunError
from archgraph.federation import (
    Client,
    State,
    Strategy,
    Tier,
    World,
    configure,
)
from archgraph.federation.family import Family, Member, resolve
from archgraph.graph.ir import ArchGraph, Batch, Node, Record, Ref, TensorType, Value
from archgraph.language import ExperimentSpec, FamilySpec, load_experiment, load_family
from archgraph.module.build import build, initial_state
from archgraph.ops.schema import torch_dtype
from archgraph.plain import Json
from archgraph.rewrite.insert import fresh, refs


def prepare(
    experiment: str | os.PathLike[str] | ExperimentSpec,
    *,
    data_root: str | os.PathLike[str] | None = None,
) -> Experiment:
    """Resolve an experiment: read its files, make its graphs, load and share out its data.

    Args:
        experiment: A file, or what was read from one.
        data_root: Folder of the data; None: the spec's, else what ``ARCHGRAPH_DATA`` names.

    Raises:
        SpecError: If a file cannot be understood.
        RewriteError: If a client's architecture cannot be made.
        DataError: If the data is missing or damaged, or cannot be shared out so.
        RunError: If model, data and strategy do not fit one another.
    """
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    strategy = configure(spec.strategy_name, spec.strategy_options)
    device = _device(spec.engine.device)
    family = resolve(_family(spec))
    if strategy.needs_global and not family.has_global:
        raise RunError(
            "the strategy needs a global model",
            where=f"strategy {spec.strategy_name}",
            found="a family without one",
            expected="a model that contains the clients' models",
            hint="write `model: join` in the family, or name a model file",
        )
    chosen = data_root or spec.data.root or os.environ.get(ROOT_VARIABLE)
    root = None if chosen is None else Path(chosen).expanduser().absolute()
    data = load_dataset(
        spec.data.dataset,
        root,
        limit=spec.data.limit,
        bptt=spec.data.bptt,
        length=spec.data.length,
        vocabulary=spec.data.vocabulary,
        tokenizer=spec.data.tokenizer,
    )
    family, data = matched(family, data)
    kinds = [member.name for member in family.clients for _ in range(member.count)]
    count = len(kinds)
    sampled = _sampled(spec.sample, count)
    scheme = spec.data.partition.model_dump()
    shares = allot(data.train.targets, tiers=kinds, seed=spec.seed, **scheme)
    attack = spec.attack
    return Experiment(
        world=_world(spec, family, data, shares, device),
        strategy=strategy,
        data=data,
        shares=shares,
        local=spec.local,
        options=Options(
            sampled=sampled,
            evaluate_every=spec.evaluate.every,
            evaluate_after=spec.evaluate.after or 0.0,
            fine_tune=spec.evaluate.fine_tune or 0,
            batch=spec.evaluate.batch,
            statistics=spec.evaluate.statistics,
            device=device,
        ),
        malicious=malicious(range(count), attack.fraction, spec.seed) if attack else frozenset(),
        intensity=attack.intensity if attack else 0.0,
        text=as_resolved(spec, strategy, root),
        facts=_facts(spec, strategy, family, data),
    )


def _family(spec: ExperimentSpec) -> FamilySpec:
    return load_family(spec.family) if isinstance(spec.family, str) else spec.family


def _world(
    spec: ExperimentSpec,
    family: Family,
    data: Dataset,
    shares: tuple[np.ndarray, ...],
    device: str,
) -> World:
    for member in family.clients:
        if member.name == GLOBAL:
            raise RunError(
                "the name stands for the global model",
                where="family",
                found=f"clients named {GLOBAL}",
                hint="choose another name",
            )
    members = [member for member in family.clients for _ in range(member.count)]
    clients = tuple(
        Client(
            id=i,
            name=member.name,
            graph=member.graph,
            transfer=member.transfer,
            examples=len(own),
            histogram=histogram(data.train.targets[torch.from_numpy(own)], data.classes),
        )
        for i, (member, own) in enumerate(zip(members, shares, strict=True))
    )
    state = family.state if family.state is not None else initial_state(family.graph, spec.seed)
    return World(
        graph=family.graph,
        state=state,
        clients=clients,
        tiers=tuple(_tier(m, family, state, spec.seed) for m in family.clients),
        classes=data.classes,
        rounds=spec.rounds,
        seed=spec.seed,
        device=device,
    )


def _tier(member: Member, family: Family, state: State, seed: int) -> Tier:
    """A kind of client as an offer; without a global model it starts from weights of its own."""
    if member.state is not None:
        return Tier(member.name, member.graph, member.transfer, member.state, own=True)
    if family.has_global:
        return Tier(member.name, member.graph, member.transfer, state)
    drawn = initial_state(member.graph, seed)
    return Tier(member.name, member.graph, member.transfer, drawn, own=True)


def _sampled(sample: float | int, clients: int) -> int:
    """Clients in a round.

    >>> _sampled(0.1, 25), _sampled(1.0, 25), _sampled(7, 25), _sampled(0.01, 25)
    (3, 25, 7, 1)
    """
    if isinstance(sample, float):
        return max(int(sample * clients + 0.5), 1)
    if sample > clients:
        raise RunError(
            "more clients in a round than there are",
            where="sample",
            found=sample,
            expected=f"1...{clients}, or a share written with a point",
        )
    return sample


def _device(name: str) -> str:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise RunError(
            "cannot compute there",
            where="engine.device",
            found=f"{name!r} ({str(error).splitlines()[0]})",
            expected="cpu, or a device that this machine and this torch have",
        ) from error
    return name


def matched(family: Family, data: Dataset) -> tuple[Family, Dataset]:
    """The family with models that all take the same inputs, and the data with these.

    Of the inputs that the data offers by name those stay that some model asks for. Every model then
    takes them in the data's order; what it does not ask for itself, it does not use. So one
    minibatch suits all models of a client, and a model with one input is as it was where nobody
    asks for more.

    Raises:
        RunError: If a model does not fit the data; see :func:`fits`.
    """
    graphs = [g for g in (family.graph, *(m.graph for m in family.clients)) if g.nodes]
    asked = {key for graph in graphs if len(graph.inputs) > 1 for key, _ in graph.inputs}
    data = data.with_only(asked)
    made: dict[ArchGraph, ArchGraph] = {}
    for graph in graphs:
        if graph not in made:
            made[graph] = fitted(graph, data)
            fits(made[graph], data)
    members = tuple(
        dataclasses.replace(member, graph=made.get(member.graph, member.graph))
        for member in family.clients
    )
    graph = made.get(family.graph, family.graph)
    return dataclasses.replace(family, graph=graph, clients=members), data


def fitted(graph: ArchGraph, data: Dataset) -> ArchGraph:
    r"""The architecture with the data's named inputs in their order; the same function of them.

    The only input of a model may be called anything; it is the data's first.

    Raises:
        RunError: If it asks for an input that the data does not have.

    Example:
        >>> from archgraph.engine.data import Split
        >>> from archgraph.graph.text import parse
        >>> ids = torch.zeros(4, 3, dtype=torch.int16)
        >>> split = Split(ids, torch.zeros(4, dtype=torch.int64), beside={"mask": ids})
        >>> data = Dataset("pairs", "text", 2, (3,), split, split, ("no", "yes"), ("ids", "mask"))
        >>> graph = parse("%x: int64[batch, 3] = input()\nforward x = %x\nreturn %x")
        >>> [key for key, _ in fitted(graph, data).inputs]
        ['x', 'mask']
    """
    if len(data.inputs) < 2:
        return graph
    own = dict(graph.inputs)
    alone = len(own) == 1
    unknown = [key for key in own if key not in data.inputs and not alone]
    if unknown or not own:
        raise RunError(
            "the model takes an input that the data does not have",
            where=graph.name or "model",
            found=", ".join(unknown) or "no input",
            expected=f"some of {', '.join(data.inputs)} ({data.name})",
        )
    taken = set(graph.node) | set(own)
    inputs: list[tuple[str, Value]] = []
    added: list[Node] = []
    for place, name in enumerate(data.inputs):
        key = next(iter(own)) if alone and place == 0 else name
        if key in own:
            inputs.append((key, own[key]))
            continue
        shape = (Batch(), *(data.train.beside[name] if place else data.train.inputs).shape[1:])
        node = Node(fresh(taken, name), "input", (), TensorType(shape, "int64"))
        added.append(node)
        inputs.append((name, Ref(node.name)))
    first = [graph.node[ref] for _, value in graph.inputs for ref in refs(value)]
    order = {ref: i for i, (_, value) in enumerate(inputs) for ref in refs(value)}
    leading = sorted((*first, *added), key=lambda node: order[node.name])
    rest = [node for node in graph.nodes if node.op != "input"]
    return graph.replace(inputs=tuple(inputs), nodes=(*leading, *rest))


def fits(graph: ArchGraph, data: Dataset) -> None:
    """Check that a model takes the data's examples and knows its words and classes.

    Raises:
        RunError: Says what the model takes or gives, and what the data is.
    """
    where = graph.name or "model"
    inputs = [node for node in graph.nodes if node.op == "input"]
    shapes = [data.shape, *(tuple(x.shape[1:]) for x in data.train.beside.values())]
    if [tuple(node.shape[1:]) for node in inputs] != shapes:
        wanted = f"one input of shape {data.shape}"
        if len(shapes) > 1:
            named = zip(data.inputs, shapes, strict=True)
            wanted = ", ".join(f"{name} of shape {shape}" for name, shape in named)
        raise RunError(
            "the model does not take this data",
            where=where,
            found=", ".join(str(node.type) for node in inputs) or "no input",
            expected=f"{wanted} per example ({data.name})",
        )
    integral = inputs[0].dtype.startswith("int")
    if integral != data.integral:
        raise RunError(
            "the model takes another kind of input",
            where=where,
            found=inputs[0].dtype,
            expected="integers for text, floating point numbers for images",
        )
    for name, node in zip(data.inputs[1:], inputs[1:], strict=True):
        if node.dtype != "int64":
            raise RunError(
                "the model takes another kind of input",
                where=f"{where}: {name}",
                found=node.dtype,
                expected="int64",
            )
    output = _logits(graph.outputs)
    if output is not None:
        logits = graph.node[output.name]
        if not logits.shape or logits.shape[-1] != data.classes:
            raise RunError(
                "the model does not know these classes",
                where=where,
                found=f"output {logits.type}",
                expected=f"{data.classes} logits in the last axis ({data.name})",
            )
    if data.integral:
        _knows_words(graph, data)


def _logits(outputs: Value) -> Ref | None:
    """The output that :class:`archgraph.federation.Logits` takes, where it is clear."""
    if isinstance(outputs, Record):
        fields = dict(outputs.fields)
        outputs = fields.get("logits", next(iter(fields.values())) if len(fields) == 1 else None)
    return outputs if isinstance(outputs, Ref) else None


def _knows_words(graph: ArchGraph, data: Dataset) -> None:
    """Check that a model has an embedding of the data's largest number: it is run on that."""
    split = max((data.train, data.test), key=lambda split: int(split.inputs.max()))
    largest = split.inputs.flatten(1).max(1).values
    example = int(largest.argmax())
    inputs, _ = split.examples(slice(example, example + 1))
    zeros = {p.name: torch.zeros(p.shape, dtype=torch_dtype(p.dtype)) for p in graph.params}
    module = build(graph, {name: zeros[name] for name in graph.state_names}).eval()
    try:
        with torch.inference_mode():
            module(*inputs)
    except IndexError as error:
        most = int(largest.max())
        beside = ", ".join(f"{name} up to {int(x.max())}" for name, x in split.beside.items())
        raise RunError(
            "the model does not know these words",
            where=graph.name or "model",
            found=f"the number {most}, and an embedding of fewer rows",
            expected=f"an embedding of at least {most + 1} rows ({data.name})",
            hint="enlarge the model's vocabulary, or write a smaller data.vocabulary"
            + (f"; further inputs: {beside}" if beside else ""),
        ) from error


def as_resolved(spec: ExperimentSpec, strategy: Strategy, root: Path | None) -> str:
    """The experiment as YAML with every default written out; :func:`prepare` reads it back."""
    values = _plain(spec, strategy)
    values["family"] = _family(spec).model_dump(mode="json", by_alias=True, exclude_none=True)
    if root is not None:
        values["data"]["root"] = str(root)
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # annotated None
    yaml.dump(values, stream)
    return stream.getvalue()


def _plain(spec: ExperimentSpec, strategy: Strategy) -> dict[str, Json]:
    values = spec.model_dump(mode="json", by_alias=True, exclude={"family"}, exclude_none=True)
    options = pydantic_core.to_jsonable_python(strategy)
    python = "python" in spec.strategy
    values["strategy"] = (
        {"python": spec.strategy_name, **options} if python else {spec.strategy_name: options}
    )
    return values


def _facts(
    spec: ExperimentSpec, strategy: Strategy, family: Family, data: Dataset
) -> Mapping[str, Json]:
    """All that decides the numbers of a run, by content and not by the names of files."""
    values = _plain(spec, strategy)
    for name in ("name", "out", "engine", "evaluate"):
        values.pop(name, None)
    for place in ("root", "tokenizer"):
        values["data"].pop(place, None)
    return {
        **values,
        "graph": family.graph.digest,
        "state": None if family.state is None else _content(family.state),
        "family": {
            member.name: {
                "count": member.count,
                "graph": member.graph.digest,
                "transfer": member.transfer.digest,
                "state": None if member.state is None else _content(member.state),
            }
            for member in family.clients
        },
        "examples": _content(
            {
                f"{name}/{part}": tensor
                for name, split in (("train", data.train), ("test", data.test))
                for part, tensor in (
                    ("inputs", split.inputs),
                    ("targets", split.targets),
                    *split.beside.items(),
                )
            }
        ),
    }


def _content(tensors: State) -> str:
    """SHA-256 of tensors, names and all."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
