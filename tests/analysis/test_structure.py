"""Blocks and sections of models whose authors would say what they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from tests import structures as nets
from tests.nets import captured, with_parts
from tests.structures import graph_of, parts

STAGES = {"stage1": ["stage1.0", "stage1.1"], "stage2": ["stage2.0", "stage2.1", "stage2.2"]}


def stages(graph: ag.ArchGraph) -> dict[str, list[str]]:
    """Block names of the sections that are neither stem nor head."""
    return {
        s.name: [b.name for b in s.blocks]
        for s in ag.structure(graph).sections
        if s.kind == "stage"
    }


def removable(graph: ag.ArchGraph) -> list[str]:
    return [b.name for b in ag.structure(graph).blocks if b.removable]


# -- models that were not prepared ---------------------------------------------------------------

Expected = dict[str, tuple[int, int]]  # blocks and removable ones, by section


def counts(graph: ag.ArchGraph, *kinds: str) -> Expected:
    return {
        s.name: (len(s.blocks), sum(b.removable for b in s.blocks))
        for s in ag.structure(graph).sections
        if s.kind in kinds
    }


def vision(name: str, size: int, **options: Any) -> ag.ArchGraph:
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=10, **options)
    return graph_of(model, torch.zeros(2, 3, size, size))


def named(name: str, *pairs: tuple[int, int], first: int = 1) -> Expected:
    """Sections that are numbered."""
    return {name.format(i): pair for i, pair in enumerate(pairs, first)}


# What the authors call stages: number of blocks, and how many of them can be left out.
VISION: dict[str, tuple[int, dict[str, Any], Expected]] = {
    "resnet50": (32, {}, named("layer{}", (3, 2), (4, 3), (6, 5), (3, 2))),
    "regnet_y_400mf": (
        32, {}, named("trunk_output.block{}", (1, 0), (3, 2), (6, 5), (6, 5)),
    ),
    "regnet_x_400mf": (
        32, {}, named("trunk_output.block{}", (1, 0), (2, 1), (7, 6), (12, 11)),
    ),
    "mobilenet_v2": (
        32, {},
        {
            "features.1": (1, 0), "features.2": (2, 1), "features.4": (3, 2),
            "features.7": (4, 3), "features.11": (3, 2), "features.14": (3, 2),
            "features.17": (1, 0),
        },
    ),
    "mobilenet_v3_large": (
        32, {},
        {
            "features.1": (1, 1), "features.2": (2, 1), "features.4": (3, 2),
            "features.7": (4, 3), "features.11": (2, 1), "features.13": (3, 2),
        },
    ),
    "mobilenet_v3_small": (
        32, {},
        {
            "features.1": (1, 0), "features.2": (2, 1), "features.4": (3, 2),
            "features.7": (2, 1), "features.9": (3, 2),
        },
    ),
    "efficientnet_b0": (
        32, {},
        named("features.{}", (1, 0), (2, 1), (2, 1), (3, 2), (3, 2), (4, 3), (1, 0)),
    ),
    "mnasnet1_0": (
        32, {},
        named("layers.{}", (3, 2), (3, 2), (3, 2), (2, 1), (4, 3), (1, 0), first=8),
    ),
    "shufflenet_v2_x1_0": (32, {}, named("stage{}", (4, 3), (8, 7), (4, 3), first=2)),
    "squeezenet1_0": (
        64, {}, {"features.3": (3, 1), "features.7": (4, 1), "features.12": (1, 0)},
    ),
    "squeezenet1_1": (
        64, {}, {"features.3": (2, 1), "features.6": (2, 1), "features.9": (4, 2)},
    ),
    "googlenet": (
        64, {"init_weights": False},
        {"inception3a": (2, 0), "inception4a": (5, 2), "inception5a": (2, 0)},
    ),
    "inception_v3": (
        96, {"init_weights": False},
        {"Mixed_5b": (3, 1), "Mixed_6b": (4, 4), "Mixed_7b": (2, 1)},
    ),
    "vgg11": (
        32, {},
        {
            "features.0": (1, 0), "features.3": (1, 0), "features.6": (2, 1),
            "features.11": (2, 1), "features.16": (2, 1),
        },
    ),
    "convnext_tiny": (
        32, {},
        {"features.1": (3, 3), "features.3": (3, 3), "features.5": (9, 9), "features.7": (3, 3)},
    ),
    "swin_t": (
        32, {},
        {"features.1": (2, 2), "features.3": (2, 2), "features.5": (6, 6), "features.7": (2, 2)},
    ),
    "vit_b_16": (32, {"image_size": 32}, {"encoder.layers": (12, 12)}),
    "densenet121": (
        32, {}, named("features.denseblock{}", (6, 6), (12, 12), (24, 24), (16, 16)),
    ),
    "maxvit_t": (
        224, {}, named("blocks.{}.layers", (2, 1), (2, 1), (5, 4), (2, 1), first=0),
    ),
}  # fmt: skip
HEAVY = {
    "maxvit_t", "densenet121", "swin_t", "vit_b_16", "inception_v3", "googlenet", "mnasnet1_0",
    "mobilenet_v3_large", "regnet_x_400mf", "vgg11",
}  # fmt: skip


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in HEAVY)) for n in VISION]
)
def test_stages_of_vision_models(name):
    size, options, expected = VISION[name]
    graph = vision(name, size, **options)
    assert counts(graph, "stage") == expected
    kinds = [s.kind for s in ag.structure(graph).sections]
    assert (kinds[0], kinds[-1]) == ("stem" if "vgg" not in name else "stage", "head")
    assert all(b.removable != bool(b.reason) for b in ag.structure(graph).blocks)


SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 50, "max_position_embeddings": 32,
}  # fmt: skip
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
PYRAMID = {"hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 3, 2]}
PAIR = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60,
    "use_cache": False, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
SOUND = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 20, "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
TOKENS = {"input_ids": torch.arange(24).view(2, 12), "attention_mask": torch.ones(2, 12).long()}
TARGET = {"decoder_input_ids": torch.arange(14).view(2, 7)}
PIXELS = {"pixel_values": torch.zeros(2, 3, 64, 64)}
Case = tuple[str, str, Mapping[str, object], dict[str, torch.Tensor], Expected]
TRANSFORMERS: dict[str, Case] = {
    "bert": (
        "BertForSequenceClassification", "BertConfig", SMALL, TOKENS,
        {"bert.encoder.layer": (3, 3)},
    ),
    "roberta": (
        "RobertaForMaskedLM", "RobertaConfig", SMALL, TOKENS, {"roberta.encoder.layer": (3, 3)},
    ),
    "deberta": (
        "DebertaV2ForSequenceClassification", "DebertaV2Config",
        SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
        TOKENS, {"deberta.encoder.layer": (3, 3)},
    ),
    "gpt2": (
        "GPT2LMHeadModel", "GPT2Config",
        {
            "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 32,
            "use_cache": False, "bos_token_id": 0, "eos_token_id": 0,
        },
        TOKENS, {"transformer.h": (3, 3)},
    ),
    "llama": (
        "LlamaForCausalLM", "LlamaConfig", SMALL | {"num_key_value_heads": 2, "use_cache": False},
        TOKENS, {"model.layers": (3, 3)},
    ),
    "opt": (
        "OPTForCausalLM", "OPTConfig",
        {
            "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 48,
            "vocab_size": 50, "max_position_embeddings": 32, "word_embed_proj_dim": 32,
            "use_cache": False,
        },
        TOKENS, {"model.decoder.layers": (3, 3)},
    ),
    "falcon": (
        "FalconForCausalLM", "FalconConfig",
        {
            "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 50,
            "use_cache": False, "bos_token_id": 0, "eos_token_id": 0,
        },
        TOKENS, {"transformer.h": (3, 3)},
    ),
    "t5": (
        "T5ForConditionalGeneration", "T5Config",
        {
            "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2,
            "num_heads": 4, "vocab_size": 50, "use_cache": False,
        },
        TOKENS | TARGET, {"encoder.block": (3, 3), "decoder.block": (2, 2)},
    ),
    "bart": (
        "BartForConditionalGeneration", "BartConfig", PAIR | {"max_position_embeddings": 32},
        TOKENS | TARGET, {"model.encoder.layers": (3, 3), "model.decoder.layers": (2, 2)},
    ),
    # Also NLLB: positions and masks are made from the tokens.
    "m2m_100": (
        "M2M100ForConditionalGeneration", "M2M100Config", PAIR | {"max_position_embeddings": 32},
        TOKENS | TARGET, {"model.encoder.layers": (3, 3), "model.decoder.layers": (2, 2)},
    ),
    "whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig",
        PAIR | {
            "num_mel_bins": 20, "max_source_positions": 30, "max_target_positions": 20,
            "suppress_tokens": None, "begin_suppress_tokens": None,
        },
        {"input_features": torch.zeros(2, 20, 60)} | TARGET,
        {"model.encoder.layers": (3, 3), "model.decoder.layers": (2, 2)},
    ),
    "wav2vec2": (
        "Wav2Vec2ForCTC", "Wav2Vec2Config", SOUND, {"input_values": torch.zeros(2, 500)},
        {"wav2vec2.encoder.layers": (3, 3)},
    ),
    "vit": (
        "ViTForImageClassification", "ViTConfig", IMAGE | {"image_size": 64}, PIXELS,
        {"vit.layers": (3, 3)},
    ),
    "swin": (
        "SwinForImageClassification", "SwinConfig",
        {
            "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2, 4],
            "num_heads": [2, 2, 4], "window_size": 4,
        },
        PIXELS, named("swin.encoder.layers.{}.blocks", (2, 2), (2, 2), (4, 4), first=0),
    ),
    "convnext": (
        "ConvNextForImageClassification", "ConvNextConfig", PYRAMID, PIXELS,
        named("convnext.encoder.stages.{}.layers", (2, 2), (2, 2), (3, 3), (2, 2), first=0),
    ),
    "segformer": (
        "SegformerForImageClassification", "SegformerConfig",
        PYRAMID | {"num_attention_heads": [1, 2, 3, 4]}, PIXELS,
        named("segformer.stages.{}.blocks", (2, 2), (2, 2), (3, 3), (2, 2), first=0),
    ),
    "pvt": (
        "PvtForImageClassification", "PvtConfig",
        PYRAMID | {"image_size": 64, "num_attention_heads": [1, 2, 3, 4]}, PIXELS,
        named("pvt.encoder.block.{}", (2, 2), (2, 2), (3, 3), (2, 2), first=0),
    ),
    "mobilevit": (
        "MobileViTForImageClassification", "MobileViTConfig",
        {
            "image_size": 64, "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 48],
        },
        PIXELS,
        {"mobilevit.encoder.layer.0.layer": (1, 1), "mobilevit.encoder.layer.1.layer": (3, 2)}
        | named("mobilevit.encoder.layer.{}.transformer.layer", (2, 2), (4, 4), (3, 3), first=2),
    ),
}  # fmt: skip


def transformer(
    model: str, config: str, options: Mapping[str, object], **inputs: Any
) -> ag.ArchGraph:
    import transformers

    return graph_of(
        getattr(transformers, model)(getattr(transformers, config)(**options)), **inputs
    )


SAM: dict[str, Any] = {
    "vision_config": {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 8, "mlp_dim": 48, "window_size": 2,
        "global_attn_indexes": [1], "num_pos_feats": 8,
    },
    "prompt_encoder_config": {
        "hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4,
    },
    "mask_decoder_config": {
        "hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    },
}  # fmt: skip


@pytest.mark.full
def test_two_way_attention_has_blocks_of_both_streams():
    inputs = {"pixel_values": torch.zeros(1, 3, 32, 32), "input_points": torch.ones(1, 1, 2, 2)}
    graph = transformer("SamModel", "SamConfig", SAM, **inputs)
    removable = [b.name for b in ag.structure(graph).blocks if b.removable]
    decoder = "mask_decoder.transformer"
    halves = ("cross_attn_token_to_image", "mlp", "cross_attn_image_to_token")
    wanted = {f"{decoder}.layers.{i}.{half}" for i in range(2) for half in halves}
    assert wanted < {*removable}
    assert {f"{decoder}.layers.1.self_attn", f"{decoder}.final_attn_token_to_image"} < {*removable}


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_layers_of_transformers(name):
    model, config, options, inputs, expected = TRANSFORMERS[name]
    graph = transformer(model, config, options, **inputs)
    assert counts(graph, "stage") == expected
    assert all(b.removable != bool(b.reason) for b in ag.structure(graph).blocks)


@pytest.mark.full
def test_both_towers_open():
    import transformers

    config = transformers.CLIPConfig(
        text_config=SMALL | {"eos_token_id": 49, "num_hidden_layers": 2},
        vision_config=IMAGE,
        projection_dim=16,
    )
    pixels = torch.zeros(2, 3, 32, 32)
    inputs: dict[str, Any] = {"pixel_values": pixels, **TOKENS}
    graph = graph_of(transformers.CLIPModel(config), **inputs)
    assert counts(graph, "stage") == {
        "vision_model.encoder.layers": (3, 3),
        "text_model.encoder.layers": (2, 2),
    }
    assert counts(graph, "stem", "head") == {
        "text_model.embeddings": (1, 0), "text_projection": (1, 0), "stem": (1, 0),
        "head": (1, 0),
    }  # fmt: skip


@pytest.mark.full
def test_a_shared_layer_is_one_block():
    options = SMALL | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}
    graph = transformer("AlbertForSequenceClassification", "AlbertConfig", options, **TOKENS)
    (section,) = (s for s in ag.structure(graph).sections if s.kind == "stage")
    assert section.name == "albert.encoder.albert_layer_groups"
    assert [(b.uses, b.removable) for b in section.blocks] == [(2, True)] * 2
    small = ag.skip(graph, section.blocks[0].name, verify=True).graph
    groups = {p.name.split(".")[3] for p in small.params if "layer_groups" in p.name}
    assert groups == {"1"}


# -- small models ---------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["basic", "preact", "inverted", "branches"])
def test_stages_of_blocks(kind):
    graph = nets.net_graph(nets.BLOCKS[kind], (2, 3), (8, 12))
    assert parts(graph) == {"stem": ["stem"], **STAGES, "head": ["fc"]}
    assert ag.structure(graph).section("stage2").kind == "stage"


def test_plain_layers_by_width():
    graph = nets.net_graph(nets.ConvReLU, (2, 3), (8, 12))
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
    held = {graph.node[n].scope: b.name for b in ag.structure(graph).blocks for n in b.nodes}
    assert held["norm"] == "fc"
    assert held["stage2.0.bn1"] == "stage2.0"
    assert held["stage2.1.bn1"] == "stage2.1"


@pytest.mark.parametrize("post", [False, True])
def test_attention_and_feed_forward_are_one_block(post):
    graph = graph_of(nets.Encoder(3, post))
    blocks = [f"layers.{i}" for i in range(3)]
    assert parts(graph) == {"stem": ["patch"], "layers": blocks, "head": ["head"]}
    assert removable(graph) == blocks
    held = {graph.node[n].scope: b.name for b in ag.structure(graph).blocks for n in b.nodes}
    assert held["layers.1.norm1"] == held["layers.1.norm2"] == "layers.1"
    assert held["norm"] == "head"
    # each half is a block where the user says so
    halves = tuple(f"layers.{i}.{b}" for i in range(3) for b in ("qkv", "up"))
    mine = graph.replace(sections=(("layers", halves),))
    assert parts(mine)["layers"] == list(halves)
    assert removable(mine) == list(halves)


def test_perceptron():
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)
    )
    assert list(parts(graph_of(net)).values()) == [["1", "3"], ["5"]]
    assert removable(graph_of(net)) == ["3"]


def test_trailing_pool_and_flatten_belong_to_the_head():
    graph = graph_of(nets.LeNet())
    assert list(parts(graph).values()) == [["conv1"], ["conv2"], ["fc1", "fc2", "fc3"]]
    assert [graph.node[n].op for n in ag.structure(graph).block("fc1").nodes] == [
        "aten.max_pool2d",
        "aten.reshape",
        "aten.linear",
        "aten.relu",
    ]


def test_dense_layers():
    graph = graph_of(nets.DenseNet())
    assert stages(graph)["dense"] == ["dense.0", "dense.1", "dense.2"]
    assert ag.structure(graph).block("dense.1").kind == "dense"
    assert removable(graph) == ["dense.0", "dense.1", "dense.2", "block"]


def test_two_inputs_and_named_outputs():
    graph = graph_of(nets.TwoInputs(), left=torch.randn(2, 6), right=torch.randn(2, 4))
    assert parts(graph) == {
        "b": ["b.0", "b.2"],
        "stem": ["a.0", "a.2"],
        "body": ["body.0", "body.1", "body.2"],
        "head": ["kind", "value"],
    }
    assert ag.structure(graph).block("value").kind == "head"
    assert ag.structure(graph).block("value").reason.startswith("computes the output")


def test_exits_do_not_cut_the_stream():
    graph = graph_of(nets.Exits(), train=True)
    assert stages(graph) == {f"stages.{i}": [f"stages.{i}.0", f"stages.{i}.1"] for i in range(3)}
    assert set(removable(graph)) == {n for b in stages(graph).values() for n in b}
    # an exit of evaluation is a block of its own, one of training only hangs on its stage
    assert parts(graph)["head"] == ["exits.2", "exits.0"]
    held = {graph.node[n].scope: b.name for b in ag.structure(graph).blocks for n in b.nodes}
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
    assert reason in ag.structure(graph).block("stage1.1").reason


def test_a_layer_used_three_times_is_one_block():
    graph = graph_of(nets.Shared(), torch.randn(2, 6))
    assert list(parts(graph).values()) == [["first"], ["layer"], ["last"]]
    block = ag.structure(graph).block("layer")
    assert (block.uses, block.removable, len(block.nodes)) == (3, True, 6)
    assert str(block) == "layer × 3: chain, 6 operators; removable"
    small = ag.skip(graph, "layer", verify=True).graph
    assert not any(p.name.startswith("layer") for p in small.params)
    # each use is a block where the user says so
    uses = ("layer", "layer~2", "layer~3")
    mine = graph.replace(sections=(("loop", uses),))
    assert parts(mine)["loop"] == list(uses)
    assert [b.uses for b in ag.structure(mine).section("loop").blocks] == [1, 1, 1]
    assert removable(mine) == list(uses)
    assert any(p.name == "layer.weight" for p in ag.skip(mine, "layer~2", verify=True).graph.params)


def test_a_table_tied_to_the_head_is_two_blocks():
    graph = graph_of(nets.Tied(), torch.randint(0, 9, (2, 5)))
    assert list(parts(graph).values()) == [["table"], ["body.0", "body.1"], ["table.weight"]]


def test_blocks_under_a_long_connection():
    graph = graph_of(nets.LongSkip())
    assert stages(graph) == {"body": ["body.0", "body.1"]}
    assert removable(graph) == ["body.0", "body.1"]
    assert ag.structure(graph).block("last").reason.startswith("contains the end of a long skip")


@pytest.mark.full
def test_encoder_and_decoder():
    graph = graph_of(
        nets.EncoderDecoder(), torch.randint(0, 9, (2, 6)), torch.randint(0, 9, (2, 5))
    )
    assert counts(graph, "stage") == {"body.encoder.layers": (2, 2), "body.decoder.layers": (2, 2)}
    assert parts(graph)["body.encoder.norm"] == ["body.encoder.norm"]


def test_levels_of_an_hourglass():
    graph = graph_of(nets.UNet())
    down = {f"down.{i}": [f"down.{i}.0", f"down.{i}.3"] for i in range(3)}
    up = {f"up.{i}": [f"up.{i}.0", f"up.{i}.3"] for i in range(2)}
    assert stages(graph) == down | up
    assert counts(graph, "transition") == {"grow.0": (1, 0), "grow.1": (1, 0)}
    assert removable(graph) == [f"down.{i}.3" for i in range(3)] + [f"up.{i}.3" for i in range(2)]
    assert ag.structure(graph).block("up.0.0").reason.startswith("contains the end of a long skip")
    assert parts(graph)["head"] == ["out"]


def test_mixing_positions_is_no_hourglass():
    graph = graph_of(nets.Mixer())
    assert counts(graph, "stage") == {"layers": (3, 3)}


def test_weights_that_are_computed_are_weights():
    graph = graph_of(nets.Transposed(), torch.randn(2, 6))
    assert list(parts(graph).values()) == [["first"], ["layers.0", "layers.1"], ["last"]]


def test_conditioning_is_no_part_of_the_stream():
    graph = graph_of(nets.Conditioned(), torch.randn(2, 3, 8, 8), torch.randn(2, 4))
    assert stages(graph) == {"blocks": ["blocks.0", "blocks.1", "blocks.2"]}
    assert parts(graph)["time"] == ["time.0", "time.2"]


@with_parts(lambda *inside: {"inside": nn.Sequential(nn.Linear(6, 6), *inside)})
def Branch(self, x):
    """A residual block of a function."""
    return x + self.inside(x)


@pytest.mark.parametrize("times", [1, 2])
def test_unequal_items_are_one_block_only_if_another_module_repeats_them(times):
    pairs = (nn.Sequential(Branch(), Branch(nn.ReLU(), nn.Linear(6, 6))) for _ in range(times))
    net = nn.Sequential(nn.Linear(3, 6), nn.Sequential(*pairs), nn.Linear(6, 2))
    names = removable(graph_of(net, torch.zeros(2, 3)))
    assert names == (["1.0", "1.1"] if times == 2 else ["1.0.0", "1.0.1"])


def test_what_several_blocks_use_belongs_to_the_first():
    @with_parts(
        lambda: {
            "gain": nn.Parameter(torch.ones(6)),
            "first": nn.Linear(3, 6),
            "blocks": nn.ModuleList(nn.Linear(6, 6) for _ in range(3)),
        }
    )
    def Gains(self, x):
        gain, x = self.gain.exp(), self.first(x)
        for block in self.blocks:
            x = x + gain * block(x)
        return x

    graph = graph_of(Gains(), torch.zeros(2, 3))
    (used,) = (n.name for n in graph.nodes if n.op == "aten.exp")
    assert [b.name for b in ag.structure(graph).blocks if used in b.nodes] == ["blocks.0"]


def test_a_model_without_layers():
    graph = graph_of(nn.ReLU(), torch.randn(2, 3))
    assert [len(b.nodes) for b in ag.structure(graph).blocks] == [2]


# -- properties -----------------------------------------------------------------------------------


def test_counters_go_with_their_norm():
    graph = graph_of(nets.Net(nets.Basic, (2, 2), (8, 12)), train=True)
    held = {name: b.name for b in ag.structure(graph).blocks for name in b.nodes}
    for buffer, _ in graph.updates:
        (counter,) = graph.leaf_users[buffer]
        assert held[counter] == ".".join(buffer.split(".")[:2])


def test_stays_with_width_text_and_rebuilding():
    model = nets.Net(nets.Inverted, (2, 3), (8, 12))
    graph, state = captured(model, torch.randn(2, 3, 8, 8), train=False)
    assert parts(ag.take(graph, 0.5).graph) == parts(graph)
    assert parts(ag.parse(str(graph))) == parts(graph)
    again = captured(ag.build(graph, state), torch.randn(2, 3, 8, 8), train=False).graph
    assert parts(again) == parts(graph)


def test_the_users_sections_override():
    graph = nets.net_graph(nets.Basic, (2, 3), (8, 12))
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
    with pytest.raises(ag.GraphError, match=r"section s: no such block; found 'layers\.2'"):
        ag.structure(graph.replace(sections=(("s", ("layers.2",)),)))


def test_errors_name_the_nearest():
    found = ag.structure(nets.net_graph(nets.Basic, (1, 1), (8, 8)))
    with pytest.raises(
        ag.GraphError,
        match=r"no such block; found 'stage1\.1'; expected one of .*did you mean 'stage1\.0'",
    ):
        found.block("stage1.1")
    with pytest.raises(
        ag.GraphError, match=r"no such section; found 'stag1'; expected .*did you mean 'stage1'"
    ):
        found.section("stag1")


def test_prints_readably():
    found = ag.structure(nets.net_graph(nets.Basic, (1, 2), (8, 12)))
    text, size = str(found), len(found.block("stage1.0").nodes)
    assert text.splitlines()[:4] == [
        "stem (stem)",
        "  stem: chain, 3 operators; changes float32[batch, 3, 8, 8] to float32[batch, 8, 8, 8]",
        "stage1 (stage)",
        f"  stage1.0: residual, {size} operators; removable",
    ]


# -- lists in lists -----------------------------------------------------------------------------


class Trunk(nn.Module):
    """Residual layers of a list, or of lists in a list, whose sums are its own."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(3, 8), nn.Linear(8, 2)

        def layers(depth: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))

        self.nested = len(depths) > 1
        self.layers = nn.ModuleList(map(layers, depths)) if self.nested else layers(depths[0])

    def forward(self, x):
        x = self.stem(x)
        stages: Any = self.layers if self.nested else [self.layers]
        for stage in stages:
            for layer in stage:
                x = x + torch.relu(layer(x))
            x = torch.tanh(x)
        return self.out(x)


