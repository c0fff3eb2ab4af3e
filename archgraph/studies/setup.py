"""What the runs behind a study's table were, in a few lines: data, clients, training, figures."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping

from archgraph.analysis.cost import cost
from archgraph.data import DATASETS
from archgraph.data.source import source
from archgraph.engine.facts import family_of
from archgraph.errors import ArchGraphError
from archgraph.federation.files import family_without_consent
from archgraph.language import ExperimentSpec, FamilySpec
from archgraph.language.data import IidSpec, NamedData
from archgraph.reports.settings import differing, said
from archgraph.studies.spec import StudyCell, StudyFigure, StudySpec, cells
from archgraph.tables import Table, count, plural

_MIXTURE = "each on its own mixture of classes"
# Tested measures, and what they average in words: the first that fits counts.
_AVERAGES = (
    ("worst_tenth_matched", f"mean over the tenth of the clients that fares worst, {_MIXTURE}"),
    ("local_matched", f"mean over the clients, {_MIXTURE}"),
    (r"tier\.(.*)\.matched", rf"mean over the `\1` clients, {_MIXTURE}"),
    (r"tier\.(.*)\.\w+", r"mean over the `\1` clients, each on its own classes"),
    (r"local_\w+", "mean over the clients, each on its own classes"),
    (r"trained_\w+", "mean over the models that clients send, before they are averaged"),
    (r"worst_\w+", "worst of the clients' models"),
    (r"average_\w+", "mean over the clients' models, each counted once"),
    (r"global_\w+", "the server's model"),
    (r"models\.(.*)\.\w+", r"mean over the models `\1`, each counted once"),
    (r"clients\.(.*)\.\w+", r"mean over the clients that run `\1`"),
)
_OF_RUNS = (
    (r"reach\.([\d.]+)\.(.*)", r"rounds × passes until `\2` first is \1"),
    (r".+", "over all rounds"),
)
# Settings with words of their own, and those that tell runs apart elsewhere.
_APART = (
    "strategy", "seed", "data", "sample", "engine", "local.epochs", "local.batch", "local.lr",
    "local.momentum", "local.weight_decay", "local.optimiser",
    "weights.file",  # a path of this machine; its checksum says which one
)  # fmt: skip
_Address = tuple[str, ...]  # of a cell: its row, and the parts of its column's name


def setup_table(spec: StudySpec, finished: Iterable[StudyCell]) -> Table:
    """Tabulate what runs were, with rows and columns where they differ.

    Data, clients, training, what figures average, and what size ``paper`` has otherwise.

    Args:
        spec: The study.
        finished: The cells of the finished runs.
    """
    parts = spec.combined()
    done = {(cell.row, *parts[cell.column]): cell for cell in finished}
    sizes: dict[str, str] = {}  # a family is built once, however many cells have it
    ours = {at: _facts(cell, sizes) for at, cell in done.items() if not cell.trivial}
    theirs: dict[_Address, dict[str, str]] = {}
    for cell in cells(spec, "paper") if "paper" in spec.sizes else ():
        if (at := (cell.row, *parts[cell.column])) in ours:
            facts = _facts(cell, sizes)
            without = {k: f"without {k.removeprefix('local.')}" for k in ours[at] if k not in facts}
            theirs[at] = {k: v for k, v in {**facts, **without}.items() if v != ours[at].get(k)}
    texts, figures = _varying(ours), dict[str, list[str]]()
    averages = {at: {k: _averages(f) for k, f in c.figures.items()} for at, c in done.items()}
    for name, text in _varying(averages).items():
        figures.setdefault(text, []).append(name)
    lines = {
        "data": [texts.pop(key, "") for key in ("examples", "split")],
        "clients": [texts.pop("clients", "")],
        "training": texts.values(),
        "figures": [f"{', '.join(of)}: {text}" for text, of in figures.items()],
        "as published": [v for k, v in _varying(theirs).items() if not k.startswith("evaluate")],
    }
    joined = {name: "; ".join(filter(None, of)) for name, of in lines.items()}
    return Table("Setup", ("", ""), tuple((name, text) for name, text in joined.items() if text))


def _facts(cell: StudyCell, sizes: dict[str, str]) -> dict[str, str]:
    """Return what a cell's experiment is, in words."""
    spec, family = cell.experiment, family_of(cell.experiment)
    sample = f"{100 * spec.sample:g} % of the" if spec.sample != 1.0 else "all"
    split = spec.data.partition or IidSpec()
    chosen = split.model_dump(exclude={"scheme", "min_size"}, exclude_none=True)
    scheme = (type(split).__doc__ or "").split(".")[0]
    options = ", ".join(f"{key} {said(value)}" for key, value in chosen.items())
    ((title, arguments),) = spec.local.chosen.plain().items()
    if (key := repr(family)) not in sizes:
        sizes[key] = _clients(family)
    return {
        "examples": _examples(spec),
        "split": f"{scheme[:1].lower()}{scheme[1:]}" + f" ({options})" * bool(options),
        "clients": sizes[key],
        "rounds": plural(spec.rounds, "round"),
        "sample": f"{spec.sample if isinstance(spec.sample, int) else sample} clients in each",
        "epochs": plural(spec.local.epochs, "local epoch"),
        "batch": f"minibatches of {spec.local.batch}",
        "optimiser": f"{title} ({', '.join(f'{key} {value}' for key, value in arguments.items())})",
        **_of_kinds(spec),
        **{
            one.key: f"{one.key.removeprefix('local.')} {said(one.value)}"
            for one in differing(spec)
            if not one.key.startswith(_APART)
        },
    }


