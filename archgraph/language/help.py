"""What a file may say, explained: one sentence, the options and one example per operator and key.

Nothing is written twice: sentences, types, ranges and defaults are those of the models that read
the files; ``archgraph help NAME`` and the page about the language print the same topics.
``python -m archgraph.language.help`` prints that page.
"""

from __future__ import annotations

import functools
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from archgraph.errors import SpecError
from archgraph.fields import MAX_SIZE
from archgraph.hints import nearest
from archgraph.language.data import (
    ClassesSpec,
    DataSpec,
    DirichletSpec,
    EqualDirichletSpec,
    IidSpec,
)
from archgraph.language.experiment import AttackSpec, EngineSpec, EvaluateSpec, ExperimentSpec
from archgraph.language.family import FamilySpec, MemberSpec, Rewrites
from archgraph.language.local import LocalOptions
from archgraph.language.lowering import BlockOptions
from archgraph.language.model import (
    AuthoredModel,
    BlockSpec,
    InputSpec,
    PythonModel,
    SectionSpec,
    ShortcutSpec,
)
from archgraph.language.steps import STEPS, StepOptions
from archgraph.language.yaml import read_document
from archgraph.rewrite.registry import ROWS

# Mappings by the name of their topic, under the file that they belong to.
MAPPINGS: Mapping[str, Mapping[str, type[pydantic.BaseModel]]] = {
    "model files": {
        "model": AuthoredModel,
        "inputs": InputSpec,
        "blocks": BlockSpec,
        "sections": SectionSpec,
        "shortcut": ShortcutSpec,
        "block": BlockOptions,
        "python": PythonModel,
    },
    "family files": {"family": FamilySpec, "clients": MemberSpec},
    "experiment files": {
        "experiment": ExperimentSpec,
        "data": DataSpec,
        "iid": IidSpec,
        "dirichlet": DirichletSpec,
        "equal_dirichlet": EqualDirichletSpec,
        "classes": ClassesSpec,
        "local": LocalOptions,
        "attack": AttackSpec,
        "evaluate": EvaluateSpec,
        "engine": EngineSpec,
    },
}
STEP_GROUP, REWRITE_GROUP = "steps", "rewrites"
_COMMON = tuple(field.alias or name for name, field in StepOptions.model_fields.items())


@dataclass(frozen=True, slots=True)
class HelpOption:
    """One key of a mapping.

    Attributes:
        name: The key.
        type: What its value may be.
        default: What holds where it is left out, as YAML; empty: nothing; "required": it must not
            be left out.
        sentence: What it says.
    """

    name: str
    type: str
    default: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Topic:
    """All that is to be said about one operator, rewrite or mapping.

    Attributes:
        name: Its name in a file.
        group: Where it may stand: ``steps``, ``rewrites``, ``model files``, …
        sentence: What it is.
        options: Its keys.
        main: The key whose value may stand alone, if there is one.
        example: YAML that uses it.
    """

    name: str
    group: str
    sentence: str
    options: tuple[HelpOption, ...] = ()
    main: str = ""
    example: str = ""

    def __str__(self) -> str:
        """As a terminal shows it."""
        lines = [f"{self.name} ({self.group})", "", self.sentence]
        if self.options:
            width = max(len(option.name) for option in self.options)
            lines.append("")
            for option in self.options:
                facts = "; ".join(filter(None, (option.type, _default(option))))
                lines.append(f"  {option.name.ljust(width)}  {facts}")
                margin = " " * (width + 4)
                lines += textwrap.wrap(
                    option.sentence, 96, initial_indent=margin, subsequent_indent=margin
                )
        lines += ["", *self._notes()] if self._notes() else []
        if self.example:
            lines += ["", "Example:", *(f"  {line}" for line in self.example.splitlines())]
        return "\n".join(lines)

    def markdown(self, level: int = 3) -> str:
        """As a page of the documentation shows it.

        Args:
            level: Level of the heading.
        """
        lines = [f"{'#' * level} `{self.name}`", "", self.sentence]
        if self.options:
            lines += ["", "| key | value | default | |", "|---|---|---|---|"]
            for o in self.options:
                default = f"`{o.default}`" if o.default not in ("", "required") else o.default
                lines.append(f"| `{o.name}` | {o.type} | {default} | {o.sentence} |")
        for note in self._notes():
            lines += ["", note]
        if self.example:
            lines += ["", "```yaml", self.example, "```"]
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        if self.main and (self.options or self.group == STEP_GROUP):
            return [f"`{self.name}: VALUE` is short for `{self.name}: {{{self.main}: VALUE}}`."]
        return []


