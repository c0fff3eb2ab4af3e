"""The names in a list of steps, and the errors for unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archgraph.fields import Place
from archgraph.graph.ir import Ref
from archgraph.hints import unknown
from archgraph.language.document import Document
from archgraph.language.expression import ParamValue
from archgraph.language.model import Step

# Names that every list of steps has: its own input, and two sizes of it.
INPUT = "input"
CHANNELS = "in_channels"
FEATURES = "in_features"


@dataclass
class Scope:
    """The names in a list of steps, with their values.

    Attributes:
        path: Path of the module that contains the steps.
        values: Dict from name (a section, an input, or set by ``as:``) to value.
        params: Dict from the name of a parameter to its value.
        outer: The enclosing scope, in which names are also looked up.
        later: Names that later steps define, in this or an enclosing scope.
    """

    path: str
    values: dict[str, Ref]
    params: Mapping[str, ParamValue]
    outer: Scope | None = None
    later: frozenset[str] = frozenset()

    def find(self, name: str) -> Ref | None:
        """Return the value of a name in this scope or an outer one."""
        if name in self.values:
            return self.values[name]
        return self.outer.find(name) if self.outer else None

    def names(self) -> Iterator[str]:
        """Yield all names that have a value, also in enclosing scopes."""
        yield from self.values
        if self.outer:
            yield from self.outer.names()

    def under(self, name: str) -> str:
        """Return the path of a submodule."""
        return f"{self.path}.{name}" if self.path else name


def lookup(document: Document, scope: Scope, steps: Sequence[Step], name: str, loc: Place) -> Ref:
    """Return the value that a name has at a step in a list of steps.

    Raises:
        SpecError: If the name is unknown, or is defined only by a later step.
    """
    value = scope.find(name)
    if value is not None:
        return value
    if name in labels_of(steps) or name in scope.later:
        hint = "name a value that is made before it, or move the step that makes it up"
        document.fail(loc, "names the value of a later step", found=repr(name), hint=hint)
    document.fail(loc, "names an unknown value", **unknown(name, scope.names()))


def labels_of(steps: Sequence[Step]) -> list[str | None]:
    """Return the name (``as:``) of the result of each step; None for a result without a name."""
    return [
        str(s.options["as"]) if isinstance(s.options, dict) and s.options.get("as") else None
        for s in steps
    ]
