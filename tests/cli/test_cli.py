"""The command line: what it prints and writes, its exit codes, one clear message per mistake."""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archgraph
from archgraph.budgets.amounts import MEASURES
from archgraph.cli.app import Command, Training
from archgraph.language.elsewhere import GONE
from archgraph.tables import Table, count, elided, head_length
from archgraph.viewer.document import decode_data
from tests.cli.terminal import EXPERIMENT, FAMILY, MODEL, call, refused
from tests.examples import at_most


def test_help_lists_every_command_and_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from archgraph.cli import app\n"
        "try:\n"
        "    app(['--help'])\n"
        "finally:\n"
        "    heavy = {'torch', 'numpy', 'networkx', 'matplotlib', 'rich', 'pydantic'}\n"
        "    assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = "trace show explain draw view rewrite match check run report compare study schema"
    for name in (*names.split(), "export", "strategies", "demo"):
        assert f"\n  {name} " in done.stdout
        assert call(name, "--help").exit_code == 0


def test_no_argument_and_wrong_ones():
    assert "Commands:" in call().output
    assert call("--version").output.startswith("archgraph ")
    for wrong in (["drow"], ["show"], ["draw", "x.yaml", "--detail", "all"]):
        result = call(*wrong)
        assert result.exit_code == 2
        assert "Usage:" in result.stderr


def test_show_tells_parts_and_totals(here: Path):
    output = call("show", "model.yaml").output
    for word in ("stem", "body", "head", "parameters", "MACs", "total", "4×8×8"):
        assert word in output
    assert call("show", "model.yaml", "--choose", "depth=3").output != output


def test_explain_tells_reasons_and_savings(here: Path):
    output = call("explain", "model.yaml").output
    for title in ("savings from halving", "Free axes", "Pinned axes", "Blocks: savings"):
        assert title in output
    found = json.loads(call("explain", "model.yaml", "--json").output)
    assert found["model"] == "tiny" and found["asked"] is None
    assert all(axis["free"] or axis["pin"]["remedy"] for axis in found["axes"])
    block = found["blocks"][1]["name"]
    one = json.loads(call("explain", "model.yaml", block, "--json").output)
    assert [b["name"] for b in one["blocks"]] == [block]
    more = json.loads(call("explain", "model.yaml", "--json", "--choose", "depth=3").output)
    assert len(more["blocks"]) == len(found["blocks"]) + 1
    refused(call("explain", "model.yaml", block + "x"), f"did you mean {block!r}")
    refused(call("explain", "model.yml"), "model.yml")


def test_explain_takes_graphs_and_python_models(here: Path):
    (here / "made_here.py").write_text(
        "import torch\ndef net(width):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 2))\n"
    )
    (here / "source.yaml").write_text(
        "archgraph: 1\npython: 'made_here:net'\nargs: {width: 6}\ninputs: {input: [3]}\n"
    )
    assert call("rewrite", "--python", "source.yaml", "-o", "graph.yaml").exit_code == 0
    outputs = [
        call("explain", "--python", file, "0.out").output for file in ("source.yaml", "graph.yaml")
    ]
    assert outputs[0] == outputs[1]
    assert "0.out[6]" in outputs[0] and "1.weight" in outputs[0]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [None, "body", "stem.conv.out", "*.weight"])
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_explain_fits_the_terminal(
    here: Path, monkeypatch: pytest.MonkeyPatch, columns: int, name: str | None
):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = call("explain", "model.yaml", *([name] if name else []))
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= columns


def test_names_that_do_not_fit_lose_their_middles(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"encoder.layers.encoder_layer_{i}.self_attention.heads" for i in range(12)]
    rows = tuple((name, "1.2M", "a word_that_is_far_too_long_for_its_column") for name in names)
    table = Table("", ("axis", "size", "why"), rows, frozenset({1}), short=frozenset({0}))
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= 60
    told = [line.split()[0] for line in lines if "1.2M" in line]
    assert len(set(told)) == len(names)
    assert all("…" in name and name.endswith("heads") for name in told)
    assert "…" not in lines[-1]
    assert "word_that_is_far_too_long_for_its_column" in "".join(
        word for line in lines[-2:] for word in line.split()[-1:]
    )


