"""References: by hand, beside scikit-learn, blind to test labels; gates as computed by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from archgraph.cli import app
from archgraph.data import Dataset, Split, load_dataset
from archgraph.engine.experiment import Experiment
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.federation import TASKS, Client
from archgraph.language import load_experiment
from archgraph.language.data import IidSpec
from archgraph.language.experiment import AttackSpec
from archgraph.language.validation import ValidationSpec
from archgraph.studies.references import (
    PASSES,
    References,
    SettingGate,
    TrivialReference,
    gate,
    gate_setting,
    references,
    table_weights,
)
from archgraph.studies.trivial_models import (
    NEIGHBOURS,
    PENALTIES,
    Bigrams,
    Labelled,
    bigram_table,
    interpolation,
    majority_class,
    nearest_neighbours,
    softmax_regression,
    unigram_table,
)

LINEAR = """\
archgraph: 1
name: linear
family:
  model:
    archgraph: 1
    name: net
    inputs: {image: [1, 8, 8]}
    sections:
      - {name: body, steps: [flatten]}
      - {name: head, steps: [linear: 10]}
  clients: [{name: all, count: 4}]
data: {dataset: digits, limit: 400, partition: {scheme: classes, per_client: 3}}
strategy: {fedavg: {}}
local: {lr: 0.05, epochs: 2}
rounds: 3
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("references") / "linear.yaml"
    path.write_text(LINEAR)
    return path


@pytest.fixture(scope="module")
def linear(file: Path) -> Experiment:
    return prepare(file)


@pytest.fixture(scope="module")
def known(linear: Experiment) -> References:
    return references(linear)


def labelled(split: Split) -> Labelled:
    inputs, targets = split.batch(slice(None))
    return Labelled(inputs.flatten(1), targets)


def together(experiment: Experiment) -> Labelled:
    """The examples of all clients; classes that no client owns are nobody's."""
    at = torch.cat([torch.from_numpy(share) for share in experiment.shares]).unique()
    return labelled(experiment.data.train).at(at.numpy())


def row(known: References, name: str) -> TrivialReference:
    return next(one for one in known.rows if one.name == name)


def relabelled(experiment: Experiment, part: str, targets: torch.Tensor) -> Experiment:
    """The experiment with other targets in `train` or `test`."""
    split = dataclasses.replace(getattr(experiment.data, part), targets=targets)
    data: Any = {part: split}
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, **data))


def text_of(*numbers: int) -> Bigrams:
    stream = torch.tensor(numbers)
    return Bigrams(stream[:-1], stream[1:])


def text_experiment(
    base: Experiment, train: torch.Tensor, test: torch.Tensor, words: int
) -> Experiment:
    """An experiment on windows of two words, half of them of each of two clients."""

    def split(stream: torch.Tensor) -> Split:
        length = (len(stream) - 1) // 2
        return Split(stream[: 2 * length].view(-1, 2), stream[1 : 2 * length + 1].view(-1, 2))

    data = Dataset("text", "text", words, (2,), split(train), split(test))
    shares = tuple(part.numpy() for part in torch.arange(len(data.train)).tensor_split(2))
    clients = tuple(Client(i, "all", len(own), (0,) * words) for i, own in enumerate(shares))
    world = dataclasses.replace(
        base.world, learning=TASKS["next_token"], clients=clients, classes=words
    )
    return dataclasses.replace(base, world=world, data=data, shares=shares)


# ---------------------------------------------------------------- the models


def test_softmax_regression_has_the_accuracy_of_scikit_learns_optimum():
    linear_model = pytest.importorskip("sklearn.linear_model")
    data = load_dataset("digits")
    train, test = labelled(data.train), labelled(data.test)
    penalties = (1.0, 0.1, 0.01, 0.001)
    for penalty, logits in softmax_regression(train, test.inputs, 10, penalties):
        # scikit-learn minimises C · Σ loss + ‖W‖² / 2.
        theirs = linear_model.LogisticRegression(
            C=1 / (penalty * len(train.targets)), max_iter=5000, tol=1e-8
        ).fit(train.inputs.double().numpy(), train.targets.numpy())
        expected = theirs.score(test.inputs.double().numpy(), test.targets.numpy())
        accuracy = float((logits.argmax(1) == test.targets).double().mean())
        assert accuracy == pytest.approx(expected, abs=1e-3)


