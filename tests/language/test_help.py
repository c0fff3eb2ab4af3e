"""What `archgraph help` says is complete, and its examples are read by what it explains."""

from __future__ import annotations

import json

import pytest
from ruamel.yaml import YAML

from archgraph.errors import SpecError
from archgraph.fields import Base
from archgraph.hints import EXTRAS
from archgraph.language import help as explained
from archgraph.language import load_model
from archgraph.language.data import DOORS, Data, DataSpec
from archgraph.language.family import Rewrites
from archgraph.language.model import AuthoredModel
from archgraph.language.steps import STEPS
from archgraph.language.yaml import parse_document
from archgraph.rewrites.registry import rewrite_rows

TOPICS = explained.topics()
# An image, tokens, words.
INPUTS = [{"x": [8, 8, 8]}, {"x": [5, 8]}, {"x": {"shape": [5], "dtype": "int64"}}]


class Holder(Base):
    data: Data


def plain(text: str):
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("name", STEPS)
def test_the_example_of_a_step_is_a_model(name: str) -> None:
    """On an image, on tokens or on words."""
    step = plain(TOPICS[name].example)
    assert step == name or list(step) == [name]
    # Several values come from a split, and one of them is picked.
    before: list[object] = [{"split": {"sizes": [2, 6], "as": "parts"}}] if name == "get" else []
    after = [{"get": 0}] if name == "split" else []
    before = [{"conv": 5}] if name == "split" else before
    tried = []
    for inputs in INPUTS:
        data = {
            "archgraph": 1,
            "inputs": inputs,
            "sections": [{"name": "s", "steps": [*before, step, *after]}],
        }
        try:
            load_model(parse_document(json.dumps(data), "m.yaml"))
        except SpecError as error:
            tried.append(str(error))
        else:
            return
    pytest.fail("\n".join(tried))


MAPPINGS = [(name, m) for group in explained.mappings().values() for name, m in group.items()]


@pytest.mark.parametrize(("name", "model"), MAPPINGS)
def test_the_example_of_a_mapping_is_read(name: str, model) -> None:
    if name in ("clients", "sections"):
        for item in plain(TOPICS[name].example):
            parse_document(json.dumps(item), "m.yaml").validate(model)
        return
    if issubclass(model, DataSpec):
        data = {"data": plain(TOPICS[name].example)}
        found = parse_document(json.dumps(data), "m.yaml").validate(Holder)
        assert type(found.data) is DOORS.get(name.removeprefix("data."), DOORS["dataset"])
        return
    document = parse_document(TOPICS[name].example, "m.yaml")
    if name in ("inputs", "blocks", "shortcut", "block"):
        for key in document.data:
            document.sub((key,)).validate(model)
    else:
        document.validate(model)
    if model is AuthoredModel:
        load_model(document)


@pytest.mark.parametrize("name", TOPICS)
def test_everything_has_a_sentence_and_a_type(name: str) -> None:
    topic = TOPICS[name]
    assert topic.sentence
    for option in topic.options:
        assert option.type, option
        alone = topic.group in (explained.REWRITE_GROUP, explained.RULE_GROUP)
        assert option.sentence or alone, option


@pytest.mark.parametrize("row", rewrite_rows().values(), ids=lambda row: row.name)
def test_the_example_of_a_rewrite_is_read(row) -> None:
    document = parse_document(TOPICS[row.name].example, "m.yaml")
    assert getattr(document.validate(Rewrites), row.name) is not None


def test_the_page_and_the_list_name_every_topic() -> None:
    page, listed = explained.markdown(), "\n\n".join(explained.overview().values())
    assert all(f"  {extra} " in explained.overview()["extras"] for extra in EXTRAS.values())
    for name, topic in TOPICS.items():
        assert f"### `{name}`" in page and f"  {name} " in listed
        assert topic.example in page and topic.example.splitlines() == [
            line[2:] for line in str(topic).partition("Example:\n")[2].splitlines()
        ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("take", ["shares", "sizes", "positions", "take: {shares: VALUE}", "--take 0.5"]),
        ("narrow", ["shares", "sizes"]),
        ("widen", ["factors", "positions"]),
        ("skip", ["blocks", "keep", "skip: {blocks: VALUE}"]),
        ("ends_after", ["section", "head", "required"]),
        ("fedfa", ["percentile", "number, above 0, at most 1; default 0.95", "preset"]),
        ("heterofl", ["rates", "mapping to number"]),
        ("fedfa.percentile", ["fedfa (strategies)", "percentile", "0.95"]),
        ("experiment", ["mapping from a strategy's name to its options"]),
        ("local.lr", ["local (experiment files)", "required without `optimiser`"]),
        ("sample", ["experiment (experiment files)", "clients per round"]),
    ],
)
def test_help_lists_what_may_be_written(name: str, words: list[str]) -> None:
    text = str(explained.topic(name))
    for word in words:
        assert word in text
    assert " or ;" not in text and "``" not in text


def test_help_knows_other_words_for_a_key() -> None:
    assert explained.topic("add-exits") == explained.topic("add_exits")  # as the option is written
    with pytest.raises(SpecError, match=r"it is 'local\.lr' here"):
        explained.topic("learning_rate")
    with pytest.raises(SpecError, match=r"several keys; expected dirichlet\.alpha or"):
        explained.topic("alpha")


def test_every_option_of_a_strategy_has_a_sentence() -> None:
    for name in explained.strategy_names():
        for option in explained.topic(name).options:
            assert option.sentence and option.type, (name, option)


def test_a_key_is_found_below_its_mapping() -> None:
    assert "required" in str(explained.topic("local.lr"))
    with pytest.raises(SpecError, match=r"local\.rl: is not .* did you mean 'local\.lr'"):
        explained.topic("local.rl")
