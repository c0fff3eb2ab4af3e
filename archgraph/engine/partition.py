"""Who owns which examples: partitions of a train split among clients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from archgraph.engine.schemes import SCHEMES
from archgraph.errors import DataError


def partition(
    targets: torch.Tensor | np.ndarray,
    *,
    clients: int,
    scheme: str = "iid",
    seed: int = 0,
    **params: Any,
) -> tuple[np.ndarray, ...]:
    """Split examples among clients: disjoint, nonempty, the same for the same seed.

    Schemes and their parameters:
        * `iid(min_size=1)`: a random order cut into shards whose sizes differ by one at most.
        * `dirichlet(alpha=0.5, min_size=10, balanced=False)`: of each class the clients get shares
          drawn from a Dirichlet distribution of concentration `alpha`, drawn again until each
          client has `min_size` examples; `balanced` gives no more to clients above the average.
        * `equal_dirichlet(alpha=0.5, min_size=1)`: every client draws its own mixture of classes
          from a Dirichlet distribution and takes as many examples as any other, out of what they
          leave (Hsu, Qi, Brown, 2019; RecipFL); below 0.1 mixtures may want one class only,
          which runs out.
        * `classes(per_client=2, assignment="first-deterministic", min_size=1)`: each client owns
          so many classes, a class is shared equally among its owners. `first-deterministic` gives
          client i the class i modulo their number and draws the others; `random` draws all;
          `deterministic` counts on from i. A class without an owner is left out.

    Text, whose targets are `[window, position]`, is cut into contiguous shards (`iid` only): its
    windows follow one another.

    Args:
        targets: Class of each example, `[example]`, or text targets `[window, position]`.
        clients: Number of clients.
        scheme: `iid`, `dirichlet`, `equal_dirichlet` or `classes`.
        seed: Of everything random.
        **params: Of the scheme, as above.

    Returns:
        For each client the positions of its examples, int64, ascending.

    Raises:
        DataError: The scheme or a parameter is unknown, or no such partition exists.

    Example:
        >>> labels = np.arange(60) % 3
        >>> [len(own) for own in partition(labels, clients=4, scheme="iid")]
        [15, 15, 15, 15]
        >>> owners = partition(labels, clients=3, scheme="classes", per_client=1)
        >>> [sorted(set(labels[own].tolist())) for own in owners]
        [[0], [1], [2]]
    """
    return _cut(np.asarray(targets), range(clients), scheme, seed, params)


def allot(
    targets: torch.Tensor | np.ndarray,
    *,
    tiers: Sequence[str],
    shares: Mapping[str, float] | None = None,
    scheme: str = "iid",
    seed: int = 0,
    **params: Any,
) -> tuple[np.ndarray, ...]:
    """Split examples among clients of which some kinds own a fixed share of all (RecipFL, §5.1).

    A share is cut out before anything else, each class in proportion, and divided equally among
    the clients of its kind; the other clients share the rest by the scheme, as in
    :func:`partition`. Of text a share is a run of windows.

    Args:
        targets: As in :func:`partition`.
        tiers: Kind of each client.
        shares: Kind → its share of all examples, exact up to rounding.
        scheme: How the others share the rest.
        seed: Of everything random.
        **params: Of the scheme.

    Returns:
        For each client the positions of its examples, int64, ascending.

    Raises:
        DataError: A share is of an unknown kind, is not in (0, 1], leaves nothing to the others or
            something without an owner; or the rest cannot be partitioned so.

    Example:
        >>> labels, kinds = np.arange(60) % 3, ["strong", "weak", "weak", "weak"]
        >>> parts = allot(labels, tiers=kinds, shares={"strong": 0.5})
        >>> [len(own) for own in parts], class_histogram(labels[parts[0]], 3)
        ([30, 10, 10, 10], array([10, 10, 10]))
    """
    labels, tiers, shares = np.asarray(targets), list(tiers), dict(shares or {})
    _check_shares(shares, tiers)
    order = _spread(labels, seed) if shares else np.arange(0)
    owned: dict[int, np.ndarray] = {}
    total, start = 0.0, 0
    for name, share in shares.items():
        total += share
        # Ends are rounded, not sizes: they add up, and shares of 1 leave nothing.
        stop = round(total * len(labels))
        members = [client for client, tier in enumerate(tiers) if tier == name]
        if stop - start < len(members):
            raise DataError(
                "too few examples",
                where=f"partition shares.{name}",
                found=stop - start,
                expected=f"at least one for each of its {len(members)} clients",
            )
        for client, own in zip(
            members, np.array_split(order[start:stop], len(members)), strict=True
        ):
            owned[client] = np.sort(own)
        start = stop
    others = [client for client in range(len(tiers)) if client not in owned]
    if others or not owned:
        rest = np.sort(order[start:]) if shares else np.arange(len(labels))
        for client, own in zip(
            others, _cut(labels[rest], others, scheme, seed, params), strict=True
        ):
            owned[client] = rest[own]
    return tuple(owned[client] for client in range(len(tiers)))


def _check_shares(shares: Mapping[str, float], tiers: Collection[str]) -> None:
    """Raise unless every share has an owner, and so has every example."""
    for name, share in shares.items():
        if name not in tiers:
            raise DataError(
                "share of an unknown kind of client",
                where="partition shares",
                found=repr(name),
                expected=_list(dict.fromkeys(tiers)),
            )
        if not 0 < share <= 1:
            raise DataError(
                "share out of range",
                where=f"partition shares.{name}",
                found=share,
                expected="in (0, 1]",
            )
    total, all_shared = sum(shares.values()), set(tiers) <= set(shares)
    whole = math.isclose(total, 1)
    if shares and ((total > 1 and not whole) or all_shared != whole):
        raise DataError(
            "shares do not add up",
            where="partition shares",
            found=f"{total:g}",
            expected="1, since every kind of client has one"
            if all_shared
            else "less than 1, since others share the rest",
        )


def _spread(labels: np.ndarray, seed: int) -> np.ndarray:
    """Positions in an order of which every stretch has the classes of the whole; text as it is."""
    if labels.ndim != 1:
        return np.arange(len(labels))
    random = np.random.default_rng(seed)
    places = np.empty(len(labels))
    for value in np.unique(labels):
        own = random.permutation(np.flatnonzero(labels == value))
        # At equal distances from a random start, so that no class always comes first.
        places[own] = (np.arange(len(own)) + random.random()) / len(own)
    return np.argsort(places, kind="stable")


def _cut(
    labels: np.ndarray, clients: Sequence[int], scheme: str, seed: int, params: Mapping[str, Any]
) -> tuple[np.ndarray, ...]:
    """The parts of some clients, who are called by their ids where one goes wrong."""
    count = len(clients)
    where = f"partition {scheme}"
    if scheme not in SCHEMES:
        raise DataError(
            "unknown scheme", where="partition", found=repr(scheme), expected=_list(SCHEMES)
        )
    assign = SCHEMES[scheme]
    known = list(inspect.signature(assign).parameters)[3:]
    for key in params:
        if key not in known:
            raise DataError("unknown parameter", where=where, found=key, expected=_list(known))
    _check_targets(labels, scheme, where)
    min_size = params.get("min_size", inspect.signature(assign).parameters["min_size"].default)
    if min_size < 1:
        raise DataError("clients need examples", where=where, found=f"min_size={min_size}")
    if count < 1 or count * min_size > len(labels):
        raise DataError(
            "impossible number of clients",
            where=where,
            found=count,
            expected=f"1…{len(labels) // min_size} clients of at least {min_size} of the "
            f"{len(labels)} examples",
        )
    try:
        parts = assign(labels, count, seed, **params)
    except ValueError as error:
        raise DataError(
            "no such partition",
            where=where,
            found=f"{count} clients, {dict(params)}: {error}",
            hint="choose fewer clients, a larger alpha or a smaller min_size",
        ) from error
    for client, own in zip(clients, parts, strict=True):
        if len(own) < min_size:
            raise DataError(
                "too few examples",
                where=f"{where}, client {client}",
                found=len(own),
                expected=f"at least {min_size}",
                hint="choose fewer clients, a larger alpha or another seed",
            )
    return parts


def _check_targets(labels: np.ndarray, scheme: str, where: str) -> None:
    """Raise unless these targets can be split by the scheme."""
    if labels.ndim not in (1, 2):
        raise DataError(
            "targets of unknown shape",
            where=where,
            found=labels.shape,
            expected="[example] or [window, position]",
        )
    if labels.ndim == 2 and scheme != "iid":
        raise DataError(
            "text has no classes to split by", where=where, found=scheme, expected="iid"
        )


def class_histogram(targets: torch.Tensor | np.ndarray, classes: int) -> np.ndarray:
    """Number of examples of each class, int64 `[class]`.

    Example:
        >>> class_histogram(np.array([2, 0, 2]), classes=4)
        array([1, 0, 2, 0])
    """
    return np.bincount(np.asarray(targets).reshape(-1), minlength=classes)


def local_test_indices(
    test_targets: torch.Tensor | np.ndarray, class_histogram: torch.Tensor | np.ndarray
) -> np.ndarray:
    """Positions of the test examples whose class the client owns (FedFA's local test sets).

    Args:
        test_targets: Class of each test example, `[example]`.
        class_histogram: Number of train examples of the client in each class, `[class]`.

    Raises:
        DataError: The targets are not classes of the histogram.

    Example:
        >>> local_test_indices(np.array([0, 1, 2, 0]), np.array([5, 0, 1]))
        array([0, 2, 3])
    """
    labels, owned = np.asarray(test_targets), np.asarray(class_histogram) > 0
    if labels.ndim != 1 or owned.ndim != 1:
        raise DataError(
            "local test sets need one class per example",
            found=f"targets {labels.shape}, histogram {owned.shape}",
            expected="[example] and [class]",
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= len(owned)):
        raise DataError(
            "test class outside the histogram",
            found=f"{labels.min()}…{labels.max()}",
            expected=f"0…{len(owned) - 1}",
        )
    return np.flatnonzero(owned[labels])


def _list(names: Iterable[str]) -> str:
    names = list(names)
    return f"one of {', '.join(names)}" if names else "none"
