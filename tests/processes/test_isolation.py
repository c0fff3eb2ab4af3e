"""What a client does to the process, to the record and to the run, it does to itself alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from archgraph.engine.local import execute
from archgraph.errors import RunError
from archgraph.federation import Outcome, Result, Train, Work
from archgraph.processes.isolation import isolated

FLAGS: dict[str, tuple[Callable[[], Any], Callable[[], object]]] = {
    "grad mode": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 7)),
    "torch": (lambda: torch.get_rng_state().tolist(), lambda: torch.rand(3)),
    "python": (random.getstate, lambda: random.seed(7)),
    "numpy": (lambda: str(np.random.get_state()), lambda: np.random.rand(3)),  # noqa: NPY002
}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("dies", [False, True])
def test_global_state_is_restored_after_a_client(flag, dies):
    read, change = FLAGS[flag]
    before = read()
    try:
        with isolated(torch.Generator()):
            change()
            assert read() != before
            if dies:
                raise ValueError
    except ValueError:
        pass
    assert read() == before


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_program_begins_with_gradients_on_and_leaves_them_as_they_were(off):
    with off():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with isolated(torch.Generator()):
            assert (torch.ones(1, requires_grad=True) * 2).requires_grad
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_randomness_of_every_library_follows_from_the_clients_seed():
    def draws(seed: int) -> list[float]:
        with isolated(torch.Generator().manual_seed(seed)):
            return [torch.rand(1).item(), random.random(), np.random.rand()]  # noqa: NPY002

    assert draws(3) == draws(3)
    assert not set(draws(3)) & set(draws(4))


def test_a_generator_of_another_kind_survives_a_client():
    before = mtrand.get_bit_generator()
    try:
        mtrand.set_bit_generator(np.random.PCG64(3))
        with isolated(torch.Generator()):
            np.random.rand()  # noqa: NPY002
        assert np.random.rand() == np.random.RandomState(np.random.PCG64(3)).rand()  # noqa: NPY002
    finally:
        mtrand.set_bit_generator(before)


def test_a_client_within_another_leaves_its_draws_alone():
    """NumPy draws normal numbers in pairs: the second one waits outside of the generator's bits."""
    draw = np.random.standard_normal

    def draws(inside: bool) -> list[float]:
        with isolated(torch.Generator().manual_seed(3)):
            first = draw()
            if inside:
                with isolated(torch.Generator().manual_seed(4)):
                    draw()
            return [first, draw(), draw()]

    assert draws(inside=True) == draws(inside=False)


@dataclass(frozen=True)
class Dies:
    """Trains not at all."""

    of: type[BaseException]

    def __call__(self, work: Work) -> Outcome:
        raise self.of("here")


@pytest.mark.parametrize("of", [SystemExit, GeneratorExit, MemoryError, StopIteration])
def test_whatever_a_client_dies_of_the_others_go_on(experiment, mean, of):
    run = execute(experiment(mean({1: Dies(of)}), rounds=1, sampled=None))
    (line,) = run.rounds
    assert [c["client"] for c in line["clients"]] == [0, 2, 3]
    reason = line["failed"][0]["reason"]
    assert re.fullmatch(rf"{of.__name__}: here, {re.escape(__file__)}:\d+ in __call__", reason)


def test_an_interrupt_is_the_users(experiment, mean):
    with pytest.raises(KeyboardInterrupt):
        execute(experiment(mean({1: Dies(KeyboardInterrupt)}), rounds=1, sampled=None))


