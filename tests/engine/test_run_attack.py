"""FedFA's attack (Eq. 1): ΔM_malicious = ΔM_c + λ·ΔM_backdoor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.engine.attack import Attack, drawn_attackers, exchanged
from archgraph.engine.local import execute
from archgraph.federation import LocalOptions, Model, Outcome, Shard, Train, Work, seeded
from archgraph.federation.shard import TextPadding
from archgraph.language.experiment import AttackSpec
from archgraph.processes.isolation import isolated


@pytest.fixture
def work(digits, net, world):
    inputs, targets = digits.train.examples(range(60))
    shard = Shard(inputs, targets, (6,) * 10)

    def make() -> Work:
        return Work(
            client=3,
            round=2,
            rounds=5,
            graph=net,
            state=world().state,
            data=shard,
            local=LocalOptions(lr=0.05, batch=16),
            generator=seeded(0, "client", 2, 3),
        )

    return make


def done(program, work: Work) -> Outcome:
    with isolated(work.generator):
        return program(work)


def test_without_intensity_the_update_is_the_honest_one(work):
    honest, attack = done(Train(), work()), done(Attack(Train(), 0.0), work())
    assert all(torch.equal(honest.state[k], attack.state[k]) for k in honest.state)
    assert honest.metrics == attack.metrics


class InPlace(Train):
    """Trains, and writes into the tensors that it was sent."""

    def __call__(self, work: Work) -> Outcome:
        for tensor in work.state.values():
            tensor.add_(1)
        return super().__call__(work)


def test_a_program_may_write_into_what_it_was_sent(work):
    clean, attacked = work(), work()
    done(Attack(InPlace(), 3.0), attacked)
    assert all(torch.equal(clean.state[k], attacked.state[k]) for k in clean.state)


def test_equation_1(work):
    """Updates at two intensities give ΔM_backdoor; a third follows from them."""
    sent = work().state
    honest = done(Train(), work()).state
    at = {λ: done(Attack(Train(), λ), work()).state for λ in (1.0, 2.0, 20.0)}
    for name in ("0.weight", "1.weight", "5.weight", "5.bias"):
        backdoor = at[2.0][name] - at[1.0][name]
        assert backdoor.abs().max() > 1e-4
        expected = sent[name] + (honest[name] - sent[name]) + 20.0 * backdoor
        torch.testing.assert_close(at[20.0][name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("labels", [None, torch.arange(60) % 10], ids=["shuffled", "exchanged"])
def test_backdoor_is_training_on_other_labels(work, labels):
    """Against a training whose data really holds them."""
    given = work()
    shuffled = given.data.targets[torch.randperm(60, generator=seeded(9, "labels", 3))]
    others = shuffled if labels is None else labels
    relabelled = Shard(given.data.inputs, others, given.data.histogram)
    second = torch.Generator().manual_seed(
        (given.generator.initial_seed() ^ 0x5EED0FBACD001234) >> 1
    )
    backdoor = done(Train(), dataclasses.replace(given, data=relabelled, generator=second)).state
    honest = done(Train(), work()).state
    attacked = done(Attack(Train(), 20.0, seed=9, labels=labels), work()).state
    for name in ("0.weight", "5.weight"):
        expected = honest[name] + 20.0 * (backdoor[name] - given.state[name])
        torch.testing.assert_close(attacked[name], expected, rtol=1e-5, atol=1e-5)


@given(
    sizes=st.lists(st.integers(20, 60), min_size=1, max_size=5),
    classes=st.integers(2, 10),
    seed=st.integers(0, 5),
)
def test_exchanged_labels_are_the_clients_labels_dealt_out_anew(sizes, classes, seed):
    """All labels are kept, each client keeps its number, and with several some change clients."""
    total = sum(sizes)
    order = torch.randperm(2 * total, generator=seeded(seed, "positions")).numpy()
    shares = {7 * i: part for i, part in enumerate(np.split(order[:total], np.cumsum(sizes)[:-1]))}
    numbers = torch.arange(2 * total)  # a label of its own for each example
    theirs = exchanged(shares, numbers, seed)
    assert {client: len(labels) for client, labels in theirs.items()} == {
        client: len(positions) for client, positions in shares.items()
    }
    assert sorted(torch.cat([*theirs.values()]).tolist()) == sorted(order[:total].tolist())
    moved = [set(theirs[client].tolist()) - set(shares[client]) for client in shares]
    assert all(moved) if len(sizes) > 1 else not any(moved)
    # Labels that occur several times are dealt out in the same way.
    again = exchanged(shares, numbers % classes, seed)
    assert all(torch.equal(again[client], theirs[client] % classes) for client in shares)


def test_labels_are_shuffled_among_malicious_clients_by_default(experiment):
    """As in FedFA §5.1; `own` shuffles each client's own, which is another attack."""
    attacks = AttackSpec(fraction=0.5), AttackSpec(fraction=0.5, among="own")
    default, own = (experiment(rounds=1, attack=attack) for attack in attacks)
    shares = {client: default.shares[client] for client in sorted(default.malicious)}
    expected = exchanged(shares, default.data.train.targets, default.world.seed)
    assert len(shares) > 1 and list(default.exchanged) == list(shares)
    assert all(torch.equal(default.exchanged[client], expected[client]) for client in shares)
    assert own.malicious == default.malicious and own.exchanged == {}
    first, second = (execute(one).rounds[-1]["evaluation"]["global"] for one in (default, own))
    assert first != second


