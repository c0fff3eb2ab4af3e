"""Clients in processes: the same bits whatever their number, and none that ends a run."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.engine.local import execute
from archgraph.federation import Outcome, Train, Work
from archgraph.language.experiment import EngineSpec
from archgraph.processes.process import Died
from archgraph.processes.workers import LEAST, LEAST_AGAIN, Workers
from archgraph.states import wire
from tests.engine.families import DIGITS, STRATEGIES, experiment_of, result
from tests.runs import same_bits


def test_there_is_no_other_strategy() -> None:
    assert set(STRATEGIES) == {e.name for e in entry_points(group="archgraph.strategies")}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_the_same_bits_in_processes_and_when_it_goes_on(name, tmp_path) -> None:
    spec = ag.load_experiment(experiment_of(name, tmp_path))
    alone, apart = (
        spec.model_copy(update={"engine": EngineSpec(workers=workers)}) for workers in (1, 2)
    )
    one, two = (
        ag.run(asked, out=tmp_path / folder, progress=False)
        for asked, folder in ((alone, "one"), (apart, "two"))
    )
    assert result(one) == result(two) and one.rounds[1]["clients"]
    ag.run(alone, out=tmp_path / "one", resume_from=1, progress=False)
    same_bits(tmp_path / "one", tmp_path / "two")


def test_the_bits_are_those_of_one_process_for_three_too(experiment, mean) -> None:
    """With dropout, entries that stay with clients, and what their programs keep beside."""
    runs = [
        execute(
            experiment(
                mean(private=frozenset({"5.weight"}), program=counting),
                clients=5,
                engine=EngineSpec(workers=workers),
            )
        )
        for workers in (1, 2, 3)
    ]
    one, two, three = map(result, runs)
    assert one == two == three
    assert len(runs[0].rounds[2]["clients"]) == 4


def counting(work: Work) -> Outcome:
    rounds = work.keep.get("rounds", torch.zeros(())) + 1
    outcome = Train()(work)
    return Outcome(outcome.state, {"rounds": rounds}, metrics={"rounds": float(rounds)})


def killed(work: Work) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def crashes(work: Work) -> Outcome:
    os.abort()


def leaves(work: Work) -> Outcome:
    os._exit(0)


def endless(work: Work) -> Outcome:
    while True:
        pass


def greedy(work: Work) -> Outcome:
    held = [torch.ones(2**20) for _ in range(10_000)]
    return Outcome({**work.state, "0.weight": held[0]})


def hides(work: Work) -> Outcome:
    os.closerange(3, 1024)
    return endless(work)


def orphans(work: Work) -> Outcome:
    """A process of its own holds all that this one has open: its end is not seen."""
    if not os.fork():
        os.closerange(0, 3)
        time.sleep(10)
        os._exit(0)
    return crashes(work)


def interrupts(work: Work) -> Outcome:
    raise KeyboardInterrupt


def absent(work: Work) -> Outcome:
    raise ConnectionError


# What a client does to its process, and what the record says of it.
FATES = {
    killed: "its process was ended by SIGKILL",
    crashes: "its process was ended by SIGABRT",
    leaves: "its process ended with exit code 0",
    endless: "not done after 5 s (deadline)",
    greedy: "asked for more than 200 MB (memory)",
    hides: "its process no longer answers",
    # Its end is seen only if its child ends before the deadline.
    orphans: "not done after 5 s (deadline) or its process was ended by SIGABRT",
    interrupts: "KeyboardInterrupt",
    absent: "ConnectionError: ",
}


def test_no_client_ends_a_run_whatever_it_does_to_its_process(experiment, mean) -> None:
    """Each is named, and the others' round is that of clients that are not there."""
    faulty = dict(enumerate(FATES))
    engine = EngineSpec(workers=2, deadline=5.0, memory=200.0)
    changes = {"clients": len(FATES) + 2, "sampled": None, "rounds": 1}
    run = execute(experiment(mean(faulty), engine=engine, **changes))
    (line,) = run.rounds
    assert [who["client"] for who in line["failed"]] == list(faulty)
    for who, reason in zip(line["failed"], FATES.values(), strict=True):
        assert any(way in who["reason"] for way in reason.split(" or "))
    assert [who["client"] for who in line["clients"]] == [len(FATES), len(FATES) + 1]
    missing = execute(experiment(mean(dict.fromkeys(faulty, absent)), **changes))
    assert result(run)[1] == result(missing)[1]


