"""Each mistake is answered with file, line, key, what was found and what was expected."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from archgraph.engine.loading import load
from archgraph.errors import SpecError
from archgraph.graph.ir import ArchGraph
from archgraph.language import load_experiment, load_family, load_model
from archgraph.language.lowering.build import _Lowering
from archgraph.language.yaml import parse_document
from archgraph.limits import LIMITS
from archgraph.rewrites.registry import rewrite_rows

GOOD = """\
archgraph: 1
name: m
inputs: {image: [3, 8, 8]}
params: {four: 4}
blocks:
  b:
    params: {width: null, stride: 1}
    shortcut: auto
    steps:
      - conv: {out: $width, stride: $stride}
      - relu
sections:
  - {name: s, block: b, width: 4}
choices: {s.depth: [1, 2, 3]}
"""
IN_BLOCK = "; in block s.0 of the section on line 13"


def read(text: str, choices: dict[str, int] | None = None) -> ArchGraph:
    return load_model(parse_document(text, "m.yaml"), choices)[0]


def test_the_good_model_is_good() -> None:
    assert len(read(GOOD).nodes) == 5


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # a block's parameter that no expression has, and where a computed value comes from
        (
            "width: null,",
            "width: null, unused: 2,",
            "m.yaml:7: blocks.b.params.unused: is not used by any expression; write $unused where "
            "it belongs, or remove it",
        ),
        (
            "stride: $stride}",
            "stride: $stride, dilation: $four - 9}",
            "m.yaml:10: blocks.b.steps[0].conv.dilation: has a wrong value; found -5; expected 1 "
            f"or more or a list; computed from '$four - 9'; four is set on line 4{IN_BLOCK}",
        ),
        (
            "stride: $stride}",
            "stride: $stride, padding: '1'}",
            "m.yaml:10: blocks.b.steps[0].conv.padding: has an unknown value; found '1'; "
            "expected one of same, valid or an integer or a list",
        ),
        (
            "- relu",
            "- layer_scale: 1.5",
            "m.yaml:11: blocks.b.steps[1].layer_scale: has a wrong value; found 1.5; expected an "
            "integer; `layer_scale: VALUE` sets 'dim', the feature axis: -1 of tokens, 1 of images",
        ),
        # misspelt keys and names
        (
            "name: m",
            "nmae: m",
            "m.yaml:2: nmae: is an unknown key; found 'nmae'; expected one of archgraph, name, "
            "inputs, open, params, blocks, sections, outputs, choices; did you mean 'name'?",
        ),
        (
            "width: 4",
            "witdh: 4",
            "m.yaml:13: sections[0].witdh: is neither a section's key nor a parameter of block "
            "'b'; found 'witdh'; expected one of block, depth, first, name, stride, width; "
            "did you mean 'width'?",
        ),
        (
            "stride: $stride}",
            "strid: 2}",
            "m.yaml:10: blocks.b.steps[0].conv.strid: is an unknown key; found 'strid'; "
            "expected one "
            "of from, as, name, out, kernel, stride, padding, dilation, groups, bias; "
            "did you mean 'stride'?",
        ),
        (
            "block: b",
            "block: bb",
            "m.yaml:13: sections[0].block: is not a block of this model; found 'bb'; expected one "
            "of b; did you mean 'b'?",
        ),
        (
            "auto",
            "atuo",
            "m.yaml:8: blocks.b.shortcut: has an unknown value; found 'atuo'; expected one of "
            "auto, projection, identity, where_equal, none; did you mean 'auto'?",
        ),
        (
            "$width",
            "$wdith",
            "m.yaml:10: blocks.b.steps[0].conv.out: names an unknown parameter; found '$wdith'; "
            "expected one of $four, $width, $stride, $in_channels, $in_features; "
            f"did you mean '$width'?{IN_BLOCK}",
        ),
        # unknown operators
        (
            "- relu",
            "- rleu",
            "m.yaml:11: blocks.b.steps[1]: is an unknown operator; found 'rleu'; expected a "
            "step, a "
            "block of this model, or an ATen operator (aten.…); did you mean 'relu'?",
        ),
        (
            "- relu",
            "- aten.rleu",
            "m.yaml:11: blocks.b.steps[1]: unknown operator; found 'aten.rleu'; expected an ATen "
            "overload such as aten.conv2d or aten.add.Tensor; did you mean 'aten.relu'?",
        ),
        (
            "- relu",
            "- aten.relu_",
            "m.yaml:11: blocks.b.steps[1]: operator changes its arguments in place; "
            "found 'aten.relu_'; did you mean 'aten.relu'?",
        ),
        (
            "- relu",
            "- aten.clamp: {mim: 0}",
            "m.yaml:11: blocks.b.steps[1].aten.clamp: aten.clamp has no argument 'mim'; "
            f"expected self, min, max{IN_BLOCK}",
        ),
        # wrong types and values
        (
            "[3, 8, 8]",
            "[3, eight, 8]",
            "m.yaml:3: inputs.image: has a size that is not listed under open; found eight; "
            "add `open: {eight: {example: 64}}`",
        ),
        (
            "out: $width",
            "out: 1.5",
            "m.yaml:10: blocks.b.steps[0].conv.out: has a wrong value; found 1.5; "
            "expected an integer",
        ),
        (
            "width: 4",
            "width: four",
            "m.yaml:13: sections[0].width: has a wrong value; found 'four'; "
            "expected an integer ≥ 1, or $name",
        ),
        (
            "width: 4",
            "width: 0",
            "m.yaml:13: sections[0].width: has a wrong value; found 0; "
            "expected an integer ≥ 1, or $name",
        ),
        (
            "width: 4",
            "width: true",
            "m.yaml:13: sections[0].width: has a wrong value; found True; "
            "expected an integer ≥ 1, or $name",
        ),
        (
            "width: 4",
            "width: $four - 4",
            "m.yaml:13: sections[0].width: has a wrong value; found 0; expected ≥ 1",
        ),
        (
            "out: $width",
            "out: $width - 4",
            "m.yaml:10: blocks.b.steps[0].conv.out: has a wrong value; found 0; "
            f"expected 1 or more{IN_BLOCK}",
        ),
        (
            "width: 4",
            "width: 4, depth: 0",
            "m.yaml:13: sections[0].depth: has a wrong value; found 0; "
            "expected an integer ≥ 1, or $name",
        ),
        (
            ", width: 4",
            "",
            f"m.yaml:13: sections[0]: lacks the parameter 'width' of block 'b'{IN_BLOCK}",
        ),
        (
            "{out: $width, stride: $stride}",
            "{stride: 2}",
            "m.yaml:10: blocks.b.steps[0].conv: lacks the key 'out'; expected out: output channels",
        ),
        ("- relu", "- dropout: 1.0",
         "m.yaml:11: blocks.b.steps[1].dropout: has a wrong value; found 1.0; "
         "expected less than 1"),
        ("- relu", "- relu: 3",
         "m.yaml:11: blocks.b.steps[1].relu: has a wrong value; found 3; "
         "expected options: {key: value}"),
        ("- relu", "- {relu: {}, from: x}",
         "m.yaml:11: blocks.b.steps[1]: is not a step; found a mapping; "
         "expected an operator's name, or one name with its options"),
        ("archgraph: 1", "archgraph: 2",
         "m.yaml:1: archgraph: has an unknown value; found 2; expected 1"),
        ("image", "for",
         "m.yaml:3: inputs.for: cannot be the name of an argument of forward; found 'for'; "
         "expected an identifier"),
        ("block: b", "block: b, steps: [relu]",
         "m.yaml:13: sections[0]: needs either a block or steps, section 's'; "
         "found both"),
        # drawing
        (
            "- relu",
            "- relu: {from: z, as: a}\n      - sigmoid: {as: z}",
            "m.yaml:11: blocks.b.steps[1].relu.from: names the value of a later step; found 'z'; "
            "name a value that is made before it, or move the step that makes it up; "
            "in block s.0 of the section on line 14",
        ),
        (
            "- relu",
            "- add: {other: z}\n      - relu: {from: input, as: z}",
            "m.yaml:11: blocks.b.steps[1].add.other: names the value of a later step; "
            "found 'z'; name a value that is made before it, or move the step that makes it up; "
            "in block s.0 of the section on line 14",
        ),
        (
            "- relu",
            "- relu: {from: inptu}",
            "m.yaml:11: blocks.b.steps[1].relu.from: names an unknown value; found 'inptu'; "
            f"expected one of input, image; did you mean 'input'?{IN_BLOCK}",
        ),
        (
            "- relu",
            "- relu: {as: q}\n      - sigmoid: {from: input}",
            "m.yaml:10: blocks.b.steps[0]: makes a value that nothing uses; "
            "use it in a later step (from:), or remove it",
        ),
        ("- relu", "- relu: {as: input}",
         "m.yaml:11: blocks.b.steps[1].relu.as: is taken; found 'input'; "
         f"expected another name{IN_BLOCK}"),
        ("- relu", "- relu: {as: image}",
         "m.yaml:11: blocks.b.steps[1].relu.as: is taken; found 'image'; "
         f"expected another name{IN_BLOCK}"),
        ("- relu", "- relu: {from: [input, image]}",
         "m.yaml:11: blocks.b.steps[1].relu.from: names several values; found 2; "
         f"expected one{IN_BLOCK}"),
        ("- relu", "- add",
         "m.yaml:11: blocks.b.steps[1].add: joins fewer than two values; "
         f"name the other: add: <name>{IN_BLOCK}"),
        ("- relu", "- b: {width: 4}",
         "m.yaml:6: blocks.b: is nested too deeply; found b → b → b → b; "
         f"expected at most 16 blocks, none inside itself{IN_BLOCK}"),
        # shapes
        (
            "auto",
            "identity",
            "m.yaml:8: blocks.b.shortcut: cannot add the block's input to its result; found "
            f"[batch, 3, 8, 8] and [batch, 4, 8, 8]; expected equal shapes{IN_BLOCK}",
        ),
        (
            "- relu",
            "- flatten",
            "m.yaml:8: blocks.b.shortcut: cannot add the block's input to its result; found "
            "[batch, 3, 8, 8] and [batch, 256]; expected equal shapes, or sizes that one stride "
            f"relates{IN_BLOCK}",
        ),
        (
            "stride: $stride",
            "kernel: [3, 3, 3]",
            "m.yaml:10: blocks.b.steps[0].conv.kernel: has sizes for another number of axes; "
            f"found [3, 3, 3]; expected one number, or 2{IN_BLOCK}",
        ),
        (
            "stride: $stride",
            "stride: $stride, groups: 2",
            "m.yaml:10: blocks.b.steps[0].conv.groups: does not divide its input channels; found "
            f"2 groups, 3 channels{IN_BLOCK}",
        ),
        (
            "stride: $stride",
            "kernel: 4",
            "m.yaml:10: blocks.b.steps[0].conv: cannot be padded evenly; found kernel 4, stride 1; "
            f"choose an odd kernel, or write the padding{IN_BLOCK}",
        ),
        ("- relu", "- linear: {out: 4, bias: yes}",
         "m.yaml:11: blocks.b.steps[1].linear.bias: has a wrong value; found 'yes'; "
         "expected true or false"),
        ("- relu", "- attention: 2",
         "m.yaml:11: blocks.b.steps[1].attention: has the wrong shape; found [batch, 4, 8, 8]; "
         f"expected [batch, position, feature]{IN_BLOCK}"),
        # bounds
        ("width: 4", "width: 2000000000",
         "m.yaml:10: blocks.b.steps[0].conv: tensor too large; found [2000000000, 3, 3, 3]; "
         f"expected at most 8589934592 elements{IN_BLOCK}"),
        # choices
        ("[1, 2, 3]", "[2, 3]",
         "m.yaml:14: choices.s.depth: lacks the written value; found [2, 3]; expected 1 too"),
        ("s.depth", "s.dpeth",
         "m.yaml:14: choices.s.dpeth: is not set by the section; found 'dpeth'; "
         "expected one of depth, width; did you mean 'depth'?"),
        ("s.depth", "depht",
         "m.yaml:14: choices.depht: is neither a parameter nor a section's key; "
         "expected 'section.key' or a parameter; did you mean 's.depth'?"),
    ],
)  # fmt: skip
def test_mistakes_in_a_model(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(SpecError) as error:
        read(GOOD.replace(old, new))
    assert str(error.value) == message


def test_depth_is_bounded() -> None:
    text = GOOD.partition("choices")[0].replace("width: 4", "width: 4, depth: $four * 1000")
    with pytest.raises(SpecError) as error:
        read(text)
    assert str(error.value) == (
        "m.yaml:13: sections[0].depth: has a wrong value; found 4000; expected 1 to 1000"
    )


def test_choices_beyond_the_candidates() -> None:
    with pytest.raises(SpecError) as error:
        read(GOOD, {"s.depth": 9})
    assert str(error.value) == (
        "m.yaml:14: choices.s.depth: is not a candidate of 's.depth'; found 9; expected "
        "one of 1, 2, 3"
    )
    with pytest.raises(SpecError) as error:
        read(GOOD, {"s.dpeth": 2})
    assert str(error.value) == (
        "m.yaml: is not a choice of the model; found 's.dpeth'; expected one of s.depth; "
        "did you mean 's.depth'?"
    )


@pytest.mark.usefixtures("consent")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "python: os.nothing\ninputs: {x: [3]}",
            "m.yaml:1: python: is not the name of a callable; found 'os.nothing'; "
            "expected package.module:callable",
        ),
        (
            "python: os:nothing\ninputs: {x: [3]}",
            "m.yaml:1: python: cannot be imported; found module 'os' has no attribute 'nothing'",
        ),
        (
            "python: no_such_package:Net\ninputs: {x: [3]}",
            "m.yaml:1: python: cannot be imported; found No module named 'no_such_package'; "
            "install it, or run archgraph in the folder that contains it",
        ),
        (
            "python: torch.nn:Linear\nargs: {in_features: 3}\ninputs: {x: [3]}",
            "m.yaml:1: python: cannot be constructed; found TypeError: Linear.__init__() missing "
            "1 required positional argument: 'out_features'",
        ),
        (
            "python: os:getcwd\ninputs: {x: [3]}",
            "m.yaml:1: python: does not return a model; found str; expected torch.nn.Module",
        ),
        (
            "name: x",
            "m.yaml:1: lacks the key 'archgraph'; expected archgraph: version of the language",
        ),
    ],
)
def test_mistakes_in_other_forms(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        read(text)
    assert str(error.value) == message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        load(tmp_path / "none.yaml")
    assert str(error.value) == (
        f"{tmp_path}/none.yaml: cannot be read; found no such file or folder"
    )


FAMILY = """\
archgraph: 1
model: m.yaml
clients:
  - {name: a, count: 2, choose: {s.depth: 2}}
  - {name: b, take: 0.5}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 2", "cuont: 2",
         "f.yaml:4: clients[0].cuont: is an unknown key; found 'cuont'; expected one of "
         "name, count, model, choose, owners, local, "
         f"{', '.join(rewrite_rows())}, python; did you mean 'count'?"),
        ("count: 2", "count: 0",
         "f.yaml:4: clients[0].count: has a wrong value; found 0; "
         "expected 1 or more"),
        ("take: 0.5", "take: 1.5",
         "f.yaml:5: clients[1].take: is not a share; found 1.5; "
         "expected a number in (0, 1]; to set numbers of positions, write sizes: {axis: 4}"),
        ("take: 0.5", "take: {heads: 4}",
         "f.yaml:5: clients[1].take.heads: is not a share; found 4; "
         "expected a number in (0, 1]; to set numbers of positions, write sizes: {axis: 4}"),
        ("take: 0.5", "take: {heads: 0.5, sizes: {heads: 4}}",
         "f.yaml:5: clients[1].take.heads: is an unknown key; found 'heads'; "
         "expected one of shares, sizes, positions, importance"),
        ("take: 0.5", "fit: {milliseconds: 8ms}",
         "f.yaml:5: clients[1].fit.milliseconds: is an unknown key; found 'milliseconds'; "
         "expected one of parameters, macs, bytes, activations, memory, batch, optimizer, shape, "
         "importance, multiple, keep, skip, like; it is 'macs' here"),
        ("choose:", "model: n.yaml, choose:",
         "f.yaml:4: clients[0].choose: has both a model and choices"),
        ("name: b", "name: a",
         "f.yaml:5: clients[1].name: has two kinds of client with the same name, as on line 4; "
         "found 'a'; "
         "give each its own name; for more clients of one kind write count: 2"),
        ("m.yaml", "n.yaml", "f.yaml:2: model: names a file that does not exist; found "
         "FOLDER/n.yaml; expected a file of this machine, absolute or relative to this file"),
    ],
)  # fmt: skip
def test_mistakes_in_a_family(
    tmp_path: Path, monkeypatch, old: str, new: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(GOOD)
    Path("f.yaml").write_text(FAMILY)
    assert load_family("f.yaml").clients[1].name == "b"
    Path("f.yaml").write_text(FAMILY.replace(old, new))
    with pytest.raises(SpecError) as error:
        load_family("f.yaml")
    assert str(error.value) == message.replace("FOLDER", str(tmp_path))


EXPERIMENT = """\
archgraph: 1
name: e
family: f.yaml
data:
  dataset: digits
  partition: {scheme: dirichlet, alpha: 0.5}
strategy: {fedfa: {percentile: 0.9}}
rounds: 3
sample: 0.5
engine: local
local: {epochs: 1, lr: 0.1}
attack: {fraction: 0.2, intensity: 20}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dirichlet", "dirichelt",
         "e.yaml:6: data.partition: has an unknown value; found 'dirichelt'; "
         "expected one of iid, dirichlet, equal_dirichlet, classes, whole; did you mean "
         "'dirichlet'?"),
        ("alpha: 0.5", "alhpa: 0.5",
         "e.yaml:6: data.partition.alhpa: is an unknown key; found 'alhpa'; "
         "expected one of scheme, alpha, min_size, balanced, shares; did you mean 'alpha'?"),
        ("alpha: 0.5", "shares: {c: 0.5}",
         "e.yaml:6: data.partition.shares.c: is not a kind of client; found 'c'; "
         "expected one of a, b"),
        ("alpha: 0.5", "shares: {a: 1.5}",
         "e.yaml:6: data.partition.shares.a: has a wrong value; found 1.5; "
         "expected 1 or less"),
        ("alpha: 0.5", "shares: {a: 0.6, b: 0.6}",
         "e.yaml:6: data.partition.shares: add up to more than 1; found 1.2; "
         "expected at most 1"),
        ("alpha: 0.5", "shares: {a: 1}",
         "e.yaml:6: data.partition.shares: leaves no data for the other clients; found 1; "
         "expected fractions with a sum below 1"),
        ("alpha: 0.5", "shares: {a: 0.2, b: 0.2}",
         "e.yaml:6: data.partition.shares: leaves some data without a client; found 0.4; "
         "expected fractions with a sum of 1"),
        ("{fedfa: {percentile: 0.9}}", "{fedfa: {}, fedavg: {}}",
         "e.yaml:7: strategy: must name exactly one strategy; found fedfa, fedavg; "
         "expected one, e.g. {fedfa: {}}"),
        ("engine: local", "evaluate: {after: 0}",
         "e.yaml:10: evaluate.after: has a wrong value; found 0; expected more than 0"),
        ("engine: local", "evaluate: {fine_tune: 1.5}",
         "e.yaml:10: evaluate.fine_tune: has a wrong value; found 1.5; expected an integer"),
        ("local: {epochs: 1, lr: 0.1}", "local: {epochs: 1}",
         "e.yaml:11: local.lr: the learning rate is missing; write `local: {lr: 0.05}`, or an "
         "optimiser with its arguments"),
        ("rounds: 3", "rounds: three",
         "e.yaml:8: rounds: has a wrong value; found 'three'; expected an integer"),
        ("rounds: 3\nsample: 0.5", "rounds: three\nsample: 1.5",
         "e.yaml:8: rounds: has a wrong value; found 'three'; expected an integer"),
        ("sample: 0.5", "sample: 1.5",
         "e.yaml:9: sample: has a wrong value; found 1.5; "
         "expected 1 or less or an integer"),
        ("engine: local", "engine: loacl",
         "e.yaml:10: engine: is not an engine; found 'loacl'; expected one of local, "
         "flower; did you mean 'local'?"),
        ("epochs: 1", "epoch: 1",
         "e.yaml:11: local.epoch: is an unknown key; found 'epoch'; expected one of epochs, batch, "
         "accumulate, optimiser, lr, momentum, weight_decay, schedule, over, clip, "
         "fraction, loss, proximal, transforms, precision; did you mean 'epochs'?"),
        ("lr: 0.1", "lr: -1.0",
         "e.yaml:11: local.lr: has a wrong value; found -1.0; expected more than 0"),
        ("family: f.yaml", "family: {model: m.yaml}",
         "e.yaml:3: family: lacks the key 'clients'"),
    ],
)  # fmt: skip
def test_mistakes_in_an_experiment(
    tmp_path: Path, monkeypatch, old: str, new: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(GOOD)
    Path("f.yaml").write_text(FAMILY)
    Path("e.yaml").write_text(EXPERIMENT)
    spec = load_experiment("e.yaml")
    assert (spec.strategy_name, spec.strategy_options) == ("fedfa", {"percentile": 0.9})
    Path("e.yaml").write_text(EXPERIMENT.replace(old, new))
    with pytest.raises(SpecError) as error:
        load_experiment("e.yaml")
    assert str(error.value) == message


TWO = """\
archgraph: 1
inputs: {x: [4]}
blocks: {b: {params: {width: null}, steps: [linear: $width]}}
sections:
  - {name: s, block: b, depth: 1, width: 4}
  - {name: s2, block: b, depth: 1, width: 4}
choices: {s.depth: [1, 2], s2.depth: [1, 2, 3]}
"""


def test_a_choice_belongs_to_the_section_that_it_names() -> None:
    document = parse_document(TWO, "m.yaml")
    graph = load_model(document, {"s2.depth": 3, "s.depth": 2})[0]
    assert [(name, len(blocks)) for name, blocks in graph.sections] == [("s", 2), ("s2", 3)]
    written = parse_document(
        TWO.replace("2, block: b, depth: 1", "2, block: b, depth: 3"), "n.yaml"
    )
    assert load_model(document, {"s2.depth": 3})[0] == load_model(written)[0]


def test_a_value_of_a_later_section_is_made_only_later() -> None:
    text = TWO.replace("steps: [linear: $width]", "steps: [{linear: {out: $width, from: s2}}]")
    with pytest.raises(SpecError, match="names the value of a later step; found 's2'"):
        load_model(parse_document(text, "m.yaml"))


def test_sections_of_too_many_steps_are_refused_before_they_are_unfolded(monkeypatch) -> None:
    unfolded: list[str] = []
    monkeypatch.setattr(_Lowering, "_block", lambda *arguments: unfolded.append("one"))
    deep = "".join(f"  - {{name: s{i}, block: b, depth: 1000, width: 4}}\n" for i in range(100))
    text = GOOD.replace("  - {name: s, block: b, width: 4}\n", deep).partition("choices")[0]
    message = (
        r"m\.yaml:19: sections\[6\]\.depth: unfolds to too many steps; found 21,000 with those "
        r"before; expected at most 20,000"
    )
    with pytest.raises(SpecError, match=message):
        read(text)
    assert not unfolded


def test_blocks_inside_blocks_are_bounded_while_they_unfold(monkeypatch) -> None:
    """Three blocks of 50 uses of the next one: 125,000 steps, of which 201 are looked at."""
    few = dataclasses.replace(LIMITS, unfolded_steps=200)
    monkeypatch.setattr("archgraph.language.lowering.build.LIMITS", few)
    blocks = "".join(
        f"  b{i}: {{steps: [{', '.join([inner] * 50)}]}}\n"
        for i, inner in enumerate(["b1: {}", "b2: {}", "relu"])
    )
    sections = "sections:\n  - {name: s, block: b0}\n"
    text = f"archgraph: 1\ninputs: {{x: [4]}}\nblocks:\n{blocks}{sections}"
    with pytest.raises(
        SpecError, match=r"m\.yaml:6: blocks\.b2\.steps\[\d+\]: unfolds to too many"
    ):
        read(text)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Opening one would wait for a writer that may never come."""
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(SpecError, match=f"{path}: is not a file; expected a text file; write"):
            load(path)
