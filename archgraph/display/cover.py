"""Which share of the clients feeds each parameter of a global model (FedFA, Fig. 1)."""

from __future__ import annotations

from collections.abc import Iterable

from archgraph.errors import ArchGraphError
from archgraph.federation.family import Family
from archgraph.states import Transfer


def coverage(federation: Family | Iterable[tuple[Transfer, int]]) -> dict[str, float]:
    """Share of the clients that feed each leaf of the global state, 0 to 1, by leaf name.

    A client that has a part of a leaf counts by that part: half of the clients at half of the rows
    make 0.75 with the others at all rows.

    Args:
        federation: A family, or transfers (global → client), each with its number of clients.

    Raises:
        ArchGraphError: If there are no clients, or the transfers start from different states.

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
    pairs = (
        ((kind.transfer, kind.count) for kind in federation.clients)
        if isinstance(federation, Family)
        else federation
    )
    for transfer, clients in pairs:
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
