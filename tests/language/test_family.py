"""Families: every client's state comes out of the global one, by choice, rewrite or alignment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchvision.ops import MLP

import archgraph as ag
from archgraph.engine.loading import load
from archgraph.errors import ArchGraphError, RewriteError, SpecError
from archgraph.federation.family import Family, resolve
from archgraph.language import load_family, load_model
from archgraph.language.yaml import parse_document
from archgraph.module.build import build
from archgraph.module.initial import initial_state
from archgraph.rewrites.train_only import train_only
from archgraph.states import signature

SPECS = Path(__file__).parents[2] / "specs"

MODEL = """\
archgraph: 1
name: net
inputs: {image: [3, 8, 8]}
blocks:
  b:
    params: {width: null, stride: 1}
    shortcut: auto
    steps: [batch_norm, relu, conv: {out: $width, stride: $stride}]
sections:
  - {name: stem, steps: [conv: {out: 4}]}
  - {name: stage1, block: b, depth: 2, width: 8, stride: 2}
  - {name: stage2, block: b, depth: 2, width: 16, stride: 2}
  - {name: head, steps: [global_avg_pool, flatten, linear: 5]}
choices: {stage1.depth: [1, 2, 3], stage2.depth: [1, 2, 3], stage2.width: [8, 12, 16]}
"""


@pytest.fixture
def family(tmp_path: Path):
    """A family of the model above with the given clients."""

    def make(clients: str, rest: str = "") -> Family:
        (tmp_path / "net.yaml").write_text(MODEL)
        file = tmp_path / "family.yaml"
        file.write_text(f"archgraph: 1\nmodel: net.yaml\nclients: [{clients}]\n{rest}")
        return resolve(load_family(file))

    return make


def assert_transfers(found: Family) -> None:
    """Transfers go from the global state to states that the clients' graphs accept and run."""
    state = initial_state(found.graph, seed=1)
    for member in found.clients:
        assert member.transfer.source == signature(found.graph)
        assert member.transfer.target == signature(member.graph)
        pulled = member.transfer.pull(state)
        shape = [2, *(s for s in member.graph.nodes[0].shape[1:] if isinstance(s, int))]
        dtype = getattr(torch, member.graph.nodes[0].dtype)
        build(member.graph, pulled)(torch.ones(shape, dtype=dtype))
        for name, tensor in pulled.items():
            if tensor.dim():
                whole = state[name]
                prefix = whole[tuple(slice(n) for n in tensor.shape)]
                assert torch.equal(tensor, prefix), name


def test_a_client_without_a_recipe_is_the_global_one(family) -> None:
    found = family("{name: a, count: 3}")
    (member,) = found.clients
    assert (member.name, member.count, member.graph) == ("a", 3, found.graph)
    assert member.transfer == type(member.transfer).identity(found.graph)
    assert found.state is None


def test_the_global_model_takes_the_largest_of_every_choice(family, tmp_path: Path) -> None:
    found = family("{name: a, choose: {stage1.depth: 3}}, {name: b, choose: {stage2.width: 8}}")
    assert found.graph == load(tmp_path / "net.yaml", {"stage1.depth": 3, "stage2.width": 16})
    small = load(tmp_path / "net.yaml", {"stage2.width": 8})
    assert found.clients[1].graph == small
    assert_transfers(found)


def test_choices_of_the_global_model_can_be_given(family, tmp_path: Path) -> None:
    found = family("{name: a, choose: {}}", "choose: {stage2.depth: 3}")
    assert found.graph == load(tmp_path / "net.yaml", {"stage2.depth": 3})
    assert found.clients[0].graph == load(tmp_path / "net.yaml")
    assert_transfers(found)


def test_rewrites_follow_one_another(family) -> None:
    found = family("{name: a, shorten: {stage2: 1}, take: 0.5}, {name: b, skip: [stage1.1]}")
    narrow = found.clients[0].graph
    assert narrow.param["stage2.0.conv.weight"].shape == (8, 4, 3, 3)
    assert "stage2.1.conv.weight" not in narrow.param
    assert "stage1.1.conv.weight" not in found.clients[1].graph.param
    assert_transfers(found)