def test_softmax_regression_of_no_information_has_the_shares_of_the_classes():
    # Features that are all 0: only biases are left, whose optimum are the classes' log shares.
    rows = Labelled(torch.zeros(10, 3), torch.tensor([0] * 5 + [1] * 3 + [2] * 2))
    _, logits = next(softmax_regression(rows, torch.zeros(1, 3), 3, [0.1]))
    assert logits.softmax(1)[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=1e-3)


def test_majority_class_of_equals_is_the_first():
    rows = Labelled(torch.zeros(4, 1), torch.tensor([2, 1, 1, 2]))
    _, scores = next(majority_class(rows, torch.zeros(3, 1), 3, [0]))
    assert scores.argmax(1).tolist() == [1, 1, 1]


def test_nearest_neighbours_by_hand():
    rows = Labelled(torch.tensor([[0.0], [1.0], [2.0], [10.0]]), torch.tensor([1, 0, 0, 2]))
    votes = dict(nearest_neighbours(rows, torch.tensor([[0.1]]), 3, [1, 2, 3, 99]))
    # One: its own. Two: one vote each, of which the nearer counts. Three and all: two to one.
    assert {k: int(v.argmax(1)) for k, v in votes.items()} == {1: 1, 2: 1, 3: 0, 99: 0}


def test_unigram_perplexity_by_hand(linear: Experiment):
    # Next words of the training text: 1 2 1 2 1 1 | 1 1 1 1 of which the last fifth is held out.
    train = torch.tensor([0, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1])
    test = torch.tensor([0, 1, 2, 3, 1])
    one = row(references(text_experiment(linear, train, test, 4)), "unigram table")
    # Held out are two words 1, which the unigram table (6/8) says better than the uniform one
    # (1/4): its weight goes to 1, and then the word 3, which was never counted, to infinity.
    words = Bigrams(train[:-1], train[1:])
    uniform, unigram = table_weights(unigram_table, words, 4).tolist()
    assert unigram > 0.999
    by_hand = [uniform / 4 + unigram * share for share in (0.8, 0.2, 0.0, 0.8)]
    assert one.pooled == pytest.approx(math.exp(-sum(map(math.log, by_hand)) / 4))


def test_bigram_table_by_hand():
    text = text_of(0, 1, 0, 1, 0, 2, 3)
    columns = bigram_table(text, text_of(0, 1, 2), 4)
    # After 0: 1 twice, 2 once. After 1: 0 twice, never 2.
    assert columns[:, 2].tolist() == pytest.approx([2 / 3, 0])
    assert columns[:, 1].tolist() == pytest.approx([2 / 6, 1 / 6])
    assert columns[:, 0].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("counted", [unigram_table, bigram_table])
def test_probabilities_of_all_words_sum_to_1_after_every_word(counted):
    text = text_of(0, 1, 0, 1, 0, 2, 3)  # nothing follows 3
    for before in range(5):
        every = Bigrams(torch.full((5,), before), torch.arange(5))
        assert torch.allclose(counted(text, every, 5).sum(0), torch.ones((), dtype=torch.float64))


def test_interpolation_is_the_optimum_of_a_grid():
    columns = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).double()
    best = max(
        range(1001),
        key=lambda i: float((columns @ torch.tensor([i, 1000 - i]).double()).log().sum()),
    )
    assert float(interpolation(columns)[0]) == pytest.approx(best / 1000, abs=2e-3)


# ---------------------------------------------------------------- references


def test_references_are_those_of_what_was_chosen(linear: Experiment, known: References):
    train, test = together(linear), labelled(linear.data.test)
    softmax = row(known, "softmax regression")
    penalty = float(softmax.chosen.removeprefix("L2 "))
    assert penalty in PENALTIES
    _, logits = next(softmax_regression(train, test.inputs, 10, [penalty]))
    assert softmax.pooled == float((logits.argmax(1) == test.targets).double().mean())
    assert float(row(known, "nearest neighbours").chosen.removeprefix("k = ")) in NEIGHBOURS


