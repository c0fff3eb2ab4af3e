"""Published figures beside ours, compared in the digits that the paper prints."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import ArchGraphError, SpecError
from archgraph.federation.files import family_without_consent
from archgraph.fields import Place
from archgraph.hints import unknown
from archgraph.language.checking import yaml_files
from archgraph.language.consent import allowed
from archgraph.language.document import Document
from archgraph.language.kinds import without_consent
from archgraph.language.yaml import read_document
from archgraph.studies.figures import FigureSpec, FiguresSpec, Printed
from archgraph.studies.spec import StudySpec
from archgraph.tables import Table

if TYPE_CHECKING:
    from archgraph.federation.family import Family
    from archgraph.graph.ir import ArchGraph


@dataclass(frozen=True, slots=True)
class Finding:
    """One published figure, and what its specs give.

    Attributes:
        paper: Short name of the paper.
        what: What the figure is of, and where it stands.
        where: File and line of the entry.
        published: The figure as printed.
        ours: The value found; None: not looked at, since it takes code to run.
        verdict: What came of it, in words.
        good: Whether they agree, or differ as the file says.
        met: Whether they agree.
    """

    paper: str
    what: str
    where: str
    published: Printed
    ours: Fraction | None
    verdict: str
    good: bool
    met: bool


def figures(
    paths: Iterable[str | os.PathLike[str]], *, python: bool = False
) -> tuple[Finding, ...]:
    r"""Compare published figures with what the specs beside them give.

    Only graphs are made; no weights, but for models in Python.

    Args:
        paths: Files of figures, or folders whose files of figures are read, folders below included.
            A study stands for the figures of its architectures.
        python: Consent to run the Python code that models name. Without it such models are not
            looked at.

    Raises:
        SpecError: If a file cannot be understood or names what is not there; with file and line.
        RewriteError: If a family cannot be resolved.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net = "sections: [{name: fc, steps: [linear: 3]}]"
        ...     net = f"archgraph: 1\ninputs: {{x: [4]}}\n{net}\n"
        ...     _ = (Path(folder) / "net.yaml").write_text(net)
        ...     head = "archgraph: 1\npaper: A\nsource: nobody, 1999\nfigures:\n"
        ...     entry = "  - {what: Table 1, model: net.yaml, published: 15}\n"
        ...     _ = (Path(folder) / "paper.yaml").write_text(head + entry)
        ...     [finding.verdict for finding in figures([folder])]
        ['equal']
    """
    chosen = [Path(path) for path in paths]
    documents = []
    for path in yaml_files(chosen):
        document = read_document(path)
        of_figures = isinstance(document.data, dict) and "figures" in document.data
        # A file that is named must be one of figures: what else it is, validation says.
        if of_figures or path in chosen:
            documents.append(document)
    if not documents:
        raise SpecError("holds no file of figures", where=", ".join(map(str, chosen)))
    sources = Sources()
    with allowed(python):
        return tuple(finding for d in documents for finding in findings(d, sources))


def findings(document: Document, sources: Sources) -> Iterator[Finding]:
    """Yield the findings of a file of figures; of a study, those about its architectures.

    Raises:
        SpecError: As :func:`figures`; and if a study names figures that are not in the file.
    """
    from archgraph.language import beside

    if "study" not in document.data:
        yield from _compared(document, sources)
        return
    architectures = document.validate(StudySpec).architectures
    if architectures is None:
        return
    file = read_document(beside(document, architectures.figures, ("architectures", "figures")))
    of_study = list(_compared(file, sources, architectures.of))
    if not of_study:  # a misspelt beginning would compare nothing and say that all is well
        document.fail(
            ("architectures", "of"), "does not begin the name of any figure", found=architectures.of
        )
    yield from of_study


def figures_table(findings: Iterable[Finding]) -> Table:
    """Tabulate findings; what is not as the files say stands out."""
    listed = list(findings)
    ours = ["" if f.ours is None else f.published.like(f.ours) for f in listed]
    rows = tuple(
        (f.paper, f.what, f.published.text, value, f.verdict)
        for f, value in zip(listed, ours, strict=True)
    )
    explained = sum(f.good and not f.met and f.ours is not None for f in listed)
    left = sum(f.ours is None for f in listed)
    parts = [
        f"{sum(f.met for f in listed)} of {len(listed)} figures are equal",
        f"{explained} differ for a known reason",
        f"{left} not looked at" * bool(left),
        f"{sum(not f.good for f in listed)} unexplained",
    ]
    return Table(
        "Published figures",
        ("paper", "what", "published", "ours", "verdict"),
        rows,
        right=frozenset({2, 3}),
        strong=frozenset(i for i, f in enumerate(listed) if not f.good),
        note=", ".join(filter(None, parts)),
    )


class Sources:
    """Graphs and families, each made once for all files; None for Python code without consent."""

    def __init__(self) -> None:
        self.graph, self.family = functools.cache(_graph), functools.cache(_family)


def _graph(path: Path, choices: tuple[tuple[str, int], ...]) -> ArchGraph | None:
    from archgraph import load

    return None if without_consent(read_document(path)) else load(path, dict(choices) or None)


def _family(path: Path) -> Family | None:
    from archgraph import load_family, resolve

    spec = load_family(path)
    return None if family_without_consent(spec) else resolve(spec)


def _compared(document: Document, sources: Sources, of: str = "") -> Iterator[Finding]:
    spec = document.validate(FiguresSpec)
    for keys, figure, published in _entries(spec):
        if not figure.what.startswith(of):
            continue
        where = document.where(keys)
        try:
            ours = _ours(document, figure, keys, sources)
        except ArchGraphError as error:
            # An error about another file says which entry asked for it.
            if not (error.where or "").startswith(where.partition(": ")[0]):
                error.where = f"{where}: {error.where}" if error.where else where
            raise
        verdict, good, met = _verdict(figure, published, ours)
        yield Finding(spec.paper, figure.what, where, published, ours, verdict, good, met)


def _entries(spec: FiguresSpec) -> Iterator[tuple[Place, FigureSpec, Printed]]:
    """Yield figures with their keys; of figures by kind of client, one for each kind."""
    for index, figure in enumerate(spec.figures):
        if isinstance(figure.published, Printed):
            yield ("figures", index), figure, figure.published
            continue
        for member, published in figure.published.items():
            one = figure.model_copy(update={"what": f"{figure.what}, {member}", "member": member})
            yield ("figures", index, "published", member), one, published


def _verdict(
    figure: FigureSpec, published: Printed, ours: Fraction | None
) -> tuple[str, bool, bool]:
    """Return a figure's verdict in words, whether it is as the file says, whether it is met."""
    if ours is None:
        return "Python model not imported", True, False
    met, known = published.agrees(ours, figure.rounding), figure.known
    # Exceptions that are no longer needed are mistakes, too: they would hide the next difference.
    if known is not None and met:
        return "equal: take `known` out", False, True
    if met and figure.rounding == "nearest":
        return "equal", True, True
    if met and published.agrees(ours):
        return "equal, and not only with digits cut off: take `rounding` out", False, True
    if met:
        return "equal, digits cut off", True, True
    apart = f"{float((ours - published.value) / published.value):+.1%}" if published.value else ""
    if known is None:
        return f"differs {apart}".rstrip(), False, False
    if not known.ours.agrees(ours):
        return f"differs {apart}, not {known.ours.text} as the file says", False, False
    return f"differs {apart}: {known.because}", True, False


