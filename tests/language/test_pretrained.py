"""Pretrained models from a folder: every tensor as the file has it, and never a pickle."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from ruamel.yaml import YAML

import archgraph as ag
from archgraph.errors import ArchGraphError, SpecError
from archgraph.federation.family import resolve
from archgraph.language import load_family, load_model
from archgraph.language.yaml import read_document
from archgraph.module.build import build

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytestmark = pytest.mark.usefixtures("consent")

WORDS, LENGTH = 40, 8
CONFIGS = {
    "Bert": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    },
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
}
INPUTS = {
    "Bert": ("input_ids", "attention_mask", "token_type_ids"),
    "DistilBert": ("input_ids", "attention_mask"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published weights as they come: the body of a model without the head, in safetensors."""
    root = tmp_path_factory.mktemp("published")
    for name, sizes in CONFIGS.items():
        config = getattr(transformers, f"{name}Config")(
            vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes
        )
        torch.manual_seed(7)
        getattr(transformers, f"{name}Model")(config).save_pretrained(root / name)
    return root


def write(file: Path, name: str, folder: str | Path, more: str = "", python: str = "") -> Path:
    inputs = ", ".join(f"{k}: {{shape: [{LENGTH}], dtype: int64}}" for k in INPUTS[name])
    python = python or f"transformers:{name}ForSequenceClassification.from_pretrained"
    file.write_text(
        f"archgraph: 1\npython: {python}\nargs:\n"
        f"  pretrained_model_name_or_path: {folder}\n  num_labels: 3\n{more}"
        f"inputs: {{{inputs}}}\n"
    )
    return file


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def batch(name: str) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(WORDS, (3, LENGTH), generator=draw)
    mask = (torch.arange(LENGTH) < torch.tensor([[8], [5], [2]])).long()
    return [ids, mask, (torch.arange(LENGTH) > 3).long().expand(3, -1)][: len(INPUTS[name])]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_is_the_files_and_the_model_computes_the_same(folders, tmp_path, name):
    graph, state = load_model(
        read_document(write(tmp_path / "m.yaml", name, folders / name, "  use_safetensors: true\n"))
    )
    assert state is not None
    published = tensors(folders / name)
    prefix = f"{name.lower()}."
    for key, value in published.items():
        assert torch.equal(state[prefix + key], value), key
    heads = {key for key in state if key.removeprefix(prefix) not in published}
    assert {key.split(".")[0] for key in heads} <= {"classifier", "pre_classifier"}
    model = getattr(transformers, f"{name}ForSequenceClassification").from_pretrained(
        folders / name, num_labels=3
    )
    model.load_state_dict(state, strict=False)
    given = dict(zip(INPUTS[name], batch(name), strict=True))
    expected = model.eval()(**given).logits
    found = build(graph, state).eval()(*given.values())["logits"]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.full
