"""Schemes that divide training examples among clients.

Each scheme makes the same draws as the corresponding partitioner of flwr-datasets, so partitions
equal those of Flower. Importing flwr-datasets would take five seconds. Flower does not have a
partitioner like `whole`. A scheme takes the class of each example, the number of clients, a seed
and its own parameters. It returns the indices of each client's examples in ascending order, and
raises ValueError if the partition is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from archgraph.tables import plural

ShardIndices: TypeAlias = tuple[np.ndarray, ...]

ATTEMPTS = 11
"""Number of times that a Dirichlet partition is drawn before it fails."""


def iid(labels: np.ndarray, clients: int, seed: int) -> ShardIndices:
    """Divide shuffled examples into equal parts; text is not shuffled (``IidPartitioner``).

    >>> [part.tolist() for part in iid(np.zeros((5, 2)), clients=2, seed=0)]
    [[0, 1, 2], [3, 4]]
    """
    order = np.arange(len(labels))
    if labels.ndim == 1:
        order = np.random.default_rng(seed).permutation(order)
    return _ascending(np.array_split(order, clients))


def dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    alpha: float = 0.5,
    min_size: int = 10,
    balanced: bool = False,
) -> ShardIndices:
    """Divide each class among clients, in fractions from Dir(alpha) (``DirichletPartitioner``).

    The partition is drawn again until every client has ``min_size`` examples. With ``balanced``,
    clients that have more examples than the average get no further examples.
    """
    random = np.random.default_rng(seed)
    classes = [np.flatnonzero(labels == value) for value in np.unique(labels)]
    for _ in range(ATTEMPTS):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, np.int64)
        for members in classes:
            shares = random.dirichlet(np.full(clients, float(alpha)))
            if balanced:
                shares[sizes > len(labels) / clients] = 0
                # Python's sum adds in order, as the original does; NumPy's adds in pairs.
                shares = shares / sum(shares.tolist())
            ends = (np.cumsum(shares) * len(members)).astype(int)[:-1]
            for client, part in enumerate(np.split(members, ends)):
                parts[client].append(part)
                sizes[client] += len(part)
        if sizes.min() >= min_size:
            return _ascending(map(np.concatenate, parts))
    raise ValueError(f"after {ATTEMPTS} draws a client has {sizes.min()} examples")


def equal_dirichlet(
    labels: np.ndarray, clients: int, seed: int, alpha: float = 0.5
) -> ShardIndices:
    """Give all clients equally many examples, in drawn proportions (``InnerDirichletPartitioner``).

    For each client, the proportions of the classes are drawn from Dir(alpha). Then clients take
    turns in random order: each takes one example of a class drawn from its proportions. When all
    examples of a class are taken, the class is removed from all proportions (Hsu, Qi, Brown, 2019;
    RecipFL). With an alpha below 0.1, a client may draw only one class. If the examples of this
    class run out, the partition fails.
    """
    random = np.random.default_rng(seed)
    values = np.unique(labels)
    mixtures = random.dirichlet(np.full(len(values), float(alpha)), size=clients)
    stacks = [np.flatnonzero(labels == value).tolist() for value in values]
    room = [len(part) for part in np.array_split(labels, clients)]
    parts: list[list[int]] = [[] for _ in range(clients)]
    open_clients, steps = list(range(clients)), _cumulative(mixtures)
    for _ in range(len(labels)):
        client = open_clients[random.integers(len(open_clients))]
        while len(parts[client]) == room[client]:
            open_clients.remove(client)
            client = open_clients[random.integers(len(open_clients))]
        while True:
            if np.isnan(steps[client, -1]):
                raise ValueError(f"all classes in the mixture of client {client} ran out")
            chosen = int(steps[client].searchsorted(random.random(), side="right"))
            if stacks[chosen]:
                break
            mixtures[:, chosen] = 0
            with np.errstate(invalid="ignore"):  # 0 / 0: an empty mixture is refused above
                mixtures = mixtures / mixtures.sum(axis=1, keepdims=True)
            steps = _cumulative(mixtures)
        parts[client].append(stacks[chosen].pop())
    return _ascending(np.array(part, np.int64) for part in parts)


def classes(
    labels: np.ndarray,
    clients: int,
    seed: int,
    per_client: int = 2,
    assignment: str = "first-deterministic",
) -> ShardIndices:
    """Give each client a few classes (``PathologicalPartitioner``).

    The examples of a class are divided among the clients that have the class. With the assignment
    ``first-deterministic``, client i has the class i modulo the number of classes, and its other
    classes are drawn. ``random`` draws all classes. ``deterministic`` assigns consecutive classes,
    starting with class i. A class may remain without a client.
    """
    values = np.unique(labels)
    if not 1 <= per_client <= len(values):
        raise ValueError(
            f"per_client={per_client} is not in 1…{len(values)}, the number of classes"
        )
    random = np.random.default_rng(seed)
    choose = _ASSIGNMENTS[assignment]
    chosen = [choose(random, client, len(values), per_client) for client in range(clients)]
    parts: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(clients)]
    for number, value in enumerate(values):
        owners = [client for client in range(clients) if number in chosen[client]]
        members = np.flatnonzero(labels == value)
        if len(owners) > len(members):
            raise ValueError(
                f"class {value} has {plural(len(members), 'example')} for {len(owners)} clients"
            )
        for client, part in zip(owners, np.array_split(members, len(owners) or 1), strict=False):
            parts[client].append(part)
    return _ascending(map(np.concatenate, parts))


def _first_fixed(random: np.random.Generator, client: int, count: int, size: int) -> list[int]:
    chosen = [client % count]
    while len(chosen) < size:
        drawn = int(random.choice(count, size=1)[0])
        if drawn not in chosen:
            chosen.append(drawn)
    return chosen


def _all_fixed(random: np.random.Generator, client: int, count: int, size: int) -> list[int]:
    return [(client + step) % count for step in range(size)]


def _all_drawn(random: np.random.Generator, client: int, count: int, size: int) -> list[int]:
    return list(map(int, random.choice(count, size=size, replace=False)))


_ASSIGNMENTS: Mapping[str, Callable[[np.random.Generator, int, int, int], Sequence[int]]] = {
    "first-deterministic": _first_fixed,
    "deterministic": _all_fixed,
    "random": _all_drawn,
}


def _cumulative(mixtures: np.ndarray) -> np.ndarray:
    """Return cumulative proportions of classes, a row per client, as NumPy's ``choice`` does."""
    ends = mixtures.cumsum(axis=1)
    with np.errstate(invalid="ignore"):
        return ends / ends[:, -1:]


def _ascending(parts: Iterable[np.ndarray]) -> ShardIndices:
    return tuple(np.sort(part).astype(np.int64) for part in parts)


def all_examples(labels: np.ndarray, clients: int, seed: int) -> ShardIndices:
    """Give every example to each client, to train different models on the same data.

    >>> [part.tolist() for part in all_examples(np.zeros(3), clients=2, seed=0)]
    [[0, 1, 2], [0, 1, 2]]
    """
    return tuple(np.arange(len(labels)) for _ in range(clients))


SCHEMES: Mapping[str, Callable[..., ShardIndices]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "equal_dirichlet": equal_dirichlet,
    "classes": classes,
    "whole": all_examples,
}
