"""What the runs behind a study's table were, in a few lines: data, clients, training, figures."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from archgraph.analysis.cost import cost
from archgraph.data import DATASETS
from archgraph.data.source import source
from archgraph.errors import ArchGraphError
from archgraph.federation.files import family_without_consent
from archgraph.language import ExperimentSpec, FamilySpec
from archgraph.language.data import IidSpec, NamedData
from archgraph.reports.settings import differing, said
from archgraph.studies.spec import StudyCell, StudyFigure, cells
from archgraph.tables import Table, count, per_cent, plural

if TYPE_CHECKING:
    from archgraph.studies.study import StudyResult

_MIXTURE = "each on its own mixture of classes"
# Measures, and what they average in words: the first that fits counts.
_AVERAGES = (
    ("worst_tenth_matched", f"mean over the tenth of the clients that fares worst, {_MIXTURE}"),
    ("local_matched", f"mean over the clients, {_MIXTURE}"),
    (r"tier\.(.*)\.matched", rf"mean over the `\1` clients, {_MIXTURE}"),
    (r"tier\.(.*)\.(\w+)", r"mean over the `\1` clients, each on its own classes"),
    (r"local_(\w+)", "mean over the clients, each on its own classes"),
    (r"trained_(\w+)", "mean over the models that clients send, before they are averaged"),
    (r"worst_(\w+)", "worst of the clients' models"),
    (r"average_(\w+)", "mean over the clients' models, each counted once"),
    (r"global_(\w+)", "the server's model"),
    (r"models\.(.*)\.(\w+)", r"mean over the models `\1`, each counted once"),
    (r"clients\.(.*)\.(\w+)", r"mean over the clients that run `\1`"),
)
_WHOLE_RUN = (
    (r"reach\.([\d.]+)\.(.*)", r"rounds × passes until `\2` first is \1"),
    (r"((?:weights|distance|similarity|chance)\..*)", r"`\1` of the final weights"),
    (".*", "all rounds together"),
)
_SCHEMES = {
    "iid": "equally many in random order",
    "dirichlet": "each class by Dirichlet({alpha:g})",
    "equal_dirichlet": "equally many, classes by Dirichlet({alpha:g})",
    "classes": "{per_client} classes for each client",
    "whole": "all for each client",
}
# Settings with words of their own, and those that tell runs apart elsewhere.
_APART = ("strategy", "seed", "data", "sample", "engine", "local.epochs", "local.batch", "local.lr")
_Address = tuple[str, ...]  # of a cell: its row, and the parts of its column's name


def setup_table(result: StudyResult) -> Table:
    """Tabulate what the finished runs were, with rows and columns where they differ.

    Data, clients, training, what figures average, and what size ``paper`` has otherwise.
    """
    parts = result.spec.combined()
    runs = (one.cell for one in result.runs if one.address in result.records)
    done = {(cell.row, *parts[cell.column]): cell for cell in runs}
    built: dict[str, str] = {}
    ours = {at: _facts(cell, built) for at, cell in done.items()}
    texts = {key: varying({at: of.get(key, "") for at, of in ours.items()}) for key in _keys(ours)}
    figures: dict[str, list[str]] = {}
    for name in result.spec.figures:
        text = varying({at: _averages(cell.figures[name]) for at, cell in done.items()})
        figures.setdefault(text, []).append(name)
    lines = {
        "data": [texts.pop("examples", ""), texts.pop("split", "")],
        "clients": [texts.pop("clients", "")],
        "training": list(texts.values()),
        "figures": [f"{', '.join(of)}: {text}" for text, of in figures.items() if text],
        "as published": list(_otherwise(result, ours, built)),
    }
    joined = {name: "; ".join(filter(None, of)) for name, of in lines.items()}
    return Table("Setup", ("", ""), tuple((name, text) for name, text in joined.items() if text))


def _facts(cell: StudyCell, built: dict[str, str]) -> dict[str, str]:
    """Return what a cell's experiment is, in words; `built` are families that were built before."""
    spec = cell.experiment
    assert spec is not None and isinstance(spec.family, FamilySpec)
    family, sample = repr(spec.family), f"{per_cent(float(spec.sample), 0)} of the clients in each"
    if family not in built:
        built[family] = _clients(spec.family)
    return {
        "examples": _examples(spec),
        "split": _split(spec),
        "clients": built[family],
        "rounds": plural(spec.rounds, "round"),
        "sample": f"{spec.sample} clients in each" if isinstance(spec.sample, int) else sample,
        "epochs": plural(spec.local.epochs, "local epoch"),
        "batch": f"minibatches of {spec.local.batch}",
        "rate": f"rate {spec.local.lr:g}",
        **{
            one.key: f"{one.key.removeprefix('local.')} {said(one.value)}"
            for one in differing(spec)
            if not one.key.startswith(_APART)
        },
    }


