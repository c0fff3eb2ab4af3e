"""Means with client-level differential privacy, for clients that train different parts of a model.

McMahan, Ramage, Talwar, Zhang: *Learning Differentially Private Recurrent Language Models*, ICLR
2018, Algorithm 1 with ``f̃_f``, the estimator with a fixed denominator.

===========  =====================================================================================
symbol       here
===========  =====================================================================================
``Δ_k``      a client's update of all averaged values, concatenated over all groups
``S``        ``PrivateMeans.clip``; updates are ``Δ_k · min(1, S / ‖Δ_k‖)``
``w_k``      1 for every client
``z``        ``PrivateMeans.noise``
``σ``        ``z S / qW`` for the mean; here, noise ``z S`` is added to the sum before division
``qW``       for each value, the expected number of clients that cover it (:class:`Census`)
===========  =====================================================================================

A client that trains a part of the model contributes only to that part. Each sum is divided by the
expected number of clients that cover the value, which is public. The actual number is secret, since
it would reveal which clients were sampled.
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

# The largest coverage by a client that contributes each value once, with rounding errors.
ONCE = 1 + 1e-9


@dataclass
class Census:
    """Records which values of the server's state each client contributes to.

    The engine passes unchanged results of all clients to the strategy, with this object in place of
    the mean (``World.means``).

    Attributes:
        statistics: Dict from client to the names of the running statistics of its model.
        wholes: Dict from group to its architecture or signature.
        parts: Dict from client and group to the transfer that maps the group's tensors to the
            client's.
    """

    statistics: dict[int, frozenset[str]] = field(default_factory=dict)
    wholes: dict[str, ArchGraph | Signature] = field(default_factory=dict)
    parts: dict[tuple[int, str], Transfer] = field(default_factory=dict)

    def __call__(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> tuple[ServerState, dict[str, Reached]]:
        """Record the clients' contributions, and return the state unchanged.

        Raises:
            RunError: If a client's weight or transfer depends on its data, or its contribution
                cannot be made private.
        """
        # The noise of a round is calibrated for one mean.
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
        """Return the expected number of sampled clients that cover each value of a group, float64.

        Args:
            group: Name of the group.
            rate: Probability that a client is sampled.
        """
        slots = signature(self.wholes[group])
        total = {slot.name: torch.zeros((), dtype=torch.float64) for slot in slots}
        # Clients with equal transfers are counted together, since there are few architectures.
        alike = Counter(part for (_, where), part in self.parts.items() if where == group)
        for part, clients in alike.items():
            for name in sources(part):
                total[name] = total[name] + rate * clients * part.coverage[name]
        return {slot.name: total[slot.name].expand(slot.shape) for slot in slots}

    def _check(self, one: Contribution, part: Transfer) -> None:
        """Raise one error that lists everything that cannot be made private."""
        merged = one.transfer.entries.keys() - one.unmerged
        statistics = self.statistics.get(one.client, frozenset()) & merged
        kinds = [slot.torch_dtype for slot in part.target]
        faults = (
            (one.weight != 1, f"a weight of {one.weight:g}", "`weights: uniform`"),
            (one.rows is not None, "rows that its labels select", "`label_rows: false`"),
            (bool(one.sizes), "a mean scaled by norms of its weights", "`scale: false`"),
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
                "values that it contributes more than once",
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
                expected="contributions that do not depend on the clients' data",
                hint=f"set {' and '.join(cures)}" if cures else None,
            )


@dataclass(frozen=True)
class PrivateMeans:
    """Means of one round with clipped updates and noise. They replace the mean (``World.means``).

    Attributes:
        census: The values that each client contributes to.
        rate: Probability that a client is sampled.
        clip: Largest L2 norm of a client's update.
        noise: Standard deviation of the noise that is added to each sum, in units of ``clip``.
        generator: Random generator of the noise.
    """

    census: Census
    rate: float
    clip: float
    noise: float
    generator: torch.Generator

    def __call__(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> tuple[ServerState, dict[str, Reached]]:
        """Return the state with noisy means of the updates added to its groups.

        Values that no client covers, and tensors that are not trained parameters, stay unchanged.
        """
        sums, reached = self.sums(state, contributions), {}
        # In a fixed order, since all noise comes from one generator. Every group gets noise, even
        # if no sampled client contributes to it: the noise must not reveal which clients were
        # sampled.
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
            # The expected coverage: the server's optimiser must not reveal which clients were
            # sampled.
            reached[group] = Reached(self.census.wholes[group], expected)
        return state, reached

    def sums(
        self, state: ServerState, contributions: Iterable[Contribution]
    ) -> dict[str, dict[str, Tensor]]:
        """Return a dict from group to the sums of the clients' clipped updates, without noise.

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
        """Yield each client's update, scaled down to norm ``clip`` over all groups together."""
        seen: set[int] = set()
        # Contributions of a client are adjacent, so that one norm covers all of them. A client that
        # appears again would be clipped twice, and could add up to twice the bound.
        for client, group in itertools.groupby(contributions, key=lambda one: one.client):
            ones = list(group)
            known = all(self.census.parts.get((client, o.group)) == counted(o) for o in ones)
            if client in seen or not known:
                raise RunError(
                    "contributes other values than it declared before the round",
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
    """Return a contribution's transfer, restricted to the trained parameters."""
    fixed = frozen(one.whole) if isinstance(one.whole, ArchGraph) else frozenset()
    return _counted(one.transfer, frozenset(one.unmerged), fixed)


def sources(part: Transfer) -> frozenset[str]:
    """Return the names of the global tensors that a transfer reads; empty tensors do not count."""
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
    """Return a client's update in double precision, since half precision would overflow."""
    sent = counted(one).pull(state.group(one.group), copy=False)
    return {
        name: one.state[name].double() - old.to(one.state[name].device, torch.float64)
        for name, old in sent.items()
    }
