"""A client on Flower, which runs the tasks that the server sends to its node.

In a simulation, the server stores the private state of each client. In a deployment, the private
state never leaves the context of the client's node. There, the private state after a round is
pending until the next task contains the last round in which the server accepted an update. A round
that is repeated or rejected therefore does not change the private state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from archgraph.engine.clientwork import Assignment, ClientWork, Returned, private_part
from archgraph.engine.experiment import Experiment
from archgraph.errors import RejectedUpdate, RunError
from archgraph.flower.keeping import KEPT, PENDING, restore, round_of, store
from archgraph.flower.programs import Trusted
from archgraph.flower.records import (
    FORMAT,
    as_record,
    installed_here,
    of_record,
    read_task,
    reply_record,
)
from archgraph.plain import Json
from archgraph.processes.process import Died, attempted
from archgraph.processes.reasons import LONGEST, reason
from archgraph.record.client import ClientState

PARTITION = "partition-id"


def client_app(
    experiment: Callable[[Context], Experiment],
    file: Callable[[Context, Experiment], Path | None] = lambda context, setup: None,
    rows: Callable[[Context], dict[str, Json]] = lambda context: {},
) -> ClientApp:
    """Return the ClientApp of an experiment.

    The key ``partition-id`` in the configuration of a node sets which client the node runs.

    Args:
        experiment: Function that returns the experiment with the client's data, from the context of
            a node.
        file: Function that returns the path of a file for the client's private state, or None. By
            default, the private state is only stored in the context.
        rows: Function that returns facts about the client's data (such as the number of examples)
            for the server, if only this node has the data. Default: no facts.
    """
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        # Errors are reported before the first round, with file and line.
        came = attempted(lambda: experiment(context))
        trouble = str(came.reason)[:LONGEST] if isinstance(came, Died) else ""
        said = {**installed_here(), "client": client_of(context.node_config), "trouble": trouble}
        content = RecordDict({"who": ConfigRecord(said)})
        if not trouble and (report := rows(context)):
            content["rows"] = ConfigRecord(report)
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        def answered() -> Returned:
            setup = experiment(context)
            path = file(context, setup)
            if path is not None:
                restore(context, path)
            came = answer(setup, message.content, context)
            # Before replying, since a crash must not lose the state of an accepted update.
            if path is not None:
                store(context, path)
            return came

        # The server records failures, and the round continues.
        content = reply_record(client_of(context.node_config), attempted(answered))
        return Message(content, reply_to=message)

    return app


def answer(setup: Experiment, content: RecordDict, context: Context) -> Returned:
    """Run a task and return its outcome, which the server checks.

    Raises:
        RunError: If the task is from another version of archgraph or for another client, or if the
            node has lost the private state of earlier rounds.
    """
    _agree(content, context)
    task, number, private, confirmed = read_task(content, _trusted(setup))
    before = _confirmed(context, confirmed) if private is None else private
    work = ClientWork(setup)
    try:
        outcome = work.outcome(Assignment(number, task, before))
        if private is None:  # the server never sees the private state, so the node checks it
            work.check(task, outcome)
    except RejectedUpdate as error:
        return Returned(refused=reason(error))
    after = private_part(task, outcome, before)
    state = {name: t for name, t in outcome.state.items() if name not in task.private}
    if private is not None:
        both = {**state, **after.state}
        return Returned(dataclasses.replace(outcome, state=both, keep=after.keep))
    context.state[PENDING] = as_record(after.flat())
    context.state[f"{PENDING}-round"] = ConfigRecord({"round": number})
    return Returned(dataclasses.replace(outcome, state=state, keep={}))


def client_of(configuration: Mapping[str, Json]) -> int:
    """Return the number of a node's client from the configuration; -1 if it is not set.

    >>> client_of({"partition-id": 3}), client_of({})
    (3, -1)
    """
    client = configuration.get(PARTITION, -1)
    return client if isinstance(client, int) else -1


def _agree(content: RecordDict, context: Context) -> None:
    said = content["task"]
    client = client_of(context.node_config)
    if said["format"] != FORMAT:
        raise RunError(
            "server and node use different message formats",
            found=said["format"],
            expected=FORMAT,
            hint="install the same archgraph on the server and on its nodes",
        )
    if said["client"] != client:
        raise RunError("the task is for another client", found=said["client"], expected=client)


def _trusted(setup: Experiment) -> Trusted:
    """Return the modules whose programs the node may run: that of its own strategy."""
    return frozenset({type(setup.strategy).__module__})


def _confirmed(context: Context, confirmed: int) -> ClientState:
    """Return the client's private state after the last update that the server accepted.

    Raises:
        RunError: If the node does not have this state.
    """
    state = context.state
    pending = round_of(context, PENDING)
    # Earlier, the server could have rejected the update, or crashed before it recorded the round.
    if pending == confirmed and pending >= 0:
        state[KEPT], state[f"{KEPT}-round"] = state[PENDING], state[f"{PENDING}-round"]
    last = round_of(context, KEPT)
    if confirmed < 0:
        return ClientState()
    if last != confirmed:
        raise RunError(
            "the node has lost the private state of its client",
            found="none" if last < 0 else f"that of round {last}",
            expected=f"that of round {confirmed}",
            hint="start a new run, or resume this one on the nodes that it ran on",
        )
    return ClientState.from_flat(of_record(state[KEPT]))
