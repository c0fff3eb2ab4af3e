"""What trivial models reach on the examples of an experiment, and the gate of its setting.

A table of methods that are worse than counting words, or than a softmax on pixels, shows nothing
about methods. References are fitted to the training examples of an experiment, of all its clients
or of one; what they choose (a penalty, a number of neighbours, weights of tables) they choose by
training examples that are held out for it, never by those that they are tested on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archgraph.analysis.cost import cost
from archgraph.data import Dataset, Split
from archgraph.data.partition import class_histogram, stratified_order
from archgraph.engine.experiment import Experiment
from archgraph.engine.precision import performed
from archgraph.engine.testing import Answers, answers
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import GLOBAL, Client, Model, State, Train, module_of, seeded
from archgraph.federation.metrics import IGNORED, METRICS, Metric, derived
from archgraph.graph.ir import ArchGraph
from archgraph.language import ExperimentSpec
from archgraph.language.data import NamedData
from archgraph.language.validation import ValidationSpec
from archgraph.processes.isolation import isolated, one_thread
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
from archgraph.tables import Table, plural

SOFTMAX, BIGRAM = "softmax regression", "bigram table"
HELD_OUT = 0.2
"""Share of training examples by which references choose, and by which gates judge."""
PASSES = 50
"""Most passes over all training examples that central training takes."""

FITTED = {
    "pooled": "pooled",
    "mean": "one client, mean",
    "best": "one client, best",
    "matched": "own mixture, pooled",
    "own_matched": "own mixture, one client",
}
"""Figures of a reference, by what it is fitted to and tested on, as tables call them."""
UNGATED = frozenset({"nearest neighbours"})
"""References that are printed and gate nothing."""

_PATIENCE = 2  # choices in a row that are worse than the best end the search


@dataclass(frozen=True)
class TrivialReference:
    """What a trivial model reaches.

    Attributes:
        name: The model.
        pooled: Its figure on all test data, fitted to the training examples of all clients.
        clients: By client, fitted to its own training examples alone; on all test data.
        matched: By client, of the pooled model: accuracy on the client's own mixture of classes
            (:meth:`archgraph.engine.testing.Answers.matched`). Clients without a test example of
            their classes are left out; empty for text.
        own_matched: The same of the model that is fitted to the client's own examples.
        chosen: What the pooled model chose on held-out training examples.
    """

    name: str
    pooled: float
    clients: tuple[float, ...]
    matched: tuple[float, ...] = ()
    own_matched: tuple[float, ...] = ()
    chosen: str = ""


@dataclass(frozen=True)
class References:
    """What trivial models reach on the examples of an experiment.

    Attributes:
        data: Name of the data set.
        figure: ``accuracy`` or ``perplexity``.
        trained: Number of training examples of all clients together (of windows, for text).
        tested: Number of test examples.
        rows: The references.
    """

    data: str
    figure: str
    trained: int
    tested: int
    rows: tuple[TrivialReference, ...]

    @property
    def more(self) -> bool:
        """Whether more of the figure is better."""
        return self.figure == "accuracy"

    def better(self, figure: float, other: float) -> bool:
        """Return whether a figure is better than another one; one that is not a number never is."""
        return figure > other if self.more else figure < other

    def text(self, figure: float) -> str:
        """Write a figure as tables do: accuracy in per cent."""
        return f"{100 * figure:.2f}" if self.more else f"{figure:.1f}"

    def table(self) -> Table:
        """Return a row for each reference; ``print`` draws it."""
        heads = [head for key, head in FITTED.items() if key in next(iter(self.summary().values()))]
        figures = (map(self.text, of.values()) for of in self.summary().values())
        rows = ((row.name, *of, row.chosen) for row, of in zip(self.rows, figures, strict=True))
        examples = "windows" if not self.more else "examples"
        clients = plural(len(self.rows[0].clients), "client")
        unit = "accuracy, %" if self.more else "perplexity"
        printed = "".join(f" Not a gate: {row.name}." for row in self.rows if row.name in UNGATED)
        return Table(
            f"References on {self.data}: {unit}",
            ("", *heads, "chosen"),
            tuple(rows),
            right=frozenset(range(1, len(heads) + 1)),
            note=f"Fitted to the {self.trained} training {examples} of {clients} together, or to "
            f"those of one; tested on {self.tested}.{printed}",
        )

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the figures of :meth:`table` by reference, as numbers."""
        summary = {}
        for row in self.rows:
            best = (max if self.more else min)(row.clients)
            figures = {"pooled": row.pooled, "mean": _mean(row.clients), "best": best}
            if row.matched:
                figures |= {"matched": _mean(row.matched), "own_matched": _mean(row.own_matched)}
            summary[row.name] = figures
        return summary