def test_equal_experiments_have_equal_references(file: Path, known: References):
    torch.manual_seed(5)
    assert references(prepare(file)) == known


def test_labels_of_tests_decide_nothing_that_is_fitted(linear: Experiment, known: References):
    test = linear.data.test
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    other = references(relabelled(linear, "test", test.targets[order]))
    assert [one.chosen for one in other.rows] == [one.chosen for one in known.rows]
    # The same classes are answered: only what counts as right has changed.
    penalty = float(row(known, "softmax regression").chosen.removeprefix("L2 "))
    _, logits = next(softmax_regression(together(linear), labelled(test).inputs, 10, [penalty]))
    expected = float((logits.argmax(1) == test.targets[order]).double().mean())
    before, after = (row(one, "softmax regression").pooled for one in (known, other))
    assert after == expected != before


def test_a_clients_reference_knows_its_share_alone(linear: Experiment, known: References):
    _, *others = linear.shares
    targets = linear.data.train.targets.clone()
    for share in others:
        targets[share] = (targets[share] + 1) % 10
    other = references(relabelled(linear, "train", targets))
    for before, after in zip(known.rows, other.rows, strict=True):
        assert after.clients[0] == before.clients[0]
        assert after.own_matched[0] == before.own_matched[0]
    before, after = (row(one, "softmax regression") for one in (known, other))
    assert after.pooled != before.pooled and after.clients[1:] != before.clients[1:]


def test_figures_on_a_clients_own_mixture(linear: Experiment, known: References):
    majority = row(known, "majority class")
    for client, share in zip(linear.world.clients, majority.own_matched, strict=True):
        # Its most frequent class is right wherever it occurs, and nothing else is.
        assert share == pytest.approx(max(client.histogram) / sum(client.histogram))
    softmax = row(known, "softmax regression")
    # Three classes of ten: whoever knows no others is better there than everywhere.
    assert all(a > b for a, b in zip(softmax.own_matched, softmax.clients, strict=True))


def test_held_out_examples_are_not_fitted(file: Path):
    experiment = prepare(gate_setting(load_experiment(file), 7))
    known = references(experiment.validating)
    assert known.tested == len(experiment.held_out) > 50
    assert known.trained == len(together(experiment).targets)
    assert not set(experiment.held_out) & set(np.concatenate(experiment.shares))
    targets = experiment.data.train.targets.clone()
    targets[experiment.held_out] = 0
    other = references(relabelled(experiment, "train", targets))
    assert [one.chosen for one in other.rows] == [one.chosen for one in known.rows]


def test_a_client_of_one_example_has_a_reference(linear: Experiment):
    shares = (linear.shares[0][:1], *linear.shares[1:])
    known = references(dataclasses.replace(linear, shares=shares))
    assert all(0 <= one.clients[0] <= 0.25 for one in known.rows)


def test_ignored_targets_count_for_nothing(linear: Experiment, known: References):
    targets = linear.data.test.targets.clone()
    targets[::2] = -100
    majority = row(references(relabelled(linear, "test", targets)), "majority class")
    hit = max(range(10), key=lambda c: int((together(linear).targets == c).sum()))
    assert majority.pooled == float((linear.data.test.targets[1::2] == hit).double().mean())


def test_tokens_are_known_by_which_occur(linear: Experiment):
    # The class is whether token 3 occurs, whatever its place: no number of a token says so.
    tokens = torch.randint(4, 9, (400, 6), generator=torch.Generator().manual_seed(0))
    targets = torch.arange(400) % 2
    tokens[torch.arange(400), torch.arange(400) % 6] = torch.where(targets == 1, 3, 4)
    split = Split(tokens.to(torch.int16), targets)
    data = Dataset("words", "text", 2, (6,), split, split)
    known = references(dataclasses.replace(linear, data=data))
    assert row(known, "softmax regression").pooled == 1