def test_where_every_client_fails_the_error_says_where(experiment, mean) -> None:
    engine = EngineSpec(workers=2)
    with pytest.raises(ag.RunError, match="every client failed") as found:
        execute(experiment(mean(program=absent), engine=engine, rounds=1))
    assert "in absent" in getattr(found.value.__cause__, "__notes__", [""])[0]


def test_results_come_in_the_order_of_the_items_or_as_they_end(tmp_path: Path) -> None:
    """The first is done after the third, which begins when the second is done."""

    def waits(item: int) -> int:
        (tmp_path / str(item)).touch()
        while item == 0 and not (tmp_path / "2").exists():
            time.sleep(0.01)
        return item

    workers = Workers(2, always=True)
    assert [done for _, done in workers.calls(waits, range(3))] == [0, 1, 2]
    (tmp_path / "2").unlink()
    ended = [done for _, done in workers.calls(waits, range(3), as_they_end=True)]
    assert ended[0] == 1 and set(ended) == {0, 1, 2}


def test_items_are_taken_as_workers_become_free_and_none_twice_at_a_time() -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(12):
            taken.append(number)
            yield number

    calls = Workers(2, always=True).calls(lambda item: item, items())
    assert next(calls)[0] == 0 and len(taken) <= 5
    assert [done for _, done in calls] == list(range(1, 12))
    times: dict[int, float] = {}
    alike: Any = Workers(2, always=True).calls(
        lambda seen: seen,
        [0, 0],
        key=lambda item: item,
        begin=lambda item: times.get(item, 0.0),
    )
    for item, seen in alike:
        times[item] = seen + 1
    assert times[0] == 2


def test_short_calls_are_made_in_this_process_and_long_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("archgraph.processes.workers.time.perf_counter", lambda: now[0])

    def lasts(seconds: float) -> int:
        now[0] += seconds
        return os.getpid()

    for again, least in ((False, LEAST), (True, LEAST_AGAIN)):
        calls = Workers(2).calls(lasts, [least / 2, 2 * least, 0.0, 0.0], again=again)
        here = [pid == os.getpid() for _, pid in calls]
        assert here == [True, True, False, False]


def test_what_clients_train_before_a_test_is_trained_and_tested_in_processes(
    experiment, mean, monkeypatch, tmp_path
) -> None:
    """With the same figures, also where the program dies, of which the record says why."""
    monkeypatch.setattr("archgraph.processes.workers.LEAST", 0.0)

    def tune(work: Work) -> Outcome:
        (tmp_path / str(os.getpid())).touch()
        if work.client == 2:
            raise ArithmeticError("cannot be tuned")
        return Train()(work)

    evaluations, processes = [], []
    for workers in (1, 2):
        engine = EngineSpec(workers=workers)
        run = execute(experiment(mean(tuned=tune), rounds=1, engine=engine))
        evaluations.append(run.evaluation)
        processes.append({int(file.name) for file in tmp_path.iterdir()})
    assert evaluations[0] == evaluations[1]
    assert {one["reason"].partition(", ")[0] for one in evaluations[0]["untuned"]} == {
        "ArithmeticError: cannot be tuned"
    }
    assert processes[0] == {os.getpid()} and len(processes[1]) > 2


