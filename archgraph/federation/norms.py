"""What becomes of normalisation layers in a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import normalisation, statistics

NormName: TypeAlias = Literal["averaged", "local", "static", "per_submodel"]


@dataclass(frozen=True)
class NormPolicy:
    """What becomes of normalisation layers: which entries are merged, kept or recomputed.

    Attributes:
        name: ``averaged``: statistics are averaged like weights. ``local``: they never leave the
            client. ``static``: no running statistics in training; cumulative ones are computed in
            one pass over training data before evaluation (HeteroFL's sBN). ``per_submodel``: the
            server holds whole norm layers once per submodel (NeFL).
    """

    name: NormName

    def kept(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that stay with the client: for ``Task.kept``."""
        return frozenset(statistics(graph)) if self.personal else frozenset()

    def left_out(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that are not merged into the global state: for ``Task.skip``."""
        match self.name:
            case "local" | "static":
                return frozenset(statistics(graph))
            case "per_submodel":
                return frozenset(normalisation(graph)) & frozenset(graph.state_names)
            case "averaged":
                return frozenset()

    @property
    def personal(self) -> bool:
        """Whether clients keep entries of their own: for ``Evaluated.kept``."""
        return self.name == "local"

    @property
    def evaluation(self) -> Literal["stored", "recompute"]:
        """Which statistics evaluation uses: for ``Evaluated.statistics``."""
        return "recompute" if self.name == "static" else "stored"