def test_a_task_without_references_is_refused(linear: Experiment):
    world = dataclasses.replace(linear.world, learning=TASKS["regression"])
    with pytest.raises(RunError, match="found regression; expected classification or next_token"):
        references(dataclasses.replace(linear, world=world))


def test_the_table_says_what_was_fitted_and_what_does_not_gate(
    linear: Experiment, known: References
):
    table = known.table()
    assert [cells[0] for cells in table.rows] == [one.name for one in known.rows]
    assert table.rows[1][1] == f"{100 * row(known, 'softmax regression').pooled:.2f}"
    assert f"{len(together(linear).targets)} training examples of 4 clients" in table.note
    assert "Not a gate: nearest neighbours." in table.note


# ---------------------------------------------------------------- gates


def by_hand(experiment: Experiment, steps: int) -> float:
    """A linear model, trained centrally: no shuffling could be repeated, so in one batch."""
    train = together(experiment)
    at = torch.from_numpy(experiment.held_out)
    x, y = experiment.data.train.batch(at)
    weight, bias = (
        experiment.world.state[f"head.linear.{k}"].clone().requires_grad_()
        for k in ("weight", "bias")
    )
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(train.inputs @ weight.T + bias, train.targets)
        slopes = torch.autograd.grad(loss, (weight, bias))
        with torch.no_grad():
            weight -= experiment.local.lr * slopes[0]
            bias -= experiment.local.lr * slopes[1]
    return float(((x.flatten(1) @ weight.T + bias).argmax(1) == y).double().mean())


def test_a_linear_model_passes_or_fails_as_computed_by_hand(file: Path):
    spec = gate_setting(load_experiment(file), 7)
    outcomes = []
    for rounds in (1, 60):
        local = spec.local.model_copy(update={"batch": 10_000, "epochs": 1, "lr": 0.5})
        setup = prepare(spec.model_copy(update={"rounds": rounds, "local": local}))
        judged = gate(setup, passes=60)
        assert judged.central == pytest.approx(by_hand(setup, rounds), abs=1e-6)
        assert judged.passes == judged.asked == rounds and judged.model == "global"
        outcomes.append(judged.passed)
        gating = [row for row in judged.references.rows if row.name != "nearest neighbours"]
        assert judged.passed == (judged.central > max(row.pooled for row in gating))
    assert not outcomes[0]


def test_central_training_is_bounded(file: Path):
    spec = gate_setting(load_experiment(file), 7).model_copy(update={"rounds": 200})
    judged = gate(prepare(spec), passes=4)
    assert (judged.passes, judged.asked) == (4, 400) and 400 > PASSES
    assert "clients make 400 passes" in judged.table().note


def test_a_gate_sees_no_test_data(file: Path):
    setup = prepare(gate_setting(load_experiment(file), 7))
    other = relabelled(setup, "test", setup.data.test.targets * 0)
    assert gate(setup, passes=2) == gate(other, passes=2)


def test_training_that_diverges_passes_no_gate(file: Path):
    spec = gate_setting(load_experiment(file), 7)
    local = spec.local.model_copy(update={"lr": 1e38})
    judged = gate(prepare(spec.model_copy(update={"local": local})))
    assert math.isnan(judged.central) and not judged.passed
    assert judged.verdict == "not fit to be run"


def test_a_gate_needs_another_seed_and_held_out_examples(file: Path, linear: Experiment):
    with pytest.raises(RunError, match="own seed"):
        gate_setting(load_experiment(file), 0)
    with pytest.raises(RunError, match="needs held-out examples"):
        gate(linear)


def test_clients_train_on_as_many_examples_in_a_gate_as_in_the_study(file: Path):
    """With fewer, the last minibatch of a pass has another size: under batch norm, another run."""
    spec = load_experiment(file)
    data = spec.data.model_copy(update={"limit": 400, "partition": IidSpec(scheme="iid")})
    spec = spec.model_copy(update={"data": data})
    gated = prepare(gate_setting(spec, 7))
    assert sum(map(len, gated.shares)) == sum(map(len, prepare(spec).shares)) == 400
    assert len(gated.held_out) == 100
    held = spec.model_copy(update={"validation": ValidationSpec(clients=0.5)})
    assert sum(map(len, prepare(gate_setting(held, 7)).shares)) == 200  # the study's own


