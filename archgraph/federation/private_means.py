"""Means with client-level differential privacy, where clients train different parts.

McMahan, Ramage, Talwar, Zhang: *Learning Differentially Private Recurrent Language Models*, ICLR
2018, Algorithm 1 with ``f̃_f``, the estimator of fixed denominator.

===========  =====================================================================================
symbol       here
===========  =====================================================================================
``Δ_k``      a client's update of all averaged values, over all groups together
``S``        ``PrivateMeans.clip``; updates are ``Δ_k · min(1, S / ‖Δ_k‖)``
``w_k``      1 for every client
``z``        ``PrivateMeans.noise``
``σ``        ``z S / qW``, on the mean; here ``z S`` on the sum, which is divided afterwards
``qW``       by value: how many clients cover it in expectation (:class:`Census`)
===========  =====================================================================================

A client that covers part of the model adds only to that part. A sum is divided by the expected
number of clients that cover a value, which is public; the number of sampled ones is not, since it
reveals who they were.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archgraph.analysis.roles import frozen
from archgraph.errors import RunError
from archgraph.federation.contribution import Contribution
from archgraph.federation.server_optimiser import Reached
from archgraph.federation.state import ServerState
from archgraph.graph.ir import ArchGraph
from archgraph.states import Merger, Signature, State, Transfer, Update, signature
from archgraph.states.state import widened

# A client that contributes every value once covers it at most once, up to rounding.
ONCE = 1 + 1e-9


@dataclass
class Census:
    """The coverage of each client if all are sampled, measured on results without updates.

    It replaces the mean (``World.means``) while a strategy receives such results.

    Attributes:
        statistics: Running statistics of each client's model.
        wholes: Architecture or signature of each group.
        parts: Dict from client and group to the part of the group that the client covers (has in
            its model).
    """

    statistics: dict[int, frozenset[str]] = field(default_factory=dict)
    wholes: dict[str, ArchGraph | Signature] = field(default_factory=dict)
    parts: dict[tuple[int, str], Transfer] = field(default_factory=dict)

    def __call__(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> tuple[ServerState, dict[str, Reached]]:
        """Record what clients would contribute; the state stays unchanged.

        Raises:
            RunError: If a client's part in a mean follows from its data, or cannot be made private.
        """
        # The noise of a round is calibrated for one sum.
        if self.parts:
            raise RunError(
                "the mean cannot be made private",
                found="a second mean in one round, which would count separately",
                expected="one call of covered_mean or group_means in receive",
            )
        for one in contributions:
            part = counted(one)
            self._check(one, part)
            self.wholes.setdefault(one.group, one.whole)
            self.parts[one.client, one.group] = part
        return state, {}

    def expected(self, group: str, rate: float) -> Mapping[str, Tensor]:
        """Count how many clients cover each value of a group in expectation, float64.

        Args:
            group: The group.
            rate: Probability that a client is sampled.
        """
        slots = signature(self.wholes[group])
        total = {slot.name: torch.zeros((), dtype=torch.float64) for slot in slots}
        # Equal parts are counted together: clients are many, architectures few.
        alike = Counter(part for (_, where), part in self.parts.items() if where == group)
        for part, clients in alike.items():
            for name in sources(part):
                total[name] = total[name] + rate * clients * part.coverage[name]
        return {slot.name: total[slot.name].expand(slot.shape) for slot in slots}

    def _check(self, one: Contribution, part: Transfer) -> None:
        """Raise an error for everything that cannot be made private, in one error."""
        merged = one.transfer.entries.keys() - one.unmerged
        statistics = self.statistics.get(one.client, frozenset()) & merged
        kinds = [slot.torch_dtype for slot in part.target]
        faults = (
            (one.weight != 1, f"a weight of {one.weight:g}", "`weights: uniform`"),
            (one.rows is not None, "rows of the labels that it has", "`label_rows: false`"),
            (bool(one.sizes), "a mean that is scaled by sizes of its weights", "`scale: false`"),
            (
                bool(statistics),
                f"running statistics ({min(statistics, default='')})",
                "`norm: static` or `norm: local` (or use layer or group norms)",
            ),
            (any(kind.is_complex for kind in kinds), "complex parameters", ""),
            (
                any(kind.itemsize < 4 for kind in kinds),
                "parameters of half precision, whose sums are rounded beyond the clip",
                "",
            ),
            (
                any(float(part.coverage[name].amax()) > ONCE for name in sources(part)),
                "values that it gives more than once",
                "",
            ),
        )
        reasons = [text for wrong, text, _ in faults if wrong]
        cures = [cure for wrong, _, cure in faults if wrong and cure]
        if reasons:
            raise RunError(
                "the mean cannot be made private",
                where=f"client {one.client}",
                found=" and ".join(reasons),
                expected="every client to add its parameters in the same way, whatever its data",
                hint=f"set {' and '.join(cures)}" if cures else None,
            )


@dataclass(frozen=True)
class PrivateMeans:
    """Means of one round with noise; they replace the mean (``World.means``).

    Attributes:
        census: The coverage of each client.
        rate: Probability that a client is sampled.
        clip: Largest L2 norm of a client's update.
        noise: Standard deviation of the noise on a sum, in units of ``clip``.
        generator: Source of the noise.
    """

    census: Census
    rate: float
    clip: float
    noise: float
    generator: torch.Generator

    def __call__(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> tuple[ServerState, dict[str, Reached]]:
        """Return the state with groups moved by noisy sums, divided by expected counts.

        Values that no client covers stay unchanged, as do all entries that are not trained
        parameters.
        """
        sums, reached = self.sums(state, contributions), {}
        # In a fixed order, since all noise comes from one generator; and for every group, whether
        # or not a sampled client adds to it: the noise must not reveal who was sampled.
        for group in sorted(self.census.wholes):
            new, expected = state.group(group), self.census.expected(group, self.rate)
            for slot in signature(self.census.wholes[group]):
                cover, value = expected[slot.name], new[slot.name]
                if not bool((cover > 0).any()):  # clients cannot affect it
                    continue
                moved = torch.randn(slot.shape, generator=self.generator, dtype=torch.float64)
                moved *= self.noise * self.clip
                if group in sums:  # else no client of the round has a part of it
                    moved += sums[group][slot.name].cpu()
                moved = torch.where(cover > 0, moved / cover, 0.0)
                new[slot.name] = (value + moved.to(value.device)).to(value.dtype)
            state = state.with_group(group, new)
            # By expectation: the server's optimiser must not reveal who was sampled.
            reached[group] = Reached(self.census.wholes[group], expected)
        return state, reached

    def sums(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> dict[str, dict[str, Tensor]]:
        """Sum clients' updates, clipped, by group and entry; without noise.

        Removing a client changes the sums by a vector whose norm, over all groups, is at most
        ``clip``.
        """
        mergers: dict[str, Merger] = {}
        for one, delta in self._clipped(state, contributions):
            # A merger transposes maps; its means are converted back to sums below.
            if one.group not in mergers:
                slots = signature(self.census.wholes[one.group])
                blank = {
                    s.name: torch.zeros((), dtype=s.torch_dtype).expand(s.shape) for s in slots
                }
                mergers[one.group] = Merger(slots, blank)
            mergers[one.group].accumulate(Update(counted(one), delta))
        sums = {}
        for group, merger in mergers.items():
            means, coverage = merger.result()
            sums[group] = {name: widened(mean) * coverage[name] for name, mean in means.items()}
        return sums

    def _clipped(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> Iterator[tuple[Contribution, State]]:
        """Yield each client's update, scaled down to the bound over all groups together."""
        seen: set[int] = set()
        # A client's parts are adjacent, so that one norm is taken over all of them; a client that
        # appears again would be clipped twice and add up to twice the bound.
        for client, group in itertools.groupby(contributions, key=lambda one: one.client):
            ones = list(group)
            known = all(self.census.parts.get((client, o.group)) == counted(o) for o in ones)
            if client in seen or not known:
                raise RunError(
                    "adds to the mean other entries than before the round",
                    where=f"client {client}",
                    hint="a client's contribution must not depend on its data",
                )
            seen.add(client)
            deltas = [_delta(state, one) for one in ones]
            values = (value for delta in deltas for value in delta.values())
            norm = math.hypot(*(float(torch.linalg.vector_norm(value)) for value in values))
            factor = self.clip / norm if norm > self.clip else 1.0
            for one, delta in zip(ones, deltas, strict=True):
                yield one, {k: (v * factor).to(one.state[k].dtype) for k, v in delta.items()}


