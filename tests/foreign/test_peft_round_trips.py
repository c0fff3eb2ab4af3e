"""Configurations of PEFT's there and back: by folder, and of a model that PEFT has wrapped."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.foreign.peft_names import author_model

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
peft = pytest.importorskip("peft", reason="needs peft")

import tests.conftest  # noqa: E402, F401 - offline, and torchvision beside a CPU torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    # PEFT's own: about weights that are stored transposed, and folders that hold the base's.
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Adapter 'default'. 2 LoRA tensor"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]
WORDS, LENGTH = 20, 8
ENCODER = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 16, "num_labels": 3,
}  # fmt: skip
DECODER = {**ENCODER, "tie_word_embeddings": False, "pad_token_id": 0, "use_cache": False}
GPT2 = {
    "vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16,
    "use_cache": False, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
T5 = {
    "vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "use_cache": False, "decoder_start_token_id": 0,
}  # fmt: skip
RESNET = {
    "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_labels": 3,
    "layer_type": "basic",
}  # fmt: skip
# A class, its configuration, and options of PEFT's.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a classifier by its task": (
        "BertForSequenceClassification", ENCODER,
        {"target_modules": ["query", "value"], "task_type": "SEQ_CLS", "lora_dropout": 0.1},
    ),
    "a classifier of two layers": (
        "RobertaForSequenceClassification", ENCODER,
        {"target_modules": ["query"], "task_type": "SEQ_CLS"},
    ),
    "ranks, scales, and the square root": (
        "BertForTokenClassification", ENCODER,
        {"target_modules": "all-linear", "exclude_modules": ["classifier"],
         "task_type": "TOKEN_CLS", "use_rslora": True,
         "lora_alpha": 5, "rank_pattern": {"layer.1.attention.self.query": 3},
         "alpha_pattern": {"value": 7}},
    ),
    "biases of layers with adapters": (
        "BertForQuestionAnswering", {**ENCODER, "num_labels": 2},
        {"target_modules": ["value"], "task_type": "QUESTION_ANS", "bias": "lora_only"},
    ),
    "all biases": (
        "BertForSequenceClassification", ENCODER,
        {"target_modules": ["query"], "bias": "all", "modules_to_save": ["pooler", "classifier"]},
    ),
    "one layer by a regular expression": (
        "BertForSequenceClassification", ENCODER,
        {"target_modules": r".*layer\.1\..*(query|dense)", "lora_alpha": 3},
    ),
    "transposed weights": (
        "GPT2LMHeadModel", GPT2,
        {"target_modules": ["c_attn", "mlp.c_proj"], "task_type": "CAUSAL_LM"},
    ),
    "an embedding beside transposed weights": (
        "GPT2LMHeadModel", GPT2,
        {"target_modules": ["wte", "c_fc"], "task_type": "CAUSAL_LM", "lora_dropout": 0.2},
    ),
    "an embedding and the head": (
        "LlamaForCausalLM", DECODER,
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"], "task_type": "CAUSAL_LM",
         "rank_pattern": {"embed_tokens": 3}},
    ),
    "the head alone": (
        "MistralForCausalLM", {**DECODER, "num_key_value_heads": 1},
        {"target_modules": ["lm_head"], "task_type": "CAUSAL_LM", "r": 1},
    ),
    "one of the layers": (
        "LlamaForSequenceClassification", DECODER,
        {"target_modules": ["q_proj", "down_proj"], "task_type": "SEQ_CLS",
         "layers_to_transform": [1]},
    ),
    "an embedding that is trained whole": (
        "LlamaForCausalLM", DECODER,
        {"target_modules": ["o_proj"], "modules_to_save": ["embed_tokens"],
         "task_type": "CAUSAL_LM"},
    ),
    "encoder and decoder": (
        "T5ForConditionalGeneration", T5,
        {"target_modules": ["q", "wo"], "task_type": "SEQ_2_SEQ_LM",
         "modules_to_save": ["final_layer_norm"]},
    ),
    "convolutions": (
        "ResNetForImageClassification", RESNET,
        {"target_modules": ["convolution"], "modules_to_save": ["classifier"]},
    ),
}  # fmt: skip
# Where the configuration names no task: that of the class, whose head is trained. A model that PEFT
# has wrapped without a task has none.
TASKS = {("all biases", "read"): "SEQ_CLS"}


@functools.cache
def model_of(name: str, options: str):
    """Return a model and its inputs."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**json.loads(options))).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # attention of a fresh network is even
            parameter += 0.1 * torch.randn_like(parameter)
    if model.main_input_name == "pixel_values":
        return model, {"pixel_values": torch.randn(2, 3, 32, 32)}
    inputs = {"input_ids": torch.randint(3, WORDS, (2, LENGTH))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, WORDS, (2, LENGTH))
    return model, inputs


