"""Mistakes with targets and with model files: each input, and all that its user is answered.

A row of `TARGETS` is what a user has for targets, the task and how many outputs the network has; a
row of `SPECS` is a part of a model file, of a family or of an experiment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import archgraph as ag
from tests.cli.terminal import call
from tests.data.test_target_forms import HOT, INPUTS, ONE, TRUE, Items, N, spec

FLOATS = TRUE.float()
SEVERAL = 1 - HOT
HIDDEN = np.ma.masked_array(INPUTS[:, 0].numpy(), (ONE == 2).numpy())
LISTS = [[1, 2], [1]] * (N // 2)
BOXES = {"boxes": torch.zeros(2, 4), "labels": torch.zeros(2, dtype=torch.int64)}


TARGETS: dict[str, tuple[Any, str | None, int, str]] = {
    "float 0 and 1": (
        FLOATS,
        None,
        1,
        "data: targets: could have several meanings; found float32 []; expected whole numbers "
        "(the class of each example), or a task; write task: regression (numbers), task: "
        "classification (whole numbers) or task: multilabel (0 and 1)",
    ),
    "several labels as floats": (
        SEVERAL.float(),
        None,
        3,
        "data: targets: could have several meanings; found float32 [3]; expected whole numbers "
        "(the class of each example), or a task; write task: regression (numbers), task: "
        "classification (whole numbers) or task: multilabel (0 and 1)",
    ),
    "several labels as integers": (
        SEVERAL,
        None,
        3,
        "data: targets: could have several meanings; found int64 [3]; expected whole numbers (the "
        "class of each example), or a task; write task: segmentation or task: next_token (a class "
        "at each position), or task: multilabel (0 or 1 for each label); for one-hot rows, "
        "targets.argmax(1) gives the classes",
    ),
    "true and false": (
        TRUE,
        None,
        1,
        "data: targets: could have several meanings; found bool []; expected whole numbers (the "
        "class of each example), or a task; write task: classification (two classes), task: "
        "multilabel (labels), or task: segmentation",
    ),
    "words": (
        ["a", "b"] * (N // 2),
        None,
        2,
        "data: targets: could have several meanings; found text []; expected whole numbers (the "
        "class of each example), or a task; write task: classification",
    ),
    "classes from 1": (
        ONE + 1,
        None,
        3,
        "experiment: family: Sequential: the model's output does not fit classification; "
        "found [batch, 3]; expected [batch, 4]: a logit for each of 4 classes (data); no "
        "example has class 0; if classes are numbered from 1, pass targets - 1",
    ),
    "a class of -2": (
        torch.where(ONE == 2, -2, ONE),
        None,
        3,
        "data: train: label out of range; found -2…1; expected classes 0…1; classes count from 0; "
        "use -100 for targets to ignore",
    ),
    "one output for three classes": (
        ONE,
        None,
        1,
        "experiment: family: Sequential: the model's output does not fit classification; "
        "found [batch, 1]; expected [batch, 3]: a logit for each of 3 classes (data)",
    ),
    "three outputs for true and false": (
        TRUE,
        "classification",
        3,
        "experiment: family: Sequential: the model's output does not fit classification; "
        "found [batch, 3]; expected [batch, 2] or [batch, 1] or [batch]: a logit for each of "
        "2 classes or one for both (data)",
    ),
    "complex numbers": (
        torch.complex(INPUTS[:, 0], INPUTS[:, 1]),
        None,
        1,
        "data: train: targets: are complex numbers; found complex64 [24]; expected real "
        "numbers; torch.view_as_real(x) puts real and imaginary part on a last axis of size 2",
    ),
    "masked numbers": (
        HIDDEN,
        None,
        1,
        "data: train: targets: has masked values; found MaskedArray [24]; remove these examples, "
        "or fill them: array.filled(0); targets of class -100 are ignored",
    ),
    "a missing class": (
        pd.Series(["a", None] * (N // 2), dtype=object),
        None,
        2,
        "data: train: targets[1]: a value is missing; found None; fill missing values, or"
        " remove these examples",
    ),
    "a missing number": (
        pd.Series([1, None] * (N // 2), dtype="Int64"),
        None,
        1,
        "data: train: targets[1]: is not finite; 12 of 24 examples have NaN or infinity: "
        "fill or remove them",
    ),
    "no targets": (
        None,
        None,
        1,
        "data: train: targets: is missing; found nothing; expected numbers or names",
    ),
    "words and numbers": (
        ["a", 1] * (N // 2),
        None,
        2,
        "data: train: targets: is not of one type; found int and str; expected numbers, "
        "text, or true and false",
    ),
    "an empty word": (
        ["a", ""] * (N // 2),
        "classification",
        2,
        "data: targets[1]: the name of a class is empty; replace it by a name such as 'none', or "
        "remove these examples",
    ),
    "words on two axes": (
        np.array([["a", "b"]] * N),
        "classification",
        2,
        "data: targets: are text with several axes; found text [2]; expected one name for each "
        "example",
    ),
    "lists of unequal length": (
        LISTS,
        None,
        2,
        "data: train: targets: parts differ in shape; found list of 24; pad or cut them "
        "to one shape",
    ),
    "dates": (
        pd.date_range("2020-01-01", periods=N),
        None,
        1,
        "data: train: targets: has values that do not fit into signed 64-bit numbers; found "
        "DatetimeIndex, datetime64[us]; for dates, count days: (dates - dates.min()) / "
        "np.timedelta64(1, 'D')",
    ),
    "spans of time": (
        pd.to_timedelta(range(N), unit="h"),
        None,
        1,
        "data: train: targets: has values that do not fit into signed 64-bit numbers; found "
        "TimedeltaIndex, timedelta64[us]; for dates, count days: (dates - dates.min()) / "
        "np.timedelta64(1, 'D')",
    ),
    "identifiers of 64 bits": (
        np.arange(N, dtype=np.uint64) + np.uint64(2**63),
        None,
        1,
        "data: train: targets: has values that do not fit into signed 64-bit numbers; "
        "found ndarray [24], uint64; for dates, count days: (dates - dates.min()) / "
        "np.timedelta64(1, 'D')",
    ),
    "one-hot rows": (
        HOT,
        "classification",
        3,
        "experiment: task: classification cannot learn these targets; found targets int64 "
        "[example, 3] (data); expected int64, one class for each example; for one-hot rows, pass "
        "targets.argmax(1); for soft labels, write task: {objective: "
        '"python:losses:soft"}, a function of outputs and targets such as '
        "torch.nn.functional.cross_entropy",
    ),
    "numbers under classification": (
        INPUTS[:, 0],
        "classification",
        3,
        "experiment: task: classification cannot learn these targets; found targets float32 "
        "[example] (data); expected int64, one class for each example; write task: regression",
    ),
    "soft labels": (
        (SEVERAL / 2).float(),
        "classification",
        3,
        "experiment: task: classification cannot learn these targets; found targets "
        "float32 [example, 3] (data); expected int64, one class for each example; for one-hot "
        "rows, pass targets.argmax(1); for soft labels, "
        'write task: {objective: "python:losses:soft"}, a function of outputs and targets'
        " such as torch.nn.functional.cross_entropy",
    ),
    "words under regression": (
        ["a", "b"] * (N // 2),
        "regression",
        1,
        "data: targets: are text, which task: regression does not learn; found 'a'; texts are "
        "names of classes: write task: classification",
    ),
    "a table of two columns": (
        pd.DataFrame({"y": ONE, "z": ONE}),
        None,
        3,
        "data: targets: could have several meanings; found int64 [2]; expected whole numbers (the "
        "class of each example), or a task; write task: segmentation or task: next_token (a class "
        "at each position), or task: multilabel (0 or 1 for each label); for one-hot rows, "
        "targets.argmax(1) gives the classes",
    ),
    "a table of two columns as next tokens": (
        pd.DataFrame({"y": ONE, "z": ONE}),
        "next_token",
        3,
        "experiment: family: Sequential: the model's output does not fit next_token; found "
        "[batch, 3]; expected [batch, 2, 3]: a logit for each of 3 classes (data); targets "
        "[example, 2] are read as a class per position; for one class per example, pass "
        "targets[:, 0]",
    ),
    "a dictionary by item": (
        Items(lambda _: BOXES),
        None,
        3,
        "data: train[0]: target: is a dictionary; found boxes, labels; expected one tensor for "
        "each example; combine its tensors into one tensor of the same shape for all examples, and "
        'split it in your own objective: task: {objective: "python:losses:mine"}',
    ),
    "a list of dictionaries for an example": (
        Items(lambda _: [BOXES, BOXES]),
        "regression",
        3,
        "data: train[0]: target: is a dictionary; found boxes, labels; expected one tensor for "
        "each example; combine its tensors into one tensor of the same shape for all examples, and "
        'split it in your own objective: task: {objective: "python:losses:mine"}',
    ),
    "a tuple of tensors": (
        Items(lambda i: (ONE[i], INPUTS[i])),
        None,
        3,
        "data: train[0]: target: parts differ in shape; found tuple of 2; pad or cut them"
        " to one shape",
    ),
    "words and numbers by item": (
        Items(lambda i: "a" if i % 2 else 1),
        None,
        2,
        "data: train: targets[1]: examples differ in shape or type; found text []; expected "
        "int64 [], as the first one",
    ),
}

MODEL = """\
archgraph: 1
name: net
inputs: {image: [1, 8, 8]}
params: {c: 4}
blocks:
  residual:
    params: {width: 4}
    shortcut: auto
    steps: [conv: {out: $width}, batch_norm, relu, conv: {out: $width}, batch_norm]
