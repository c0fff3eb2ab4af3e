"""What a client has: its shard of a data set, what it kept, and its own randomness."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archgraph.engine.data import Indices, Split
from archgraph.federation import Examples, cut
from archgraph.states import State


@dataclass(frozen=True, eq=False)
class Shard:
    """Training data as models take it: a :class:`archgraph.federation.ClientData`.

    Attributes:
        inputs: The first input of all examples, normalised, ``[example, ...]``.
        targets: Classes ``[example]``, or tokens ``[example, position]``.
        histogram: Targets per class.
        beside: Their further inputs in the model's order, ``[example, ...]`` each.

    Example:
        >>> shard = Shard(torch.zeros(5, 2), torch.arange(5), (1, 1, 1, 1, 1))
        >>> [batch.targets.tolist() for batch in shard.batches(None, 2)]
        [[0, 1], [2, 3, 4]]
    """

    inputs: Tensor
    targets: Tensor
    histogram: tuple[int, ...]
    beside: tuple[Tensor, ...] = ()

    @classmethod
    def of(
        cls, split: Split, own: Indices, histogram: tuple[int, ...], device: str = "cpu"
    ) -> Shard:
        """The chosen examples of a split, on the device where they will be used."""
        (inputs, *beside), targets = split.examples(own)
        further = tuple(more.to(device) for more in beside)
        return cls(inputs.to(device), targets.to(device), histogram, further)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        """One pass in an order drawn from the generator; None: in the order of the data.

        A remainder of one example joins the batch before it: batch statistics need two.
        """
        order = (
            torch.arange(self.examples)
            if generator is None
            else torch.randperm(self.examples, generator=generator)
        )
        for ids in cut(order, size):
            at = ids.to(self.inputs.device)
            inputs = tuple(x.index_select(0, at) for x in (self.inputs, *self.beside))
            yield Examples(inputs, self.targets.index_select(0, at), ids)


@dataclass(frozen=True, eq=False)
class KeptByClient:
    """What a client kept from earlier rounds.

    Attributes:
        state: Entries of its model that never leave it (``Task.kept``).
        keep: What its program keeps beside (``Outcome.keep``).

    Example:
        >>> kept = KeptByClient({"bn.running_mean": torch.ones(2)}, {"momentum": torch.zeros(1)})
        >>> sorted(kept.flat())
        ['keep/momentum', 'state/bn.running_mean']
        >>> sorted(KeptByClient.from_flat(kept.flat()).state)
        ['bn.running_mean']
    """

    state: State = field(default_factory=dict)
    keep: State = field(default_factory=dict)

    def over(self, sent: State, names: frozenset[str] | None = None) -> dict[str, Tensor]:
        """A state overlaid with what was kept of it.

        An entry of another shape stays as it was sent: the client now runs another architecture.

        Args:
            sent: What the server sent.
            names: Entries to overlay; None: all that were kept.
        """
        result = dict(sent)
        for name, tensor in self.state.items():
            wanted = name in sent if names is None else name in names
            if wanted and (name not in sent or sent[name].shape == tensor.shape):
                result[name] = tensor
        return result

    def flat(self) -> dict[str, Tensor]:
        """All tensors under one name each, as a checkpoint holds them."""
        return {f"state/{k}": v for k, v in self.state.items()} | {
            f"keep/{k}": v for k, v in self.keep.items()
        }

    @classmethod
    def from_flat(cls, tensors: State) -> KeptByClient:
        """Inverse of :meth:`flat`."""
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "keep": {}}
        for name, tensor in tensors.items():
            group, _, inner = name.partition("/")
            parts[group][inner] = tensor
        return cls(**parts)


@contextlib.contextmanager
def isolated(generator: torch.Generator, device: str = "cpu") -> Iterator[None]:
    """Seed torch's own generators (dropout) from a client's; restore them afterwards."""
    where = torch.device(device)
    devices = [] if where.type == "cpu" else [where.index or 0]
    with torch.random.fork_rng(devices, device_type="cuda" if not devices else where.type):
        torch.manual_seed(generator.initial_seed())
        yield
