"""Short forms of models say what the long ones say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.errors import SpecError
from archgraph.federation.family import resolve
from archgraph.language import ExperimentSpec, load_family, load_model
from archgraph.language.yaml import read_document

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

INPUTS = "inputs: {input_ids: {shape: [8], dtype: int64}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(root / "bert")
    return root


def test_a_folder_of_transformers_with_a_task(folder, consent):
    short, long = folder / "short.yaml", folder / "long.yaml"
    short.write_text(
        "transformers: bert\ntask: sequence_classification\nargs: {attn_implementation: eager}\n"
        + INPUTS
    )
    long.write_text(
        "python: transformers:AutoModelForSequenceClassification.from_pretrained\nargs:\n"
        "  {pretrained_model_name_or_path: bert, attn_implementation: eager}\n" + INPUTS
    )
    one, other = (load_model(read_document(file)) for file in (short, long))
    assert one[0] == other[0] and one[1] is not None and other[1] is not None
    assert all(torch.equal(one[1][k], v) for k, v in other[1].items())


def test_in_a_family_it_stands_for_the_folder_beside_it(folder, consent):
    file = folder / "family.yaml"
    file.write_text(
        f"clients:\n  - {{name: a, model: {{transformers: bert, task: masked_lm, {INPUTS}}}}}\n"
    )
    client = resolve(load_family(file)).clients[0]
    assert client.own and "bert.embeddings.word_embeddings.weight" in client.state


def test_mistakes_point_at_the_short_form(folder, tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(f"archgraph: 1\ntransformers: nowhere\ntask: masked_lm\n{INPUTS}\n")
    with pytest.raises(SpecError, match=r"m\.yaml:2: .* names a folder that is not there"):
        ag.load(file, python=True)
    file.write_text(f"archgraph: 1\ntransformers: {folder / 'bert'}\ntask: poetry\n{INPUTS}\n")
    with pytest.raises(SpecError, match=r"m\.yaml:2: python: .* has no attribute AutoModelForPo"):
        ag.load(file, python=True)
    with pytest.raises(SpecError, match=r"m\.yaml:2: python: .*consent|python=True"):
        ag.load(file)
    file.write_text("archgraph: 1\ntimm: resnet18\ncheckpoint: a.pth\ninputs: {x: [3, 32, 32]}\n")
    with pytest.raises(SpecError, match=r"m\.yaml:3: checkpoint: is not a safetensors file"):
        ag.load(file, python=True)


def test_a_strategy_without_options_is_its_name():
    """A user writes `strategy: fedavg`, as `server: adam`."""
    shared = {"name": "e", "family": "f.yaml", "rounds": 1}
    short = ExperimentSpec.model_validate({**shared, "strategy": "fedavg"})
    assert short == ExperimentSpec.model_validate({**shared, "strategy": {"fedavg": {}}})
