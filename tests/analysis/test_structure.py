"""Blocks and sections of models whose authors would say what they are."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.analysis.structure import structure
from archgraph.errors import GraphError
from archgraph.ir import ArchGraph, replace
from archgraph.text import parse
from tests import structures as nets
from tests.nets import FOREIGN
from tests.structures import graph_of, parts

STAGES = {"stage1": ["stage1.0", "stage1.1"], "stage2": ["stage2.0", "stage2.1", "stage2.2"]}


@functools.cache
def foreign(name: str) -> ArchGraph:
    model = FOREIGN[name]()
    graph: ArchGraph = ag.trace(model.model, *model.args, train=False, **model.kwargs).graph
    return graph


def stages(graph: ArchGraph) -> dict[str, list[str]]:
    """Block names of the sections that are neither stem nor head."""
    return {
        s.name: [b.name for b in s.blocks] for s in structure(graph).sections if s.kind == "stage"
    }


def removable(graph: ArchGraph) -> list[str]:
    return [b.name for b in structure(graph).blocks if b.removable]


# -- models that nobody prepared -----------------------------------------------------------------


@pytest.mark.slow
def test_resnet():
    graph = foreign("resnet18")
    assert parts(graph) == {
        "stem": ["conv1"],
        **{f"layer{i}": [f"layer{i}.0", f"layer{i}.1"] for i in (1, 2, 3, 4)},
        "head": ["fc"],
    }
    assert removable(graph) == ["layer1.0"] + [f"layer{i}.1" for i in (1, 2, 3, 4)]
    assert structure(graph).block("layer2.0").reason == (
        "changes float32[batch, 64, 16, 16] to float32[batch, 128, 8, 8]"
    )


@pytest.mark.slow
def test_vision_transformer_is_one_section_of_24_residual_blocks():
    graph = foreign("vit_b_16")
    (section,) = (s for s in structure(graph).sections if s.kind == "stage")
    assert section.name == "encoder.layers"
    assert [b.name.rpartition(".")[2] for b in section.blocks] == ["self_attention", "mlp"] * 12
    assert all(b.removable and b.kind == "residual" for b in section.blocks)


@pytest.mark.slow
def test_vgg_has_a_section_per_width():
    graph = foreign("vgg16_bn")
    found = [
        (graph.node[s.blocks[-1].exit].shape[1], len(s.blocks))
        for s in structure(graph).sections
        if s.kind == "stage"
    ]
    assert found == [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]
    assert parts(graph)["head"] == ["classifier.0", "classifier.3", "classifier.6"]


@pytest.mark.slow
def test_inverted_bottlenecks_without_a_shortcut_are_one_block():
    graph = foreign("mobilenet_v2")
    assert [len(b) for b in stages(graph).values()] == [1, 2, 3, 4, 3, 3, 1]
    assert [n for b in stages(graph).values() for n in b] == [f"features.{i}" for i in range(1, 18)]
    assert removable(graph) == [f"features.{i}" for i in (3, 5, 6, 8, 9, 10, 12, 13, 15, 16)]
    assert parts(graph)["head"] == ["features.18", "classifier.1"]


@pytest.mark.slow
def test_dense_blocks_open():
    graph = foreign("densenet121")
    sizes = {name: len(blocks) for name, blocks in stages(graph).items()}
    assert sizes == {
        "features.denseblock1": 6,
        "features.transition1": 1,
        "features.denseblock2": 12,
        "features.transition2": 1,
        "features.denseblock3": 24,
        "features.transition3": 1,
        "features.denseblock4": 16,
    }
    assert len(removable(graph)) == 6 + 12 + 24 + 16
    block = structure(graph).block("features.denseblock2.denselayer3")
    assert (block.kind, block.removable) == ("dense", True)


@pytest.mark.slow
def test_inception_modules():
    model = FOREIGN["googlenet"]()
    graph = ag.trace(model.model, *model.args, **model.kwargs).graph  # with its auxiliary outputs
    assert [n for b in stages(graph).values() for n in b] == [
        f"inception{i}" for i in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b")
    ]
    assert stages(graph)["inception4a"] == ["inception4a", "inception4b", "inception4c"]
    assert "inception4b.branch1.conv.out[160]" in structure(graph).block("inception4b").reason
    # training-only branches belong to the block that they hang on
    for name, part in (("aux1", "inception4a"), ("aux2", "inception4d")):
        owners = {
            b.name
            for b in structure(graph).blocks
            for n in b.nodes
            if graph.node[n].scope.startswith(name)
        }
        assert owners == {part}


@pytest.mark.slow
def test_windowed_transformer():
    graph = foreign("swin_t")
    found = {name: len(blocks) for name, blocks in stages(graph).items()}
    assert found == {f"features.{i}": n for i, n in enumerate([4, 1, 4, 1, 12, 1, 4], 1)}
    assert len(removable(graph)) == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_transformers(name):
    graph = foreign(name)
    ((section, blocks),) = stages(graph).items()
    assert section == {"bert": "bert.encoder.layer", "vit": "vit.layers"}[name]
    second = {"bert": "intermediate", "vit": "mlp"}[name]
    assert blocks == [f"{section}.{i}.{b}" for i in (0, 1) for b in ("attention", second)]
    assert removable(graph) == blocks


# -- small models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["basic", "preact", "inverted", "branches"])
def test_stages_of_blocks(kind):
    graph = graph_of(nets.Net(nets.BLOCKS[kind], (2, 3), (8, 12)))
    assert parts(graph) == {"stem": ["stem"], **STAGES, "head": ["fc"]}
    assert structure(graph).section("stage2").kind == "stage"


def test_plain_layers_by_width():
    graph = graph_of(nets.Net(nets.ConvReLU, (2, 3), (8, 12)))
    assert parts(graph) == {"stem": ["stem"], **STAGES, "head": ["fc"]}
    assert removable(graph) == ["stage1.0", "stage1.1", "stage2.1", "stage2.2"]


def test_final_norm_belongs_to_the_head_and_the_first_to_its_block():
    class Model(nets.Net):
        def __init__(self):
            super().__init__(nets.PreAct, (1, 2), (8, 12))
            self.norm = nn.BatchNorm2d(12)

        def forward(self, x):
            for name in ("stem", "stage1", "stage2", "norm"):
                x = self.get_submodule(name)(x)
            return self.fc(torch.relu(x).mean((2, 3)))

    graph = graph_of(Model())
    held = {graph.node[n].scope: b.name for b in structure(graph).blocks for n in b.nodes}
    assert held["norm"] == "fc"
    assert held["stage2.0.bn1"] == "stage2.0"
    assert held["stage2.1.bn1"] == "stage2.1"


@pytest.mark.parametrize("post", [False, True])
def test_attention_and_feed_forward_are_two_blocks(post):
    graph = graph_of(nets.Encoder(3, post))
    blocks = [f"layers.{i}.{b}" for i in range(3) for b in ("qkv", "up")]
    assert parts(graph) == {"stem": ["patch"], "layers": blocks, "head": ["head"]}
    assert removable(graph) == blocks
    held = {graph.node[n].scope: b.name for b in structure(graph).blocks for n in b.nodes}
    assert held["layers.1.norm1"] == "layers.1.qkv"
    assert held["layers.1.norm2"] == "layers.1.up"
    assert held["norm"] == "head"


def test_perceptron():
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)
    )
    assert list(parts(graph_of(net)).values()) == [["1", "3"], ["5"]]
    assert removable(graph_of(net)) == ["3"]


def test_trailing_pool_and_flatten_belong_to_the_head():
    graph = graph_of(nets.LeNet())
    assert list(parts(graph).values()) == [["conv1"], ["conv2"], ["fc1", "fc2", "fc3"]]
    assert [graph.node[n].op for n in structure(graph).block("fc1").nodes] == [
        "aten.max_pool2d",
        "aten.reshape",
        "aten.linear",
        "aten.relu",
    ]


def test_dense_layers():
    graph = graph_of(nets.DenseNet())
    assert stages(graph)["dense"] == ["dense.0", "dense.1", "dense.2"]
    assert structure(graph).block("dense.1").kind == "dense"
    assert removable(graph) == ["dense.0", "dense.1", "dense.2", "block"]


def test_two_inputs_and_named_outputs():
    graph = graph_of(nets.TwoInputs(), left=torch.randn(2, 6), right=torch.randn(2, 4))
    assert parts(graph) == {
        "b": ["b.0", "b.2"],
        "stem": ["a.0", "a.2"],
        "body": ["body.0", "body.1", "body.2"],
        "head": ["kind", "value"],
    }
    assert structure(graph).block("value").kind == "head"
    assert structure(graph).block("value").reason.startswith("makes the output")


def test_exits_do_not_cut_the_stream():
    graph = graph_of(nets.Exits(), train=True)
    assert stages(graph) == {f"stages.{i}": [f"stages.{i}.0", f"stages.{i}.1"] for i in range(3)}
    assert set(removable(graph)) == {n for b in stages(graph).values() for n in b}
    # an exit of evaluation is a block of its own, one of training only hangs on its stage
    assert parts(graph)["head"] == ["exits.2", "exits.0"]
    held = {graph.node[n].scope: b.name for b in structure(graph).blocks for n in b.nodes}
    assert held["exits.1"] == "stages.1.1"


@pytest.mark.parametrize(("head", "reason"), [(False, "is an output"), (True, "also used by")])
def test_a_block_whose_inside_is_used_elsewhere_stays(head, reason):
    class Model(nets.Net):
        def __init__(self):
            super().__init__(nets.Basic, (2,), (8,))
            self.more = nn.Linear(8, 2)

        def forward(self, x):
            x = self.get_submodule("stage1.0")(self.stem(x))
            h = self.get_submodule("stage1.1.conv1")(x)
            y = torch.relu(self.get_submodule("stage1.1.conv2")(torch.relu(h)) + x)
            return self.fc(y.mean((2, 3))), self.more(h.mean((2, 3))) if head else h

    graph = graph_of(Model())
    assert removable(graph) == ["stage1.0"]
    assert reason in structure(graph).block("stage1.1").reason


def test_a_layer_used_three_times_is_three_blocks():
    graph = graph_of(nets.Shared(), torch.randn(2, 6))
    assert list(parts(graph).values()) == [["first"], ["layer", "layer~2", "layer~3"], ["last"]]
    assert removable(graph) == ["layer", "layer~2", "layer~3"]


def test_blocks_under_a_long_connection():
    graph = graph_of(nets.LongSkip())
    assert stages(graph) == {"body": ["body.0", "body.1"]}
    assert removable(graph) == ["body.0", "body.1"]
    assert structure(graph).block("last").reason.startswith("ends a long connection")


def test_encoder_and_decoder():
    graph = graph_of(
        nets.EncoderDecoder(), torch.randint(0, 9, (2, 6)), torch.randint(0, 9, (2, 5))
    )
    found = {s: len(b) for s, b in stages(graph).items()}
    assert found == {"body.encoder.layers": 4, "body.encoder.norm": 1, "body.decoder.layers": 6}
    assert set(stages(graph)["body.decoder.layers"]) <= set(removable(graph))


def test_conditioning_is_no_part_of_the_stream():
    graph = graph_of(nets.Conditioned(), torch.randn(2, 3, 8, 8), torch.randn(2, 4))
    assert stages(graph) == {"blocks": ["blocks.0", "blocks.1", "blocks.2"]}
    assert parts(graph)["time"] == ["time.0", "time.2"]


def test_a_model_without_layers():
    graph = graph_of(nn.ReLU(), torch.randn(2, 3))
    assert [len(b.nodes) for b in structure(graph).blocks] == [2]


# -- properties -----------------------------------------------------------------------------------


def test_counters_go_with_their_norm():
    graph = graph_of(nets.Net(nets.Basic, (2, 2), (8, 12)), train=True)
    held = {name: b.name for b in structure(graph).blocks for name in b.nodes}
    for buffer, _ in graph.updates:
        (counter,) = graph.leaf_users[buffer]
        assert held[counter] == ".".join(buffer.split(".")[:2])


def test_stays_with_width_text_and_rebuilding():
    model = nets.Net(nets.Inverted, (2, 3), (8, 12))
    graph, state = ag.trace(model, torch.randn(2, 3, 8, 8), train=False)
    assert parts(ag.take(graph, 0.5).graph) == parts(graph)
    assert parts(parse(str(graph))) == parts(graph)
    again = ag.trace(ag.build(graph, state), torch.randn(2, 3, 8, 8), train=False).graph
    assert parts(again) == parts(graph)


def _renamed(graph: ArchGraph) -> tuple[ArchGraph, dict[str, str]]:
    """The graph with every word of every module and parameter path replaced, numbers kept."""
    words: dict[str, str] = {}

    def word(match: re.Match[str]) -> str:
        return words.setdefault(match.group(), f"w{'x' * len(words)}y")

    def path(name: str) -> str:
        return re.sub(r"[A-Za-z_]+", word, name)

    def value(v):
        return type(v)(path(v.name)) if type(v).__name__ == "Leaf" else v

    import dataclasses

    return (
        graph.replace(
            params=tuple(dataclasses.replace(p, name=path(p.name)) for p in graph.params),
            nodes=tuple(
                dataclasses.replace(
                    n,
                    scope=path(n.scope),
                    args=tuple((k, replace(v, value)) for k, v in n.args),
                )
                for n in graph.nodes
            ),
            updates=tuple((path(k), v) for k, v in graph.updates),
        ),
        words,
    )


@pytest.mark.parametrize("kind", sorted(nets.BLOCKS))
def test_no_name_matters(kind):
    graph = graph_of(nets.Net(nets.BLOCKS[kind], (2, 3), (8, 12)), train=True)
    other, _ = _renamed(graph)
    assert [b.nodes for b in structure(other).blocks] == [b.nodes for b in structure(graph).blocks]
    assert [len(s.blocks) for s in structure(other).sections] == [
        len(s.blocks) for s in structure(graph).sections
    ]


def test_the_users_sections_override():
    graph = graph_of(nets.Net(nets.Basic, (2, 3), (8, 12)))
    mine = graph.replace(
        sections=(("early", ("stage1.0", "stage1.1", "stage2.0")), ("late", ("stage2.1",)))
    )
    assert parts(mine) == {
        "stem": ["stem"],
        "early": ["stage1.0", "stage1.1", "stage2.0"],
        "late": ["stage2.1"],
        "head": ["stage2.2", "fc"],
    }
    # a block may be any module: both residual regions of a layer
    graph = graph_of(nets.Encoder(2))
    mine = graph.replace(sections=(("encoder", ("layers.0", "layers.1")),))
    assert parts(mine) == {
        "stem": ["patch"], "encoder": ["layers.0", "layers.1"], "head": ["head"]
    }  # fmt: skip
    assert removable(mine) == ["layers.0", "layers.1"]
    with pytest.raises(GraphError, match=r"section s: no such block; found layers\.2"):
        structure(graph.replace(sections=(("s", ("layers.2",)),)))


def test_errors_name_the_nearest():
    found = structure(graph_of(nets.Net(nets.Basic, (1, 1), (8, 8))))
    with pytest.raises(GraphError, match=r"no such block; found stage1\.1; expected stage1\.0"):
        found.block("stage1.1")
    with pytest.raises(GraphError, match="no such section; found stag1; expected stage1"):
        found.section("stag1")


def test_prints_readably():
    text = str(structure(graph_of(nets.Net(nets.Basic, (1, 2), (8, 12)))))
    assert text.splitlines()[:4] == [
        "stem (stem)",
        "  stem: chain, 3 operators; changes float32[batch, 3, 8, 8] to float32[batch, 8, 8, 8]",
        "stage1 (stage)",
        "  stage1.0: residual, 6 operators; removable",
    ]
