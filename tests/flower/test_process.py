"""The server's loop and its clients through Flower's messages, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, Context, Message

import archgraph as ag
from archgraph.engine.clientwork import ClientWork
from archgraph.engine.local import Run, execute
from archgraph.engine.world import prepare
from archgraph.errors import RunError
from archgraph.federation import Model, Outcome, Task
from archgraph.flower.client import client_app
from archgraph.flower.records import BODY, as_record, of_record
from archgraph.flower.server import Nodes

from .conftest import METHODS
from .process_grid import ProcessGrid


def bits(run: Run) -> dict[str, Any]:
    return {k: (v.dtype, v.shape, v.numpy().tobytes()) for k, v in run.server.tensors.items()}


def on_flower(file: Any, *, change: Any = None, private: Any = "server", **more: Any) -> Run:
    """Run an experiment through messages; `change` may put another app in place of the client's."""
    setup = prepare(file)
    app = client_app(lambda context: setup)
    grid = ProcessGrid(change(app) if change else app, len(setup.world.clients))
    nodes = Nodes(grid, len(setup.world.clients), private)
    return execute(setup, progress=False, elsewhere=nodes, **more)


# Of those with entries that stay with a client, once with them in the contexts of the nodes.
RUNS = (
    [(m, "server") for m in METHODS]
    + [(m, "node") for m in ("fedavg, local statistics", "fedin", "recipfl", "fedrep", "ditto")]
    + [("heterofl, settings", "node")]
)


@pytest.mark.sample(12)
@pytest.mark.parametrize(("method", "private"), RUNS, ids=[", ".join(run) for run in RUNS])
def test_a_run_through_messages_has_the_bits_of_a_local_one(write, method, private):
    file = write(method)
    local, flower = ag.run(file, progress=False), on_flower(file, private=private)
    assert not flower.troubles
    assert bits(flower) == bits(local)
    assert flower.server.values == local.server.values
    if private == "server":
        assert [r["evaluation"] for r in flower.rounds] == [r["evaluation"] for r in local.rounds]


def tampered(change: Any) -> Any:
    """The app whose client 1 answers tasks with something else."""

    def wrap(app: Any) -> Any:
        def call(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if (
                context.node_config["partition-id"] == 1
                and message.metadata.message_type == "train"
            ):
                change(reply)
            return reply

        return call

    return wrap


def outcome(change: Callable[[Outcome], Any]) -> Callable[[Message], None]:
    """Change the outcome in a reply."""

    def changed(reply: Message) -> None:
        came = of_record(reply.content["body"])
        reply.content["body"] = as_record(replace(came, outcome=change(came.outcome)))

    return changed


def entry(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], None]:
    """Change the first tensor of a reply."""

    def changed(returned: Outcome) -> Outcome:
        name, tensor = next(iter(returned.state.items()))
        return replace(returned, state={**returned.state, name: change(tensor)})

    return outcome(changed)


def garbage(reply: Message) -> None:
    reply.content["body"] = ArrayRecord({BODY: Array("uint8", (8,), "safetensors", b"no array")})


def without_body(reply: Message) -> None:
    del reply.content["body"]


def another_value(reply: Message) -> None:
    reply.content["body"] = as_record({"state": {}})


def of_another(reply: Message) -> None:
    reply.content["result"]["client"] = 0