def _keys(facts: Mapping[_Address, Mapping[str, str]]) -> Iterable[str]:
    return dict.fromkeys(key for of in facts.values() for key in of)


def _otherwise(
    result: StudyResult, ours: Mapping[_Address, Mapping[str, str]], built: dict[str, str]
) -> Iterator[str]:
    """Yield the facts of size ``paper`` that are others."""
    parts, theirs = result.spec.combined(), dict[_Address, dict[str, str]]()
    for cell in cells(result.spec, "paper") if "paper" in result.spec.sizes else ():
        at = (cell.row, *parts[cell.column])
        if at in ours:
            facts = _facts(cell, built)
            theirs[at] = {
                key: facts.get(key, f"without {key.removeprefix('local.')}")
                for key in _keys({(): facts, at: ours[at]})
                if facts.get(key) != ours[at].get(key) and not key.startswith("evaluate")
            }
    for key in _keys(theirs):
        yield varying({at: of.get(key, "") for at, of in theirs.items()})


def varying(values: Mapping[tuple[str, ...], str]) -> str:
    """Write what cells have, once if it is the same, else beside the cells that have it.

    1. What is the same in a row, or wherever columns' names share a part, is labelled so.
    2. Else each text is labelled by columns, with the rows that have it unless all do.

    Args:
        values: By the cell's row and the parts of its column's name; empty: the cell has nothing.

    Example:
        >>> varying({("A", "x"): "rate 1", ("B", "x"): "rate 2", ("C", "x"): "rate 1"})
        'rate 1 (A · C) / rate 2 (B)'
    """
    labels: dict[str, list[str]] = {}
    for at in ((), *((i,) for i in range(len(next(iter(values), ()))))):  # 1
        by_name: dict[str, set[str]] = {}
        for address, text in values.items():
            by_name.setdefault("".join(address[i] for i in at), set()).add(text)
        if all(len(texts) == 1 for texts in by_name.values()):
            for name, (text,) in by_name.items():
                labels.setdefault(text, []).append(name)
            break
    else:  # 2
        columns: dict[str, dict[str, str]] = {}
        for (row, *parts), text in values.items():
            columns.setdefault(", ".join(filter(None, parts)), {})[row] = text
        for column, texts in columns.items():
            for text in dict.fromkeys(texts.values()):
                rows = " · ".join(row for row in texts if texts[row] == text)
                alone = len(set(texts.values())) == 1
                labels.setdefault(text, []).append(column if alone else f"{column}: {rows}")
    return " / ".join(
        f"{text} ({' · '.join(of)})" if any(of) else text for text, of in labels.items() if text
    )


def _examples(spec: ExperimentSpec) -> str:
    data = spec.data
    if not isinstance(data, NamedData) or data.dataset not in DATASETS:
        kept_out = {"partition", "root"}
        return said(data.model_dump(mode="json", exclude=kept_out, exclude_defaults=True))
    file = source(data.dataset)
    if file.format == "words":
        limit = f", at most {data.limit:,} windows of each" if data.limit else ""
        train, test = file.examples
        return f"{data.dataset}, {train:,} tokens for training and {test:,} for tests{limit}"
    train, test = (min(many, data.limit or many) for many in file.examples)
    return f"{data.dataset}, {train:,} training and {test:,} test examples"


def _split(spec: ExperimentSpec) -> str:
    split = spec.data.partition or IidSpec()
    text = _SCHEMES[split.scheme].format(**split.model_dump())
    shares = (f"{per_cent(share, 0)} to `{kind}`" for kind, share in (split.shares or {}).items())
    return ", ".join((text, *shares))


def _clients(family: FamilySpec) -> str:
    from archgraph import resolve

    sizes: dict[str, str] = {}
    if not family_without_consent(family):
        with contextlib.suppress(ArchGraphError):  # a library that it needs is not here
            built = resolve(family).clients
            sizes = {m.name: f" ({cost(m.graph).parameters:,} parameters)" for m in built}
    return ", ".join(f"{m.count} `{m.name}`{sizes.get(m.name, '')}" for m in family.clients)


def _averages(figure: StudyFigure) -> str:
    measure = figure.measure.removeprefix("validation_")
    held_out = ", on held-out training examples" * (measure != figure.measure)
    words = next(w for w in (*_AVERAGES, *_WHOLE_RUN) if re.fullmatch(w[0], measure))
    until = "" if words in _WHOLE_RUN else ", last test"
    if figure.last is not None:
        many = f"{per_cent(figure.last, 0)} of the" if figure.last < 1 else f"{figure.last:g}"
        until = f", mean of the tests of the last {many} rounds"
    if figure.within is not None:
        until = f", at the last test within {count(figure.within)} multiply–accumulates"
    return re.sub(f"^{words[0]}$", words[1], measure) + held_out + until