@pytest.mark.sample(6)
@pytest.mark.parametrize("depths", [(3,), (2, 3)])
@pytest.mark.parametrize("outside", ["", "encoder.", "net.encoder."])
def test_blocks_of_nested_lists_are_named_by_their_path(depths, outside):
    model: nn.Module = Trunk(depths)
    for name in outside.split(".")[-2::-1]:
        model = nn.Sequential(OrderedDict({name: model}))
    graph = graph_of(model, torch.zeros(2, 3))
    names = (
        [f"{outside}layers.{i}" for i in range(depths[0])]
        if len(depths) == 1
        else [f"{outside}layers.{k}.{i}" for k, depth in enumerate(depths) for i in range(depth)]
    )
    found = ag.structure(graph)
    assert [b.name for b in found.blocks] == [f"{outside}stem", *names, f"{outside}out"]
    assert all(b.kind == "residual" and b.removable for b in found.blocks[1:-1])
    alone = ag.structure(graph_of(Trunk(depths), torch.zeros(2, 3)))
    assert [len(s.blocks) for s in found.sections] == [len(s.blocks) for s in alone.sections]
    left = ag.skip(graph, names[1], verify=True).graph
    assert not any(p.name.startswith(f"{names[1]}.") for p in left.params)
    again = ag.parse(str(graph.replace(sections=(("mine", tuple(names)),))))
    assert parts(again)["mine"] == names