sections:
  - {name: stem, steps: [conv: {out: 4}, relu]}
  - {name: body, block: residual, depth: 2, width: 8}
  - {name: tail, steps: [global_avg_pool, flatten, linear: 10]}
"""
EXPERIMENT = """\
archgraph: 1
name: e
family:
  model: model.yaml
  clients: [{name: b, count: 1}, {name: a, count: 1, take: 0.5}]
data: {dataset: digits}
strategy: {heterofl: {}}
rounds: 1
local: {lr: 0.1}
"""

SPECS = {
    "two kinds of one name, in place": (
        "experiment",
        "clients: [{name: b, count: 1}",
        "clients: [{name: a, count: 1}",
        "experiment.yaml:5: family.clients[1].name: has two kinds of client with the same name, as "
        "on "
        "line 5; found 'a'; give each its own name; for more clients of one kind write count: 2",
    ),
    "a forgotten flatten": (
        "model",
        "global_avg_pool, flatten, linear: 10",
        "linear: 10",
        "model.yaml:13: sections[2].steps[0].linear: works on the last axis, which is a "
        "spatial one here; found [8, 8, 8]: channels, then sizes; expected flatten, or "
        "global_avg_pool and flatten, in front of it; for the channels at each position: "
        "permute: [0, 2, 3, 1] in front of it; to use the last axis anyway: aten.linear",
    ),
    "a forgotten flatten behind a pool": (
        "model",
        "global_avg_pool, flatten, linear: 10",
        "global_avg_pool, linear: 10",
        "model.yaml:13: sections[2].steps[1].linear: works on the last axis, which is a "
        "spatial one here; found [8, 1, 1]: channels, then sizes; expected flatten, or "
        "global_avg_pool and flatten, in front of it; for the channels at each position: "
        "permute: [0, 2, 3, 1] in front of it; to use the last axis anyway: aten.linear",
    ),
    "a forgotten flatten of the image": (
        "model",
        "steps: [conv: {out: 4}, relu]",
        "steps: [linear: 4]",
        "model.yaml:11: sections[0].steps[0].linear: works on the last axis, which is a "
        "spatial one here; found [1, 8, 8]: channels, then sizes; expected flatten, or "
        "global_avg_pool and flatten, in front of it; for the channels at each position: "
        "permute: [0, 2, 3, 1] in front of it; to use the last axis anyway: aten.linear",
    ),
    "a norm of the last spatial axis": (
        "model",
        "conv: {out: 4}, relu",
        "conv: {out: 4}, layer_norm",
        "model.yaml:11: sections[0].steps[1].layer_norm: works on the last axis, which is a "
        "spatial one here; found [4, 8, 8]: channels, then sizes; expected flatten, or "
        "global_avg_pool and flatten, in front of it; for the channels at each position: "
        "permute: [0, 2, 3, 1] in front of it; to use the last axis anyway: aten.layer_norm",
    ),
    "a block called as a step": (
        "model",
        "residual",
        "relu",
        "model.yaml:6: blocks.relu: is a reserved word, the name of a step; found 'relu'; "
        "rename it, e.g. relu_1, here and where it is used",
    ),
    "a block called block": (
        "model",
        "residual",
        "block",
        "model.yaml:6: blocks.block: is a reserved word, which begins an inline block; found"
        " 'block'; rename it, e.g. block_1, here and where it is used",
    ),
    "a parameter called in_channels": (
        "model",
        "params: {c: 4}",
        "params: {c: 4, in_channels: 3}",
        "model.yaml:4: params.in_channels: is a reserved word, which stands for the size of "
        "axis 1; found 'in_channels'; rename it, e.g. in_channels_1, here and where it is "
        "used",
    ),
    "a parameter of a block called from": (
        "model",
        "params: {width: 4}",
        "params: {width: 4, from: 3}",
        "model.yaml:7: blocks.residual.params.from: is a reserved word, an option of every "
        "step; found 'from'; rename it, e.g. from_1, here and where it is used",
    ),
    "two sections of one name": (
        "model",
        "name: tail",
        "name: stem",
        "model.yaml:13: sections[2].name: is taken, by line 11; found 'stem'; expected "
        "another name",
    ),
    "a section called input": (
        "model",
        "name: tail",
        "name: input",
        "model.yaml:13: sections[2].name: is a reserved word, which stands for the input of a list "
        "of steps; found 'input'; rename it, e.g. input_1, here and where it is "
        "used",
    ),
    "a parameter that is itself": (
        "model",
        "params: {c: 4}",
        "params: {c: $c}",
        "model.yaml:4: params.c: is defined by itself; found '$c'; write a number, or a parameter "
        "that is defined before it",
    ),
    "a parameter of a later one": (
        "model",
        "params: {c: 4}",
        "params: {c: $d, d: 4}",
        "model.yaml:4: params.c: is defined by a parameter that is defined after it; found '$d'; "
        "move d in front of c",
    ),
    "a parameter of nothing": (
        "model",
        "params: {c: 4}",
        "params: {c: $width * 2}",
        "model.yaml:4: params.c: names an unknown parameter; found '$width'; none is defined "
        "above: define it there, or write a number",
    ),
    "braces around an expression": (
        "model",
        "width: 8}",
        'width: "${2 * 4}"}',
        "model.yaml:12: sections[1].width: is not an expression; found '${2 * 4}'; expected "
        "integers, $names, + - * // % ( ); without braces: 2 * 4",
    ),
    "a number with a sign of a name": (
        "model",
        "out: $width",
        "out: $4 * 2",
        "model.yaml:9: blocks.residual.steps[0].conv.out: is not an expression; found '$4 * "
        "2'; expected integers, $names, + - * // % ( ); names alone have a $: 4 * 2; in block"
        " body.0 of the section on line 12",
    ),
    "a layer of PyTorch's name": (
        "model",
        "relu]}\n  - {name: body",
        "ConvTranspose2d: 4]}\n  - {name: body",
        "model.yaml:11: sections[0].steps[1]: is an unknown operator; found "
        "'ConvTranspose2d'; expected a step, a block of this model, or an ATen operator "
        "(aten.…); it is 'conv_transpose' here",
    ),
    "an even window that is not moved": (
        "model",
        "conv: {out: 4}, relu",
        "conv_transpose: {out: 4, stride: 1}",
        "model.yaml:11: sections[0].steps[0].conv_transpose: cannot be cut evenly; found "
        "kernel 2, stride 1; choose an odd kernel, or write the padding",
    ),
    "another name for a mode": (
        "model",
        "conv: {out: 4}, relu",
        "upsample: {mode: bilinear}",
        "model.yaml:11: sections[0].steps[0].upsample.mode: has an unknown value; found "
        "'bilinear'; expected one of nearest, linear; did you mean 'linear'?",
    ),
    "a block that is not there": (
        "experiment",
        "take: 0.5",
        "skip: body.9",
        "experiment.yaml:5: clients[1].skip: no such block; found 'body.9'; expected one of "
        "stem, body.0, body.1, tail; did you mean 'body.1'?",
    ),
    "a block with a projection": (
        "experiment",
        "take: 0.5",
        "skip: body.0",
        "experiment.yaml:5: clients[1].skip: body.0: block cannot be removed; found changes "
        "float32[batch, 4, 8, 8] to float32[batch, 8, 8, 8]; to keep only its projection shortcut, "
        "use skip: {keep: {SECTION: [0, …]}} (in Python: keep_projection=True)",
    ),
    "a model that is not there": (
        "experiment",
        "model: model.yaml",
        "model: modle.yaml",
        "experiment.yaml:4: model: names a file that does not exist; found modle.yaml; expected"
        " a file of this machine, absolute or relative to this file",
    ),
    "a table that lacks its target": (
        "experiment",
        "data: {dataset: digits}",
        "data: {table: rows.csv, target: y}",
        "experiment.yaml:6: data.target: there is no such column; found 'y'; expected one of a, b",
    ),
    "a table for tests that lacks the target": (
        "experiment",
        "data: {dataset: digits}",
        "data: {table: rows.csv, target: b, test: rest.csv}",
        "experiment.yaml:6: data: rest.csv: row 1: b: a value is missing; found nan; 2 of 20 are "
        "missing: fill them, remove the rows, or omit the column",
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("about", TARGETS)
def test_targets_that_are_not_understood_are_answered(about: str) -> None:
    targets, task, outs, message = TARGETS[about]
    part = targets if isinstance(targets, Items) else (INPUTS, targets)
    more = {} if task is None else {"task": task}
    model = spec(nn.Sequential(nn.Linear(6, outs)), INPUTS[:2], **more)
    with pytest.raises(ag.ArchGraphError) as error:
        ag.run(model, data=(part, part), progress=False)
    assert str(error.value) == message


@pytest.mark.sample(4)
@pytest.mark.parametrize("about", SPECS)
def test_mistakes_in_files_are_answered(about: str, tmp_path, monkeypatch) -> None:
    file, old, new, message = SPECS[about]
    monkeypatch.chdir(tmp_path)
    files = {"model": MODEL, "experiment": EXPERIMENT}
    assert old in files[file]
    for name, text in {**files, file: files[file].replace(old, new)}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,0\n2,1\n" * 9)
    (tmp_path / "rest.csv").write_text("a,c\n1,0\n2,1\n")
    answer = call(*(["show"] if file == "model" else ["run", "--out", "out"]), f"{file}.yaml")
    assert answer.exit_code == 2
    assert answer.stderr.replace(f"{tmp_path}/", "").splitlines()[-1] == f"error: {message}"


def shown(tmp_path: Any, old: str = "", new: str = "") -> Any:
    assert old in MODEL
    (tmp_path / "net.yaml").write_text(MODEL.replace(old, new) if old else MODEL)
    return ag.load(tmp_path / "net.yaml")


def test_parameters_may_use_those_before_them_and_numbers_need_no_name(tmp_path) -> None:
    plain = shown(tmp_path, "out: $width", "out: $width + 4")
    for new in ("params: {c: 4, d: $c * 3}", "params: {c: 4, d: 3 * 4}", "params: {d: 12}"):
        (tmp_path / "net.yaml").write_text(
            MODEL.replace("params: {c: 4}", new).replace("out: $width", "out: $width + $d - 8")
        )
        assert ag.load(tmp_path / "net.yaml") == plain
    default = "params: {width: 4, wide: $width + 4}"
    text = MODEL.replace("params: {width: 4}", default).replace("out: $width", "out: $wide")
    (tmp_path / "net.yaml").write_text(text)
    assert ag.load(tmp_path / "net.yaml") == plain


@pytest.mark.parametrize(
    "steps",
    [
        "permute: [0, 2, 3, 1], linear: 10, permute: [0, 3, 1, 2], global_avg_pool, flatten",
        "reshape: [8, 64], linear: 10, flatten",
        "layer_norm: {axes: 3}, flatten, linear: 10",
        "aten.linear: {weight: {parameter: [10, 8]}}, flatten",
    ],
)
def test_what_is_meant_to_work_on_the_last_axis_may(tmp_path, steps: str) -> None:
    assert shown(tmp_path, "global_avg_pool, flatten, linear: 10", steps).nodes


def test_new_blocks_of_two_sections_are_told_apart(tmp_path) -> None:
    two = "  - {name: more, block: residual, depth: 2, width: 8}\n  - {name: tail"
    for name, depth in (("a", 2), ("b", 6)):
        text = MODEL.replace("  - {name: tail", two).replace("depth: 2", f"depth: {depth}")
        (tmp_path / f"{name}.yaml").write_text(text)
    answer = call("compare", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert "8 blocks" in answer.stdout and "body.2–5, more.2–5" in answer.stdout


def test_a_model_of_inference_mode_is_traced_and_trained() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        before = {name: id(value) for name, value in model.state_dict(keep_vars=True).items()}
        run = ag.run(
            spec(model, INPUTS[:2], rounds=1),
            data=((INPUTS, ONE % 2), (INPUTS, ONE % 2)),
            progress=False,
        )
        graph, state = ag.trace(model, INPUTS[:2])
    assert run.sound
    assert before == {name: id(v) for name, v in model.state_dict(keep_vars=True).items()}
    net = ag.build(graph, state)
    net(INPUTS).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
