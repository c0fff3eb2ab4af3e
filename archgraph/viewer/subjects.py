"""What a page shows of files and folders: models, families and runs, and weights of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archgraph.engine.address import Address
from archgraph.reports.runs import read_run
from archgraph.states import Rewritten, State
from archgraph.viewer.show import Subject


def subject_at(address: Address) -> Subject:
    """Return what a page shows of an address: a run, a family, a model, or one model of several."""
    if address.member is not None:
        graph = address.graph().replace(name=f"{address.path.resolve().stem}:{address.member}")
        # With its transfer the page shows which positions of the global model it has.
        return graph if address.transfer is None else Rewritten(graph, address.transfer)
    if address.is_run:
        return read_run(address.path)
    return address.family or address.graph()


def with_weights(
    subjects: Sequence[Subject],
    addressed: Sequence[tuple[Address, Path | None]],
    data_root: Path | None = None,
) -> tuple[Any, dict[str, State]]:
    """Return what a page shows by the names of its weights, and these weights.

    Args:
        subjects: What it shows.
        addressed: Where each is, and a file of its weights, or None for the model's own.
        data_root: Folder of the data of runs.
    """
    (first, file), *others = addressed
    if first.is_run and first.member is None and not others:
        models = first.models(file, data_root=data_root)
        return subjects[0], {name: state for name, (_, state) in models.items()}
    texts = [str(address) for address, _ in addressed]
    # One file with several states stands there as often.
    names = [f"{text} ({i + 1})" if text in texts[:i] else text for i, text in enumerate(texts)]
    weights = (address.model(file, data_root=data_root)[1] for address, file in addressed)
    return dict(zip(names, subjects, strict=True)), dict(zip(names, weights, strict=True))
