"""Study files: descriptions, help and checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import ArchGraphError
from archgraph.language.kinds import NOT_IMPORTED, FileKind
from archgraph.plain import Json
from archgraph.tables import plural

if TYPE_CHECKING:
    import pydantic

    from archgraph.language import ExperimentSpec
    from archgraph.studies.spec import StudySizeName, StudySpec


def _check_study(path: Path, cache: dict[str, Json]) -> str:
    """Check and describe a study: its cells as experiments."""
    from archgraph.studies.spec import load_study

    study = load_study(path)
    checked = [_checked_size(study, size, path, cache) for size in study.sizes]
    text = f"{study.study}: {'; '.join(text for text, _ in checked)}"
    unseen = any(hidden for _, hidden in checked)
    return f"{text}; Python model {NOT_IMPORTED}" if unseen else text


def _checked_size(
    study: StudySpec, size: StudySizeName, path: Path, cache: dict[str, Json]
) -> tuple[str, bool]:
    """Check a size's cells; describe them, and return whether code was not imported.

    1. Cells that show the same run share its experiment, which is checked once for all studies.
    2. Among experiments with the same start, the first is begun, the others are only prepared.
    """
    from archgraph.engine.files import checked_experiment
    from archgraph.language.data import NamedData
    from archgraph.studies.cell import address
    from archgraph.studies.spec import cells

    checked: dict[str, bool] = cache.setdefault("cells", {})
    sets, names = set[str](), dict[int, str]()
    unseen = False
    every = cells(study, size)
    for cell in every:
        if isinstance(cell.experiment.data, NamedData):
            sets.add(cell.experiment.data.dataset)
        if id(cell.experiment) in names:
            continue
        name = names[id(cell.experiment)] = address(cell.experiment, cell.trivial)
        if name not in checked:  # 1
            family = cell.experiment.document_of(("family",)).data["family"]
            file = (path.parent / family if isinstance(family, str) else path / name).resolve()
            start = address(_start(cell.experiment))
            try:
                note = checked_experiment(
                    cell.experiment, file, cache, begins=start in checked
                )  # 2
            except ArchGraphError as error:
                raise error.within(", ".join(filter(None, cell.key))) from error
            checked[name] = checked[start] = note.endswith(NOT_IMPORTED)
        unseen = unseen or checked[name]
    seeds, of = plural(len(study.sizes[size].seeds), "seed"), ", ".join(sorted(sets))
    return f"{size}: {plural(len(every), 'cell')}, {seeds}{of and f', of {of}'}", unseen


def _start(spec: ExperimentSpec) -> ExperimentSpec:
    """Reduce an experiment to the parts on which a strategy's first state and tests depend.

    Strategies do not know attacks, or training options before they send work; our strategies do not
    use clients' examples, the number of clients in a round or of rounds in their first state. A
    bound on privacy does.
    """
    from archgraph.federation import LocalOptions

    if spec.privacy is not None:
        return spec.model_copy(update={"attack": None})
    return spec.model_copy(
        update={
            "attack": None,
            "data": spec.data.model_copy(update={"partition": None}),
            "sample": 1.0,
            "rounds": 1,
            "seed": 0,
            "local": LocalOptions(),
        }
    )


# The specs are imported when a file of their kind is read: most commands read none.
def _study_schema() -> dict[str, Json]:
    return _mappings()["study"].model_json_schema()


def _mappings() -> Mapping[str, type[pydantic.BaseModel]]:
    from archgraph.studies import spec

    return {
        "study": spec.StudySpec,
        "figures": spec.StudyFigure,
        "sizes": spec.StudySize,
    }


STUDY = FileKind("study", 1, frozenset({"study"}), _study_schema, _mappings, _check_study)
