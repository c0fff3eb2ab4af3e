"""`privacy` of an experiment: what it promises, whom it refuses, what it spends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archgraph.capture.trace import trace
from archgraph.engine import prepare
from archgraph.engine.local import Run, execute
from archgraph.engine.privacy import dp_world, epsilon
from archgraph.engine.rounds import sample
from archgraph.errors import RunError, SpecError
from archgraph.federation import (
    Contribution,
    Model,
    Outcome,
    Result,
    ServerState,
    Work,
    World,
    covered_mean,
    group_means,
)
from archgraph.federation.private_means import Census, PrivateMeans
from archgraph.language import ExperimentSpec
from archgraph.language.privacy import PrivacySpec
from archgraph.language.yaml import parse_document
from archgraph.states import DimMap, Entry, Slot, Transfer

pytest.importorskip("dp_accounting", reason="needs the extra privacy")

SPEC = """
archgraph: 1
name: private
family:
  model:
    archgraph: 1
    name: m
    inputs: {{x: [1, 8, 8]}}
    sections:
      - {{name: head, steps: [flatten, linear: 12, {norm}relu, linear: 12, relu, linear: 10]}}
  clients: [{clients}]
data: {{dataset: digits, limit: 300}}
strategy: {strategy}
rounds: {rounds}
evaluate: {{every: 10}}
local: {{lr: 0.1}}
{more}
"""
ALL = "{name: a, count: 5}"
TIERS = "{name: weak, count: 3, take: 0.5}, {name: strong, count: 2}"
PRIVACY = "privacy: {clip: 1.0, noise: 1.0, delta: 0.001}"


def setup(
    privacy: str = PRIVACY,
    strategy: str = "{fedavg: {weights: uniform}}",
    clients: str = ALL,
    rounds: int = 2,
    norm: str = "",
) -> Any:
    text = SPEC.format(more=privacy, strategy=strategy, clients=clients, rounds=rounds, norm=norm)
    return prepare(parse_document(text, "e.yaml").validate(ExperimentSpec))


def weights(run: Run) -> dict[str, Tensor]:
    return run.server.group("global")


# -- the mean -------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("strategy", "clients"),
    [
        ("{fedavg: {weights: uniform}}", ALL),
        ("{heterofl: {label_rows: false}}", ALL),
        ("{fedfa: {weights: uniform, scale: false}}", ALL),
        ("{allsmall: {weights: uniform}}", ALL),
        ("{exclusivefl: {weights: uniform}}", ALL),
        ("{nefl: {weights: uniform, spread: 0}}", ALL),
        ("{flexifed: {weights: uniform}}", ALL),
        ("{heterofl: {label_rows: false}}", TIERS),
        ("{fjord: {weights: uniform}}", TIERS),
        ("{fedadp: {weights: uniform}}", TIERS),
        ("{nefl: {weights: uniform, spread: 0}}", TIERS),
        ("{flexifed: {weights: uniform}}", TIERS),
    ],
)
def test_without_noise_and_clip_it_is_the_mean(strategy, clients):
    """Where all take part, as many cover a value as are expected to."""
    plain = execute(setup("", strategy, clients))
    private = execute(setup("privacy: {clip: 1.0e9, noise: 0, delta: 0.1}", strategy, clients))
    torch.testing.assert_close(private.server.tensors, plain.server.tensors, rtol=0.0001, atol=1e-6)
    assert private.privacy["epsilon"] is None


def test_values_that_no_client_covers_stay_and_others_move():
    made = setup(
        strategy="{heterofl: {label_rows: false}}", clients="{name: a, count: 3, take: 0.5}"
    )
    moved = {k: v != made.world.state[k] for k, v in weights(execute(made)).items()}
    assert moved["head.linear1.weight"][:6].all() and not moved["head.linear1.weight"][6:].any()
    assert moved["head.linear3.weight"][:, :6].all()
    assert not moved["head.linear3.weight"][:, 6:].any()


def test_what_is_frozen_and_what_is_no_parameter_stays():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    module[0].bias.requires_grad_(False)
    graph, state = trace(module, torch.zeros(4, 2))
    ours = {k: v + 1 for k, v in state.items()}
    one = Contribution(0, "global", graph, Transfer.identity(graph), ours, 1.0)
    server = ServerState().with_group("global", state)
    census = Census()
    census(server, [one])
    draw = torch.Generator().manual_seed(0)
    new = PrivateMeans(census, 1.0, 1e9, 1e-12, draw)(server, [one])[0].group("global")
    still = {name for name, value in new.items() if torch.equal(value, state[name])}
    assert still == {"0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    torch.testing.assert_close(new["0.weight"], ours["0.weight"], rtol=0, atol=0.02)


SLOTS = (Slot("w", (4, 3), "float32"), Slot("b", (4,), "float32"))


@st.composite
def given_by_clients(draw: st.DrawFn) -> list[Contribution]:
    """What some clients return of parts of a small model, in two groups."""
    count = draw(st.integers(1, 5))
    values = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    made = []
    for client in range(count):
        rows = draw(st.sets(st.integers(0, 3), min_size=1).map(sorted))
        cut = DimMap.of(rows, 4)
        target = (Slot("w", (len(rows), 3), "float32"), Slot("b", (len(rows),), "float32"))
        entries = {"w": Entry("w", (cut, None)), "b": Entry("b", (cut,))}
        scale = draw(st.sampled_from([1e-3, 1.0, 1e3, 1e20]))
        for group in ("global", "other")[: draw(st.integers(1, 2))]:
            state = {
                slot.name: scale * torch.randn(slot.shape, generator=values) for slot in target
            }
            skip = frozenset({"b"} if draw(st.booleans()) else ())
            part = Transfer(SLOTS, target, entries)
            made.append(Contribution(client, group, SLOTS, part, state, 1.0, skip))
    return made


def means(made: list[Contribution], **options: Any) -> tuple[PrivateMeans, ServerState]:
    state = ServerState()
    for group in {one.group for one in made}:
        start = {s.name: torch.full(s.shape, 0.5) for s in SLOTS}
        state = state.with_group(group, start)
    census = Census()
    assert census(state, made) == (state, {})
    chosen = {"rate": 1.0, "clip": 0.5, "noise": 0.0, **options}
    return PrivateMeans(census, **chosen, generator=torch.Generator().manual_seed(1)), state


@given(given_by_clients(), st.data())
@settings(deadline=None, max_examples=60)
def test_one_client_changes_the_sums_by_no_more_than_the_clip(made, data):
    private, state = means(made)
    without = data.draw(st.sampled_from(sorted({one.client for one in made})))
    sums = private.sums(state, made)
    fewer = private.sums(state, [one for one in made if one.client != without])
    squares = 0.0
    for group, entries in sums.items():
        for name, value in entries.items():
            other = fewer.get(group, {}).get(name, torch.zeros(()))
            squares += float((value - other).double().pow(2).sum())
    assert math.sqrt(squares) <= private.clip * (1 + 1e-4)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_noise_has_the_deviation_that_was_asked_for(rate):
    """A sum of n squares of unit noise is n within six deviations, √(2n) each (χ²)."""
    slots = (Slot("w", (100, 200), "float32"),)
    half = Transfer(
        slots,
        (Slot("w", (50, 200), "float32"),),
        {"w": Entry("w", (DimMap.of(range(50), 100), None))},
    )
    whole = Transfer.identity(slots)
    made = [
        Contribution(0, "global", slots, whole, {"w": torch.zeros(100, 200)}, 1.0),
        Contribution(1, "global", slots, half, {"w": torch.zeros(50, 200)}, 1.0),
    ]
    state = ServerState().with_group("global", {"w": torch.zeros(100, 200)})
    census = Census()
    census(state, made)
    draw = torch.Generator().manual_seed(3)
    moved = PrivateMeans(census, rate, 2.0, 1.5, draw)(state, [])[0].group("global")["w"]
    for rows, clients in ((slice(50), 2), (slice(50, 100), 1)):
        unit = moved[rows].double() * clients * rate / (1.5 * 2.0)
        assert abs(float(unit.pow(2).sum()) - unit.numel()) < 6 * math.sqrt(2 * unit.numel())
        assert abs(float(unit.sum())) < 6 * math.sqrt(unit.numel())


def test_a_part_that_follows_from_data_is_refused_while_it_is_averaged():
    same = Transfer.identity(SLOTS)
    state = {"w": torch.ones(4, 3), "b": torch.ones(4)}
    made = [Contribution(0, "global", SLOTS, same, state, 1.0)]
    private, server = means(made)
    for wrong in ([made[0]._replace(unmerged=frozenset({"b"}))], [made[0]._replace(client=1)]):
        with pytest.raises(RunError, match="contributes other values"):
            private(server, wrong)
    twice = [*made, made[0]._replace(client=1), *made]
    known, server = means(twice)
    with pytest.raises(RunError, match="client 0: contributes other"):
        known(server, twice)


# -- who is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "norm", "reason"),
    [
        ("{fedavg: {}}", "", "a weight of .*; set `weights: uniform`"),
        ("{heterofl: {}}", "", "rows that its labels select.*`label_rows: false`"),
        ("{fedfa: {weights: uniform}}", "", "norms of its weights.*`scale: false`"),
        ("{fedfa: {weights: uniform, scale: false, choice: zico}}", "", "sends tasks before"),
        ("{fedavg: {weights: uniform}}", "batch_norm, ", "running statistics .*`norm: static`"),
        ("{nefl: {weights: uniform}}", "batch_norm, ", "running statistics"),
        (
            "{fedin: {weights: uniform, after: head.linear1, before: head.linear3}}",
            "",
            "uses more of clients' results than their mean",
        ),
        ("{fedadp: {}}", "", "a weight of .*; set `weights: uniform`"),
        (  # all at once
            "{heterofl: {weights: examples, norm: averaged}}",
            "batch_norm, ",
            r"found a weight of 60 and rows that its labels select and running statistics \(.*; "
            "set `weights: uniform` and `label_rows: false` and `norm: static` or `norm: local`",
        ),
        ("{standalone: {}}", "", "the strategy does not only average .*found `privacy`"),
    ],
)
def test_who_cannot_keep_the_promise_is_refused_before_the_first_round(strategy, norm, reason):
    made = setup(strategy=strategy, norm=norm)
    with pytest.raises(RunError, match=f"strategy.*{reason}"):
        execute(made)


@pytest.mark.parametrize("norm", ["static", "local"])
def test_statistics_that_are_left_out_are_no_obstacle(norm):
    run = execute(
        setup(strategy=f"{{fedavg: {{weights: uniform, norm: {norm}}}}}", norm="batch_norm, ")
    )
    assert run.privacy["epsilon"] > 0


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("bound: 5.0", "would depend on the other updates"),
        ("aggregate: {clip: 1.0}", "would depend on the other updates"),
        (
            "validation: {clients: 0.2, keep: best}",
            "held-out examples would select the published round",
        ),
    ],
)
def test_what_would_break_the_promise_has_no_place_beside_it(key, why):
    place = rf"e\.yaml:\d+: {key.partition(':')[0]}: cannot be combined with `privacy`"
    with pytest.raises(SpecError, match=f"{place}.*{why}"):
        setup(f"{PRIVACY}\n{key}")


@pytest.mark.parametrize(
    "wrong",
    ["clip: 0", "noise: -1", "delta: 0", "delta: 1", "sampling: bernoulli", "epsilon: 1"],
)
def test_impossible_values_are_refused_with_their_place(wrong):
    values = {"clip": 1, "noise": 1, "delta": 0.1}
    key, value = wrong.split(": ")
    text = ", ".join(f"{k}: {v}" for k, v in {**values, key: value}.items())
    with pytest.raises(SpecError, match=f"privacy.{key}"):
        setup(f"privacy: {{{text}}}")


def test_without_the_accountant_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"privacy: .* pip install 'archgraph-torch\[privacy\]'"):
        execute(setup())
    silent = execute(setup("privacy: {clip: 1.0, noise: 0, delta: 0.01}"), progress=False)
    assert silent.privacy["epsilon"] is None  # infinite, without an accountant


# -- what it spends -------------------------------------------------------------------------------


def private(**options: Any) -> PrivacySpec:
    return PrivacySpec(**{"clip": 1.0, "noise": 1.0, "delta": 1e-5, **options})


def test_epsilon_is_the_librarys_own_for_a_published_setting():
    """Abadi et al., *Deep Learning with Differential Privacy* (2016), Fig. 2: at most 1.26."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    found = epsilon(private(noise=4.0, sampling="poisson"), 100, 10_000, 10_000)
    event = PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0))
    assert found == pytest.approx(
        RdpAccountant().compose(event, 10_000).get_epsilon(1e-5), rel=1e-3
    )
    assert 0.9 < found < 1.26


