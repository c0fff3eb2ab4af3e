"""Tasks and what comes back as Flower's records: text for architectures, arrays for weights.

What a node receives or returns is data from another machine: it is read into plain values and
tensors, and nothing of it is executed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from archgraph.errors import RejectedUpdate
from archgraph.federation import Model, Outcome, Result, State, Task
from archgraph.flower.programs import Trusted, as_plain, as_program
from archgraph.graph.ir import ArchGraph
from archgraph.language import flat
from archgraph.language.yaml import parse_document
from archgraph.record.client import KeptByClient

# Version of the messages; server and nodes must agree.
FORMAT = 1

# Types that NumPy lacks travel as whole numbers of the same width, under their own name.
_CARRIERS = {torch.bfloat16: torch.int16}
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _CARRIERS}


def arrays(state: State) -> ArrayRecord:
    """Tensors as a record.

    Example:
        >>> bits = tensors(arrays({"w": torch.ones(2, dtype=torch.bfloat16)}))
        >>> bits["w"]
        tensor([1., 1.], dtype=torch.bfloat16)
    """
    return ArrayRecord({name: _array(tensor) for name, tensor in state.items()})


def _array(tensor: Tensor) -> Array:
    plain = tensor.detach().cpu().contiguous()
    carrier = _CARRIERS.get(plain.dtype)
    if carrier is None:
        return Array(plain.numpy())
    carried = Array(plain.view(carrier).numpy())
    name = str(plain.dtype).removeprefix("torch.")
    return Array(name, carried.shape, carried.stype, carried.data)


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of a record, in memory of their own.

    Raises:
        RejectedUpdate: If an entry is not an array of numbers; names it.
    """
    read: dict[str, Tensor] = {}
    for name, array in record.items():
        try:
            tensor = torch.from_numpy(np.array(array.numpy()))
            dtype = _BY_NAME.get(array.dtype)
            read[name] = tensor if dtype is None else tensor.view(dtype)
        except Exception as error:  # whatever its bytes are
            raise RejectedUpdate(
                "cannot be read as an array", where=name, found=f"{type(error).__name__}: {error}"
            ) from error
    return read


def task_record(task: Task, round: int, kept: KeptByClient | None, confirmed: int) -> RecordDict:
    """What a node is sent.

    Args:
        task: What its client is to do.
        round: Counted from 1; 0 for the survey.
        kept: What the client kept, where the server holds it; None: the node does.
        confirmed: The last round in which the server took an update of the client; -1: none.
    """
    said = {
        "format": FORMAT,
        "client": task.client,
        "round": round,
        "confirmed": confirmed,
        "tier": task.tier,
        "graph": _text(task.graph),
        "program": json.dumps(as_plain(task.program)),
        "kept": sorted(task.kept),
        "values": json.dumps(dict(task.values)),
        "others": list(task.others),
        "graphs": [_text(model.graph) for model in task.others.values()],
    }
    return RecordDict(
        {
            "task": ConfigRecord(said),
            **_states(task.state, task.extras, {k: m.state for k, m in task.others.items()}),
            **({} if kept is None else {"private": arrays(kept.flat())}),
        }
    )


def read_task(content: RecordDict, trusted: Trusted) -> tuple[Task, int, KeptByClient | None, int]:
    """What :func:`task_record` was made of.

    Raises:
        RunError: If it is of another version of archgraph, or names a program that is not trusted.
    """
    said: Mapping[str, Any] = content["task"]
    state, extras, others = _read_states(content, len(said["others"]))
    graphs = map(_graph, said["graphs"])
    task = Task(
        client=int(said["client"]),
        graph=_graph(said["graph"]),
        state=state,
        program=as_program(json.loads(said["program"]), trusted),
        kept=frozenset(said["kept"]),
        others=dict(zip(said["others"], map(Model, graphs, others), strict=True)),
        extras=extras,
        values=json.loads(said["values"]),
        tier=str(said["tier"]),
    )
    private = content.get("private")
    kept = KeptByClient.from_flat(tensors(private)) if private is not None else None
    return task, int(said["round"]), kept, int(said["confirmed"])


def result_record(result: Result, kept: KeptByClient | None) -> RecordDict:
    """What a node returns of a client's work.

    Args:
        result: What the server may see.
        kept: What the client keeps, where the server holds it; None: the node does.
    """
    said = {"client": result.client, "others": list(result.others), "reason": "", "refused": False}
    return RecordDict(
        {
            "result": ConfigRecord(said),
            "metrics": MetricRecord(dict(result.metrics)),
            **_states(result.state, result.extras, result.others),
            **({} if kept is None else {"private": arrays(kept.flat())}),
        }
    )


def loss_record(client: int, reason: str, *, refused: bool) -> RecordDict:
    """What a node returns where there is no result: why, and whether its own checks refused it."""
    said = {"client": client, "others": [], "reason": reason, "refused": refused}
    return RecordDict({"result": ConfigRecord(said)})


def read_outcome(content: RecordDict) -> Outcome:
    """The outcome in a reply, unchecked but for its form.

    Raises:
        RejectedUpdate: If an entry is not an array of numbers.
    """
    others = [str(name) for name in content["result"]["others"]]
    state, extras, states = _read_states(content, len(others))
    private = content.get("private")
    kept = KeptByClient.from_flat(tensors(private)) if private is not None else KeptByClient()
    return Outcome(
        state={**state, **kept.state},
        keep=kept.keep,
        others=dict(zip(others, states, strict=True)),
        extras=extras,
        metrics=dict(content["metrics"]),
    )


def _states(state: State, extras: State, others: Mapping[str, State]) -> dict[str, ArrayRecord]:
    """Records of all tensors; a model's name may be anything, so its record has a number."""
    further = {f"others-{i}": arrays(own) for i, own in enumerate(others.values())}
    return {"state": arrays(state), "extras": arrays(extras), **further}


def _read_states(
    content: RecordDict, others: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[dict[str, Tensor]]]:
    further = [tensors(content[f"others-{i}"]) for i in range(others)]
    return tensors(content["state"]), tensors(content["extras"]), further


# A run has few architectures, and sends each of them often.
@functools.lru_cache(maxsize=64)
def _text(graph: ArchGraph) -> str:
    return flat.dump(graph)


@functools.lru_cache(maxsize=64)
def _graph(text: str) -> ArchGraph:
    return flat.read_flat(parse_document(text, "the server's message"))
