"""Adapters that go to PEFT and come from it compute the same on both sides."""

from __future__ import annotations

import copy
import json

import pytest
import torch

import archgraph as ag
from archgraph.errors import GraphError, RewriteError

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
peft = pytest.importorskip("peft", reason="needs peft")

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


def traced(name):
    net = FAMILIES[name]()
    graph, state = ag.trace(net.model.eval(), train=False, verify=False, **net.kwargs)
    return net, graph, state


def first(result) -> torch.Tensor:
    return next(iter(result.values()))


@pytest.mark.sample(3)
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
    with torch.no_grad():
        expected = ag.build(trained.graph, full).eval()(**net.kwargs)["logits"]
        torch.testing.assert_close(model(**net.kwargs).logits, expected, atol=1e-5, rtol=1e-5)


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
    with pytest.raises(RewriteError, match="the base model has no such layer"):
        ag.to_peft(more, more.transfer.pull(state), tmp_path / "a", base=str(tmp_path / "short"))


def randomised(graph, state):
    """The graph's state with random adapters on queries, and that of the graph with them."""
    adapted = ag.add_lora(graph, 2, "*.query")
    draw = torch.Generator().manual_seed(1)
    full = {k: torch.randn(v.shape, generator=draw) if ".lora." in k else v
            for k, v in adapted.transfer.pull(state).items()}  # fmt: skip
    return adapted.graph, full


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
    with pytest.raises(RewriteError, match=r"not numbered from 0 in the order .* found .*base="):
        ag.to_peft(adapted, full, tmp_path / "adapter")
    ag.to_peft(adapted, full, tmp_path / "adapter", base=str(tmp_path / "other"))
    base = type(net.model).from_pretrained(tmp_path / "other")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = ag.build(adapted, full).eval()(**net.kwargs)["logits"]
        torch.testing.assert_close(model(**net.kwargs).logits, expected, atol=1e-5, rtol=1e-5)
    again, read = ag.from_peft(other.graph, weights, tmp_path / "adapter")
    assert again == adapted and all(torch.equal(read[k], v) for k, v in full.items())


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
    with pytest.raises(RewriteError, match="not numbered from 0"):
        ag.from_peft(short.graph, state, tmp_path / "adapter")
    base = str(tmp_path / "original")
    again, _ = ag.from_peft(
        short.graph, short.transfer.pull(state), tmp_path / "adapter", base=base
    )
    assert again == adapted


class Inner(torch.nn.Module):
    """A module with a parameter of its own beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = torch.nn.Parameter(torch.ones(4)), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


class Outer(torch.nn.Module):
    """A batch norm, and two modules of which one's name ends like the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.post, self.repost, self.bare = Inner(), Inner(), torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.repost(self.post(self.bn(self.first(x)).relu()) * self.bare)


@pytest.mark.parametrize("trained", ["post.scale", "repost.*", "bn.*"])
def test_what_training_changed_beside_adapters_goes_along(trained, tmp_path):
    """Running statistics stayed those of the base; PEFT wanted all that a module has in it."""
    torch.manual_seed(0)
    model, x = Outer(), torch.randn(5, 4)
    graph, state = ag.trace(model, x)
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
    [("first.bias", "first: is trained beside its adapter"), ("bare", "bare: is trained, but in")],
)
def test_what_peft_cannot_save_beside_adapters_is_refused(trained, message, tmp_path):
    """PEFT left the layer's adapter out, or ended in errors of its own."""
    graph, state = ag.trace(Outer(), torch.randn(5, 4))
    adapted = ag.add_lora(graph, 2, "first") >> (lambda g: ag.train_only(g, ["*.lora.*", trained]))
    with pytest.raises(RewriteError, match=message):
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
    with torch.no_grad():
        expected = ag.build(adapted.graph, full).eval()(input_ids=words)["logits"]
        torch.testing.assert_close(theirs(words).logits, expected, atol=1e-5, rtol=1e-5)
    _, read = ag.from_peft(graph, state, tmp_path)
    assert all(torch.equal(read[k], v) for k, v in full.items())


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
    with pytest.raises(
        GraphError, match="weight is tied, and the folder changes one of its places"
    ):
        ag.from_peft(graph, state, tmp_path)


def test_adapters_that_peft_subtracted_from_the_base_are_refused(tmp_path):
    """The base lacks what such an adapter began as, but that is in no file of the folder."""
    net, graph, state = traced("bert")
    config = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights="pissa")
    peft.get_peft_model(copy.deepcopy(net.model), config).save_pretrained(tmp_path)
    with pytest.raises(
        GraphError, match=r"belong to other weights: .* found init_lora_weights: pissa"
    ):
        ag.from_peft(graph, state, tmp_path)


def test_what_is_no_low_rank_adapter_is_refused(tmp_path):
    _, graph, state = traced("bert")
    with pytest.raises(RewriteError, match=r"has no low-rank adapters; ag\.add_lora"):
        ag.to_peft(graph, state, tmp_path)
    adapted, transfer = ag.add_lora(graph, 2, "*.query")
    ag.to_peft(adapted, transfer.pull(state), tmp_path)
    file = tmp_path / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(GraphError, match="computes more than low-rank adapters do; found use_dora"):
        ag.from_peft(graph, state, tmp_path)
    file.write_text(json.dumps(config | {"peft_type": "IA3"}))
    with pytest.raises(GraphError, match="another kind of adapter; found IA3; expected LORA"):
        ag.from_peft(graph, state, tmp_path)
    file.write_text(json.dumps(config))
    other, weights = traced("distilbert")[1:]
    with pytest.raises(GraphError, match="matches no linear map or convolution"):
        ag.from_peft(other, weights, tmp_path)


def test_a_base_with_other_weights_is_refused(tmp_path):
    """A model that FLoRA trained, and one whose pooler the folder lacks, were another beside it."""
    net, graph, state = traced("bert")
    net.model.save_pretrained(tmp_path / "base")
    adapted, full = randomised(graph, state)
    base, weight = str(tmp_path / "base"), "bert.encoder.layer.1.attention.self.query.weight"
    with pytest.raises(RewriteError, match=rf"{weight}: is not the base's.* write ag\.fold's"):
        ag.to_peft(adapted, full | {weight: full[weight] + 1}, tmp_path / "adapter", base=base)
    transformers.BertForMaskedLM(net.model.config).save_pretrained(tmp_path / "body")
    body = transformers.BertForMaskedLM.from_pretrained(tmp_path / "body").state_dict()
    of_body = {name: body.get(name, value) for name, value in full.items()}
    with pytest.raises(RewriteError, match=r"bert\.pooler\.dense\.\w+: is not the base's.* drawn"):
        ag.to_peft(
            ag.train_only(adapted, ["*.lora.*", "classifier.*"]).graph,
            of_body, tmp_path / "adapter", base=str(tmp_path / "body"),
        )  # fmt: skip
    assert not (tmp_path / "adapter").exists()
