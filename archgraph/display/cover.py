"""Which share of the clients feeds each parameter of a global model (FedFA, Fig. 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from archgraph.errors import ArchGraphError

if TYPE_CHECKING:
    from archgraph.states import Transfer


class Member(Protocol):
    """A kind of client: how many there are, and how their state comes from the global one."""

    @property
    def count(self) -> int:
        """Number of clients of this kind."""

    @property
    def transfer(self) -> Transfer:
        """Linear map from the global state to theirs."""


class Members(Protocol):
    """A global model's kinds of clients, e.g. a family."""

    @property
    def clients(self) -> Iterable[Member]:
        """The kinds."""


Federation: TypeAlias = "Members | Iterable[Transfer | tuple[Transfer, int]]"


def coverage(federation: Federation) -> dict[str, float]:
    """Share of the clients that feed each leaf of the global state, 0 to 1, by leaf name.

    A client that has a part of a leaf counts by that part: half of the clients at half of the rows
    make 0.75 with the others at all rows.

    Args:
        federation: A family, or transfers (global → client), each alone or with the number of
            clients that use it.

    Raises:
        ArchGraphError: If there is no client, or the transfers start from different states.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, Param, TensorType
        >>> from archgraph.states import Transfer
        >>> fc = Param("fc.weight", TensorType((10, 4), "float32"))
        >>> all_of_it = Transfer.identity(ArchGraph(inputs=(), params=(fc,), nodes=(), outputs=()))
        >>> coverage([(all_of_it, 3)])
        {'fc.weight': 1.0}
    """
    shares: dict[str, float] = {}
    total = 0
    first: Transfer | None = None
    for transfer, clients in _pairs(federation):
        first = first or transfer
        if transfer.source != first.source:
            raise ArchGraphError("the transfers start from different global models")
        covered = transfer.coverage
        total += clients
        for name in covered:
            shares[name] = shares.get(name, 0.0) + clients * covered.share(name)
    if total == 0:
        raise ArchGraphError("coverage of no clients", expected="at least one")
    return {name: share / total for name, share in shares.items()}


def _pairs(federation: Federation) -> Iterator[tuple[Transfer, int]]:
    if hasattr(federation, "clients"):
        for member in cast(Members, federation).clients:
            yield member.transfer, member.count
    else:
        for item in federation:
            yield item if isinstance(item, tuple) else (item, 1)
