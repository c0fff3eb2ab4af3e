"""Read the subject of a page from a file or folder: a model, a family or a run."""

from __future__ import annotations

from archgraph.engine.address import Address
from archgraph.reports.runs import read_run
from archgraph.states import Rewritten
from archgraph.viewer.show import Subject


def subject_at(address: Address) -> Subject:
    """Return the subject at an address: a run, a family, a model, or one model of several."""
    if address.member is not None:
        graph = address.graph().replace(name=f"{address.path.resolve().stem}:{address.member}")
        # With the transfer, the page shows its positions in the global model.
        return graph if address.transfer is None else Rewritten(graph, address.transfer)
    if address.is_run:
        return read_run(address.path)
    return address.family or address.graph()
