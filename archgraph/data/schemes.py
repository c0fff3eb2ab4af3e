"""Partition schemes: random order, Dirichlet shares of the classes, a few classes per client.

Each scheme draws exactly what the corresponding partitioner of flwr-datasets draws from the same
generator, so that partitions are those of Flower, without the five seconds that importing it takes.
`whole`, which Flower does not have, draws nothing. A scheme takes the class of each example, the
number of clients, a seed and its own parameters; it returns each client's positions, ascending, and
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
    """Shuffle examples and cut them into equal parts; text is not shuffled (``IidPartitioner``).

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
    """Draw shares of each class from Dir(alpha) over the clients (``DirichletPartitioner``).

    The partition is drawn again until every client has ``min_size`` examples. ``balanced`` stops
    giving examples to clients that are above the average.
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
    """Give all clients equally many examples, of drawn mixtures (``InnerDirichletPartitioner``).

    Each client has its own mixture of classes. Clients take turns in random order, each taking one
    example of a class drawn from its mixture. A class that runs out is removed from all mixtures
    (Hsu, Qi, Brown, 2019; RecipFL). Below alpha = 0.1, a mixture may contain only one class, which
    may run out.
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
    """Give each client some classes, each divided among its owners (``PathologicalPartitioner``).

    ``first-deterministic`` gives client i the class i modulo the number of classes and draws its
    other classes; ``random`` draws all; ``deterministic`` takes consecutive classes from i on. A
    class may have no owner.
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
    """Return cumulative shares of classes, a row per client, as NumPy's ``choice`` uses them."""
    ends = mixtures.cumsum(axis=1)
    with np.errstate(invalid="ignore"):
        return ends / ends[:, -1:]


def _ascending(parts: Iterable[np.ndarray]) -> ShardIndices:
    return tuple(np.sort(part).astype(np.int64) for part in parts)


def all_examples(labels: np.ndarray, clients: int, seed: int) -> ShardIndices:
    """Give every example to each client, to train models side by side on the same data.

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
