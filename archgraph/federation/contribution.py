"""A client's contribution to the means that form the server's state."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import Tensor

from archgraph.errors import RunError
from archgraph.federation.state import GLOBAL
from archgraph.federation.tasks import Result, WeightOf
from archgraph.graph.ir import ArchGraph
from archgraph.states import Signature, State, Transfer
from archgraph.states import Update as Update  # contributions of strategies with their own means
from archgraph.states.robust import Cut

TINY = 1e-30  # lower bound of sizes in divisions


class Contribution(NamedTuple):
    """The tensors and the weight with which a client contributes to a mean over clients.

    The mean replaces a group of tensors in the server's state.

    Attributes:
        client: Id of the client.
        group: Name of the group of tensors, such as ``global``; see :class:`ServerState`.
        whole: Architecture whose weights form the group. If the group's tensors are not the weights
            of an architecture: a tuple with the name, shape and dtype of each tensor.
        transfer: Linear map from the group's tensors to the client's tensors.
        state: The client's tensors after training.
        weight: Weight of the client in the mean.
        unmerged: Names of the client's tensors that are not averaged.
        sizes: Dict from tensor name to a number, such as a norm. The client's tensor is divided by
            this number; see :func:`covered_mean`.
        rows: Dict from tensor name to a vector with one number per row of the tensor: 1 if the row
            is averaged, else 0. Default: all rows are averaged.
    """

    client: int
    group: str
    whole: ArchGraph | Signature
    transfer: Transfer
    state: State
    weight: float
    unmerged: frozenset[str] = frozenset()
    sizes: Mapping[str, float] = {}  # never changed
    rows: Mapping[str, Tensor] | None = None

    @classmethod
    def of(
        cls, result: Result, whole: ArchGraph, weights: WeightOf, *, group: str = GLOBAL
    ) -> Contribution:
        """Create a contribution from a client's result.

        Raises:
            RunError: If the client's task has no ``transfer``.
        """
        if result.transfer is None:
            hint = "make the task with part(), or set Task.transfer"
            where = f"client {result.client}"
            message = "a result lacks the transfer of its weights"
            raise RunError(message, where=where, hint=hint)
        weight = result.weight(weights)
        return cls(
            result.client, group, whole, result.transfer, result.state, weight, result.unmerged
        )

    @property
    def update(self) -> Update:
        """The contribution as an :class:`Update`, the type that the averaging functions take."""
        # Avoids division by a size of 0.
        scales = {name: 1.0 / size if size > TINY else 1.0 for name, size in self.sizes.items()}
        return Update(
            self.transfer, self.state, self.weight, scales, self.rows or {}, self.unmerged
        )


class EntrySizes:
    """Collects the sizes (e.g. norms) of clients' tensors, and averages them per global tensor.

    Example:
        >>> from archgraph.states import Slot
        >>> slots = (Slot("w", (1,), "float32"),)
        >>> sizes = EntrySizes()
        >>> for client, size in enumerate((1.0, 2.0, 900.0)):
        ...     same = Transfer.identity(slots)
        ...     sizes.add(Contribution(client, "global", slots, same, {}, 1.0, sizes={"w": size}))
        >>> sizes.means("global"), sizes.means("global", cut=lambda count: 1)
        ({'w': 301.0}, {'w': 2.0})
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], list[tuple[int, float]]] = {}

    def add(self, one: Contribution) -> None:
        """Record the sizes of a contribution."""
        for name, size in one.sizes.items():
            key = one.group, str(one.transfer.entries[name].source)
            self._sizes.setdefault(key, []).append((one.client, size))

    def means(
        self, group: str, clients: Collection[int] | None = None, cut: Cut = lambda count: 0
    ) -> dict[str, float]:
        """Return the mean sizes of a group's tensors.

        Args:
            group: Name of the group.
            clients: Clients whose sizes count. Default: all.
            cut: Maps the number of sizes to the number of smallest, and of largest, sizes to drop.
                Default: none are dropped.
        """
        means = {}
        for (where, name), pairs in self._sizes.items():
            sizes = sorted(size for client, size in pairs if clients is None or client in clients)
            if where == group and sizes:
                out = cut(len(sizes))
                inner = sizes[out : len(sizes) - out]
                # fsum: the same bits in any order of arrival.
                means[name] = math.fsum(inner) / len(inner)
        return means
