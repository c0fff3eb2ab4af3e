"""Families of architectures: a global graph, and the architectures derived from it for clients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archgraph.analysis.cost import cost
from archgraph.analysis.roles import frozen
from archgraph.errors import ArchGraphError, RewriteError, SpecError
from archgraph.federation.state import GLOBAL
from archgraph.federation.world import Tier
from archgraph.fields import Place
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed
from archgraph.language import FamilySpec, load_model
from archgraph.language.consent import allowed
from archgraph.language.document import Document
from archgraph.language.family import MemberSpec, Rewrites
from archgraph.language.lowering import written_choices
from archgraph.language.model import AuthoredModel
from archgraph.language.python import constructor
from archgraph.language.rewriting import rewritten
from archgraph.language.yaml import read_document
from archgraph.notebook import framed, page_text
from archgraph.plain import Json
from archgraph.relate.align import align
from archgraph.relate.join import join
from archgraph.rewrites.insert import initialised
from archgraph.states import Rewritten, State
from archgraph.tables import Table, count


@dataclass(frozen=True, repr=False)
class Family:
    """A global architecture, and the architectures of the clients.

    Attributes:
        graph: The global architecture. If there is no global model, it is an empty graph.
        state: Initial weights of the global model, if it comes from Python code or a file with
            weights. Otherwise None.
        clients: The tiers (architectures of clients), in the order of the file.
        name: Name of the family in its file; may be empty.
    """

    graph: ArchGraph
    state: State | None
    clients: tuple[Tier, ...]
    name: str = ""

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind.count} {kind.name}" for kind in self.clients)
        return f"<Family {self.graph.name or 'without a global model'}: {kinds}>"

    def _repr_html_(self) -> str:
        return framed(page_text("page", self), self.table()._repr_html_(), self.name or "family")

    @property
    def models(self) -> Mapping[str, ArchGraph]:
        """Dict from name to architecture, with the tiers and, if it exists, ``global``."""
        clients = {kind.name: kind.graph for kind in self.clients}
        return {GLOBAL: self.graph, **clients} if self.has_global else clients

    def table(self) -> Table:
        """Return a table with the number of clients, parameters and MACs of each architecture."""
        counts = {kind.name: str(kind.count) for kind in self.clients}
        rows = tuple((k, counts.get(k, ""), *sizes(graph)) for k, graph in self.models.items())
        columns = ("model", "clients", "parameters", "MACs")
        return Table("Family", columns, rows, frozenset({1, 2, 3}))

    @property
    def has_global(self) -> bool:
        """Whether there is a global architecture."""
        return bool(self.graph.nodes)


def sizes(graph: ArchGraph) -> tuple[str, str]:
    """Render parameters and MACs of an architecture for a table."""
    spent = cost(graph)
    return count(spent.parameters), count(spent.macs)


_NOTHING = ArchGraph(inputs=(), params=(), nodes=(), outputs=())


def resolve(spec: FamilySpec, *, python: bool = False) -> Family:
    """Build the graphs of a family, and the transfers (mappings of weights) between them.

    Args:
        spec: A family read by :func:`archgraph.language.load_family`.
        python: If True, allow running the Python code that the models refer to.

    Raises:
        SpecError: If a model file is invalid, or refers to Python code and ``python`` is False.
        RewriteError: If a rewrite cannot be applied.
    """
    with allowed(python):
        return _Resolver(spec).family()


def _trains_with(member: Rewritten, graph: ArchGraph) -> None:
    """Raise an error if a client trains a parameter that the global model freezes.

    Raises:
        RewriteError: Names the first such parameters.
    """
    still, entries = frozen(graph), member.transfer.entries
    lost = [
        p.name
        for p in member.graph.params
        if p.trainable and p.name in entries and entries[p.name].source in still
    ]
    if lost:
        raise RewriteError(
            "trains parameters that the global model freezes",
            found=listed(lost),
            expected="parameters that the global model trains",
            hint="the server would ignore these updates: add them to the family's "
            "change.train_only, or remove them from this client's train_only",
        )


class _Resolver:
    def __init__(self, spec: FamilySpec) -> None:
        self.spec = spec
        self.read: dict[str, Document] = {}
        self.models: dict[str, tuple[ArchGraph, State | None]] = {}  # of members, by source

    def family(self) -> Family:
        source, model = self.spec.model, None
        graph: ArchGraph = _NOTHING
        state: State | None = None
        if source == "join":
            with self.located(("model",)):
                graph = self.joined()
        elif source is not None:
            model = self.source(source, ("model",))
            global_graph, stored = load_model(model, self.choices(model))
            graph, state = self.changed(
                global_graph, self.spec.weights.get(("model",), stored), model
            )
        resolved: dict[str, tuple[Rewritten, State | None]] = {}
        tiers = []
        for index, member in enumerate(self.spec.clients):
            if member.name == GLOBAL:
                with self.located(("clients", index)):
                    raise SpecError(f"the name {GLOBAL} stands for the global model")
            # Equal recipes yield equal architectures: align and rewrite once.
            recipe = repr(member.model_dump(exclude={"name", "count", "owners", "local"}))
            if ("clients", index, "model") in self.spec.weights:
                recipe = f"{index}: {recipe}"  # passed in Python: not part of the recipe
            if recipe not in resolved:
                resolved[recipe] = self.member(member, graph, model, ("clients", index))
                with self.located(("clients", index)):
                    _trains_with(resolved[recipe][0], graph)
            part, weights = resolved[recipe]
            tiers.append(
                Tier(
                    name=member.name,
                    graph=part.graph,
                    transfer=part.transfer,
                    source=weights or {},
                    own=weights is not None,
                    count=member.number,
                )
            )
        return Family(graph, state, tuple(tiers), self.spec.name)

    def member(
        self, member: MemberSpec, graph: ArchGraph, model: Document | None, at: Place
    ) -> tuple[Rewritten, State | None]:
        """Return a member's architecture, made from the global one, and its model's own weights."""
        start, weights = self.start(member, model, at)
        if start is None:
            lead = Rewritten.identity(graph)
        elif self.spec.model is None:
            lead = initialised(graph, start)  # no global model to take weights from
        else:
            with self.located(at):
                lead = Rewritten(start, align(start, graph).transfer)
        if member.model is not None:
            model = self.source(member.model, (*at, "model"))
        change = self.chain(member, lead.graph, at, model)
        return lead >> change, None if weights is None else change.transfer.pull(weights)

    def joined(self) -> ArchGraph:
        """Return the smallest architecture that contains every member's model."""
        starts = (
            self.start(member, None, ("clients", index))[0]
            for index, member in enumerate(self.spec.clients)
        )
        return join(start for start in starts if start is not None).graph

    def source(self, source: str | dict[str, Json], at: Place) -> Document:
        """Read a model file, or return an inline model."""
        if not isinstance(source, str):
            return self.spec.document_of(at).sub(at)
        if source not in self.read:
            self.read[source] = read_document(source)
        return self.read[source]

    def choices(self, model: Document) -> dict[str, int]:
        """Return the global model's choices: the file's, else the largest that a client makes."""
        if all(m.choose is None for m in self.spec.clients) and not self.spec.choose:
            return {}
        # A client without choices runs the written ones, or larger ones.
        choosers = [m.choose or {} for m in self.spec.clients if m.model is None]
        written = written_choices(model, model.validate(AuthoredModel))
        keys = dict.fromkeys(k for c in choosers for k in c)
        largest = {k: max(c.get(k, written.get(k, 0)) for c in choosers) for k in keys}
        return {**largest, **self.spec.choose}

    def start(
        self, member: MemberSpec, model: Document | None, at: Place
    ) -> tuple[ArchGraph | None, State | None]:
        """Return a member's first architecture, or None for the global one, and its weights."""
        if member.model is not None:
            source = repr(member.model)
            if source not in self.models:
                self.models[source] = load_model(self.source(member.model, (*at, "model")))
            start, stored = self.models[source]
            return start, self.spec.weights.get((*at, "model"), stored)
        if member.choose is None or model is None:
            return None, None
        with self.located((*at, "choose")):
            chosen, _ = load_model(model, member.choose)
        return self.changed(chosen, None, model)

    def changed(
        self, graph: ArchGraph, state: State | None, model: Document
    ) -> tuple[ArchGraph, State | None]:
        """Apply the family's change of its model."""
        change = self.chain(self.spec.change, graph, ("change",), model)
        return change.graph, None if state is None else change.transfer.pull(state)

    def chain(
        self, rewrites: Rewrites, graph: ArchGraph, at: Place, model: Document | None
    ) -> Rewritten:
        """Apply rewrites to a model's graph; errors point at their keys."""
        document = self.spec.document_of(at)
        return rewritten(
            graph,
            rewrites,
            where=lambda key: document.where((*at, key)),
            like=None if model is None else functools.partial(constructor, model),
        )

    @contextlib.contextmanager
    def located(self, at: Place) -> Iterator[None]:
        """Point errors at the line of the family that asked for it."""
        try:
            yield
        except ArchGraphError as error:
            where = self.spec.document_of(at).where(at)
            error.where = ": ".join(filter(None, (where, error.where)))
            raise