def exits_of_steps(graph):
    """The network with an exit behind stage1 that another file holds, written out."""
    text = """{archgraph: 1, inputs: {features: [8, 4, 4]}, sections: [
      {name: head, steps: [conv: {out: 3, stride: 2}, batch_norm, relu, flatten, linear: 5]}]}"""
    document = parse_document(text, "head.yaml")
    return ag.add_exits(graph, {"stage1": load_model(document)[0], "stage2": 5})


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("key", "make"),
    [
        (
            "add_exits: {stage1: [conv: {out: 3, stride: 2}, batch_norm, relu, flatten, linear: 5],"
            " stage2: 5}",
            exits_of_steps,
        ),
        ("graft: {stage2: 4}", lambda g: ag.graft(g, {"stage2": 4})),
        ("deepen: {stage1: 3}", lambda g: ag.deepen(g, {"stage1": 3})),
        ("narrow: 0.5", lambda g: ag.narrow(g, 0.5)),
        ("narrow: {sizes: {stage2.*: 4}}", lambda g: ag.narrow(g, sizes={"stage2.*": 4})),
        ("widen: 1.5", lambda g: ag.widen(g, 1.5)),
        ("widen: {sizes: {stage2.*: 24}}", lambda g: ag.widen(g, sizes={"stage2.*": 24})),
        ("add_step_sizes: true", ag.add_step_sizes),
        ("add_step_sizes: [stage1.1]", lambda g: ag.add_step_sizes(g, "stage1.1")),
        ("add_adapters: 2", lambda g: ag.add_adapters(g, 2)),
        ("add_exits: {stage1: 5}", lambda g: ag.add_exits(g, {"stage1": 5})),
        ("train_only: [stage1.*, head.*]", lambda g: train_only(g, ["stage1.*", "head.*"])),
    ],
)
def test_every_rewrite_has_a_key(family, tmp_path: Path, key: str, make) -> None:
    """For a client, and for the global model before anything else; both ways of one map."""
    (client,) = family(f"{{name: a, {key}}}").clients
    expected = make(load(tmp_path / "net.yaml"))
    assert client.graph == expected.graph
    assert client.transfer == expected.transfer
    build(client.graph, client.transfer.pull(initial_state(load(tmp_path / "net.yaml"))))
    changed = family("{name: a}, {name: b, take: 0.5}", f"change: {{{key}}}")
    assert changed.graph == expected.graph
    assert changed.clients[0].transfer == type(client.transfer).identity(expected.graph)
    assert changed.clients[1].transfer.source == signature(expected.graph)


def test_what_was_added_can_be_named_and_what_is_added_later_is_trained(family) -> None:
    found = family(
        "{name: a, add_step_sizes: true}, "
        "{name: b, add_adapters: 2, train_only: ['*.adapter*', head.*]}",
        "change: {train_only: [head.*]}",
    )
    trained = [{p.name for p in m.graph.params if p.trainable} for m in found.clients]
    heads = {"head.linear.weight", "head.linear.bias"}
    assert {p.name for p in found.graph.params if p.trainable} == heads
    assert trained[0] - heads == {"stage1.1.step_size", "stage2.1.step_size"}
    assert trained[1] > heads and all(".adapter." in n for n in trained[1] - heads)
    assert len(trained[1] - heads) == 8


@pytest.mark.full
def test_what_changes_the_global_model_changes_it_with_a_clients_choices(family) -> None:
    found = family(
        "{name: a, choose: {stage2.depth: 1}}, {name: b, choose: {stage2.depth: 2}}",
        "change: {add_adapters: 2, take: 0.5}",
    )
    small, large = (member.graph for member in found.clients)
    assert small.param["stage1.1.adapter.up.weight"].shape == (4, 2, 1, 1)
    assert "stage2.1.adapter.up.weight" not in small.param
    assert large == found.graph
    assert_transfers(found)


def test_weights_that_a_model_brings_go_through_its_changes(tmp_path: Path) -> None:
    (tmp_path / "family.yaml").write_text(
        "model: {python: 'torchvision.ops:MLP', inputs: {input: [4]}, "
        "args: {in_channels: 4, hidden_channels: [6, 3]}}\n"
        "change: {take: {positions: {'0.out': [1, 3, 4]}}}\n"
        "clients: [{name: a}]\n"
    )
    found = resolve(load_family(tmp_path / "family.yaml"), python=True)
    torch.manual_seed(0)
    weight = MLP(4, [6, 3])[0].weight
    assert found.state is not None
    assert torch.equal(found.state["0.weight"], weight[[1, 3, 4]])


def test_a_model_of_its_own_is_aligned(family, tmp_path: Path) -> None:
    own = MODEL.replace("width: 8", "width: 4").replace("depth: 2, width: 16", "width: 16")
    (tmp_path / "own.yaml").write_text(own)
    found = family("{name: a, model: own.yaml}")
    assert found.clients[0].graph == load(tmp_path / "own.yaml")
    assert_transfers(found)


def test_a_model_may_stand_in_the_family(tmp_path: Path) -> None:
    indented = "".join(f"  {line}\n" for line in MODEL.splitlines())
    text = f"archgraph: 1\nmodel:\n{indented}clients: [{{name: a, choose: {{stage1.depth: 1}}}}]\n"
    (tmp_path / "family.yaml").write_text(text)
    assert_transfers(resolve(load_family(tmp_path / "family.yaml")))
    (tmp_path / "family.yaml").write_text(text.replace("stage2, block: b", "stage2, blok: b"))
    with pytest.raises(SpecError, match=r"family\.yaml:14: sections\[2\]: .* did you mean 'block'"):
        resolve(load_family(tmp_path / "family.yaml"))