@functools.cache
def traced(name: str, options: str) -> Any:
    model, inputs = model_of(name, options)
    return ag.trace(model, train=False, verify=False, **inputs)


def wrapped(model, **options):
    """Return PEFT's model around a copy of another, each trainable parameter moved."""
    torch.manual_seed(3)
    result = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(**{"r": 2, **options}))
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    return result.eval()


@torch.no_grad()
def logits(model, inputs) -> torch.Tensor:
    return next(iter(model(**inputs).values()))


def pair(network: Any) -> tuple[Any, Any]:
    graph, state = network
    return graph, state


def fold(network: Any) -> tuple[Any, Any]:
    return pair(ag.fold(*pair(network)))


def built(graph, state, inputs) -> torch.Tensor:
    return logits(ag.build(graph, state).eval(), inputs)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def trainable(model) -> set[str]:
    """Return which of the author's parameters PEFT trains, but for those that it never calls."""
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    return {
        name.replace(".modules_to_save.default", "")
        for name in names
        if ".original_module." not in name
    }


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", CASES)
def test_a_configuration_survives_the_round_trip(case, tmp_path):
    """By PEFT's folder, and by the model that PEFT has wrapped; the base is as it was."""
    name, options, config = CASES[case]
    model, inputs = model_of(name, json.dumps(options))
    graph, state = traced(name, json.dumps(options))
    theirs = wrapped(model, **config)
    expected = logits(theirs, inputs)
    assert float((expected - logits(model, inputs)).abs().max()) > 1e-2
    theirs.save_pretrained(tmp_path / "theirs")
    adapted, full = ag.from_peft(graph, state, tmp_path / "theirs")
    close(built(adapted, full, inputs), expected)
    assert not {t.data_ptr() for t in full.values()} & {t.data_ptr() for t in state.values()}
    here = ag.trace(theirs, train=False, verify=False, **inputs)
    embedded = any("lora_embedding" in name for name in here.state)
    ways: dict[str, Any] = {"read": (adapted, full)} | ({} if embedded else {"traced": here})
    for way, (net, weights) in ways.items():
        ag.to_peft(net, weights, tmp_path / way)
        base = copy.deepcopy(model)
        again = peft.PeftModel.from_pretrained(base, tmp_path / way, is_trainable=True).eval()
        close(logits(again, inputs), expected)
        assert trainable(again) == trainable(theirs)
        first, second = again.peft_config["default"], theirs.peft_config["default"]
        assert first.task_type == config.get("task_type", TASKS.get((case, way)))
        assert first.lora_dropout == second.lora_dropout
        close(built(*fold((net, weights)), inputs), expected)
    like = model if embedded else theirs
    assert ag.to_transformers(*fold(ways.popitem()[1]), like, tmp_path / "folded") == {}
    whole = type(model).from_pretrained(tmp_path / "folded").eval()
    close(logits(whole, inputs), expected)
    assert whole.state_dict().keys() == model.state_dict().keys()
    if embedded:
        with pytest.raises(ag.RewriteError, match=r"lora_embedding_A.*save_pretrained of PEFT"):
            ag.to_peft(*pair(here), tmp_path / "traced")


BERT = "BertForSequenceClassification", json.dumps(ENCODER)
LLAMA = "LlamaForCausalLM", json.dumps(DECODER)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BERT, {"target_modules": ["query"], "use_dora": True}, "low-rank .* found use_dora"),
        (BERT, {"target_modules": ["query"], "lora_bias": True}, "low-rank .* found lora_bias"),
        (
            LLAMA, {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
            "low-rank .* found trainable_token_indices",
        ),
        (
            (LLAMA[0], json.dumps({**DECODER, "tie_word_embeddings": True})),
            {"target_modules": ["embed_tokens"]},
            "embed_tokens.weight: .* its weight is tied to that of another layer",
        ),
        (LLAMA, {"target_modules": ["q_proj"], "init_lora_weights": "OLoRA"}, "a modified base"),
    ],
    ids=["DoRA", "biases of adapters", "single tokens", "tied", "OLoRA"],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_its_name(kind, options, message, tmp_path):
    model, _ = model_of(*kind)
    wrapped(model, **options).save_pretrained(tmp_path)
    with pytest.raises((ag.GraphError, ag.RewriteError), match=message):
        ag.from_peft(*pair(traced(*kind)), tmp_path)


