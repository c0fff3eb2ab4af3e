"""Families of architectures: a global graph, and how each kind of client's comes from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archgraph.align import align
from archgraph.analysis.axes import Axis
from archgraph.errors import ArchGraphError
from archgraph.ir import ArchGraph
from archgraph.rewrite.depth import shallow, skip
from archgraph.rewrite.insert import initialised
from archgraph.rewrite.width import take
from archgraph.spec import FamilySpec, load_model
from archgraph.spec.document import Document, Place, read_document
from archgraph.spec.family import MemberSpec
from archgraph.spec.lower import written_choices
from archgraph.spec.model import AuthoredModel
from archgraph.transfer import Rewritten, State, Transfer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Member:
    """One kind of client.

    Attributes:
        name: Of the kind.
        count: Number of clients of this kind.
        graph: Their architecture.
        transfer: From the global state to theirs; it initialises all where there is none.
        state: Its initial weights where its own model brings them, else None.
    """

    name: str
    count: int
    graph: ArchGraph
    transfer: Transfer
    state: Mapping[str, torch.Tensor] | None = None


@dataclass(frozen=True)
class Family:
    """A global architecture and the clients' ones.

    Attributes:
        graph: The global architecture; empty where clients have nothing but their own models.
        state: Its initial weights where the model brings its own (a Python model), else None.
        clients: Kinds of client, in the order of the file.
    """

    graph: ArchGraph
    state: Mapping[str, torch.Tensor] | None
    clients: tuple[Member, ...]

    @property
    def has_global(self) -> bool:
        """Whether there is a global architecture."""
        return bool(self.graph.nodes)


_NOTHING = ArchGraph(inputs=(), params=(), nodes=(), outputs=())


def _take(graph: ArchGraph, member: MemberSpec) -> Rewritten:
    kept: dict[str | Axis, float | int | Sequence[int]] = dict(member.take.items())
    return take(graph, kept)


# What a member does to the architecture that it starts from, in this order.
_CHAIN: tuple[tuple[str, Callable[[ArchGraph, MemberSpec], Rewritten | None]], ...] = (
    ("skip", lambda g, m: skip(g, m.skip) if m.skip else None),
    ("shallow", lambda g, m: shallow(g, m.shallow) if m.shallow else None),
    ("width", lambda g, m: take(g, m.width) if m.width is not None else None),
    ("take", lambda g, m: _take(g, m) if m.take else None),
)


def resolve(spec: FamilySpec) -> Family:
    """The graphs and transfers of a family.

    Args:
        spec: As :func:`archgraph.spec.load_family` reads it.

    Raises:
        SpecError: If a model file cannot be understood.
        RewriteError: If a rewrite cannot be applied.
    """
    return _Resolver(spec).family()


class _Resolver:
    def __init__(self, spec: FamilySpec) -> None:
        self.spec = spec
        data = spec.model_dump(by_alias=True, exclude_unset=True)
        self.document = spec._document or Document("family", data, {})
        self.read: dict[str, Document] = {}

    def family(self) -> Family:
        model = None if self.spec.model is None else self.source(self.spec.model, ("model",))
        graph, state = (_NOTHING, None) if model is None else load_model(model, self.choices(model))
        made: dict[str, tuple[Rewritten, State | None]] = {}
        members = []
        for index, member in enumerate(self.spec.clients):
            place: Place = ("clients", index)
            # Equal recipes give equal architectures: align and rewrite once.
            recipe = repr(member.model_copy(update={"name": "", "count": 1}))
            if recipe not in made:
                made[recipe] = self.member(member, graph, model, place)
            rewritten, weights = made[recipe]
            members.append(
                Member(member.name, member.count, rewritten.graph, rewritten.transfer, weights)
            )
        return Family(graph, state, tuple(members))

    def member(
        self, member: MemberSpec, graph: ArchGraph, model: Document | None, place: Place
    ) -> tuple[Rewritten, State | None]:
        """A member's architecture from the global one, and the weights that its model brings."""
        start, own = self.start(member, model, place)
        if start is None:
            lead = Rewritten.identity(graph)
        elif model is None:
            lead = initialised(graph, start)
        else:
            lead = Rewritten(start, self.located(place, functools.partial(align, start, graph)))
        change = self.chain(member, lead.graph, place)
        return lead >> change, None if own is None else change.transfer.pull(own)

    def source(self, source: str | dict[str, Any], place: Place) -> Document:
        """A model file, or a model written in place."""
        if isinstance(source, str):
            if source not in self.read:
                self.read[source] = read_document(source)
            return self.read[source]
        return self.document.sub(place)

    def choices(self, model: Document) -> dict[str, int]:
        """Choices of the global model: those given, else the largest that any client makes."""
        choosers = [m.choose for m in self.spec.clients if m.choose is not None]
        if not choosers and not self.spec.choose:
            return {}
        written = written_choices(model, model.validate(AuthoredModel))
        keys = dict.fromkeys(k for c in choosers for k in c)
        largest = {k: max(c.get(k, written.get(k, 0)) for c in choosers) for k in keys}
        return {**largest, **self.spec.choose}

    def start(
        self, member: MemberSpec, model: Document | None, place: Place
    ) -> tuple[ArchGraph | None, State | None]:
        """The architecture that a member starts from, None: the global one; weights it brings."""
        if member.model is not None:
            return load_model(self.source(member.model, (*place, "model")))
        if member.choose is None or model is None:
            return None, None
        return self.located((*place, "choose"), lambda: load_model(model, member.choose)[0]), None

    def chain(self, member: MemberSpec, graph: ArchGraph, place: Place) -> Rewritten:
        """A member's rewrites, one after the other."""
        done = Rewritten.identity(graph)
        for key, rewrite in _CHAIN:
            step = self.located((*place, key), functools.partial(rewrite, done.graph, member))
            if step is not None:
                done = done >> step
        return done

    def located(self, place: Place, make: Callable[[], Any]) -> Any:
        """What ``make`` gives; its errors point at the line of the family that asked for it."""
        try:
            return make()
        except ArchGraphError as error:
            where = self.document.where(place)
            error.where = f"{where}: {error.where}" if error.where else where
            raise