def test_a_python_model_brings_its_weights(tmp_path: Path) -> None:
    (tmp_path / "family.yaml").write_text(
        "archgraph: 1\n"
        "model: {python: torch.nn:Linear, args: {in_features: 4, out_features: 3}, "
        "inputs: {input: [4]}, seed: 5}\n"
        "clients: [{name: a}]\n"
    )
    before = torch.random.get_rng_state()
    found = resolve(load_family(tmp_path / "family.yaml"), python=True)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    expected = torch.nn.Linear(4, 3)
    assert found.state is not None
    assert torch.equal(found.state["weight"], expected.weight)


def test_family_without_a_global_model(tmp_path: Path) -> None:
    """Every client has a model of its own: a transfer comes from nothing and initialises all."""
    (tmp_path / "net.yaml").write_text(MODEL)
    (tmp_path / "other.yaml").write_text(
        "{python: 'torch.nn:Linear', args: {in_features: 4, out_features: 5}, inputs: {input: [4]}}"
    )
    file = tmp_path / "family.yaml"
    file.write_text(
        "clients: [{name: a, model: net.yaml, take: 0.5}, {name: b, model: other.yaml, count: 2}]"
    )
    found = resolve(load_family(file), python=True)
    assert not found.has_global
    assert not found.graph.state_names
    a, b = found.clients
    for member in (a, b):
        assert member.transfer.source == ()
        assert signature(member.graph) == member.transfer.target
        build(member.graph, member.transfer.pull({}))
    assert a.graph.param["stage1.0.conv.weight"].shape[0] == 4
    assert not a.own
    assert b.own
    assert b.state.keys() == {"weight", "bias"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "clients: [{name: a, take: 0.5}]",
            r"clients\[0\]: has no model; found a; expected its own mod",
        ),
        (
            "choose: {d: 1}\nclients: [{name: a, model: net.yaml}]",
            r"choose: belongs to a global model, but the family has none",
        ),
        (
            "change: {take: 0.5}\nclients: [{name: a, model: net.yaml}]",
            r"change: belongs to a global model, but the family has none",
        ),
    ],
)
def test_what_a_family_without_a_global_model_cannot_have(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "net.yaml").write_text(MODEL)
    (tmp_path / "family.yaml").write_text(text)
    with pytest.raises(SpecError, match=message):
        load_family(tmp_path / "family.yaml")


def test_who_chooses_nothing_runs_what_is_written_or_more(family) -> None:
    found = family("{name: a, choose: {stage1.depth: 1}}, {name: whole}")
    assert "stage1.1.conv.weight" in found.graph.param  # two blocks, as written
    assert found.clients[1].graph == found.graph


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("clients", "rest", "message"),
    [
        (
            "{name: a, choose: {stage1.depth: 9}}",
            "",
            r"net\.yaml:14: choices\.stage1\.depth: is not a candidate of 'stage1\.depth'; "
            r"found 9; "
            r"expected one of 1, 2, 3",
        ),
        ("{name: a, shorten: {stage9: 1}}", "", r"family\.yaml:3: clients\[0\]\.shorten: .*stage9"),
        ("{name: a, skip: [stage9.0]}", "", r"family\.yaml:3: clients\[0\]\.skip: .*stage9\.0"),
        ("{name: a, deepen: {stage2: 1}}", "", r"family\.yaml:3: clients\[0\]\.deepen: .*stage2"),
        ("{name: a}", "change: {skip: [stage9]}", r"family\.yaml:4: change\.skip: .*stage9"),
        (
            "{name: a, train_only: ['*.liner.*']}",
            "",
            r"family\.yaml:3: .*\.train_only: \*\.liner\.\*: matches no .*head\.linear\.weight",
        ),
        ("{name: a, train_only: []}", "", r"train_only: .*1 or more entries"),
        (
            "{name: a}, {name: most, take: 0.99}",
            "",
            r"family\.yaml:3: clients\[1\]\.take: changes nothing: .*; found 0\.99, and rounded to "
            r"the present size: stem\.conv\.out \(4\), .*omit the choice",
        ),
        (
            "{name: a}",
            "change: {add_exits: {stage1: [flatten, linear: many]}}",
            r"family.yaml:\d+: change.add_exits: steps after stage1: ",
        ),
        (
            "{name: a}",
            "change: {add_exits: {stage1: flatten}}",
            r"change.add_exits.stage1: .*an integer or a list",
        ),
        (
            "{name: a}",
            "change: {add_exits: {stage7: [flatten, linear: 5]}}",
            "no such section or block",
        ),
    ],
)
def test_mistakes_are_located(family, clients: str, rest: str, message: str) -> None:
    with pytest.raises(ArchGraphError, match=message):
        family(clients, rest)