@with_parts(
    lambda: {
        "layers": nn.ModuleList(nn.Linear(8, 8) for _ in range(2)),
        "out": nn.Linear(8, 2),
    }
)
def Twice(self, x):
    """One list whose layers run as two blocks each, in a module that adds."""
    for layer in self.layers:
        x = x + torch.relu(layer(x))
        x = x + torch.tanh(self.layers[0](x))
    return self.out(x)


@with_parts(
    lambda: {
        "up": nn.ModuleList(nn.Linear(8, 8) for _ in range(3)),
        "down": nn.ModuleList(nn.Linear(8, 8) for _ in range(3)),
        "out": nn.Linear(8, 2),
    }
)
def Beside(self, x):
    """Each block is of two lists: its first layer of one, its second of the other."""
    for up, down in zip(self.up, self.down, strict=True):
        x = x + down(torch.relu(up(x)))
    return self.out(x)


@pytest.mark.parametrize("outside", ["", "m."])
def test_blocks_of_several_lists_are_named_after_their_first_layers(outside):
    model = nn.Sequential(OrderedDict(m=Beside())) if outside else Beside()
    names = [b.name for b in ag.structure(graph_of(model, torch.zeros(2, 8))).blocks]
    assert names == [f"{outside}up.0", f"{outside}up.1", f"{outside}up.2", f"{outside}out"]