FAULTS = {
    "NaN": (entry(lambda tensor: tensor * float("nan")), "not finite"),
    "shape": (entry(lambda tensor: tensor[:1]), "wrong shape; found"),
    "dtype": (entry(lambda tensor: tensor.double()), "wrong dtype; found"),
    "architecture": (
        outcome(lambda returned: Outcome({"fc.weight": torch.ones(2, 2)})),
        "missing entry; expected",
    ),
    "bytes": (garbage, "damaged message; found"),
    "half a reply": (without_body, "not a reply to a task; found KeyError"),
    "value": (another_value, "not a reply to a task; found dict"),
    "client": (of_another, "reply of another client; found 0; expected 1"),
    "further model": (
        outcome(lambda returned: replace(returned, others={"teacher": {}})),
        "other models than the task's; found teacher; expected none",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_does_not_answer_its_task_is_refused_by_name(write, fault):
    change, said = FAULTS[fault]
    run = on_flower(write("heterofl", rounds=1), change=tampered(change))
    (line,) = run.rounds
    assert [row["client"] for row in line["rejected"]] == [1]
    assert said in line["rejected"][0]["reason"]
    assert [row["client"] for row in line["clients"]] == [0, 2, 3]


def told(reply: Message) -> None:
    """What the server computes itself, as a client would like it."""
    came = of_record(reply.content["body"])
    norms = {name: torch.tensor(1e-9, dtype=torch.float64) for name in came.outcome.state}
    reply.content["body"] = as_record(replace(came, findings=norms))


def test_what_a_node_says_of_its_own_update_is_not_read(write):
    """Norms of FedFA decide how much an update counts: the server takes them itself."""
    file = write("fedfa", rounds=1)
    assert bits(on_flower(file, change=tampered(told))) == bits(on_flower(file))


def test_a_client_that_fails_says_why_to_the_server(write):
    file = write("heterofl", rounds=1)
    setup = prepare(file)

    def lost(context: Context) -> Any:
        if context.node_config["partition-id"] == 2:
            raise OSError("no disk")
        return setup

    nodes = Nodes(ProcessGrid(client_app(lost), 4), 4)
    line = execute(setup, progress=False, elsewhere=nodes).rounds[0]
    (failed,) = line["failed"]
    reason = "NodeError: its node cannot take part; found OSError: no disk, "
    assert failed["client"] == 2 and failed["reason"].startswith(reason)


def test_a_client_without_a_node_fails_alone(write):
    setup = prepare(write("heterofl", rounds=1))
    nodes = Nodes(ProcessGrid(client_app(lambda context: setup), 3), 4, join=0)
    line = execute(setup, progress=False, elsewhere=nodes).rounds[0]
    assert [(row["client"], row["reason"]) for row in line["failed"]] == [
        (3, "NodeError: no node is this client; expected partition-id=3")
    ]


def test_no_node_at_all_ends_the_run(write):
    setup = prepare(write("heterofl", rounds=1))
    nodes = Nodes(ProcessGrid(client_app(lambda context: setup), 0), 4, join=0)
    with pytest.raises(RunError, match="no node is a client of this experiment; found 0 nodes"):
        execute(setup, progress=False, elsewhere=nodes)


@pytest.mark.sample(2)
@pytest.mark.parametrize("private", ["server", "node"])
def test_a_killed_server_resumes_to_the_bits_of_the_whole_run(write, tmp_path, private):
    """Killed in round 2 after two clients; what the nodes trained then leaves no trace."""
    file = write("fedin", rounds=3)
    setup = prepare(file)
    whole = on_flower(file, private=private)
    grid = ProcessGrid(client_app(lambda context: setup), 4)

    class Dying(Nodes):
        def __call__(self, round: int, tasks: Any, private: Any) -> Any:
            for number, working in enumerate(super().__call__(round, tasks, private)):
                if round == 2 and number == 2:
                    raise KeyboardInterrupt
                yield working

    with pytest.raises(KeyboardInterrupt):
        execute(setup, progress=False, elsewhere=Dying(grid, 4, private), out=tmp_path / "out")
    nodes = Nodes(grid, 4, private)
    resumed = execute(setup, progress=False, elsewhere=nodes, out=tmp_path / "out", resume=True)
    assert len(resumed.rounds) == 3
    assert bits(resumed) == bits(whole)


def test_nodes_that_lost_what_their_clients_kept_say_so(write, tmp_path):
    on_flower(write("fedin", rounds=1), private="node", out=tmp_path / "out")
    with pytest.raises(RunError, match="every client failed") as caught:
        on_flower(write("fedin"), private="node", out=tmp_path / "out", resume=True)
    assert "lost the private state of its client; found none; expected that of round 1" in str(
        caught.value
    )


def test_models_that_need_what_nodes_keep_are_not_tested(write):
    tested = [
        set(on_flower(write("fedin", rounds=1), private=private).evaluation.get("models", {}))
        for private in ("server", "node")
    ]
    assert tested == [{"flat", "whole"}, set()]


def test_a_reply_without_a_model_of_its_task_is_refused(write):
    setup = prepare(write("fedavg"))
    task = setup.strategy.send(setup.world, setup.strategy.init(setup.world), 0, 1)
    both = replace(task, others={"small": Model(task.graph, task.state)})
    work = ClientWork(setup)

    def refused(task: Task, outcome: Outcome) -> str | None:
        return work.checked(1, task, lambda: outcome).refused

    assert refused(task, Outcome(task.state)) is None
    assert "than the task's; found none; expected small" in str(refused(both, Outcome(task.state)))
    assert "missing entry" in str(refused(task, Outcome({})))
