"""What a client has from earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from archgraph.states import State

# Where a server whose clients' nodes hold what they keep notes the last round in which it took an
# update of a client: in place of what the client keeps, so that a checkpoint holds it.
CONFIRMED = "confirmed"


@dataclass(frozen=True, eq=False)
class KeptByClient:
    """What a client kept from earlier rounds.

    Attributes:
        state: Entries of its model that never leave it (``Task.kept``).
        keep: What its program keeps beside (``Outcome.keep``).

    Example:
        >>> import torch
        >>> kept = KeptByClient({"bn.running_mean": torch.ones(2)}, {"momentum": torch.zeros(1)})
        >>> sorted(kept.flat())
        ['keep/momentum', 'state/bn.running_mean']
        >>> sorted(KeptByClient.from_flat(kept.flat()).state)
        ['bn.running_mean']
    """

    state: State = field(default_factory=dict)
    keep: State = field(default_factory=dict)

    def over(self, sent: State, names: frozenset[str] | None = None) -> dict[str, Tensor]:
        """Overlay a state that was sent with what was kept of it (``names`` limits the entries).

        An entry of another shape stays as it was sent: the client now runs another architecture.
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
