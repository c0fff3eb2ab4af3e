"""The files in specs/: each one loads, and says what its paper says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
import torchvision

from archgraph.analysis.structure import structure
from archgraph.engine.loading import load
from archgraph.federation import configure, resolve
from archgraph.graph.ir import ArchGraph, Ref, size_at
from archgraph.graph.passes import prune
from archgraph.language import flat, load_experiment, load_family, load_model
from archgraph.language.model import AuthoredModel
from archgraph.language.yaml import parse_document, read_document
from archgraph.module.build import build
from archgraph.studies import load_study
from archgraph.studies.spec import cells
from tests.language.test_lower import assert_lawful, assert_traces_to_itself

SPECS = Path(__file__).parents[2] / "specs"
# Those that are Python callables are captured where their figures are compared (tests/papers).
MODELS = [
    file
    for file in sorted((SPECS / "models").glob("*.yaml"))
    if "python" not in read_document(file).data
]


def parameters(graph: ArchGraph) -> int:
    return sum(math.prod(p.shape) for p in graph.params if p.role == "parameter")


def original(name: str) -> ArchGraph:
    """A model of FedFA with every depth at 1, below its candidates."""
    text = (SPECS / "models" / f"{name}.yaml").read_text().partition("choices:")[0]
    return load_model(parse_document(re.sub(r"\b(d\d): \d", r"\1: 1", text), name))[0]


@pytest.mark.sample(8)
@pytest.mark.parametrize("file", MODELS, ids=lambda f: f.stem)
def test_models_are_lawful_and_run(file: Path) -> None:
    graph = load(file)
    assert graph.name == file.stem
    assert_lawful(graph)
    (node,) = (n for n in graph.nodes if n.op == "input")
    shape = [size_at(s, {"batch": 2}) for s in node.shape]
    x = torch.zeros(shape, dtype=getattr(torch, node.dtype))
    result = build(graph).eval()(x)
    assert list(result.shape) == [size_at(s, {"batch": 2}) for s in graph.nodes[-1].shape]
    assert flat.read_flat(parse_document(flat.dump(graph), "flat")) == graph


@pytest.mark.parametrize(
    "name",
    [
        "small_cnn",
        pytest.param("transformer", marks=pytest.mark.full),
        pytest.param("efficientnet_v2", marks=pytest.mark.full),
    ],
)
def test_models_trace_to_themselves(name: str) -> None:
    assert_traces_to_itself(load(SPECS / "models" / f"{name}.yaml"))


@pytest.mark.sample(7)
@pytest.mark.parametrize("file", MODELS, ids=lambda f: f.stem)
def test_every_candidate_can_be_chosen(file: Path) -> None:
    document = read_document(file)
    if "choices" not in document.data:
        return
    model = document.validate(AuthoredModel)
    whole = load(file, {k: max(v) for k, v in model.choices.items()})
    smallest = load(file, {k: min(v) for k, v in model.choices.items()})
    # One set of names for all: whatever a client chooses, the largest has it.
    assert {p.name for p in smallest.params} <= {p.name for p in whole.params}
    for key, candidates in model.choices.items():
        for value in candidates:
            chosen = load(file, {key: value})
            assert {p.name for p in chosen.params} <= {p.name for p in whole.params}
            for param in chosen.params:
                assert all(
                    a <= b for a, b in zip(param.shape, whole.param[param.name].shape, strict=True)
                )


def test_mobilenet_is_the_original_at_depth_1() -> None:
    ours = original("mobilenet_v2")
    theirs = torchvision.models.mobilenet_v2(num_classes=100)
    shapes = sorted(tuple(p.shape) for p in theirs.parameters())
    assert sorted(p.shape for p in ours.params if p.role == "parameter") == shapes


def test_pre_resnet_is_resnet18_at_depth_1() -> None:
    ours = original("pre_resnet")
    theirs = torchvision.models.resnet18(num_classes=10)
    weights = {tuple(p.shape) for p in theirs.parameters() if p.dim() == 4 and p.shape[1] != 3}
    mine = {p.shape for p in ours.params if len(p.shape) == 4 and p.shape[1] != 3}
    assert mine - weights == {(64, 64, 1, 1)}  # the projection of stage1.0
    assert len([p for p in ours.params if len(p.shape) == 4]) == 20 + 1
    assert parameters(ours) == 11_176_266


def test_lenet5_has_61706_parameters() -> None:
    assert parameters(load(SPECS / "models" / "lenet5.yaml")) == 61_706


def test_the_transformer_is_that_of_table_4() -> None:
    graph = load(SPECS / "models" / "transformer.yaml")
    shapes = {p.name: p.shape for p in graph.params}
    assert shapes["encoder.0.attention.attention.qkv.weight"] == (192, 64)
    assert shapes["encoder.0.attention.attention.out.weight"] == (64, 64)
    assert shapes["head.linear.weight"] == (28782, 64)


@pytest.mark.parametrize("name", ["digits_cnn", "pre_resnet", "mobilenet_v2", "efficientnet_v2"])
def test_a_plain_twin_is_the_model_with_every_shortcut_cut(name: str) -> None:
    """Every sum passes on its branch alone: what is left is the twin, operator by operator."""
    whole, twin = (load(SPECS / "models" / f"{name}{end}.yaml") for end in ("", "_plain"))
    branch = {
        merge: next(
            v.name for _, v in whole.node[merge].args if isinstance(v, Ref) and v.name != shortcut
        )
        for block in structure(whole).blocks
        for merge, shortcut in block.sums
    }
    assert branch, "a twin of a model without shortcuts"
    cut = prune(
        whole.mapped(
            lambda v: Ref(branch[v.name]) if isinstance(v, Ref) and v.name in branch else v
        )
    )
    assert {p.name: p.shape for p in cut.params} == {p.name: p.shape for p in twin.params}
    assert [(n.op, n.shape) for n in cut.nodes] == [(n.op, n.shape) for n in twin.nodes]


TWINS = sorted((SPECS / "families").glob("fedfa_[!s]*_plain.yaml"))


@pytest.mark.sample(4)
@pytest.mark.parametrize("file", TWINS, ids=lambda f: f.stem)
def test_families_of_twins_differ_in_shortcuts_only(file: Path) -> None:
    skip = file.with_name(file.name.replace("_plain", "_skip"))
    models = [resolve(load_family(f)).models for f in (skip, file)]
    assert list(models[0]) == list(models[1]) == ["global", "one", "two", "three"]
    for name, whole in models[0].items():
        ours = {p.name: p.shape for p in whole.params if ".shortcut." not in p.name}
        assert ours == {p.name: p.shape for p in models[1][name].params}


CANDIDATES = {
    "pre_resnet": {
        **dict.fromkeys(("d1", "d2", "d3", "d4"), (2, 3, 4, 5)),
        "w1": (64, 72, 80, 88),
        "w2": (128, 144, 160, 176),
        "w3": (256, 288, 320, 352),
        "w4": (512, 576, 640, 704),
    },
    "mobilenet_v2": {
        **dict.fromkeys(("d1", "d2", "d3", "d4"), (2, 3, 4, 5)),
        "w1": (16, 24),
        "w2": (24, 32),
        "w3": (32, 40, 48),
        "w4": (64, 70, 80, 88),
        "w5": (96, 112, 120, 136),
        "w6": (160, 184, 200, 224),
        "w7": (320, 360, 400, 440),
    },
    "efficientnet_v2": {
        **dict.fromkeys(("d1", "d2", "d3", "d4", "d5"), (2, 3, 4, 5)),
        "w1": (24,),
        "w2": (24, 32),
        "w3": (48, 56, 64),
        "w4": (64, 72, 80, 88),
        "w5": (128, 144, 160, 176),
        "w6": (160, 184, 200, 224),
        "w7": (256, 288, 320, 352),
    },
    "transformer": {"d1": (2, 3, 4, 5), "w1": (64, 72, 80, 88)},
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_are_those_of_table_5(name: str) -> None:
    model = read_document(SPECS / "models" / f"{name}.yaml").validate(AuthoredModel)
    # How many words or classes there are is the data's choice, not the paper's.
    ours = {k: v for k, v in model.choices.items() if k not in ("vocabulary", "classes")}
    assert ours == CANDIDATES[name]


@pytest.mark.parametrize("file", sorted((SPECS / "families").glob("*.yaml")), ids=lambda f: f.stem)
def test_families_load(file: Path) -> None:
    assert load_family(file).name == file.stem


@pytest.mark.parametrize("name", ["fedfa_digits", "fedfa_fashion"])
def test_half_of_the_clients_run_the_smallest(name: str) -> None:
    family = load_family(SPECS / "families" / f"{name}.yaml")
    counts = {m.name: m.count for m in family.clients}
    assert counts["small"] == sum(counts.values()) / 2
    assert len(counts) >= 4


def test_fashion_families_are_twins() -> None:
    counts = [
        sum(m.count for m in load_family(SPECS / "families" / f"{name}.yaml").clients)
        for name in ("fedfa_fashion", "heterofl_fashion")
    ]
    assert counts == [20, 20]


STUDIES = sorted((SPECS / "studies").glob("*.yaml"))


def test_the_docs_list_every_study() -> None:
    text = (SPECS.parent / "docs" / "studies.md").read_text()
    listed: list[str] = []
    for cell in re.findall(r"^\| \w+ \| (`\w+`.*?) \|", text, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", cell):  # `fedfa_table1`, `2`: of the last one's kind
            listed.append(re.sub(r"\d\w*$", name, listed[-1]) if name.isdecimal() else name)
    assert sorted(listed) == sorted(file.stem for file in STUDIES)


@pytest.mark.sample(4)
@pytest.mark.parametrize("file", STUDIES, ids=lambda f: f.stem)
def test_every_cell_of_a_study_is_an_experiment_with_a_strategy(file: Path) -> None:
    study = load_study(file)
    for size in study.sizes:
        every = {id(one.experiment): one.experiment for one in cells(study, size)}
        for experiment in every.values():
            configure(experiment.strategy_name, experiment.strategy_options)


EXPERIMENTS = sorted((SPECS / "experiments").rglob("*.yaml"))


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda f: f.stem)
def test_experiments_load(file: Path) -> None:
    spec = load_experiment(file)
    assert spec.name == file.stem
    assert not isinstance(spec.family, str)
    if file.stem.endswith("_attacked"):
        assert spec.attack is not None
        assert (spec.attack.fraction, spec.attack.intensity) == (0.2, 20.0)
        clean = load_experiment(file.with_name(file.name.replace("_attacked", "")))
        changed = spec.model_copy(update={"attack": None, "name": clean.name, "family": None})
        assert changed == clean.model_copy(update={"family": None})


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda f: f.stem)
def test_experiments_configure_strategies_that_take_their_families(file: Path) -> None:
    """What `init` would refuse of a shipped experiment, without its data."""
    ((name, options),) = load_experiment(file).strategy.items()
    strategy = configure(name, options)
    if getattr(strategy, "scaler", False):
        assert strategy.norm == "static"  # type: ignore[attr-defined]  # who scales has it
