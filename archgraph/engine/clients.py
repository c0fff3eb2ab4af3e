"""The clients of a run, as its folder records them in `clients.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from archgraph.engine.experiment import Experiment
from archgraph.errors import RunError
from archgraph.federation import Client
from archgraph.record.lines import brief

FILE = "clients.json"


class ClientFacts(BaseModel):
    """A recorded client of a run: its tier, its name and its numbers of examples.

    A client may train additional models, of other tiers. Each of these is recorded as a client.

    Attributes:
        client: Id of the client.
        tier: Name of the client's tier in the family.
        name: Name of the client in the data; may be empty. An additional model has the name of
            the client that trains it.
        of: For an additional model, the id of the client that trains it; None for a client.
        added: Names of private tensors of the client's model that the global model lacks.
        examples: Number of training examples.
        classes: Number of examples per class; empty if examples do not have a single class.
        malicious: Whether the client attacks, in a simulated attack.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    client: int
    tier: str
    name: str = ""
    examples: int
    classes: list[int] = []
    malicious: bool = False
    of: int | None = None
    added: list[str] = []

    @property
    def label(self) -> str:
        """Label of the client in tables and plots.

        >>> ClientFacts(client=3, tier="small", examples=9).label
        'client 3, small'
        """
        return f"{self.name or f'client {self.client}'}, {self.tier}"


_FILE = TypeAdapter(list[ClientFacts])


def clients_file(experiment: Experiment, added: Mapping[str, list[str]]) -> str:
    """Return the content of `clients.json`.

    Args:
        experiment: The experiment.
        added: Dict from tier to the names of private tensors that the global model lacks.
    """
    world = experiment.world

    def owner(client: Client) -> str:
        return "" if client.of is None else f"client {client.of}"

    names = list(experiment.data.owners)
    counted = world.counted
    rows = [
        ClientFacts(
            client=client.id,
            tier=client.name,
            name=str(names[client.owner]) if names else owner(client),
            examples=client.examples,
            classes=list(client.histogram) if counted and world.learning.per_example else [],
            malicious=client.id in experiment.malicious,
            of=client.of,
            added=added.get(client.name, []),
        ).model_dump(exclude_none=True, exclude=None if client.name in added else {"added"})
        for client in world.clients
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def further(clients: tuple[Client, ...], also: Mapping[str, Sequence[str]]) -> tuple[Client, ...]:
    """Return the clients, followed by one further client per additional model.

    Args:
        clients: The clients of the family.
        also: Dict from tier to other tiers, whose models the tier's clients train in addition to
            their own.

    Example:
        >>> clients = (Client(0, "strong", 9, ()), Client(1, "weak", 5, ()))
        >>> further(clients, {"strong": ["weak"]})[2]
        Client(id=2, name='weak', examples=9, histogram=(), of=0, counted=None)
    """
    # They come after all clients, so that the ids of the clients do not change.
    of = [(client, name) for client in clients for name in also.get(client.name, ())]
    models = (
        dataclasses.replace(client, id=i, name=name, of=client.id)
        for i, (client, name) in enumerate(of, len(clients))
    )
    return (*clients, *models)


def read_clients(folder: Path) -> tuple[ClientFacts, ...]:
    """Read the clients of a run folder. The result is empty for old folders without the file.

    Raises:
        RunError: If the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        return tuple(_FILE.validate_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RunError(
            "cannot tell which clients took part", where=str(path), found=brief(error)
        ) from error
