"""Partitions of a train split among clients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from archgraph.data.schemes import SCHEMES
from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED

WHERE = "data.partition"
# Schemes that do not need the class of an example.
CLASSLESS = ("iid", "whole")


def allot(
    targets: torch.Tensor | np.ndarray,
    *,
    tiers: Sequence[str],
    shares: Mapping[str, float] | None = None,
    scheme: str = "iid",
    seed: int = 0,
    ordered: bool = True,
    **params: float | str | bool,
) -> tuple[np.ndarray, ...]:
    """Divide examples among clients into nonempty parts, which are disjoint except for `whole`.

    The same seed gives the same partition. A tier of clients may own a fixed fraction of all
    examples (RecipFL, §5.1). These examples are drawn first, from all classes in proportion, and
    divided equally among the clients of the tier. The remaining examples are divided among the
    other clients by a scheme of :mod:`archgraph.data.schemes`. Each client gets consecutive windows
    of a text. Text, and targets that are not one class per example, can only be divided by `iid` or
    `whole`.

    Args:
        targets: Class of each example, int `[example]`; text targets, int `[window, position]`; or
            any other targets, `[example, ...]`.
        tiers: Tier of each client.
        shares: Dict from tier to its fraction of all examples, exact up to rounding.
        scheme: Scheme by which the remaining examples are divided: `iid`, `dirichlet`,
            `equal_dirichlet`, `classes` or `whole`.
        seed: Seed of all draws.
        ordered: Whether text targets belong to consecutive windows.
        **params: Parameters of the scheme, and `min_size`, the smallest number of examples of a
            client (default: 10 for `dirichlet`, else 1).

    Returns:
        For each client, the indices of its examples, int64, in ascending order.

    Raises:
        DataError: If the partition is impossible, because there are too few examples or the targets
            are not classes.

    Example:
        >>> labels, kinds = np.arange(60) % 3, ["strong", "weak", "weak", "weak"]
        >>> parts = allot(labels, tiers=kinds, shares={"strong": 0.5})
        >>> [len(part) for part in parts], class_histogram(labels[parts[0]], 3)
        ([30, 10, 10, 10], array([10, 10, 10]))
        >>> parts = allot(labels, tiers=["all"] * 3, scheme="classes", per_client=1)
        >>> [sorted(set(labels[part].tolist())) for part in parts]
        [[0], [1], [2]]
    """
    labels, tiers = _labels(np.asarray(targets), scheme, ordered), list(tiers)
    shares = dict(shares or {})
    # Any stretch of this order has all classes in proportion: take the shares from its beginning.
    order = stratified_order(labels, seed) if shares else np.arange(0)
    parts_by_client: dict[int, np.ndarray] = {}
    total, start = 0.0, 0
    for name, share in shares.items():
        total += share
        # Round ends, not sizes, so that shares that sum to 1 leave no examples over.
        stop = round(total * len(labels))
        members = [client for client, tier in enumerate(tiers) if tier == name]
        if stop - start < len(members):
            expected = f"at least one for each of its {len(members)} clients"
            where = f"{WHERE}.shares.{name}"
            raise DataError("too few examples", where=where, found=stop - start, expected=expected)
        parts = np.array_split(order[start:stop], len(members))
        parts_by_client |= zip(members, map(np.sort, parts), strict=True)
        start = stop
    others = [client for client in range(len(tiers)) if client not in parts_by_client]
    if others or not parts_by_client:
        rest = np.sort(order[start:]) if shares else np.arange(len(labels))
        cut = _cut(labels[rest], others, scheme, seed, params)
        parts_by_client |= {client: rest[part] for client, part in zip(others, cut, strict=True)}
    return tuple(parts_by_client[client] for client in range(len(tiers)))


def _labels(targets: np.ndarray, scheme: str, ordered: bool) -> np.ndarray:
    """Return the labels that a scheme divides: a class per example, text windows, or zeros."""
    integral = targets.dtype.kind in "iu"
    if targets.ndim == 1 and integral:
        return targets
    if scheme not in CLASSLESS:
        message = "the scheme divides by class, but targets are not one class per example"
        expected = " or ".join(CLASSLESS)
        raise DataError(message, where=f"{WHERE}.scheme", found=scheme, expected=expected)
    windows = ordered and targets.ndim == 2 and integral
    return targets if windows else np.zeros(len(targets), np.int64)


def stratified_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return an order in which any consecutive examples have all classes in proportion.

    Windows of a text keep their order.

    >>> stratified_order(np.array([0, 0, 0, 0, 7, 7]), seed=0) >= 4
    array([False, False,  True, False, False,  True])
    """
    if labels.ndim != 1:
        return np.arange(len(labels))
    random = np.random.default_rng(seed)
    ranks = np.empty(len(labels))
    for value in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == value))
        # Equally spaced from a random start, so that no class always comes first.
        ranks[members] = (np.arange(len(members)) + random.random()) / len(members)
    return np.argsort(ranks, kind="stable")