def topics() -> dict[str, Topic]:
    """Every topic by name: steps, rewrites, and the mappings of model, family and experiment files.

    Example:
        >>> topics()["relu"].sentence
        'Negative numbers become 0.'
    """
    return dict(_topics())


def topic(name: str) -> Topic:
    """What there is to say about an operator, a rewrite, a mapping or one of its keys.

    Args:
        name: E.g. ``conv``, ``take``, ``local``, ``local.lr``.

    Raises:
        SpecError: If there is nothing of that name.

    Example:
        >>> print(topic("local.lr"))
        lr (local)
        <BLANKLINE>
        learning rate in the first round
        <BLANKLINE>
          lr  number > 0; default 0.1
        <BLANKLINE>
        Example:
          lr: 0.05
    """
    known = _topics()
    if name in known:
        return known[name]
    parent, _, key = name.rpartition(".")
    for option in known[parent].options if parent in known else ():
        if option.name == key:
            alone = HelpOption(option.name, option.type, option.default, "")
            example = _part(known[parent].example, key) or f"{key}: {option.default}"
            return Topic(key, parent, option.sentence, (alone,), "", example)
    keys = [f"{t.name}.{o.name}" for t in known.values() for o in t.options]
    raise SpecError(
        "is not a step, a rewrite or a key",
        where=name,
        hint=nearest(name, [*known, *keys], count=3) or "without a name, all topics are listed",
    )


def overview() -> str:
    """All topics, a line each, as ``archgraph help`` lists them."""
    lines: list[str] = []
    group = ""
    width = max(map(len, _topics()))
    for entry in _topics().values():
        if entry.group != group:
            group = entry.group
            lines += ["", group]
        lines.append(f"  {entry.name.ljust(width)}  {entry.sentence}")
    return "\n".join(lines).lstrip("\n")


def markdown() -> str:
    """The page about the language: all topics, by group."""
    common = ", ".join(f"`{name}`" for name in _COMMON)
    notes = {STEP_GROUP: f"Every step also takes {common}; see `step`."}
    parts: list[str] = []
    group = ""
    for entry in _topics().values():
        if entry.group != group:
            group = entry.group
            parts += [f"## {group.capitalize()}", *filter(None, [notes.get(group)])]
        parts.append(entry.markdown())
    return "\n\n".join(parts) + "\n"


@functools.cache
def _topics() -> dict[str, Topic]:
    examples = read_document(Path(__file__).with_name("examples.yaml")).data
    found: list[Topic] = []
    for group, mappings in MAPPINGS.items():
        for name, model in mappings.items():
            own = () if model is not MemberSpec else tuple(Rewrites.model_fields)
            options = tuple(o for o in _options(model) if o.name not in own)
            found.append(Topic(name, group, _sentence(model), options, "", examples[name].rstrip()))
    found += _rewrites()
    found.append(
        Topic(
            "step",
            STEP_GROUP,
            "What every step takes.",
            tuple(_options(StepOptions)),
            "",
            "relu: {from: input, as: activated, name: act}",
        )
    )
    for name, row in STEPS.items():
        options = tuple(o for o in _options(row.options) if o.name not in _COMMON)
        found.append(Topic(name, STEP_GROUP, row.sentence, options, row.main, row.example))
    return {entry.name: entry for entry in found}