FIGURES = st.sampled_from(["70.56", "70.56 ± 1.25", "203.7M ± 12.5M", "12.3G ± 203.7M", "100"])
NAMES = st.lists(
    st.from_regex("[a-e]{1,9}(_[a-e]{1,9}){0,6}", fullmatch=True), min_size=1, max_size=3
)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_width_cuts_a_word(monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    labels = ("fashion_mnist_heterofl (scheme=iid, lr=0.05)", "quick (scheme=dirichlet)")
    heads = ("experiment", "strategy", *(f"figure {i} %" for i in range(8)))
    runs = Table(
        "",
        heads,
        tuple((n, "inclusivefl", *["53.06"] * 8) for n in labels),
        frozenset(range(2, 10)),
    )
    rows = (
        ("data.partition.scheme", "iid", "equal_dirichlet"),
        ("local.schedule", "[1, 2]", "–"),
    )
    for table in (runs, Table("", ("setting", *labels), rows)):
        lines = str(table).splitlines()
        assert max(map(len, lines)) <= columns
        words = {
            word
            for cells in (table.columns, *table.rows)
            for text in cells
            for word in text.split()
        }
        assert {word for line in lines for word in line.split()} - {
            "─" * len(line) for line in lines
        } <= words


@given(NAMES, st.lists(FIGURES, min_size=1, max_size=14), st.sampled_from([40, 60, 80, 120, 200]))
@at_most(12)
def test_no_width_cuts_a_figure_or_a_name(names: list[str], figures: list[str], width: int):
    heads = ("experiment", *(f"figure that is no {i}" for i in range(len(figures))))
    rows = tuple((name, *figures) for name in names)
    table = Table("Runs", heads, rows, frozenset(range(1, len(heads))), note="a note")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        lines = str(table).splitlines()
    assert max(map(len, lines)) <= width and lines[0] == "Runs" and lines[-1] == "a note"
    words = [word for line in lines for word in line.split()]
    parts = [part for row in rows for figure in row[1:] for part in figure.split(" ± ")]
    assert sorted(word for word in words if word[0].isdigit() and "." in word) == sorted(
        part for part in parts if "." in part
    )
    text = "".join(line.split()[0] for line in lines if re.match("[a-e]+_?", line))
    assert all(name in text for name in names)


@given(st.lists(st.text("ab01.", min_size=1, max_size=30), unique=True), st.integers(1, 30))
def test_shortening_keeps_to_the_width(names: list[str], width: int):
    head = head_length(tuple(names), width)
    for name in names:
        short = elided(name, width, head)
        assert len(short) <= width
        assert short == name or "…" in short


def test_show_and_explain_take_a_family(here: Path):
    shown = call("show", "family.yaml")
    assert shown.exit_code == 0, shown.stderr
    rows = [line.split()[0] for line in shown.output.splitlines()[3:6]]
    assert rows == ["global", "whole", "half"]
    assert "FILE:NAME shows one of them: global, whole, half" in shown.output
    half = call("show", "family.yaml:half").output
    assert "stem" in half and half != call("show", "model.yaml").output
    explained = call("explain", "family.yaml").output
    assert explained == call("explain", "model.yaml").output
    assert explained != call("explain", "family.yaml:half").output
    (here / "run.yaml").write_text(
        "archgraph: 1\nname: run\nfamily: family.yaml\nrounds: 1\nlocal: {lr: 0.1}\n"
        "data: {dataset: digits}\nstrategy: {fedavg: {}}\n"
    )
    assert call("show", "run.yaml").output.splitlines()[1:] == shown.output.splitlines()[1:]
    refused(call("show", "family.yaml:hal"), "found 'hal'", "did you mean 'half'?")
    refused(call("show", "model.yaml:half"), "is not a family")


def test_step_sizes_of_all_blocks_or_of_some(here: Path):
    call("rewrite", "model.yaml", "--add-step-sizes", "-o", "all.yaml")
    call("rewrite", "model.yaml", "--add-step-sizes", "body.1", "-o", "one.yaml")
    assert call("rewrite", "--add-step-sizes", "model.yaml", "-o", "first.yaml").exit_code == 0
    graph = archgraph.load("model.yaml")
    assert archgraph.load("all.yaml") == archgraph.add_step_sizes(graph).graph
    assert archgraph.load("first.yaml") == archgraph.load("all.yaml")
    assert archgraph.load("one.yaml") == archgraph.add_step_sizes(graph, ["body.1"]).graph


def test_draw_writes_by_ending_or_prints(here: Path):
    text = call("draw", "model.yaml").output
    assert text.startswith("digraph tiny {")
    result = call("draw", "model.yaml", "-o", "out/net.dot", "--detail", "node")
    assert result.output == f"wrote {Path('out/net.dot')}\n"
    assert (here / "out/net.dot").read_text() != text
    assert call("draw", "model.yaml", "-o", "net.svg").exit_code == 0
    assert b"<svg" in (here / "net.svg").read_bytes()
    refused(call("draw", "model.yaml", "-o", "net.bmp"), "net.bmp: is not a picture format")
    assert not (here / "net.bmp").exists()


def test_view_writes_a_page_of_models_and_families(here: Path):
    result = call("view", "model.yaml")
    assert result.exit_code == 0 and "wrote model.html" in result.output
    assert call("view", "family.yaml", "model.yaml", "-o", "p.html", "--title", "a").exit_code == 0
    assert "<title>a</title>" in (here / "p.html").read_text()
    sizes = []
    for member in ("half", "whole"):
        assert call("view", f"family.yaml:{member}", "model.yaml", "-o", "m.html").exit_code == 0
        sizes.append((here / "m.html").read_text())
    assert sizes[0] != sizes[1]
    assert "wrote family.html" in call("view", "family.yaml:half", "family.yaml:whole").output
    assert decode_data((here / "family.html").read_text())["pairs"]["0 1"]["exact"] == 1
    graphs = decode_data((here / "family.html").read_text())["graphs"]
    assert [graph["name"] for graph in graphs] == ["family:half", "family:whole"]
    scores = {a.name: [0.5] * a.size for a in archgraph.axes(archgraph.load("model.yaml")).free}
    archgraph.Importance(scores).save("scores.safetensors")
    assert call("view", "model.yaml", "--importance", "scores.safetensors").exit_code == 0
    graph = decode_data((here / "model.html").read_text())["graphs"][0]
    assert graph["figures"]["importance"]["whole"] == 0.5
    refused(call("view", "family.yaml:third"), "family.yaml: has no such model")
    refused(call("view", "nothing.yaml"), "nothing.yaml")
    refused(call("view", "."), "not a run folder")


def test_draw_a_family_with_its_weak_points(here: Path):
    result = call("draw", "family.yaml", "-o", "pictures")
    assert result.exit_code == 0, result.output
    names = ["client-half.svg", "client-whole.svg", "global.svg"]
    assert sorted(p.name for p in (here / "pictures").iterdir()) == names
    assert call("draw", "family.yaml", "-o", "global.dot").exit_code == 0
    assert "share of the weights" in (here / "global.dot").read_text()
    refused(call("draw", "family.yaml", "--choose", "depth=3", "-o", "m.dot"), "is a family")


def test_rewrite_makes_another_model(here: Path):
    result = call("rewrite", "model.yaml", "--take", "0.5", "-o", "small.yaml")
    assert result.exit_code == 0, result.output
    expected = archgraph.take(archgraph.load("model.yaml"), 0.5).graph
    assert archgraph.load("small.yaml") == expected
    chain = ["--skip", "body.1", "--graft", "body=3", "--take", "sizes={channels: 2}", "--verify"]
    result = call("rewrite", "model.yaml", "--choose", "depth=3", *chain, "-o", "other.yaml")
    assert result.exit_code == 0, result.output
    graph = archgraph.load("other.yaml")
    assert len(archgraph.structure(graph).sections[-1].blocks) >= 1
    told = call("rewrite", "model.yaml", "--shorten", "body=1", "--details")
    assert told.exit_code == 0 and "dropped: " in told.output


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["--widen", "1.5"], lambda g: archgraph.widen(g, 1.5)),
        (["--widen", "sizes={channels: 6}"], lambda g: archgraph.widen(g, sizes={"channels": 6})),
        (["--deepen", "body=4"], lambda g: archgraph.deepen(g, {"body": 4})),
        (["--narrow", "0.5"], lambda g: archgraph.narrow(g, 0.5)),
        (["--narrow", "sizes={channels: 3}"], lambda g: archgraph.narrow(g, sizes={"channels": 3})),
        (["--take", "channels=0.5"], lambda g: archgraph.take(g, {"channels": 0.5})),
        (["--take", "1"], lambda g: archgraph.take(g, 1)),
        (["--skip", "keep={body: [1, 0]}"], lambda g: archgraph.skip(g, keep={"body": [1, 0]})),
        (["--train-only", "head.*"], lambda g: archgraph.train_only(g, "head.*")),
        (["--add-step-sizes"], archgraph.add_step_sizes),
        (["--add-adapters", "2"], lambda g: archgraph.add_adapters(g, 2)),
        (["--add-lora", "2"], lambda g: archgraph.add_lora(g, 2)),
        (
            ["--add-lora", "4", "--rank", "3"],
            lambda g: archgraph.add_lora(g, 4) >> (lambda h: archgraph.rank(h, 3)),
        ),
        (["--add-exits", "body=10"], lambda g: archgraph.add_exits(g, {"body": 10})),
        (
            ["--take", "positions={channels: [0, 2]}"],
            lambda g: archgraph.take(g, positions={"channels": [0, 2]}),
        ),
    ],
)
def test_every_rewrite_has_an_option(here: Path, words: list[str], made):
    expected = made(archgraph.load("model.yaml"))
    result = call("rewrite", "model.yaml", *words, "--verify", "--details", "-o", "other.yaml")
    assert result.exit_code == 0, result.stderr
    assert archgraph.load("other.yaml") == expected.graph
    assert result.output.startswith(expected.transfer.describe())


