"""The table of all strategies: what it says about clients is what the strategies take."""

from __future__ import annotations

import json
from typing import Any

import pydantic_core
import pytest
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.federation import configure, find_strategy, strategy_table
from archgraph.federation.strategy import SERVES
from archgraph.hints import EXTRAS
from archgraph.language.experiment import strategy_options
from archgraph.language.help import strategy_names, topic

REWRITES = {
    "width": lambda graph: ag.take(graph, 0.5),
    "depth": lambda graph: ag.shorten(graph, {"layer1": 2}),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", sorted(REWRITES))
@pytest.mark.parametrize("name", strategy_names())
def test_a_strategy_takes_the_clients_that_it_says_it_serves(lab: Any, name: str, kind: str):
    tiers = {"part": REWRITES[kind](lab.graph), "whole": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["part", "whole"])
    world = lab.replace(world, public=lab.toy(0))
    strategy = configure(name, {"apoz": {"*": 0.5}} if name == "flexfl_pool" else {})
    # Those with exits need them for whatever else they serve.
    served = {kind, "any"} & set(strategy.serves) and "exits" not in strategy.serves
    if served:
        assert strategy.init(world)
    else:
        with pytest.raises(ag.RunError):
            strategy.init(world)


PARTS = REWRITES | {"skipped": lambda graph: ag.skip(graph, ["layer1.1"])}
EXITS = r"tier part: .* up to one of its exits.*add_exits.*ends_after.*nefl"
FIRST = r"tier part: .*first layers.*nefl and fedfa.*heterofl"
REFUSED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("fedavg", "width", r"client 0 \(part\): FedAvg averages one architecture", {}),
    ("fedrolex", "depth", "tier part: FedRolex only narrows .* fedfa, nefl", {}),
    ("fiarse", "depth", "tier part: structured FIARSE only narrows", {"structured": True}),
    ("inclusivefl", "width", FIRST, {}),
    ("inclusivefl", "skipped", FIRST, {}),
    ("depthfl", "depth", EXITS, {}),
    ("scalefl", "depth", EXITS, {}),
)


@pytest.mark.parametrize(("name", "part", "message", "options"), REFUSED)
def test_clients_of_another_kind_are_refused_with_what_serves_them(
    lab, name, part, message, options
):
    tiers = {"part": PARTS[part](lab.graph), "whole": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["part", "whole"])
    with pytest.raises(ag.RunError, match=message):
        configure(name, options).init(world)


@pytest.mark.parametrize("name", strategy_names())
def test_options_that_a_run_wrote_down_are_those_that_it_began_with(name: str):
    """DepthFL's 300 was read again as 300.0: another experiment, whose checkpoint was refused."""
    cls, options = find_strategy(name), dict[str, Any]()
    for chosen in ({}, *({"preset": preset} for preset in cls.presets)):
        strategy = configure(name, chosen)
        options = {f.name: getattr(strategy, f.name) for f in strategy_options(cls)}
        written = pydantic_core.to_jsonable_python(options)
        again = configure(name, json.loads(json.dumps(written)))
        options = {f.name: getattr(again, f.name) for f in strategy_options(cls)}
        assert json.dumps(pydantic_core.to_jsonable_python(options)) == json.dumps(written)


def test_every_strategy_has_a_row_with_its_facts():
    rows = {row[0]: row[1:] for row in strategy_table().rows}
    assert sorted(rows) == strategy_names()
    for name, (paper, year, clients, _, presets) in rows.items():
        assert bool(paper) == bool(year) == (name != "standalone")
        assert clients and set(clients.split(", ")) <= set(SERVES)
        assert presets == ", ".join(find_strategy(name).presets)
    assert rows["fedrolex"][3:] == ("a global model", "paper, official_code")
    assert rows["fedmd"][3] == (
        "`public` examples, targets that are classes, no `aggregate`, no `server`"
    )
    extras = {name: find_strategy(name).extra for name in rows if find_strategy(name).extra}
    assert extras == {"matched": EXTRAS["scipy"], "recipfl": EXTRAS["torch_geometric"]}
    assert "the extra `hypernet`" in rows["recipfl"][3]
    help_ = str(topic("fedin"))
    assert "Clients: shallower clients (`shorten`, `skip`); networks with common" in help_
    assert "Requires: nothing else." in help_


@pytest.mark.parametrize("name", strategy_names())
def test_every_option_is_shown_with_a_sentence_those_of_the_method_first(name: str):
    cls = find_strategy(name)
    shown = {option.name: option.sentence for option in topic(name).options}
    assert all(shown.values())
    own = [option for option in cls.__annotations__ if option in shown]
    assert list(shown)[: len(own)] == own


def test_a_shared_option_has_one_sentence_and_a_method_may_say_it_in_its_own_way():
    def sentence(name: str, option: str) -> str:
        (one,) = (o for o in topic(f"{name}.{option}").options if o.name == option)
        return one.sentence

    sentences = [sentence(name, "norm") for name in ("fedavg", "fedfa", "scalefl")]
    assert len(set(sentences)) == 1 and "computed before each test" in sentences[0]
    assert "window moves" in sentence("fedrolex", "norm")
    assert sentence("fedrolex", "mask_absent") == sentence("standalone", "mask_absent")


def test_the_command_prints_the_table():
    printed = CliRunner().invoke(app, ["strategies", "--markdown"])
    assert printed.exit_code == 0
    assert "| heterofl | HeteroFL | 2021 | width, depth |" in printed.output
    assert "`take`" in printed.output
