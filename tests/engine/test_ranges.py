"""What values a client's model can have: finite poison is refused by client and entry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from archgraph.engine.local import execute
from archgraph.engine.ranges import check_ranges
from archgraph.errors import RejectedUpdate
from archgraph.federation import Outcome, Train, Work
from archgraph.states import State


@dataclass(frozen=True)
class Poison:
    """Trains, then sets one entry to a value."""

    entry: str
    value: float

    def __call__(self, work: Work) -> Outcome:
        outcome = Train()(work)
        wrong = torch.full_like(outcome.state[self.entry], self.value)
        return replace(outcome, state={**outcome.state, self.entry: wrong})


REFUSED = {
    "variance": (Poison("1.running_var", -1000.0), "1.running_var: negative variance; found -1000"),
    "counter back": (Poison("1.num_batches_tracked", -7), "1.num_batches_tracked: a counter does"),
    "counter ahead": (Poison("1.num_batches_tracked", 2**40), "1.num_batches_tracked: a counter"),
    "huge": (Poison("5.weight", 3e38), r"5.weight: too large to be averaged; found .* 3e\+38"),
    "huge statistic": (Poison("1.running_mean", -2e24), "1.running_mean: too large"),
    "infinite": (Poison("5.weight", float("inf")), "5.weight: not finite"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_finite_poison_is_refused_by_client_and_entry(experiment, mean, how):
    poison, reason = REFUSED[how]
    run = execute(experiment(mean(programs={1: poison}), rounds=2, sampled=None))
    for line in run.rounds:
        assert [c["client"] for c in line["rejected"]] == [1]
        with pytest.raises(RejectedUpdate, match=reason):
            raise RejectedUpdate(line["rejected"][0]["reason"])
        assert len(line["clients"]) == 3
    assert all(v.isfinite().all() for v in run.server.group("global").values())


def state(net, **values: float) -> State:
    made = {s.name: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for s in net.params}
    for name, value in values.items():
        made[name.replace("_1_", "1.")].fill_(value)
    return made


def test_counters_advance_by_the_steps_done(net):
    sent = state(net, _1_num_batches_tracked=5)
    for advance in (0, 1, 30):
        check_ranges(net, sent, state(net, _1_num_batches_tracked=5 + advance), 30)
    for advance, found in ((-1, "-1"), (31, r"\+31")):
        with pytest.raises(RejectedUpdate, match=f"found {found}; expected an increase of 0 to 30"):
            check_ranges(net, sent, state(net, _1_num_batches_tracked=5 + advance), 30)


def test_variances_may_be_zero_and_no_less_than_what_was_sent(net):
    check_ranges(net, state(net), state(net, _1_running_var=0.0), 1)
    low = state(net, _1_running_var=-0.5)
    check_ranges(net, low, low, 1)
    with pytest.raises(RejectedUpdate, match=r"1.running_var: negative variance; found -0.5"):
        check_ranges(net, state(net), low, 1)


def test_what_a_client_kept_has_no_counter_to_compare_with(net):
    sent = {k: v for k, v in state(net).items() if k != "1.num_batches_tracked"}
    check_ranges(net, sent, state(net, _1_num_batches_tracked=900), 1)


@pytest.mark.parametrize("first", [True, False])
def test_updates_far_from_the_rounds_median_are_refused(experiment, mean, first):
    """Whether the poison comes first or last: the median is that of the whole round."""

    def strong(work: Work) -> Outcome:
        trained = Train()(work)
        more = work.state["5.weight"] + 1e6 * (trained.state["5.weight"] - work.state["5.weight"])
        return replace(trained, state={**trained.state, "5.weight": more}, keep={"n": more})

    client = 0 if first else 3
    setup = experiment(mean({client: strong}), rounds=2, sampled=None)
    honest = execute(replace(setup, bound=5.0))
    for line in honest.rounds:
        (rejected,) = line["rejected"]
        assert rejected["client"] == client
        assert "the update is too large; found a change of" in rejected["reason"]
        assert ", 5 times the round's median" in rejected["reason"]
        assert len(line["clients"]) == 3
    taken = execute(setup)
    assert not any(line["rejected"] for line in taken.rounds[:1])
    largest = [float(r.server.group("global")["5.weight"].abs().max()) for r in (honest, taken)]
    assert largest[0] < 10 < largest[1]


def test_a_bound_that_nothing_exceeds_changes_no_bit(experiment):
    plain, bounded = (execute(experiment(rounds=2, bound=bound)) for bound in (None, 1e3))
    assert not any(line["rejected"] for line in bounded.rounds)
    torch.testing.assert_close(
        bounded.server.group("global"), plain.server.group("global"), rtol=0, atol=0
    )


def test_where_most_clients_change_nothing_the_others_are_taken(experiment, mean):
    idle = {client: lambda work: Outcome(work.state) for client in (0, 1, 2)}
    run = execute(experiment(mean(idle), rounds=1, sampled=None, bound=2.0))
    assert len(run.rounds[0]["clients"]) == 4