def _ours(document: Document, figure: FigureSpec, keys: Place, sources: Sources) -> Fraction | None:
    """Compute the value that a figure's specs give; None if that would run code unasked."""
    from archgraph.language import beside

    if figure.model is not None:
        path = beside(document, figure.model, (*keys, "model"))
        graph = sources.graph(path, tuple(sorted(figure.choose.items())))
        return None if graph is None else Fraction(_measure(figure, graph))
    assert figure.family is not None  # one of the two
    start = keys[:2]  # of the entry, which `keys` of a kind of client go beyond
    family = sources.family(beside(document, figure.family, (*start, "family")))
    if family is None:
        return None
    members = {m.name: m for m in family.clients}
    if figure.member is not None and figure.member not in members:
        key = keys if len(keys) > 2 else (*keys, "member")
        message = "is not a kind of client of the family"
        document.fail(key, message, **unknown(figure.member, members))
    of_clients = figure.member is not None or figure.mean is not None
    if not family.has_global and (figure.share or not of_clients):
        document.fail(
            (*start, "family"),
            "has no global model to measure",
            hint="name a member, or a mean over members or clients",
        )
    averaged = [m for m in family.clients if of_clients and figure.member in (None, m.name)]
    weighted = [(m.count if figure.mean == "clients" else 1, m.graph) for m in averaged]
    weighted = weighted or [(1, family.graph)]
    summed = sum(weight * _measure(figure, graph) for weight, graph in weighted)
    value = Fraction(summed, sum(weight for weight, _ in weighted))
    total = _measure(figure, family.graph) if figure.share else 1
    if not total:
        document.fail((*start, "share"), "is a share of a global model whose measure is 0")
    return value / total


def _measure(figure: FigureSpec, graph: ArchGraph) -> int:
    """Compute a figure's measure of one architecture."""
    from archgraph.analysis.cost import cost

    if figure.trainable:
        return sum(
            math.prod(p.shape) for p in graph.params if p.role == "parameter" and p.trainable
        )
    if figure.measure == "state":
        return sum(math.prod(p.shape) for p in graph.params if p.role != "constant")
    spent = cost(graph)
    # A multiply–accumulate is two operations.
    return 2 * spent.macs if figure.measure == "flops" else int(getattr(spent, figure.measure))