def test_uses_of_one_layer_are_still_told_apart_by_number():
    names = [b.name for b in ag.structure(graph_of(Twice(), torch.zeros(2, 8))).blocks]
    assert len({*names}) == len(names)
    assert {n.partition("~")[0] for n in names} == {"layers.0", "layers.1", "out"}


# -- precision ----------------------------------------------------------------------------------


@with_parts(lambda width: {"weight": nn.Parameter(torch.ones(width))})
def RMSNorm(self, x):
    """As Llama computes it: in float32, whatever comes in."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
    return self.weight * y.to(x.dtype)


class Decoder(nn.Module):
    """Norm, attention and sum in float32 where it says so, everything else as the weights are."""

    def __init__(self, *, sums: bool = False) -> None:
        super().__init__()
        self.norm, self.q, self.out = RMSNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm2, self.up, self.down = RMSNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.sums = sums

    def add(self, x, y):
        return (x.float() + y.float()).to(x.dtype) if self.sums else x + y

    def forward(self, x):
        q, k, v = self.q(self.norm(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(1, 2), -1, dtype=torch.float32).type_as(q)
        x = self.add(x, self.out(scores @ v))
        return self.add(x, self.down(nn.functional.silu(self.up(self.norm2(x)))))


@with_parts(
    lambda **options: {
        "embed": nn.Embedding(20, 8),
        "layers": nn.ModuleList(Decoder(**options) for _ in range(3)),
        "norm": RMSNorm(8),
        "head": nn.Linear(8, 20),
    }
)
def Language(self, ids):
    x = (self.embed(ids).float() * 8**0.5).to(self.head.weight.dtype)
    for layer in self.layers:
        x = layer(x)
    return self.head(self.norm(x)).float()


class Chain(nn.Module):
    """Activations in float32 between layers, and terms appended in it."""

    def __init__(self, *, appends: bool) -> None:
        super().__init__()
        self.appends, sizes = appends, [8 + 4 * i * appends for i in range(4)]
        self.layers = nn.ModuleList(nn.Linear(n, 4 if appends else 8) for n in sizes[:3])
        self.out = nn.Linear(sizes[3], 2)

    def forward(self, x):
        for layer in self.layers:
            y = nn.functional.gelu(layer(x).float())
            x = torch.cat([x.float(), y], 1).to(x.dtype) if self.appends else y.to(x.dtype)
        return self.out(x)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda: Chain(appends=True), torch.zeros(2, 8)),
        (lambda: Chain(appends=False), torch.zeros(2, 8)),
        (Language, torch.zeros(2, 5, dtype=torch.int64)),
        (lambda: Language(sums=True), torch.zeros(2, 5, dtype=torch.int64)),
    ],
    ids=["terms", "activations", "norms", "sums"],
)
def test_precision_moves_no_block(make, example):
    def found(dtype):
        x = example.to(dtype) if example.is_floating_point() else example
        graph = captured(make().to(dtype), x).graph
        chain = ag.structure(graph)
        assert sorted(n for b in chain.blocks for n in b.nodes) == sorted(graph.node)
        assert all(b.entry == a.exit for a, b in zip(chain.blocks, chain.blocks[1:], strict=False))
        assert {b.exit for b in chain.blocks} <= set(chain.cuts)
        owner = {n: i for i, b in enumerate(chain.blocks) for n in b.nodes}
        assert all(owner[u] <= owner[n.name] for n in graph.nodes for u in n.uses())
        for block in chain.blocks:
            if block.removable:
                ag.skip(graph, block.name, verify=True)
        if any(b.sums for b in chain.blocks):
            steps = ag.add_step_sizes(graph, verify=True).graph
            assert len(steps.params) == len(graph.params) + 6
            ag.add_adapters(graph, 2, verify=True)
            ag.graft(graph, {"layers": 4}, verify=True)
        return [
            (s.name, s.kind, [(b.name, b.kind, b.removable, len(b.sums)) for b in s.blocks])
            for s in chain.sections
        ]

    single = found(torch.float32)
    assert sum(removable for *_, blocks in single for _, _, removable, _ in blocks) >= 2
    assert found(torch.bfloat16) == found(torch.float16) == single


def test_the_sections_of_a_file_keep_their_names(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text("""archgraph: 1
name: net
inputs: {image: [1, 8, 8]}
blocks: {body: {params: {}, steps: [conv: {out: 8, bias: false}, batch_norm, relu]}}
sections:
  - {name: entry, steps: [conv: 8, relu]}
  - {name: shrink, steps: [max_pool: 2]}
  - {name: convs, steps: [conv: 8, relu, conv: 8, relu]}
  - {name: stage, block: body, depth: 2}
  - {name: pool, steps: [global_avg_pool, flatten]}
  - {name: answer, steps: [linear: 16, relu, linear: 10]}
