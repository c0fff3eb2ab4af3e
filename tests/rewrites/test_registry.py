"""Every row of the registry, in the same way: its law, its key, its option, its help."""

import functools
import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
from ruamel.yaml import YAML

import archgraph as ag
from archgraph.language.family import Rewrites
from archgraph.language.help import topic
from archgraph.language.rewriting import rewritten
from archgraph.language.yaml import parse_document
from archgraph.rewrites.laws import same_function
from archgraph.rewrites.registry import rewrite_rows
from tests.rewrites.networks import sections

SAME_FUNCTION = {"deepen", "widen", "add_scaler", "train_only"}
SAME_FUNCTION |= {"add_step_sizes", "add_adapters", "add_lora"}


def asked(name: str) -> Rewrites:
    """A row's example as a file would say it."""
    return parse_document(f"{name}: {rewrite_rows()[name].example}\n", "f.yaml").validate(Rewrites)


@pytest.fixture
def images():
    return sections()


@pytest.mark.parametrize("row", rewrite_rows().values(), ids=lambda row: row.name)
def test_the_law_of_each_row_holds(images, row):
    graph, state = images
    if row.name == "rank":  # of the adapters that another rewrite gives
        graph, transfer = ag.add_lora(graph, 8)
        state = transfer.pull(state)
    result = rewritten(graph, asked(row.name), verify=True)
    ag.check(result.graph)
    assert result != ag.Rewritten.identity(graph), "an example changes something"
    assert result.transfer.source == ag.Transfer.identity(graph).source
    pulled = result.transfer.pull(state)
    assert set(pulled) == set(result.graph.state_names)
    answer = ag.build(result.graph, pulled).eval()(torch.randn(2, 3, 8, 8))
    assert all(t.isfinite().all() for t in torch.utils._pytree.tree_leaves(answer))
    if row.name in SAME_FUNCTION:
        assert same_function(graph, result) <= 1e-10


def test_narrow_makes_the_graph_of_take_and_keeps_sums(images):
    """Layers sum over dimension 1 of their weights; dimension 0 keeps its first positions."""
    graph, state = images
    narrowed, taken = (rewritten(graph, asked(name)) for name in ("narrow", "take"))
    assert rewrite_rows()["narrow"].example == rewrite_rows()["take"].example
    assert narrowed.graph == taken.graph
    pulled = narrowed.transfer.pull(state)
    weights = [name for name, value in pulled.items() if value.dim() > 1]
    assert len(weights) > 10
    for name in weights:
        sums = state[name].sum(1)[: len(pulled[name])]
        torch.testing.assert_close(pulled[name].sum(1), sums, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", rewrite_rows().values(), ids=lambda row: row.name)
def test_a_row_is_a_public_function_of_its_name_with_help(row):
    assert getattr(ag, row.name) is row.load()
    assert row.load().__name__ == row.name
    assert row.help.endswith(".") and row.law
    text = str(topic(row.name))
    assert row.help in text and row.law in text and f"{row.name}: {row.example}" in text
    assert "Raises:" in (inspect.getdoc(row.load()) or "")
    assert YAML(typ="safe", pure=True).load(row.example) is not None


def test_a_chain_runs_in_the_order_of_the_rows(images):
    graph, _ = images
    both = rewritten(graph, Rewrites(take=0.5, shorten={"layer2": 1}))
    assert both.graph == ag.take(ag.shorten(graph, {"layer2": 1}).graph, 0.5).graph
    assert rewritten(graph, Rewrites()).graph is graph
    assert rewritten(graph, Rewrites(add_step_sizes=False, shorten={})).graph is graph


def test_the_nearest_rewrite_is_named():
    with pytest.raises(ag.SpecError, match=r"shorte: is not a step, .*'shorten'"):
        topic("shorte")


@pytest.mark.parametrize("row", rewrite_rows().values(), ids=lambda row: row.name)
def test_verify_reaches_every_rewrite_with_a_law_to_run(images, row, monkeypatch):
    words = []

    @functools.wraps(row.load())
    def recorded(graph, *_, **options):
        words.append(options)
        return ag.Rewritten.identity(graph)

    has_law = "verify" in inspect.signature(row.load()).parameters
    module = importlib.import_module(row.function.partition(":")[0])
    monkeypatch.setattr(module, row.name, recorded)
    for value in (True, "short", SimpleNamespace(model_fields_set=())):
        for verify in (True, False):
            row.apply(images.graph, value, verify=verify)
            assert words.pop() == ({"verify": True} if verify and has_law else {})


def test_a_flag_of_zero_leaves_a_block_out(images):
    graph, _ = images
    kept = ag.skip(graph, keep={"layer2": [1, 1, 0]})
    assert kept.graph == ag.skip(graph, "layer2.2").graph
    for flags in ([1, 1, 2], [1, 1]):
        with pytest.raises(
            ag.RewriteError, match=r"layer2: needs one flag per block.* 3 numbers, 0 or 1"
        ):
            ag.skip(graph, keep={"layer2": flags})


def test_the_long_form_may_hold_one_number():
    assert Rewrites(take=0.5) == Rewrites(take={"shares": 0.5})
    assert Rewrites(widen=2.0) == Rewrites(widen={"factors": 2.0})


def test_training_nothing_at_all_is_refused():
    with pytest.raises(ValueError, match="at least 1 item"):
        Rewrites(train_only=())
