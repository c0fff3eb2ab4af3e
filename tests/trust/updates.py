"""Updates with a fault, as means, robust rules and private means get them from clients."""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

import archgraph as ag
from archgraph.federation import GLOBAL, ServerState, State, robust_means
from archgraph.federation.contribution import Contribution
from archgraph.federation.private_means import Census, PrivateMeans
from archgraph.language.aggregate import KrumOptions
from archgraph.states import Merger, Transfer, Update, check_update
from archgraph.states.pool import Pool
from archgraph.states.updates import check_options
from tests.language.fuzzing import Stage
from tests.trust.folders import MODEL

NAN, INFINITE = float("nan"), float("inf")
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 1e-320, 1e-300, 1e-3, 1e300, 1.7e308, 2**70, 10**400, -0.0, NAN, INFINITE, -INFINITE,
    None, True, "1", "x", b"1", 1j, Fraction(1, 3), np.float32(2), np.float64(NAN), [], {},
    torch.tensor(2.0), torch.tensor([1.0, 2.0]), torch.tensor(NAN), object(),
)  # fmt: skip
VALUES = (1e-45, 1e-30, 1.0, 3e38, -3e38, 2.0**80, 2.0**127, NAN, INFINITE, -INFINITE)


@functools.cache
def valid_update() -> tuple[ag.ArchGraph, dict[str, torch.Tensor], tuple[Transfer, ...]]:
    torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)  # loads what writes a cache
    graph = ag.load(MODEL)
    half = ag.take(graph, 0.5).transfer
    return graph, ag.initial_state(graph, 0), (Transfer.identity(graph), half)


Change = Callable[[random.Random, torch.Tensor], Any]
CHANGES: tuple[Change, ...] = (
    lambda rng, x: torch.full_like(x, rng.choice(VALUES)) if x.is_floating_point() else x - 2**62,
    lambda rng, x: _with(x, rng.choice(VALUES)),
    lambda rng, x: x.to(rng.choice((torch.float64, torch.float16, torch.int8, torch.complex64))),
    lambda rng, x: x.reshape(-1),
    lambda rng, x: x[..., :-1] if x.dim() else x[None],
    lambda rng, x: x[None],
    lambda rng, x: x.to_sparse() if x.dim() else None,
    lambda rng, x: x.to("meta"),
    lambda rng, x: x.numpy(),
    lambda rng, x: x.tolist(),
    lambda rng, x: torch.nn.Parameter(x.float()),
    lambda rng, x: x.new_zeros(()).expand(x.shape),
    lambda rng, x: x.new_zeros(()).expand(2**20, 2**20, 2**20),
    lambda rng, x: x.new_empty(0),
    lambda rng, x: x.mT if x.dim() > 1 else x.flip(0) if x.dim() else x,
    lambda rng, x: x.double().to(torch.complex128).conj().real.to(x.dtype),
    lambda rng, x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    lambda rng, x: torch.nested.nested_tensor([x, x], layout=torch.jagged) if x.dim() else None,
    lambda rng, x: _inference(x),
    lambda rng, x: rng.choice((None, "x", 3, NAN, object(), [], {}, b"", torch.Size([1]))),
)
NAMES: tuple[Any, ...] = ("", "x", "head.0", "\ud800", "x" * 10_000, 3, None, ("a",), b"x", NAN)


Add = Callable[..., None]
Way = tuple[Add, Callable[[], Mapping[str, torch.Tensor]]]


def _merging(graph: ag.ArchGraph, state: State) -> Way:
    """The covered mean."""
    merger = Merger(graph, state)

    def add(client: int, *update: Any, **options: Any) -> None:
        merger.add(*update, **options)

    return add, lambda: merger.result()[0]


def _pooling(use: Callable[[Pool], Mapping[str, torch.Tensor]]) -> Callable[..., Way]:
    """What a rule makes of all updates of a round."""

    def way(graph: ag.ArchGraph, state: State) -> Way:
        pool = Pool(graph, state, slab=64)

        def add(
            client: int, transfer: Transfer, update: State, weight: float, **options: Any
        ) -> None:
            one = Update(transfer, update, weight, **options)
            check_options(one)
            pool.add(client, one)

        return add, lambda: use(pool)

    return way


def _krum(pool: Pool) -> Mapping[str, torch.Tensor]:
    """The mean of the updates that are nearest to their neighbours."""
    clients = sorted({update.client for update in pool.updates})
    clients = robust_means.krum_clients(KrumOptions(malicious=0.2, keep=2), [pool], clients)
    return robust_means.merged(pool, valid_update()[1], clients, {})[0]