""")
    graph = ag.load(file)
    want = {
        "entry": ["entry"],
        "shrink": ["shrink"],
        "convs": ["convs.conv1", "convs.conv2"],
        "stage": ["stage.0", "stage.1"],
        "pool": ["pool"],
        "answer": ["answer.linear1", "answer.linear2"],
    }
    assert parts(graph) == want
    assert [s.kind for s in ag.structure(graph).sections] == [*["stem"] * 3, "stage", *["head"] * 2]
    # Through a file, and in a graph without one of their blocks.
    ag.save(graph, tmp_path / "flat.yaml")
    assert parts(ag.load(tmp_path / "flat.yaml")) == want
    shorter = ag.skip(graph, ["convs.conv2", "stage.1"]).graph
    assert parts(shorter) == {**want, "convs": ["convs.conv1"], "stage": ["stage.0"]}


def test_what_prepares_the_input_is_a_section_too(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text("""archgraph: 1
name: net
inputs: {x: [8]}
sections:
  - {name: act, steps: [sigmoid]}
  - {name: norm, steps: [layer_norm]}
  - {name: lin, steps: [linear: 8, relu]}
  - {name: out, steps: [linear: 4]}
""")
    graph = ag.load(file)
    assert parts(graph) == {s: [s] for s in ("act", "norm", "lin", "out")}
    file.write_text(file.read_text().replace("  - {name: norm, steps: [layer_norm]}\n", ""))
    assert parts(ag.load(file)) == {s: [s] for s in ("act", "lin", "out")}


def test_copies_of_the_only_block_of_a_plain_section_belong_to_it(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text("""archgraph: 1
name: net
inputs: {x: [8]}
sections:
  - {name: one, steps: [linear: 8]}
  - {name: act, steps: [relu]}
  - {name: two, steps: [linear: 8]}
  - {name: out, steps: [linear: 4]}
""")
    graph = ag.load(file)
    for longer in (ag.graft(graph, {"two": 3}).graph, ag.deepen(graph, {"two": 3}).graph):
        want = {"one": ["one"], "act": ["act"], "two": ["two", "two_2", "two_3"], "out": ["out"]}
        assert parts(longer) == want
        assert parts(ag.shorten(longer, {"two": 1}).graph) == {**want, "two": ["two"]}
