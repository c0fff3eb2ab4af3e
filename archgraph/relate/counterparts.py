"""Corresponding operators and leaves of two graphs, collected pair by pair.

A leaf is a parameter, buffer or constant. It has at most one counterpart.
"""

from __future__ import annotations

from archgraph.analysis.forms import Form
from archgraph.graph.ir import Param
from archgraph.relate.sides import Match, Sides


class Counterparts:
    """Corresponding operators and leaves of a client's graph and the global model's.

    Attributes:
        nodes: Dict from the client's operators to those of the global model.
        leaves: Dict from the client's leaves to those of the global model.
        back: The inverse of ``leaves``.
    """

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.nodes: dict[str, str] = {}
        self.leaves: dict[str, str] = {}
        self.back: dict[str, str] = {}
        self._entries = [{s.forms.through(b.exit): b.entry for b in s.blocks} for s in sides]

    def pair(self, mine: Form, theirs: Form) -> None:
        """Pair the operators and leaves of two parts with the same form."""
        self.nodes.update(zip(mine.nodes, theirs.nodes, strict=True))
        for a, b in zip(mine.leaves, theirs.leaves, strict=True):
            self.leaves[a], self.back[b] = b, a

    def accept(self, match: Match) -> str:
        """Pair the operators and leaves of a match, or return why earlier pairs conflict with it.

        The result is empty if there is no conflict.
        """
        mine, theirs = (side.form(run) for side, run in zip(self.sides, match, strict=True))
        reason = self._contradiction(mine, theirs) or self._other_inputs(match, mine, theirs)
        if not reason:
            self.pair(mine, theirs)
            for left, right in zip(*(side.inputs for side in self.sides), strict=False):
                self.nodes.setdefault(left, right)
        return reason

    def _contradiction(self, mine: Form, theirs: Form) -> str:
        for a, b in zip(mine.leaves, theirs.leaves, strict=True):
            if self.leaves.get(a, b) != b:
                return f"shares {a} with a block whose counterpart has {self.leaves[a]}, not {b}"
            if self.back.get(b, a) != a:
                return f"has {a} where its counterpart shares {b} with that of {self.back[b]}"
        return ""

    def _other_inputs(self, match: Match, mine: Form, theirs: Form) -> str:
        """Return why the inputs of two runs of blocks do not correspond; empty if they do."""
        a, b = (s.blocks[run[0]] for s, run in zip(self.sides, match, strict=True))
        operands = [(a.entry, b.entry)]
        if len(mine.far) == len(theirs.far):
            operands += zip(mine.far, theirs.far, strict=True)
        matched = set(self.nodes), set(self.nodes.values())
        for pair in operands:
            source, target = (self._origin(i, name, matched[i]) for i, name in enumerate(pair))
            if self.nodes.get(source, target) != target:
                return f"takes %{source}, its counterpart {b.name} takes %{target}"
        return ""

    def _origin(self, side: int, name: str, matched: set[str]) -> str:
        """Follow a value back through the blocks that have no counterpart."""
        forms, entries = self.sides[side].forms, self._entries[side]
        name = forms.through(name)
        while name in entries and name not in matched and entries[name] != name:
            name = forms.through(entries[name])
        return name

    def pair_unused(self) -> None:
        """Pair leaves that evaluation does not use (counters) by their modules.

        If evaluation does not use any leaf of a module, the module is paired with the module of the
        same name.
        """
        client, other_graph = (side.graph for side in self.sides)
        modules = {
            a.rpartition(".")[0]: b.rpartition(".")[0]
            for a, b in self.leaves.items()
            if client.param[a].role != "constant"
        }
        used = self.sides[0].forms.whole.leaves
        busy, known = {name.rpartition(".")[0] for name in used}, {*used, *self.leaves}
        unavailable = {*self.back, *self.sides[1].forms.whole.leaves}
        for param in client.params:
            if param.name in known or param.role == "constant":
                continue
            prefix, _, last = param.name.rpartition(".")
            names = [] if prefix in busy else [param.name]
            if prefix in modules:
                names.insert(0, f"{modules[prefix]}.{last}" if modules[prefix] else last)
            for name in names:
                other = other_graph.param.get(name)
                if other is not None and name not in unavailable and _alike(param, other):
                    self.leaves[param.name], self.back[name] = name, param.name
                    unavailable.add(name)
                    break


def _alike(a: Param, b: Param) -> bool:
    return (a.role, a.dtype, len(a.shape)) == (b.role, b.dtype, len(b.shape))