def test_what_is_new_is_drawn_from_the_models_seed(folders, tmp_path):
    def head(seed: int) -> torch.Tensor:
        file = write(tmp_path / "m.yaml", "Bert", folders / "Bert")
        file.write_text(file.read_text() + f"seed: {seed}\n")
        torch.manual_seed(99)
        state = load_model(read_document(file))[1]
        assert state is not None
        return state["classifier.weight"]

    assert torch.equal(head(1), head(1))
    assert not torch.equal(head(1), head(2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_keep_what_is_pretrained_and_start_as_the_identity(folders, tmp_path, name):
    write(tmp_path / "m.yaml", name, folders / name)
    (tmp_path / "family.yaml").write_text(
        "clients:\n  - {name: a, model: m.yaml, add_adapters: 4, "
        "train_only: ['*.adapter_*', classifier.*]}\n  - {name: plain, model: m.yaml}\n"
    )
    adapted, plain = resolve(load_family(tmp_path / "family.yaml")).clients
    assert adapted.own and plain.own
    for key, value in plain.state.items():
        assert torch.equal(adapted.state[key], value), key
    new = set(adapted.state) - set(plain.state)
    assert len(new) == 2 * 2 * 4  # layers, branches, weights and biases down and up
    assert all(not adapted.state[key].any() for key in new if ".up." in key)
    trained = {p.name for p in adapted.graph.params if p.trainable}
    assert trained == new | {"classifier.weight", "classifier.bias"}
    given = batch(name)
    expected = build(plain.graph, plain.state).eval()(*given)["logits"]
    found = build(adapted.graph, adapted.state).eval()(*given)["logits"]
    assert torch.equal(found, expected)


@pytest.mark.full
def test_a_global_model_brings_its_weights_through_adapters(folders, tmp_path):
    write(tmp_path / "m.yaml", "DistilBert", folders / "DistilBert")
    (tmp_path / "family.yaml").write_text(
        "model: m.yaml\nchange: {add_adapters: 2, train_only: ['*.adapter_*']}\n"
        "clients: [{name: a}]\n"
    )
    found = resolve(load_family(tmp_path / "family.yaml"))
    assert found.state is not None and found.clients[0].graph == found.graph
    for key, value in tensors(folders / "DistilBert").items():
        assert torch.equal(found.state[f"distilbert.{key}"], value)


@pytest.mark.full
def test_folders_are_named_relative_to_the_file(folders, tmp_path, monkeypatch):
    shutil.copytree(folders / "Bert", tmp_path / "weights" / "bert")
    (tmp_path / "specs").mkdir()
    file = write(tmp_path / "specs" / "m.yaml", "Bert", "../weights/bert")
    monkeypatch.chdir("/")
    assert ag.load(file).param["bert.pooler.dense.weight"].shape == (16, 16)


@pytest.mark.full
def test_a_model_in_place_is_found_from_where_its_run_is_recorded(folders, tmp_path):
    """A family is written out again elsewhere; what it names relative to itself stays found."""
    shutil.copytree(folders / "Bert", tmp_path / "weights")
    model = write(tmp_path / "m.yaml", "Bert", "weights").read_text()
    indented = "".join(f"      {line}\n" for line in model.splitlines())
    file = tmp_path / "family.yaml"
    file.write_text(f"clients:\n  - name: a\n    model:\n{indented}")
    spec = load_family(file)
    first = resolve(spec).clients[0]
    (tmp_path / "run").mkdir()
    again = tmp_path / "run" / "family.yaml"
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # annotated None
    yaml.dump(spec.model_dump(mode="json", by_alias=True, exclude_none=True), again)
    second = resolve(load_family(again)).clients[0]
    assert first.graph == second.graph
    assert first.own and second.own
    assert all(torch.equal(first.state[k], v) for k, v in second.state.items())


@pytest.mark.full
def test_a_configuration_may_come_from_a_folder_without_weights(folders, tmp_path):
    (tmp_path / "config").mkdir()
    shutil.copy(folders / "Bert" / "config.json", tmp_path / "config")
    file = tmp_path / "m.yaml"
    file.write_text(
        "python: transformers:BertForSequenceClassification\nargs:\n  config:\n"
        "    python: transformers:BertConfig.from_pretrained\n"
        "    args: {pretrained_model_name_or_path: config, num_labels: 3}\n"
        f"inputs: {{input_ids: {{shape: [{LENGTH}], dtype: int64}}}}\n"
    )
    assert ag.load(file).param["classifier.weight"].shape == (3, 16)
    (tmp_path / "config").rename(tmp_path / "elsewhere")
    with pytest.raises(
        SpecError, match=r"m\.yaml:5: args\.config\.args\.pretrained\w+: names a folder that is not"
    ):
        ag.load(file)


def test_a_missing_folder_is_never_looked_for_elsewhere(tmp_path):
    file = write(tmp_path / "m.yaml", "Bert", "bert-base-uncased")
    with pytest.raises(
        SpecError,
        match=r"m\.yaml:4: args\.pretrained_model_name_or_path: names a folder that does not "
        r"exist; "
        r"found \S+bert-base-uncased; expected a folder of this machine.*; nothing is downloaded",
    ):
        ag.load(file)
    file.write_text(file.read_text().replace("bert-base-uncased", "3"))
    with pytest.raises(SpecError, match="is not the name of a folder; found 3"):
        ag.load(file)


class Trap:
    """A pickle that writes a file when it is opened."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def test_a_pickle_is_refused_and_never_opened(folders, tmp_path):
    folder, sprung = tmp_path / "weights", tmp_path / "sprung"
    shutil.copytree(folders / "Bert", folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(sprung)))
    file = write(tmp_path / "m.yaml", "Bert", "weights")
    ag.load(file)  # beside safetensors it does no harm
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        SpecError,
        match=r"m\.yaml:4: .* has no weights in safetensors; found pytorch_model\.bin; "
        r"pickles run code when loaded",
    ):
        ag.load(file)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(SpecError, match="has no weights in safetensors; found no weights at all"):
        ag.load(file)
    assert not sprung.exists()


def test_asking_for_a_pickle_or_for_a_download_is_refused(folders, tmp_path):
    for key, value in (
        ("use_safetensors", "false"),
        ("local_files_only", "false"),
        ("trust_remote_code", "true"),
    ):
        file = write(tmp_path / "m.yaml", "Bert", folders / "Bert", f"  {key}: {value}\n")
        with pytest.raises(SpecError, match=rf"m\.yaml:6: args\.{key}: is fixed for safety"):
            ag.load(file)


@pytest.mark.parametrize("refused", ["pickle", "code"])
def test_a_model_inside_another_is_read_as_strictly(folders, tmp_path, refused):
    folder, sprung = tmp_path / "weights", tmp_path / "sprung"
    shutil.copytree(folders / "Bert", folder)
    more = "trust_remote_code: true" if refused == "code" else ""
    if refused == "pickle":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(sprung)))
        (folder / "model.safetensors").unlink()
    file = tmp_path / "m.yaml"
    file.write_text(
        "archgraph: 1\npython: torch.nn:Sequential\nargs:\n  body:\n"
        "    python: transformers:BertModel.from_pretrained\n"
        f"    args: {{pretrained_model_name_or_path: weights, {more}}}\n"
        f"inputs: {{input: {{shape: [{LENGTH}], dtype: int64}}}}\n"
    )
    why = "has no weights in safetensors" if refused == "pickle" else "is fixed for safety"
    with pytest.raises(SpecError, match=why):
        ag.load(file)
    assert not sprung.exists()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # transformers' own about another kind of model
def test_weights_of_another_model_are_an_error_not_a_fresh_start(folders, tmp_path):
    file = write(tmp_path / "m.yaml", "Bert", folders / "DistilBert")
    with pytest.raises(ArchGraphError, match=r"loads nothing|cannot be constructed"):
        ag.load(file)


def test_a_file_of_which_nothing_is_taken_is_an_error(folders, tmp_path):
    shutil.copytree(folders / "Bert", tmp_path / "weights")
    safetensors.torch.save_file(
        {"other.weight": torch.zeros(2)},
        tmp_path / "weights" / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(SpecError, match=r"loads nothing: .* found other\.weight; expected bert\."):
        ag.load(write(tmp_path / "m.yaml", "Bert", "weights"))
