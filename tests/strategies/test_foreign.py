"""Models that were not prepared, from a family file alone: every strategy runs on every one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.engine import world
from archgraph.federation.family import Family
from archgraph.language.data import NamedData
from archgraph.language.experiment import STRATEGIES, EvaluateSpec, ExperimentSpec
from archgraph.language.family import FamilySpec
from archgraph.language.local import LocalOptions
from archgraph.language.yaml import parse_document

FAMILIES = Path(__file__).parents[2] / "specs" / "families"
MODELS = ("resnet18", "mobilenet_v2", "vit", "bert")

# Methods that run on some of them here, to save time.
SOME: Mapping[str, tuple[str, ...]] = {
    "adaptivefl_pool": ("mobilenet_v2", "bert"),
    "clusteredfl": ("vit",),
    "depthfl": ("mobilenet_v2", "vit"),
    "feddistill": ("mobilenet_v2",),
    "fedgkt": ("mobilenet_v2",),
    "fedmd": ("resnet18",),
    "fedproto": ("vit",),
    "fml": ("vit", "bert"),
    "fedit": ("bert",),
    "fedrolex": ("mobilenet_v2", "vit"),
    "ffa_lora": ("vit",),
    "fiarse": ("mobilenet_v2", "vit"),
    "fjord": ("vit", "bert"),
    "flexfl_pool": ("mobilenet_v2", "bert"),
    "flexlora": ("resnet18", "bert"),
    "flora": ("mobilenet_v2", "bert"),
    "hetlora": ("resnet18", "vit"),
    "inclusivefl": ("vit", "bert"),
    "matched": ("vit",),
    "rank_mean": ("bert",),
    "rolora": ("mobilenet_v2",),
    "scalefl": ("mobilenet_v2", "vit"),
}

# Where networks get exits for methods that end at one. Those of BERT would answer once for a text.
EXITS = {
    "mobilenet_v2": "features.7",
    "vit": "encoder.layers.encoder_layer_1",
}

# Kinds of client that a method can serve, where it cannot serve all.
KINDS: Mapping[str, tuple[str, ...]] = {
    "fedavg": ("whole",),  # averages one architecture
    "fedit": ("whole",),  # averages one rank
    "fedin": ("whole", "short"),  # all clients share first and last layers
    "fedrolex": ("whole", "half"),  # slices, and nothing else
    "fjord": ("whole", "half"),  # of two clients one is a part of the other
    "heterofl": ("whole", "half"),  # slices, and nothing else
    "matched": ("whole", "half"),  # widths alone differ
    "inclusivefl": ("whole", "short"),  # the first layers at full width
}
# No state of a global model's form on the server.
WITHOUT_GLOBAL = frozenset(
    {"clusteredfl", "exclusivefl", "fedgkt", "fedin", "flexifed", "recipfl", "standalone"}
    | {"feddistill", "fedmd", "fedproto", "fml"}
)
# A hypernetwork that is small enough for a test; of words there are too many for a histogram.
SMALL = {"width": 16, "hidden": 16, "tile": 8}
GLOBAL_ALONE = {"fedavg"}  # methods that test no kind of client
# What a method has to be told: a layer that ends in a norm has no form of the identity.
OPTIONS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("fedadp", "bert"): {"approximate": True},
    ("fedgkt", "mobilenet_v2"): {"after": EXITS["mobilenet_v2"], "server_epochs": 1},
    **{("flexfl_pool", model): {"apoz": {"*": 0.5}} for model in MODELS},
    **{("recipfl", model): {**SMALL, "descriptor": "id"} for model in MODELS},
}


@functools.cache
def family_of(model: str) -> tuple[FamilySpec, Family]:
    """The shipped file, its models captured once for all strategies."""
    spec = ag.load_family(FAMILIES / f"foreign_{model}.yaml")
    return spec, ag.resolve(spec, python=True)


AT_EXIT = """change: {{add_exits: {{{0}: 10}}}}
clients:
  - {{name: whole}}
  - {{name: short, ends_after: {{section: {0}}}}}
