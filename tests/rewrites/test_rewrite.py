"""Several rewrites at once are the chain by `>>`, whoever asks for them and in whatever way."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.language import verdicts
from archgraph.language.help import topic
from archgraph.rewrites.registry import rewrite_rows
from tests.cli.terminal import call
from tests.nets import captured
from tests.rewrites.networks import sections

# In any subset each finds what it names.
VALUES: Mapping[str, Any] = {
    "skip": "layer1.1",
    "shorten": {"layer2": 2},
    "graft": {"layer2": 3},
    "deepen": {"layer2": 4},
    "ends_after": {"section": "layer2", "head": 7},
    "fit": {"macs": 0.7, "shape": "nested"},
    "take": {"shares": 0.75, "sizes": {"stem.out": 6}},
    "narrow": 0.5,
    "widen": 1.5,
    "add_step_sizes": True,
    "add_adapters": 2,
    "add_lora": {"rank": 3, "where": ["layer2.*.conv1"], "alpha": 6},
    "rank": 2,
    "add_exits": {"layer1": ["global_avg_pool", "flatten", {"linear": 3}]},
    "add_scaler": 0.5,
    "train_only": ["layer2.*", "layer1.0.conv1.weight"],
}
OWN = """\
import dataclasses
import archgraph as ag

def smooth(graph, op="aten.gelu", only=None, *, verify=False):
    assert only != "verified" or verify
    nodes = (
        dataclasses.replace(n, op=op) if n.op == "aten.relu" and only in (None, n.name) else n
        for n in graph.nodes
    )
    new = graph.replace(nodes=tuple(nodes))
    return ag.Rewritten(new, ag.Transfer.identity(new))
"""
ADDON = """\
from archgraph.rewrites.registry import RewriteRow

ROW = RewriteRow(
    "smooth", "own_rewrites:smooth", "archgraph.plain:Json",
    "Use another function where the network uses ReLU.", "aten.silu", "same state",
)
"""


@pytest.fixture
def graph() -> ag.ArchGraph:
    return sections().graph.replace(name="net", notes=())


@pytest.fixture
def here(graph: ag.ArchGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and a module of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rewrites", raising=False)
    (tmp_path / "own_rewrites.py").write_text(OWN)
    ag.save(graph, "net.yaml")
    return tmp_path


def in_a_file(values: Mapping[str, Any], *, python: bool = False) -> ag.Rewritten:
    """What a family's only client is, whose keys are these."""
    family = {"archgraph": 1, "model": "net.yaml", "clients": [{"name": "a", **values}]}
    Path("family.yaml").write_text(json.dumps(family))
    (client,) = ag.resolve(ag.load_family("family.yaml"), python=python).clients
    return ag.Rewritten(client.graph, client.transfer)


def by_steps(name: str, value: Any, graph: ag.ArchGraph) -> ag.Rewritten:
    """A call of the function itself; of options by name where the value is a mapping of them."""
    if name == "add_exits":  # its function takes graphs, its key a model's steps
        return ag.rewrite(graph, add_exits=value)
    function = getattr(ag, name)
    if name in ("fit", "take", "ends_after", "add_lora"):
        return function(graph, **value)
    return function(graph) if value is True else function(graph, value)


def test_every_rewrite_is_among_those_of_the_law():
    assert list(VALUES) == list(rewrite_rows())


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(9))
def test_keywords_a_file_and_the_command_line_make_the_chain(graph, here, seed):
    """Of random rewrites in a random order."""
    draw = random.Random(seed)
    names = draw.sample([name for name in VALUES if name != "rank"], draw.randint(2, 6))
    names += ["rank"] if "add_lora" in names else []
    asked = {name: VALUES[name] for name in names}
    chain = ag.Rewritten.identity(graph)
    for name in sorted(names, key=list(rewrite_rows()).index):
        chain = chain >> by_steps(name, VALUES[name], chain.graph)
    assert ag.rewrite(graph, **asked, verify=True) == chain
    assert in_a_file(asked) == chain
    words = [w for n, v in asked.items() for w in (f"--{n.replace('_', '-')}", json.dumps(v))]
    done = call("rewrite", "net.yaml", *words, "--details", "-o", "small.yaml")
    assert done.exit_code == 0, done.output
    assert ag.load("small.yaml") == chain.graph
    assert done.output.startswith(chain.transfer.describe())


def test_what_has_a_graph_is_rewritten_and_may_be_a_head(graph):
    half = ag.take(graph, 0.5)
    assert ag.rewrite(half, shorten={"layer2": 1}) == ag.shorten(half.graph, {"layer2": 1})
    head = nn.Sequential(nn.Flatten(), nn.Linear(12 * 16, 3))
    traced = captured(head, torch.zeros(2, 12, 4, 4))
    for value in (traced, traced.graph, ag.Rewritten.identity(traced.graph)):
        expected = ag.add_exits(graph, {"layer2": traced.graph})
        assert ag.rewrite(graph, add_exits={"layer2": value}) == expected
        expected = ag.ends_after(graph, "layer2", traced.graph)
        assert ag.rewrite(graph, ends_after={"section": "layer2", "head": value}) == expected


def test_what_is_none_or_false_asks_for_nothing(graph):
    assert ag.rewrite(graph) == ag.Rewritten.identity(graph)
    assert ag.rewrite(graph, take=None, add_step_sizes=False) == ag.Rewritten.identity(graph)