def test_what_is_under_way_ends_with_who_asked_for_it() -> None:
    calls = Workers(2, always=True).calls(
        lambda item: os.getpid() if not item else time.sleep(60), [0, 1, 2]
    )
    before = len(list(Path("/dev/fd").iterdir()))
    next(calls)
    began = time.monotonic()
    calls.close()
    assert time.monotonic() - began < 5
    assert len(list(Path("/dev/fd").iterdir())) <= before


def test_what_was_done_in_time_is_taken_however_late_one_looks() -> None:
    done = []
    for _, value in Workers(2, always=True, deadline=1.0).calls(lambda item: item, range(4)):
        done.append(value)
        time.sleep(1.2)
    assert done == [0, 1, 2, 3]


def test_an_interrupt_in_this_process_is_the_users() -> None:
    def interrupted(item: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Workers(1).calls(interrupted, [0]))


def test_a_process_that_is_killed_in_a_further_call_costs_that_call() -> None:
    begun: list[int] = []

    def made(item: int) -> int:
        begun.append(item)
        return item

    def killed_by_one(item: int) -> int:
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    calls: Any = Workers(2, always=True).calls(
        killed_by_one, range(3), begin=made, key=lambda item: 0
    )
    first, second, third = (done for _, done in calls)
    assert (first, second.reason, third) == (0, "its process was ended by SIGKILL", 2)
    assert begun == [0, 1, 2]


class Held(io.StringIO):
    """A display whose lock another thread holds."""

    lock = threading.Lock()

    def write(self, text: str) -> int:
        with self.lock:
            return super().write(text)


def test_what_a_client_prints_waits_for_no_display(monkeypatch, capfd) -> None:
    monkeypatch.setattr(sys, "stdout", Held())
    with Held.lock:
        calls = Workers(2, always=True, deadline=5.0).calls(
            lambda item: sys.stdout.write("said\n"), [0]
        )
        assert list(calls) == [(0, 5)]
    assert capfd.readouterr().out == "said\n"


SERVER = """\
import os
import signal
import sys
import time

from archgraph.processes.workers import Workers


def work(item):
    print(os.getpid(), flush=True)
    time.sleep(item)


for item, done in Workers(2, always=True).calls(work, [1, 60]):
    print("done", done, flush=True)
"""


@pytest.mark.full
def test_processes_leave_interrupts_to_the_first_and_end_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        children = [int(server.stdout.readline()) for _ in range(2)]
        for child in children:
            os.kill(child, signal.SIGINT)
        assert server.stdout.readline() == b"done None\n"
        server.kill()
    until = time.monotonic() + 10
    while running(children[1]) and time.monotonic() < until:
        time.sleep(0.01)
    assert not running(children[1])


def pids(function: Any = lambda item: os.getpid(), **settings: Any) -> list[Any]:
    """The processes of six calls, one after the other."""
    workers = Workers(2, always=True, **settings)
    calls = workers.calls(function, range(6), key=lambda item: 0)
    return [pid.reason if isinstance(pid, Died) else pid for _, pid in calls]


def test_a_process_takes_further_calls_whether_they_are_bounded_or_not() -> None:
    assert len(set(pids())) == 1
    assert len(set(pids(deadline=60.0, memory=2000.0))) == 1


def test_a_process_that_exceeded_a_limit_takes_no_further_call() -> None:
    def exceeds(item: int) -> int:
        if item == 1:
            HELD.append(torch.ones(2**28))
        if item == 3:
            time.sleep(60)
        return os.getpid()

    first, memory, second, late, *third = pids(exceeds, deadline=1.0, memory=200.0)
    assert memory == "asked for more than 200 MB (memory)"
    assert late == "not done after 1 s (deadline)"
    assert len({first, second, *third}) == 3


HELD: list[Any] = []