def test_a_rewrite_tells_the_new_model_and_both_sizes(here: Path):
    half = call("rewrite", "model.yaml", "--take", "0.5", "-o", "half.yaml")
    table = call("show", "half.yaml").output
    assert half.output.startswith(table)
    old, new = (archgraph.cost(archgraph.load(f)) for f in ("model.yaml", "half.yaml"))
    sizes = f"{old.parameters} → {new.parameters} parameters, {count(old.macs)} → {count(new.macs)}"
    rest = half.output.removeprefix(table)
    assert rest == f"{sizes} MACs; --details lists all tensors\nwrote half.yaml\n"


def test_a_rewrite_that_cannot_be_leaves_the_old_file(here: Path):
    (here / "kept.yaml").write_text("kept")
    for wrong, words in (
        (["--skip", "body.7"], ["body.7"]),
        (["--take", "nothing=2"], ["nothing"]),
        (["--take", "two"], ["--take", "'two'", "number or a mapping"]),
        (["--take", "8"], ["--take: is not a share; found 8", "sizes: {axis: 4}"]),
        (["--shorten", "body"], ["--shorten", "'body'", "a mapping"]),
        (["--shorten", "body=0.5"], ["--shorten.body", "0.5", "an integer"]),
        (["--take", "0.0"], ["--take", "0"]),
        (["--take", "1.5"], ["--take", "1.5"]),
        (["--widen", "0.5"], ["--widen", "0.5"]),
        (["--narrow", "body=1,2"], ["--narrow"]),
        (["--deepen", "body=1"], ["body", "depth out of range"]),
    ):
        refused(call("rewrite", "model.yaml", *wrong, "-o", "kept.yaml"), *words)
        assert (here / "kept.yaml").read_text() == "kept"
    assert sorted(p.name for p in here.iterdir()) == [
        "experiment.yaml",
        "family.yaml",
        "kept.yaml",
        "model.yaml",
    ]


