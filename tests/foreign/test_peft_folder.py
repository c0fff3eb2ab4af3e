"""Adapters that go to PEFT and come from it compute the same on both sides."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
import safetensors.torch
import torch

import archgraph as ag

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
peft = pytest.importorskip("peft", reason="needs peft")

from tests.nets import captured, with_parts  # noqa: E402
from tests.zoo.collection import FAMILIES  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    # PEFT's own, about weights that are stored transposed.
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]
# Layers with adapters of rank 4 and of rank 2: PEFT writes such as patterns.
LAYERS = {
    "bert": ("*.query", "*.value"),
    "gpt2": ("*.c_attn", "*.mlp.c_fc"),
    "llama": ("*.q_proj", "*.down_proj"),
    "vit": ("*.q_proj", "classifier"),
    "t5": ("decoder.*.q", "*.wo"),
    "resnet": ("*.stages.0.*convolution", "*.stages.1.*convolution"),
}


@functools.cache
def traced(name):
    net = FAMILIES[name]()
    graph, state = ag.trace(net.model.eval(), train=False, verify=False, **net.kwargs)
    return net, graph, state


@torch.no_grad()
def same_logits(theirs, graph, state, **inputs) -> None:
    """PEFT's model computes what a graph does."""
    expected = ag.build(graph, state).eval()(**inputs)["logits"]
    torch.testing.assert_close(theirs(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


def first(result) -> torch.Tensor:
    return next(iter(result.values()))


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", LAYERS)
def test_both_ways_with_ranks_per_layer(name, tmp_path):
    net, graph, state = traced(name)
    wide, narrow = LAYERS[name]
    adapted = ag.add_lora(graph, 4, wide, alpha=6) >> (
        lambda g: ag.add_lora(g, 2, narrow, alpha=5, scaling="rsqrt")
    )
    draw = torch.Generator().manual_seed(1)
    full = {
        k: 0.2 * torch.randn(v.shape, generator=draw) if ".lora." in k else v
        for k, v in adapted.transfer.pull(state).items()
    }
    ag.to_peft(adapted.graph, full, tmp_path / "ours")
    with torch.no_grad():
        plain = first(net.model(**net.kwargs))
        theirs = peft.PeftModel.from_pretrained(copy.deepcopy(net.model), tmp_path / "ours").eval()
        actual = first(theirs(**net.kwargs))
        expected = first(ag.build(adapted.graph, full).eval()(**net.kwargs))
        scale = float(expected.abs().max())
        assert float((expected - plain).abs().max()) > 1e-3 * scale
        torch.testing.assert_close(actual, expected, atol=1e-6 * max(scale, 1), rtol=0)
        theirs.save_pretrained(tmp_path / "theirs")
        again, read = ag.from_peft(graph, state, tmp_path / "theirs")
        result = first(ag.build(again, read).eval()(**net.kwargs))
    torch.testing.assert_close(result, expected, atol=1e-6 * max(scale, 1), rtol=0)
    for key, value in full.items():
        torch.testing.assert_close(read[key], value, atol=0, rtol=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_of_pefts_with_a_trained_head(rslora, tmp_path):
    net, graph, state = traced("bert")
    config = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules=["query", "dense"], modules_to_save=["classifier"],
        rank_pattern={"layer.1.attention.self.query": 2}, alpha_pattern={"pooler.dense": 2},
        use_rslora=rslora, init_lora_weights=False,
    )  # fmt: skip
    model = peft.get_peft_model(copy.deepcopy(net.model), config).eval()
    with torch.no_grad():
        head = model.base_model.model.classifier.modules_to_save["default"]
        head.weight += 1.0
        expected = model(**net.kwargs).logits
    model.save_pretrained(tmp_path)
    adapted, full = ag.from_peft(graph, state, tmp_path)
    with torch.no_grad():
        found = ag.build(adapted, full).eval()(**net.kwargs)["logits"]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(full["classifier.weight"], head.weight)


def pefts(net, **options):
    """Return a model of PEFT's whose every trainable parameter was moved, by a fixed draw."""
    torch.manual_seed(3)
    model = peft.get_peft_model(copy.deepcopy(net.model), peft.LoraConfig(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def trainable(model) -> set[str]:
    """Return the names that parameters have in the author's model and in graphs."""
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    for old, new in (
        ("base_model.model.", ""), (".modules_to_save.default", ""), (".base_layer", ""),
        ("lora_A.default", "lora.down"), ("lora_B.default", "lora.up"),
    ):  # fmt: skip
        names = {name.replace(old, new) for name in names}
    # PEFT marks biases of modules that saved ones replace, which it never calls.
    return {name for name in names if ".original_module." not in name}


CONFIGS: dict[str, dict[str, Any]] = {
    "a classifier by its task": {"task_type": "SEQ_CLS", "lora_dropout": 0.1},
    "named modules": {"modules_to_save": ["classifier", "pooler"], "lora_dropout": 0.25},
    "biases of the layers": {"bias": "lora_only", "task_type": "SEQ_CLS"},
    "all biases": {"bias": "all", "modules_to_save": ["classifier", "pooler"]},
    "adapters alone": {},
    "ranks and scales": {
        "use_rslora": True, "lora_alpha": 5, "rank_pattern": {"layer.1.attention.self.query": 3},
        "alpha_pattern": {"value": 7}, "lora_dropout": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_what_peft_trains_is_trained_and_survives_the_round_trip(name, tmp_path):
    """All was trainable, so that the way back left out the classifier and the dropout."""
    net, graph, state = traced("bert")
    config = {"r": 2, "target_modules": ["query", "value"], **CONFIGS[name]}
    model = pefts(net, **config)
    model.save_pretrained(tmp_path / "in")
    adapted, full = ag.from_peft(graph, state, tmp_path / "in")
    assert {p.name for p in adapted.params if p.trainable} == trainable(model)
    ag.to_peft(adapted, full, tmp_path / "out")
    again = peft.PeftModel.from_pretrained(
        copy.deepcopy(net.model), tmp_path / "out", is_trainable=True
    )
    assert trainable(again) == trainable(model)
    with torch.no_grad():
        expected = model.eval()(**net.kwargs).logits
        torch.testing.assert_close(again.eval()(**net.kwargs).logits, expected, atol=0, rtol=0)
        ours = ag.build(adapted, full).eval()(**net.kwargs)["logits"]
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)
    first, second = (again.peft_config["default"], model.peft_config["default"])
    assert (first.lora_dropout, first.bias) == (second.lora_dropout, second.bias)
    assert ag.from_peft(graph, state, tmp_path / "out").graph == adapted


def test_training_here_and_in_a_run_is_pefts(tmp_path):
    """The base was trained, too; one step of SGD shows which parameters move, and how far."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(),
                              torch.nn.Linear(8, 10))  # fmt: skip
    graph, state = captured(net, torch.zeros(2, 1, 8, 8))
    config = peft.LoraConfig(r=2, target_modules=["1"], modules_to_save=["3"], bias="lora_only",
                             init_lora_weights=False)  # fmt: skip
    model = peft.get_peft_model(net, config)
    model.save_pretrained(tmp_path)
    read = ag.from_peft(graph, state, tmp_path)
    x, y = torch.randn(20, 1, 8, 8), torch.arange(20) % 10

    def stepped(module):
        trained = [p for p in module.parameters() if p.requires_grad]
        torch.nn.functional.cross_entropy(module(x), y).backward()
        torch.optim.SGD(trained, lr=0.5).step()

    ours = ag.build(read.graph, read.state)
    for module in (model.train(), ours.train()):
        stepped(module)
    family = {"model": read, "clients": [{"name": "c", "count": 1}]}
    run = ag.run(
        {"name": "step", "family": family, "strategy": {"fedavg": {}}, "rounds": 1,
         "local": {"batch": 20, "lr": 0.5, "momentum": 0.0}},
        data=((x, y), (x, y)), progress=False,
    )  # fmt: skip
    with torch.no_grad():
        expected = model.eval()(x)
        torch.testing.assert_close(ours.eval()(x), expected, atol=1e-5, rtol=1e-5)
        ran = ag.build(run.models[0].graph, run.models[0].state).eval()
        torch.testing.assert_close(ran(x), expected, atol=1e-5, rtol=1e-5)
    still = {
        name for name in read.state if torch.equal(run.models[0].state[name], read.state[name])
    }
    assert still == {"1.weight"}


def test_dropouts_that_peft_cannot_say_are_refused(tmp_path):
    """Folders said a dropout of 0, whatever the adapters had; a ReLU there was left out."""

    @with_parts(
        lambda before: {
            "layer": torch.nn.Linear(4, 4),
            "before": before,
            "down": torch.nn.Linear(4, 2, bias=False),
            "up": torch.nn.Linear(2, 4, bias=False),
        }
    )
    def Adapted(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(self.before(x)))

    for second, message in (
        (torch.nn.Dropout(0.5), r"different dropouts.* found 0\.1 \(0\.layer\), 0\.5 \(1\.layer"),
        (torch.nn.ReLU(), r"1\.layer: an operator other than dropout .* found aten\.relu"),
    ):
        net = torch.nn.Sequential(Adapted(torch.nn.Dropout(0.1)), Adapted(second))
        graph, state = captured(net, torch.zeros(2, 4))
        with pytest.raises(ag.RewriteError, match=message):
            ag.to_peft(graph, state, tmp_path)
    with pytest.raises(ag.RewriteError, match=r"1\.down\.weight: cannot be folded .* comes first"):
        ag.fold(graph, state)  # the ReLU was left out


def test_an_adapter_with_a_dropout_is_still_one_and_can_be_folded(tmp_path):
    net, graph, state = traced("bert")
    pefts(net, r=4, target_modules=["query"], lora_dropout=0.1).save_pretrained(tmp_path)
    adapted, full = ag.from_peft(graph, state, tmp_path)
    narrow = ag.rank(adapted, 2)
    assert {p.shape[0] for p in narrow.graph.params if "lora.down" in p.name} == {2}
    folded = ag.fold(adapted, full)
    assert not [name for name in folded.graph.param if "lora" in name]
    with torch.no_grad():
        ours, theirs = (ag.build(*m).eval()(**net.kwargs)["logits"] for m in
                        ((adapted, full), (folded.graph, folded.state)))  # fmt: skip
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_layers_that_are_trained_whole_go_along(tmp_path):
    net, graph, state = traced("bert")
    trained = ag.add_lora(graph, 2, "*.query") >> (
        lambda g: ag.train_only(g, ["*.lora.*", "classifier.*"])
    )
    full = {k: v + 1 if "classifier" in k or ".lora." in k else v
            for k, v in trained.transfer.pull(state).items()}  # fmt: skip
    ag.to_peft(trained.graph, full, tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"] == [
        "classifier"
    ]
    model = peft.PeftModel.from_pretrained(copy.deepcopy(net.model), tmp_path).eval()
    same_logits(model, trained.graph, full, **net.kwargs)


def test_adapters_of_a_shorter_network_have_the_numbers_of_its_folder(tmp_path):
    """PEFT left out those of the last layer, which has another number there, in silence."""
    net, graph, state = traced("bert")
    short = ag.skip(graph, "bert.encoder.layer.0")
    weights = short.transfer.pull(state)
    ag.to_transformers(short, weights, net.model, tmp_path / "short")
    adapted = ag.add_lora(short.graph, 2, "*.query") >> (
        lambda g: ag.train_only(g, ["*.lora.*", "classifier.*"])
    )
    draw = torch.Generator().manual_seed(1)
    plain = adapted.transfer.pull(weights)
    full = {k: torch.randn(v.shape, generator=draw) if ".lora." in k or "classifier" in k else v
            for k, v in plain.items()}  # fmt: skip
    ag.to_peft(adapted, full, tmp_path / "adapter", base=str(tmp_path / "short"))
    base = type(net.model).from_pretrained(tmp_path / "short")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = ag.build(adapted.graph, full).eval()(**net.kwargs)["logits"]
        torch.testing.assert_close(model(**net.kwargs).logits, expected, atol=1e-5, rtol=1e-5)
        bare = plain | {k: v for k, v in full.items() if "classifier" in k}
        without = ag.build(adapted.graph, bare).eval()(**net.kwargs)["logits"]
        assert float((expected - without).abs().max()) > 1e-3
    more = ag.add_lora(graph, 2, "*.query")
    with pytest.raises(ag.RewriteError, match="the base model does not have this layer"):
        ag.to_peft(more, more.transfer.pull(state), tmp_path / "a", base=str(tmp_path / "short"))


def randomised(graph, state):
    """The graph's state with random adapters on queries, and that of the graph with them."""
    adapted = ag.add_lora(graph, 2, "*.query")
    draw = torch.Generator().manual_seed(1)
    full = {k: torch.randn(v.shape, generator=draw) if ".lora." in k else v
            for k, v in adapted.transfer.pull(state).items()}  # fmt: skip
    return adapted.graph, full


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "cut",
    [
        lambda g: ag.skip(g, "bert.encoder.layer.0"),
        lambda g: ag.graft(g, {"bert.encoder.layer": [0, 0, 1, 2]}),
    ],
    ids=["shortened", "lengthened"],
)
def test_numbers_of_layers_are_those_of_the_base_in_both_directions(cut, tmp_path):
    """Without a base they stayed, so that PEFT put adapters beside other layers, or left them out.

    Of a network with copies of layers (0, 3, 1, 2) they stayed with one, too.
    """
    net, graph, state = traced("bert")
    other = cut(graph)
    weights = other.transfer.pull(state)
    ag.to_transformers(other, weights, net.model, tmp_path / "other")
    adapted, full = randomised(other.graph, weights)
    with pytest.raises(ag.RewriteError, match=r"not numbered from 0 in the order .* found .*base="):
        ag.to_peft(adapted, full, tmp_path / "adapter")
    ag.to_peft(adapted, full, tmp_path / "adapter", base=str(tmp_path / "other"))
    base = type(net.model).from_pretrained(tmp_path / "other")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    same_logits(model, adapted, full, **net.kwargs)
    again, read = ag.from_peft(other.graph, weights, tmp_path / "adapter")
    assert again == ag.train_only(adapted, "*.lora.*").graph and all(
        torch.equal(read[k], v) for k, v in full.items()
    )


@pytest.mark.full
def test_beside_the_original_layers_of_a_shorter_network_keep_their_numbers(tmp_path):
    """They were numbered as in a folder without gaps: the first layer got the second's adapter."""
    net, graph, state = traced("bert")
    net.model.save_pretrained(tmp_path / "original")
    short = ag.skip(graph, "bert.encoder.layer.0")
    adapted, full = randomised(short.graph, short.transfer.pull(state))
    for base in (str(tmp_path / "original"), "a-name"):
        ag.to_peft(adapted, full, tmp_path / "adapter", base=base)
        _, read = ag.from_peft(graph, state, tmp_path / "adapter")
        adapters = {k: v for k, v in read.items() if ".lora." in k}
        assert {k.partition(".attention")[0] for k in adapters} == {
            f"bert.encoder.layer.{i}" for i in (1, 2)
        }
        assert all(torch.equal(full[k], v) for k, v in adapters.items())
    # Now the folder of a base that is not there: which numbers it has must be said.
    with pytest.raises(ag.RewriteError, match="not numbered from 0"):
        ag.from_peft(short.graph, state, tmp_path / "adapter")
    base = str(tmp_path / "original")
    again, _ = ag.from_peft(
        short.graph, short.transfer.pull(state), tmp_path / "adapter", base=base
    )
    assert again == ag.train_only(adapted, "*.lora.*").graph


@with_parts(
    lambda: {
        "scale": torch.nn.Parameter(torch.ones(4)),
        "layer": torch.nn.Linear(4, 4),
    }
)
def Inner(self, x: torch.Tensor) -> torch.Tensor:
    """A module with a parameter of its own beside a layer."""
    return self.layer(x) * self.scale


@with_parts(
    lambda: {
        "first": torch.nn.Linear(4, 4),
        "bn": torch.nn.BatchNorm1d(4),
        "post": Inner(),
        "repost": Inner(),
        "bare": torch.nn.Parameter(torch.ones(4)),
    }
)
def Outer(self, x: torch.Tensor) -> torch.Tensor:
    """A batch norm, and two modules of which one's name ends like the other's."""
    return self.repost(self.post(self.bn(self.first(x)).relu()) * self.bare)


def test_norms_with_running_statistics_stay_frozen_on_the_way_back(tmp_path):
    """They went into `modules_to_save`, which PEFT trains."""
    net, x = Outer(), torch.randn(5, 4)
    graph, state = captured(net, x)
    config = peft.LoraConfig(r=2, target_modules=["first"], modules_to_save=["repost"])
    model = peft.get_peft_model(copy.deepcopy(net), config)
    model.save_pretrained(tmp_path / "in")
    adapted, full = ag.from_peft(graph, state, tmp_path / "in")
    full = full | {"bn.running_mean": full["bn.running_mean"] + 1}
    ag.to_peft(adapted, full, tmp_path / "out")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(net), tmp_path / "out", is_trainable=True)
    assert trainable(again) == trainable(model) == {p.name for p in adapted.params if p.trainable}
    with torch.no_grad():
        expected = ag.build(adapted, full).eval()(x)
        torch.testing.assert_close(again.eval()(x), expected, atol=1e-6, rtol=1e-6)
    back = ag.from_peft(graph, state, tmp_path / "out")
    assert back.graph == adapted and torch.equal(
        back.state["bn.running_mean"], full["bn.running_mean"]
    )


@pytest.mark.parametrize("trained", ["post.scale", "repost.*", "bn.*"])
def test_what_training_changed_beside_adapters_goes_along(trained, tmp_path):
    """Running statistics stayed those of the base; PEFT wanted all that a module has in it."""
    model, x = Outer(), torch.randn(5, 4)
    graph, state = captured(model, x)
    adapted = ag.add_lora(graph, 2, "first") >> (lambda g: ag.train_only(g, ["*.lora.*", trained]))
    still = set(ag.frozen(adapted.graph))
    full = {k: v + torch.rand_like(v) if v.is_floating_point() and k not in still else v
            for k, v in adapted.transfer.pull(state).items()}  # fmt: skip
    assert not torch.equal(full["bn.running_var"], state["bn.running_var"])
    ag.to_peft(adapted.graph, full, tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()
    with torch.no_grad():
        expected = ag.build(adapted.graph, full).eval()(x)
        torch.testing.assert_close(theirs(x), expected, atol=1e-6, rtol=1e-6)
    _, read = ag.from_peft(graph, state, tmp_path)
    assert all(torch.equal(read[k], v) for k, v in full.items())


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ("first.weight", "first: is trained in addition to its adapter"),
        ("bare", "bare: is trained, but not part of"),
    ],
)
def test_what_peft_cannot_save_beside_adapters_is_refused(trained, message, tmp_path):
    """PEFT left the layer's adapter out, or ended in errors of its own."""
    graph, state = captured(Outer(), torch.randn(5, 4))
    adapted = ag.add_lora(graph, 2, "first") >> (lambda g: ag.train_only(g, ["*.lora.*", trained]))
    with pytest.raises(ag.RewriteError, match=message):
        ag.to_peft(adapted.graph, adapted.transfer.pull(state), tmp_path)


def tied_llama():
    """A Llama whose head is its embedding."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=8, tie_word_embeddings=True,
    )  # fmt: skip
    words = torch.randint(20, (2, 8))
    model = transformers.LlamaForCausalLM(config).eval()
    return model, words, *ag.trace(model, input_ids=words, train=False, verify=False)


def test_a_tied_weight_that_is_trained_whole_is_written_under_both_names(tmp_path):
    """PEFT replaced the embedding alone: the head stayed as it was."""
    model, words, graph, state = tied_llama()
    adapted = ag.add_lora(graph, 2, "*.q_proj") >> (
        lambda g: ag.train_only(g, ["*.lora.*", "model.embed_tokens.*"])
    )
    full = {k: v + 0.1 * torch.randn_like(v) if "embed" in k or ".lora." in k else v
            for k, v in adapted.transfer.pull(state).items()}  # fmt: skip
    ag.to_peft(adapted.graph, full, tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()
    same_logits(theirs, adapted.graph, full, input_ids=words)
    _, read = ag.from_peft(graph, state, tmp_path)
    assert all(torch.equal(read[k], v) for k, v in full.items())


@pytest.mark.sample(2)
@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_a_folder_that_unties_a_weight_is_refused(module, tmp_path):
    """Both places got what PEFT trained in one of them."""
    model, _, graph, state = tied_llama()
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=[module])
    other = peft.get_peft_model(model, config)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.save_pretrained(tmp_path)
    with pytest.raises(ag.GraphError, match=r"lm_head\.weight: differs from .* they are tied"):
        ag.from_peft(graph, state, tmp_path)


@pytest.mark.full
def test_adapters_that_peft_subtracted_from_the_base_are_refused(tmp_path):
    """The base lacks what such an adapter began as, but that is in no file of the folder."""
    net, graph, state = traced("bert")
    config = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights="pissa")
    peft.get_peft_model(copy.deepcopy(net.model), config).save_pretrained(tmp_path)
    with pytest.raises(
        ag.GraphError, match=r"belong to a modified base: .* found init_lora_weights: pissa"
    ):
        ag.from_peft(graph, state, tmp_path)


def test_what_is_no_low_rank_adapter_is_refused(tmp_path):
    _, graph, state = traced("bert")
    with pytest.raises(
        ag.RewriteError, match=r"has no low-rank adapters; add some with ag\.add_lora"
    ):
        ag.to_peft(graph, state, tmp_path)
    adapted, transfer = ag.add_lora(graph, 2, "*.query")
    ag.to_peft(adapted, transfer.pull(state), tmp_path)
    file = tmp_path / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(
        ag.GraphError, match="sets more than plain low-rank adapters; found use_dora"
    ):
        ag.from_peft(graph, state, tmp_path)
    file.write_text(json.dumps(config | {"peft_type": "IA3"}))
    with pytest.raises(ag.GraphError, match="another kind of adapter; found IA3; expected LORA"):
        ag.from_peft(graph, state, tmp_path)
    for change, found in (
        ({"an_option_of_tomorrow": [1]}, r"sets more .* found an_option_of_tomorrow"),
        ({"init_lora_weights": "mica"}, r"one factor .* is frozen; found init_lora_weights: mica"),
        ({"layers_to_transform": "no JSON"}, r"adapter_config\.json: is not JSON"),
    ):
        text = json.dumps(config | change)
        file.write_text(text.replace('"no JSON"', ""))
        with pytest.raises(ag.GraphError, match=found):
            ag.from_peft(graph, state, tmp_path)
    file.write_text(json.dumps(config))
    other, weights = traced("distilbert")[1:]
    with pytest.raises(ag.GraphError, match="matches no linear map or convolution"):
        ag.from_peft(other, weights, tmp_path)
    weights_file = tmp_path / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(weights_file)
    rows = {k: v[1:] if k.endswith("lora_B.weight") else v for k, v in tensors.items()}
    safetensors.torch.save_file(rows, weights_file)
    with pytest.raises(ag.GraphError, match=r"lora\.up\S*: the state has this .* another shape"):
        ag.from_peft(graph, state, tmp_path)
    weights_file.write_bytes(b"damaged")
    with pytest.raises(ag.GraphError, match=r"adapter_model\.safetensors: is not a safetensors"):
        ag.from_peft(graph, state, tmp_path)


@pytest.mark.full
def test_a_base_with_other_weights_is_refused(tmp_path):
    """A model that FLoRA trained, and one whose pooler the folder lacks, were another beside it."""
    net, graph, state = traced("bert")
    net.model.save_pretrained(tmp_path / "base")
    adapted, full = randomised(graph, state)
    base, weight = str(tmp_path / "base"), "bert.encoder.layer.1.attention.self.query.weight"
    with pytest.raises(
        ag.RewriteError, match=rf"{weight}: differs from the base.* result of ag\.fold"
    ):
        ag.to_peft(adapted, full | {weight: full[weight] + 1}, tmp_path / "adapter", base=base)
    transformers.BertForMaskedLM(net.model.config).save_pretrained(tmp_path / "body")
    body = transformers.BertForMaskedLM.from_pretrained(tmp_path / "body").state_dict()
    of_body = {name: body.get(name, value) for name, value in full.items()}
    with pytest.raises(
        ag.RewriteError, match=r"bert\.pooler\.dense\.\w+: differs from the base.* at random"
    ):
        ag.to_peft(
            ag.train_only(adapted, ["*.lora.*", "classifier.*"]).graph,
            of_body, tmp_path / "adapter", base=str(tmp_path / "body"),
        )  # fmt: skip
    assert not (tmp_path / "adapter").exists()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ag.GraphError, match=r"model\.safetensors: is not a safetensors file"):
        ag.to_peft(adapted, full, tmp_path / "adapter", base=base)
    (tmp_path / "base" / "model.safetensors").unlink()  # in other files: not read
    ag.to_peft(adapted, full, tmp_path / "adapter", base=base)
