"""What a class of transformers can say of a cut network, and what it cannot, with the reason."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.foreign.fit import Fit
from archgraph.foreign.search import ArgumentSearch, numbers_in
from tests.nets import captured

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

WORDS = {"input_ids": torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0))}
DECODER = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 20,
           "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}  # fmt: skip
ENCODER = {k: v for k, v in DECODER.items() if k.endswith(("size", "heads", "layers", "embeddings"))
           and k != "num_key_value_heads"}  # fmt: skip
BIGCODE = {"vocab_size": 30, "n_embd": 16, "n_inner": 24, "n_layer": 2, "n_head": 4,
           "n_positions": 20, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}  # fmt: skip


def model_of(kind: str, sizes: dict[str, Any]) -> Any:
    """A model with weights of natural scale, in which a wrong number of heads shows."""
    config = getattr(transformers, re.sub(r"For[A-Z]\w*$", "Config", kind))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config(**sizes)).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def cut(graph: ag.ArchGraph, *roles: str) -> ag.Rewritten:
    """Half of the axes with some roles; of grouped heads the groups."""
    free = (a for a in ag.axes(graph).free if a.role in roles and not a.name.endswith("~2"))
    return ag.take(graph, {axis.name: 0.5 for axis in free})


def assert_home(model: Any, folder: Path, small: ag.Rewritten, weights: dict[str, Any]) -> None:
    again = type(model).from_pretrained(folder).eval()
    assert {p.dtype for p in again.parameters()} == {p.dtype for p in model.parameters()}
    with torch.no_grad():
        expected = ag.build(small, weights).eval()(**WORDS)["logits"]
        actual = again(**WORDS).logits
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)


HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
FOUND: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    # The configuration has no entry for the size of heads, and the class reads one.
    "Qwen2ForCausalLM": (DECODER, ("heads",), HEADS),
    "Olmo2ForCausalLM": (DECODER, ("heads",), HEADS),
    "CohereForCausalLM": (DECODER, ("heads",), HEADS),
    # Fewer heads, where the width is right already and their size is not.
    "GPTBigCodeForCausalLM": (
        BIGCODE, ("heads", "channels"), {"n_embd": 8, "n_head": 2, "n_inner": 12},
    ),
    "RoFormerForMaskedLM": (
        {**ENCODER, "embedding_size": 16}, ("heads", "channels"),
        {"hidden_size": 8, "embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 12},
    ),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", FOUND)
def test_entries_that_no_size_names_are_found(kind, tmp_path):
    sizes, roles, changes = FOUND[kind]
    model = model_of(kind, sizes)
    graph, state = captured(model, train=False, **WORDS)
    small = cut(graph, *roles)
    weights = small.transfer.pull(state)
    assert ag.to_transformers(small, weights, model, tmp_path) == changes
    assert_home(model, tmp_path, small, weights)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays(dtype, tmp_path):
    model = model_of("LlamaForCausalLM", DECODER)
    model.save_pretrained(tmp_path / "a")
    model = type(model).from_pretrained(tmp_path / "a", dtype=dtype).eval()
    model.generation_config.update(max_length=17, top_k=3)
    graph, state = captured(model, train=False, **WORDS)
    small = ag.Rewritten.identity(graph) >> (lambda g: cut(g, "heads"))
    small >>= lambda g: ag.skip(g, "model.layers.0")
    weights = small.transfer.pull(state)
    ag.to_transformers(small, weights, model, tmp_path / "b")
    assert_home(model, tmp_path / "b", small, weights)
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    generation = json.loads((tmp_path / "b" / "generation_config.json").read_text())
    assert (generation["max_length"], generation["top_k"]) == (17, 3)


def test_lists_of_another_length_are_told(tmp_path):
    model = model_of("Qwen2ForCausalLM", DECODER)
    graph, state = captured(model, train=False, **WORDS)
    short = ag.skip(graph, "model.layers.0")
    changes = ag.to_transformers(short, short.transfer.pull(state), model, tmp_path)
    assert changes == {"num_hidden_layers": 1, "layer_types": ["full_attention"]}


def test_lists_within_lists_lose_what_their_layers_lose(tmp_path):
    kinds = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}
    sizes = {k: v for k, v in ENCODER.items() if not k.startswith("num_")}
    model = model_of("GPTNeoForCausalLM", {**sizes, **kinds, "use_cache": False, "window_size": 4})
    graph, state = captured(model, train=False, **WORDS)
    short = ag.skip(graph, "transformer.h.0")
    weights = short.transfer.pull(state)
    changes = ag.to_transformers(short, weights, model, tmp_path)
    assert changes["num_layers"] == 1 and changes["attention_layers"] == ["local"]
    assert_home(model, tmp_path, short, weights)


class Logits(nn.Module):
    """One result of a model that has several."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids).logits


