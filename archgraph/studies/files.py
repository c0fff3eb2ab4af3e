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
    """Check the experiments of all cells of a study, and describe the study."""
    from archgraph.studies.spec import load_study

    study = load_study(path)
    checked = [_checked_size(study, size, path, cache) for size in study.sizes]
    text = f"{study.study}: {'; '.join(text for text, _ in checked)}"
    unseen = any(hidden for _, hidden in checked)
    return f"{text}; Python model {NOT_IMPORTED}" if unseen else text


def _checked_size(
    study: StudySpec, size: StudySizeName, path: Path, cache: dict[str, Json]
) -> tuple[str, bool]:
    """Check the cells of a size. Return a description, and whether code was not imported.

    1. Cells with the same run share an experiment, which is checked once for all studies.
    2. If several experiments have the same start, the first is started, and the others are only
       prepared.
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
    """Reduce an experiment to the settings on which a strategy's initial state and tests depend.

    Attacks and training options do not affect the initial state. With archgraph's strategies, the
    clients' examples, the number of rounds and the clients per round do not affect it either,
    except with `privacy`.
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


# The specs are imported when a study file is read, because most commands do not read one.
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
