"""Who takes part in a run, as its folder says it: `clients.json`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from archgraph.engine.experiment import Experiment
from archgraph.errors import RunError

FILE = "clients.json"


class ClientFacts(BaseModel):
    """A client of a run.

    Attributes:
        client: Its number.
        tier: Name of the tier that the family gives it.
        name: What the data calls it; empty where the data is not divided by client.
        examples: Examples that it trains on.
        classes: How many of them are of each class; empty where examples have no single class.
        malicious: Whether it attacks.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    client: int
    tier: str
    name: str = ""
    examples: int
    classes: list[int] = []
    malicious: bool = False

    @property
    def label(self) -> str:
        """How it is called beside other clients.

        >>> ClientFacts(client=3, tier="small", examples=9).label
        'client 3, small'
        """
        return f"{self.name or f'client {self.client}'}, {self.tier}"


_FILE = TypeAdapter(list[ClientFacts])


def clients_file(experiment: Experiment) -> str:
    """The content of `clients.json`."""
    world = experiment.world
    names = list(experiment.data.owners) or [""] * len(world.clients)
    rows = [
        ClientFacts(
            client=client.id,
            tier=client.name,
            name=str(name),
            examples=client.examples,
            classes=list(client.histogram) if world.learning.per_example else [],
            malicious=client.id in experiment.malicious,
        ).model_dump()
        for client, name in zip(world.clients, names, strict=True)
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def read_clients(folder: Path) -> tuple[ClientFacts, ...]:
    """The clients of a run folder; none where it is from before they were recorded.

    Raises:
        RunError: If the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        return tuple(_FILE.validate_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        told = str(error).partition(" [type=")[0].replace("\n", " ")
        raise RunError("cannot tell who took part", where=str(path), found=told) from error