def _of_kinds(spec: ExperimentSpec) -> dict[str, str]:
    """Return what kinds of client train with instead, as their family says."""
    facts = {}
    for member in family_of(spec).clients:
        if member.local is not None:
            options = member.local.model_dump(mode="json", exclude_unset=True)
            text = ", ".join(f"{key} {said(value)}" for key, value in options.items())
            facts[f"those of `{member.name}`"] = f"`{member.name}`: {text}"
    return facts


def _examples(spec: ExperimentSpec) -> str:
    data = spec.data
    if not isinstance(data, NamedData) or data.dataset not in DATASETS:
        return said(data.model_dump(mode="json", exclude={"partition"}, exclude_defaults=True))
    file = source(data.dataset)
    text = file.format == "words"  # a limit is one of windows
    limit = (data.limit or max(file.examples)) * (data.bptt if text else 1)
    train, test = (min(many, limit) for many in file.examples)
    what = "tokens" if text else "examples"
    return f"{data.dataset}, {train:,} training and {test:,} test {what}"


def _clients(family: FamilySpec) -> str:
    from archgraph import resolve

    sizes: dict[str, str] = {}
    if not family_without_consent(family):
        with contextlib.suppress(ArchGraphError):  # a library that it needs is not here
            built = resolve(family).clients
            sizes = {m.name: f" ({cost(m.graph).parameters:,} parameters)" for m in built}
    return ", ".join(f"{m.number} `{m.name}`{sizes.get(m.name, '')}" for m in family.clients)


def _averages(figure: StudyFigure) -> str:
    measure = figure.measure.removeprefix("validation_")
    held_out = ", on held-out training examples" * (measure != figure.measure)
    words = next(w for w in (*_AVERAGES, *_OF_RUNS) if re.fullmatch(w[0], measure))
    text, until = re.sub(f"^{words[0]}$", words[1], measure), ""
    if words in _AVERAGES:
        metric = re.split(r"[_.]", measure)[-1].replace("matched", "accuracy")
        text, until = f"{metric}, {text}{held_out}", ", last test"
    if figure.last is not None:
        many = f"{100 * figure.last:g} % of the" if figure.last < 1 else f"{figure.last:g}"
        until = f", mean of the tests of the last {many} rounds"
    if figure.within is not None:
        until = f", at the last test within {count(figure.within)} multiply–accumulates"
    return text + until


def _varying(facts: Mapping[_Address, Mapping[str, str]]) -> dict[str, str]:
    keys = dict.fromkeys(key for of in facts.values() for key in of)
    return {key: varying({at: of.get(key, "") for at, of in facts.items()}) for key in keys}


def varying(values: Mapping[_Address, str]) -> str:
    """Write what cells have, once if it is the same, else beside the cells that have it.

    1. What does not depend on the row, or on a part of the columns' names, is not labelled by it.
    2. Each text is labelled by columns, with the rows that have it unless all do.

    Args:
        values: By the cell's row and the parts of its column's name; empty: the cell has nothing.

    Example:
        >>> varying({("A", "x"): "rate 1", ("B", "x"): "rate 2", ("C", "x"): "rate 1"})
        'rate 1 (A · C) / rate 2 (B)'
    """
    for position in reversed(range(len(next(iter(values), ())))):  # 1
        fewer: dict[_Address, set[str]] = {}
        for at, text in values.items():
            fewer.setdefault((*at[:position], "", *at[position + 1 :]), set()).add(text)
        if all(len(texts) == 1 for texts in fewer.values()):
            values = {at: text for at, (text,) in fewer.items()}
    columns: dict[str, dict[str, list[str]]] = {}  # 2
    for (row, *parts), text in values.items():
        column = ", ".join(filter(None, parts))
        columns.setdefault(column, {}).setdefault(text, []).append(row)
    labels: dict[str, list[str]] = {}
    for column, of in columns.items():
        for text, rows in of.items():
            names = " · ".join(rows) if len(of) > 1 or not column else ""
            labels.setdefault(text, []).append(": ".join(filter(None, (column, names))))
    listed = {text: f" ({' · '.join(of)})" if any(of) else "" for text, of in labels.items()}
    return " / ".join(text + label for text, label in listed.items() if text)
