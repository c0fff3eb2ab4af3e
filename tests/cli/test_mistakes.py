"""Typical mistakes of a newcomer, from the first model file to a resumed run.

A row is what is typed and what the files say, and the whole message: where, what was found, what
was expected, what to do.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest

from archgraph.hints import listed
from tests.cli.terminal import EXPERIMENT, FAMILY, MODEL, call, refused


class Mistake(NamedTuple):
    """What the files say instead of the right thing, what is typed, what is answered."""

    files: dict[str, str]
    typed: str
    said: str


NET = """\
archgraph: 1
name: net
inputs: {x: [2]}
sections:
  - {name: body, steps: [linear: 6, relu]}
  - {name: head, steps: [linear: 3]}
"""
OWN = """\
archgraph: 1
name: own
family: {model: net.yaml, clients: [{name: all, count: 2}]}
strategy: {fedavg: {}}
rounds: 1
local: {lr: 0.1}
data: DATA
"""
TABLE = "a,b,y\n" + "".join(f"{i / 7:.2f},{-i},{i % 3}\n" for i in range(30))
PYTHON = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, width), torch.nn.Linear(width, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())


def odd():
    return {"train": 3}


def words():
    split = torch.zeros(9, 2), ["cat"] * 9
    return split, split


def unequal():
    return (torch.zeros(9, 2), torch.zeros(8)), (torch.zeros(9, 2), torch.zeros(9))
"""


def model(old: str, new: str) -> dict[str, str]:
    return {"model.yaml": changed(MODEL, old, new)}


def family(old: str, new: str) -> dict[str, str]:
    return {"family.yaml": changed(FAMILY, old, new)}


def experiment(old: str, new: str) -> dict[str, str]:
    return {"experiment.yaml": changed(EXPERIMENT, old, new)}


def own(data: str, net: str = NET, table: str = TABLE, more: str = "") -> dict[str, str]:
    """An experiment on one's own data."""
    text = OWN.replace("DATA", data) + more
    return {"experiment.yaml": text, "net.yaml": net, "rows.csv": table, "made_here.py": PYTHON}


def python_model(name: str, inputs: str) -> dict[str, str]:
    text = f"archgraph: 1\npython: {name!r}\ninputs: {inputs}\n"
    return {"net.yaml": text, "made_here.py": PYTHON}


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


# Packages beside this one may bring more.
STRATEGIES = listed(sorted(one.name for one in entry_points(group="archgraph.strategies")), most=20)
RUN = "run experiment.yaml --out out"
ROWS = "{table: rows.csv, target: y}"

