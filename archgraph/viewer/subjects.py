"""Read the subject of a page (a model, a family or a run) from a file or folder."""

from __future__ import annotations

from archgraph.engine.address import Address
from archgraph.reports.runs import read_run
from archgraph.states import Rewritten
from archgraph.viewer.show import Subject


def subject_at(address: Address) -> Subject:
    """Return the run, family or model in a file or folder, or one model of a family or run."""
    if address.member is not None:
        graph = address.graph().replace(name=f"{address.path.resolve().stem}:{address.member}")
        # From the transfer, the page shows which channels of the global model it has.
        return graph if address.transfer is None else Rewritten(graph, address.transfer)
    if address.is_run:
        return read_run(address.path)
    return address.family or address.graph()
