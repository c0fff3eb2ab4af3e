"""A client's private state from earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from archgraph.federation import VERSION
from archgraph.states import State

# If nodes store the private state of their clients, the server stores in its place the last round
# in which it accepted an update of the client.
CONFIRMED = "confirmed"


@dataclass(frozen=True, eq=False)
class ClientState:
    """A client's private state from earlier rounds.

    Attributes:
        state: Private parameters and buffers of the client's model, which never leave the client
            (``Task.private``).
        keep: Other tensors that the client's program keeps (``Outcome.keep``).

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
        """Return a received state in which the client's private tensors replace the sent tensors.

        A tensor with another shape is not replaced, because the client's architecture has changed.

        Args:
            sent: The received state.
            names: Tensors to replace or add. Default: replace all private tensors of the model,
                including the client's own version of the model in ``keep``.
            current: Tensors that are not replaced.
        """
        result = dict(sent)
        ours = {**self.state}
        if names is None:
            version = {k: t for k, t in self.keep.items() if k.startswith(VERSION)}
            ours |= {name.removeprefix(VERSION): tensor for name, tensor in version.items()}
        for name, tensor in ours.items():
            replaced = name in sent if names is None else name in names
            replaced &= name not in current
            # Tensors with another shape belong to an earlier architecture of the client.
            if replaced and (name not in sent or sent[name].shape == tensor.shape):
                result[name] = tensor
        return result

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors as one dict, as stored in a checkpoint."""
        return {f"state/{k}": v for k, v in self.state.items()} | {
            f"keep/{k}": v for k, v in self.keep.items()
        }

    @classmethod
    def from_flat(cls, tensors: State) -> ClientState:
        """Restore the state from the result of :meth:`flat`."""
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "keep": {}}
        for name, tensor in tensors.items():
            group, _, inner = name.partition("/")
            parts[group][inner] = tensor
        return cls(**parts)
