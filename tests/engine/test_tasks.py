"""Every task from end to end on small data: what is learned, what is measured, what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.engine.local import execute
from archgraph.engine.task import OwnLoss
from archgraph.engine.testing import answers
from archgraph.engine.world import prepare
from archgraph.federation import TASKS, LearningTask, TaskLoss
from archgraph.federation.learning import Standardised
from archgraph.federation.tasks import Examples
from archgraph.language import ExperimentSpec


def made(kind: str, count: int = 60, seed: int = 0) -> Dataset:
    """Data whose targets follow from their inputs: a network can learn them."""
    generator = torch.Generator().manual_seed(seed)
    if kind in ("regression", "multilabel"):
        inputs = torch.randn(count, 6, generator=generator)
        values = inputs @ torch.randn(6, 3, generator=generator)
        targets = values[:, 0] if kind == "regression" else values > 0
        shape: tuple[int, ...] = (6,)
    else:
        inputs = torch.randn(count, 1, 8, 8, generator=generator)
        targets = (inputs[:, 0] > 0).long() + (inputs[:, 0] > 1).long()
        shape = (1, 8, 8)
    classes = None if kind == "regression" else 3
    test = count // 3
    splits = Split(inputs[test:], targets[test:]), Split(inputs[:test], targets[:test])
    return Dataset(f"made {kind}", "tensor", classes, shape, *splits)


DENSE = """
archgraph: 1
inputs: {row: [6]}
blocks:
  plain: {shortcut: identity, steps: [linear: {out: 16}, relu]}
sections:
  - {name: stem, steps: [linear: {out: 16}, relu]}
  - {name: body, block: plain, depth: 2}
  - {name: head, steps: [linear: {out: OUT}]}
"""
PIXELS = """
archgraph: 1
inputs: {image: [1, 8, 8]}
blocks:
  plain: {shortcut: identity, steps: [conv: {out: 8, kernel: 3}, batch_norm, relu]}
sections:
  - {name: stem, steps: [conv: {out: 8, kernel: 3}, batch_norm, relu]}
  - {name: body, block: plain, depth: 2}
  - {name: head, steps: [conv: {out: 3, kernel: 1}]}
"""


Write = Callable[..., ExperimentSpec]


@pytest.fixture
def spec(tmp_path) -> Write:
    """An experiment on a model that fits the data."""

    def write(
        kind: str, strategy: str = "fedavg: {}", clients: str = "", more: str = ""
    ) -> ExperimentSpec:
        outs = {"regression": "1", "multilabel": "3"}
        model = DENSE.replace("OUT", outs[kind]) if kind in outs else PIXELS
        (tmp_path / "net.yaml").write_text(model)
        (tmp_path / "tried.yaml").write_text(f"""