@pytest.mark.sample(2)
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_width_that_is_returned_is_cut_behind_a_wrapper(wrapped, tmp_path):
    model = model_of("BertForSequenceClassification", {**ENCODER, "output_hidden_states": True})
    graph, state = captured(Logits(model) if wrapped else model, train=False, **WORDS)
    small = cut(graph, "heads", "channels")
    weights = small.transfer.pull(state)
    if not wrapped:
        message = (
            r"heads\[2\].*with 8 in dimension \d; expected 16, in the nearest configuration .*and "
            r"bert\.embeddings\.word_embeddings\.out\[16\] from hidden_size, which is dimension "
            r"2 of the model's output: trace a wrapper that returns only logits; cut both"
        )
        with pytest.raises(ag.RewriteError, match=message):
            ag.to_transformers(small, weights, model, tmp_path)
        return
    changes = ag.to_transformers(small, weights, model, tmp_path)
    assert changes == {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = ag.build(small, weights).eval()(**WORDS)
        torch.testing.assert_close(again(**WORDS).logits, expected, atol=1e-6, rtol=1e-6)


def test_a_number_of_parts_falls_where_their_size_rises():
    def shapes(arguments: dict[str, int]) -> dict[str, tuple[int, ...]]:
        return {"a": (arguments["width"],), "b": (arguments["width"] // arguments["parts"],)}

    search = ArgumentSearch(shapes, {"width": 16, "parts": 4}, {"a": (16,), "b": (8,)}, {})
    assert search.nearest() == {"width": 16, "parts": 2}


def test_numbers_that_no_shape_tells_are_changed_by_one_ratio():
    def shapes(arguments: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        if any(width % heads for width, heads in zip(*arguments.values(), strict=True)):
            raise ValueError
        return {str(i): (width,) for i, width in enumerate(arguments["widths"])}

    start = {"widths": [32, 48, 80, 128], "heads": [2, 4, 8, 8]}
    target = {str(i): (width // 2,) for i, width in enumerate(start["widths"])}
    first, second, *_ = ArgumentSearch(shapes, start, target, {}).fitting()
    assert first == {"widths": [16, 24, 40, 64], "heads": [2, 4, 8, 8]}
    assert second == {"widths": [16, 24, 40, 64], "heads": [1, 2, 4, 4]}
    start = {key: values[:2] for key, values in start.items()}
    every = [*ArgumentSearch(shapes, start, {"0": (16,), "1": (24,)}, {}).fitting()]
    assert len({repr(arguments) for arguments in every}) == len(every) > 1


def test_a_class_among_the_arguments_has_no_numbers():
    @dataclasses.dataclass
    class Sizes:
        width: int = 4

    assert [*numbers_in({"kind": Sizes, "sizes": Sizes()})] == [(("sizes", "width"), 4)]


def test_a_multiplier_below_one_is_tried_and_a_rate_is_not():
    def shapes(arguments: dict[str, float]) -> dict[str, tuple[int, ...]]:
        return {"a": (int(64 * arguments["multiplier"]), int(10 + arguments["dropout"]))}

    search = ArgumentSearch(shapes, {"multiplier": 0.5, "dropout": 0.1}, {"a": (16, 10)}, {})
    assert search.nearest() == {"multiplier": 0.25, "dropout": 0.1}


class Blocks(nn.Module):
    """A class that fixes its depth and, in forward, its width."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 2)
        self.stem = nn.Linear(3, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.head.in_features != 4:
            raise ValueError("the width is not 4")
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(x)


REASONS = {
    "depth": (
        lambda g: ag.skip(g, "layers.1"),
        r"layers\.2: every Net has this block; expected in the nearest configuration "
        r"\(the original one\); no configuration entry sets the number",
    ),
    "forward": (
        lambda g: ag.take(g, 0.5),
        r"stem\.out\[2\]: no Net with these shapes runs; found ValueError: the width is not 4, in "
        r"the nearest configuration \(width: 2\)",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_refusal_names_the_axis_or_block_and_what_was_tried(case):
    rewrite, message = REASONS[case]
    graph, _ = captured(Blocks(), torch.zeros(2, 3), train=False)
    small = rewrite(graph).graph
    fit = Fit(small, Blocks(), {"width": 4}, lambda a: Blocks(**a), label="Net")
    with pytest.raises(ag.RewriteError, match=message) as caught:
        fit.arguments()
    assert isinstance(caught.value.__cause__, ValueError) == (case == "forward")


def test_arguments_that_run_are_named_before_those_that_do_not():
    graph, _ = captured(Blocks(), torch.zeros(2, 3), train=False)
    start, asked = {"width": 4, "parts": 4}, list[nn.Module]()
    fit = Fit(ag.take(graph, 0.5).graph, Blocks(), start, lambda a: Blocks(a["width"]), label="Net")

    def same(module: nn.Module) -> bool:
        asked.append(module)
        if len(asked) == 1:
            raise ValueError("the first one does not run")
        return False

    message = r"every Net with these shapes computes something else; .*\(width: 2, parts: 2\)"
    with pytest.raises(ag.RewriteError, match=message):
        fit.arguments(same)


def test_a_class_that_cannot_be_constructed_without_memory_says_so():
    graph, _ = captured(Blocks(), torch.zeros(2, 3), train=False)

    def make(arguments: dict[str, int]) -> nn.Module:
        assert torch.zeros(1).item() == 0
        return Blocks(**arguments)

    fit = Fit(ag.take(graph, 0.5).graph, Blocks(), {"width": 4}, make, label="Net")
    with pytest.raises(
        ag.RewriteError, match=r"Net cannot be constructed on the meta device .* meta"
    ):
        fit.arguments()
