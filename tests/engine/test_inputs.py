"""Data with several inputs: every model takes those that it names, one minibatch suits them all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from torch import nn

import archgraph as ag
from archgraph.capture.trace import trace
from archgraph.data import Dataset, Split
from archgraph.data.tokens import INPUTS
from archgraph.engine import prepare
from archgraph.engine.facts import as_resolved
from archgraph.engine.fit import fits, fitted, matched
from archgraph.errors import DataError, RunError, SpecError
from archgraph.federation import Family, Shard, Tier
from archgraph.module.build import build
from archgraph.module.initial import initial_state
from archgraph.states import Transfer
from tests.data.test_data import publish, store

LENGTH, WORDS, CLASSES = 6, 11, 3


def pairs(examples: int = 9) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(WORDS, (examples, LENGTH), generator=draw).to(torch.int16)
    ids[0, 0] = WORDS - 1
    mask = (torch.arange(LENGTH) < torch.randint(2, 7, (examples, 1), generator=draw)).byte()
    beside = {"attention_mask": mask, "token_type_ids": mask.flip(1)}
    split = Split(ids, torch.arange(examples) % CLASSES, beside=beside)
    labels = ("entailment", "neutral", "contradiction")
    return Dataset("pairs", "text", CLASSES, (LENGTH,), split, split, labels, INPUTS)


class Reader(nn.Module):
    """Uses what it is given by name."""

    def __init__(self, words: int = WORDS, classes: int = CLASSES) -> None:
        super().__init__()
        self.embed, self.kind = nn.Embedding(words, 8), nn.Embedding(2, 8)
        self.head = nn.Linear(8, classes)

    def read(self, input_ids, attention_mask=None, token_type_ids=None):
        h = self.embed(input_ids)
        if token_type_ids is not None:
            h = h + self.kind(token_type_ids)
        if attention_mask is not None:
            h = h * attention_mask.unsqueeze(-1)
        return {"logits": self.head(h.mean(1))}


class Three(Reader):
    def forward(self, token_type_ids, input_ids, attention_mask):  # in an order of its own
        return self.read(input_ids, attention_mask, token_type_ids)


class Two(Reader):
    def forward(self, attention_mask, input_ids):
        return self.read(input_ids, attention_mask)


class One(Reader):
    def forward(self, tokens):
        return self.read(tokens)


def traced(kind: type[Reader], dtype: torch.dtype = torch.int64, **sizes: int) -> ag.ArchGraph:
    torch.manual_seed(0)
    code = kind.forward.__code__
    names = code.co_varnames[1 : code.co_argcount]
    zeros = torch.zeros(2, LENGTH, dtype=torch.int64)
    given: dict[str, Any] = {n: zeros.to(dtype) if n == "attention_mask" else zeros for n in names}
    return trace(kind(**sizes), **given).graph


def family(*graphs: ag.ArchGraph) -> Family:
    nothing = ag.ArchGraph(inputs=(), params=(), nodes=(), outputs=())
    return Family(
        nothing,
        None,
        tuple(Tier(f"m{i}", g, Transfer.identity(g)) for i, g in enumerate(graphs)),
    )


def keys(graph: ag.ArchGraph) -> list[str]:
    return [key for key, _ in graph.inputs]


@pytest.mark.parametrize("kind", [Three, Two, One])
def test_a_model_computes_the_same_of_the_inputs_that_it_names(kind):
    """Its own forward by name, and the matched one by position, on every example."""
    graph, data = traced(kind), pairs()
    found, kept = matched(family(graph, traced(Three)), data)
    assert kept.inputs == INPUTS
    new = found.clients[0].graph
    ag.check(new)
    assert keys(new) == (["tokens", *INPUTS[1:]] if kind is One else list(INPUTS))
    assert new.state_names == graph.state_names
    inputs, _ = kept.train.examples(slice(None))
    named = dict(zip(("tokens", *INPUTS[1:]) if kind is One else INPUTS, inputs, strict=True))
    state = initial_state(graph, seed=1)
    expected = build(graph, state)(**{k: named[k] for k in keys(graph)})["logits"]
    assert torch.equal(build(new, state)(*inputs)["logits"], expected)
    assert ag.parse(str(new)) == new


def test_only_what_some_model_names_is_given(tmp_path):
    found, data = matched(family(traced(Two), traced(One)), pairs())
    assert data.inputs == ("input_ids", "attention_mask") == tuple(keys(found.clients[0].graph))
    assert keys(found.clients[1].graph) == ["tokens", "attention_mask"]
    alone = traced(One)
    found, data = matched(family(alone, alone), pairs())
    assert data.inputs == ("input_ids",) and not data.train.beside
    assert all(member.graph is alone for member in found.clients)


def test_data_with_one_input_leaves_models_alone():
    split = Split(torch.zeros(4, LENGTH, dtype=torch.int64), torch.arange(4) % CLASSES)
    data = Dataset("plain", "text", CLASSES, (LENGTH,), split, split, ("a", "b", "c"))
    own = family(traced(One))
    found, kept = matched(own, data)
    assert found.clients[0].graph is own.clients[0].graph and kept.inputs == ()
    with pytest.raises(RunError, match=r"the data; found int64\[batch, 6\] \(plain\); "):
        matched(family(traced(Two)), data)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (
            lambda: traced(Three, classes=4),
            r"does not fit classification; found \[batch, 4\]; expected \[batch, 3\]: a logit",
        ),
        (
            lambda: traced(Two, words=WORDS - 1),
            "too few rows for the vocabulary; found token 10.* at least 11 rows .*data.vocabulary",
        ),
        (lambda: traced(One, words=5), "has too few rows for the vocabulary"),
        (
            lambda: traced(Two, dtype=torch.float32),
            "inputs do not fit the data; .*attention_mask int64.*expected .*attention_mask float32",
        ),
    ],
)
def test_what_does_not_fit_is_said(graph, words):
    with pytest.raises(RunError, match=words):
        matched(family(graph()), pairs())


def test_words_of_the_test_split_have_to_be_known_too():
    data = pairs()
    larger = dataclasses.replace(data.test, inputs=data.test.inputs + 30)
    with pytest.raises(RunError, match=f"token {WORDS + 29}, .*attention_mask up to 1"):
        matched(family(traced(Two)), dataclasses.replace(data, test=larger))


def test_the_logits_are_found_among_named_outputs():
    class Both(Reader):
        def forward(self, input_ids):
            return {"features": self.embed(input_ids), **self.read(input_ids)}

    matched(family(traced(Both)), pairs())
    with pytest.raises(RunError, match=r"does not fit classification; found \[batch, 2\]"):
        matched(family(traced(Both, classes=2)), pairs())


def test_a_model_that_asks_for_something_else_is_refused():
    class Odd(Reader):
        def forward(self, input_ids, position_ids):
            return self.read(input_ids, position_ids)

    with pytest.raises(RunError, match="the data lacks an input of the model; found position_ids"):
        fitted(traced(Odd), pairs())
    data = pairs()
    with pytest.raises(
        RunError,
        match=r"found input_ids int64\[batch, 6\], attention_mask int64",
    ):
        fits(traced(Two), data)


def test_a_shard_gives_all_inputs_of_the_same_examples():
    data = pairs()
    own = [7, 2, 4, 8]
    inputs, targets = data.train.examples(own)
    shard = Shard(inputs, targets, (1, 2, 1))
    whole, targets = data.train.examples(own)
    for batch in shard.batches(torch.Generator().manual_seed(1), 3):
        assert len(batch.inputs) == 3
        for given, expected in zip(batch.inputs, whole, strict=True):
            assert given.dtype == torch.int64 and torch.equal(given, expected[batch.ids])
        assert torch.equal(batch.targets, targets[batch.ids])


def test_inputs_have_to_match():
    with pytest.raises(DataError, match="differ in number; found 2 mask, 3 targets"):
        Split(torch.zeros(3, 1), torch.zeros(3), beside={"mask": torch.zeros(2, 1)})
    split = pairs().train
    with pytest.raises(DataError, match="inputs have other names; found attention_mask, token"):
        Dataset("pairs", "text", CLASSES, (LENGTH,), split, split, ("a", "b", "c"), INPUTS[:2])


# ---------------------------------------------------------------- whole runs


MODELS = {
    "large": (
        "Bert",
        "{vocab_size: 60, hidden_size: 8, num_hidden_layers: 2, num_attention_heads: 2, "
        "intermediate_size: 12, max_position_embeddings: 10, num_labels: 3}",
        INPUTS,
        "['*.adapter_*', classifier.*]",
    ),
    "small": (
        "DistilBert",
        "{vocab_size: 60, dim: 8, n_layers: 1, n_heads: 2, hidden_dim: 12, "
        "max_position_embeddings: 10, num_labels: 3}",
        INPUTS[:2],
        "['*.adapter_*', pre_classifier.*, classifier.*]",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Models, a family and small files in MNLI's format."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    labels = ("entailment", "neutral", "contradiction")
    rows = [
        json.dumps({"premise": f"p{i % 9} x{i}", "hypothesis": f"{label} y", "label": label})
        for i in range(40)
        for label in labels
    ]
    content = "\n".join(rows).encode()
    publish(monkeypatch, "mnli", {"mnli_dev_matched.jsonl": content})
    store(tmp_path / "data" / "nli" / "mnli_dev_matched.jsonl", content)
    members = []
    for name, (kind, config, inputs, train) in MODELS.items():
        given = ", ".join(f"{k}: {{shape: [10], dtype: int64}}" for k in inputs)
        (tmp_path / f"{name}.yaml").write_text(
            f"python: transformers:{kind}ForSequenceClassification\n"
            f"args: {{config: {{python: transformers:{kind}Config, args: {config}}}}}\n"
            f"inputs: {{{given}}}\n"
        )
        members.append(
            f"{{name: {name}, count: 2, model: {name}.yaml, add_adapters: 2, train_only: {train}}}"
        )
    (tmp_path / "family.yaml").write_text(f"clients: [{', '.join(members)}]\n")
    return tmp_path


def write(folder: Path, **changes: Any) -> Path:
    values: dict[str, Any] = {
        "name": "pairs",
        "family": "family.yaml",
        "data": {
            "dataset": "mnli",
            "root": str(folder / "data"),
            "length": 10,
            "vocabulary": 60,
            "partition": {"scheme": "dirichlet", "min_size": 4, "shares": {"large": 0.5}},
        },
        "strategy": {"exclusivefl": {}},
        "rounds": 2,
        "local": {"batch": 8, "lr": 0.1},
        "evaluate": {"every": 2},
    }
    file = folder / "experiment.yaml"
    YAML(typ="safe").dump({**values, **changes}, file)
    return file


@pytest.mark.full
def test_adapters_of_two_architectures_are_trained_on_pairs(folder):
    """Histograms and local tests by class, as for images; all that is fixed stays bit for bit."""
    file = write(folder)
    setup = prepare(file, python=True)
    assert all(keys(t.graph) == list(INPUTS) for t in setup.world.tiers)
    assert all(sum(c.histogram) == c.examples for c in setup.world.clients)
    assert len(setup.world.clients[0].histogram) == 3
    assert as_resolved(ag.load_experiment(file), setup.strategy).count("length: 10") == 1
    run = ag.run(file, progress=False, python=True)
    models = {model.name: model for model in run.models}
    for tier in setup.world.tiers:
        state = models[tier.name].state
        parameters = [p for p in tier.graph.params if p.role == "parameter"]
        for p in parameters:
            if not p.trainable:
                assert torch.equal(state[p.name], tier.state[p.name]), p.name
        assert any(not torch.equal(state[p.name], tier.state[p.name]) for p in parameters)
        assert not torch.equal(state["classifier.weight"], tier.state["classifier.weight"])
    figures = run.evaluation
    assert "perplexity" not in figures["global"] and "masked" in figures["local"]


@pytest.mark.full
def test_a_tokenizers_folder_is_named_relative_to_the_experiment(folder, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x", "y", "neutral"]
    made = transformers.BertTokenizerFast(vocab={w: i for i, w in enumerate(entries)})
    made.save_pretrained(folder / "words")
    data = {"dataset": "mnli", "root": str(folder / "data"), "length": 10, "tokenizer": "words"}
    file = write(folder, data=data)
    monkeypatch.chdir("/")
    setup = prepare(file, python=True)
    assert int(setup.data.train.inputs.max()) == 7
    (folder / "run").mkdir()
    again = folder / "run" / "run.yaml"
    again.write_text(setup.text)
    repeated = prepare(again, python=True)
    assert repeated.facts == setup.facts and "tokenizer" not in setup.facts["data"]
    (folder / "words").rename(folder / "elsewhere")
    with pytest.raises(SpecError, match=r"experiment\.yaml:\d+: data\.tokenizer: names a file or"):
        prepare(file, python=True)
