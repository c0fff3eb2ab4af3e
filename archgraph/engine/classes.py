"""Kinds of client with classes of their own: which these are, and whether all goes together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from archgraph.data import Dataset
from archgraph.data.classes import class_numbers, of_classes
from archgraph.data.schemes import ShardIndices
from archgraph.errors import ArchGraphError, DataError, RunError
from archgraph.federation import LearningTask, Strategy
from archgraph.federation.class_heads import class_cut
from archgraph.federation.family import Family
from archgraph.hints import listed
from archgraph.language import ExperimentSpec
from archgraph.language.family import FamilySpec, MemberSpec
from archgraph.language.model import FOLDER, absolute_path
from archgraph.language.yaml import read_document

WHERE = "family.clients"


def in_order_of_folder(data: Dataset, spec: FamilySpec) -> Dataset:
    """Return the data with its classes in the order in which the model's folder has their names.

    A head that was trained before, and who reads the result's ``id2label``, go by this order.

    Args:
        data: The data.
        spec: The family; of its global model the folder of transformers, if it is from one.
    """
    model, base = spec.model, Path()
    if isinstance(model, str) and model != "join":
        model, base = read_document(model).data, Path(model).parent.absolute()
    args = model.get("args") if isinstance(model, Mapping) else None
    folder = args.get(FOLDER) if isinstance(args, Mapping) else None
    file = Path(absolute_path(str(folder), base)) / "config.json"
    if not data.labels or not data.classified or data.train.stream or not file.is_file():
        return data
    names = json.loads(file.read_text(encoding="utf-8")).get("id2label") or {}
    order = [names[number] for number in sorted(names, key=int)]
    if order == [*data.labels] or sorted(order) != sorted(data.labels):
        return data
    return of_classes(data, tuple(map(data.labels.index, order)))


def with_classes(
    family: Family, members: Sequence[MemberSpec], data: Dataset, learning: LearningTask
) -> Family:
    """Return the family with the numbers of the classes that its kinds of client name.

    Args:
        family: Its architectures answer with all classes.
        members: What its file says of each kind.
        data: The data.
        learning: The learning task.

    Raises:
        DataError: If the data does not have a class, or no test example of a kind's classes.
        RunError: If targets are not one class per example.
        RewriteError: If a head cannot be cut.
    """
    tiers = []
    for i, (tier, member) in enumerate(zip(family.clients, members, strict=True)):
        try:
            if member.classes is not None:
                tier = dataclasses.replace(tier, classes=_classes(member.classes, data, learning))
            if tier.classes:
                class_cut(tier.graph, data.classes or 0, tier.classes)
        except ArchGraphError as error:
            raise error.within(f"{WHERE}.{i}.classes") from error
        tiers.append(tier)
    return dataclasses.replace(family, clients=tuple(tiers))


def _classes(names: Sequence[str | int], data: Dataset, learning: LearningTask) -> tuple[int, ...]:
    if not (learning.per_example and data.classified):
        message = "is for data with one class for each example"
        raise RunError(message, found=f"{learning.name} ({data.name})", hint="remove it")
    classes = class_numbers(names, data)
    if classes and not len(of_classes(data, classes).test):
        raise DataError("the test data has no example of these classes", found=listed(names))
    return classes


def check_classes(spec: ExperimentSpec, strategy: Strategy, family: Family) -> None:
    """Check that an experiment whose clients have classes of their own can be run.

    Raises:
        RunError: If the strategy or another key does not go together with them.
    """
    kinds = [tier.name for tier in family.clients if tier.classes]
    among = spec.attack is not None and spec.attack.among
    # Each key, whether it is there, and why not.
    for where, said, reason in (
        (f"strategy.{spec.strategy_name}", strategy.one_head, strategy.one_head),
        ("attack.among", among, "labels of one client mean other classes to the next"),
        ("evaluate.answers", spec.evaluate.answers, "models are tested on different examples"),
    ):
        if kinds and said:
            with spec.locating(where.partition(".")[0]):
                raise RunError(
                    f"does not serve clients with classes of their own: {reason}",
                    where=where,
                    found=f"`classes` of {', '.join(kinds)}",
                    hint="remove one of the two",
                )


def of_their_classes(
    shares: ShardIndices, tiers: Sequence[tuple[str, tuple[int, ...]]], data: Dataset
) -> ShardIndices:
    """Return shares without the examples of classes that a client does not have.

    Args:
        shares: Positions of each client's examples.
        tiers: Of each client its kind and that kind's classes; empty: all.
        data: The data.

    Raises:
        DataError: If a client is left without examples.
    """
    targets, parts = data.train.targets.numpy(), []
    for client, (share, (kind, classes)) in enumerate(zip(shares, tiers, strict=True)):
        part = share[np.isin(targets[share], classes)] if classes else share
        if not len(part):
            names = data.labels or tuple(map(str, range(data.classes or 0)))
            raise DataError(
                "none of its examples is of its classes",
                where=f"{WHERE}: client {client} ({kind})",
                found=listed([names[n] for n in np.unique(targets[share]) if n >= 0]),
                expected=listed([names[n] for n in classes]),
                hint="choose a partition, owners or classes that go together",
            )
        parts.append(part)
    return tuple(parts)
