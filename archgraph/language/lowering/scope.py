"""What names mean in a list of steps, and what is wrong with one that means nothing."""

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
    """What names mean in a list of steps.

    Attributes:
        path: Module path.
        values: Values by the names that ``as:`` gave.
        params: What ``$name`` stands for.
        outer: The scope around it.
        later: Names that later steps give, here or in the scopes around.
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
        """Yield all names that stand for values."""
        yield from self.values
        if self.outer:
            yield from self.outer.names()

    def under(self, name: str) -> str:
        """Return the path of a module inside."""
        return f"{self.path}.{name}" if self.path else name


def lookup(
    document: Document, scope: Scope, steps: Sequence[Step], index: int, name: str, loc: Place
) -> Ref:
    """Return the value of a name, as a step of a list sees it.

    Raises:
        SpecError: If it stands for nothing yet: unknown, made later, or made by a cycle.
    """
    value = scope.find(name)
    if value is not None:
        return value
    # A cycle first: moving a step up, the advice about a later one, would not break it.
    labels = labels_of(steps)
    if name in labels:
        if path := _cycle(steps, labels, index, labels.index(name)):
            expected = "a value made before"
            document.fail(loc, "forms a cycle", found=" → ".join(path), expected=expected)
    if name in labels or name in scope.later:
        hint = "move the step that makes it up"
        document.fail(loc, "names the value of a later step", found=repr(name), hint=hint)
    document.fail(loc, "names an unknown value", **unknown(name, scope.names()))


def labels_of(steps: Sequence[Step]) -> list[str | None]:
    """Return the labels that the steps give to their results; None for unlabelled ones."""
    return [
        str(s.options["as"]) if isinstance(s.options, dict) and s.options.get("as") else None
        for s in steps
    ]


def _cycle(steps: Sequence[Step], labels: Sequence[str | None], start: int, goal: int) -> list[str]:
    """Return the steps from a later step back to the one that uses it, if they form a cycle."""
    import networkx as nx  # 0.07 s that only a mistake costs

    drawn = nx.DiGraph()
    drawn.add_nodes_from(range(len(steps)))
    for index, step in enumerate(steps):
        options = step.options if isinstance(step.options, dict) else {}
        written = [options.get(key, ()) for key in ("from", "other", "context")]
        lists = [(v,) if isinstance(v, str) else v for v in written]  # a number draws on nothing
        names = [n for v in lists if isinstance(v, (list, tuple)) for n in v]
        drawn.add_edges_from((index, labels.index(n)) for n in names if n in labels)
        if "from" not in options and index:
            drawn.add_edge(index, index - 1)
    if not nx.has_path(drawn, goal, start):
        return []
    path = nx.shortest_path(drawn, goal, start)
    return [labels[i] or steps[i].name for i in (*path[::-1], start)]
