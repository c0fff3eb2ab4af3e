"""What clients train and the server would throw away is refused before the first round."""

from __future__ import annotations

from pathlib import Path

import pytest

from archgraph.engine.world import begun, prepare
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
    )
    return file


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("strategy", ["heterofl: {mode: dynamic}", "inclusivefl: {}", "fedfa: {}"])
def test_what_no_mean_reaches_is_refused(tmp_path: Path, added: str, strategy: str) -> None:
    file = write(tmp_path, ADDED[added], strategy)
    with pytest.raises(RunError, match=r"tier more: .*the global model lacks") as caught:
        begun(prepare(file))
    assert "either a source or an initialiser" not in str(caught.value)
    named = {"adapters": "adapter.down.weight", "steps": "step_size", "exit": "end"}[added]
    assert named in str(caught.value.found) and "`change`" in str(caught.value)
    (verdict,) = verdicts([file])
    assert str(verdict.error) == str(caught.value)


@pytest.mark.parametrize("strategy", ["flexifed", "standalone", "nefl"])
def test_strategies_that_keep_it_go_on(tmp_path: Path, strategy: str) -> None:
    begun(prepare(write(tmp_path, ADDED["adapters"], f"{strategy}: {{}}")))


def test_frozen_additions_and_those_of_the_global_model_go_on(tmp_path: Path) -> None:
    frozen = f"{ADDED['adapters']}, train_only: ['stem*']"
    begun(prepare(write(tmp_path, frozen, "heterofl: {}")))
    begun(prepare(write(tmp_path, "take: 0.5", "heterofl: {}", ADDED["adapters"])))
