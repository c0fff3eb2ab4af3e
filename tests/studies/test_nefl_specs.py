"""NeFL's submodels: the families are the tables XII to XVII of the paper."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.analysis.structure import structure
from archgraph.engine.facts import family_of
from archgraph.engine.pretrained import pretrained_family
from archgraph.federation import configure
from archgraph.graph.ir import ArchGraph
from archgraph.language import load_family
from archgraph.language.data import NamedData
from archgraph.module.initial import initial_state
from archgraph.studies import load_study
from archgraph.studies.spec import cells

SPECS = Path(__file__).parents[2] / "specs"
FAMILIES = sorted(f.stem for f in (SPECS / "families").glob("nefl_*.yaml"))
STUDIES = ("nefl_table6", "nefl_table7", "nefl_table10", "nefl_table11")
EXPERIMENTS = {
    f"{name}-{cell.row}-{cell.column}": cell.experiment
    for name in STUDIES
    for cell in cells(load_study(SPECS / "studies" / f"{name}.yaml"), "paper")
    if cell.experiment is not None
}

# The vectors of the tables, one for each submodel; `9*1` is a run of ones.
WHOLE = {
    "18": "2*1|2*1|2*1|2*1",
    "34": "3*1|4*1|6*1|3*1",
    "56": "9*1|9*1|9*1",
    "110": "18*1|18*1|18*1",
}
TABLES = {f"nefl_resnet{size}_w": 5 * (vector,) for size, vector in WHOLE.items()} | {
    "nefl_resnet110_w04": 5 * (WHOLE["110"],),
    "nefl_resnet18_d": (
        "1,1|0,0|1,1|0,0",
        "1,1|1,1|0,0|1,0",
        "1,1|1,1|1,1|1,0",
        "1,0|1,1|0,0|1,1",
        WHOLE["18"],
    ),
    "nefl_resnet18_d_paper": (
        "1,1|0,0|1,1|0,0",
        "1,0|0,0|1,0|1,0",
        "1,1|1,1|1,1|1,0",
        "1,0|1,1|0,0|1,1",
        WHOLE["18"],
    ),
    "nefl_resnet18_wd": ("1,1|1,1|1,1|1,0", *4 * (WHOLE["18"],)),
    "nefl_resnet34_d": (
        "1,0,0|1,0,0,0|1,0,0,0,0,0|1,0,0",
        "1,1,1|1,1,1,1|1,1,0,0,0,1|1,0,0",
        "1,1,1|1,1,1,1|1,1,0,0,0,1|1,0,1",
        "1,1,1|1,0,0,1|1,1,0,0,0,1|1,1,1",
        WHOLE["34"],
    ),
    "nefl_resnet34_wd": (
        "1,1,1|1,0,0,1|1,0,0,0,0,1|1,0,1",
        "1,1,1|1,0,0,1|1,1,1,0,0,1|1,0,1",
        "1,1,1|1,1,1,1|1,1,1,1,0,1|1,0,1",
        "1,1,1|1,1,1,1|1,1,1,0,0,1|1,1,1",
        WHOLE["34"],
    ),
    "nefl_resnet56_d": (
        "2*1,7*0|2*1,7*0|2*1,7*0",
        "3*1,6*0|3*1,6*0|4*1,5*0",
        "4*1,5*0|4*1,5*0|6*1,3*0",
        "9*1|8*1,0|7*1,2*0",
        WHOLE["56"],
    ),
    "nefl_resnet56_wd": (
        "4*1,5*0|4*1,5*0|4*1,5*0",
        "6*1,3*0|6*1,3*0|6*1,3*0",
        "7*1,2*0|7*1,2*0|7*1,2*0",
        "8*1,0|8*1,0|8*1,0",
        WHOLE["56"],
    ),
    "nefl_resnet110_d": (
        "16*1,2*0|4*1,14*0|3*1,15*0",
        "14*1,4*0|7*1,11*0|7*1,11*0",
        "17*1,0|13*1,5*0|10*1,8*0",
        "16*1,2*0|16*1,2*0|14*1,4*0",
        WHOLE["110"],
    ),
    "nefl_resnet110_wd": (
        "7*1,10*0,1|7*1,10*0,1|7*1,10*0,1",
        "11*1,6*0,1|11*1,6*0,1|11*1,6*0,1",
        "13*1,4*0,1|13*1,4*0,1|13*1,4*0,1",
        "15*1,2*0,1|15*1,2*0,1|15*1,2*0,1",
        WHOLE["110"],
    ),
    "nefl_resnet110_d04": (
        "1,17*0|1,17*0|1,17*0",
        "5*1,13*0|3*1,15*0|3*1,15*0",
        "6*1,12*0|6*1,12*0|7*1,11*0",
        "11*1,7*0|11*1,7*0|12*1,6*0",
        WHOLE["110"],
    ),
    "nefl_resnet110_wd04": (
        "3*1,15*0|3*1,15*0|3*1,15*0",
        "7*1,11*0|7*1,11*0|7*1,11*0",
        "11*1,7*0|11*1,7*0|11*1,7*0",
        "15*1,3*0|15*1,3*0|15*1,3*0",
        WHOLE["110"],
    ),
    "nefl_wide_resnet101_2_d": (
        "3*1|4*1|9*1,14*0|1,1,0",
        "3*1|4*1|14*1,9*0|3*1",
        "3*1|4*1|23*1|3*1",
    ),
    "nefl_vit_b16_d": ("6*1,6*0", "9*1,3*0", "12*1"),
    "nefl_vit_b16_w": ("12*1", "12*1", "12*1"),
}
# γ_W of the submodels as printed.
WIDTHS = {f"nefl_resnet{size}_w": (0.2, 0.4, 0.6, 0.8, 1) for size in WHOLE} | {
    "nefl_resnet110_w04": (0.04, 0.16, 0.36, 0.64, 1),
    "nefl_resnet18_wd": (0.34, 0.4, 0.6, 0.8, 1),
    "nefl_resnet34_wd": (0.38, 0.63, 0.77, 0.90, 1),
    "nefl_resnet56_wd": (0.46, 0.61, 0.77, 0.90, 1),
    "nefl_resnet110_wd": (0.46, 0.60, 0.77, 0.90, 1),
    "nefl_resnet110_wd04": (0.26, 0.42, 0.59, 0.77, 1),
    "nefl_vit_b16_w": (0.5, 0.75, 1),
}  # fmt: skip


def flags(text: str) -> list[list[int]]:
    """The flags of each stage's blocks."""
    runs = [[part.rpartition("*") for part in stage.split(",")] for stage in text.split("|")]
    return [[int(flag) for n, _, flag in stage for _ in range(int(n or 1))] for stage in runs]


