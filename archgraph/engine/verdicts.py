"""Check files: which of them can be used, and what is wrong with the others."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from archgraph.errors import ArchGraphError, SpecError
from archgraph.language.consent import allowed, named, needs_consent
from archgraph.tables import count, plural

if TYPE_CHECKING:
    from archgraph.federation import State
    from archgraph.federation.family import Family
    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec, FamilySpec
    from archgraph.language.document import Document

# What is known of the families that were met: a note and what it is, or what is wrong with it.
Resolutions: TypeAlias = "dict[Path, tuple[str, Family | None] | ArchGraphError]"
# By what decides an experiment's figures: whether it names Python code that was not imported.
Cells: TypeAlias = "dict[str, bool]"

FileKind = Literal["model", "family", "experiment", "study", "figures", "file"]
ENDINGS = (".yaml", ".yml")
UNSEEN = "not imported"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check of one file found.

    Attributes:
        path: The file.
        kind: What the file is.
        error: What is wrong; None: nothing.
        note: What it holds.
        unseen: Whether it names Python code that was not imported: only its form is known.
    """

    path: Path
    kind: FileKind
    error: ArchGraphError | None = None
    note: str = ""
    unseen: bool = False

    @property
    def good(self) -> bool:
        """Whether the file can be used."""
        return self.error is None


def verdicts(paths: Iterable[str | os.PathLike[str]], *, python: bool = False) -> Iterator[Verdict]:
    r"""Check model, family and experiment files, one verdict each, in order.

    Graphs are made and checked, families resolved with all their clients, strategies configured.
    What a run would refuse before its first round is refused here, too. Data of your own is read.
    The files of known data sets are not touched: zeros of their form stand in for them.

    Args:
        paths: Files, or folders whose YAML files are checked, folders below included.
        python: Consent to run the Python code that files name. Without it no code but archgraph's
            runs, and such models are only checked for their form.

    Raises:
        SpecError: If a path is not there, or no file is.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.yaml").write_text("archgraph: 1\n")
        ...     [verdict.good for verdict in verdicts([folder])]
        [False]
    """
    from archgraph.language.linked import kind_of
    from archgraph.language.yaml import read_document

    made: Resolutions = {}
    checked: Cells = {}
    for path in list(files(paths)):
        kind: FileKind = "file"
        try:
            kind = cast(FileKind, kind_of(read_document(path).data) or "model")
            with allowed(python):
                note = _checked(path, kind, made, checked)
            verdict = Verdict(path, kind, None, note, note.endswith(UNSEEN))
        except ArchGraphError as error:
            verdict = Verdict(path, kind, error)
        yield verdict  # outside: consent is ours while a file is checked, not our caller's


def verdict_of(spec: ExperimentSpec, path: Path, *, python: bool = False) -> Verdict:
    """Check an experiment that was read from a file, and perhaps changed.

    Args:
        spec: The experiment.
        path: Its file.
        python: Consent to run the Python code that it names.
    """
    try:
        with allowed(python):
            note = _experiment(spec, path.resolve(), {})
        return Verdict(path, "experiment", None, note, note.endswith(UNSEEN))
    except ArchGraphError as error:
        return Verdict(path, "experiment", error)


def files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The given files, and the YAML files in the given folders, each once."""
    seen: set[Path] = set()
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix in ENDINGS and p.is_file())
            if not found:
                raise SpecError("holds no YAML file", where=str(path))
        elif path.exists():
            found = [path]
        else:
            raise SpecError("is not there", where=str(path), expected="a file or a folder")
        for file in found:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _checked(path: Path, kind: FileKind, made: Resolutions, checked: Cells) -> str:
    """What a good file holds; raises what is wrong with a bad one."""
    from archgraph import load_experiment, load_family
    from archgraph.language import load_graph
    from archgraph.language.figures import FiguresSpec
    from archgraph.language.yaml import read_document

    if kind == "model":
        document = read_document(path)
        if unseen_code(document):
            return f"{document.data['python']} {UNSEEN}"
        graph = load_graph(path)
        size = sum(math.prod(p.shape) for p in graph.params if p.role == "parameter")
        return f"{plural(len(graph.nodes), 'operator')}, {count(size)} parameters"
    if kind == "figures":
        paper = read_document(path).validate(FiguresSpec)
        return f"{paper.paper}, {len(paper.figures)} entries; --figures compares them"
    if kind == "family":
        return _family(load_family(path), path.resolve(), made)[0]
    if kind == "study":
        return _study(path, made, checked)
    family = read_document(path).data["family"]
    place = (path.parent / family if isinstance(family, str) else path).resolve()
    return _experiment(load_experiment(path), place, made)


def _study(path: Path, made: Resolutions, checked: Cells) -> str:
    """What a study holds; its cells are checked as experiments, equal ones of all studies once."""
    from archgraph.engine.cell import address
    from archgraph.language.study import cells, load_study

    study = load_study(path)
    waits, sizes, unseen = set(), [], False
    for size, spec in study.sizes.items():
        names: dict[int, str] = {}  # cells that show the same run share its experiment
        there, sets, refused = cells(study, size), set(), 0
        for cell in there:
            if cell.experiment is None:
                waits.add(cell.waits)
                continue
            sets.add(_data_set(cell.experiment))
            if id(cell.experiment) in names:
                continue
            name = names[id(cell.experiment)] = address(cell.experiment)
            if name not in checked:
                family = cell.experiment.document_of(("family",)).data["family"]
                place = path.parent / family if isinstance(family, str) else path / name
                calm = address(_start(cell.experiment))
                try:
                    note = _experiment(cell.experiment, place.resolve(), made, calm in checked)
                except ArchGraphError as error:
                    if study.may_be_refused and not isinstance(error, SpecError):
                        refused += 1
                        continue
                    raise error.within(", ".join(filter(None, (cell.row, cell.column)))) from error
                checked[name] = checked[calm] = note.endswith(UNSEEN)
            unseen = unseen or checked[name]
        seeds = plural(len(spec.seeds), "seed")
        of = ", ".join(sorted(filter(None, sets)))
        answered = f", {refused} refused" if study.may_be_refused else ""
        sizes.append(
            f"{size}: {plural(len(there), 'cell')}{answered}, {seeds}{of and f', of {of}'}"
        )
    claims = sum(len(list(study.compared(claim))) for claim in study.claims)
    text = "; ".join((f"{study.study}: {plural(claims, 'comparison')}", *sizes))
    if waits:
        text += f"; waits for {', '.join(sorted(waits))}"
    return f"{text}; Python model {UNSEEN}" if unseen else text


def _data_set(spec: ExperimentSpec) -> str:
    """The name of a known data set; empty: the experiment's own files."""
    from archgraph.language.data import NamedData

    return spec.data.dataset if isinstance(spec.data, NamedData) else ""


