"""Help on the spec language: a description, the options and an example for each topic.

Descriptions, types, ranges and defaults come from the models that validate the files. ``archgraph
help NAME`` and the page "Keys and operators" print the same topics.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import json
import re
import shlex
import sys
import textwrap
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pydantic

from archgraph.errors import SpecError
from archgraph.fields import MAX_SIZE
from archgraph.hints import FEATURES
from archgraph.language.aggregate import RULES, AggregateSpec, Rule
from archgraph.language.data import DOORS, DataSpec
from archgraph.language.elsewhere import suggestion
from archgraph.language.experiment import STRATEGIES, installed_strategy, strategy_options
from archgraph.language.family import MemberSpec, Rewrites
from archgraph.language.kinds import file_kinds
from archgraph.language.steps import STEPS, StepOptions
from archgraph.language.yaml import read_document
from archgraph.plain import Json, JsonSchema
from archgraph.rewrites.registry import RewriteRow, rewrite_rows

STEP_GROUP, REWRITE_GROUP, STRATEGY_GROUP = "steps", "rewrites", "strategies"
RULE_GROUP = "rules of aggregate"
_COMMON = tuple(field.alias or name for name, field in StepOptions.model_fields.items())


@functools.cache
def mappings() -> Mapping[str, Mapping[str, type[pydantic.BaseModel]]]:
    """Return a dict from group (``model files``, …) to a dict from topic to pydantic model."""
    described = {kind.name: kind.mappings() for kind in reversed([*file_kinds().values()])}
    return {f"{name} files": models for name, models in described.items() if models}


@dataclass(frozen=True, slots=True)
class HelpOption:
    """A key of a mapping, with its type, its default as YAML, and its description."""

    name: str
    type: str
    default: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Topic:
    """Help on an operator, rewrite, strategy or mapping.

    Attributes:
        name: Its name in a file.
        group: Group of the topic: ``steps``, ``rewrites``, ``model files``, …
        sentence: A one-sentence description.
        options: Its keys.
        notes: Further paragraphs.
        example: YAML that uses it.
    """

    name: str
    group: str
    sentence: str
    options: tuple[HelpOption, ...] = ()
    notes: tuple[str, ...] = ()
    example: str = ""

    def __str__(self) -> str:
        """Render for a terminal."""
        lines = [f"{self.name} ({self.group})", "", self.sentence]
        if self.options:
            width = max(len(option.name) for option in self.options)
            margin = " " * (width + 4)
            wrapper = textwrap.TextWrapper(80, margin, margin)
            lines.append("")
            for option in self.options:
                words = "" if option.default in ("", "required") else "default "
                facts = "; ".join(filter(None, (option.type, words + option.default)))
                lines.append(f"  {option.name.ljust(width)}  {facts}")
                lines += wrapper.wrap(option.sentence)
        lines += ["", *self.notes] if self.notes else []
        if self.example:
            lines += ["", "Example:", *(f"  {line}" for line in self.example.splitlines())]
        return "\n".join(lines)

    def markdown(self, level: int = 3) -> str:
        """Render the topic as Markdown, under a heading of the given level."""
        lines = [f"{'#' * level} `{self.name}`", "", self.sentence]
        if self.options:
            lines += ["", "| key | value | default | |", "|---|---|---|---|"]
            for o in self.options:
                default = f"`{o.default}`" if o.default not in ("", "required") else o.default
                lines.append(f"| `{o.name}` | {o.type} | {default} | {o.sentence} |")
        for note in self.notes:
            lines += ["", note]
        if self.example:
            lines += ["", "```yaml", self.example, "```"]
        return "\n".join(lines)


def _elsewhere(model: type[pydantic.BaseModel]) -> Collection[str]:
    """Return the keys of a mapping that are described in another topic."""
    if model is MemberSpec:
        return rewrite_rows()
    return DataSpec.model_fields if model in DOORS.values() else ()


@functools.cache
def topics() -> Mapping[str, Topic]:
    """Return a dict from name to topic: the mappings of files, rewrites and steps.

    Example:
        >>> topics()["relu"].sentence
        'Negative numbers become 0.'
    """
    examples = read_document(Path(__file__).with_name("examples.yaml")).data
    known: list[Topic] = []
    for group, models in mappings().items():
        for name, model in models.items():
            options = tuple(o for o in _options(model) if o.name not in _elsewhere(model))
            if model is DataSpec:
                options += tuple(HelpOption(k, "text", "", _sentence(m)) for k, m in DOORS.items())
            # Kinds of files from other packages bring no example.
            example = examples.get(name, "").rstrip()
            known.append(Topic(name, group, _sentence(model), options, example=example))
    known += _rows(RULE_GROUP, AggregateSpec, RULES)
    known += _rows(REWRITE_GROUP, Rewrites, rewrite_rows().values())
    common = tuple(_options(StepOptions))
    example = "relu: {from: input, as: activated, name: act}"
    known.append(Topic("step", STEP_GROUP, "Options of every step.", common, example=example))
    for name, row in STEPS.items():
        options = tuple(o for o in _options(row.options) if o.name not in _COMMON)
        notes = _short(name, row.main)
        known.append(Topic(name, STEP_GROUP, row.sentence, options, notes, row.example))
    return {entry.name: entry for entry in known}


def topic(name: str) -> Topic:
    """Return help on an operator, a rewrite, a strategy, a mapping or one of its keys.

    Args:
        name: E.g. ``conv``, ``take``, ``fedavg``, ``local``; ``local.lr`` for one key of ``local``,
            or ``lr`` if no other mapping has this key.

    Raises:
        SpecError: If the name is unknown.

    Example:
        >>> [option.default for option in topic("local.epochs").options]
        ['1']
    """
    known = topics()
    name = name.replace("-", "_")  # spelling of options at the command line
    parent, _, key = name.rpartition(".")
    strategies = strategy_names()
    if name in known:
        return known[name]
    # Kinds of data are topics with a prefix that files do not write.
    if f"data.{name}" in known:
        return known[f"data.{name}"]
    if name in strategies:
        return _strategy(name)
    if parent in strategies:
        known = {parent: _strategy(parent)}
    keys = _keys(known.values())
    same = [k for k in keys if k == name] or [k for k in keys if k.endswith(f".{key}")]
    if len(same) == 1:
        mapping, option = keys[same[0]]
        return dataclasses.replace(mapping, options=(option,))
    if same:
        raise SpecError("is the name of several keys", where=name, expected=" or ".join(same))
    words = [*known, *strategies, *keys, *(k.partition(".")[2] for k in keys)]
    raise SpecError(
        "is not a step, a rewrite, a strategy or a key",
        where=name,
        hint=suggestion(name, words) or "`archgraph help` without a name lists all topics",
    )


def _keys(known: Iterable[Topic]) -> dict[str, tuple[Topic, HelpOption]]:
    """Return the keys of topics, each with its topic, as ``local.epochs``."""
    return {
        f"{mapping.name}.{option.name}": (mapping, option)
        for mapping in known
        for option in mapping.options
    }


def strategy_names() -> list[str]:
    """Return the names of the installed strategies, sorted."""
    return sorted(importlib.metadata.entry_points(group=STRATEGIES).names)


def overview() -> dict[str, str]:
    """Return a dict from group to a text that lists its topics, one per line."""
    parts: dict[str, str] = {}
    width = max(map(len, topics()))
    for group, members in groupby(topics().values(), lambda entry: entry.group):
        lines = (f"  {entry.name.ljust(width)}  {entry.sentence}" for entry in members)
        parts[group] = "\n".join((group, *lines))
    # Only names: a description needs an import, which takes seconds for all strategies.
    parts[STRATEGY_GROUP] = f"{STRATEGY_GROUP}\n  {', '.join(strategy_names())}"
    extras = (f"  {extra.ljust(width)}  {use}" for extra, use in FEATURES.items())
    return {**parts, "extras": "\n".join(("extras", *extras))}


def markdown() -> str:
    """Render the page about the language: all topics, in their groups."""
    common = ", ".join(f"`{name}`" for name in _COMMON)
    parts: list[str] = []
    for group, members in groupby(topics().values(), lambda entry: entry.group):
        parts.append(f"## {group.capitalize()}")
        if group == STEP_GROUP:
            parts.append(f"Every step also takes {common}; see `step`.")
        parts += [entry.markdown() for entry in members]
    return "\n\n".join(parts) + "\n"


def _rows(
    group: str, model: type[pydantic.BaseModel], rows: Iterable[Rule | RewriteRow]
) -> Iterator[Topic]:
    """Yield rules of ``aggregate``, or rewrites, in the order in which they are applied."""
    described = model.model_json_schema()
    known = described["$defs"]
    for row in rows:
        entry = described["properties"][row.name]
        forms = entry.get("anyOf", [entry])
        long = [known[form["$ref"].rpartition("/")[2]] for form in forms if "$ref" in form]
        options = tuple(o for form in long for o in _described(form, known))
        # A bare value, if it is allowed in place of the mapping, sets the first key.
        bare = [form for form in forms if "$ref" not in form and form.get("type") != "null"]
        notes = _short(row.name, options[0].name if options and bare else "")
        if isinstance(row, Rule):
            notes += (f"Guarantee: {row.promise}.", f"Source: {row.source}.")
        else:
            value = "" if row.example == "true" else f" {shlex.quote(row.example)}"
            command = f"archgraph rewrite FILE --{row.name.replace('_', '-')}{value}"
            notes += (f"On the command line: `{command}`.", f"Guarantee: {row.law}.")
        options = options or (HelpOption(row.name, _type(entry, known), "", ""),)
        yield Topic(row.name, group, row.help, options, notes, f"{row.name}: {row.example}")


@functools.cache
def _strategy(name: str) -> Topic:
    """Describe an installed strategy: its fields with their descriptions from the docstring."""
    cls = installed_strategy(name).load()
    sentence = " ".join((sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0].split())
    sentences: dict[str, str] = {}
    for base in reversed(cls.__mro__):  # shared options are described in their base class
        _, _, described = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        # Google's style: a field is indented by four, continuation lines by more.
        sentences |= re.findall(r"^    (\w+): (.*(?:\n     +\S.*)*)", described, re.MULTILINE)
    types = typing.get_type_hints(cls)
    options = []
    for field in strategy_options(cls):
        schema = pydantic.TypeAdapter(types[field.name]).json_schema()
        default = _yaml(field.default)
        if field.default is field.default_factory is dataclasses.MISSING:
            default = "required"
        text = re.sub(r"(:\w+:)?`+([^`]*)`+", r"`\2`", sentences.get(field.name, ""))
        text = text.replace("None:", "left out:")
        ranges = dict.fromkeys(text for text, _ in field.metadata.get("range", ()))
        words = ", ".join((_type(schema, schema.get("$defs", {})), *ranges))
        options.append(HelpOption(field.name, words, default, " ".join(text.split())))
    if cls.presets:
        names = ", ".join(cls.presets)
        options.append(
            HelpOption("preset", names, "", "a set of option values, which other options override")
        )
    example = f"strategy: {{{name}: {{}}}}"
    return Topic(name, STRATEGY_GROUP, sentence, tuple(options), cls.help_notes(), example)


def _short(name: str, main: str) -> tuple[str, ...]:
    """Note that a bare value may stand for the main option."""
    return (f"`{name}: VALUE` is short for `{name}: {{{main}: VALUE}}`.",) if main else ()


def _sentence(model: type[pydantic.BaseModel]) -> str:
    """Return the docstring of a model up to its first section."""
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


def _options(model: type[pydantic.BaseModel]) -> Iterator[HelpOption]:
    described = model.model_json_schema()
    known = described.get("$defs", {})
    if "$ref" in described:  # a model that contains itself: blocks in blocks
        described = known[described["$ref"].rpartition("/")[2]]
    return _described(described, known)


def _described(described: JsonSchema, known: JsonSchema) -> Iterator[HelpOption]:
    """Yield the keys of a mapping that a JSON schema describes."""
    for name, entry in described["properties"].items():
        needed = name in described.get("required", ())
        parts = (entry, *entry.get("anyOf", ()))
        sentence = next((str(p["description"]) for p in parts if "description" in p), "")
        default = "required" if needed else _yaml(entry.get("default"))
        yield HelpOption(name, _type(entry, known), default, sentence)


def _yaml(value: Json) -> str:
    """Render a default as YAML. Empty values and mappings, whose keys have defaults, give ""."""
    if value in (None, dataclasses.MISSING, "", [], ()) or isinstance(value, dict):
        return ""
    return value if isinstance(value, str) else json.dumps(value)


# Names of a JSON schema's types and of some titles, singular and plural.
_NOUNS = {
    "integer": ("integer", "integers"),
    "number": ("number", "numbers"),
    "string": ("text", "texts"),
    "boolean": ("true or false", "booleans"),
    "null": ("", ""),
    "Step": ("step", "steps"),
    "Strategy": (
        "mapping from a strategy's name to its options, or `python` with the name of a class",
        "",
    ),
}


def _type(entry: Json, known: JsonSchema, *, plural: bool = False) -> str:
    """Describe the values of a JSON schema in words."""
    if entry is True:
        return "anything"
    if "$ref" in entry:
        return _referenced(entry["$ref"].rpartition("/")[2], known, plural=plural)
    if entry.get("title") in _NOUNS:
        return _NOUNS[entry["title"]][plural]
    if forms := entry.get("anyOf") or entry.get("oneOf"):
        words = dict.fromkeys(_type(form, known, plural=plural) for form in forms)
        return " or ".join(filter(None, words))
    if "const" in entry:
        return str(entry["const"])
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    kind = entry.get("type")
    if kind is None:
        return "anything"
    if kind == "array":
        inner = entry.get("items") or (entry.get("prefixItems") or [{}])[0]
        return f"list of {_type(inner, known, plural=True)}"
    if kind == "object":
        inner = entry.get("additionalProperties")
        return f"mapping to {_type(inner, known)}" if isinstance(inner, dict) else "mapping"
    return f"{_NOUNS[kind][plural]}{_range(entry)}"


def _referenced(name: str, known: JsonSchema, *, plural: bool) -> str:
    """Describe the values of a pydantic model; refer to its topic if it has one."""
    match = (n for group in mappings().values() for n, m in group.items() if m.__name__ == name)
    mapping = next(match, None)
    return f"mapping `{mapping}`" if mapping else _type(known.get(name), known, plural=plural)


def _range(entry: JsonSchema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    known = {sign: entry[key] for key, sign in signs.items() if key in entry}
    bounds = [f"{sign} {bound:g}" for sign, bound in known.items() if bound != MAX_SIZE]
    return f" {' and '.join(bounds)}" if bounds else ""
