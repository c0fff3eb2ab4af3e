"""Folders of transformers that are cut tensor by tensor, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import archgraph as ag
from archgraph.foreign.graph_comparison import first_unequal
from archgraph.foreign.shards import Shards, write_shards
from archgraph.rewrites.laws import random_inputs
from archgraph.states.lazy import LazyState

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

from tests.foreign.test_transformers_folder import fresh  # noqa: E402, F401 - a fixture

SHARD = 6_000  # bytes: several files for the smallest model
SIZES = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 20, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "qwen2": ("Qwen2", {**GROUPED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2", {**GROUPED, "head_dim": 4}),
    "phi": ("Phi", SIZES),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 3}),
    "gpt_neox": ("GPTNeoX", SIZES),
}


def model_of(name: str, **changes: Any) -> Any:
    """A model with weights of natural scale, in which a wrong number of heads shows."""
    kind, sizes = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**(sizes | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def saved(name: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    model = model_of(name, **changes).to(dtype)
    model.save_pretrained(folder, max_shard_size=SHARD)
    return model


def roles(graph: ag.ArchGraph, *chosen: str) -> dict[str, float]:
    return {a.name: 0.5 for a in ag.axes(graph).free if a.role in chosen}


def inner(graph: ag.ArchGraph) -> ag.Rewritten:
    return ag.take(graph, {a.name: 0.5 for a in ag.axes(graph).free if "mlp" in a.name})


def narrow(graph: ag.ArchGraph) -> ag.Rewritten:
    names = roles(graph, "channels", "heads")
    return ag.take(graph, {k: v for k, v in names.items() if not k.endswith("~2")})


def shorter(graph: ag.ArchGraph) -> ag.Rewritten:
    return ag.skip(graph, next(b.name for b in ag.structure(graph).blocks if ".1" in b.name))


def longer(graph: ag.ArchGraph) -> ag.Rewritten:
    (section,) = (s.name for s in ag.structure(graph).sections if s.kind == "stage")
    return ag.graft(graph, {section: [0, 0, 1, 0, 1]})


def odd(graph: ag.ArchGraph) -> ag.Rewritten:
    """Positions that no slice lists, one of them twice, and a scale."""
    axis = next(a for a in ag.axes(graph).free if "mlp" in a.name)
    return ag.widen(graph, {axis.name: 16}) >> (
        lambda g: ag.take(g, positions={axis.name: [29, 2, 3, 11]})
    )


def deeper(graph: ag.ArchGraph) -> ag.Rewritten:
    return ag.deepen(graph, {"model.layers": 3})


LAWFUL: dict[str, Callable[[ag.ArchGraph], ag.Rewritten]] = {
    "narrow": narrow, "shorter": shorter, "longer": longer, "odd": odd,
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "mixtral", "gpt_neox"])
def test_streaming_is_pulling(name, tmp_path, monkeypatch):
    model = saved(name, tmp_path, torch.bfloat16)
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    monkeypatch.setattr("archgraph.states.lazy.BAND", 100)  # bytes: a few rows
    graph, state = ag.from_transformers(tmp_path)
    full = model.state_dict()
    # A gather of experts hands no factor on, so that no width of them grows.
    cuts = [cut for cut in LAWFUL.values() if (name, cut) != ("mixtral", odd)]
    for cut in (*cuts, *([deeper] if name == "llama" else [])):
        transfer = cut(graph).transfer
        lazy, whole = state.through(transfer), transfer.pull(full)
        assert lazy.keys() == whole.keys()
        for key, value in whole.items():
            joined = torch.cat([*lazy.bands(key)]) if value.dim() else lazy[key]
            assert torch.equal(joined, value) and torch.equal(lazy[key], value)
            assert lazy.types[key].dtype == value.dtype == torch.bfloat16


CUTS = {
    "llama": (narrow, longer), "qwen2": (narrow, shorter), "qwen3": (narrow,), "gemma2": (longer,),
    "phi": (narrow,), "mixtral": (inner, shorter),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("name", "cut"), [(n, c) for n, cuts in CUTS.items() for c in cuts],
    ids=[f"{n}-{c.__name__}" for n, cuts in CUTS.items() for c in cuts],
)  # fmt: skip
def test_another_process_computes_the_same(name, cut, fresh, tmp_path):  # noqa: F811
    model = saved(name, tmp_path / "a")
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    graph, state = ag.from_transformers(tmp_path / "a")
    small = cut(graph)
    changes = ag.to_transformers(
        small, state.through(small.transfer), tmp_path / "a", tmp_path / "b", max_shard_size=SHARD
    )
    assert changes
    assert {"tokenizer.json", "generation_config.json"} <= {
        f.name for f in (tmp_path / "b").iterdir()
    }
    words = {"input_ids": torch.randint(24, (2, 16), generator=torch.Generator().manual_seed(0))}
    safetensors.torch.save_file(words, tmp_path / "b" / "inputs.safetensors")
    fresh(tmp_path / "b")
    outputs = safetensors.torch.load_file(tmp_path / "b" / "outputs.safetensors")
    weights = small.transfer.pull(model.state_dict())
    with torch.no_grad():
        expected = ag.build(small.graph, weights).eval()(**words)["logits"]
    torch.testing.assert_close(outputs["logits"], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.full
def test_the_graph_of_a_folder_is_that_of_its_model(tmp_path):
    model = saved("qwen2", tmp_path)
    graph, state = ag.from_transformers(tmp_path)
    words = torch.zeros(2, 16, dtype=torch.int64)
    assert graph == ag.trace(model, input_ids=words, train=False).graph
    assert ag.load(tmp_path)[0] == graph and "not verified" in graph.notes[-1]
    assert state.keys() == set(graph.state_names)
    assert graph.param["model.embed_tokens.weight"].aliases == ("lm_head.weight",)


@pytest.mark.full
def test_a_folder_cannot_name_code_of_kernels(tmp_path):
    saved("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed = config | {"attn_implementation": "someone/kernels"}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    graph, _ = ag.from_transformers(tmp_path)
    assert any(node.op == "aten.scaled_dot_product_attention" for node in graph.nodes)


@pytest.mark.full
def test_a_body_alone_and_names_of_older_files(tmp_path):
    model = saved("gpt_neox", tmp_path)
    body = {k.removeprefix("gpt_neox."): v for k, v in model.state_dict().items()}
    for file in tmp_path.glob("model*"):
        file.unlink()
    body["layers.0.attention.rotary_emb.inv_freq"] = torch.ones(2)
    body = {k: v.clone() for k, v in body.items()}
    safetensors.torch.save_file(body, tmp_path / "model.safetensors", {"format": "pt"})
    graph, state = ag.from_transformers(tmp_path)
    assert all(torch.equal(state[k], model.state_dict()[k]) for k in graph.state_names)
    assert "inv_freq" in graph.notes[-1]
    del body["layers.1.mlp.dense_h_to_4h.bias"]
    safetensors.torch.save_file(body, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ag.GraphError, match=r"has no weights for a parameter.*layers\.1\.mlp\.dense_h"
    ):
        ag.from_transformers(tmp_path)


def test_tied_weights_that_differ_in_the_files_are_refused(tmp_path):
    saved("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(ag.GraphError, match=r"ties two weights that differ.*embed_tokens.*lm_head"):
        ag.from_transformers(tmp_path)


def test_what_is_not_the_folder_of_a_model_is_refused(tmp_path):
    saved("llama", tmp_path / "a")

    def refused(message: str, change: Callable[[Path], object]) -> None:
        folder = tmp_path / "b"
        shutil.copytree(tmp_path / "a", folder)
        change(folder)
        with pytest.raises(ag.ArchGraphError, match=message):
            ag.from_transformers(folder)
        shutil.rmtree(folder)

    def edit(file: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
        def write(folder: Path) -> None:
            value = json.loads((folder / file).read_text())
            change(value)
            (folder / file).write_text(json.dumps(value))

        return write

    index = "model.safetensors.index.json"
    refused("has no weights in safetensors", lambda f: (f / index).unlink())
    refused("does not match the files", edit(index, lambda v: v["weight_map"].popitem()))
    refused(
        "names a file outside its folder",
        edit(index, lambda v: v["weight_map"].update({"x": "../x.safetensors"})),
    )
    refused("is not a safetensors file", lambda f: min(f.glob("*.safetensors")).write_bytes(b"1"))
    refused(
        "does not name a transformers class",
        edit("config.json", lambda v: v.update(architectures=["os"])),
    )
    refused("has another shape", edit("config.json", lambda v: v.update(intermediate_size=20)))
    refused(
        "quantised",
        edit("config.json", lambda v: v.update(quantization_config={"quant_method": "gptq"})),
    )


VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
          "num_attention_heads": 4, "image_size": 16, "patch_size": 8}  # fmt: skip


@pytest.mark.parametrize("kind", ["SiglipModel", "SiglipForImageClassification"])
def test_a_folder_says_which_images_and_words_its_model_takes(kind, tmp_path):
    config = transformers.SiglipConfig(text_config=SIZES, vision_config=VISION)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(tmp_path / "a")
    graph, state = ag.from_transformers(tmp_path / "a")
    images = {name: value.shape[1:] for name, value in random_inputs(graph).items()}
    words = {"input_ids": (16,)} if kind == "SiglipModel" else {}
    assert images == {**words, "pixel_values": (3, 16, 16)}
    if not words:  # its pooling is not read, and has the width that was cut
        small = ag.take(graph, 0.5)
        ag.to_transformers(small, state.through(small.transfer), tmp_path / "a", tmp_path / "b")
        again = type(model).from_pretrained(tmp_path / "b").eval()
        assert not again.vision_model.head.probe.any()
        inputs = random_inputs(small.graph)
        expected = ag.build(small, state.through(small.transfer)).eval()(**inputs)
        torch.testing.assert_close(again(**inputs).logits, expected["logits"])
        weights = dict(state.through(small.transfer))
        ag.to_transformers(small, weights, model, tmp_path / "c")
        other = type(model).from_pretrained(tmp_path / "c").state_dict()
        assert all(torch.equal(other[name], value) for name, value in again.state_dict().items())


def test_a_file_that_vanishes_is_not_an_error_of_writing(tmp_path):
    saved("llama", tmp_path / "a")
    _, state = ag.from_transformers(tmp_path / "a")
    for file in (tmp_path / "a").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ag.GraphError, match=r"model-.*: is not a safetensors file"):
        state["model.norm.weight"]


def test_the_output_is_a_new_folder(tmp_path):
    saved("llama", tmp_path / "a")
    graph, state = ag.from_transformers(tmp_path / "a")
    with pytest.raises(ag.RunError, match="is the original folder"):
        ag.to_transformers(graph, state, tmp_path / "a", tmp_path / "x" / ".." / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    with pytest.raises(ag.RunError, match="is not empty"):
        ag.to_transformers(graph, state, tmp_path / "a", tmp_path / "b")
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.full
def test_shapes_of_no_configuration_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("archgraph.foreign.transformers_folder.TRACED", 2)
    saved("llama", tmp_path / "a")
    graph, state = ag.from_transformers(tmp_path / "a")
    half = ag.take(graph, roles(graph, "head_dim", "value_dim"))
    with pytest.raises(
        ag.RewriteError, match=r"q_proj\.heads\[2\] × 2: every LlamaConfig of these"
    ):
        ag.to_transformers(half, state.through(half.transfer), tmp_path / "a", tmp_path / "c")
    alone = ag.take(graph, {"model.layers.1.mlp.gate_proj.out": 0.5})
    with pytest.raises(ag.RewriteError, match=r"layers\.1\.mlp.*: no LlamaConfig has these shapes"):
        ag.to_transformers(alone, state.through(alone.transfer), tmp_path / "a", tmp_path / "c")
    assert {p.name for p in tmp_path.iterdir()} == {"a"}


def test_graphs_are_compared_by_what_they_compute(tmp_path):
    saved("llama", tmp_path)
    graph, _ = ag.from_transformers(tmp_path)
    names = {n: n for n in graph.state_names}
    assert first_unequal(graph, graph, names) is None
    swapped = names | {"model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.gate_proj.weight"}
    assert first_unequal(graph, graph, swapped) == "linear in model.layers.0.mlp.up_proj"
    text = str(graph)
    for old, new in (("scale=0.5", "scale=0.25"), ("other=1e-06", "other=1e-05"), ("silu", "relu")):
        assert old in text and first_unequal(graph, ag.parse(text.replace(old, new)), names), old


def test_shards_are_as_large_as_said_and_start_at_multiples_of_their_type(tmp_path):
    tensors = {
        "a": torch.arange(3, dtype=torch.uint8), "b": torch.randn(5, 3),
        "c": torch.randn(7).bfloat16(), "d": torch.tensor(2.5), "e": torch.zeros(0, 4),
    }  # fmt: skip
    types = {k: v.to("meta") for k, v in tensors.items()}
    state = LazyState(types, lambda n, i, j: tensors[n][i:j] if tensors[n].dim() else tensors[n])
    for limit, files in ((10**6, 1), (70, 2), (1, 5)):
        folder = tmp_path / str(limit)
        folder.mkdir()
        write_shards(folder, state, limit)
        assert len([*folder.glob("*.safetensors")]) == files
        read = Shards(folder)
        for file in read.files:
            for name, value in safetensors.torch.load_file(file).items():
                assert torch.equal(value, tensors[name])
        assert all(torch.equal(read[k], v) and read[k].dtype == v.dtype for k, v in tensors.items())


class Halved(torch.nn.Module):
    """A layer with a dropout that is drawn once, or for each of two uses."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.drop, self.times = torch.nn.Linear(3, 3), torch.nn.Dropout(), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        first = self.drop(y)
        return first + (first if self.times == 1 else self.drop(y))


def test_numbers_that_are_drawn_once_are_not_drawn_twice():
    once, twice = (ag.trace(Halved(times), torch.zeros(2, 3)).graph for times in (1, 2))
    names = {n: n for n in once.state_names}
    assert first_unequal(once, once, names) is first_unequal(twice, twice, names) is None
    for one, other in ((once, twice), (twice, once)):
        assert first_unequal(one, other, names) == "dropout in drop"