@functools.cache
def family(name: str):
    return ag.resolve(load_family(SPECS / "families" / f"{name}.yaml"))


def stages(graph: ArchGraph):
    return [s for s in structure(graph).sections if len(s.blocks) > 1 and s.name != "head"]


def kept(whole: ArchGraph, small: ArchGraph) -> list[list[int]]:
    """1 for each block of the global model whose body the small one has."""
    left = {p.name for p in small.params}
    found: list[list[int]] = []
    for stage in stages(whole):
        found.append([])
        for block in stage.blocks:
            inside = {p.name for p in whole.params if p.name.startswith(f"{block.name}.")}
            body = {name for name in inside if ".shortcut." not in name}
            assert body <= left or not body & left
            assert inside - body <= left, "a projection is gone"
            found[-1].append(int(body <= left))
    return found


def test_every_family_is_in_the_tables() -> None:
    assert set(FAMILIES) == set(TABLES)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_kept_blocks_are_those_of_the_tables(name: str) -> None:
    found = family(name)
    assert [kept(found.graph, m.graph) for m in found.clients] == [*map(flags, TABLES[name])]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_submodels_are_nested(name: str) -> None:
    found = family(name)
    three = name.startswith(("nefl_vit", "nefl_wide"))
    assert [m.count for m in found.clients] == ([3, 3, 4] if three else [20] * 5)
    assert found.clients[-1].graph == found.graph
    sizes = [ag.cost(m.graph).parameters for m in found.clients]
    assert sizes == sorted(set(sizes))
    for member in found.clients:
        for leaf, entry in member.transfer.entries.items():
            assert entry.source == leaf
            assert all(dim is None or (dim.selects and not dim.weights) for dim in entry.dims)
            assert any(entry.dims) <= (name in WIDTHS)
    # Of what both have, the narrower submodel's part is part of the wider one's.
    for small, large in itertools.pairwise(found.clients):
        both = small.transfer.entries.keys() & large.transfer.entries.keys()
        assert both
        for leaf in both:
            pairs = zip(
                small.transfer.entries[leaf].dims, large.transfer.entries[leaf].dims, strict=True
            )
            for few, many in pairs:
                if few is None:
                    assert many is None
                elif many is not None:
                    assert set(few.positions) <= set(many.positions)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_widths_are_the_square_roots(name: str) -> None:
    found = family(name)
    for member, share in zip(found.clients, WIDTHS[name], strict=True):
        for axis in ag.axes(member.graph).free:
            if axis.role == "heads":
                assert axis.size == 12
                continue
            full = ag.axes(found.graph)[axis.name].size
            # The tables round γ_W to two digits.
            near = {math.ceil(round(math.sqrt(share + d) * full, 6)) for d in (-0.005, 0, 0.005)}
            assert min(near) <= axis.size <= min(max(near), full)