def test_compare_says_by_its_exit_code_whether_two_models_differ(here: Path):
    (here / "copy.yaml").write_text(MODEL)
    same = call("compare", "model.yaml", "copy.yaml")
    assert (same.exit_code, same.output) == (0, "the same architecture\n")
    call("rewrite", "model.yaml", "--take", "0.5", "-o", "small.yaml")
    other = call("compare", "model.yaml", "small.yaml")
    assert other.exit_code == 1
    assert "aligned by structure" in other.output and "narrower" in other.output
    (here / "renamed.yaml").write_text(MODEL.replace("body", "trunk"))
    renamed = call("compare", "model.yaml", "renamed.yaml")
    assert renamed.exit_code == 1
    assert renamed.output == "the same architecture, other names or order\n"


def test_compare_reads_members_of_families_through_their_transfers(here: Path):
    found = call("compare", "family.yaml:whole", "family.yaml:half")
    assert found.exit_code == 1 and "read off the transfer" in found.output
    facts = json.loads(call("compare", "family.yaml:global", "family.yaml:half", "--json").output)
    assert facts["exact"] and len(facts["blocks"]) == 4
    axes = [d for d in facts["differences"] if d["level"] == "axis"]
    assert axes and {(d["kind"], d["before"], d["after"]) for d in axes} == {("narrower", 4, 2)}
    assert call("compare", "family.yaml:half", "family.yaml:half").exit_code == 0
    refused(call("compare", "family.yaml:hlaf", "model.yaml"), "has no such model", "half")
    refused(call("compare", "model.yaml:half", "model.yaml"), "is not a family")
    # A family stands for its global model, as a run does.
    assert call("compare", "family.yaml", "model.yaml").exit_code == 0
    refused(call("compare", "family.yaml", "model.yaml", "--tiers"), "--tiers: applies to runs")
    refused(call("compare", "nothing.yaml:half", "model.yaml"), "nothing.yaml")


MODULE = """\
import pathlib, torch
pathlib.Path("imported").touch()
class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = torch.nn.Linear(3, width)
    def forward(self, x):
        return self.fc(x)
def broken():
    raise ValueError("no way")
class Branching(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
"""


def test_trace_a_module_without_preparation(here: Path):
    (here / "made_here.py").write_text(MODULE)
    target = "python:made_here:Net"
    printed = call("trace", target, "--input", "x=2,3")
    assert printed.exit_code == 0, printed.stderr
    assert "aten.linear(input=%x, weight=fc.weight" in printed.output
    files = ["-o", "net.yaml", "--weights", "net.safetensors"]
    made = call("trace", target, "--input", "x=2,3", "--arg", "width=7", *files)
    assert made.exit_code == 0, made.stderr
    graph = archgraph.load("net.yaml")
    assert graph.param["fc.weight"].shape == (7, 3)
    from safetensors.torch import load_file

    archgraph.build(graph, load_file("net.safetensors"))


