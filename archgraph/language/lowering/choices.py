"""Choices of a model: keys for which the file lists several candidate values."""

from __future__ import annotations

from collections.abc import Mapping

from archgraph.errors import SpecError
from archgraph.hints import nearest, unknown
from archgraph.language.document import Document
from archgraph.language.model import AuthoredModel


def choose(
    document: Document, model: AuthoredModel, choices: Mapping[str, int | str]
) -> AuthoredModel:
    """Return the model with the given values for its choices.

    Raises:
        SpecError: If a choice is unknown, or a value is not a candidate.
    """
    for key, value in choices.items():
        if key not in model.choices:
            facts = unknown(key, model.choices)
            raise SpecError("is not a choice of the model", where=document.file, **facts)
        if value not in model.choices[key]:
            expected = f"one of {', '.join(map(str, model.choices[key]))}"
            message = f"is not a candidate of {key!r}"
            document.fail(("choices", key), message, found=value, expected=expected)
    written_choices(document, model)  # for its errors, also in choices that stay as written
    params = model.params | {k: v for k, v in choices.items() if "." not in k}
    sections = []
    for section in model.sections:
        prefix = f"{section.name}."
        changes = {k.removeprefix(prefix): v for k, v in choices.items() if k.startswith(prefix)}
        sections.append(section.model_copy(update=changes))
    return model.model_copy(update={"params": params, "sections": tuple(sections)})


def written_choices(document: Document, model: AuthoredModel) -> dict[str, int]:
    """Return the values that the file sets for the choices.

    Raises:
        SpecError: If a choice is neither a parameter nor a key of a section, or the value that the
            file sets is not a candidate.
    """
    sections = {s.name: s for s in model.sections}
    written: dict[str, int] = {}
    for key, candidates in model.choices.items():
        loc = ("choices", key)
        name, dot, option = key.partition(".")
        if not dot and key in model.params:
            now = model.params[key]
        elif dot and name in sections:
            section = sections[name]
            settings = {"depth": section.depth, **section.arguments, "stride": section.stride}
            if settings.get(option) is None:
                facts = unknown(option, (k for k, v in settings.items() if v is not None))
                document.fail(loc, "is not set by the section", **facts)
            now = settings[option]
        else:
            known = [*model.params, *(f"{s}.depth" for s in sections)]
            message, hint = "is neither a parameter nor a section's key", nearest(key, known)
            document.fail(loc, message, expected="'section.key' or a parameter", hint=hint)
        # An expression, or true, which equals 1, is not among the candidates either.
        if type(now) is not int or now not in candidates:
            message, expected = "lacks the written value", f"{now} too"
            document.fail(loc, message, found=list(candidates), expected=expected)
        written[key] = now
    return written