def test_models_are_those_of_torchvision() -> None:
    import torchvision.models as original

    for name in ("resnet18", "resnet34", "wide_resnet101_2"):
        ours = ag.load(SPECS / "models" / f"{name}.yaml")
        with torch.device("meta"):
            theirs = getattr(original, name)(num_classes=10)
        shapes = sorted(tuple(p.shape) for k, p in theirs.named_parameters() if k != "conv1.weight")
        mine = sorted(p.shape for p in ours.params if p.role == "parameter")
        stem = theirs.conv1.weight if name.startswith("wide") else torch.empty(64, 3, 3, 3)
        assert mine == sorted([*shapes, tuple(stem.shape)])
    with torch.device("meta"):
        vit = original.vit_b_16(num_classes=10, representation_size=768)
    graph = ag.load(SPECS / "models" / "vit_b16.yaml")
    assert ag.cost(graph).parameters == sum(p.numel() for p in vit.parameters())


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", ["nefl_resnet18_d", "nefl_resnet18_d_paper", "nefl_resnet34_d"])
def test_a_block_that_is_left_out_has_a_step_size_of_zero(name: str) -> None:
    """A submodel computes what the global model does whose step sizes are the table's vectors."""
    found = family(name)
    stepped = ag.add_step_sizes(found.graph)
    state = initial_state(found.graph, seed=1)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for member in found.clients:
        whole = dict(stepped.transfer.pull(state))
        for stage, vector in zip(stages(found.graph), kept(found.graph, member.graph), strict=True):
            for block, flag in zip(stage.blocks, vector, strict=True):
                (step,) = (k for k in whole if k.startswith(f"{block.name}.step_size"))
                whole[step] = torch.tensor(float(flag))
        expected = ag.build(stepped.graph, whole).eval()(x)
        got = ag.build(member.graph, member.transfer.pull(state)).eval()(x)
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert got.std() > 1e-3


def test_attention_and_feed_forward_have_a_step_size_each() -> None:
    found = family("nefl_vit_b16_d")
    for member, layers in zip(found.clients, (6, 9, 12), strict=True):
        stepped = ag.add_step_sizes(member.graph)
        fresh = {p.name for p in stepped.graph.params} - {p.name for p in member.graph.params}
        assert len(fresh) == 2 * layers