def _rewrites() -> Iterator[Topic]:
    """The rewrites, in the order in which they are done."""
    values = {option.name: option for option in _options(Rewrites)}
    for row in ROWS:
        value = HelpOption(row.name, values[row.name].type, "", "")
        sentence = f"{row.help} What holds afterwards: {row.law}."
        yield Topic(row.name, REWRITE_GROUP, sentence, (value,), "", f"{row.name}: {row.example}")


def _sentence(model: type[pydantic.BaseModel]) -> str:
    """The docstring of a model up to its first section."""
    text = (model.__doc__ or "").split("\n\n")
    return " ".join(text[0].split())


def _options(model: type[pydantic.BaseModel]) -> Iterator[HelpOption]:
    described = model.model_json_schema()
    known = described.get("$defs", {})
    if "$ref" in described:
        described = known[described["$ref"].rpartition("/")[2]]
    required = set(described.get("required", ()))
    for name, entry in described["properties"].items():
        default = "required" if name in required else _yaml(entry.get("default"))
        parts = (entry, *entry.get("anyOf", ()))
        sentence = next((str(p["description"]) for p in parts if "description" in p), "")
        yield HelpOption(name, _type(entry, known), default, sentence)


def _yaml(value: Any) -> str:
    """A default as YAML; nothing for what is empty."""
    if value in (None, "", [], {}) and not isinstance(value, bool | int | float):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ""  # a mapping of its own: its keys have defaults
    return json.dumps(value)


def _default(option: HelpOption) -> str:
    return f"default {option.default}" if option.default not in ("", "required") else option.default


_NOUNS = {
    "integer": ("integer", "integers"),
    "number": ("number", "numbers"),
    "string": ("text", "texts"),
    "boolean": ("true or false", "booleans"),
    "null": ("", ""),
}


def _type(entry: Any, known: Mapping[str, Any], *, plural: bool = False) -> str:
    """What a JSON schema admits, in words."""
    if entry is True or not entry:
        return "anything"
    if "$ref" in entry:
        name = entry["$ref"].rpartition("/")[2]
        topic = next((n for group in MAPPINGS.values() for n, m in group.items()
                      if m.__name__ == name), None)  # fmt: skip
        inner = known.get(name, {})
        return f"mapping `{topic}`" if topic else _type(inner, known, plural=plural)
    for key in ("anyOf", "oneOf"):
        if key in entry:
            words = dict.fromkeys(_type(e, known, plural=plural) for e in entry[key])
            return " or ".join(filter(None, words))
    if "const" in entry:
        return str(entry["const"])
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    kind = entry.get("type", "")
    if isinstance(kind, list):
        return " or ".join(_type({**entry, "type": one}, known, plural=plural) for one in kind)
    if kind == "array":
        inner = entry.get("items") or (entry.get("prefixItems") or [{}])[0]
        return f"list of {_type(inner, known, plural=True)}"
    if kind == "object":
        inner = entry.get("additionalProperties")
        return f"mapping to {_type(inner, known)}" if isinstance(inner, dict) else "mapping"
    if entry.get("title") == "Step":
        return "steps" if plural else "step"
    words = _NOUNS.get(kind, (kind, kind))[plural]
    return f"{words}{_range(entry)}"


def _range(entry: Mapping[str, Any]) -> str:
    low = entry.get("minimum")
    high = entry.get("maximum")
    high = None if high == MAX_SIZE else high
    bounds = [
        f"≥ {low:g}" if low is not None else "",
        f"> {entry['exclusiveMinimum']:g}" if "exclusiveMinimum" in entry else "",
        f"≤ {high:g}" if high is not None else "",
        f"< {entry['exclusiveMaximum']:g}" if "exclusiveMaximum" in entry else "",
    ]
    said = " and ".join(filter(None, bounds))
    return f" {said}" if said else ""


def _part(example: str, key: str) -> str:
    """The lines of an example that set one key at its left edge."""
    taken: list[str] = []
    for line in example.splitlines():
        if taken and (line.startswith((" ", "-")) or not line):
            taken.append(line)
        elif taken:
            break
        elif line.startswith(f"{key}:"):
            taken.append(line)
    return "\n".join(taken)


if __name__ == "__main__":
    sys.stdout.write(markdown())
