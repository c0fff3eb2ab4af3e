"""First weights from a file: by name and shape, and what is missing or left over is named."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.engine.world import prepare
from archgraph.language import load_experiment
from archgraph.studies.cell import address

EXPERIMENT = """\
archgraph: 1
name: mine
family:
  model:
    archgraph: 1
    name: net
    inputs: {image: [1, 8, 8]}
    sections:
      - {name: body, steps: [flatten, linear: 16, batch_norm, relu]}
      - {name: head, steps: [linear: 10]}
  clients: [{name: half, count: 2, take: {body: 0.5}}, {name: whole, count: 2}]
data: {dataset: digits, limit: 200}
weights:
  file: net.safetensors
  rename: {"b*.fc": "b*.linear", fc: head.linear}
  fresh: ["head.*", "*.num_batches_tracked"]
strategy: {heterofl: {}}
local: {lr: 0.1}
rounds: 2
"""


def tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = {
        "body.fc.weight": (16, 64),
        "body.fc.bias": (16,),
        "fc.weight": (7, 16),
        "fc.bias": (7,),
    }
    shapes |= {f"body.bn.{name}": (16,) for name in ("weight", "bias", "running_mean")}
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {**found, "body.bn.running_var": torch.ones(16)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_file(tensors(), tmp_path / "net.safetensors")
    (tmp_path / "run.yaml").write_text(EXPERIMENT)
    return tmp_path


def first(place: Path, old: str = "", new: str = "") -> dict[str, torch.Tensor]:
    """The global model's first weights; after a change of the file."""
    assert old in EXPERIMENT
    (place / "changed.yaml").write_text(EXPERIMENT.replace(old, new) if old else EXPERIMENT)
    return dict(prepare(place / "changed.yaml").world.state)


def test_weights_are_the_files_and_the_head_starts_anew(place: Path):
    state, plain = (
        first(place),
        dict(
            prepare(
                load_experiment(place / "run.yaml").model_copy(update={"weights": None})
            ).world.state
        ),
    )
    assert torch.equal(state["body.linear.weight"], tensors()["body.fc.weight"])
    assert torch.equal(state["body.bn.running_mean"], tensors()["body.bn.running_mean"])
    assert torch.equal(state["head.linear.weight"], plain["head.linear.weight"])
    assert list(state) == list(plain)
    world = prepare(place / "run.yaml").world
    half = world.tiers[0].state["body.linear.weight"]
    assert torch.equal(half, tensors()["body.fc.weight"][:8])


def test_runs_that_differ_in_the_seed_start_from_the_same_facts(place: Path):
    """What the seed draws is no fact of its own: `compare` and studies put their runs together."""
    texts = (EXPERIMENT, EXPERIMENT + "seed: 1\n", EXPERIMENT.replace("lr: 0.1", "lr: 0.2"))
    facts = []
    for number, text in enumerate(texts):
        (place / f"{number}.yaml").write_text(text)
        facts.append(prepare(place / f"{number}.yaml").facts)
    save_file({**tensors(), "body.fc.bias": torch.ones(16)}, place / "net.safetensors")
    other = prepare(place / "run.yaml").facts
    zero, one, faster = facts
    assert {**one, "seed": zero["seed"]} == zero
    assert faster["state"] == zero["state"] != other["state"]