"""
# What is in front of the server's part, with a classifier.
EDGE = "clients: [{{name: edge, ends_after: {{section: {0}, head: 10}}}}]"
RANKS = "change: {{add_lora: 4}}\nclients: [{{name: whole}}, {{name: low, rank: 2}}]"
# Clients that are not those of the file.
OWN = {"depthfl": AT_EXIT, "scalefl": AT_EXIT, "fedgkt": EDGE}
OWN |= dict.fromkeys(
    ("fedit", "ffa_lora", "flexlora", "flora", "hetlora", "rank_mean", "rolora"), RANKS
)


@functools.cache
def family_with(clients: str, model: str) -> tuple[FamilySpec, Family]:
    """The same with other clients."""
    text = (FAMILIES / f"foreign_{model}.yaml").read_text().partition("clients:")[0]
    text += clients.format(EXITS.get(model, ""))
    spec = parse_document(text, f"{model}.yaml").validate(FamilySpec)
    return spec, ag.resolve(spec, python=True)


def examples(spec: FamilySpec) -> Dataset:
    """Noise of the form that the family's model takes."""
    assert isinstance(spec.model, dict)
    ((_, given),) = spec.model["inputs"].items()
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        if isinstance(given, Mapping):
            words = torch.randint(1000, (count, *given["shape"]), generator=draw)
            return Split(words, words.roll(-1, 1))
        images = torch.randint(256, (count, *given), generator=draw).to(torch.uint8)
        return Split(images, torch.arange(count) % 10, torch.full((3,), 128.0), torch.ones(3))

    text = isinstance(given, Mapping)
    shape = tuple(given["shape"] if isinstance(given, Mapping) else given)
    classes = 33278 if text else 10
    labels = tuple(map(str, range(classes)))
    size = 6 if text else 30
    kind: Any = "text" if text else "image"
    return Dataset("noise", kind, classes, shape, split(size), split(size // 3), labels)


# Of words and of images one that takes a second.
QUICK = {("fedavg", "bert"), ("flexifed", "mobilenet_v2")}


def experiment(
    monkeypatch: pytest.MonkeyPatch, strategy: str, model: str, options: Mapping[str, Any]
) -> ExperimentSpec:
    """Two rounds on noise with one client of each kind, at least two."""
    special = OWN.get(strategy)
    spec, family = family_with(special, model) if special else family_of(model)
    kinds = KINDS.get(strategy, tuple(member.name for member in spec.clients))
    count = 1 if len(kinds) > 1 else 2
    own = tuple(
        member.model_copy(update={"count": count})
        for member in spec.clients
        if member.name in kinds
    )
    clients = tuple(
        dataclasses.replace(member, count=count)
        for member in family.clients
        if member.name in kinds
    )
    data = examples(spec)
    monkeypatch.setattr(world, "read_data", lambda *_: data)
    monkeypatch.setattr(world, "resolve", lambda _: dataclasses.replace(family, clients=clients))
    return ExperimentSpec(
        name="foreign",
        family=spec.model_copy(update={"clients": own}),
        data=NamedData(dataset=data.name),
        strategy={strategy: dict(options)},
        rounds=2,
        local=LocalOptions(batch=3 if data.kind == "text" else 5, lr=0.01),
        evaluate=EvaluateSpec(every=2),
        public=6 if strategy == "fedmd" else None,
    )


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        pytest.param(name, model, marks=[pytest.mark.full] * ((name, model) not in QUICK))
        for name in sorted({e.name for e in entry_points(group=STRATEGIES)})
        for model in SOME.get(name, MODELS)
    ],
)
def test_two_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strategy: str, model: str):
    asked = experiment(monkeypatch, strategy, model, OPTIONS.get((strategy, model), {}))
    done = ag.run(asked, out=tmp_path / "run", progress=False)
    assert isinstance(asked.family, FamilySpec)
    names = {member.name for member in asked.family.clients}
    clients = sum(member.count for member in asked.family.clients)
    for line in done.rounds:
        assert (line["rejected"], line["failed"]) == ([], [])
        assert [report["client"] for report in line["clients"]] == list(range(clients))
        assert all(report["loss"] is not None for report in line["clients"])
    models = done.rounds[-1]["evaluation"]["models"]
    if strategy == "fedgkt":  # alone, and with the server
        names |= {f"{name}+server" for name in names}
    assert set(models) - {"global"} == (set() if strategy in GLOBAL_ALONE else names)
    assert all(math.isfinite(figures["loss"]) for figures in models.values())
    # Whatever is shared has learnt: it is not where it began.
    group = done.server.group("global")
    initial = done.experiment.world.state
    changed = [
        name
        for name, tensor in group.items()
        if tensor.is_floating_point() and name in initial and not torch.equal(tensor, initial[name])
    ]
    assert changed or strategy in WITHOUT_GLOBAL


def test_what_cannot_be_grown_exactly_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ag.RunError, match=r"layer_norm.*no identity form.*approximate"):
        ag.run(experiment(monkeypatch, "fedadp", "bert", {}), progress=False)