def test_a_backdoor_has_the_classes_of_its_labels(work):
    """Methods that set logits of absent classes to 0 would not learn the dealt labels else."""
    seen = []

    def program(work):
        seen.append(work.present.nonzero().flatten().tolist())
        return Train()(work)

    done(Attack(program, 2.0, labels=torch.arange(60) % 3 + 2), work())
    assert seen[0] != seen[1] == [2, 3, 4]


def test_labels_of_longer_texts_end_with_the_clients_own(work):
    """Exchanged labels per position have the length of the longest text of all clients."""

    class Targets(Train):
        def __call__(self, work: Work) -> Outcome:
            (every,) = work.data.batches(None, work.data.examples)
            seen.append((every.inputs[0].shape, every.targets))
            return Outcome(work.state)

    seen: list[tuple[torch.Size, torch.Tensor]] = []
    ids = torch.tensor([[4, 5, 0, 0, 0], [6, 7, 8, 0, 0]])
    texts = Shard((ids,), ids, (1,) * 9, padding=TextPadding(0, targets=True))
    labels = torch.arange(10).view(2, 5)
    done(Attack(Targets(), 1.0, labels=labels), dataclasses.replace(work(), data=texts))
    assert [shape for shape, _ in seen] == [(2, 3), (2, 3)]
    assert seen[1][1].tolist() == [[0, 1, 2], [5, 6, 7]]


def test_statistics_and_counters_stay_honest(work):
    honest, attacked = done(Train(), work()).state, done(Attack(Train(), 20.0), work()).state
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(honest[name], attacked[name])


def test_further_models_are_attacked_too(work, net):
    @dataclass(frozen=True)
    class Both:
        def __call__(self, work: Work) -> Outcome:
            other = work.others["large"]
            large = Train()(dataclasses.replace(work, graph=other.graph, state=other.state))
            return Outcome(work.state, others={"large": large.state})

    def both() -> Work:
        return dataclasses.replace(work(), others={"large": Model(net, work().state)})

    honest, attacked = done(Both(), both()), done(Attack(Both(), 5.0), both())
    assert not torch.equal(honest.others["large"]["5.bias"], attacked.others["large"]["5.bias"])


@given(clients=st.integers(1, 100), share=st.floats(0, 1), seed=st.integers(0, 5))
def test_choice_of_malicious_clients(clients, share, seed):
    chosen = drawn_attackers(range(clients), share, seed)
    assert chosen == drawn_attackers(range(clients), share, seed)
    assert chosen <= set(range(clients))
    assert abs(len(chosen) - share * clients) <= (0.5 if share * clients >= 0.5 else 1)
    assert bool(chosen) == (share > 0)


def test_malicious_clients_are_recorded_and_do_harm(experiment):
    clean = execute(experiment(rounds=2))
    attacked = execute(experiment(rounds=2, attack=AttackSpec(fraction=0.5, intensity=20.0)))
    marked = {c["client"] for line in attacked.rounds for c in line["clients"] if "malicious" in c}
    assert marked and marked <= attacked.experiment.malicious
    assert attacked.evaluation["global"]["accuracy"] < clean.evaluation["global"]["accuracy"] - 0.1