def _private(graph: ag.ArchGraph, state: State) -> Way:
    """Clipped sums with noise; every client's part was known before the round."""
    server, census = ServerState().with_group(GLOBAL, state), Census()
    parts = [Contribution(n, GLOBAL, graph, t, {}, 1.0) for n, t in enumerate(_by_client())]
    census(server, parts)
    added: list[Contribution] = []

    def add(client: int, transfer: Transfer, update: State, weight: float, **options: Any) -> None:
        # Checked by the engine before a mean sees them; weights are 1, and nothing is left out.
        check_update(transfer.target, update)
        added.append(Contribution(client, GLOBAL, graph, transfer, dict(update), 1.0))

    def result() -> Mapping[str, torch.Tensor]:
        means = PrivateMeans(census, 0.5, 1.0, 1.0, torch.Generator().manual_seed(0))
        return means(server, added)[0].group(GLOBAL)

    return add, result


def _by_client() -> list[Transfer]:
    """The map of each client: the first has everything, the others all or half of it."""
    whole, half = valid_update()[2]
    return [whole, whole, half, whole, half, whole, half]


WAYS: tuple[Callable[..., Way], ...] = (
    _merging,
    _pooling(lambda pool: pool.middle(lambda count: (count - 1) // 2)),
    _pooling(lambda pool: pool.middle(lambda count: count // 5, quorum=2)),
    _pooling(_krum),
    _private,
)


def use_update(rng: random.Random, place: Path, stage: Stage) -> None:
    """Average mutated updates with valid ones, in any way; what is accepted has a finite mean."""
    graph, state, _ = valid_update()
    place.mkdir()
    tempfile.tempdir = str(place)  # where updates are spilled
    add, result = rng.choice(WAYS)(graph, state)
    transfers = _by_client()
    for client in range(rng.choice((1, 3))):
        add(client, transfers[client], transfers[client].pull(state), 1.0)
    for client in range(3, 3 + rng.choice((1, 1, 3))):
        transfer = transfers[client]
        update: Any = copy.copy(transfer.pull(state))
        options: dict[str, Any] = {}
        weight: Any = 1.0
        for _ in range(rng.choice((1, 1, 2))):
            match rng.randrange(8):
                case 0:
                    weight = rng.choice(NUMBERS)
                case 1:
                    options["scales"] = {_name(rng, update): rng.choice(NUMBERS)}
                case 2:
                    options["rows"] = {_name(rng, update): _mask(rng, update)}
                case 3:
                    options["unmerged"] = rng.choice(({_name(rng, update)}, [3], "x", {None}))
                case 4:
                    update.pop(rng.choice([*update]), None)
                case 5:
                    update[rng.choice(NAMES)] = torch.ones(2)
                case _:
                    name = rng.choice([*update])
                    if isinstance(update[name], torch.Tensor):
                        update[name] = _tried(rng, update[name])
        if rng.random() < 0.02:
            update = rng.choice((None, [], "x", 3, torch.ones(2), {}))
        stage("add")
        try:
            check_update(transfer.target, update, optional=options.get("unmerged", ()))
            add(client, transfer, update, weight, **options)
        except ag.ArchGraphError:
            if rng.random() < 0.3:
                raise
    stage("result")
    new = result()
    bad = [name for name, value in new.items() if not value.isfinite().all()]
    assert not bad, f"no finite mean of {bad}"


def _tried(rng: random.Random, value: torch.Tensor) -> Any:
    """A change that torch itself can make."""
    try:
        return rng.choice(CHANGES)(rng, value)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def _with(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    if x.is_floating_point() and x.numel():
        x.view(-1)[0] = value
    return x


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def _name(rng: random.Random, update: Any) -> Any:
    return rng.choice([*update]) if rng.random() < 0.8 else rng.choice(NAMES)


def _mask(rng: random.Random, update: Any) -> Any:
    sizes = [v.shape[0] for v in update.values() if isinstance(v, torch.Tensor) and v.dim()]
    length = rng.choice((*sizes, 0, 1))
    return rng.choice((
        torch.ones(length), torch.zeros(length), torch.full((length,), NAN), torch.ones(length, 1),
        torch.ones(length, dtype=torch.bool), torch.full((length,), 2.0), [1] * length, None, "x",
        torch.ones(length).to_sparse(), torch.ones(length, device="meta"), np.ones(length),
    ))  # fmt: skip
