"""The YAML of families: a global model, and the rewrites that derive the clients' models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Count, Mistake, Name, Natural, Place, Version
from archgraph.language.document import Document, FromFile
from archgraph.language.local import LocalOptions
from archgraph.language.model import CallableName
from archgraph.language.yaml import read_document
from archgraph.plain import Json
from archgraph.rewrites.registry import rewrite_rows

# A file relative to this one, or an inline model.
ModelSource = str | dict[str, Json]

PythonRewrites = Annotated[
    dict[CallableName, Json],
    Field(
        description="your own rewrites, package.module:function → true for the defaults, options "
        "by name, or the argument after the graph; applied before train_only",
        examples=[{"mine:prune": 0.5}],
    ),
]

# Its fields are created from the registry at run time, so a type checker does not see them.
if TYPE_CHECKING:
    import torch

    class Rewrites(Base):
        """The rewrites of an architecture, one key per rewrite of the registry."""

        python: PythonRewrites = {}  # noqa: RUF012 - a field's default

        def __init__(self, **rewrites: object) -> None: ...

else:
    Rewrites = pydantic.create_model(
        "Rewrites",
        __base__=Base,
        __doc__="The rewrites of an architecture, which are applied in the order of the keys.",
        **{
            name: (row.value_type, Field(default=None, description=row.help))
            for name, row in rewrite_rows().items()
        },
        python=(PythonRewrites, Field(default={})),
    )


class _Client(Base):
    name: Name = Field(description="name of this kind of client, by which other keys refer to it")
    count: Count = Field(default=1, description="number of clients of this kind")
    model: ModelSource | None = Field(
        default=None,
        description="a model for these clients, whose layers are matched to layers of the "
        "global model; default: the global model",
    )
    choose: dict[str, Natural] | None = Field(
        default=None,
        description="values for `choices` of the family's model; {}: the values that the "
        "model file sets",
    )
    owners: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="for data in which every example has an owner: the names of the owners, one "
        "for each of these clients, who gets the examples of this owner; default: owners are "
        "assigned to clients in the order of the data",
    )
    local: LocalOptions | None = Field(
        default=None,
        description="options of local training for these clients; each replaces the option of "
        "the run's `local`; default: none",
        examples=[{"lr": 0.01, "epochs": 1}],
    )

    @property
    def number(self) -> int:
        """Number of clients of this kind."""
        return self.count if self.owners is None else len(self.owners)


class MemberSpec(Rewrites, _Client):
    """One kind of client, and how its architecture is derived from the global model."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> MemberSpec:
        if self.model is not None and self.choose is not None:
            raise Mistake("has both a model and choices", place=("choose",))
        # 1 is the default: files that name owners usually omit `count`.
        if self.owners is not None and self.count not in (1, len(self.owners)):
            numbers = f"{len(self.owners)} names, count: {self.count}"
            raise Mistake("counts other clients than it names", place=("owners",), found=numbers)
        return self


class FamilySpec(FromFile):
    """A global model and the architectures of its clients."""

    archgraph: Version = 1
    name: str = Field(default="", description="name that tables and pages show")
    model: Literal["join"] | ModelSource | None = Field(
        default=None,
        description="the global model: a file, or an inline model. join: the smallest "
        "architecture that contains every client's model. Default: there is no global model. "
        "With join, or without a global model, every kind of client needs its own model",
    )
    choose: dict[str, Natural] = Field(
        default={},
        description="values for `choices` of the global model; default of each: the largest "
        "value that any client chooses, so that the global model contains all clients",
    )
    change: Rewrites = Field(
        default=Rewrites(),
        description="rewrites that are applied to the global model before those of the "
        "clients, also if a client sets `choose`",
    )
    clients: Annotated[tuple[MemberSpec, ...], Field(min_length=1)] = Field(
        description="kinds of clients; all clients of a kind have the same architecture"
    )

    # Not a field: a file cannot contain weights, and comparisons of families ignore them.
    _weights: dict[Place, dict[str, torch.Tensor]] = pydantic.PrivateAttr(default_factory=dict)

    def summary(self) -> str:
        """Return a summary: the global model, and the name and number of each kind of client.

        >>> kind = MemberSpec(name="small", count=2, take=0.5)
        >>> FamilySpec(model="models/net.yaml", clients=(kind,)).summary()
        'of net.yaml: 2 small'
        """
        of = f" of {Path(self.model).name}" if isinstance(self.model, str) else ""
        kinds = ", ".join(f"{kind.number} {kind.name}" for kind in self.clients)
        return f"{self.name}{of}: {kinds}".strip()

    @property
    def weights(self) -> dict[Place, dict[str, torch.Tensor]]:
        """Weights of models that were passed as Python objects.

        Dict from the key of a model, such as ``("clients", 0, "model")``, to its state dict.
        """
        return self._weights

    def sources(self) -> Iterator[Document]:
        """Yield the family's models, both those in separate files and those in the family file."""
        models: list[tuple[Place, ModelSource | None]] = [(("model",), self.model)]
        models += [(("clients", i, "model"), member.model) for i, member in enumerate(self.clients)]
        for loc, model in models:
            if isinstance(model, str) and model != "join":
                yield read_document(model)
            elif isinstance(model, dict):
                yield self.document_of(loc).sub(loc)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> FamilySpec:
        # A join is built from the clients' models, so there is no model to choose from or to
        # change.
        absent = self.model in (None, "join")
        if absent and (self.choose or self.change != Rewrites()):
            key = "choose" if self.choose else "change"
            raise Mistake("belongs to a global model, but the family has none", place=(key,))
        names: dict[str, int] = {}
        for index, member in enumerate(self.clients):
            loc: Place = ("clients", index)
            if absent and member.model is None:
                why = "has no global one" if self.model is None else "is their join"
                raise Mistake(
                    "has no model",
                    place=loc,
                    found=member.name,
                    expected=f"its own model, since the family {why}",
                )
            if self.owners and member.owners is None:
                raise Mistake(
                    "lacks `owners`, which other clients have", place=loc, found=member.name
                )
            # `shares`, `also` and metrics refer to a kind of client by its name.
            if member.name in names:
                message, loc = "has two kinds of client with the same name", (*loc, "name")
                other: Place = ("clients", names[member.name], "name")
                raise Mistake(
                    message,
                    place=loc,
                    other=other,
                    found=repr(member.name),
                    hint="give each its own name; for more clients of one kind write count: 2",
                )
            names[member.name] = index
        return self

    def rewrites(self) -> Iterator[Rewrites]:
        """Yield the rewrites of the global model, then the rewrites of each kind of client."""
        yield from (self.change, *self.clients)

    @property
    def owners(self) -> tuple[str, ...]:
        """Names of the data owners whose data the clients get, in the order of the clients."""
        return tuple(name for member in self.clients for name in member.owners or ())
