"""Helpers for methods whose clients exchange one row, such as a prototype, per class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from archgraph.analysis.roles import head
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation.metrics import IGNORED
from archgraph.federation.tasks import Result
from archgraph.federation.world import World
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.states import State

CLASSES, ROWS = "classes", "rows"


def check_single(world: World) -> None:
    """Check that each example has a single class.

    Raises:
        RunError: If examples do not have a single class.
    """
    if not world.learning.per_example:
        raise RunError(
            "the method needs a single class for each example",
            where="task",
            found=world.learning.name,
            expected="classification",
        )


@per_graph
def embedding_width(graph: ArchGraph) -> int:
    """Return the number of features per example that enter a network's head.

    Raises:
        RunError: If the network has no head, or the number depends on a dynamic input size.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        >>> embedding_width(trace(net, zeros(1, 3)).graph)
        4
    """
    last = head(graph)
    shape = graph.node[last[1]].shape[1:] if last else ()
    sizes = [size for size in shape if isinstance(size, int)]
    if not sizes or len(sizes) < len(shape):
        actual = f"[{', '.join(map(str, shape))}]" if last else "no layer with weights"
        where, expected = graph.name or "model", "features of a fixed size in front of the head"
        raise RunError("has no embedding", where=where, found=actual, expected=expected)
    return math.prod(sizes)


def class_sums(rows: Tensor, targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of rows of each class.

    The sums have the shape ``[class, column]``, and the numbers the shape ``[class]``.

    Args:
        rows: One row per example, ``[example, column]``.
        targets: Class of each example, ``[example]``. Examples of class -100 are ignored.
        classes: Number of classes.

    Example:
        >>> rows = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
        >>> targets = torch.tensor([2, 0, 2, -100])
        >>> sums, counts = class_sums(rows, targets, 3)
        >>> sums.flatten().tolist(), counts.tolist()
        ([2.0, 0.0, 5.0], [1.0, 0.0, 2.0])
    """
    # A matrix product: its order of summation is deterministic on devices, too.
    member = torch.nn.functional.one_hot(targets.clamp(min=0), classes).to(rows)
    member = torch.where((targets != IGNORED)[:, None], member, 0)
    return member.T @ rows, member.sum(0)


def sent_rows(table: Tensor, known: Tensor) -> State:
    """Return a dict with the indices of the known classes, and their rows of a table.

    Args:
        table: [class, column].
        known: [class], boolean.

    Example:
        >>> sent_rows(torch.eye(2), torch.tensor([False, True]))
        {'classes': tensor([1]), 'rows': tensor([[0., 1.]])}
    """
    return {CLASSES: known.nonzero().flatten(), ROWS: table[known]}


def rows_of(sent: State, classes: int, width: int) -> tuple[Tensor, Tensor]:
    """Return a table ``[class, column]`` of sent rows, and a mask ``[class]`` of sent classes.

    ``sent`` is a dict from :func:`sent_rows`. In the table, the rows of classes that were not sent
    are 0.

    Example:
        >>> table, known = rows_of({"classes": torch.tensor([1]), "rows": torch.ones(1, 2)}, 2, 2)
        >>> table.tolist(), known.tolist()
        ([[0.0, 0.0], [1.0, 1.0]], [False, True])
    """
    table, known = torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool)
    if sent:
        table, known = table.to(sent[ROWS]), known.to(sent[ROWS].device)
        table[sent[CLASSES]], known[sent[CLASSES]] = sent[ROWS], True
    return table, known


def check_rows(world: World, result: Result, width: int) -> None:
    """Check the rows (one per class) that a client sent with :func:`sent_rows`.

    Raises:
        RejectedUpdate: If a class does not occur in the client's training data, the classes are not
            in ascending order, or the shapes are wrong.
    """
    sent, rows = result.extras.get(CLASSES), result.extras.get(ROWS)
    present = [c for c, n in enumerate(world.clients[result.client].histogram) if n]
    integers = sent is not None and sent.dim() == 1 and sent.dtype == torch.int64
    listed = sent.tolist() if sent is not None and integers else None
    known = listed is not None and listed == [c for c in present if c in listed]
    shape = None if rows is None else tuple(rows.shape)
    if not known or shape != (len(listed or ()), width):
        raise RejectedUpdate(
            "does not have a row for each of its classes",
            where=f"client {result.client}",
            found=f"rows {shape}, classes {listed}",
            expected=f"classes of {present}, ascending, and rows of {width} numbers",
        )