def test_no_process_is_left_when_the_calls_are_over_and_those_that_wait_end_with_close() -> None:
    workers = Workers(2, always=True)

    def who(item: int) -> int:
        return os.getpid()

    first: set[Any] = {pid for _, pid in workers.calls(who, range(4), again=True)}
    again: set[Any] = {pid for _, pid in workers.calls(who, range(4), again=True)}
    assert again <= first and all(map(running, first))
    other: set[Any] = {
        pid for _, pid in workers.calls(lambda item: os.getpid(), range(4), again=True)
    }
    assert not other & first and not any(map(running, first))
    workers.close()
    assert not any(map(running, other))
    assert not any(map(running, pids()))


def test_a_process_that_is_killed_while_it_waits_costs_nobody_anything() -> None:
    workers = Workers(2, always=True)

    def who(item: int) -> int:
        return os.getpid()

    first: set[Any] = {pid for _, pid in workers.calls(who, range(4), again=True)}
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    again: list[Any] = [pid for _, pid in workers.calls(who, range(4))]
    assert not first & set(again) and all(isinstance(pid, int) for pid in again)


def test_processes_that_wait_end_when_nobody_can_call_them() -> None:
    workers = Workers(2, always=True)
    pids: set[Any] = {pid for _, pid in workers.calls(lambda i: os.getpid(), range(4), again=True)}
    assert all(map(running, pids))
    del workers
    assert not any(map(running, pids))