def test_a_state_dict_of_torch_is_read_and_nothing_else_of_a_pickle(place: Path):
    torch.save(tensors(), place / "net.pt")
    assert torch.equal(
        first(place, "net.safetensors", "net.pt")["body.linear.bias"], tensors()["body.fc.bias"]
    )
    torch.save({"model": os.system}, place / "bad.pt")
    with pytest.raises(ag.RunError, match=r"changed\.yaml:\d+: weights: .*bad\.pt: cannot be read"):
        first(place, "net.safetensors", "bad.pt")
    torch.save({"epoch": 3, "model": tensors()}, place / "nested.pt")
    with pytest.raises(ag.RunError, match=r"nested\.pt: does not contain a state_dict"):
        first(place, "net.safetensors", "nested.pt")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"head.*", ', "", r"fc\.bias: has another shape or dtype; found float32 \[7\]; "
         r"expected float32 \[10\], the form of head\.linear\.bias in the model"),
        (', "*.num_batches_tracked"', "", "lacks weights of the model; found none for body.bn.num"),
        (', fc: head.linear', "", "that the model does not have; found fc.bias, fc.weight"),
        ("fc: head.linear", "body: head.linear", "contains tensors that the model does not have"),
        ("fc: head.linear", "bc: head.linear", r"rename\.bc: matches no tensor of the file"),
        ("fc: head.linear", 'fc: head.linear, body.bn: body.linear', "both get the name body"),
        ('"head.*"', '"heat.*"', r"fresh: heat\.\*: matches none of the weights of the model"),
        ("  fresh", '  unused: ["x*"]\n  fresh', "unused: x.*: matches none of the tensors"),
        ("net.safetensors", "other.safetensors", "file of weights does not exist; .* nothing is"),
        ("  fresh", '  sha256: "00000000"\n  fresh', "wrong checksum; found SHA-256 .*; exp"),
    ],
    ids=["shape", "missing", "further", "wrongly", "rename", "twice", "fresh", "unused", "file",
         "sum"],
)  # fmt: skip
def test_what_does_not_fit_is_named(place: Path, old: str, new: str, message: str):
    with pytest.raises(ag.ArchGraphError, match=message):
        first(place, old, new)


def test_tensors_may_be_left_out_and_stars_have_to_agree(place: Path):
    left = first(place, ", fc: head.linear}", '}\n  unused: ["fc.*"]')
    assert torch.equal(left["body.linear.bias"], tensors()["body.fc.bias"])
    with pytest.raises(ag.SpecError, match=r"weights\.rename.* must have as many \*"):
        first(place, '"b*.linear"', "body.linear")
    save_file(
        {**tensors(), "body.fc.bias": torch.full((16,), torch.nan)}, place / "nan.safetensors"
    )
    with pytest.raises(ag.RunError, match=r"body\.fc\.bias: is not finite"):
        first(place, "net.safetensors", "nan.safetensors")


def test_a_run_begins_with_them_goes_on_and_is_the_same_in_processes(place: Path):
    def run(name: str, *words: str) -> list[bytes]:
        out = str(place / name)
        done = CliRunner().invoke(app, ["run", str(place / "run.yaml"), "--out", out, *words])
        assert done.exit_code == 0, done.output
        last = place / name / "checkpoints" / "round-000002"
        return [path.read_bytes() for path in sorted(last.rglob("*.safetensors"))]

    whole = run("whole")
    assert whole and run("workers", "--workers", "2") == whole
    assert run("whole", "--resume-from", "1") == whole
    save_file({**tensors(), "body.fc.bias": torch.zeros(16)}, place / "net.safetensors")
    other = CliRunner().invoke(
        app, ["run", str(place / "run.yaml"), "--out", str(place / "whole"), "--resume"]
    )
    assert other.exit_code == 2 and "state" in other.output


def test_studies_know_the_file_by_its_sum_and_checks_go_without(place: Path):
    digest = hashlib.sha256((place / "net.safetensors").read_bytes()).hexdigest()
    known = EXPERIMENT.replace("  fresh", f'  sha256: "{digest[:8]}"\n  fresh')
    (place / "a.yaml").write_text(known)
    (place / "b.yaml").write_text(known.replace("net.safetensors", "moved/x.safetensors"))
    specs = [load_experiment(place / f"{name}.yaml") for name in ("a", "b", "run")]
    first, second, third = map(address, specs)
    assert first == second != third
    assert CliRunner().invoke(app, ["check", str(place / "b.yaml")]).exit_code == 0
    (place / "c.yaml").write_text(EXPERIMENT.replace("net.safetensors", "x.safetensors"))
    assert CliRunner().invoke(app, ["check", str(place / "c.yaml")]).exit_code == 2
    study: Any = f"archgraph: 1\nstudy: A\nexperiment:\n{indented(known)}rows: {{a: {{}}}}\n"
    missing = study.replace("net.safetensors", "x.safetensors")
    (place / "study.yaml").write_text(missing + "figures: {a: average_accuracy}\n")
    words = ["study", str(place / "study.yaml"), "--size", "paper", "--out", str(place / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert f"x.safetensors: x.safetensors into {place}/; put the original" in done.stderr


def indented(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith(("archgraph", "name"))]
    return "".join(f"  {line}\n" for line in lines)