def counted(one: Contribution) -> Transfer:
    """Return the part of a contribution's map that counts: the trained parameters."""
    fixed = frozen(one.whole) if isinstance(one.whole, ArchGraph) else frozenset()
    return _counted(one.transfer, frozenset(one.unmerged), fixed)


def sources(part: Transfer) -> frozenset[str]:
    """Global entries that a client covers some of; empty tensors do not count."""
    shapes = part.shapes
    used = (str(entry.source) for entry in part.entries.values())
    return frozenset(name for name in used if 0 not in shapes[name])


@functools.lru_cache(maxsize=256)
def _counted(transfer: Transfer, unmerged: frozenset[str], fixed: frozenset[str]) -> Transfer:
    entries = {
        slot.name: entry
        for slot in transfer.target
        if (entry := transfer.entries[slot.name]).source is not None
        and slot.averaged
        and slot.role == "parameter"
        and slot.name not in unmerged
        and entry.source not in fixed
    }
    target = tuple(slot for slot in transfer.target if slot.name in entries)
    return Transfer(transfer.source, target, entries)


def _delta(state: ServerState, one: Contribution) -> State:
    """Return a client's update in double precision, since half would overflow."""
    sent = counted(one).pull(state.group(one.group), copy=False)
    return {
        name: one.state[name].double() - old.to(one.state[name].device, torch.float64)
        for name, old in sent.items()
    }