def best_reference(
    summary: Mapping[str, Mapping[str, float]], fitted: str, *, more: bool
) -> tuple[str, float]:
    """Return the gating reference that is best in a figure of :data:`FITTED`, and its figure.

    >>> summary = {
    ...     "a": {"pooled": 0.2},
    ...     "b": {"pooled": 0.3},
    ...     "nearest neighbours": {"pooled": 1.0},
    ... }
    >>> best_reference(summary, "pooled", more=True)
    ('b', 0.3)
    """
    figures = {name: row[fitted] for name, row in summary.items() if name not in UNGATED}
    best = (max if more else min)(figures, key=figures.__getitem__)
    return best, figures[best]


def references(experiment: Experiment) -> References:
    """Fit trivial models to the examples of an experiment, and test them.

    Classes: the most frequent one, softmax regression on the inputs as models take them (of tokens:
    on which occur), nearest neighbours. Text: unigram and bigram tables, interpolated. Held-out
    examples of the experiment are not among those that are fitted. Nothing is drawn from the state
    of the process: equal experiments have equal references.

    Args:
        experiment: A resolved experiment, as ``archgraph.engine.world.prepare`` returns it;
            its ``validating`` is tested on its held-out examples.

    Raises:
        RunError: If targets are neither one class for each example nor the next words.

    Example:
        >>> from archgraph.engine.world import prepare
        >>> experiment = prepare("specs/experiments/small/fjord_digits.yaml")  # doctest: +SKIP
        >>> print(references(experiment).table())  # doctest: +SKIP
    """
    task = experiment.world.learning.name
    if task not in _KINDS:
        expected = " or ".join(_KINDS)
        raise RunError("no reference is known for this task", found=task, expected=expected)
    figure, rows = _KINDS[task]
    # Sums of threads depend on their number.
    with one_thread():
        trained, tested = len(_pooled(experiment)), len(experiment.data.test)
        compared = tuple(rows(experiment))
        return References(experiment.data.name, figure, trained, tested, compared)


def _shares(experiment: Experiment) -> list[np.ndarray]:
    """Return the training examples of each client of the family, whatever else it trains."""
    return [experiment.shares[client.id] for client in experiment.world.participants]


def _pooled(experiment: Experiment) -> np.ndarray:
    # Clients may share examples.
    return np.unique(np.concatenate(_shares(experiment)))


# What references of classes are made of: the model, what it chooses from, how a choice is called.
_CLASSIFIERS = (
    ("majority class", majority_class, (0,), ""),
    (SOFTMAX, softmax_regression, PENALTIES, "L2 {:g}"),
    ("nearest neighbours", nearest_neighbours, NEIGHBOURS, "k = {:g}"),
)


def _of_classes(experiment: Experiment) -> Iterator[TrivialReference]:
    data = experiment.data
    classes, seed = data.classes or 0, experiment.world.seed
    known = (data.train.targets != IGNORED).numpy()
    shares = [share[known[share]] for share in _shares(experiment)]
    pooled = np.unique(np.concatenate(shares))
    train, test = _labelled(data)
    test = test.at((test.targets != IGNORED).nonzero()[:, 0].numpy())
    mixtures = [class_histogram(train.targets[share], classes) for share in shares]
    there = torch.bincount(test.targets, minlength=classes).numpy() > 0
    # Without a test example of its classes, a client has no figure on its own mixture.
    testable = [i for i, mixture in enumerate(mixtures) if (there & (mixture > 0)).any()]
    for name, model, choices, called in _CLASSIFIERS:
        answered = [
            _answered(model, train.at(share), test, classes, choices, seed)
            for share in (pooled, *shares)
        ]
        choice, together = answered[0]
        alone = [one for _, one in answered[1:]]
        yield TrivialReference(
            name,
            together.summary()["accuracy"],
            tuple(one.summary()["accuracy"] for one in alone),
            tuple(together.matched(test.targets, [mixtures[i].tolist() for i in testable])),
            tuple(alone[i].matched(test.targets, [mixtures[i].tolist()])[0] for i in testable),
            called.format(choice),
        )