def _start(spec: ExperimentSpec) -> ExperimentSpec:
    """An experiment as far as a strategy's first state and its models' tests depend on it.

    Strategies do not hear of attacks; in its first state none of ours asks who has which examples,
    how many clients a round or how many rounds a run has. A bound on privacy does.
    """
    if spec.privacy is not None:
        return spec.model_copy(update={"attack": None})
    data = spec.data.model_copy(update={"partition": None})
    return spec.model_copy(
        update={"attack": None, "data": data, "sample": 1.0, "rounds": 1, "seed": 0}
    )


def _experiment(spec: ExperimentSpec, place: Path, made: Resolutions, begins: bool = False) -> str:
    """What an experiment holds, its family resolved once for each place of one.

    Args:
        spec: The experiment.
        place: Of its family.
        made: The families so far.
        begins: Whether one that starts alike is known to begin: then it needs no weights.
    """
    import torch

    from archgraph.engine.data import Dataset
    from archgraph.engine.data.doors import read_data
    from archgraph.engine.trackers import tracker
    from archgraph.federation import Strategy, configure
    from archgraph.language.data import PythonData

    unseen = "python" in spec.strategy and needs_consent(spec.strategy_name, Strategy)
    objective = spec.task.function if spec.task is not None else None
    if not unseen:
        with spec.locating("strategy"):
            configure(spec.strategy_name, spec.strategy_options)
    with spec.locating("trackers"):
        for choice in spec.trackers:
            tracker(choice)
    hidden = isinstance(spec.data, PythonData) and needs_consent(spec.data.python, Dataset)
    with spec.locating("data"):
        task = None if spec.task is None else spec.task.kind
        imagined = None if hidden else read_data(spec.data, task, check=True)
    held, resolved = _family(spec.family, place, made)  # type: ignore[arg-type]  # was read
    closed = [spec.strategy_name] if unseen else []
    closed += [spec.data.python] if isinstance(spec.data, PythonData) and hidden else []
    closed += (
        [objective] if objective is not None and needs_consent(objective, torch.nn.Module) else []
    )
    if not closed and imagined is not None and resolved is not None:
        from archgraph.engine.world import begun, prepare

        prepared = prepare(
            spec, imagined=imagined, family=_shapes(resolved) if begins else resolved
        )
        if not begins:
            begun(prepared)
    text = f"{spec.strategy_name}, {plural(spec.rounds, 'round')}; {held}"
    told = () if imagined is None else imagined.notes
    return "; ".join((text, *told, *(f"{name} {UNSEEN}" for name in closed)))


def _shapes(family: Family) -> Family:
    """A family whose first weights are shapes without numbers."""
    import torch

    def state(graph: ArchGraph) -> State:
        kept = (p for p in graph.params if p.role != "constant")
        return {p.name: torch.empty(p.shape, device="meta") for p in kept}

    if family.has_global:
        return dataclasses.replace(family, state=state(family.graph))
    members = (
        member if member.own else dataclasses.replace(member, source=state(member.graph), own=True)
        for member in family.clients
    )
    return dataclasses.replace(family, clients=tuple(members))


def _family(spec: FamilySpec, place: Path, made: Resolutions) -> tuple[str, Family | None]:
    """Resolve a family, once for all experiments that use it."""
    from archgraph import resolve

    if place not in made:
        many = plural(sum(member.number for member in spec.clients), "client")
        text = f"{many} on {plural(len(spec.clients), 'architecture')}"
        try:
            if unseen_family(spec):
                made[place] = f"{text}; Python model {UNSEEN}", None
            else:
                made[place] = text, resolve(spec)
        except ArchGraphError as error:
            made[place] = error
    result = made[place]
    if isinstance(result, ArchGraphError):
        raise result
    return result


def unseen_family(family: FamilySpec) -> bool:
    """Whether a model of a family names such code; each that is written in Python is looked at."""
    unseen = [unseen_code(source) for source in family.sources()]
    return any(unseen)


def unseen_code(source: Document) -> bool:
    """Whether a model names Python code that needs consent; one that does has the right form."""
    if "python" not in source.data:
        return False
    import torch

    from archgraph.language.model import PythonModel

    source.validate(PythonModel)
    return any(needs_consent(name, torch.nn.Module) for name in named(source.data))