MISTAKES = {
    # -- a model
    "a misspelt step": Mistake(
        model("relu", "rlu"),
        "show model.yaml",
        "model.yaml:11: sections[0].steps[1]: is an unknown operator; found 'rlu'; expected a"
        " step, a block of this model, or an ATen operator (aten.…); did you mean 'relu'?",
    ),
    "torch's name of a step": Mistake(
        model("conv:", "Conv2d:"),
        "show model.yaml",
        "model.yaml:11: sections[0].steps[0]: is an unknown operator; found 'Conv2d'; "
        "expected a step, a block of this model, or an ATen operator (aten.…); it is 'conv' "
        "here",
    ),
    "torch's name of an option": Mistake(
        model("conv: {out: 4}", "conv: {out: 4, kernel_size: 3}"),
        "show model.yaml",
        "model.yaml:11: sections[0].steps[0].conv.kernel_size: is an unknown key; found "
        "'kernel_size'; expected one of from, as, name, out, kernel, stride, padding, "
        "dilation, groups, bias; it is 'kernel' here",
    ),
    "a misspelt key of the file": Mistake(
        model("sections:", "section:"),
        "show model.yaml",
        "model.yaml:10: section: is an unknown key; found 'section'; expected one of "
        "archgraph, name, inputs, open, params, blocks, sections, outputs, choices; did you mean "
        "'sections'?",
    ),
    "a misspelt parameter of a block": Mistake(
        model("width: 4}", "wdith: 4}"),
        "show model.yaml",
        "model.yaml:12: sections[1].wdith: is neither a section's key nor a parameter of "
        "block 'residual'; found 'wdith'; expected one of block, depth, first, name, stride, "
        "width; did you mean 'width'?",
    ),
    "a list that is not aligned": Mistake(
        model("  - {name: body", "- {name: body"),
        "show model.yaml",
        "model.yaml:12: is not YAML; expected key; align the keys of a mapping, "
        "or the dashes of a list, in one column",
    ),
    "a tab": Mistake(
        model("  residual", "\tresidual"),
        "show model.yaml",
        "model.yaml:6: is not YAML; found character '\\t' that cannot start any token; indent "
        "with spaces, not with tabs",
    ),
    "a bracket that stays open": Mistake(
        model("[1, 8, 8]", "[1, 8, 8"),
        "show model.yaml",
        "model.yaml:3: is not YAML; expected ',' or ']'; close every bracket, "
        "and put commas between items",
    ),
    "a choice that there is not": Mistake(
        {},
        "show model.yaml --choose depth=9",
        "model.yaml:14: choices.depth: is not a candidate of 'depth'; found 9; expected one "
        "of 1, 2, 3",
    ),
    "a model written with a point": Mistake(
        python_model("made_here.Net", "{x: [2]}"),
        "--python show net.yaml",
        "net.yaml:2: python: is not the name of a callable; found 'made_here.Net'; expected "
        "package.module:callable",
    ),
    "Python code without consent": Mistake(
        python_model("made_here:Net", "{x: [2]}"),
        "show net.yaml",
        "net.yaml:2: python: names Python code, which is not run without your consent; found "
        "made_here:Net; if you trust it: --python at the command line, python=True in Python",
    ),
    "an input by another name": Mistake(
        python_model("made_here:Net", "{image: [2]}"),
        "--python show net.yaml",
        "net.yaml:3: inputs: does not fit forward: missing a required argument: 'x'; found "
        "image; expected the names of its arguments, forward(x)",
    ),
    "an input of another shape": Mistake(
        python_model("made_here:Net", "{x: [5]}"),
        "--python show net.yaml",
        "net.yaml:2: python: made_here.py:10 in forward: Net cannot be captured: a and b must"
        " have same reduction dim, but got [s77, 5] X [2, 4].; found return "
        "self.b(self.a(x).relu()); pass example inputs that forward accepts without tracing",
    ),
    "a model of the hub": Mistake(
        python_model(
            "transformers:BertModel.from_pretrained",
            "{x: [2]}\nargs: {pretrained_model_name_or_path: bert-base-uncased}",
        ),
        "show net.yaml",
        "net.yaml:4: args.pretrained_model_name_or_path: names a folder that does not exist; "
        "found bert-base-uncased; expected a folder of this machine, absolute or relative to "
        "this file; nothing is downloaded",
    ),
    "an axis that there is not": Mistake(
        {},
        "rewrite model.yaml --take bodyy=0.5",
        "--take: no such axis; found 'bodyy'; expected one of stem.conv.out",
    ),
    # -- a family
    "a family instead of an experiment": Mistake(
        {},
        "run family.yaml",
        "family.yaml:1: is a family, not an experiment; write an experiment file with the key "
        "family: family.yaml",
    ),
    "a model instead of an experiment": Mistake(
        {},
        "run model.yaml",
        "model.yaml:1: is a model, not an experiment; write an experiment file with the key "
        "family: {model: model.yaml, clients: [{name: all, count: 4}]}",
    ),
    "a model file that is not there": Mistake(
        family("model.yaml", "modle.yaml"),
        RUN,
        "family.yaml:3: model: names a file that does not exist; found modle.yaml; expected a "
        "file of this machine, absolute or relative to this file",
    ),
    "a share in percent": Mistake(
        family("0.5", "50"),
        RUN,
        "family.yaml:6: clients[1].take: is not a share; found 50; expected a number in (0, "
        "1]; to set numbers of positions, write sizes: {axis: 4}",
    ),
    "more blocks than there are": Mistake(
        family("take: 0.5", "shorten: {body: 5}"),
        RUN,
        "family.yaml:6: clients[1].shorten: body: depth out of range; found 5; expected 1 to 2",
    ),
    "two tiers of one name": Mistake(
        family("name: half", "name: whole"),
        RUN,
        "family.yaml:6: clients[1].name: has two kinds of client with the same name, as on line 5; "
        "found "
        "'whole'; give each its own name; for more clients of one kind write count: 2",
    ),
    "a tier without clients": Mistake(
        family("count: 3", "count: 0"),
        RUN,
        "family.yaml:6: clients[1].count: has a wrong value; found 0; expected 1 or more",
    ),
    # -- a strategy and its training
    "a misspelt strategy": Mistake(
        experiment("heterofl", "hetrofl"),
        RUN,
        "experiment.yaml:5: strategy: unknown strategy; found 'hetrofl'; expected one of "
        f"{STRATEGIES}; did you mean 'heterofl'?",
    ),
    "a misspelt strategy without braces": Mistake(
        experiment("{heterofl: {}}", "hetrofl"),
        RUN,
        "experiment.yaml:5: strategy: unknown strategy; found 'hetrofl'; expected one of "
        f"{STRATEGIES}; did you mean 'heterofl'?",
    ),
    "no strategy": Mistake(
        experiment("strategy: {heterofl: {}}\n", ""),
        RUN,
        "experiment.yaml:1: lacks the key 'strategy'; expected strategy: name of a strategy, "
        "e.g. fedavg",
    ),
    "FedAvg on two architectures": Mistake(
        experiment("heterofl", "fedavg"),
        RUN,
        "experiment.yaml:5: strategy: client 1 (half): FedAvg averages one architecture; "
        "give all clients the global model, or use heterofl or fedfa",
    ),
    "an option of no strategy": Mistake(
        experiment("heterofl: {}", "heterofl: {scalar: true}"),
        RUN,
        "experiment.yaml:5: strategy.heterofl.scalar: unknown option; found 'scalar'; "
        "expected one of mode, rates, scaler, mask_absent, label_rows, weights, norm, private; "
        "did you mean 'scaler'?",
    ),
    "torch's name of a setting": Mistake(
        experiment("lr: 0.1", "learning_rate: 0.1"),
        RUN,
        "experiment.yaml:7: local.learning_rate: is an unknown key; found 'learning_rate'; "
        "expected one of epochs, batch, accumulate, optimiser, lr, momentum, weight_decay, "
        "schedule, over, clip, fraction, loss, proximal, transforms, "
        "precision; it is 'lr' here",
    ),
    "a decimal comma": Mistake(
        experiment("lr: 0.1", "lr: 0,1"),
        RUN,
        "experiment.yaml:7: local.1: is an unknown key; found '1'; expected one of epochs, batch, "
        "accumulate, optimiser, lr, momentum, weight_decay, schedule, over, clip, "
        "fraction, loss, proximal, transforms, precision; write numbers with a "
        "point, not with a comma",
    ),
    "a number in words": Mistake(
        experiment("rounds: 2", "rounds: two"),
        RUN,
        "experiment.yaml:6: rounds: has a wrong value; found 'two'; expected an integer",
    ),
    "more clients than there are": Mistake(
        experiment("rounds: 2", "rounds: 2\nsample: 9"),
        RUN,
        "experiment.yaml:7: sample: more clients in a round than the family has; found 9; expected"
        " 1...4, or a fraction with a decimal point",
    ),
    "a misspelt task": Mistake(
        experiment("rounds: 2", "rounds: 2\ntask: clasification"),
        RUN,
        "experiment.yaml:7: task: has an unknown value; found 'clasification'; expected one "
        "of classification, multilabel, regression, segmentation, next_token; did you mean "
        "'classification'?",
    ),
    # -- data, and the model that learns from it
    "a misspelt data set": Mistake(
        experiment("digits", "cifar-10"),
        RUN,
        "experiment.yaml:4: data.dataset: unknown data set; found 'cifar-10'; expected one of"
        " cifar10, cifar100, digits, fashion_mnist, kmnist, mnist, mnli, multinli, sick, snli, "
        "wikitext2; it is 'cifar10' here",
    ),
    "a data set that is not there": Mistake(
        experiment("digits", "cifar10"),
        RUN,
        "experiment.yaml:4: data: cifar10: the data folder is not set; expected the folder "
        "that holds cifar-10-batches-py/ or cifar10/ or CIFAR10/ or "
        "cifar10/cifar-10-batches-py/; set data.root or the environment variable "
        "ARCHGRAPH_DATA; `digits` needs no files",
    ),
    "a scheme that there is not": Mistake(
        experiment("scheme: iid", "scheme: non-iid"),
        RUN,
        "experiment.yaml:4: data.partition: has an unknown value; found 'non-iid'; expected "
        "one of iid, dirichlet, equal_dirichlet, classes, whole; did you mean 'iid'?",
    ),
    "no classifier at the end": Mistake(
        {
            **model("global_avg_pool, flatten, ", "permute: [0, 2, 3, 1], "),
            **experiment("heterofl", "fedavg"),
            **family("take: 0.5", "model: model.yaml"),
        },
        RUN,
        "experiment.yaml:3: family: tiny: the model's output does not fit classification; "
        "found [batch, 8, 8, 10]; expected [batch, 10]: a logit for each of 10 classes "
        "(digits); flatten or pool in front of the classifier",
    ),
    "another number of classes": Mistake(
        model("out: 10", "out: 7"),
        RUN,
        "experiment.yaml:3: family: tiny: the model's output does not fit classification; "
        "found [batch, 7]; expected [batch, 10]: a logit for each of 10 classes (digits)",
    ),
    "images of another size": Mistake(
        {**own("{dataset: digits}", MODEL.replace("[1, 8, 8]", "[3, 32, 32]"))},
        RUN,
        "experiment.yaml:3: family: tiny: the model's inputs do not fit the data; found "
        "float32[batch, 1, 8, 8] (digits); expected float32[batch, 3, 32, 32]; a model of "
        "this data takes inputs [1, 8, 8] for each example",
    ),
    "a batch axis among the inputs": Mistake(
        {**own("{dataset: digits}", MODEL.replace("[1, 8, 8]", "[32, 1, 8, 8]"))},
        RUN,
        "experiment.yaml:3: family: tiny: the model's inputs do not fit the data; "
        "found float32[batch, 1, 8, 8] (digits); "
        "expected float32[batch, 32, 1, 8, 8]; write the model's inputs "
        "without the batch axis: [1, 8, 8]",
    ),
    "a table that is not there": Mistake(
        own("{table: row.csv, target: y}"),
        RUN,
        "experiment.yaml:7: data.table: names a file that does not exist; found row.csv; "
        "expected a file of this machine, absolute or relative to this file",
    ),
    "a column that there is not": Mistake(
        own("{table: rows.csv, target: label}"),
        RUN,
        "experiment.yaml:7: data.target: there is no such column; found 'label'; "
        "expected one of a, b, y",
    ),
    "a cell that is not a number": Mistake(
        own(ROWS, table=TABLE.replace("0.14,", "n/a?,")),
        RUN,
        "experiment.yaml:7: data: rows.csv: row 2: a: is not a number; found 'n/a?'; expected a "
        "number, such as -1.5 or 2e3; for a column of categories, write columns: {a: "
        "category}",
    ),
    "more columns than the model takes": Mistake(
        own(ROWS, NET.replace("[2]", "[5]")),
        RUN,
        "experiment.yaml:3: family: net: the model's inputs do not fit the data; found "
        "float32[batch, 2] (rows); expected float32[batch, 5]; a model for "
        "this data takes inputs [2]"
        " for each example",
    ),
    "numbers for a model of classes": Mistake(
        own(ROWS, more="task: regression\n"),
        RUN,
        "experiment.yaml:3: family: net: the model's output does not fit regression; found "
        "[batch, 3]; expected [batch, 1] or [batch]: numbers (rows)",
    ),
    "a folder that is not there": Mistake(
        own("{folder: images}"),
        RUN,
        "experiment.yaml:7: data.folder: names a folder that does not exist; found images; "
        "expected a folder of this machine, absolute or relative to this file; nothing is "
        "downloaded",
    ),
    "a set of the hub": Mistake(
        own("{huggingface: imdb, inputs: text, target: label}"),
        RUN,
        "experiment.yaml:7: data.huggingface: names a folder that does not exist; found imdb; "
        "expected a folder of this machine, absolute or relative to this file; nothing is "
        "downloaded",
    ),
    "a function that returns something else": Mistake(
        own("{python: 'made_here:odd'}"),
        "--python " + RUN,
        "experiment.yaml:7: data.python: made_here:odd: is not a data set; found dict; "
        "expected (train, test), each a torch dataset or a pair (inputs, targets) of tensors,"
        " or train as a mapping of clients to such",
    ),
    "one class alone": Mistake(
        own("{python: 'made_here:words'}", more="task: classification\n"),
        "--python " + RUN,
        "experiment.yaml:7: data.python: made_here:words: train: all targets are the same class; "
        "found class cat",
    ),
    "fewer targets than inputs": Mistake(
        own("{python: 'made_here:unequal'}"),
        "--python " + RUN,
        "experiment.yaml:7: data.python: made_here:unequal: train: inputs and targets differ "
        "in number; found input [9, 2], targets [8]",
    ),
    # -- at the terminal
    "a setting of a part": Mistake(
        {},
        RUN + " --set lr=0.2",
        "--set lr: is an unknown key; found 'lr'; expected one of archgraph, name, family, "
        "data, task, weights, strategy, rounds, sample, also, patience, bound, aggregate, "
        "privacy, validation, public, local, server, attack, evaluate, engine, trackers, "
        "seed, out; it is a key of 'local': local.lr",
    ),
    "a misspelt setting": Mistake(
        {},
        RUN + " --set local.epoch=2",
        "--set local.epoch: is an unknown key; found 'epoch'; expected one of epochs, batch, "
        "accumulate, optimiser, lr, momentum, weight_decay, schedule, over, clip, "
        "fraction, loss, proximal, transforms, precision; did you mean 'epochs'?",
    ),
    "a setting with a colon": Mistake(
        {}, RUN + " --set rounds:3", "'rounds:3': is not a setting; expected key=value"
    ),
    "a setting twice": Mistake(
        {},
        RUN + " --set rounds=3 --set rounds=4",
        "'rounds': is set twice, to 3 and 4",
    ),
    "nothing to resume": Mistake(
        {},
        RUN + " --resume",
        "out: no run to resume; found no run.yaml; start the run without resume",
    ),
    "a misspelt tracker": Mistake(
        experiment("rounds: 2", "rounds: 2\ntrackers: [tensorbord]"),
        RUN,
        "experiment.yaml:7: trackers: unknown tracker; found 'tensorbord'; expected one of "
        "console, csv, tensorboard; did you mean 'tensorboard'?",
    ),
    "a member that there is not": Mistake(
        {},
        "show family.yaml:haf",
        "family.yaml: has no such model; found 'haf'; expected one of global, whole, half; "
        "did you mean 'half'?",
    ),
    "a folder without a run": Mistake(
        {},
        "compare nowhere",
        "nowhere: not a run folder; found no such file or folder; expected "
        "run.yaml and metrics.jsonl",
    ),
    "a picture of another kind": Mistake(
        {},
        "draw model.yaml -o net.gif",
        "net.gif: is not a picture format; found .gif; expected .dot or .svg or .png or .pdf",
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("about", MISTAKES)
def test_a_mistake_is_located_and_says_what_to_do(
    about: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARCHGRAPH_DATA", raising=False)
    monkeypatch.delitem(sys.modules, "made_here", raising=False)
    files, typed, said = MISTAKES[about]
    for name, text in files.items():
        (here / name).write_text(text)
    result = call(*typed.split(" "))
    *notes, answer = result.stderr.replace(f"{here}/", "").splitlines()
    assert result.exit_code == 2 and answer == f"error: {said}"
    assert all(note.startswith("note: ") for note in notes)
    assert not (here / "out").exists()


def test_a_run_is_not_resumed_with_other_settings(here: Path) -> None:
    assert call(*RUN.split(), "--set", "rounds=1").exit_code == 0
    other = call(*RUN.split(), "--resume", "--set", "rounds=1", "--set", "local.lr=0.2")
    refused(other, "another experiment; found local.lr: 0.1 instead of 0.2")