@pytest.mark.full
def test_python_ends_with_processes_that_wait() -> None:
    script = (
        "from archgraph.processes.workers import Workers\n"
        "workers = Workers(2, always=True)\n"
        "print([done for _, done in workers.calls(lambda i: i, [1, 2], again=True)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[1, 2]\n"


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def ends(item: int) -> Any:
    if item == 1:
        raise ValueError("one")
    if item == 3:
        os._exit(3)
    return os.getpid()


def test_after_a_process_that_ended_there_is_a_new_one() -> None:
    first, died, second, exited, *third = pids(ends)
    assert str(died).startswith("ValueError: one, ")
    assert [exited] == ["its process ended with exit code 3"]
    assert first == second and len({first, *third}) == 2


@dataclass(frozen=True)
class Numbered:
    """A value that is compared with `is`."""

    number: int


@dataclass(frozen=True)
class Cannot:
    """A value that says no to being sent."""

    number: int

    def __reduce__(self) -> Any:
        raise TypeError("no")


def test_items_reach_a_process_as_they_are_or_one_that_is_forked_with_them() -> None:
    """Tensors with their strides, the same value as the same one, what cannot be sent as well."""
    frozen = Numbered(7)
    transposed = torch.arange(6.0).view(2, 3).T
    parts = torch.arange(12.0).view(3, 4)[:, ::2]
    items: list[Any] = [0, (frozen, frozen, transposed), parts, [frozen], Cannot(5), lambda: 3, {}]

    def described(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return [item.tolist(), list(item.stride())]
        if isinstance(item, tuple):
            return [item[0] is item[1], item[2].tolist(), list(item[2].stride())]
        seen.append(item)
        return [type(item).__name__, len(seen)]

    seen: list[Any] = []
    workers = Workers(2, always=True)
    found = [done for _, done in workers.calls(described, items, key=lambda item: 0)]
    assert found == [
        ["int", 1],
        [True, transposed.tolist(), [1, 3]],
        [parts.tolist(), list(parts.clone().stride())],
        ["list", 2],
        ["Cannot", 1],
        ["function", 1],
        ["dict", 2],
    ]


@dataclass(frozen=True)
class Broken:
    """A value that can be written, and not read."""

    def __reduce__(self) -> Any:
        return int, ("seven",)


def test_an_item_that_a_process_cannot_read_costs_that_call() -> None:
    workers = Workers(2, always=True)
    calls: Any = workers.calls(
        lambda item: type(item).__name__, [0, Broken(), 1], key=lambda item: 0
    )
    first, broken, last = (done for _, done in calls)
    assert (first, last) == ("int", "int") and broken.reason.startswith("ValueError: invalid")


def test_the_same_tensor_arrives_as_the_same_and_single_values_whatever_their_strides() -> None:
    one, odd = torch.zeros(3), torch.arange(2.0)[::2]

    def told(item: Any) -> Any:
        if item:
            item[0].add_(1)
        return item, odd

    calls: Any = Workers(2, always=True).calls(told, [[], [one, {"same": one}]], key=lambda item: 0)
    assert [done for _, done in calls][1][0][1]["same"].tolist() == [1.0, 1.0, 1.0]
    assert wire.decode(wire.encode({"odd": odd}))["odd"].tolist() == [0.0]


class Made(dict[str, torch.Tensor]):
    """Makes its tensors when it is asked for them, and keeps none."""

    def items(self) -> Any:
        return ((str(number), torch.full((3,), float(number))) for number in range(4))


def test_tensors_that_nobody_keeps_arrive_each_as_its_own() -> None:
    def told(item: Any) -> Any:
        return {} if not item else {name: float(one[0]) for name, one in dict.items(item)}

    calls: Any = Workers(2, always=True).calls(
        told, [Made(), Made(a=torch.ones(1))], key=lambda item: 0
    )
    assert [done for _, done in calls][1] == {str(number): float(number) for number in range(4)}


COUNTED = """\
import sys
import torch
import archgraph as ag
from archgraph.processes import workers

class Counted(workers.Process):
    made = 0

    def __init__(self, *args, **options):
        Counted.made += 1
        super().__init__(*args, **options)

workers.Process = Counted
images, classes = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
ag.run({
    "name": "counted",
    "family": {"model": sys.argv[1], "clients": [{"name": "all", "count": 4}]},
    "strategy": {"fedavg": {}},
    "rounds": 3,
    "local": {"optimiser": {sys.argv[2]: {"lr": 0.01}}},
    "engine": {"workers": 2},
}, data=((images, classes), (images, classes)), progress=False)
print(Counted.made)
"""


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
def test_two_processes_train_all_clients_of_a_run(optimiser: str) -> None:
    """Twelve turns of clients in two processes, and each of three tests in none or two."""
    command = [sys.executable, "-c", COUNTED, str(DIGITS), optimiser]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) == 2


@pytest.mark.parametrize("value", [object(), Workers, print, {"a": [torch.nn.Linear(1, 1)]}])
def test_only_plain_values_and_tensors_come_back(value: Any) -> None:
    ((_, found),) = Workers(2, always=True).calls(lambda item: value, [0])
    assert isinstance(found, Died) and "neither a plain value nor a tensor" in found.reason


def test_tensors_of_every_kind_come_back_and_are_ones_own() -> None:
    kinds = [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64]
    value = [torch.ones(2, 3).to(kind) for kind in kinds] + [torch.tensor(3.0), torch.ones(0, 2)]
    message = wire.encode([*value, value[0].T])
    found, again = wire.decode(message), wire.decode(message)
    assert all(map(torch.equal, found, [*value, value[0].T]))
    found[0].fill_(7)
    assert torch.equal(again[0], value[0])


UNGUARDED = """\
import sys
import threading
import time

import torch
import archgraph as ag

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
images, classes = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
runs = [ag.run({
    "name": "served",
    "family": {"model": sys.argv[1], "clients": [{"name": "all", "count": 4}]},
    "strategy": {"fedavg": {}},
    "rounds": 2,
    "local": {"lr": 0.01},
    "engine": {"workers": workers},
}, data=((images, classes), (images, classes)), progress=False) for workers in (1, 2)]
one, two = (run.server.group("global") for run in runs)
assert all(torch.equal(one[name], two[name]) for name in one) and runs[1].rounds[1]["clients"]
print("same")
"""


@pytest.mark.full
def test_beside_other_threads_a_fork_server_starts_processes_that_give_the_same_bits(
    tmp_path: Path,
) -> None:
    """They do not run the user's script again, which has no main guard."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), str(DIGITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("same\n", "")
