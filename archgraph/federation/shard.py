"""A client's training data in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archgraph.federation.metrics import IGNORED
from archgraph.federation.tasks import Examples
from archgraph.states.copies import to_device as to_device

SHORTEST = 2  # minimum length of a batch of texts: models may branch on length 1


@dataclass(frozen=True)
class TextPadding:
    """Trims a batch of padded texts to its longest text.

    Attributes:
        mask: Index of the input that is 0 at padded positions.
        targets: Whether targets have an axis of positions, ``[example, position, ...]``.
    """

    mask: int
    targets: bool

    def cut(
        self, inputs: tuple[Tensor, ...], targets: Tensor, length: int | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return texts without the final positions at which all texts are padded.

        Args:
            inputs: Tensors ``[example, position, ...]``. Tensors ``[example]`` stay unchanged.
            targets: Targets of the same examples.
            length: Length of the longest text. Default: computed from the mask.

        Example:
            >>> ids, mask = torch.tensor([[5, 6, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
            >>> TextPadding(1, targets=False).cut((ids, mask), torch.tensor([1]))
            ((tensor([[5, 6]]), tensor([[1, 1]])), tensor([1]))
        """
        if length is None:
            length = int(self.lengths(inputs).amax())
        end = max(length, SHORTEST)
        shorter = tuple(x[:, :end] if x.dim() > 1 else x for x in inputs)
        return shorter, targets[:, :end] if self.targets else targets

    def lengths(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the length of each text, ``[example]``, up to its last position without padding.

        >>> TextPadding(0, targets=False).lengths((torch.tensor([[1, 1, 0], [0, 1, 0]]),))
        tensor([2, 2])
        """
        mask = inputs[self.mask]
        return (mask.ne(0) * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


@dataclass(frozen=True, eq=False)
class Shard:
    """A client's training data in memory.

    The class implements the interface :class:`archgraph.federation.ClientData`.

    Attributes:
        inputs: Inputs of the model for all examples, each ``[example, ...]``.
        targets: Targets of all examples, such as classes ``[example]`` or tokens ``[example,
            position]``. Minibatches are on the same device as this tensor.
        histogram: Number of targets per class.
        ids: A stable id of each example, ``[example]``. Default: the index of the example.
        padding: Object that trims each minibatch to the length of its longest text. Default:
            minibatches are not trimmed.
        again: Function that reads examples, for example with random transforms. It maps indices of
            examples and a seed to inputs and targets. If set, epochs in random order take their
            examples from this function. Default: all epochs use ``inputs`` and ``targets``.
        stream: Function that reads a stream. It maps a seed and the sizes of minibatches to the
            minibatches of one epoch. If set, the values of ``inputs`` and ``targets`` are not used.

    Example:
        >>> shard = Shard((torch.zeros(5, 2),), torch.arange(5), (1, 1, 1, 1, 1))
        >>> [batch.targets.tolist() for batch in shard.batches(None, 2)]
        [[0, 1], [2, 3, 4]]
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    histogram: tuple[int, ...]
    ids: Tensor | None = None
    padding: TextPadding | None = None
    again: Callable[[Tensor, int], tuple[tuple[Tensor, ...], Tensor]] | None = None
    stream: Callable[[int, list[int]], Iterator[tuple[tuple[Tensor, ...], Tensor]]] | None = None

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.targets)

    def part(self, positions: Tensor) -> Shard:
        """Return a shard of the examples with these indices.

        If ``stream`` is set, only the number of indices matters: it is the size of the new shard.

        Example:
            >>> shard = Shard((torch.zeros(5, 2),), torch.arange(5), (1, 1, 1, 1, 1))
            >>> shard.part(torch.tensor([3, 1])).targets
            tensor([3, 1])
        """
        if self.stream is not None:
            return replace(self, targets=self.targets[: len(positions)])
        there, again = positions.to(self.targets.device), self.again
        return replace(
            self,
            inputs=tuple(x.index_select(0, there) for x in self.inputs),
            targets=self.targets.index_select(0, there),
            ids=positions if self.ids is None else self.ids[positions],
            again=None if again is None else lambda rows, seed: again(positions[rows], seed),
        )

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        """Yield the minibatches of one epoch, in random order if a generator is passed.

        If the last minibatch would have only one example, this example is added to the previous
        minibatch, because batch norm needs at least two examples.
        """
        count = self.examples
        if self.stream is not None:
            seed = 0 if generator is None else _drawn_seed(generator)
            positions = minibatches(torch.arange(count), size)
            read = self.stream(seed, [len(ids) for ids in positions])
            for ids, (inputs, targets) in zip(positions, read, strict=True):
                yield self._there(inputs, targets, ids)
            return
        order = (
            torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        )
        anew = None if generator is None else self.again
        seed = _drawn_seed(generator) if generator is not None and anew else 0
        there = to_device(order, self.targets.device)
        for ids, at in zip(minibatches(order, size), minibatches(there, size), strict=True):
            length = None
            if anew is not None:
                inputs, targets = anew(ids, seed)
            else:
                inputs = tuple(x.index_select(0, at) for x in self.inputs)
                targets = self.targets.index_select(0, at)
                length = None if self.padding is None else int(self._lengths[ids].max())
            if self.padding is not None:
                inputs, targets = self.padding.cut(inputs, targets, length)
            yield self._there(inputs, targets, ids if self.ids is None else self.ids[ids])

    def _there(self, inputs: tuple[Tensor, ...], targets: Tensor, ids: Tensor) -> Examples:
        """Return a minibatch on the device of the data."""
        device = self.targets.device
        moved = tuple(to_device(x, device) for x in inputs)
        return Examples(moved, to_device(targets, device), ids, self._all_count)

    @functools.cached_property
    def _all_count(self) -> bool:
        """Whether no target has class -100, read from the device once.

        False, which means unknown, if targets are read again in each pass.
        """
        anew = self.stream is not None or self.again is not None
        return not anew and not bool((self.targets == IGNORED).any())

    @functools.cached_property
    def _lengths(self) -> Tensor:
        """Length of each text, ``[example]``, read from the device once."""
        assert self.padding is not None
        return self.padding.lengths(self.inputs).cpu()


def _drawn_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


def minibatches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split a tensor into minibatches of ``size`` items.

    If the last minibatch would have only one item, this item is added to the minibatch before.

    >>> [len(part) for part in minibatches(torch.arange(7), 3)]
    [3, 4]
    >>> [len(part) for part in minibatches(torch.arange(8), 3)]
    [3, 3, 2]
    """
    return order.split(batch_sizes(len(order), size))


def batch_sizes(count: int, size: int) -> list[int]:
    """Return the sizes of the minibatches of one pass over a number of examples."""
    sizes = [size] * (count // size)
    rest = count - sum(sizes)
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes
