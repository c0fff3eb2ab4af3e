"""FedFA's attack: malicious clients add a multiple of an update that is trained on shuffled labels.

Park, Joe-Wong: *FedFA: Federated Learning with Flexible Architectures*, Eq. 1:

``ΔM_malicious = ΔM_c + λ · ΔM_backdoor``

======================  ====================================================
symbol                  here
======================  ====================================================
``ΔM_c``                honest update: the client's state after training, minus the sent state
``ΔM_backdoor``         update of the same program on the same inputs, with labels shuffled among
                        all malicious clients (§5.1), or within each of them
``λ``                   ``Attack.intensity``
======================  ====================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from archgraph.data.partition import class_histogram
from archgraph.engine.returned import returned
from archgraph.federation import Outcome, Program, Shard, State, Work, seeded
from archgraph.graph.ir import ArchGraph
from archgraph.processes.isolation import seed_torch


def drawn_attackers(
    clients: Sequence[int], share: float, seed: int, tiers: Sequence[str] = ()
) -> frozenset[int]:
    """Choose the malicious clients at random.

    The number of malicious clients is ``share`` times the number of clients, rounded. If ``share``
    is above 0, at least one client is malicious.

    Args:
        clients: All clients.
        share: Fraction of malicious clients.
        seed: Seed of the run.
        tiers: Tier of each client. If passed, ``share`` times the number of clients of each tier is
            rounded down, and this number of clients of the tier is chosen. To reach the total
            number, one more client is chosen in each of the tiers with the largest remainders. If
            remainders are equal, the first tiers are used.

    >>> len(drawn_attackers(range(20), 0.2, seed=0)), drawn_attackers(range(20), 0.0, seed=0)
    (4, frozenset())
    >>> sorted(i // 10 for i in drawn_attackers(range(20), 0.2, seed=0, tiers="a" * 10 + "b" * 10))
    [0, 0, 1, 1]
    """
    count = math.floor(share * len(clients) + 0.5)  # not round(), which rounds halves to even
    if share > 0:
        count = max(count, 1)
    order = torch.randperm(len(clients), generator=seeded(seed, "malicious")).tolist()
    if not tiers:
        return frozenset(clients[i] for i in order[:count])
    members = {name: [i for i in order if tiers[i] == name] for name in dict.fromkeys(tiers)}
    exact = {name: count * len(of) / len(clients) for name, of in members.items()}
    parts = {name: math.floor(value) for name, value in exact.items()}
    left = sorted(exact, key=lambda name: parts[name] - exact[name])  # stable: the first if tied
    for name in left[: count - sum(parts.values())]:
        parts[name] += 1
    return frozenset(clients[i] for name, of in members.items() for i in of[: parts[name]])


@dataclass(frozen=True)
class Attack:
    """The training of a malicious client, which adds a backdoor to the client's update.

    The attack is FedFA's Eq. 1. The client first trains like an honest client, with the same random
    numbers as in a run without attack. With ``intensity=0``, its update is therefore bit-identical
    to the honest update. The backdoor is added only to trainable parameters. Running statistics and
    counters are not changed, because invalid values (such as a negative variance) would be
    rejected.

    Attributes:
        program: The training of an honest client.
        intensity: The factor λ of the backdoor update.
        seed: Seed with which the client's own labels are shuffled, in the same way in every round.
        labels: Labels ``[example, ...]`` on which the backdoor is trained, from :func:`exchanged`.
            Default: the client's own labels, shuffled.
    """

    program: Program
    intensity: float
    seed: int = 0
    labels: torch.Tensor | None = None

    def __call__(self, work: Work) -> Outcome:
        """Train twice from the same state, on the labels and on shuffled labels."""
        second = torch.Generator().manual_seed((work.generator.initial_seed() ^ _OTHER) >> 1)
        # A copy: the program may write in place, and the second training starts from the same
        # state.
        honest = returned(Outcome, self.program(work.copied()), self.program)
        if self.intensity == 0:
            return honest
        seed_torch(second.initial_seed(), torch.device(work.device))
        (every,) = work.data.batches(None, work.data.examples)
        labels = self.labels
        if labels is None:
            order = torch.randperm(
                len(every.ids), generator=seeded(self.seed, "labels", work.client)
            )
            labels = every.targets[order.to(every.targets.device)]
        # Exchanged labels are padded to the longest text of all clients.
        labels = labels[tuple(map(slice, every.targets.shape))].to(every.targets.device)
        classes = len(work.data.histogram) or None
        histogram = tuple(class_histogram(labels.cpu(), classes).tolist())
        data = Shard(every.inputs, labels, histogram, every.ids)
        second_work = dataclasses.replace(work, data=data, generator=second).copied()
        backdoor = returned(Outcome, self.program(second_work), self.program)
        others = {
            name: self._poisoned(work.others[name].graph, work.others[name].state, state, bad)
            for name, state in honest.others.items()
            if (bad := backdoor.others.get(name)) is not None
        }
        return dataclasses.replace(
            honest,
            state=self._poisoned(work.graph, work.state, honest.state, backdoor.state),
            others={**honest.others, **others},
        )

    def _poisoned(
        self, graph: ArchGraph, sent: State, honest: State, backdoor: State
    ) -> dict[str, torch.Tensor]:
        """Return ``sent + ΔM_c + λ·ΔM_backdoor`` for trainable floating-point parameters."""
        attacked = {
            p.name
            for p in graph.params
            if p.role == "parameter" and p.trainable and sent[p.name].is_floating_point()
        }
        return {
            name: value.add(backdoor[name] - sent[name].to(value.device), alpha=self.intensity)
            if name in attacked
            else value
            for name, value in honest.items()
        }


def exchanged(
    shares: Mapping[int, np.ndarray], targets: torch.Tensor, seed: int
) -> dict[int, torch.Tensor]:
    """Shuffle the labels of some clients among these clients.

    Each client keeps its number of labels.

    Args:
        shares: Dict from client to the indices of its examples.
        targets: Targets of all examples, ``[example, ...]``.
        seed: Seed of the run.

    >>> dealt = exchanged({3: np.array([0, 1]), 5: np.array([2])}, torch.tensor([7, 8, 9]), seed=0)
    >>> [len(labels) for labels in dealt.values()], sorted(torch.cat(list(dealt.values())).tolist())
    ([2, 1], [7, 8, 9])
    """
    clients = sorted(shares)
    pooled = targets[torch.from_numpy(np.concatenate([shares[i] for i in clients]))]
    order = torch.randperm(len(pooled), generator=seeded(seed, "labels"))
    parts = pooled[order].split([len(shares[i]) for i in clients])
    return dict(zip(clients, parts, strict=True))


# Derives the seed of the backdoor's training from the seed of the honest training.
_OTHER = 0x5EED0FBACD001234
