"""A client on Flower: does the tasks that a server sends to its node.

What the client keeps from round to round is held by the server (simulation), or never leaves the
node's context (deployment). There the update of a round stays pending until the server says, with
the next task, which was the last one that it took: so a round that is repeated, or refused, leaves
no trace in what is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from archgraph.engine.clientwork import ClientWork
from archgraph.engine.experiment import Experiment
from archgraph.engine.turn import Turn
from archgraph.errors import RunError
from archgraph.flower.keeping import KEPT, PENDING, restore, round_of, store
from archgraph.flower.programs import Trusted
from archgraph.flower.records import (
    FORMAT,
    loss_record,
    packed,
    read_task,
    result_record,
    unpacked,
)
from archgraph.processes.reasons import reason
from archgraph.record.client import KeptByClient
from archgraph.record.progress import Bars

PARTITION = "partition-id"


def client_app(
    experiment: Callable[[Context], Experiment],
    file: Callable[[Context, Experiment], Path | None] = lambda context, setup: None,
) -> ClientApp:
    """Return the ClientApp of an experiment.

    A node's configuration says which client of the experiment it is: ``partition-id``.

    Args:
        experiment: The experiment with the client's data, from the context of its node.
        file: Returns the path at which the node stores what its client keeps, or None to store it
            in the context alone. Default: in the context alone.
    """
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        said = {"client": _client(context), "format": FORMAT}
        return Message(RecordDict({"who": ConfigRecord(said)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            setup = experiment(context)
            held = file(context, setup)
            if held is not None:
                restore(context, held)
            content = answer(setup, message.content, context)
            if held is not None:
                store(context, held)
        except Exception as error:  # the server records it, and the round goes on
            content = loss_record(_client(context), reason(error), refused=False)
        return Message(content, reply_to=message)

    return app


def answer(setup: Experiment, content: RecordDict, context: Context) -> RecordDict:
    """Do a task: what the node returns.

    Raises:
        RunError: If the task is of another version, for another client, or follows rounds of which
            the node has lost what it kept.
    """
    _agree(content, context)
    task, number, private, confirmed = read_task(content, _trusted(setup))
    at_node = private is None
    kept = _confirmed(context, confirmed) if private is None else private
    turn = Turn(ClientWork(_alone(setup)), number, {task.client: kept}, Bars())
    results = [*turn.results([task])]
    if not results:
        lost = (*turn.rejected, *turn.failed)[0]
        return loss_record(task.client, lost["reason"], refused=bool(turn.rejected))
    now = turn.kept[task.client]
    if at_node:
        context.state[PENDING] = packed(now.flat())
        context.state[f"{PENDING}-round"] = ConfigRecord({"round": number})
    return result_record(results[0], None if at_node else now)


def _client(context: Context) -> int:
    return int(context.node_config.get(PARTITION, -1))


def _agree(content: RecordDict, context: Context) -> None:
    said: Any = content["task"]
    if said["format"] != FORMAT:
        raise RunError(
            "the server speaks another version of the messages",
            found=said["format"],
            expected=FORMAT,
            hint="install the same archgraph on the server and its nodes",
        )
    if said["client"] != _client(context):
        raise RunError(
            "the task is for another client", found=said["client"], expected=_client(context)
        )


def _trusted(setup: Experiment) -> Trusted:
    """Modules whose programs the node runs: its own strategy's."""
    return frozenset({type(setup.strategy).__module__})


def _alone(setup: Experiment) -> Experiment:
    """Drop from an experiment what compares clients with one another: the server does that."""
    world = dataclasses.replace(setup.world, aggregate=None)
    return dataclasses.replace(setup, world=world, bound=None)


def _confirmed(context: Context, confirmed: int) -> KeptByClient:
    """Return what the node holds of its client after the last update that the server accepted.

    Raises:
        RunError: If the node does not hold it.
    """
    state = context.state
    pending = round_of(context, PENDING)
    if pending == confirmed and pending >= 0:
        state[KEPT], state[f"{KEPT}-round"] = state[PENDING], state[f"{PENDING}-round"]
    held = round_of(context, KEPT)
    if confirmed < 0:
        return KeptByClient()
    if held != confirmed:
        raise RunError(
            "the node has lost what its client kept",
            found="nothing" if held < 0 else f"that of round {held}",
            expected=f"that of round {confirmed}",
            hint="begin the run anew, or resume it on the nodes that it ran on",
        )
    return KeptByClient.from_flat(unpacked(state[KEPT]))