def test_in_samples_of_a_fixed_size_noise_counts_half():
    """Neighbours differ by what one client has: replacing it changes a sum by twice the clip."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    event = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(2.0 / 2))
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    expected = accountant.compose(event, 20).get_epsilon(1e-5)
    assert epsilon(private(noise=2.0), 10, 100, 20) == pytest.approx(expected, rel=0.02)

    same = Transfer.identity(SLOTS)
    far = {"w": torch.full((4, 3), 9.0), "b": torch.full((4,), 9.0)}
    made = [Contribution(0, "global", SLOTS, same, far, 1.0)]
    replaced = [made[0]._replace(state={name: -value for name, value in far.items()})]
    alone, state = means(made)
    one, other = (alone.sums(state, given)["global"] for given in (made, replaced))
    squares = sum(float((one[k] - other[k]).pow(2).sum()) for k in one)
    assert 1.9 * alone.clip < math.sqrt(squares) <= 2 * alone.clip * (1 + 1e-6)


def test_a_round_of_all_clients_is_the_gaussian_mechanism():
    """Above the exact ε of one round (Balle and Wang 2018, Theorem 8), and not by much."""

    def delta(eps: float) -> float:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        return phi(0.5 - eps) - math.exp(eps) * phi(-0.5 - eps)

    found = epsilon(private(), 10, 10, 1)
    assert delta(found) < 1e-5 < delta(found - 0.6)


@pytest.mark.full
def test_the_published_table_is_what_a_run_accounts_for():
    page = (Path(__file__).parents[2] / "docs" / "trust" / "epsilon.md").read_text()
    for noise, sampling in ((1.0, "poisson"), (4.0, "fixed")):
        privacy = private(noise=noise, sampling=sampling, delta=1e-6)
        spent = [epsilon(privacy, 100, clients, 100) for clients in (100, 1_000, 10_000, 100_000)]
        cells = " | ".join(f"{value:.3g}" for value in spent)
        assert f"| {noise:g} | {sampling} | {cells} |" in page


def test_epsilon_grows_by_round_and_shrinks_with_noise_and_sampling():
    rounds = [epsilon(private(), 10, 100, number) for number in (1, 2, 50)]
    assert rounds == sorted(rounds) and rounds[0] > 0
    assert epsilon(private(noise=2.0), 10, 100, 50) < rounds[2]
    assert epsilon(private(sampling="poisson"), 10, 100, 50) < rounds[2]
    assert epsilon(private(sampling="poisson"), 10, 100, 50) < epsilon(private(), 100, 100, 50)
    assert math.isinf(epsilon(private(noise=0), 10, 100, 1))


@pytest.mark.full
def test_it_is_in_the_record_of_every_round(tmp_path):
    made = setup(f"{PRIVACY}\nsample: 3", rounds=3)
    run = execute(made, out=tmp_path / "run")
    spent = [line["privacy"]["epsilon"] for line in run.rounds]
    assert spent == [epsilon(made.privacy, 3, 5, number) for number in (1, 2, 3)]
    assert [line["privacy"]["sampled"] for line in run.rounds] == [3, 3, 3]
    assert f"privacy of a client: ε {spent[-1]:.4g} for δ 0.001" in str(run.table())
    assert run.privacy["delta"] == 0.001
    # What a single client changed is not on record.
    assert "updates" not in (tmp_path / "run" / "changes.jsonl").read_text()


# -- the run --------------------------------------------------------------------------------------

POISSON = "privacy: {clip: 1.0, noise: 1.0, delta: 0.001, sampling: poisson}\nsample: 0.2"


def test_poisson_samples_have_the_expected_size_and_change_by_round():
    sizes = [len(sample(100, 20, 0, number, poisson=True)) for number in range(400)]
    assert len(set(sizes)) > 5
    # Mean of 400 binomials: 20 within six deviations of 4 / √400.
    assert abs(sum(sizes) / 400 - 20) < 6 * 4 / 20
    assert sample(5, None, 0, 1, poisson=True) == (0, 1, 2, 3, 4)


def test_a_round_without_clients_adds_noise_and_is_no_trouble():
    run = execute(setup(POISSON, rounds=8))
    empty = [line for line in run.rounds if not line["clients"]]
    assert empty and len(run.rounds) == 8
    assert not any("no update" in text for text in run.troubles)
    made = setup(POISSON, rounds=empty[0]["round"])
    before = execute(replace(made, world=replace(made.world, rounds=empty[0]["round"] - 1)))
    after = execute(made)
    assert after.sound
    assert not torch.equal(*(weights(r)["head.linear1.weight"] for r in (before, after)))


def test_noise_of_the_seed_repeats_and_that_of_the_system_does_not():
    def last(entropy: str) -> Tensor:
        text = PRIVACY.replace("}", f", entropy: {entropy}}}")
        return weights(execute(setup(text)))["head.linear1.weight"]

    assert torch.equal(last("seed"), last("seed"))
    assert not torch.equal(last("system"), last("system"))


def test_every_round_has_noise_of_its_own():
    made = setup()
    state = made.strategy.init(made.world)
    means: list[Any] = [dp_world(made, state, number).means for number in (1, 2, 1)]
    first, second, again = (m(state, [])[0].group("global")["head.linear1.weight"] for m in means)
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_a_strategy_that_sends_further_models_is_refused():
    made = setup()

    class Teaching(type(made.strategy)):  # type: ignore[misc]  # FedAvg, by its name
        def send(self, world: World, state: ServerState, client: int, round: int) -> Any:
            task = super().send(world, state, client, round)
            return replace(task, others={"teacher": Model(world.graph, world.state)})

    with pytest.raises(RunError, match=r"Teaching: uses more .*further models; found teacher"):
        execute(replace(made, strategy=Teaching(weights="uniform")))


def test_a_run_goes_on_to_the_same_bits(tmp_path):
    whole = execute(setup(POISSON, rounds=4), out=tmp_path / "whole")
    begun = setup(POISSON, rounds=4)
    execute(replace(begun, world=replace(begun.world, rounds=2)), out=tmp_path / "cut")
    again = execute(begun, out=tmp_path / "cut", resume=True)
    assert len(again.rounds) == 4
    torch.testing.assert_close(weights(again), weights(whole), rtol=0, atol=0)


def test_what_clients_say_beside_their_weights_does_not_reach_the_strategy(experiment, mean):
    @dataclass(frozen=True)
    class Curious(type(setup().strategy)):  # type: ignore[misc]  # FedAvg, by its name
        def receive(
            self, world: World, state: ServerState, results: Iterable[Result], round: int
        ) -> ServerState:
            def seen() -> Iterator[Result]:
                for result in results:
                    assert not (result.extras or result.others)
                    yield result

            return covered_mean(world, state, seen(), weights="uniform")

    made = setup()
    run = execute(replace(made, strategy=Curious(weights="uniform")))
    assert all(len(line["clients"]) == 5 and "loss" in line["clients"][0] for line in run.rounds)


@dataclass(frozen=True)
class Tell:
    """Train, and send something beside the weights."""

    train: Any

    def __call__(self, work: Work) -> Outcome:
        return replace(self.train(work), extras={"told": torch.ones(1)})


def telling(read: Any, examine: Any = None, tell: bool = True) -> Any:
    """An experiment whose clients tell something, and a strategy that reads results in some way."""

    class Telling(type(setup().strategy)):  # type: ignore[misc]  # FedAvg, by its name
        def send(self, world: World, state: ServerState, client: int, round: int) -> Any:
            task = super().send(world, state, client, round)
            return replace(task, program=Tell(task.program)) if tell else task

        def examine(self, world: World, result: Result) -> Any:
            return examine and examine(result)

        def receive(
            self, world: World, state: ServerState, results: Iterable[Result], round: int
        ) -> ServerState:
            def seen() -> Iterator[Result]:
                for result in results:
                    read(result, round)
                    yield result

            return super().receive(world, state, seen(), round)

    return replace(setup(), strategy=Telling(weights="uniform"))


@pytest.mark.parametrize(
    "read",
    [
        lambda result, round: len(result.extras),
        lambda result, round: result.extras["told"],
        lambda result, round: result.extras.get("told"),
        lambda result, round: {**result.extras},
        lambda result, round: result.extras["told"] if result.client == 3 else None,
    ],
    ids=["len", "item", "get", "all", "of one client"],
)
def test_extras_that_a_method_reads_are_refused_before_the_first_round(read, tmp_path):
    """They were dropped in silence: the method averaged, or waited, without them."""
    message = "strategy Telling: receive: reads extras of clients, .* without noise"
    with pytest.raises(RunError, match=message):
        execute(telling(read), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_extras_of_later_rounds_or_asked_for_are_refused_where_they_are_read():
    later = telling(lambda result, round: round > 1 and len(result.extras))
    with pytest.raises(RunError, match="receive: reads extras of clients"):
        execute(later)
    asked = telling(lambda result, round: bool(result.extras))
    with pytest.raises(RunError, match="receive: reads extras of clients"):
        execute(asked)


def test_extras_that_are_never_read_or_never_sent_do_no_harm():
    for harmless in (
        telling(lambda result, round: None),
        telling(lambda result, round: result.extras and result.extras["told"], tell=False),
    ):
        assert len(execute(harmless).rounds) == 2


def test_what_is_found_in_extras_or_in_updates_is_refused_too():
    def extras(result: Result) -> dict[str, Tensor]:
        return {"told": result.extras["told"]}

    with pytest.raises(
        RunError, match=r"uses more of clients' results .* found extras; found told"
    ):
        execute(telling(lambda result, round: None, extras))
    seen = telling(lambda r, round: r.findings["size"], lambda r: {"size": torch.ones(1)})
    with pytest.raises(RunError, match="Telling: receive: reads findings of clients"):
        execute(seen)
    for read in (lambda r, _: r.metrics["loss"], lambda r, _: "big" if r.metrics else "none"):
        with pytest.raises(RunError, match="receive: reads metrics of clients"):
            execute(telling(read))


def one_change(dtype: str = "float32") -> tuple[ServerState, Contribution]:
    """A client's change of two values."""
    slots = (Slot("w", (2,), dtype),)
    state = ServerState().with_group("global", {"w": torch.zeros(2, dtype=slots[0].torch_dtype)})
    returned = {"w": torch.ones(2, dtype=slots[0].torch_dtype)}
    return state, Contribution(0, "global", slots, Transfer.identity(slots), returned, 1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_would_round_beyond_the_clip(dtype: str):
    state, one = one_change(dtype)
    with pytest.raises(RunError, match="parameters of half precision"):
        Census()(state, [one])


def test_a_client_may_add_nothing_else_to_any_group():
    """What it adds to one group is as it was known, to the other it is not."""
    slots = (Slot("w", (2,), "float32"),)
    half = Transfer(slots, (Slot("w", (1,), "float32"),), {"w": Entry("w", (DimMap.of([0], 2),))})
    state, census = ServerState(), Census()
    for group in ("a", "b"):
        state = state.with_group(group, {"w": torch.zeros(2)})

    def adds(second: Transfer) -> list[Contribution]:
        pairs = (("a", Transfer.identity(slots)), ("b", second))
        return [
            Contribution(0, group, slots, t, {"w": torch.ones(t.target[0].shape)}, 1.0)
            for group, t in pairs
        ]

    census(state, adds(half))
    means = PrivateMeans(census, 1.0, 1.0, 0.0, torch.Generator())
    assert means(state, adds(half))[0].group("a")["w"].min() > 0
    with pytest.raises(RunError, match="client 0: contributes other values"):
        means(state, adds(Transfer.identity(slots)))


def test_a_second_mean_would_count_for_itself():
    state, one = one_change()
    census = Census()
    census(state, [one])
    with pytest.raises(RunError, match="a second mean in one round"):
        census(state, [one._replace(group="other")])


def test_a_client_adds_to_a_group_once():
    experiment = setup(privacy="")
    state, one = one_change()
    with pytest.raises(RunError, match=r"client 0: adds to a group twice; found global"):
        group_means(experiment.world, state, [one, one])


def test_nothing_spent_is_not_infinity():
    run = execute(setup("privacy: {clip: 1.0, noise: 1000, delta: 0.01}"), progress=False)
    assert run.privacy["epsilon"] == 0
    assert "ε 0 for" in str(run.table().note)
