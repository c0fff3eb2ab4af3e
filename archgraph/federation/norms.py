"""What becomes of normalisation layers in a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import normalisation, statistics
from archgraph.states import State, signature

NormName: TypeAlias = Literal["averaged", "local", "static", "per_submodel", "per_width_stats"]


@dataclass(frozen=True)
class NormPolicy:
    """What becomes of normalisation layers: which entries are merged, kept or recomputed.

    Attributes:
        name: ``averaged``: statistics are averaged like weights. ``local``: they never leave the
            client. ``static``: no running statistics in training; cumulative ones are computed in
            one pass over training data before evaluation (HeteroFL's sBN). ``per_submodel``: whole
            norm layers are held per submodel (NeFL). ``per_width_stats``: statistics are held per
            width, scale and shift are shared (FjORD).
    """

    name: NormName

    def kept(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that stay with the client: for ``Task.kept``."""
        return frozenset(statistics(graph)) if self.name == "local" else frozenset()

    def grouped(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that the server holds once per submodel (or width) instead of once."""
        match self.name:
            case "per_submodel":
                return frozenset(normalisation(graph)) & frozenset(graph.state_names)
            case "per_width_stats":
                return frozenset(statistics(graph))
            case _:
                return frozenset()

    def left_out(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that are not merged into the global state: for ``Merger.add(skip=...)``."""
        if self.name in ("local", "static"):
            return frozenset(statistics(graph))
        return self.grouped(graph)

    def filled(self, graph: ArchGraph, state: State) -> State:
        """A returned state as the merger wants it: zeros for what its client keeps and it skips."""
        absent = self.kept(graph) - state.keys()
        if not absent:
            return state
        zeros = {s.name: torch.zeros(s.shape, dtype=s.torch_dtype) for s in signature(graph)}
        return {name: state[name] if name in state else zeros[name] for name in graph.state_names}

    @property
    def evaluation(self) -> Literal["stored", "recompute"]:
        """Which statistics evaluation uses: for ``Evaluated.statistics``."""
        return "recompute" if self.name == "static" else "stored"