Classifier = Callable[[Labelled, Tensor, int, Sequence[float]], Iterator[tuple[float, Tensor]]]


def chosen(
    model: Classifier, rows: Labelled, classes: int, choices: Sequence[float], seed: int
) -> float:
    """Return the choice with the best accuracy on held-out rows; the first of equals.

    Args:
        model: What is fitted to the other rows.
        rows: Training examples.
        classes: Number of classes.
        choices: In the order in which they are tried: after two in a row that are worse than the
            best, no more are.
        seed: Decides which rows are held out, classes in proportion.
    """
    order = stratified_order(rows.targets.numpy(), seed)
    count = round(HELD_OUT * len(order))
    if not count or len(choices) == 1:  # nothing to choose by, or from
        return choices[0]
    judging, rest = rows.at(order[:count]), rows.at(np.sort(order[count:]))
    best, most, worse = choices[0], -1, 0
    for choice, scores in model(rest, judging.inputs, classes, choices):
        right = int((scores.argmax(1) == judging.targets).sum())
        if right > most:
            best, most = choice, right
        worse = worse + 1 if right < most else 0
        # Weak penalties take the most steps, and overfit: they are not tried where that is plain.
        if worse == _PATIENCE:
            break
    return best


def _answered(
    model: Classifier,
    rows: Labelled,
    test: Labelled,
    classes: int,
    choices: Sequence[float],
    seed: int,
) -> tuple[float, Answers]:
    """Return what a model chooses, and which test examples it then classifies rightly."""
    choice = chosen(model, rows, classes, choices, seed)
    _, scores = next(model(rows, test.inputs, classes, [choice]))
    hits = {"accuracy": scores.argmax(1) == test.targets}
    accuracy = METRICS["accuracy", "classes"]
    assert isinstance(accuracy, Metric)  # counted example by example
    return choice, Answers([accuracy], hits, torch.ones_like(test.targets))


def _labelled(data: Dataset) -> Iterator[Labelled]:
    """Yield training and test examples as rows of numbers; of tokens: which occur."""
    splits = (data.train, data.test)
    words = 1 + max(int(split.inputs.max()) for split in splits) if data.integral else 0
    for split in splits:
        if data.integral:
            tokens = split.inputs.flatten(1).long()
            rows = torch.zeros(len(tokens), words).scatter_(1, tokens, 1.0)
        else:
            rows = torch.cat([x.flatten(1).float() for x in split.examples(slice(None))[0]], 1)
        yield Labelled(rows, split.targets)


def _of_words(experiment: Experiment) -> Iterator[TrivialReference]:
    data = experiment.data
    words = data.classes or 0
    test = _bigrams(data.test, np.arange(len(data.test)))
    texts = [_bigrams(data.train, share) for share in _shares(experiment)]
    everything = _bigrams(data.train, _pooled(experiment))
    for name, counted in (("unigram table", unigram_table), (BIGRAM, bigram_table)):
        weights = table_weights(counted, everything, words)
        clients = tuple(
            _perplexity(counted(text, test, words) @ table_weights(counted, text, words))
            for text in texts
        )
        pooled = _perplexity(counted(everything, test, words) @ weights)
        listed = ", ".join(f"{w:.2f}" for w in weights.tolist())
        yield TrivialReference(name, pooled, clients, chosen=f"weights {listed}")


def table_weights(
    counted: Callable[[Bigrams, Bigrams, int], Tensor], text: Bigrams, words: int
) -> Tensor:
    """Return the weights of tables, chosen by the end of a text, which is not counted for it."""
    # The end, not a random part: words beside one another belong together.
    cut = len(text.word) - round(HELD_OUT * len(text.word))
    judging, rest = text.at(slice(cut, None)), text.at(slice(cut))
    return interpolation(counted(rest, judging, words))


def _bigrams(split: Split, at: np.ndarray) -> Bigrams:
    chosen = torch.from_numpy(at)
    before, word = (x[chosen].flatten().long() for x in (split.inputs, split.targets))
    known = word != IGNORED
    return Bigrams(before[known], word[known])


def _perplexity(probabilities: Tensor) -> float:
    return float(probabilities.log().mean().neg().exp())


