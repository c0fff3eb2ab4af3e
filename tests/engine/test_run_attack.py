"""FedFA's attack (Eq. 1): ΔM_malicious = ΔM_c + λ·ΔM_backdoor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.engine.attack import Attack, drawn_attackers
from archgraph.engine.local import execute
from archgraph.federation import LocalOptions, Model, Outcome, Shard, Train, Work, seeded
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


def test_labels_are_exchanged_among_malicious_clients(experiment):
    """Each has as many as its examples, all of them together have what they had; by hand below."""
    attack = AttackSpec(fraction=0.5, intensity=4.0, among="clients")
    made = experiment(rounds=1, attack=attack)
    malicious = sorted(made.malicious)
    assert list(made.exchanged) == malicious and len(malicious) > 1
    mine = [made.data.train.targets[torch.from_numpy(made.shares[i])] for i in malicious]
    theirs = [made.exchanged[i] for i in malicious]
    assert [len(t) for t in theirs] == [len(t) for t in mine]
    assert torch.equal(torch.cat(theirs).sort().values, torch.cat(mine).sort().values)
    # Not within a client alone: some client's own labels have changed.
    assert any(
        not torch.equal(a.sort().values, b.sort().values) for a, b in zip(mine, theirs, strict=True)
    )
    own = dataclasses.replace(made, attack=AttackSpec(fraction=0.5, intensity=4.0))
    assert own.exchanged == {}
    first, second = (execute(one).rounds[-1]["evaluation"]["global"] for one in (made, own))
    assert first != second


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