SPOILT: dict[str, tuple[Callable[[Outcome], Outcome], str]] = {
    "metric of two values": (
        lambda o: replace(o, metrics={"loss": torch.ones(2)}),  # type: ignore[dict-item]  # wrong
        r"Outcome.metrics['loss']: returned the wrong type; found Tensor; expected a number",
    ),
    "metric without a name": (
        lambda o: replace(o, metrics={1: 0.5}),  # type: ignore[dict-item]  # wrong
        "Outcome.metrics: a key: returned the wrong type; found int; expected text",
    ),
    "metric of another name": (
        lambda o: replace(o, metrics={"client": 9.0}),
        "client: a metric has the name of a recorded value",
    ),
    "sparse keep": (
        lambda o: replace(o, keep={"m": torch.eye(2).to_sparse()}),
        "m: not a dense tensor; found torch.sparse_coo",
    ),
    "keep without values": (
        lambda o: replace(o, keep={"m": torch.empty(2, device="meta")}),
        "m: not a dense tensor",
    ),
    "sparse extras": (
        lambda o: replace(o, extras={"m": torch.eye(2).to_sparse()}),
        "m: not a dense tensor",
    ),
    "complex extras": (
        lambda o: replace(o, extras={"m": torch.tensor([complex("nan")])}),
        "m: not finite",
    ),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_comes_beside_the_weights_is_checked_before_it_is_taken(experiment, mean, how):
    change, reason = SPOILT[how]
    program = lambda work: change(Train()(work))  # noqa: E731  # a program in one line
    run = execute(experiment(mean({1: program}), rounds=2, sampled=None))
    for line in run.rounds:
        assert [c["client"] for c in line["clients"]] == [0, 2, 3]
        (wrong,) = line["rejected"] + line["failed"]
        assert wrong["client"] == 1 and reason in wrong["reason"]


def test_what_is_kept_is_a_copy(experiment, mean):
    held, seen = torch.zeros(1), []

    def holding(work: Work) -> Outcome:
        seen.append(float(work.keep.get("n", torch.zeros(1))))
        held.fill_(work.round)
        outcome = replace(Train()(work), keep={"n": held})
        return outcome

    def spying(work: Work) -> Outcome:
        held.fill_(99)
        return Train()(work)

    execute(experiment(mean({0: holding, 1: spying}), rounds=3, sampled=None))
    assert seen == [0, 1, 2]


def test_what_a_program_writes_later_does_not_arrive(experiment, mean):
    """A thread of it could write after the checks; here it writes between them and the mean."""
    returned: list[Outcome] = []
    seen: list[Result] = []

    def holding(work: Work) -> Outcome:
        outcome = replace(Train()(work), extras={"m": torch.ones(2)})
        returned.append(outcome)
        return outcome

    def write(result: Result) -> None:
        for tensor in (*returned[-1].state.values(), *returned[-1].extras.values()):
            tensor.fill_(7)
        seen.append(result)

    honest = execute(experiment(mean(), rounds=2, sampled=None))
    run = execute(experiment(mean(program=holding, refuse=write), rounds=2, sampled=None))
    assert all(result.extras["m"].tolist() == [1, 1] for result in seen)
    torch.testing.assert_close(
        run.server.group("global"), honest.server.group("global"), rtol=0, atol=0
    )


def test_rounds_without_an_accepted_update_end_the_run(experiment, mean):
    @dataclass(frozen=True)
    class Late:
        """Diverges in some rounds."""

        good: frozenset[int]

        def __call__(self, work: Work) -> Outcome:
            outcome = Train()(work)
            if work.round in self.good:
                return outcome
            wrong = outcome.state["5.weight"] * float("nan")
            return replace(outcome, state={**outcome.state, "5.weight": wrong})

    def lasted(*good: int) -> int:
        setup = experiment(mean(program=Late(frozenset(good))), rounds=7, sampled=None)
        return len(execute(replace(setup, patience=3)).rounds)

    assert lasted(3, 6) == 7
    message = (
        r"round 5: no update was accepted in 3 rounds in a row; "
        r"found client 0: 5\.weight: not finite.*`patience:` sets the allowed number"
    )
    with pytest.raises(RunError, match=message):
        lasted(1, 2, 6)


def test_rounds_in_which_some_are_accepted_do_not_count(experiment, mean):
    setup = experiment(mean({1: Dies(SystemExit)}), rounds=3, sampled=None)
    assert len(execute(replace(setup, patience=1)).rounds) == 3