# Task → the figure of its references, and what makes them.
_KINDS: Mapping[str, tuple[str, Callable[[Experiment], Iterator[TrivialReference]]]] = {
    "classification": ("accuracy", _of_classes),
    "next_token": ("perplexity", _of_words),
}


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures) if figures else math.nan


class GateComparison(NamedTuple):
    """A comparison that a setting has to pass.

    Attributes:
        what: What has to be better.
        figure: Its figure.
        than: The reference.
        reference: The reference's figure.
        passed: Whether it is better.
    """

    what: str
    figure: float
    than: str
    reference: float
    passed: bool


@dataclass(frozen=True)
class SettingGate:
    """Whether a setting is fit to be run: whether methods could show anything in it.

    Attributes:
        references: References, tested on the held-out examples.
        seed: The seed, which is none of the study's.
        model: The largest model of the family.
        passes: Passes over all training examples that it was trained for.
        asked: Passes that clients make in all rounds.
        central: Its figure on the held-out examples; NaN if training diverged.
        methods: Figures of methods without attack, on the same examples; empty: none were run.
        personal: Whether these are means over clients, each on its own mixture of classes.
    """

    references: References
    seed: int
    model: str
    passes: int
    asked: int
    central: float
    methods: Mapping[str, float] = field(default_factory=dict)
    personal: bool = False

    @property
    def comparisons(self) -> tuple[GateComparison, ...]:
        """What was compared: central training, then the best method if there is one."""
        summary, more = self.references.summary(), self.references.more
        trained = f"{self.model}, trained centrally ({plural(self.passes, 'pass', 'passes')})"
        best, pooled = best_reference(summary, "pooled", more=more)
        compared = [(trained, self.central, f"{best}, pooled", pooled)]
        if self.methods:
            sign = 1 if more else -1
            # A figure that is not a number is the worst.
            name, figure = max(
                self.methods.items(),
                key=lambda item: -math.inf if math.isnan(item[1]) else sign * item[1],
            )
            # The bigram table is a softmax regression on the word before.
            linear = SOFTMAX if SOFTMAX in summary else BIGRAM
            pooled = summary[linear]["matched" if self.personal else "pooled"]
            fitted = "own_matched" if self.personal else "best"
            alone, of_one = best_reference(summary, fitted, more=more)
            compared += [
                (name, figure, f"{linear}, pooled", pooled),
                (name, figure, f"{alone}, one client", of_one),
            ]
        better = self.references.better
        return tuple(GateComparison(*one, passed=better(one[1], one[3])) for one in compared)

    @property
    def passed(self) -> bool:
        """Whether all comparisons are passed; without methods they are not yet complete."""
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def verdict(self) -> str:
        """The setting is fit to be run, not fit, or its methods are missing."""
        if not self.passed:
            return "not fit to be run"
        return "fit to be run" if self.methods else "passed by central training; methods are next"

    def table(self) -> Table:
        """Return a row for each comparison; ``print`` draws it."""
        text, tested = self.references.text, self.references.tested
        note = ""
        if self.references.more:
            _, best = best_reference(self.references.summary(), "pooled", more=True)
            note = f" (standard error {standard_error(best, tested):.1f} points)"
        cut = f"; clients make {self.asked} passes" if self.passes < self.asked else ""
        return Table(
            f"Gate on {self.references.data}, seed {self.seed}: {self.verdict}",
            ("", self.references.figure, "reference", "its figure", "passed"),
            tuple(
                (c.what, text(c.figure), c.than, text(c.reference), "yes" if c.passed else "no")
                for c in self.comparisons
            ),
            right=frozenset({1, 3}),
            note=f"On {tested} held-out training examples{note}{cut}.",
        )


def standard_error(accuracy: float, tested: int) -> float:
    """Return the standard error of an accuracy in points, on so many examples.

    >>> round(standard_error(0.5, 2500), 2)
    1.0
    """
    return 100 * math.sqrt(accuracy * (1 - accuracy) / tested)


