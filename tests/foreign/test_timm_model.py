"""A rewritten network of timm, created again by timm from arguments and a file."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.foreign.timm_model import timm_fit
from tests.foreign.test_transformers_folder import both, narrow, shorter
from tests.nets import captured

timm = pytest.importorskip("timm", reason="needs timm")

SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {
        "img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 32, "num_heads": 4,
        "num_classes": 5,
    },
    "convnext_atto": {"num_classes": 5, "depths": (2, 2, 2, 2), "dims": (16, 16, 32, 32)},
}  # fmt: skip


@pytest.mark.parametrize("cut", [narrow, shorter, both])
@pytest.mark.parametrize("name", SMALL)
def test_timm_creates_the_same_network(name, cut, tmp_path):
    args, image = SMALL[name], torch.randn(2, 3, 32, 32)
    graph, state = captured(timm.create_model(name, **args).eval(), image, train=False)
    small, transfer = cut(graph)
    weights = transfer.pull(state)
    file = tmp_path / "model.safetensors"
    arguments = ag.to_timm(small, weights, name, file, **args)
    assert arguments != args
    again = timm.create_model(name, checkpoint_path=str(file), **arguments).eval()
    with torch.no_grad():
        expected = ag.build(small, weights).eval()(image)
        torch.testing.assert_close(again(image), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "mobilevit_xxs"])
def test_fields_and_what_is_handed_on_are_arguments(name, tmp_path):
    args = {"num_classes": 5} | ({"img_size": 64, "depth": 3} if "deit" in name else {})
    model = timm.create_model(name, **args).eval().to(torch.bfloat16)
    image = torch.randn(2, 3, 64, 64, dtype=torch.bfloat16)
    graph, state = captured(model, image, train=False)
    stages = [s.blocks for s in ag.structure(graph).sections if s.kind == "stage"]
    small = ag.skip(graph, [blocks[-1].name for blocks in stages if blocks[1:]][:1])
    weights, file = small.transfer.pull(state), tmp_path / "model.safetensors"
    arguments = ag.to_timm(small, weights, name, file, **args)
    assert arguments.keys() == {*args, "depth" if "deit" in name else "blocks"}
    again = timm.create_model(name, checkpoint_path=str(file), **arguments).eval()
    with torch.no_grad():
        actual = again.to(torch.bfloat16)(image)
        torch.testing.assert_close(actual, ag.build(small, weights).eval()(image))


def test_arguments_that_load_weights_are_for_the_original_alone(tmp_path):
    name = "vit_tiny_patch16_224"
    args, image = SMALL[name], torch.randn(2, 3, 32, 32)
    model = timm.create_model(name, **args).eval()
    file, original = tmp_path / "small.safetensors", tmp_path / "original.pt"
    torch.save(model.state_dict(), original)
    graph, state = captured(model, image, train=False)
    small, transfer = narrow(graph)
    weights = transfer.pull(state)
    arguments = ag.to_timm(small, weights, name, file, checkpoint_path=str(original), **args)
    assert arguments == ag.to_timm(small, weights, name, file, **args)
    beside = timm_fit(name, **args)
    half = ag.trace(copy.deepcopy(model).half(), image.half(), train=False, verify=False).graph
    first = beside(half)
    assert beside(graph).model is not first.model
    assert {p.dtype for p in first.model.parameters()} == {torch.float16}


def test_a_residual_network_keeps_its_stem(tmp_path):
    graph, state = captured(
        timm.create_model("resnet18", num_classes=5).eval(), torch.randn(2, 3, 32, 32), train=False
    )
    short, transfer = shorter(graph)
    file = tmp_path / "model.safetensors"
    changes = ag.to_timm(short, transfer.pull(state), "resnet18", file, num_classes=5)
    assert changes == {"num_classes": 5, "layers": (1, 2, 2, 2)}
    small, transfer = narrow(graph)
    with pytest.raises(
        ag.RewriteError, match=r"conv1\.out\[32\]: no ResNet of timm has these shapes"
    ):
        ag.to_timm(small, transfer.pull(state), "resnet18", file, num_classes=5)
    with pytest.raises(ag.GraphError, match="timm does not have this model; found resnet19"):
        ag.to_timm(graph, state, "resnet19", file)