def test_flags_for_another_number_of_blocks_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "family.yaml"
    model = SPECS / "models" / "resnet18.yaml"
    client = "{name: a, skip: {keep: {layer1: [FLAGS]}}}"
    text = f"archgraph: 1\nmodel: {model}\nclients:\n  - {client}\n"
    file.write_text(text.replace("FLAGS", "1, 0, 1"))
    with pytest.raises(
        ag.RewriteError, match=r"family\.yaml:4.*skip: layer1: .*found \[1, 0, 1\]; expected 2"
    ):
        ag.resolve(load_family(file))
    file.write_text(text.replace("FLAGS", "1, 2"))
    with pytest.raises(ag.SpecError, match=r"family\.yaml:4: .*\.skip\.keep\.layer1\[1\]"):
        load_family(file)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_the_paper_s(name: str) -> None:
    spec = EXPERIMENTS[name]
    configure(spec.strategy_name, spec.strategy_options)
    assert isinstance(spec.data, NamedData) and spec.data.partition is not None
    assert spec.data.partition.scheme == ("dirichlet" if "non-IID" in name else "iid")
    assert spec.data.dataset == "cifar10"
    local = spec.local
    if name.startswith("nefl_table6"):
        assert (spec.rounds, spec.sample, local.epochs, local.lr) == (100, 1.0, 1, 0.03)
        return
    assert (spec.rounds, spec.sample) == (500, 0.1)
    assert (local.epochs, local.batch) == (5, 32)
    assert local.chosen.plain() == {"SGD": {"lr": 0.1}}
    rates = [local.settings_at(t, 500, 1, 1)["lr"] for t in (1, 250, 251, 375, 376)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_every_model_has_experiments() -> None:
    used = {spec.family.name for spec in EXPERIMENTS.values()}  # type: ignore[union-attr]
    beside = {f.stem for of in ("depthfl", "scalefl") for f in (SPECS / "families").glob(f"{of}_*")}
    assert used == set(FAMILIES) - {"nefl_resnet18_d_paper", "nefl_vit_b16_w"} | beside


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["depthfl_resnet34", "depthfl_resnet56", "depthfl_resnet110", "scalefl_resnet34"]
)
def test_networks_up_to_an_exit_have_about_the_sizes_of_nefl_s(name: str) -> None:
    family = ag.resolve(load_family(SPECS / "families" / f"{name}.yaml"))
    sizes = [ag.cost(tier.graph).parameters for tier in family.clients]
    assert [size / sizes[-1] for size in sizes] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1], abs=0.05)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("study", "row", "column"),
    [
        ("nefl_table4", "NeFL", "ResNet18, IID"),
        ("nefl_table4", "ScaleFL", "ResNet34, non-IID"),
        ("nefl_table8", "DepthFL", "ResNet18"),
        ("nefl_table8", "NeFL-DO", "ResNet34"),
    ],
    ids=["wd", "levels", "exits", "d"],
)
def test_published_weights_fit_the_models_of_tables_4_and_8(
    study: str, row: str, column: str, tmp_path: Path
) -> None:
    import torchvision.models as original

    every = cells(load_study(SPECS / "studies" / f"{study}.yaml"), "paper")
    assert all(cell.experiment is not None and cell.experiment.weights for cell in every)
    spec = next(c.experiment for c in every if (c.row, c.column) == (row, column))
    assert spec is not None and spec.weights is not None
    assert Path(spec.weights.file).name.endswith(f"-{spec.weights.sha256}.pth")
    with torch.device("meta"):
        published = getattr(original, column.split(",")[0].lower())().state_dict()
    # Published files are older than the counters of batches. No entry starts as 0.5.
    tensors = {k: torch.full(v.shape, 0.5) for k, v in published.items() if "tracked" not in k}
    torch.save(tensors, tmp_path / "net.pth")
    weights = spec.weights.model_copy(update={"file": str(tmp_path / "net.pth"), "sha256": None})
    family = pretrained_family(weights, ag.resolve(family_of(spec)), seed=0)
    state = family.state or {}
    first = initial_state(family.graph, 0)
    new = {k for k, v in state.items() if torch.equal(v, first[k]) and "tracked" not in k}
    assert {name.split(".")[0] for name in new} <= {"stem", "head", "exits"}
    assert new & set(state) >= {"stem.conv.weight", "head.linear.weight", "head.linear.bias"}
    assert len(state) - len(new) - sum("tracked" in k for k in state) == len(tensors) - 3
