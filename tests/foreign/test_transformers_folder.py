"""A rewritten network of transformers, loaded by its own class in another process."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import archgraph as ag

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

from tests.nets import Foreign  # noqa: E402
from tests.zoo.collection import FAMILIES  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def half(graph: ag.ArchGraph, *patterns: str) -> ag.Rewritten:
    """Half of the axes whose names or roles match."""
    names = [a.name for a in ag.axes(graph).free]
    roles = {a.name: a.role for a in ag.axes(graph).free}
    chosen = [n for n in names if any(fnmatch(n, p) or roles[n] == p for p in patterns)]
    return ag.take(graph, dict.fromkeys(chosen, 0.5))


def author(net: Foreign) -> Any:
    """Return the class of a model, which has more than modules do."""
    return type(net.model)


def narrow(graph: ag.ArchGraph) -> ag.Rewritten:
    return half(graph, "channels", "heads")


def inner(graph: ag.ArchGraph) -> ag.Rewritten:
    """Half of what stands between the two layers of a block's perceptron."""
    stream = {a.name for a in ag.axes(graph).free if a.size in (48, 128, 64)}
    return half(graph, *stream)


def shorter(graph: ag.ArchGraph) -> ag.Rewritten:
    """Without the second block of a stage: the ones behind it are renumbered."""
    stages = [s for s in ag.structure(graph).sections if s.kind == "stage"]
    return ag.skip(graph, [b.name for s in stages for b in s.blocks if b.removable][1])


def both(graph: ag.ArchGraph) -> ag.Rewritten:
    return ag.Rewritten.identity(graph) >> narrow >> shorter


Cut = Callable[[ag.ArchGraph], ag.Rewritten]
ALL: tuple[Cut, ...] = (narrow, inner, shorter, both)
# What each class can express; what it cannot, a test below says.
CUTS: dict[str, tuple[Cut, ...]] = {
    **dict.fromkeys(
        ("bert", "gpt2", "llama", "vit", "swin", "roberta", "distilbert", "mistral", "qwen3",
         "electra", "opt", "gpt_neox", "dinov2", "beit", "modernbert", "segformer"),
        ALL,
    ),
    **dict.fromkeys(("resnet", "convnext"), (narrow, shorter, both)),
    **dict.fromkeys(("t5",), ALL),
    **dict.fromkeys(
        ("gemma2", "bart", "deberta_v2", "phi3", "whisper", "wav2vec2", "xlnet", "falcon"),
        (inner, shorter),
    ),
}  # fmt: skip
CASES = [(name, cut) for name, cuts in CUTS.items() for cut in cuts]


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[Path], None]]:
    """Another process, which is told folders; started once, since its imports take seconds."""
    command = [sys.executable, "-m", "tests.foreign.fresh"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def load(folder: Path) -> None:
            asked.write(f"{folder}\n")
            asked.flush()
            assert answers.readline() == "done\n"

        yield load


@functools.lru_cache(maxsize=4)
def traced(name: str) -> tuple[Foreign, ag.ArchGraph, dict[str, torch.Tensor]]:
    net = FAMILIES[name]()
    graph, state = ag.trace(net.model.eval(), train=False, verify=False, **net.kwargs)
    # Values of natural scale: in a fresh network attention is even, and heads make no difference.
    draw = torch.Generator().manual_seed(1)
    spread = {k: v + 0.2 * torch.randn(v.shape, generator=draw) if v.ndim > 1 else v
              for k, v in state.items() if v.is_floating_point()}  # fmt: skip
    return net, graph, state | spread


@pytest.mark.full
@pytest.mark.sample(500)
@pytest.mark.parametrize(("name", "cut"), CASES, ids=[f"{n}-{c.__name__}" for n, c in CASES])
def test_another_process_computes_the_same(name, cut, fresh, tmp_path):
    net, graph, state = traced(name)
    small, transfer = cut(graph)
    weights = transfer.pull(state)
    changes = ag.to_transformers(small, weights, net.model, tmp_path)
    assert changes  # else the network is the original one
    safetensors.torch.save_file(net.kwargs, tmp_path / "inputs.safetensors")
    fresh(tmp_path)
    found = safetensors.torch.load_file(tmp_path / "outputs.safetensors")
    with torch.no_grad():
        expected = ag.build(small, weights).eval()(**net.kwargs)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-6, rtol=1e-6)


