"""A client's private state from earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from archgraph.federation import VERSION
from archgraph.states import State

# Where nodes hold the private state of their clients, the server stores instead the last round in
# which it accepted an update of a client, so that a checkpoint has it.
CONFIRMED = "confirmed"


@dataclass(frozen=True, eq=False)
class ClientState:
    """A client's private state from earlier rounds.

    Attributes:
        state: Entries of the client's model that never leave it (``Task.private``).
        keep: Other private tensors of the client's program (``Outcome.keep``).

    Example:
        >>> import torch
        >>> own = ClientState({"bn.running_mean": torch.ones(2)}, {"momentum": torch.zeros(1)})
        >>> sorted(own.flat())
        ['keep/momentum', 'state/bn.running_mean']
        >>> sorted(ClientState.from_flat(own.flat()).state)
        ['bn.running_mean']
    """

    state: State = field(default_factory=dict)
    keep: State = field(default_factory=dict)

    def over(
        self,
        sent: State,
        names: frozenset[str] | None = None,
        *,
        current: frozenset[str] = frozenset(),
    ) -> dict[str, Tensor]:
        """Return a received state, overlaid with the client's private entries (or ``names``).

        Entries of ``current`` stay as sent.

        Without ``names``, entries of a stored version of the model are used, too. Entries with
        another shape stay as sent, since the client now runs another architecture.
        """
        result = dict(sent)
        ours = {**self.state}
        if names is None:
            version = {k: t for k, t in self.keep.items() if k.startswith(VERSION)}
            ours |= {name.removeprefix(VERSION): tensor for name, tensor in version.items()}
        for name, tensor in ours.items():
            replaced = name in sent if names is None else name in names
            replaced &= name not in current
            # Another shape: the client runs another architecture now.
            if replaced and (name not in sent or sent[name].shape == tensor.shape):
                result[name] = tensor
        return result

    def flat(self) -> dict[str, Tensor]:
        """Return a dict from name to tensor, as stored in a checkpoint."""
        return {f"state/{k}": v for k, v in self.state.items()} | {
            f"keep/{k}": v for k, v in self.keep.items()
        }

    @classmethod
    def from_flat(cls, tensors: State) -> ClientState:
        """Rebuild the state from the tensors of :meth:`flat`."""
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "keep": {}}
        for name, tensor in tensors.items():
            group, _, inner = name.partition("/")
            parts[group][inner] = tensor
        return cls(**parts)