def test_positions_may_be_any_sequence(graph):
    expected = ag.take(graph, positions={"stem.out": [1, 2]})
    for positions in ([1, 2], (1, 2), range(1, 3)):
        assert ag.rewrite(graph, take={"positions": {"stem.out": positions}}) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"shortn": 1}, r"rewrite: shortn: is an unknown key.*did you mean 'shorten'\?"),
        ({"take": 3}, r"rewrite: take: is not a share; found 3"),
        ({"widen": {"stem.out": 192}}, r".*is not a factor; found 192; .*sizes: \{axis: 4\}"),
        ({"shorten": {"layer2": 0.5}}, r"rewrite: shorten\.layer2: has a wrong value; found 0\.5"),
        ({"shorten": {"layr2": 1}}, r"shorten: no such section.*did you mean 'layer2'\?"),
        ({"add_exits": {"layer2": [{"linar": 3}]}}, r"add_exits: .*did you mean 'linear'\?"),
        ({"python": {"own": True}}, r"rewrite: python\.own: is not the name of a callable"),
        ({"python": {"absent:own": True}}, "python: absent:own: cannot be imported"),
        (
            {"python": {"archgraph:cost": True}},
            "python: cost: returns Cost instead of",
        ),
    ],
)
def test_a_mistake_names_its_keyword(graph, asked, message):
    with pytest.raises(ag.ArchGraphError, match=f"^{message}"):
        ag.rewrite(graph, **asked)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (True, {}),
        ("aten.silu", {"op": "aten.silu"}),
        ({"op": "aten.silu"}, {"op": "aten.silu"}),
        ({"only": "relu"}, {"only": "relu"}),
    ],
)
def test_a_rewrite_of_the_users_is_named_in_a_file(graph, here, value, options):
    smooth = importlib.import_module("own_rewrites").smooth
    chain = ag.take(graph, 0.5) >> (lambda g: smooth(g, **options))
    chain = chain >> (lambda g: ag.train_only(g, "fc.*"))
    asked: dict[str, Any] = {
        "take": 0.5,
        "python": {"own_rewrites:smooth": value},
        "train_only": "fc.*",
    }
    assert chain.graph != ag.rewrite(graph, take=0.5, train_only="fc.*").graph
    assert ag.rewrite(graph, **asked) == chain
    assert in_a_file(asked, python=True) == chain


def test_train_only_names_what_a_rewrite_of_the_users_adds(graph):
    both = ag.rewrite(graph, train_only="*.step_size", python={"archgraph:add_step_sizes": True})
    assert both == ag.add_step_sizes(graph) >> (lambda g: ag.train_only(g, "*.step_size"))


def test_verify_reaches_a_rewrite_of_the_users(graph, here):
    asked = {"own_rewrites:smooth": {"only": "verified"}}
    ag.rewrite(graph, python=asked, verify=True)
    with pytest.raises(AssertionError):
        ag.rewrite(graph, python=asked)


def test_a_file_that_names_a_rewrite_needs_consent(here):
    with pytest.raises(
        ag.SpecError,
        match=r"family\.yaml:1: clients\[0\]\.python: own_rewrites:smooth: names Python code",
    ):
        in_a_file({"python": {"own_rewrites:smooth": True}})
    (verdict,) = verdicts(["family.yaml"])
    assert verdict.good and verdict.unseen
    assert "own_rewrites" not in sys.modules
    (verdict,) = verdicts(["family.yaml"], python=True)
    assert verdict.good and not verdict.unseen


@pytest.mark.full
def test_an_installed_rewrite_is_known_everywhere(here):
    """In a process of its own, which finds the package's metadata as it starts."""
    (here / "addon_row.py").write_text(ADDON)
    metadata = here / "addon-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: addon\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[archgraph.rewrites]\nsmooth = addon_row:ROW\n")
    family = {"archgraph": 1, "model": "net.yaml", "clients": [{"name": "a", "smooth": True}]}
    (here / "family.yaml").write_text(json.dumps(family))
    (here / "check.py").write_text(
        "import archgraph as ag\n"
        "from own_rewrites import smooth\n"
        "from archgraph.language import schema\n"
        "from archgraph.rewrites.registry import rewrite_rows\n"
        "from tests.cli.terminal import call\n"
        "graph = ag.load('net.yaml')\n"
        "assert list(rewrite_rows())[-2:] == ['smooth', 'train_only']\n"
        "assert 'smooth' in str(schema('family'))\n"
        "assert 'Use another function where' in call('help', 'smooth').output\n"
        "expected = ag.take(graph, 0.5) >> (lambda g: smooth(g, 'aten.silu'))\n"
        "assert ag.rewrite(graph, smooth='aten.silu', take=0.5) == expected\n"
        "assert ag.resolve(ag.load_family('family.yaml')).clients[0].graph == smooth(graph).graph\n"
        "words = ['--smooth', 'aten.silu', '--take', '0.5', '-o', 'small.yaml']\n"
        "assert call('rewrite', 'net.yaml', *words).exit_code == 0\n"
        "assert ag.load('small.yaml') == expected.graph\n"
    )
    root = Path(__file__).parents[2]
    code = f"import sys; sys.path[:0] = [{str(here)!r}, {str(root)!r}]; import check"
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_two_packages_with_a_rewrite_of_one_name_are_refused(monkeypatch):
    from archgraph.rewrites import registry

    class Entry:
        def load(self) -> registry.RewriteRow:
            return registry.RewriteRow("take", "mine:take", "Count", "Mine.", "1", "none")

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry()])
    with pytest.raises(ag.SpecError, match=r"take: several packages .*:take, mine:take"):
        registry.rewrite_rows.__wrapped__()


def test_help_says_that_files_may_name_rewrites():
    assert "package.module:function" in str(topic("clients.python"))
