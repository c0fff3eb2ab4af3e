"""A client on Flower: does the tasks that a server sends to its node.

What the client keeps from round to round is held by the server (simulation), or never leaves the
node's context (deployment). There the update of a round stays pending until the server says, with
the next task, which was the last one that it took: so a round that is repeated, or refused, leaves
no trace in what is kept.
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

    A node's configuration says which client of the experiment it is: ``partition-id``.

    Args:
        experiment: The experiment with the client's data, from the context of its node.
        file: Returns the path at which the node stores what its client keeps, or None to store it
            in the context alone. Default: in the context alone.
        rows: Returns what the server is told of a client's rows, where its node alone has them.
            Default: nothing.
    """
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        # What is wrong here is known before the first round, with its file and line.
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
            # Before the reply leaves: the server may accept an update that a crash would lose here.
            if path is not None:
                store(context, path)
            return came

        # Whatever it dies of is recorded by the server, and the round goes on.
        content = reply_record(client_of(context.node_config), attempted(answered))
        return Message(content, reply_to=message)

    return app


def answer(setup: Experiment, content: RecordDict, context: Context) -> Returned:
    """Do a task and return its outcome, which the server checks.

    Raises:
        RunError: If the task is of another version, for another client, or follows rounds of which
            the node has lost what it kept.
    """
    _agree(content, context)
    task, number, private, confirmed = read_task(content, _trusted(setup))
    before = _confirmed(context, confirmed) if private is None else private
    work = ClientWork(setup)
    try:
        outcome = work.outcome(Assignment(number, task, before))
        if private is None:  # the server never sees what stays here
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
    """Return which client a node is by its configuration; -1 if it does not say.

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
            "server and node use different formats of messages",
            found=said["format"],
            expected=FORMAT,
            hint="install the same archgraph on the server and on its nodes",
        )
    if said["client"] != client:
        raise RunError("the task is for another client", found=said["client"], expected=client)


def _trusted(setup: Experiment) -> Trusted:
    """Modules whose programs the node runs: its own strategy's."""
    return frozenset({type(setup.strategy).__module__})


def _confirmed(context: Context, confirmed: int) -> ClientState:
    """Return what the node holds of its client after the last update that the server accepted.

    Raises:
        RunError: If the node does not hold it.
    """
    state = context.state
    pending = round_of(context, PENDING)
    # Only now: the server may have refused the update, or died before it recorded the round.
    if pending == confirmed and pending >= 0:
        state[KEPT], state[f"{KEPT}-round"] = state[PENDING], state[f"{PENDING}-round"]
    last = round_of(context, KEPT)
    if confirmed < 0:
        return ClientState()
    if last != confirmed:
        raise RunError(
            "the node has lost what its client kept",
            found="nothing" if last < 0 else f"that of round {last}",
            expected=f"that of round {confirmed}",
            hint="begin the run anew, or resume it on the nodes that it ran on",
        )
    return ClientState.from_flat(of_record(state[KEPT]))