def _cut(
    labels: np.ndarray,
    clients: Sequence[int],
    scheme: str,
    seed: int,
    params: Mapping[str, float | str | bool],
) -> tuple[np.ndarray, ...]:
    """Divide the examples among clients; errors contain the ids of the clients."""
    # The experiment's schema has checked the scheme and its parameters, but not whether the data
    # has enough examples for them.
    count, assign = len(clients), SCHEMES[scheme]
    options = inspect.signature(assign).parameters
    default = options["min_size"].default if "min_size" in options else 1
    least = int(params.get("min_size", default))
    if count < 1 or count * least > len(labels):
        most, message = len(labels) // least, "impossible number of clients"
        expected = f"1…{most} clients of at least {least} of the {len(labels)} examples"
        raise DataError(message, where=WHERE, found=count, expected=expected)
    # Not every scheme draws again for `min_size`: it is checked below for all.
    scheme_options = {k: v for k, v in params.items() if k != "min_size" or k in options}
    try:
        parts = (
            _drawn(
                scheme, labels.tobytes(), labels.dtype.str, count, seed, (*scheme_options.items(),)
            )
            if labels.ndim == 1
            else assign(labels, count, seed, **scheme_options)
        )
    except ValueError as error:
        problem = f"{scheme} for {count} clients, {dict(params)}: {error}"
        hint = "choose fewer clients, a larger alpha or a smaller min_size"
        raise DataError(
            "the partition cannot be drawn", where=WHERE, found=problem, hint=hint
        ) from error
    for client, part in zip(clients, parts, strict=True):
        if len(part) < least:
            raise DataError(
                "too few examples",
                where=f"client {client}",
                found=len(part),
                expected=f"at least {least} ({WHERE}.min_size)",
                hint="choose fewer clients, a larger alpha or another seed",
            )
    return parts


# Drawing takes a tenth of a second, and the cells of a study use the same partition: partitions of
# the same labels are cached. Nothing writes into them.
@functools.lru_cache(maxsize=32)
def _drawn(
    scheme: str,
    content: bytes,
    dtype: str,
    count: int,
    seed: int,
    options: tuple[tuple[str, float | str | bool], ...],
) -> tuple[np.ndarray, ...]:
    """Draw a scheme's partition of labels, which are passed as bytes."""
    return SCHEMES[scheme](np.frombuffer(content, dtype), count, seed, **dict(options))


def class_histogram(targets: torch.Tensor | np.ndarray, classes: int | None) -> np.ndarray:
    """Count the targets of each class, int64 `[class]`; empty if targets are not classes.

    Example:
        >>> class_histogram(np.array([2, 0, 2, -100]), classes=4)
        array([1, 0, 2, 0])
        >>> class_histogram(np.array([[True, False], [True, True]]), classes=2)
        array([2, 1])
    """
    values = np.asarray(targets)
    if classes is None:
        return np.zeros(0, np.int64)
    if values.dtype == np.bool_:
        return values.sum(0)
    return np.bincount(values[values >= 0], minlength=classes)


def local_test_indices(
    test_targets: torch.Tensor | np.ndarray, class_histogram: torch.Tensor | np.ndarray
) -> np.ndarray:
    """Return the indices of test examples of the classes in a client's training data (FedFA).

    Args:
        test_targets: Class of each test example, `[example]`; targets of -100 are skipped.
        class_histogram: The client's number of training examples of each class, `[class]`.

    Example:
        >>> local_test_indices(np.array([0, 1, 2, 0]), np.array([5, 0, 1]))
        array([0, 2, 3])
    """
    labels, has_class = np.asarray(test_targets), np.asarray(class_histogram) > 0
    counted = np.flatnonzero(labels != IGNORED)
    return counted[has_class[labels[counted]]]