def gate_setting(spec: ExperimentSpec, seed: int) -> ExperimentSpec:
    """Return the setting in which a gate is judged: another seed, held-out examples, no attack.

    Methods that are to pass the gate run in it, too. Where the data are limited, the limit is
    raised, so that clients train on as many examples as in the study, in as many minibatches.

    Args:
        spec: An experiment of the study.
        seed: One that the study does not use: a setting must not be chosen by its results.

    Raises:
        RunError: If it is the experiment's seed.
    """
    if seed == spec.seed:
        hint = "choose one that the study does not use"
        raise RunError("is the experiment's own seed", where="seed", found=seed, hint=hint)
    setting = spec.model_copy(update={"seed": seed, "attack": None, "out": None})
    if spec.validation is not None:
        return setting
    data = spec.data
    if isinstance(data, NamedData) and data.limit is not None:
        data = data.model_copy(update={"limit": round(data.limit / (1 - HELD_OUT))})
    return setting.model_copy(update={"validation": ValidationSpec(clients=HELD_OUT), "data": data})


def gate(
    experiment: Experiment,
    methods: Mapping[str, float] | None = None,
    *,
    personal: bool = False,
    passes: int = PASSES,
) -> SettingGate:
    """Judge whether a setting is fit to be run, by held-out training examples alone.

    1. The largest model, trained centrally, must be better than the best pooled reference.
    2. The best method must be better than softmax regression on pooled data (text: than the
       bigram table), and than the best reference of one client.

    Args:
        experiment: The experiment of :func:`gate_setting`, resolved.
        methods: Figures of methods on its held-out examples, shares as numbers in [0, 1]. Default:
            only 1. is judged.
        personal: Whether these are means over clients on their own mixtures of classes.
        passes: Most passes of central training; a longer schedule of learning rates is shortened.

    Raises:
        RunError: If the experiment holds out no examples, or no reference is known for its task.
    """
    if not len(experiment.held_out):
        hint = "resolve what `gate_setting` returns, or write `validation: 0.2`"
        raise RunError("a gate needs held-out examples", where="validation", hint=hint)
    known = references(experiment.validating)
    name, graph, state = largest_model(experiment)
    epochs = min(experiment.local.epochs, passes)
    rounds = min(experiment.world.rounds, passes // epochs)
    figure = _central(experiment, graph, state, rounds, epochs, known.figure)
    asked = experiment.world.rounds * experiment.local.epochs
    seed, reached = experiment.world.seed, dict(methods or {})
    return SettingGate(known, seed, name, rounds * epochs, asked, figure, reached, personal)


def largest_model(experiment: Experiment) -> tuple[str, ArchGraph, State]:
    """Return the model with the most parameters, and its weights before the first round."""
    world = experiment.world
    # The largest tier often is the global model, which comes first.
    size = {tier.name: cost(tier.graph).parameters for tier in world.tiers}
    if world.graph.nodes and cost(world.graph).parameters >= max(size.values()):
        return GLOBAL, world.graph, world.state
    tier = world.tier(max(size, key=lambda name: size[name]))
    return tier.name, tier.graph, tier.state


def _central(
    experiment: Experiment, graph: ArchGraph, state: State, rounds: int, epochs: int, figure: str
) -> float:
    """Train a model on all clients' examples as one client would, and test it on held-out ones.

    1. One client owns the examples of all, and passes over each of them.
    2. It trains in each round from its own last state; the optimiser starts anew.
    3. The state after the last round is tested on the held-out examples; NaN if it diverged.
    """
    world, at = experiment.world, _pooled(experiment)  # 1
    mixture: tuple[int, ...] = ()
    if experiment.data.classes is not None:
        targets = experiment.data.train.targets[torch.from_numpy(at)]
        mixture = tuple(class_histogram(targets, world.classes).tolist())
    one = Client(0, world.tiers[0].name, len(at), mixture)
    # A share of the examples in each round is what a client's time allows; here all are passed.
    local = experiment.local.model_copy(update={"epochs": epochs, "fraction": 1.0})
    alone = dataclasses.replace(world, clients=(one,))
    setup = dataclasses.replace(experiment, world=alone, shares=(at,), local=local)
    for number in range(1, rounds + 1):  # 2
        # Rounds that are left out are left out evenly: the rate still goes through its schedule.
        round = math.ceil(number * world.rounds / rounds)
        generator = seeded(world.seed, "central", round)
        with isolated(generator, world.device):
            work = setup.work(0, round, graph, state, generator, keep={})
            try:
                state = performed(Train(), work).state
            except RejectedUpdate:  # not finite
                return math.nan
    tested = answers(  # 3
        module_of(Model(graph, state), world.device),
        experiment.validating.data.test,
        learning=world.learning,
        batch=experiment.evaluate.batch,
        device=world.device,
    )
    return derived(tested[0].summary(), world.learning.metrics)[figure]
