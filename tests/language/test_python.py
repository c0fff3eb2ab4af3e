"""Models written in Python: arguments as YAML writes them, or made by another callable."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.errors import SpecError
from archgraph.federation import configure
from archgraph.hints import EXTRAS
from archgraph.studies import load_study
from archgraph.studies.outcomes import Paired
from archgraph.studies.trivial_models import Labelled, softmax_regression

MODULE = """\
import torch
class Config:
    def __init__(self, width, activation=None):
        self.width, self.activation = width, activation
class Net(torch.nn.Module):
    def __init__(self, config, sizes=(3,)):
        super().__init__()
        self.fc = torch.nn.Linear(sizes[0], config.width)
        self.activation = config.activation or torch.nn.ReLU()
    def forward(self, x):
        return self.activation(self.fc(x))
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consent: None):
    """A function from arguments in YAML to the graph of the model above."""
    (tmp_path / "configured.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "configured", raising=False)

    def make(args: str, python: str = "configured:Net") -> ag.ArchGraph:
        file = tmp_path / "net.yaml"
        file.write_text(f"python: {python}\ninputs: {{x: [3]}}\nargs: {args}\n")
        return ag.load(file)

    return make


def test_an_argument_may_be_made_in_python(net):
    graph = net("{config: {python: 'configured:Config', args: {width: 5}}}")
    assert graph.param["fc.weight"].shape == (5, 3)
    assert graph.nodes[-1].op == "aten.relu"


def test_arguments_are_made_at_any_depth(net):
    act = "{python: 'torch.nn:LeakyReLU', args: {negative_slope: 0.5}}"
    graph = net(
        f"{{config: {{python: 'configured:Config', args: {{width: 2, activation: {act}}}}}}}"
    )
    assert dict(graph.nodes[-1].args)["negative_slope"] == 0.5


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("{config: {python: 'configured:Confg', args: {width: 5}}}", "cannot be imported.*Confg"),
        ("{config: {python: 'configured:Config'}}", "cannot be constructed.*TypeError.*width"),
        (
            "{config: {python: 'configured:Config', arg: {width: 5}}}",
            "is an unknown key; found 'arg'",
        ),
        ("{config: {python: configured}}", "is not the name of a callable"),
        ("{config: 3}", "cannot be constructed.*'int'"),
    ],
)
def test_mistakes_in_arguments_name_the_line(net, args: str, words: str):
    with pytest.raises(SpecError, match=rf"net\.yaml:\d: (python|args\.config\.\w+): {words}"):
        net(args)


def test_a_module_that_breaks_while_it_is_imported_is_one_message(net, tmp_path: Path):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no such operator')\n")
    with pytest.raises(SpecError, match="cannot be imported; found RuntimeError: no such operator"):
        net("{}", "broken_module:Net")


LATE = """\
try:
    {}
except Exception as error:
    raise ModuleNotFoundError("Could not import module 'Net'") from error
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "operator torchvision::nms does not exist; this torchvision was built for another",
        ),
        ("raise OSError('libcudart.so: cannot open shared object file')", "install both again"),
        (
            "raise ModuleNotFoundError('No module named torch_geometric', name='torch_geometric')",
            r"No module named torch_geometric; pip install 'archgraph-torch\[hypernet\]'",
        ),
        ("import a_package_that_nobody_has", "nobody_has'; install it, or run archgraph in"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "behind another error"])
def test_what_cannot_be_imported_says_why_and_what_to_do(net, tmp_path: Path, line, words, late):
    name = f"needs_{abs(hash((line, late)))}"
    (tmp_path / f"{name}.py").write_text(LATE.format(line) if late else line)
    words = words.replace("; ", r".*; ")  # between them, the line of the module
    with pytest.raises(SpecError, match=f"cannot be imported; found .*{words}"):
        net("{}", f"{name}:Net")


def test_modules_of_extras_are_those_of_the_project():
    file = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
    listed = {
        re.split(r"[<>=\[]", package)[0].replace("-", "_"): name
        for name, packages in extras.items()
        if name not in ("dev", "docs")
        for package in packages
    }
    # flwr[simulation] brings ray
    assert EXTRAS.items() <= (listed | {"ray": "flower"}).items()


@pytest.mark.parametrize("use", ["match", "interval", "softmax regression"])
def test_what_needs_scipy_names_its_extra(monkeypatch, use: str):
    for part in ("optimize", "special", "stats"):
        monkeypatch.setitem(sys.modules, f"scipy.{part}", None)
    net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    graph, state = ag.trace(net, torch.zeros(2, 3))
    table = Labelled(torch.zeros(4, 3), torch.arange(4) % 2)
    needed: dict[str, Callable[[], object]] = {
        "match": lambda: ag.match(graph, state, state),
        "interval": lambda: Paired((1.0, 2.0)).interval,
        "softmax regression": lambda: [*softmax_regression(table, table.inputs, 2, (1.0,))],
    }
    with pytest.raises(ag.ArchGraphError, match=r"needs the package scipy; .*\[stats\]"):
        needed[use]()


def test_strategies_and_studies_refuse_at_the_door(monkeypatch, tmp_path: Path):
    study = Path(__file__).parents[2] / "specs/studies/recipfl_table3.yaml"
    monkeypatch.setitem(sys.modules, "scipy", None)
    for call in (lambda: configure("matched"), lambda: load_study(study)):
        with pytest.raises(ag.SpecError, match=r"needs the package scipy; .*\[stats\]"):
            call()


def test_an_example_input_is_bounded(net, tmp_path: Path):
    net("{config: {python: 'configured:Config', args: {width: 5}}}")
    file = tmp_path / "huge.yaml"
    args = "{config: {python: 'configured:Config', args: {width: 5}}}"
    file.write_text(f"python: configured:Net\ninputs: {{x: [100000, 100000]}}\nargs: {args}\n")
    with pytest.raises(SpecError, match="is too large an example; found 10,000,000,000"):
        ag.load(file)
