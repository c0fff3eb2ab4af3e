"""Authored models: every one that is accepted is a lawful graph that runs and traces to itself."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from archgraph.capture.trace import trace
from archgraph.errors import SpecError
from archgraph.graph.ir import BATCH, TRAINING, ArchGraph, Mode, Record, Ref, size_at
from archgraph.language import flat, load_model
from archgraph.language.yaml import parse_document
from archgraph.module.build import build
from archgraph.ops.check import check
from archgraph.ops.infer import infer


def read(text: str, choices: dict[str, int] | None = None) -> ArchGraph:
    return load_model(parse_document(textwrap.dedent(text), "m.yaml"), choices)[0]


def model(*steps: Any, inputs: Any = None, **keys: Any) -> ArchGraph:
    """A model of one section of steps on an image [3, 8, 8]."""
    data = {
        "archgraph": 1,
        "inputs": inputs or {"x": [3, 8, 8]},
        "sections": [{"name": "s", "steps": steps}],
        **keys,
    }
    return read(json.dumps(data))


def examples(graph: ArchGraph, batch: int = 2) -> list[torch.Tensor]:
    made = []
    for node in graph.nodes:
        if node.op == "input":
            shape = [size_at(s, {"batch": batch}) for s in node.shape]
            integer = node.dtype == "int64"
            made.append(torch.ones(shape, dtype=torch.int64) if integer else torch.rand(shape))
    return made


def assert_lawful(graph: ArchGraph) -> None:
    """What every graph from a spec has to be."""
    check(graph)
    assert infer(graph) == graph  # the types written are those inferred
    assert flat.read_flat(parse_document(flat.dump(graph), "g.yaml")) == graph
    assert not set(graph.node) - {n.name for n in graph.nodes}


def assert_traces_to_itself(graph: ArchGraph) -> None:
    module = build(graph)
    # The tracer must find the graph, not remember it.
    type(module).arch = graph.replace(nodes=())
    found = trace(module, *examples(graph)).graph
    scopeless = [str(n).partition(" @ ")[0] for n in graph.nodes]
    assert [str(n).partition(" @ ")[0] for n in found.nodes] == scopeless
    assert found.params == graph.params
    assert (found.inputs, found.outputs, found.updates) == (
        graph.inputs,
        graph.outputs,
        graph.updates,
    )


# -- random models ----------------------------------------------------------------------------

pointwise = st.sampled_from(
    ["relu", "gelu", "silu", "tanh", "batch_norm", {"dropout": 0.3}, {"softmax": {"dim": 1}}]
)
convolutions = st.fixed_dictionaries(
    {"out": st.sampled_from([4, 6, 8])},
    optional={
        "kernel": st.sampled_from([1, 3, 5, [1, 3]]),
        "stride": st.sampled_from([1, 2]),
        "bias": st.booleans(),
        "dilation": st.sampled_from([1, 2]),
    },
).map(lambda options: {"conv": options})
image_steps = (
    pointwise
    | convolutions
    | st.just({"depthwise": {"kernel": 3}})
    | st.just({"max_pool": {"kernel": 3, "stride": 1, "padding": "same"}})
    | st.just({"block": {"steps": ["global_avg_pool", "sigmoid", {"mul": "input"}]}})
)


def _chain(parts: Any) -> list[Any]:
    before, convolution, between, after = parts
    return [*before, convolution, *between, *after]


blocks = st.fixed_dictionaries(
    {
        "params": st.just({"width": None, "stride": 1}),
        "shortcut": st.sampled_from(["auto", None, "where_equal", {"batch_norm": True}]),
        "steps": st.tuples(
            st.lists(pointwise, max_size=2),
            st.just({"conv": {"out": "$width", "stride": "$stride"}}),
            st.lists(pointwise, max_size=2),
            st.sampled_from([[], [{"conv": "$width * 1"}], [{"conv": {"out": "$width"}}, "relu"]]),
        ).map(_chain),
        "after": st.lists(st.just("relu"), max_size=1),
    }
)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    stages = [
        {
            "name": f"stage{index}",
            "block": "b",
            "depth": draw(st.integers(1, 3)),
            "width": draw(st.sampled_from([4, 8])),
            "stride": draw(st.sampled_from([1, 2])),
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    join = draw(st.sampled_from([None, "add", "mul", "cat"]))
    joined = {
        "name": "join",
        "steps": [
            "global_avg_pool",
            {"conv": {"out": 4, "kernel": 1, "as": "left"}},
            {"global_avg_pool": {"from": "stage0"}},
            {"conv": {"out": 4, "kernel": 1}},
            {join: "left"},
        ],
    }
    return {
        "archgraph": 1,
        "inputs": {"image": [3, 9, 8]},
        "blocks": {"b": draw(blocks)},
        "sections": [
            {"name": "stem", "steps": draw(st.lists(image_steps, min_size=1, max_size=3))},
            *stages,
            *([joined] if join else []),
            {"name": "head", "steps": ["global_avg_pool", "flatten", {"linear": 5}]},
        ],
    }


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(models())
def test_random_models_are_lawful_and_run(data: dict[str, Any]) -> None:
    graph = read(json.dumps(data))
    assert_lawful(graph)
    module = build(graph)
    for batch in (2, 3):
        assert module(*examples(graph, batch)).shape == (batch, 5)
    assert graph.sections == tuple(
        (s["name"], tuple(f"{s['name']}.{i}" for i in range(s.get("depth", 0))))
        for s in data["sections"]
    )


# A capture takes a second: a counterexample is reported as found, not made smaller.
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
@given(models())
def test_random_models_trace_to_themselves(data: dict[str, Any]) -> None:
    assert_traces_to_itself(read(json.dumps(data)))


# -- each step is what torch calls it ------------------------------------------------------------

IMAGE, TOKENS, SIGNAL = [6, 8, 8], [5, 8], [6, 10]
nn = torch.nn


def attention_of(module: nn.MultiheadAttention, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module(x, x, x, need_weights=False)[0]
    return result


REFERENCES: list[tuple[Any, list[int], Any, str]] = [
    ({"conv": {"out": 4}}, IMAGE, nn.Conv2d(6, 4, 3, padding=1), "conv"),
    ({"conv": 4}, IMAGE, nn.Conv2d(6, 4, 3, padding=1), "conv"),
    (
        {"conv": {"out": 4, "kernel": [3, 5], "stride": 2, "groups": 2, "bias": False}},
        IMAGE,
        nn.Conv2d(6, 4, (3, 5), stride=2, padding=(1, 2), groups=2, bias=False),
        "conv",
    ),
    (
        {"conv": {"out": 4, "dilation": 2, "padding": "valid"}},
        IMAGE,
        nn.Conv2d(6, 4, 3, dilation=2),
        "conv",
    ),
    ({"conv": {"out": 4, "kernel": 4, "stride": 4}}, IMAGE, nn.Conv2d(6, 4, 4, stride=4), "conv"),
    (
        {"conv": {"out": 4, "kernel": 4, "stride": 2}},
        IMAGE,
        nn.Conv2d(6, 4, 4, stride=2, padding=1),
        "conv",
    ),
    ({"conv": {"out": 4}}, [6, 4, 4, 4], nn.Conv3d(6, 4, 3, padding=1), "conv"),
    ({"conv1d": {"out": 4}}, SIGNAL, nn.Conv1d(6, 4, 3, padding=1), "conv"),
    ({"depthwise": {"multiplier": 2}}, IMAGE, nn.Conv2d(6, 12, 3, padding=1, groups=6), "conv"),
    ({"linear": 3}, TOKENS, nn.Linear(8, 3), "linear"),
    ({"linear": {"out": 3, "bias": False}}, TOKENS, nn.Linear(8, 3, bias=False), "linear"),
    ("batch_norm", IMAGE, nn.BatchNorm2d(6), "bn"),
    (
        {"batch_norm": {"momentum": 0.3, "affine": False}},
        IMAGE,
        nn.BatchNorm2d(6, momentum=0.3, affine=False),
        "bn",
    ),
    ({"group_norm": 3}, IMAGE, nn.GroupNorm(3, 6), "norm"),
    ("layer_norm", TOKENS, nn.LayerNorm(8), "norm"),
    ({"layer_norm": {"axes": 2}}, TOKENS, nn.LayerNorm([5, 8]), "norm"),
    ("rms_norm", TOKENS, nn.RMSNorm(8, eps=1e-6), "norm"),
    ("relu", IMAGE, nn.ReLU(), "relu"),
    ("relu6", IMAGE, nn.ReLU6(), "relu6"),
    ("silu", IMAGE, nn.SiLU(), "silu"),
    ("gelu", IMAGE, nn.GELU(), "gelu"),
    ({"gelu": {"approximate": "tanh"}}, IMAGE, nn.GELU("tanh"), "gelu"),
    ("hardswish", IMAGE, nn.Hardswish(), "hardswish"),
    ("hardsigmoid", IMAGE, nn.Hardsigmoid(), "hardsigmoid"),
    ("sigmoid", IMAGE, nn.Sigmoid(), "sigmoid"),
    ("tanh", IMAGE, nn.Tanh(), "tanh"),
    ("softplus", IMAGE, nn.Softplus(), "softplus"),
    ("mish", IMAGE, nn.Mish(), "mish"),
    ({"elu": {"alpha": 0.5}}, IMAGE, nn.ELU(0.5), "elu"),
    ({"leaky_relu": {"negative_slope": 0.2}}, IMAGE, nn.LeakyReLU(0.2), "leaky_relu"),
    ({"softmax": {"dim": 1}}, IMAGE, nn.Softmax(1), "softmax"),
    ({"log_softmax": {"dim": 1}}, IMAGE, nn.LogSoftmax(1), "log_softmax"),
    ({"max_pool": 2}, IMAGE, nn.MaxPool2d(2), "pool"),
    ({"upsample": 2}, IMAGE, nn.Upsample(scale_factor=2), "upsample"),
    (
        {"upsample": {"factor": [2, 3], "mode": "linear"}},
        IMAGE,
        nn.Upsample(scale_factor=(2, 3), mode="bilinear"),
        "upsample",
    ),
    (
        {"conv_transpose": {"out": 8, "kernel": 3, "groups": 2}},
        IMAGE,
        nn.ConvTranspose2d(IMAGE[0], 8, 3, 2, 1, 1, groups=2),
        "conv_transpose",
    ),
    (
        {"max_pool": {"kernel": 3, "stride": 2, "padding": "same"}},
        IMAGE,
        nn.MaxPool2d(3, 2, 1),
        "pool",
    ),
    ({"avg_pool": {"kernel": 2}}, SIGNAL, nn.AvgPool1d(2), "pool"),
    ("global_avg_pool", IMAGE, nn.AdaptiveAvgPool2d(1), "pool"),
    ("flatten", IMAGE, nn.Flatten(), "flatten"),
    ({"flatten": {"start": 2}}, IMAGE, nn.Flatten(2), "flatten"),
    ({"reshape": [3, -1]}, IMAGE, lambda x: x.reshape(len(x), 3, -1), ""),
    ({"permute": [0, 2, 3, 1]}, IMAGE, lambda x: x.permute(0, 2, 3, 1), ""),
    ({"transpose": [1, 2]}, TOKENS, lambda x: x.transpose(1, 2), ""),
    ({"mean": 1}, TOKENS, lambda x: x.mean(1), ""),
    ({"mean": {"dim": [2, 3], "keep": True}}, IMAGE, lambda x: x.mean((2, 3), keepdim=True), ""),
    ({"select": {"dim": 1, "index": 2}}, TOKENS, lambda x: x[:, 2], ""),
    ({"mul": 0.5}, IMAGE, lambda x: x * 0.5, ""),
    ({"add": "input"}, IMAGE, lambda x: x + x, ""),
    ({"mul": ["input", "input"]}, IMAGE, lambda x: x * x * x, ""),
    ({"cat": {"other": "input", "dim": 2}}, IMAGE, lambda x: torch.cat([x, x], 2), ""),
    ({"aten.clamp": {"min": 0.2, "max": 0.4}}, IMAGE, lambda x: x.clamp(0.2, 0.4), ""),
    ({"aten.constant_pad_nd": {"pad": [0, 1]}}, IMAGE, lambda x: nn.functional.pad(x, (0, 1)), ""),
    ({"aten.maximum": {"other": "%input"}}, IMAGE, lambda x: x, ""),
    ({"aten.to.dtype": {"dtype": ":float64"}}, IMAGE, lambda x: x.double(), ""),
]


@pytest.mark.parametrize(("step", "shape", "reference", "stem"), REFERENCES)
def test_a_step_computes_what_torch_computes(
    step: Any, shape: list[int], reference: Any, stem: str
) -> None:
    graph = model(step, inputs={"x": shape})
    assert_lawful(graph)
    state = reference.state_dict() if isinstance(reference, nn.Module) else {}
    module = build(graph, {f"s.{stem}.{k}": v for k, v in state.items()})
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    for training in (False, True):
        if isinstance(reference, nn.Module):
            reference.train(training)
        torch.testing.assert_close(module.train(training)(x), reference(x), rtol=0, atol=0)
    if isinstance(reference, nn.Module):
        assert set(module.state_dict()) == {f"s.{stem}.{k}" for k in state}
        for key, value in reference.state_dict().items():
            assert torch.equal(module.state_dict()[f"s.{stem}.{key}"], value)


@pytest.mark.sample(3)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_torchs(fused: bool, causal: bool) -> None:
    reference = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    nn.init.normal_(reference.in_proj_bias)
    options = {"heads": 2, "fused": fused, "causal": causal}
    graph = model({"attention": options}, inputs={"x": TOKENS})
    assert_lawful(graph)
    weight, bias = reference.in_proj_weight, reference.in_proj_bias
    state = {
        "s.attention.out.weight": reference.out_proj.weight,
        "s.attention.out.bias": reference.out_proj.bias,
    }
    if fused:
        state |= {"s.attention.qkv.weight": weight, "s.attention.qkv.bias": bias}
    else:
        for index, name in enumerate(("query", "key", "value")):
            state[f"s.attention.{name}.weight"] = weight.chunk(3)[index]
            state[f"s.attention.{name}.bias"] = bias.chunk(3)[index]
    x = torch.randn(3, *TOKENS)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    expected = reference(x, x, x, attn_mask=mask, need_weights=False)[0]
    torch.testing.assert_close(build(graph, state)(x), expected, rtol=0, atol=1e-6)
    assert_traces_to_itself(graph)


def test_attention_draws_on_another_context() -> None:
    graph = read(
        """
        archgraph: 1
        inputs: {x: [5, 8], memory: [7, 6]}
        sections:
          - name: s
            steps: [attention: {heads: 2, head_width: 3, out: 4, context: memory, dropout: 0.1}]
        """
    )
    assert_lawful(graph)
    assert graph.param["s.attention.key.weight"].shape == (6, 6)
    assert graph.param["s.attention.out.weight"].shape == (4, 6)
    assert graph.node["scaled_dot_product_attention"].arg("dropout_p") == Mode(0.1, 0.0)
    assert build(graph)(torch.rand(2, 5, 8), torch.rand(2, 7, 6)).shape == (2, 5, 4)


def test_tokens_become_features() -> None:
    graph = model(
        {"embedding": {"count": 11, "width": 4}},
        "positional_embedding",
        "class_token",
        {"layer_scale": -1},
        {"select": 0},
        inputs={"tokens": {"shape": [5], "dtype": "int64"}},
    )
    assert_lawful(graph)
    assert {p.name: p.shape for p in graph.params} == {
        "s.embedding.weight": (11, 4),
        "s.position.weight": (5, 4),
        "s.class_token.weight": (1, 1, 4),
        "s.scale.weight": (4,),
    }
    assert graph.nodes[-1].shape == (BATCH, 4)
    assert_traces_to_itself(graph)


def test_layer_scale_of_images_stands_on_the_channels() -> None:
    graph = model({"layer_scale": 1}, inputs={"x": IMAGE})
    assert graph.param["s.scale.weight"].shape == (6, 1, 1)


def test_splits_are_drawn_with_get() -> None:
    graph = model(
        {"split": {"sizes": [2, 4], "as": "parts"}},
        {"get": {"index": 0, "as": "small"}},
        {"get": {"index": 1, "from": "parts"}},
        {"cat": "small"},
        inputs={"x": IMAGE},
    )
    assert_lawful(graph)
    x = torch.rand(2, *IMAGE)
    assert torch.equal(build(graph)(x), torch.cat([x[:, 2:], x[:, :2]], 1))


def test_dropout_is_alive_in_training_only() -> None:
    graph = model({"dropout": 0.5}, inputs={"x": IMAGE})
    assert graph.node["dropout"].arg("train") == TRAINING
    module, x = build(graph), torch.ones(2, *IMAGE)
    assert torch.equal(module.eval()(x), x)
    assert (module.train()(x) == 0).any()
    assert len(model({"dropout": 0.0}, "relu").nodes) == 2


def test_batch_norm_counts_its_batches_in_training_only() -> None:
    graph = model("batch_norm")
    assert [str(n).partition(" = ")[2] for n in graph.nodes[1:]] == [
        "aten.add.Tensor(self=s.bn.num_batches_tracked, other=1) @ s.bn",
        "aten.batch_norm(input=%x, weight=s.bn.weight, bias=s.bn.bias, "
        "running_mean=s.bn.running_mean, running_var=s.bn.running_var, training=training, "
        "momentum=0.1, eps=1e-05) @ s.bn",
    ]
    assert graph.updates == (("s.bn.num_batches_tracked", Mode(Ref("add"), None)),)
    assert [p.name.rpartition(".")[2] for p in graph.params] == [
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked",
    ]  # fmt: skip


def test_a_learned_tensor_is_an_argument() -> None:
    graph = model({"aten.mul.Tensor": {"other": {"parameter": [3, 1, 1]}, "name": "gain"}})
    assert [(p.name, p.shape) for p in graph.params] == [("s.gain.other", (3, 1, 1))]
    assert_traces_to_itself(graph)


# -- names, sections, shortcuts ------------------------------------------------------------------

PREACT = """
    archgraph: 1
    inputs: {image: [3, 8, 8]}
    blocks:
      preact:
        params: {width: null, stride: 1}
        shortcut: auto
        steps:
          - batch_norm
          - relu
          - conv: {out: $width, stride: $stride}
          - batch_norm
          - relu
          - conv: {out: $width}
    sections:
      - {name: stem, steps: [conv: {out: 4}]}
      - {name: stage1, block: preact, depth: 2, width: 4}
      - {name: stage2, block: preact, depth: 2, width: 8, stride: 2}
      - {name: head, steps: [batch_norm, relu, global_avg_pool, flatten, linear: 10]}
    choices: {stage1.depth: [1, 2, 3], stage2.width: [8, 12], stage2.stride: [1, 2]}
    """


def test_parameters_are_named_by_section_block_and_step() -> None:
    graph = read(PREACT)
    assert [p.name for p in graph.params if p.role == "parameter" and "stage2" in p.name] == [
        "stage2.0.bn1.weight",
        "stage2.0.bn1.bias",
        "stage2.0.conv1.weight",
        "stage2.0.bn2.weight",
        "stage2.0.bn2.bias",
        "stage2.0.conv2.weight",
        "stage2.0.shortcut.conv.weight",
        "stage2.1.bn1.weight",
        "stage2.1.bn1.bias",
        "stage2.1.conv1.weight",
        "stage2.1.bn2.weight",
        "stage2.1.bn2.bias",
        "stage2.1.conv2.weight",
    ]
    assert graph.sections == (
        ("stem", ()),
        ("stage1", ("stage1.0", "stage1.1")),
        ("stage2", ("stage2.0", "stage2.1")),
        ("head", ()),
    )
    assert_traces_to_itself(graph)


def test_stride_belongs_to_the_first_block() -> None:
    graph = read(PREACT)
    strides = [
        n.arg("stride") for n in graph.nodes if n.op == "aten.conv2d" and "stage2" in n.scope
    ]
    assert strides == [(2, 2), None, (2, 2), None, None]


def test_convolutions_beside_a_batch_norm_need_no_bias() -> None:
    names = {p.name for p in read(PREACT).params}
    assert "stem.conv.bias" in names
    assert "stage1.0.conv1.bias" not in names


def test_choices_change_depth_width_and_stride() -> None:
    graph = read(PREACT, {"stage1.depth": 3, "stage2.width": 12, "stage2.stride": 1})
    assert dict(graph.sections)["stage1"] == ("stage1.0", "stage1.1", "stage1.2")
    assert graph.param["stage2.1.conv2.weight"].shape == (12, 12, 3, 3)
    assert graph.node["reshape"].arg("self") == Ref("adaptive_avg_pool2d")
    assert read(PREACT, {"stage1.depth": 2}) == read(PREACT)


@pytest.mark.parametrize(
    ("steps", "norm"),
    [(["batch_norm", "relu", {"conv": 8}], False), ([{"conv": 8}, "relu", "batch_norm"], True)],
)
def test_a_projection_is_normalised_where_the_branch_ends_in_a_norm(
    steps: list[Any], norm: bool
) -> None:
    graph = model({"block": {"shortcut": "auto", "steps": steps, "after": ["relu"]}})
    assert ("s.block.shortcut.bn.weight" in graph.param) == norm
    assert "s.block.shortcut.conv.weight" in graph.param
    assert graph.nodes[-1].op == "aten.relu"


def test_a_projection_draws_on_what_it_is_told() -> None:
    steps = ["batch_norm", {"relu": {"as": "active"}}, {"conv": {"out": 8, "stride": 2}}]
    graph = model({"block": {"shortcut": {"from": "active"}, "steps": steps}})
    projection = next(n for n in graph.nodes if n.scope == "s.block.shortcut.conv")
    assert projection.arg("input") == Ref("relu")
    assert projection.arg("stride") == (2, 2)


@pytest.mark.parametrize(
    ("shape", "step", "op"),
    [
        ([8], {"linear": 4}, "aten.linear"),
        ([5, 8], {"linear": 4}, "aten.linear"),
        ([6, 9], {"conv1d": {"out": 4, "stride": 2}}, "aten.conv1d"),
        ([6, 9, 7], {"conv": {"out": 4, "stride": 3}}, "aten.conv2d"),
        ([6, 1, 7], {"conv": {"out": 4, "stride": 2}}, "aten.conv2d"),
    ],
)
def test_projections_fit_the_shapes(shape: list[int], step: Any, op: str) -> None:
    graph = model({"block": {"shortcut": "auto", "steps": [step]}}, inputs={"x": shape})
    assert_lawful(graph)
    assert [n.op for n in graph.nodes if "shortcut" in n.scope] == [op]


def test_where_equal_leaves_the_shortcut_out() -> None:
    block = {"shortcut": "where_equal", "steps": [{"conv": "$w"}], "params": {"w": None}}
    graph = model({"b": {"w": 3}}, {"b": {"w": 4}}, blocks={"b": block})
    assert [n.op for n in graph.nodes[1:]] == ["aten.conv2d", "aten.add.Tensor", "aten.conv2d"]
    assert {p.name for p in graph.params} == {
        f"s.b{i}.conv.{kind}" for i in (1, 2) for kind in ("weight", "bias")
    }


def test_parameters_reach_nested_blocks_and_names() -> None:
    graph = model(
        {"outer": {"w": 4}},
        params={"act": "tanh"},
        blocks={
            "outer": {"params": {"w": None}, "steps": [{"inner": {"v": "$w * 2"}}]},
            "inner": {
                "params": {"v": None},
                "steps": [{"conv": {"out": "$in_channels + $v", "kernel": 1}}, "$act"],
            },
        },
    )
    assert graph.param["s.outer.inner.conv.weight"].shape == (11, 3, 1, 1)
    assert graph.nodes[-1].op == "aten.tanh"


def test_several_inputs_and_outputs() -> None:
    graph = read(
        """
        archgraph: 1
        name: pair
        inputs: {left: [3], right: [3]}
        sections:
          - {name: a, steps: [linear: {out: 4, as: early}, relu]}
          - {name: b, steps: [linear: {out: 4, from: right}, add: a]}
        outputs: {sum: b, first: early}
        """
    )
    assert_lawful(graph)
    assert graph.inputs == (("left", Ref("left")), ("right", Ref("right")))
    assert graph.outputs == Record((("sum", Ref("add")), ("first", Ref("linear"))))
    result = build(graph)(torch.ones(2, 3), torch.ones(2, 3))
    assert result["sum"].shape == (2, 4)
    assert_traces_to_itself(graph)


def test_a_projection_is_always_projected_where_the_file_says_so() -> None:
    block = {"block": {"shortcut": "projection", "steps": ["relu"]}}
    assert "s.block.shortcut.conv.weight" in model(block).param


def test_steps_with_a_name_do_not_count_among_those_without() -> None:
    graph = model({"conv": {"out": 3, "name": "first"}}, {"conv": 3}, {"conv": 3})
    assert {"s.first.weight", "s.conv1.weight", "s.conv2.weight"} <= set(graph.param)


def test_a_label_cannot_be_the_name_of_an_input() -> None:
    with pytest.raises(SpecError, match="is taken; found 'x'"):
        model({"relu": {"as": "x"}})
