"""Coverage of a global model: which fraction of each parameter the clients update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from archgraph.errors import ArchGraphError
from archgraph.federation.family import Family
from archgraph.states import Transfer


@dataclass(frozen=True, slots=True)
class Reach:
    """Coverage of a part of a global model.

    Attributes:
        clients: Number of clients that have any of the part's weights.
        total: Number of all clients.
        weights: Fraction of the part's weights that a client has, as the mean over all clients.
    """

    clients: int
    total: int
    weights: float


class Cover(dict[str, float]):
    """Dict from each parameter or buffer of a global state to the mean fraction that clients have.

    Args:
        counts: Number of clients of each kind.
        parts: Dict from parameter or buffer to the fraction of its values that each kind of client
            has.

    >>> cover = Cover((1, 3), {"w": (1.0, 0.5)})
    >>> cover["w"], cover.reach({"w": 8})
    (0.625, Reach(clients=4, total=4, weights=0.625))
    """

    def __init__(self, counts: tuple[int, ...], parts: Mapping[str, tuple[float, ...]]) -> None:
        self.counts, self.parts = counts, parts
        for name, shares in parts.items():
            clients = zip(counts, shares, strict=True)
            self[name] = sum(many * share for many, share in clients) / sum(counts)

    def shares(self, sizes: Mapping[str, int]) -> tuple[float, ...] | None:
        """Return which fraction of some parameters each kind of client has.

        Args:
            sizes: Dict from parameter or buffer to its number of elements. If all are 0, the result
                is None.
        """
        total = sum(sizes.values())
        if not total:
            return None
        return tuple(
            sum(size * self.parts[name][kind] for name, size in sizes.items()) / total
            for kind in range(len(self.counts))
        )

    def reach(self, sizes: Mapping[str, int]) -> Reach | None:
        """Return the coverage of some parameters together.

        Args:
            sizes: As for :meth:`shares`.
        """
        shares = self.shares(sizes)
        if shares is None:
            return None
        pairs, total = list(zip(self.counts, shares, strict=True)), sum(self.counts)
        clients = sum(many for many, part in pairs if part)
        return Reach(clients, total, sum(many * part for many, part in pairs) / total)


def coverage(federation: Family | Iterable[tuple[Transfer, int]]) -> Cover:
    """Return which fraction of each parameter's values clients have, as the mean over all clients.

    For example, if half of the clients have all rows of a matrix, and the other clients have only
    half of the rows, the coverage of the matrix is 0.75. Buffers are included.

    Args:
        federation: A family, or a list of pairs ``(transfer, count)``. The transfer leads from the
            global model to a client's model, and ``count`` is the number of clients with this
            model.

    Raises:
        ArchGraphError: If there are no clients, or the transfers start from different global
            models.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, Param, TensorType
        >>> from archgraph.states import Transfer
        >>> fc = Param("fc.weight", TensorType((10, 4), "float32"))
        >>> all_of_it = Transfer.identity(ArchGraph(inputs=(), params=(fc,), nodes=(), outputs=()))
        >>> coverage([(all_of_it, 3)])
        {'fc.weight': 1.0}
    """
    if isinstance(federation, Family):
        federation = ((kind.transfer, kind.count) for kind in federation.clients)
    pairs = list(federation)
    if not sum(clients for _, clients in pairs):
        raise ArchGraphError("coverage needs at least one client")
    # Different global models may use the same name for different parameters.
    if any(transfer.source != pairs[0][0].source for transfer, _ in pairs):
        raise ArchGraphError("the transfers start from different global models")
    covered = [transfer.coverage for transfer, _ in pairs]
    parts = {name: tuple(each.share(name) for each in covered) for name in covered[0]}
    return Cover(tuple(clients for _, clients in pairs), parts)


def percent(share: float) -> str:
    """Return a fraction in per cent. Only 0 and 1 become 0 % and 100 %.

    >>> percent(0.0), percent(0.001), percent(0.5), percent(0.999), percent(1.0)
    ('0 %', '<1 %', '50 %', '>99 %', '100 %')
    """
    text = f"{100 * share:.0f} %"
    if text == "0 %" and share > 0:
        return "<1 %"
    if text == "100 %" and share < 1:
        return ">99 %"
    return text