name: tried
data: {{dataset: digits}}
family: {{model: net.yaml, clients: [{clients or "{name: all, count: 2}"}]}}
strategy: {{{strategy}}}
rounds: 2
local: {{epochs: 1, batch: 10, lr: 0.05}}
{more}
""")
        return ag.load_experiment(tmp_path / "tried.yaml")

    return write


NARROW = "{name: narrow, count: 1, take: 0.5}, {name: whole, count: 1}"
SHALLOW = "{name: shallow, count: 1, shorten: {body: 1}}, {name: whole, count: 1}"
BOTH = "{name: small, count: 1, shorten: {body: 1}, take: 0.5}, {name: whole, count: 1}"


@pytest.mark.parametrize("kind", ["regression", "multilabel", "segmentation"])
def test_what_is_learned_is_what_the_type_of_the_targets_says(spec, kind):
    done = execute(prepare(spec(kind), data=made(kind)), progress=False)
    task = done.experiment.world.learning
    assert task.name == kind
    figures = done.evaluation["global"]
    assert set(figures) == set(task.better)
    assert all(math.isfinite(value) for value in figures.values())
    assert next(iter(done.evaluation["better"])) == task.judge
    assert task.judge in str(done.table())


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("strategy", "clients"),
    [
        ("heterofl: {}", NARROW),
        ("nefl: {}", BOTH),
        ("fedadp: {}", BOTH),
        ("fedfa: {}", SHALLOW),
        ("fedrolex: {}", NARROW),
    ],
    ids=["heterofl", "nefl", "fedadp", "fedfa", "fedrolex"],
)
@pytest.mark.parametrize("kind", ["regression", "segmentation"])
def test_strategies_learn_every_kind_of_target(spec, kind, strategy, clients):
    """Two rounds make the global model better than it was."""
    setup = prepare(spec(kind, strategy, clients), data=made(kind), python=True)
    done = execute(setup, progress=False)
    first, last = (line["evaluation"]["global"]["loss"] for line in done.rounds)
    assert done.sound and not done.troubles
    assert last < first


def test_recipfl_says_why_it_does_not_learn_numbers(spec):
    text = (
        r"strategy\.recipfl: cannot learn this task: it distils probabilities of classes "
        r"\(Eq. 9\); "
        "found regression; expected classification or segmentation or next_token"
    )
    with pytest.raises(ag.RunError, match=text):
        prepare(spec("regression", "recipfl: {}"), data=made("regression"))


# ---------------------------------------------------------------- figures against definitions


def measured(task: LearningTask, said: torch.Tensor, targets: torch.Tensor, batch: int) -> Any:
    class Says(nn.Module):
        def forward(self, at):
            return said[at]

    data = Split(torch.arange(len(said)), targets)
    (found,) = answers(Says(), data, learning=task, batch=batch)
    return found.summary()


def in_thousands() -> Dataset:
    """Targets of a mean of 300,000, which no model learns as they are."""
    data = made("regression")
    large = [
        dataclasses.replace(part, targets=part.targets * 50_000 + 300_000)
        for part in (data.train, data.test)
    ]
    return dataclasses.replace(data, train=large[0], test=large[1])


def test_standardised_targets_are_measured_in_their_own_units(spec):
    plain, ours = (
        execute(prepare(spec("regression", more=f"task: {task}"), data=data), progress=False)
        for task, data in (
            ("regression", made("regression")),
            ("{kind: regression, standardise: true}", in_thousands()),
        )
    )
    before, found = (run.evaluation["global"] for run in (plain, ours))
    assert found["r2"] > 0.3 and found["loss"] < 3 < found["mae"]
    loss = ours.experiment.world.learning.loss
    assert isinstance(loss, Standardised)
    assert found["mse"] == pytest.approx(float(loss.std) ** 2 * found["loss"], rel=1e-4)
    assert found["rmse"] == pytest.approx(math.sqrt(found["mse"]))
    assert before["loss"] == pytest.approx(before["mse"])  # as ever without it


def test_targets_alike_in_all_rows_are_not_divided_by_nothing(spec):
    data = made("regression")
    same = dataclasses.replace(data.train, targets=torch.full_like(data.train.targets, 7.0))
    text = "task: {kind: regression, standardise: true}"
    run = prepare(spec("regression", more=text), data=dataclasses.replace(data, train=same))
    loss = run.world.learning.loss
    assert isinstance(loss, Standardised)
    assert loss.restored(torch.zeros(2, 1)).tolist() == [7.0, 7.0]
    with pytest.raises(ag.SpecError, match=r"standardise: applies to numeric targets only"):
        spec("segmentation", more="task: {kind: segmentation, standardise: true}")


@pytest.mark.parametrize("batch", [3, 20])
def test_figures_of_a_regression_are_those_of_the_whole_set(batch):
    """Against numpy, whatever the batches; R² is not the mean of those of batches."""
    generator = torch.Generator().manual_seed(0)
    said, true = torch.randn(20, 2, generator=generator), torch.randn(20, 2, generator=generator)
    found = measured(TASKS["regression"], said, true, batch)
    a, b = said.double().numpy(), true.double().numpy()
    assert found["mse"] == pytest.approx(np.mean((a - b) ** 2), rel=1e-9)
    assert found["mae"] == pytest.approx(np.mean(np.abs(a - b)), rel=1e-9)
    r2 = 1 - ((a - b) ** 2).sum(0) / ((b - b.mean(0)) ** 2).sum(0)
    assert found["r2"] == pytest.approx(r2.mean(), rel=1e-9)
    assert found["loss"] == pytest.approx(found["mse"], rel=1e-6)


def test_r2_is_exact_where_targets_are_far_from_zero():
    true = torch.tensor([4_000_000.0, 4_000_001.0, 4_000_002.0, 4_000_003.0])
    said = true + torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert measured(TASKS["regression"], said[:, None], true, 2)["r2"] == pytest.approx(1 - 4 / 5)


@pytest.mark.parametrize("batch", [3, 20])
def test_mean_iou_is_that_of_the_whole_set(batch):
    generator = torch.Generator().manual_seed(1)
    said = torch.randn(20, 4, 5, 6, generator=generator)
    true = torch.randint(3, (20, 5, 6), generator=generator)  # the fourth class is only predicted
    true[0, :2] = -100
    found = measured(TASKS["segmentation"], said, true, batch)
    kept = true != -100
    guess = said.argmax(1)
    scores = []
    for value in range(4):
        a, b = (guess == value) & kept, (true == value) & kept
        scores.append(float((a & b).sum() / (a | b).sum()))
    assert found["iou"] == pytest.approx(np.mean(scores), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float((guess == true)[kept].double().mean()))
    loss = functional.cross_entropy(said.double(), true)
    assert found["loss"] == pytest.approx(float(loss), rel=1e-6)


@pytest.mark.parametrize("batch", [3, 20])
def test_f1_of_labels_is_that_of_the_whole_set(batch):
    generator = torch.Generator().manual_seed(2)
    said = torch.randn(20, 3, generator=generator)
    true = torch.rand(20, 3, generator=generator) > 0.6
    found = measured(TASKS["multilabel"], said, true, batch)
    guess = said > 0
    right, wrong = (guess & true).sum(), (guess & ~true).sum()
    f1 = 2 * right / (2 * right + wrong + (~guess & true).sum())
    assert found["f1"] == pytest.approx(float(f1))
    assert found["accuracy"] == pytest.approx(float((guess == true).double().mean()))


def test_masks_of_absent_labels_keep_training_from_pushing_them_down(tiny_work):
    """HeteroFL's mask carries over: an absent label has no gradient."""
    logits = torch.zeros(2, 3, requires_grad=True)
    work = tiny_work("multilabel", (3, 0, 1))
    batch = Examples((), torch.tensor([[True, False, False]] * 2), torch.arange(2))
    TaskLoss(mask_absent=True)(logits, batch, work).backward()
    assert logits.grad is not None
    assert logits.grad[:, 1].eq(0).all() and logits.grad[:, [0, 2]].ne(0).all()