def test_a_wrapped_model_with_another_kind_of_adapter_is_refused(tmp_path):
    """It was written without it: DoRA, and a second adapter of the same layers."""
    model, inputs = model_of(*BERT)
    dora = ag.trace(wrapped(model, target_modules=["query"], use_dora=True), train=False, **inputs)
    with pytest.raises(ag.RewriteError, match=r"query\.lora_\w+\.default\S*: .* DoRA"):
        ag.to_peft(*pair(dora), tmp_path)
    with pytest.raises(ag.RewriteError, match=r"does not have this tensor; found .*lora_magnitude"):
        ag.to_transformers(*fold(dora), model, tmp_path / "out")
    two = wrapped(model, target_modules=["query"])
    two.add_adapter(
        "second", peft.LoraConfig(r=3, target_modules=["query"], init_lora_weights=False)
    )
    two.base_model.set_adapter(["default", "second"])
    here = ag.trace(two.eval(), train=False, verify=False, **inputs)
    with pytest.raises(ag.RewriteError, match=r"query\.lora_A\.second\S*: .* second adapter"):
        ag.to_peft(*pair(here), tmp_path)
    folded = fold(here)
    assert not [name for name in folded[1] if "lora" in name]
    close(built(*pair(folded), inputs), logits(two, inputs))


def test_an_adapter_beside_a_tied_head_is_refused(tmp_path):
    """It was written for the embedding, and PEFT read none for the head."""
    model, inputs = model_of(LLAMA[0], json.dumps({**DECODER, "tie_word_embeddings": True}))
    here = ag.trace(wrapped(model, target_modules=["lm_head"]), train=False, **inputs)
    with pytest.raises(ag.RewriteError, match="adapts a tied weight"):
        ag.to_peft(*pair(here), tmp_path)


def test_only_the_active_adapter_of_a_wrapped_model_is_written(tmp_path):
    """Each has a classifier of its own; the names of both are one in the author's class."""
    model, inputs = model_of(*BERT)
    two = wrapped(model, target_modules=["query"], task_type="SEQ_CLS")
    options = {"target_modules": ["value"], "task_type": "SEQ_CLS", "init_lora_weights": False}
    two.add_adapter("second", peft.LoraConfig(r=3, **options))
    for active in ("second", "default"):
        two.set_adapter(active)
        with torch.no_grad():
            two.base_model.model.classifier.modules_to_save[active].bias += 1
        here = ag.trace(two.eval(), train=False, verify=False, **inputs)
        ag.to_peft(*pair(here), tmp_path / active)
        again = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / active).eval()
        close(logits(again, inputs), logits(two, inputs))
        assert author_model(two.get_base_model()).config is not two.get_base_model().config
        folded = fold(here)
        ag.to_transformers(*pair(folded), two.get_base_model(), tmp_path / f"{active} folded")
        whole = type(model).from_pretrained(tmp_path / f"{active} folded").eval()
        close(logits(whole, inputs), logits(two, inputs))


def test_the_task_is_that_of_the_class_or_of_the_argument(tmp_path):
    """Folders said none; PEFT's own class for the task then lacked its head in silence."""
    graph, state = traced("RobertaForSequenceClassification", json.dumps(ENCODER))
    adapted = ag.add_lora(graph, 2, "*.query")
    full = adapted.transfer.pull(state)

    def written(rewritten, **options):
        ag.to_peft(rewritten.graph, full, tmp_path, **options)
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        return config["task_type"], config["modules_to_save"]

    frozen = adapted >> (lambda g: ag.train_only(g, "*.lora.*"))
    head = adapted >> (lambda g: ag.train_only(g, ["*.lora.*", "classifier.*"]))
    half = adapted >> (lambda g: ag.train_only(g, ["*.lora.*", "classifier.dense.*"]))
    assert written(frozen) == (None, None)
    assert written(head) == ("SEQ_CLS", ["classifier"])
    assert written(half) == (None, ["classifier.dense"])
    assert written(frozen, task_type="FEATURE_EXTRACTION") == ("FEATURE_EXTRACTION", None)
    with pytest.raises(
        ag.RewriteError, match=r"classifier\S+: is frozen, but PEFT trains it .* SEQ_CLS"
    ):
        written(half, task_type="SEQ_CLS")


@pytest.mark.full
def test_scales_of_layers_with_other_numbers_are_theirs(tmp_path):
    """They were looked up under the numbers of the network instead of those of the folder."""
    model, _ = model_of(*BERT)
    graph, state = traced(*BERT)
    short = ag.graft(graph, {"bert.encoder.layer": [0, 0, 1]})
    weights = short.transfer.pull(state)
    ag.to_transformers(short, weights, model, tmp_path / "short")
    adapted = ag.add_lora(short.graph, 2, "bert.encoder.layer.1.*.query", alpha=7) >> (
        lambda g: ag.add_lora(g, 2, "bert.encoder.layer.2.*.query", alpha=2)
    )
    ag.to_peft(
        adapted, adapted.transfer.pull(weights), tmp_path / "a", base=str(tmp_path / "short")
    )
    again, _ = ag.from_peft(short.graph, weights, tmp_path / "a")
    assert again == ag.train_only(adapted, "*.lora.*").graph
