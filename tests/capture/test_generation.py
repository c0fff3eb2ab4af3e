"""Models of transformers as their configurations are: with the cache for generation switched on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archgraph as ag
from tests.nets import with_parts

VOCABULARY, LENGTH = 40, 6
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24,
}  # fmt: skip
_GROUPED: dict[str, Any] = {**_SIZES, "num_key_value_heads": 1, "pad_token_id": 0}
_HEADS: dict[str, Any] = {**_GROUPED, "head_dim": 8}
_GPT: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2}
_PAIR: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
}  # fmt: skip


def _ids() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def _one() -> dict[str, Any]:
    return {"input_ids": _ids()}


def _masked() -> dict[str, Any]:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": _ids(), "attention_mask": mask}


def _two() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids()[:, :4]}


def _features() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 80, 40), "decoder_input_ids": _ids()[:, :4]}


# Class, inputs, sizes; everything else is as the library has it. More than one layer where a cache
# has several, where layers differ, and where one uses what another computes.
FAMILIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", _masked, {**_GPT, "n_layer": 2}),
    "gpt_neo": (
        "GPTNeoForCausalLM", _one,
        {"vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
         "attention_types": [[["global", "local"], 1]]},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", _one, _SIZES),
    "gptj": ("GPTJForCausalLM", _one, {**_GPT, "rotary_dim": 4}),
    "opt": (
        "OPTForCausalLM", _one,
        {"vocab_size": VOCABULARY, "hidden_size": 16, "word_embed_proj_dim": 16,
         "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 24},
    ),
    "bloom": ("BloomForCausalLM", _masked, {"vocab_size": VOCABULARY, "hidden_size": 16,
                                            "n_layer": 1, "n_head": 2}),
    "falcon": ("FalconForCausalLM", _one, {k: v for k, v in _SIZES.items()
                                           if k != "intermediate_size"}),
    "llama": ("LlamaForCausalLM", _masked, {**_GROUPED, "num_hidden_layers": 2}),
    "mistral": ("MistralForCausalLM", _one, _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", _one, _HEADS),
    "gemma": ("GemmaForCausalLM", _one, _HEADS),
    "gemma2": ("Gemma2ForCausalLM", _one, {**_HEADS, "num_hidden_layers": 2}),
    "phi": ("PhiForCausalLM", _one, _GROUPED),
    "cohere": ("CohereForCausalLM", _one, _GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", _one, _GROUPED),
    "xglm": (
        "XGLMForCausalLM", _one,
        {"vocab_size": VOCABULARY, "d_model": 16, "num_layers": 1, "attention_heads": 2,
         "ffn_dim": 24},
    ),
    "t5": ("T5ForConditionalGeneration", _two, _T5),
    "bart": ("BartForConditionalGeneration", _two, {**_PAIR, "decoder_layers": 2}),
    "pegasus": ("PegasusForConditionalGeneration", _two, _PAIR),
    "marian": ("MarianMTModel", _two, {**_PAIR, "pad_token_id": 0}),
    "whisper": (
        "WhisperForConditionalGeneration", _features,
        {**_PAIR, "max_source_positions": 20, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
}  # fmt: skip


def model(name: str) -> tuple[Any, dict[str, Any]]:
    """A small model of a family and its inputs."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind, inputs, sizes = FAMILIES[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)
    return made(made.config_class(**sizes)).eval(), inputs()


def _tensors(results: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in results.items() if isinstance(v, torch.Tensor)}


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_default_configuration_gives_the_same_results(name):
    net, inputs = model(name)
    graph, state = traced = ag.trace(net, **inputs, train=False)
    found, expected = ag.build(graph, state).eval()(**inputs), _tensors(net(**inputs))
    assert found.keys() == expected.keys() and "logits" in expected
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-5)
    assert "config.use_cache is off in the graph" in traced.notes[0]
    assert net.config.use_cache is True


def _in_training(net: Any, built: Any, inputs: dict[str, Any]) -> None:
    """Results and gradients of training agree, from one seed."""
    found = []
    for module in (net, built):
        module.train().zero_grad()
        torch.manual_seed(0)
        logits = module(**inputs)["logits"]
        logits.square().mean().backward()
        found.append((logits, {k: p.grad for k, p in module.named_parameters()}))
    (expected, gradients), (logits, others) = found
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    for key, gradient in gradients.items():
        torch.testing.assert_close(others[key], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_experts_run_without_branches_for_the_capture(implementation):
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(**_GROUPED, num_local_experts=4)
    net, inputs = transformers.MixtralForCausalLM(config), _one()
    net.set_experts_implementation(implementation)
    before = dict(vars(net.config))
    with torch.no_grad():
        expected = net.eval()(**inputs).logits
    traced = ag.trace(net, **inputs)
    assert vars(net.config) == before
    assert sum("batched_mm" in note for note in traced.notes) == 1
    with torch.no_grad():
        found = ag.build(*traced).eval()(**inputs)["logits"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    _in_training(net, ag.build(*traced), inputs)
    ag.take(traced.graph, 0.5, verify=True)


@with_parts(lambda net: {"net": net})
def Doubtful(self, input_ids: torch.Tensor) -> torch.Tensor:
    """Experts, and a branch of its own."""
    logits = self.net(input_ids=input_ids).logits
    return logits if logits.sum() > 0 else -logits


def test_settings_are_taken_back_where_they_do_not_help():
    import transformers

    config = transformers.MixtralConfig(**_GROUPED, num_local_experts=4)
    net = transformers.MixtralForCausalLM(config)
    before = dict(vars(net.config))
    with pytest.raises(ag.TraceError, match="branches on the values"):
        ag.trace(Doubtful(net), _one()["input_ids"])
    assert vars(net.config) == before


@pytest.mark.full
def test_embeddings_and_a_mask_as_inputs():
    net, inputs = model("llama")
    given = {
        "inputs_embeds": net.get_input_embeddings()(inputs["input_ids"]).detach(),
        "attention_mask": inputs["attention_mask"],
    }
    graph, state = ag.trace(net, **given, train=False)
    found, expected = ag.build(graph, state).eval()(**given), net(**given)
    torch.testing.assert_close(found["logits"], expected.logits, rtol=1e-5, atol=1e-5)


class Opaque:
    """A result that torch cannot look into."""


class Giving(torch.nn.Linear):
    """Gives an object beside its result."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), Opaque()


def test_an_object_without_a_switch_is_refused():
    with pytest.raises(ag.TraceError, match=r"type that torch cannot look into \(.*Opaque"):
        ag.trace(Giving(3, 3), torch.zeros(2, 3))