def test_a_client_may_not_train_what_the_global_model_freezes(family) -> None:
    frozen = "change: {train_only: [head.*]}"
    message = (
        r"family\.yaml:3: clients\[1\]: trains parameters that the global model freezes; found "
        r"stem\.conv\.weight, .*; expected parameters that the global model trains; .*train_only"
    )
    with pytest.raises(RewriteError, match=message):
        family("{name: a}, {name: more, train_only: ['head.*', 'stem.*']}", frozen)
    less = family("{name: a, take: 0.5}, {name: less, train_only: head.linear.bias}", frozen)
    assert [p.name for p in less.clients[1].graph.params if p.trainable] == ["head.linear.bias"]
    added = family("{name: a, add_adapters: 2, train_only: '*.adapter*'}", frozen).clients[0]
    assert all("adapter" in p.name for p in added.graph.params if p.trainable)


@pytest.mark.parametrize("name", ["fedfa_digits", "fedfa_fashion", "heterofl_fashion"])
def test_shipped_families_resolve(name: str) -> None:
    found = resolve(load_family(SPECS / "families" / f"{name}.yaml"))
    assert len({m.graph for m in found.clients}) >= 3
    assert_transfers(found)


def test_the_global_model_can_be_the_join_of_the_clients(tmp_path: Path) -> None:
    deep = MODEL.replace("stage2, block: b, depth: 2", "stage2, block: b, depth: 3")
    wide = MODEL.replace("stage1", "first").replace("width: 8", "width: 10")
    for name, text in {"deep": deep, "wide": wide}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    file = tmp_path / "family.yaml"
    file.write_text(
        "archgraph: 1\nmodel: join\n"
        "clients: [{name: a, model: deep.yaml}, {name: b, model: wide.yaml, take: 0.5}]\n"
    )
    found = resolve(load_family(file))
    both = deep.replace("width: 8", "width: 10")
    (tmp_path / "both.yaml").write_text(both)
    expected = load(tmp_path / "both.yaml")
    assert {p.name: p.shape for p in found.graph.params} == {
        p.name: p.shape for p in expected.params
    }
    assert found.state is None
    assert found.clients[0].graph == load(tmp_path / "deep.yaml")
    assert found.clients[1].graph.param["first.0.conv.weight"].shape[0] == 5
    assert found.clients[1].transfer.entries["first.0.conv.weight"].source == "stage1.0.conv.weight"
    assert_pulls(found)


def assert_pulls(found: Family) -> None:
    state = initial_state(found.graph, seed=1)
    for member in found.clients:
        assert member.transfer.source == signature(found.graph)
        build(member.graph, member.transfer.pull(state))(torch.ones(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: join\nclients: [{name: a}]",
            r"family\.yaml:3: clients\[0\]: has no model; found a; "
            r"expected its own model, since the family is their join",
        ),
        (
            "model: join\nclients: [{name: a, model: net.yaml}, {name: b, model: other.yaml}]",
            r"family\.yaml:2: model: .*: graphs cannot be joined; no block of the other graph",
        ),
        ("model: join\nchoose: {x: 1}\nclients: [{name: a, model: net.yaml}]", "belongs to a"),
    ],
)
def test_mistakes_of_a_join_are_located(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "net.yaml").write_text(MODEL)
    (tmp_path / "other.yaml").write_text(
        MODEL.replace("conv: {out: 4}", "conv: {out: 4, kernel: 5}")
    )
    file = tmp_path / "family.yaml"
    file.write_text(f"archgraph: 1\n{text}\n")
    with pytest.raises(ArchGraphError, match=message):
        resolve(load_family(file))


def test_a_family_may_be_keys_and_values(family, tmp_path: Path) -> None:
    net = MLP(3, [4, 2])
    traced = ag.trace(net, torch.zeros(2, 3))
    clients = [{"name": "a"}, {"name": "half", "count": 2, "take": 0.5}]
    found = ag.resolve(ag.load_family({"model": traced, "clients": clients}))
    assert found.graph == traced.graph and found.state is not None
    assert all(torch.equal(found.state[name], value) for name, value in traced.state.items())
    # The same as in a file; a file's name is relative to the current folder.
    filed = family("{name: a}, {name: half, count: 2, take: 0.5}")
    values = ag.load_family({"model": str(tmp_path / "net.yaml"), "clients": clients})
    assert [kind.graph for kind in resolve(values).clients] == [k.graph for k in filed.clients]
    with pytest.raises(SpecError, match=r"^family: clients\[0\].taek: is an unknown key"):
        ag.load_family({"model": traced, "clients": [{"name": "a", "taek": 0.5}]})
