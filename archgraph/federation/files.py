"""Family files: how they are described, explained and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import ArchGraphError
from archgraph.language.consent import needs_consent
from archgraph.language.kinds import NOT_IMPORTED, FileKind, without_consent
from archgraph.plain import Json
from archgraph.tables import plural

if TYPE_CHECKING:
    import pydantic

    from archgraph.federation.family import Family
    from archgraph.language import FamilySpec


def checked_family(
    spec: FamilySpec, path: Path, cache: dict[str, Json]
) -> tuple[str, Family | None]:
    """Resolve a family. Families with the same content are resolved once.

    Args:
        spec: The family.
        path: File of the family, or the file that contains the family.
        cache: A dict for all files of one check, which stores resolved families.

    Returns:
        A summary, and the family. The family is None if its Python code was not imported.

    Raises:
        ArchGraphError: If the family cannot be resolved. Every file that uses it gets this error.
    """
    families: dict[str, tuple[str, Family | None] | ArchGraphError]
    families = cache.setdefault("families", {})
    content = str(path) if str(path) in families else repr((path.parent, spec.model_dump()))
    if content not in families:
        clients = plural(sum(member.number for member in spec.clients), "client")
        text = f"{clients} on {plural(len(spec.clients), 'architecture')}"
        try:
            families[content] = _resolved(spec, text)
        except ArchGraphError as error:
            content = str(path)  # lines of a mistake are those of one file
            families[content] = error
    # A mistake of a shared family is a mistake of every file that uses it.
    result = families[content]
    if isinstance(result, ArchGraphError):
        raise result
    return result


def _resolved(spec: FamilySpec, text: str) -> tuple[str, Family | None]:
    # The imports of a kind of file happen on first use: `archgraph help` needs none.
    from archgraph import resolve

    if family_without_consent(spec):
        return f"{text}; Python code {NOT_IMPORTED}", None
    return text, resolve(spec)


def family_without_consent(spec: FamilySpec) -> bool:
    """Return whether a family contains Python code for which consent is missing.

    Raises:
        SpecError: If a model is written in Python and its form is invalid.
    """
    models = {without_consent(source) for source in spec.sources()}
    names = (name for rewrites in spec.rewrites() for name in rewrites.python)
    return True in models or any(needs_consent(name, object) for name in names)


def _check(path: Path, cache: dict[str, Json]) -> str:
    from archgraph import load_family

    return checked_family(load_family(path), path.resolve(), cache)[0]


def _schema() -> dict[str, Json]:
    from archgraph.language.family import FamilySpec

    return FamilySpec.model_json_schema()


def _mappings() -> Mapping[str, type[pydantic.BaseModel]]:
    from archgraph.language.family import FamilySpec, MemberSpec

    return {"family": FamilySpec, "clients": MemberSpec}


FAMILY = FileKind("family", 4, frozenset({"clients"}), _schema, _mappings, _check)