def test_a_gates_setting_is_clean(file: Path):
    spec = load_experiment(file).model_copy(
        update={"attack": AttackSpec(fraction=0.5), "out": "runs/x"}
    )
    setting = gate_setting(spec, 7)
    assert (setting.seed, setting.attack, setting.out) == (7, None, None)
    assert not prepare(setting).malicious


ROWS = (
    TrivialReference("majority class", 0.1, (0.1, 0.2), (0.1, 0.1), (0.5, 0.7)),
    TrivialReference("softmax regression", 0.8, (0.5, 0.6), (0.7, 0.9), (0.9, 0.5)),
    TrivialReference("nearest neighbours", 0.99, (0.99, 0.99), (0.99, 0.99), (0.99, 0.99)),
)
ACCURACIES = References("digits", "accuracy", 100, 50, ROWS)
WORDS = References(
    "text",
    "perplexity",
    100,
    50,
    (
        TrivialReference("unigram table", 1500.0, (2000.0, 1800.0)),
        TrivialReference("bigram table", 1200.0, (1900.0, 2100.0)),
    ),
)


@pytest.mark.parametrize(
    ("central", "methods", "personal", "passed"),
    [
        (0.81, {}, False, [True]),
        (0.8, {}, False, [False]),  # not better
        (math.nan, {}, False, [False]),
        (0.9, {"a": 0.7, "b": 0.85}, False, [True, True, True]),
        (0.9, {"a": 0.7, "b": math.nan}, False, [True, False, True]),
        (0.9, {"a": 0.55}, False, [True, False, False]),  # the best client's, 0.6
        (0.9, {"a": math.nan}, False, [True, False, False]),
        (0.9, {"a": 0.81}, True, [True, True, True]),  # 0.8 pooled and 0.7 alone, on own mixtures
        (0.9, {"a": 0.75}, True, [True, False, True]),
    ],
)
def test_gates_of_accuracy(central, methods, personal, passed):
    judged = SettingGate(ACCURACIES, 9, "large", 5, 5, central, methods, personal)
    assert [one.passed for one in judged.comparisons] == passed
    assert judged.passed == all(passed)
    assert len(judged.table().rows) == len(passed)
    fit = "fit to be run" if methods else "passed by central training; methods are next"
    assert judged.verdict == (fit if all(passed) else "not fit to be run")


def test_gates_of_perplexity_want_less():
    judged = SettingGate(WORDS, 9, "large", 5, 5, 1100.0, {"a": 1300.0, "b": 1150.0})
    assert judged.passed
    assert [one.reference for one in judged.comparisons] == [1200.0, 1200.0, 1800.0]
    assert judged.comparisons[2].than == "unigram table, one client"
    assert not SettingGate(WORDS, 9, "large", 5, 5, 1300.0).passed


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_table(file: Path, known: References):
    done = CliRunner().invoke(app, ["references", str(file)])
    assert done.exit_code == 0, done.output
    assert f"{100 * row(known, 'softmax regression').pooled:.2f}" in done.output


def test_the_command_takes_settings_and_judges_the_gate(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["references", str(file), "--gate", "7", "--set", "rounds=1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and "not fit to be run" in done.output
    assert "trained centrally (2 passes)" in done.output


# ---------------------------------------------------------------- real data


def test_tables_on_wikitext(data_root: Path):
    data = load_dataset("wikitext2", data_root, limit=150)
    splits = (data.train, data.test)
    train, test = (Bigrams(s.inputs.flatten(), s.targets.flatten()) for s in splits)
    words = data.classes or 0
    reached = []
    for counted in (unigram_table, bigram_table):
        probabilities = counted(train, test, words) @ table_weights(counted, train, words)
        reached.append(math.exp(-float(probabilities.log().mean())))
    assert reached == pytest.approx([1503.5, 1198.9], rel=1e-3)
