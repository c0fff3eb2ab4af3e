"""Policies for normalisation layers: average statistics, keep them private, or recompute them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.errors import RejectedUpdate
from archgraph.graph.ir import ArchGraph
from archgraph.ops.table import normalisation, statistics, variances
from archgraph.states import State, signature

NormName: TypeAlias = Literal["averaged", "local", "static", "per_submodel"]


@dataclass(frozen=True)
class NormPolicy:
    """A policy for the parameters and running statistics of normalisation layers.

    Attributes:
        name: With ``averaged``, running statistics are averaged like weights. With ``local``,
            running statistics never leave the client. With ``static``, running statistics are not
            merged. Instead, they are computed before each evaluation by running the model once on
            training data (HeteroFL's sBN). With ``per_submodel``, the server stores the norm layers
            of each submodel separately (NeFL).
    """

    name: NormName

    def private(self, graph: ArchGraph) -> frozenset[str]:
        """Return the names of the tensors that stay with the client (see ``Task.private``)."""
        return frozenset(statistics(graph)) if self.personal else frozenset()

    def unmerged(self, graph: ArchGraph) -> frozenset[str]:
        """Return the names of the tensors that are not merged (see ``Task.unmerged``)."""
        match self.name:
            case "local" | "static":
                return frozenset(statistics(graph))
            case "per_submodel":
                # Without constants (such as an epsilon), which are not in a state.
                return frozenset(normalisation(graph)) & frozenset(graph.state_names)
            case "averaged":
                return frozenset()

    @property
    def personal(self) -> bool:
        """Whether running statistics stay with clients (see ``Evaluated.private``)."""
        return self.name == "local"

    @property
    def evaluation(self) -> Literal["stored", "recompute"]:
        """The value of ``Evaluated.statistics`` under this policy: ``stored`` or ``recompute``."""
        # Static training does not collect them.
        return "recompute" if self.name == "static" else "stored"


def check_statistics(graph: ArchGraph, tensors: State, where: str) -> None:
    """Check running statistics that a client sent with its model.

    Args:
        graph: Architecture of the model.
        tensors: Dict from name to the running statistics that were sent.
        where: Name of the sender, for errors.

    Raises:
        RejectedUpdate: If a tensor is missing or has another shape or dtype, or a variance is
            negative.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.BatchNorm1d(2), torch.zeros(3, 2))
        >>> check_statistics(graph, state | {"running_var": torch.tensor([-1.0, 1])}, "client 3")
        Traceback (most recent call last):
        archgraph.errors.RejectedUpdate: client 3: running_var: negative variance; found -1
    """
    names = frozenset(statistics(graph))
    for slot in signature(graph):
        if slot.name not in names:
            continue
        at = f"{where}: {slot.name}"
        sent, expected = tensors.get(slot.name), (slot.shape, slot.torch_dtype)
        form = None if sent is None else (tuple(sent.shape), sent.dtype)
        if sent is None or form != expected:
            raise RejectedUpdate(
                "statistics do not fit the model", where=at, found=form, expected=expected
            )
        # The root of a negative variance is NaN, which would make every later mean NaN.
        if slot.name in variances(graph) and sent.numel() and float(sent.min()) < 0:
            raise RejectedUpdate("negative variance", where=at, found=f"{float(sent.min()):g}")