def test_the_ending_of_a_file_decides_what_export_writes(here: Path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    def same(one, two):
        return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)

    made = call("export", "model.yaml", "-o", "a.safetensors")
    assert made.exit_code == 0 and "a.safetensors" in made.output
    graph = archgraph.load("model.yaml")
    fresh = load_file("a.safetensors")
    assert same(fresh, archgraph.initial_state(graph, 0))
    with safe_open("a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert call("run", "experiment.yaml", "--out", "out").exit_code == 0
    assert call("export", "out:half", "-o", "half.SafeTensors").exit_code == 0
    half = archgraph.resolve(archgraph.load_family("family.yaml")).models["half"]
    archgraph.build(half, load_file("half.SafeTensors"))
    archgraph.save(half, "half.yaml")
    again = ("export", "half.yaml", "--state", "half.SafeTensors", "-o", "again.safetensors")
    assert call(*again).exit_code == 0
    assert same(load_file("again.safetensors"), load_file("half.SafeTensors"))
    for name in ("net.pt", "net.yaml"):
        refused(call("export", "model.yaml", "-o", name), name, ".onnx", ".safetensors")
        assert not Path(name).exists()
    assert call("export", "half.yaml", "--state", "half.SafeTensors", "-o", "half").exit_code == 0
    assert same(archgraph.load("half").state, load_file("half.SafeTensors"))
    for option in ("--beside", "--optimize"):
        refused(call("export", "model.yaml", "-o", "b.safetensors", option), option, "ONNX")
    for name in ("net.onnx", "net.safetensors", "net.pt"):
        refused(call("rewrite", "model.yaml", "--take", "0.5", "-o", name), name, "a .yaml file")
        with pytest.raises(archgraph.SpecError, match=r"is written as YAML, without weights"):
            archgraph.save(graph, name)
        assert not Path(name).exists()


def test_match_writes_the_weights_in_the_order_of_the_first(here: Path):
    from safetensors.torch import load_file, save_file

    graph = archgraph.load("model.yaml")
    state = archgraph.initial_state(graph, 0)
    orders = {a.name: [*range(a.size)][::-1] for a in archgraph.axes(graph).free}
    moved = dict(archgraph.take(graph, positions=orders).transfer.pull(state))
    for name, weights in (("a", state), ("b", moved)):
        save_file({k: v.contiguous() for k, v in weights.items()}, f"{name}.safetensors")
    pair = ("model.yaml", "model.yaml", "--state", "a.safetensors", "--state", "b.safetensors")
    result = call("match", *pair, "-o", "c.safetensors")
    assert result.exit_code == 0, result.output
    assert "→ 1.000" in result.output
    for axis, order in orders.items():
        assert any(
            line.split()[:3] + line.split()[-1:] == [axis, *[str(len(order))] * 2, "1.000"]
            for line in result.output.splitlines()
        )
    written = load_file("c.safetensors")
    assert all(torch.equal(written[name], value) for name, value in state.items())
    refused(call("match", *pair, "-o", "c.pt"), "c.pt", ".safetensors")
    assert call("match", *pair).output == result.output.removesuffix("wrote c.safetensors\n")
    aligned = call("match", "model.yaml", "model.yaml")
    assert "score 1.00" in aligned.output and "similarity" not in aligned.output
    for name, successor in (("align", "match"), ("diff", "compare"), ("profile", "fit")):
        gone = call(name, "model.yaml", "model.yaml")
        assert gone.exit_code == 2 and f"archgraph {successor}" in gone.stderr


def test_each_budget_of_fit_names_its_units():
    text = " ".join(call("fit", "--help").stdout.split())
    rows = MEASURES.values()
    for row, following in zip(rows, (*list(rows)[1:], None), strict=True):
        end = f"--{following.name}" if following else "--batch"
        part = text[text.index(f"--{row.name} BUDGET") : text.index(f"{end} ")]
        assert row.text in part and row.example in part
        assert all(unit in part for unit in row.units)


@pytest.mark.parametrize(
    ("ask", "made"),
    [
        (
            "fit model.yaml --macs 50% --importance scores.safetensors",
            lambda graph, scores: archgraph.fit(graph, macs="50%", importance=scores),
        ),
        (
            "rewrite model.yaml --take shares=0.5 --take importance=scores.safetensors",
            lambda graph, scores: archgraph.take(graph, 0.5, importance=scores),
        ),
    ],
    ids=["fit", "rewrite"],
)
def test_weights_are_written_at_the_positions_that_were_chosen(here: Path, ask: str, made):
    from safetensors.torch import load_file, save_file

    graph = archgraph.load("model.yaml")
    state = archgraph.initial_state(graph, 0)
    save_file({k: v.contiguous() for k, v in state.items()}, "full.safetensors")
    # From the back, so that the best positions are not the first.
    scores = {axis.name: [*range(axis.size)] for axis in archgraph.axes(graph).free}
    archgraph.Importance(scores, {}).save("scores.safetensors")
    words = ask.split()
    hint = "add --state FILE --weights FILE"
    alone = call(*words, "-o", "small.yaml")
    assert alone.exit_code == 0 and hint in alone.output, alone.output
    files = ("--state", "full.safetensors", "--weights", "w.safetensors")
    both = call(*words, "-o", "small.yaml", *files)
    assert both.exit_code == 0 and hint not in both.output, both.output
    expected = made(graph, scores)
    assert archgraph.load("small.yaml").state_names == expected.graph.state_names
    written = load_file("w.safetensors")
    pulled = expected.transfer.pull(state)
    assert all(torch.equal(written[name], value) for name, value in pulled.items())
    first = {name: state[name][tuple(map(slice, v.shape))] for name, v in written.items()}
    assert not all(torch.equal(written[name], value) for name, value in first.items())
    refused(call(*words, "--state", "full.safetensors"), "--state: needs --weights")
    refused(call(*words, "--weights", "w.safetensors"), "--weights: needs --state")
    refused(call(*words, "--weights", "w.pt"), "--weights", ".safetensors")


def test_a_rewrite_tells_how_to_keep_positions_only_where_it_chose_some(here: Path):
    (axis, *_) = archgraph.axes(archgraph.load("model.yaml")).free
    for chosen in ("shares=0.5", f"positions={{{axis.name}: [1, 0]}}"):
        words = ("rewrite", "model.yaml", "--take", "shares=0.5", "--take", chosen)
        told = call(*words[: None if "positions" in chosen else 4], "-o", "cut.yaml").output
        assert ("at the selected positions" in told) == ("positions" in chosen)


def test_trace_says_what_cannot_be_captured(here: Path):
    (here / "made_here.py").write_text(MODULE)
    given = ["--input", "x=2,3", "-o", "net.yaml"]
    for target, words in (
        ("made_here:Net", ["is not a model", "python:package.module:callable"]),
        ("python:made_here", ["is not a model"]),
        ("python:nowhere:Net", ["error: python:nowhere:Net: cannot be imported", "nowhere"]),
        ("python:made_here:Nett", ["cannot be imported", "Nett"]),
        ("python:made_here:broken", ["cannot be constructed", "ValueError: no way"]),
        ("python:made_here:MODULE", ["cannot be imported"]),
    ):
        refused(call("trace", target, *given), *words)
    refused(call("trace", "python:made_here:Net", "--input", "x=a,b"), "x=2,3,224,224")
    twice = call("trace", "python:made_here:Net", "--input", "x=2,3", "--input", "x=2,4")
    refused(twice, "'x': is set twice, to 2,3 and 2,4")
    wrong = call("trace", "python:made_here:Net", "--input", "x=2,3:flt")
    refused(wrong, "python:made_here:Net: inputs.x.dtype: has an unknown value; found 'flt'")
    assert not (here / "net.yaml").exists()


def test_a_model_that_branches_on_its_values_is_one_message(here: Path):
    (here / "made_here.py").write_text(MODULE)
    # torch.export prints the graph so far to standard error by itself: that is not our message.
    result = call("trace", "python:made_here:Branching", "--input", "x=2,3")
    place = "error: python:made_here:Branching: "
    refused(result, place, "made_here.py:13 in forward", "branches on the values of a tensor")


def test_check_gives_a_verdict_per_file(here: Path):
    good = call("check", ".")
    assert good.exit_code == 0, good.output
    assert good.output.splitlines()[-1] == "3 of 3 files are valid"
    (here / "bad.yaml").write_text(MODEL.replace("kernel", "kernal").replace("linear", "liner"))
    (here / "broken.yaml").write_text("sections: [")
    result = call("check", ".", "model.yaml")
    assert result.exit_code == 2
    assert "FAIL  bad.yaml  model" in result.output
    assert "3 of 5 files are valid" in result.stdout
    # A reason stands below its file, also in `check > log`.
    at = result.stdout.splitlines().index("FAIL  bad.yaml  model")
    reason = result.stdout.splitlines()[at + 1]
    assert reason.startswith("      bad.yaml:") and "did you mean 'linear'?" in reason
    assert "broken.yaml:1" in result.stdout and not result.stderr
    refused(call("check", "nowhere"), "nowhere: does not exist")
    (here / "empty").mkdir()
    refused(call("check", "empty"), "empty: holds no YAML file")


def test_check_runs_no_code_unless_told(here: Path):
    (here / "made_here.py").write_text(MODULE)
    (here / "python.yaml").write_text("python: made_here:Net\ninputs: {x: [3]}\n")
    (here / "family.yaml").write_text(FAMILY.replace("model.yaml", "python.yaml"))
    result = call("check", "python.yaml", "family.yaml", "experiment.yaml")
    assert result.exit_code == 0, result.output
    assert "made_here:Net not imported" in result.output
    assert not (here / "imported").exists()
    assert call("check", "--python", "python.yaml").exit_code == 0
    assert (here / "imported").exists()


def test_check_takes_settings_as_run_does(here: Path):
    good = call("check", "experiment.yaml", "--set", "rounds=7")
    assert good.exit_code == 0 and "heterofl, 7 rounds" in good.output
    bad = call("check", "experiment.yaml", "--set", "strategy.heterofl.scaler=3")
    assert bad.exit_code == 2 and "scaler" in bad.stdout
    refused(call("check", "experiment.yaml", "--set", "local.lr=fast"), "--set local.lr")
    refused(call("check", ".", "model.yaml", "--set", "rounds=7"), "one experiment, not to 2 paths")


def test_check_finds_what_would_stop_a_run(here: Path):
    """With file and line; of Python models what their form tells, and with --python the rest."""
    (here / "made_here.py").write_text(MODULE)
    model = "python: made_here:Net\ninputs: {x: [3]}\n"

    def verdict(name: str, text: str, *options: str) -> str:
        (here / name).write_text(text)
        result = call("check", name, *options)
        first, *rest = result.stdout.splitlines()
        assert result.exit_code == (2 if first.startswith("FAIL") else 0)
        return "\n".join((first, *rest))

    unknown = EXPERIMENT.replace("digits", "digit")
    assert "m.yaml:4: data.dataset: unknown data set; found 'digit'" in verdict("m.yaml", unknown)
    for options in ("{weight: 1}", "{scaler: 3}", "{preset: none}"):
        text = verdict("m.yaml", EXPERIMENT.replace("{heterofl: {}}", f"\n  heterofl: {options}"))
        assert "m.yaml:6: strategy.heterofl." in text
    length = EXPERIMENT.replace("limit: 200", "length: 20")
    assert "m.yaml:4: data.length: is not an option of digits" in verdict("m.yaml", length)
    assert verdict("m.yaml", model).startswith("form  m.yaml  model: made_here:Net not imported")
    assert "use --python" in verdict("m.yaml", model)
    family = "model: {python: 'made_here.Net', inputs: {x: [3]}}\nclients: [{name: a}]\n"
    assert "m.yaml:1: python: is not the name of a callable" in verdict("m.yaml", family)
    family = "model: net.yaml\nclients:\n - {name: a, CHANGE}\n"
    (here / "net.yaml").write_text(model)
    for change, words in (
        ("shorten: {body: 1}", "f.yaml:3: clients[0].shorten: no such section; found 'body'"),
        ("take: {body: 0.5}", "f.yaml:3: clients[0].take: no such axis; found 'body'"),
    ):
        text = family.replace("CHANGE", change)
        assert words in verdict("f.yaml", text, "--python")
        assert verdict("f.yaml", text).startswith("form  f.yaml")
    for old, new, words in (
        (
            "x:",
            "image:",
            "m.yaml:2: inputs: does not fit forward: missing a required argument: 'x'",
        ),
        (
            "[3]}",
            "[3]}\nsections: {a: [fc], b: [cf]}",
            "m.yaml:3: sections: section b: no such block",
        ),
        ("[3]", "[5]", "m.yaml:1: python: "),
    ):
        assert words in verdict("m.yaml", model.replace(old, new), "--python")


FLAT = """\
archgraph: 1
inputs: {image: [1, 8, 8]}
sections:
  - {name: stem, steps: [conv: 4, relu, conv: {out: 4, as: a}]}
  - {name: head, steps: [global_avg_pool, flatten, {linear: {out: 10, as: b}}]}
"""


WORDS = """\
archgraph: 1
inputs: {ids: {shape: [64], dtype: int64}}
sections:
  - {name: body, steps: [embedding: {count: 10, width: 4}, linear: 10]}
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("model", "experiment", "words"),
    [
        (
            FLAT,
            "digits -> mnist",
            "new.yaml:3: family: model: the model's inputs do not fit the data; found "
            "float32[batch, 1, 28",
        ),
        (
            FLAT.replace("out: 10", "out: 7"),
            "",
            "output does not fit classification; found [batch, 7]; expected [batch, 10]",
        ),
        (
            FLAT.replace("global_avg_pool, flatten, {linear: {out: 10, as: b}}", "{linear: 10}"),
            "",
            "linear: works on the last axis, which is a spatial one here; found [4, 8, 8]: "
            "channels, then sizes; expected flatten",
        ),
        (FLAT + "outputs: [a, b]\n", "", "the model's outputs contain no logits; found 0, 1"),
        (FLAT, "heterofl -> fedavg", "FedAvg averages one architecture"),
        (FLAT, "scheme: iid -> scheme: iid, shares: {hal: 0.5}", "hal"),
        (FLAT, "scheme: iid -> scheme: classes, per_client: 11", "per_client"),
        (FLAT, "rounds: 2 -> rounds: 2\nsample: 9", "sample: more clients in a round than the"),
        (
            FLAT,
            "rounds: 2 -> rounds: 2\nevaluate: {statistics: 50}",
            "evaluate.statistics: changes nothing: no model is tested with recomputed",
        ),
        (
            WORDS.replace("linear: 10", "linear: 33278"),
            "digits -> wikitext2",
            "the model's embedding has too few rows for the vocabulary; found token 33277",
        ),
        (
            WORDS.replace("count: 10", "count: 33278"),
            "digits -> wikitext2",
            "does not fit next_token; found [batch, 64, 10]; expected [batch, 64, 33278]",
        ),
    ],
)
def test_check_refuses_what_run_refuses_before_its_first_round(
    here: Path, monkeypatch: pytest.MonkeyPatch, model: str, experiment: str, words: str
):
    """Without data: the words of check are those of run, where run has the data."""
    monkeypatch.delenv("ARCHGRAPH_DATA", raising=False)
    old, _, new = experiment.partition(" -> ")
    (here / "model.yaml").write_text(model)
    (here / "new.yaml").write_text(EXPERIMENT.replace(old, new) if old else EXPERIMENT)
    checked = call("check", "new.yaml")
    assert checked.exit_code == 2 and words in checked.stdout, checked.stdout
    if "digits ->" not in experiment:
        refused(call("run", "new.yaml", "--out", "out"), words)
        assert not (here / "out").exists()


def test_run_resume_and_report(here: Path):
    result = call("run", "experiment.yaml", "--out", "first", "--set", "rounds=1")
    assert result.exit_code == 0, result.output + result.stderr
    assert "half" in result.output and "first: 1 round;" in result.output
    lines = (here / "first/metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1
    refused(
        call("run", "experiment.yaml", "--out", "first"),
        "not empty; found a run; resume it (--resume), replace it (--overwrite), or choose",
    )
    both = call("run", "experiment.yaml", "--out", "first", "--resume", "--overwrite")
    refused(both, "either resumed or overwritten")
    other = call("run", "experiment.yaml", "--out", "first", "--resume", "--set", "seed=9")
    refused(other, "another experiment")
    refused(call("run", "experiment.yaml", "--out", "none", "--resume"), "no run to resume")
    again = call("run", "experiment.yaml", "--out", "first", "--set", "rounds=1", "--resume")
    assert again.exit_code == 0, again.stderr
    assert (here / "first/metrics.jsonl").read_text().splitlines() == lines
    more = call("run", "experiment.yaml", "--out", "first", "--set", "rounds=2", "--resume")
    assert more.exit_code == 0, more.stderr
    assert "resumes after round 1\nround 2 of 2: " in more.stderr
    assert "from round 2, rounds: 2 instead of 1" in " ".join(more.output.split())
    assert len((here / "first/metrics.jsonl").read_text().splitlines()) == 2
    page = call("report", "first", "-o", "page.html")
    assert page.exit_code == 0, page.stderr
    assert "accuracy" in page.output and (here / "page.html").stat().st_size > 10_000
    refused(call("report", "none"), "none: not a run folder")
    assert call("view", "first", "-o", "run.html").exit_code == 0
    graphs = decode_data((here / "run.html").read_text())["graphs"]
    # Clients of HeteroFL have their parts of the global model.
    assert {g["name"] for g in graphs} == {"quick", "whole", "half"}


def test_a_command_that_is_gone_names_what_does_its_work() -> None:
    for name in ("matrix", "references"):
        told = call(name, "model.yaml")
        assert told.exit_code == 2
        assert f"No such command '{name}'; {GONE[name]}" in " ".join(told.stderr.split())


def test_run_overwrites_a_run_and_nothing_else(here: Path):
    one = ("run", "experiment.yaml", "--set", "rounds=1", "--out")
    assert call(*one, "first").exit_code == 0
    mine = ("notes.txt", "models/net.pt", "checkpoints/best.pt")
    for name in mine:
        (here / "first" / name).write_text("mine")
    again = call("run", "experiment.yaml", "--set", "rounds=2", "--out", "first", "--overwrite")
    assert again.exit_code == 0, again.stderr
    assert len((here / "first/metrics.jsonl").read_text().splitlines()) == 2
    assert all((here / "first" / name).read_text() == "mine" for name in mine)
    (here / "other").mkdir()
    (here / "other/run.yaml").write_text("mine")
    refused(call(*one, "other", "--overwrite"), "not empty; found files, but not a run; choose")
    before = (here / "first/metrics.jsonl").read_text()
    wrong = call(
        "run", "experiment.yaml", "--set", "strategy.fedavg.norm=x", "--out", "first", "--overwrite"
    )
    assert wrong.exit_code == 2, wrong.output
    assert (here / "first/metrics.jsonl").read_text() == before


def test_run_that_diverges_says_who_and_fails(here: Path):
    wild = call(
        "run", "experiment.yaml", "--set", "local.lr=1e30", "--set", "rounds=2", "--out", "w"
    )
    assert wild.exit_code == 1, wild.output
    assert "updates rejected: client " in wild.stderr and "rounds 1–2" in wild.stderr
    assert "training has diverged" in wild.output


def test_settings_are_checked_like_the_file(here: Path):
    for wrong, words in (
        ("local.lr=fast", ["local.lr", "'fast'"]),
        ("local.epoch=1", ["'epoch'", "did you mean 'epochs'?"]),
        ("rounds=0", ["rounds", "0"]),
        ("rounds", ["'rounds'", "key=value"]),
        ("name.first=1", ["--set name.first", "cannot be set"]),
        ("family.name=x", ["--set family.name", "cannot be set"]),
        ("local={", ["is not a value"]),
        ("strategy.heterofl.weight=1", ["weight", "did you mean"]),
    ):
        refused(call("run", "experiment.yaml", "--out", "run", "--set", wrong), *words)
    twice = ("--set", "local.lr=0.1", "--set", "local.lr=0.2")
    refused(call("run", "experiment.yaml", "--out", "run", *twice), "'local.lr': is set twice")
    refused(call("show", "model.yaml", "--choose", "depth=3", "--choose", "depth=2"), "set twice")
    assert not (here / "run").exists()


def test_a_missing_or_unreadable_file_is_named(here: Path):
    (here / "binary.yaml").write_bytes(bytes(range(256)))
    (here / "deep.yaml").write_text("[" * 5000)
    for name in ("nowhere.yaml", ".", "binary.yaml", "deep.yaml"):
        refused(call("show", name), name)
    refused(call("run", "nowhere.yaml"), "nowhere.yaml")


def test_debug_shows_where_an_error_was_raised(here: Path):
    for args in (["--debug", "show", "nowhere.yaml"], ["show", "nowhere.yaml", "--debug"]):
        result = call(*args)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr and "error: " in result.stderr


def test_schema_is_json(here: Path):
    for kind in ("model", "family", "experiment"):
        assert "properties" in str(json.loads(call("schema", kind).output))
    assert call("schema", "model", "-o", "s/model.json").output == f"wrote {Path('s/model.json')}\n"
    assert json.loads((here / "s/model.json").read_text())
    assert call("schema", "models").exit_code == 2


@pytest.mark.full
def test_a_reader_that_has_enough_is_no_error(here: Path):
    command = f"{sys.executable} -m archgraph draw model.yaml --detail node | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("digraph tiny {\n", "", 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_can_go_on(here: Path, number: signal.Signals):
    command = [sys.executable, "-m", "archgraph", "run", "experiment.yaml", "--out", "run"]
    command += ["--set", "rounds=1000"]
    # A test run in the background may have inherited an ignored SIGINT: the command must not.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        for _ in range(1800):
            metrics = here / "run/metrics.jsonl"
            if process.poll() is not None or (metrics.exists() and metrics.read_text()):
                break
            time.sleep(0.1)
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=120)
    done = len((here / "run/metrics.jsonl").read_text().splitlines())
    assert 0 < done < 1000
    again = "archgraph run experiment.yaml --out run --set rounds=1000 --resume"
    until = r"(?:saved through round (\d+)|no round is saved yet)"
    saved = re.search(rf"^stopped; {until}; resume with `{again}`\n\Z", said, re.M)
    assert process.returncode == 130
    assert saved is not None and int(saved[1] or 0) in (done - 1, done), said
    assert not list((here / "run").rglob(".draft-*"))
    # Only what decides numbers makes an experiment another one; more rounds do not.
    refused(call("run", "experiment.yaml", "--out", "run", "--resume"), "started with more rounds")
    other = ("--set", "rounds=1000", "--set", "seed=9")
    refused(call("run", "experiment.yaml", "--out", "run", "--resume", *other), "another experim")


@pytest.mark.full
@pytest.mark.slow
def test_the_demo_goes_the_whole_way(here: Path):
    result = call("demo", "--out", "shown", "--rounds", "1")
    assert result.exit_code == 0, result.output + result.stderr
    for part in ("residual", "network"):
        made = {p.name for p in (here / "shown" / part).iterdir()}
        assert {"pictures", "run", "report.html"} <= made
        assert (here / "shown" / part / "pictures/global.png").read_bytes().startswith(b"\x89PNG")
    assert "outputs differ by 0.0e+00" in result.output
    assert "report.html" in result.output
    again = call("check", "shown/specs")
    assert again.exit_code == 0, again.output


def test_help_explains_a_word_of_the_files():
    text = call("help", "conv").output
    assert text.startswith("conv (steps)") and "kernel" in text and "Example:" in text
    every = call("help").output
    assert {"conv", "take", "shorten", "local"} <= {
        line.split()[0] for line in every.splitlines() if line.startswith("  ")
    }
    refused(call("help", "connv"), "did you mean", "conv")
    strategy = call("help", "fedfa").output
    assert "percentile" in strategy and "Fraction of a layer's weights" in strategy
    assert "fedfa" in every


@pytest.mark.parametrize("kind", [Command, Training])
def test_a_command_collects_cycles_as_its_kind_says(kind: type[Command]) -> None:
    seen: list[tuple[int, int, int]] = []
    before = gc.get_threshold()
    kind("name", callback=lambda: seen.append(gc.get_threshold())).main([], standalone_mode=False)
    assert seen == [kind.thresholds] and gc.get_threshold() == before
    assert (Training.thresholds, Command.thresholds[0]) == (before, 1_000_000)