def test_values_that_no_shape_shows_are_found_too(tmp_path):
    net, graph, state = traced("bert")
    small, transfer = narrow(graph)
    changes = ag.to_transformers(small, transfer.pull(state), net.model, tmp_path)
    assert changes == {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_attention_heads"] == 2 and config["architectures"]
    again = author(net).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = ag.build(small, transfer.pull(state)).eval()(**net.kwargs)["logits"]
        torch.testing.assert_close(again(**net.kwargs).logits, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.full
def test_lists_of_a_configuration_are_changed_by_item(tmp_path):
    net, graph, state = traced("swin")
    small, transfer = shorter(graph)
    changes = ag.to_transformers(small, transfer.pull(state), net.model, tmp_path)
    assert changes == {"depths.0": 1}


@pytest.mark.full
def test_the_original_may_be_a_folder(tmp_path):
    net, graph, state = traced("bert")
    author(net).save_pretrained(net.model, tmp_path / "original")
    small, transfer = shorter(graph)
    weights = transfer.pull(state)
    draws = torch.random.get_rng_state()
    ag.to_transformers(small, weights, tmp_path / "original", tmp_path / "short")
    assert torch.equal(draws, torch.random.get_rng_state())
    again = author(net).from_pretrained(tmp_path / "short").eval()
    expected = ag.build(small, weights).eval()(**net.kwargs)["logits"]
    assert torch.equal(again(**net.kwargs).logits, expected)
    # A run's model has training captured, too; its operators are those of no class in evaluation.
    graph, state = ag.trace(net.model, verify=False, **net.kwargs)
    assert ag.to_transformers(graph, state, tmp_path / "original", tmp_path / "same") == {}


REFUSED: dict[str, tuple[str, Cut, str]] = {
    "heads alone": (
        "bert", lambda g: half(g, "heads"),
        r"query\.heads\[2\] × .*: no BertConfig has these shapes: this axis is in the way; found "
        r"bert\.encoder\.layer\.0\.\S+ with 16 in dimension \d; expected 32",
    ),
    "one layer of several": (
        "bert", lambda g: half(g, "*layer.1.intermediate*"),
        r"layer\.1\.intermediate\.dense\.out\[24\]: no BertConfig has these shapes",
    ),
    "a width that is four times another": (
        "convnext", inner, r"pwconv1\.out\[32\]: no ConvNextConfig has these shapes",
    ),
    "the size of heads": (
        "llama", lambda g: half(g, "head_dim", "value_dim"),
        r"q_proj\.head_dim\[2\]\S*: every LlamaConfig with these shapes computes something else",
    ),
    "the first of blocks that are not alike": (
        "t5", lambda g: ag.take(g, {"*EncDecAttention*heads": 0.5}),
        r"no T5Config has these shapes",
    ),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", REFUSED)
def test_where_no_configuration_exists_the_axis_is_named(case, tmp_path):
    name, cut, message = REFUSED[case]
    net, graph, state = traced(name)
    small, transfer = cut(graph)
    with pytest.raises(ag.RewriteError, match=message):
        ag.to_transformers(small, transfer.pull(state), net.model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_what_the_class_lacks_is_refused(tmp_path):
    net, graph, state = traced("bert")
    adapted, transfer = ag.add_lora(graph, 2, "*.query")
    with pytest.raises(
        ag.RewriteError, match=r"does not have this tensor; found .*lora.*ag\.to_peft"
    ):
        ag.to_transformers(adapted, transfer.pull(state), net.model, tmp_path)
    with pytest.raises(
        ag.GraphError, match=r"is not a tensor of the network; found .*lora.*ag\.fold"
    ):
        ag.to_transformers(graph, transfer.pull(state), net.model, tmp_path)
    with pytest.raises(ag.GraphError, match=r"names a folder that does not exist"):
        ag.to_transformers(graph, state, tmp_path / "nowhere", tmp_path)
    with pytest.raises(ag.GraphError, match="is not a model of transformers; found Linear"):
        ag.to_transformers(graph, state, torch.nn.Linear(1, 1), tmp_path)
