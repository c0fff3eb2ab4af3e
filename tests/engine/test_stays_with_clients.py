"""What clients train and the global model lacks stays with them, and is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from archgraph.engine.local import execute
from archgraph.engine.stays_with_clients import kept_additions
from archgraph.engine.world import first_state, prepare
from archgraph.errors import RunError
from archgraph.language import verdicts

MODEL = """archgraph: 1
inputs: {image: [1, 8, 8]}
blocks:
  residual: {shortcut: auto, steps: [linear: 16, relu]}
sections:
  - {name: stem, steps: [flatten, linear: 16]}
  - {name: body, block: residual, depth: 2}
  - {name: head, steps: [linear: 10]}
"""
ADDED = {
    "adapters": "add_adapters: 2",
    "steps": "add_step_sizes: true",
    "exit": "ends_after: {section: body, head: 10}",
}


def write(folder: Path, client: str, strategy: str, change: str = "") -> Path:
    (folder / "m.yaml").write_text(MODEL)
    file = folder / "e.yaml"
    file.write_text(
        "archgraph: 1\nname: e\nfamily:\n  model: m.yaml\n"
        f"  change: {{{change}}}\n  clients: [{{name: plain}}, {{name: more, {client}}}]\n"
        f"data: {{dataset: digits, limit: 40}}\nstrategy: {{{strategy}}}\nrounds: 2\n"
        f"local: {{lr: 0.1}}\n"
    )
    return file


@pytest.mark.sample(3)
@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("strategy", ["heterofl: {mode: dynamic}", "inclusivefl: {}", "fedfa: {}"])
def test_what_no_mean_reaches_stays_with_its_client(
    tmp_path: Path, added: str, strategy: str
) -> None:
    setup = prepare(write(tmp_path, ADDED[added], strategy))
    run = execute(setup, progress=False)
    part = {"adapters": "adapter.down.weight", "steps": "step_size", "exit": "end"}[added]
    (note,) = (note for note in run.notes if "the global model lacks" in note)
    assert note.startswith("tier more: ") and part in note
    assert not run.troubles
    tested = {model.name: model.private for model in run.models}
    assert tested == {"global": False, "plain": False, "more": True}
    names = kept_additions(setup, first_state(setup))["more"]
    assert any(part in name for name in names)
    assert not any(part in name for name in run.server.tensors)


@pytest.mark.parametrize(
    ("strategy", "added", "message"),
    [
        ("fedadp", "adapters", r"body.0.adapter.down.weight: the global model has no such"),
        ("nefl", "steps", r"the strategy cannot use weights that the global model lacks"),
    ],
)
def test_a_strategy_that_cannot_use_it_says_so(
    tmp_path: Path, strategy: str, added: str, message: str
) -> None:
    file = write(tmp_path, ADDED[added], f"{strategy}: {{}}")
    with pytest.raises(RunError, match=f"tier more: .*{message}") as caught:
        first_state(prepare(file))
    (verdict,) = verdicts([file])
    assert str(verdict.error) == str(caught.value)


@pytest.mark.parametrize("strategy", ["flexifed", "standalone", "nefl"])
def test_strategies_that_keep_or_merge_it_themselves_go_on(tmp_path: Path, strategy: str) -> None:
    setup = prepare(write(tmp_path, ADDED["adapters"], f"{strategy}: {{}}"))
    assert not kept_additions(setup, first_state(setup)) or strategy == "flexifed"


def test_frozen_additions_and_those_of_the_global_model_go_on(tmp_path: Path) -> None:
    frozen = f"{ADDED['adapters']}, train_only: ['stem*']"
    first_state(prepare(write(tmp_path, frozen, "heterofl: {}")))
    first_state(prepare(write(tmp_path, "take: 0.5", "heterofl: {}", ADDED["adapters"])))