@pytest.fixture
def tiny_work() -> Callable[[str, tuple[int, ...]], Any]:
    @dataclasses.dataclass
    class Held:
        learning: LearningTask
        present: torch.Tensor

    return lambda name, counts: Held(TASKS[name], torch.tensor(counts) > 0)


# ---------------------------------------------------------------- one's own objective


def huber(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.huber_loss(predictions.squeeze(-1), targets)


def test_a_loss_of_ones_own_is_what_is_minimised_and_tested(spec):
    task = f"task: {{kind: regression, objective: 'python:{__name__}:huber', metrics: [r2]}}"
    text = task.replace(__name__, "tests.engine.test_tasks")
    setup = prepare(spec("regression", more=text), data=made("regression"), python=True)
    assert setup.world.learning.judge == "r2"
    done = execute(setup, progress=False)
    model = done.models[0]
    inputs, targets = setup.data.test.batch(slice(None))
    net = ag.build(model.graph, model.state).eval()
    with torch.no_grad():
        expected = float(huber(net(inputs), targets))
    assert done.evaluation["global"]["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", ["values", "any"])
def test_a_loss_of_ones_own_is_not_broadcast(form):
    said = torch.arange(4.0)[:, None]
    loss = OwnLoss(lambda predictions, targets: (predictions - targets).abs().mean(), form)
    assert float(loss(said, said[:, 0])) == 0


def test_a_loss_of_ones_own_for_each_target_leaves_out_what_does_not_count():
    """It trains and is tested as the built-in one, whatever it says of ignored targets."""
    said, true = torch.randn(2, 5, 4), torch.tensor([[0, 3, -100, 1, -100], [-100] * 5])

    def each(predictions, targets):
        losses = nn.functional.cross_entropy(
            predictions.movedim(-1, 1), targets.clamp(min=0), reduction="none"
        )
        return losses + 9.0 * (targets < 0)

    built_in = TASKS["next_token"]
    own = dataclasses.replace(built_in, loss=OwnLoss(each, "classes"))
    for batch in (slice(0, 2), slice(1, 2)):
        found, expected = (task.loss(said[batch], true[batch]) for task in (own, built_in))
        assert float(found) == pytest.approx(float(expected), rel=1e-6)
    torch.testing.assert_close(own.losses(said, true), built_in.losses(said, true))


def test_an_example_of_unknown_form_counts_once_however_many_values_it_has(tiny_work):
    """What is tested is the number that training minimises."""
    work = tiny_work("regression", ())
    own = OwnLoss(lambda said, true: (said - true).abs())
    learning = dataclasses.replace(work.learning, form="any", loss=own, metrics=())
    said, true = torch.randn(2, 5, 3).unbind()
    split = Split(said, true)
    (tested,) = answers(nn.Identity(), split, learning=dataclasses.replace(learning, judge="loss"))
    minimised = float(learning.loss(said, true))
    assert tested.summary()["loss"] == pytest.approx(minimised, rel=1e-6)
    assert tested.summary([0])["loss"] == pytest.approx(float((said - true)[0].abs().mean()))


@pytest.mark.parametrize(
    "name", ["tests.engine.test_tasks:huber", "archgraph.engine.attack:Attack"]
)
def test_a_loss_of_ones_own_needs_consent(spec, name):
    task = f"task: {{objective: 'python:{name}'}}"
    with pytest.raises(ag.SpecError, match="names Python code, which is not run without"):
        prepare(spec("regression", more=task), data=made("regression"))


def test_what_is_not_a_loss_is_said(tiny_work):
    work = tiny_work("regression", ())
    wrong = dataclasses.replace(work.learning, loss=OwnLoss(lambda said, true: said[:1, None]))
    batch = Examples((), torch.zeros(4), torch.arange(4))
    with pytest.raises(ag.RunError, match=r"does not return a loss; found \(1, 1\)"):
        TaskLoss()(torch.zeros(4, 1), batch, dataclasses.replace(work, learning=wrong))
