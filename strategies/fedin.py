r"""FedIN: clients share first and last layers, and train the others on each other's features.

Chan, Jiang, Deng, Ngai: *FedIN: Federated Intermediate Layers Learning for Model Heterogeneity*
(Algorithm 1, Eqs. 4-16, ablations of Fig. 7).

=============================  ================================================================
symbol                         here
=============================  ================================================================
``w_e``, ``w_c``               group ``shared`` of the server state, with the first tier's names
``w_in,k``                     ``Cut.middle``: parameters that are private to client k
``(s_in^k, s_out^k)``          ``Result.extras``: ``in/0``, ``out/0``, one row per example
server dataset                 groups ``store/k``, with at most ``capacity`` rows each
``S``                          group ``sample``, from ``begin`` to ``receive``
``l_local``, ``l_IN``          the objective (Eq. 6); :meth:`Chain.distance` (Eq. 10)
``G_local``, ``G_IN``          gradients of both losses at ``w_in,k``
``Z``                          :func:`summed` (Eq. 16), :func:`projected` (Eq. 15)
``λ``                          ``multiplier``
=============================  ================================================================
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph import federation as fl

Step = Literal["sum", "projection", "sequential"]
Place = str | Mapping[str, str] | None
PARTS = ("extractor", "intermediate layers", "classifier")


@dataclass(frozen=True)
class FedIN(fl.Weighted):
    """Options of FedIN.

    Attributes:
        after: Section or block at which the extractor ends: a name for all tiers, or a dict from
            tier to name. Default: the first section (see :func:`model_parts`).
        before: Section or block at which the classifier begins: a name for all tiers, or a dict
            from tier to name. Default: the last block with parameters, with the pooling before it.
        step: How intermediate layers are trained on the local loss and the IN loss (the loss on
            exchanged features). ``sum``: on a weighted sum of both gradients (Eq. 16).
            ``projection``: on the projected gradient of the IN loss (Eq. 15). ``sequential``: first
            on the local loss, then on the IN loss (Fig. 7a).
        multiplier: λ, the weight of the local gradient in Eq. 16.
        aggregate: If True, average extractors and classifiers. If False, both stay with the client
            (Fig. 7b).
        in_training: If True, exchange features and train on them. If False, train only on the local
            loss (Fig. 7c).
        upload: Number of pairs of features that a client sends in a round. A pair consists of the
            input and the output of the intermediate layers for one example. The client sends its
            latest pairs. Default: the batch size.
        capacity: Maximum number of pairs that the server stores per client.
        store: Pairs that the server stores. ``reservoir``: a random sample of all received pairs.
            ``latest``: the latest pairs.
        sample: Number of pairs that the server sends to each client of a round.
        norm: How running statistics of extractor and classifier are treated. Statistics of
            intermediate layers always stay with the client.

    Example:
        >>> FedIN(step="projection").multiplier
        2.0
    """

    paper = "FedIN"
    year = 2023
    serves = ("depth", "split")
    needs_global = False

    after: Place = None
    before: Place = None
    step: Step = "sum"
    multiplier: float = fl.option(2.0, least=0)
    aggregate: bool = True
    in_training: bool = True
    upload: int | None = fl.option(None, least=1)
    capacity: int = fl.option(64, least=1)
    store: Literal["reservoir", "latest"] = "reservoir"
    sample: int = fl.option(64, least=2)
    weights: fl.Weights = "uniform"  # Eqs. 4-5
    norm: Literal["averaged", "local"] = "averaged"

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the first tier's extractor and classifier, and an empty server dataset.

        Raises:
            RunError: If a tier cannot be divided into extractor, intermediate layers and
                classifier, or tiers differ in extractor or classifier. The message names the tier
                and the first difference.
        """
        for names in (self.after, self.before):
            for name in names if isinstance(names, Mapping) else ():
                world.tier(name)
        first, *others = world.tiers
        cut = self._cut(first)
        for tier in others:
            _agree(first.name, cut, tier.name, self._cut(tier))
        # All tiers start with the same ends, so that features are comparable from round 1 on.
        initial = first.state
        return (
            fl.ServerState()
            .with_group("shared", {name: initial[name] for name in self._shared(cut)})
            .with_values(seen=[0] * len(world.clients), started=[False] * len(world.clients))
        )

    def begin(
        self, world: fl.World, state: fl.ServerState, round: int, sampled: Sequence[int]
    ) -> fl.ServerState:
        """Draw the sample ``S`` of features from the server dataset (line 6)."""
        stored = [min(count, self.capacity) for count in state.values["seen"]]
        # Batch statistics need at least two pairs.
        if not self.in_training or sum(stored) < 2:
            return state
        # Pairs are numbered through all clients: those of client k end at ends[k].
        ends = torch.tensor(stored).cumsum(0)
        draw = fl.seeded(world.seed, "fedin sample", round)
        drawn = torch.randperm(int(ends[-1]), generator=draw)[: self.sample].sort().values
        owner = torch.searchsorted(ends, drawn, right=True)
        sample: dict[str, Tensor] = {}
        # Client by client into one tensor: full stores are hundreds of megabytes.
        for client in owner.unique().tolist():
            at = owner == client
            rows, first = drawn[at] - (ends[client] - stored[client]), int(at.nonzero()[0])
            for name, tensor in state.group(f"store/{client}").items():
                if name not in sample:
                    sample[name] = tensor.new_empty((len(drawn), *tensor.shape[1:]))
                part = sample[name][first : first + len(rows)]
                torch.index_select(tensor, 0, rows, out=part)
        return state.with_group("sample", sample)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send features, extractor and classifier ``(S, w_e, w_c)`` to client k (line 7).

        The client's first task also contains all other weights.
        """
        tier = world.tier_of(client)
        cut = self._cut(tier)
        shared = self._mapped(world, cut)
        weights = state.group("shared")
        return fl.Task(
            client=client,
            graph=tier.graph,
            # Intermediate layers are sent once. Frozen parameters are not stored per client.
            state={
                name: tensor
                for name, tensor in tier.state.items()
                if not state.values["started"][client] or name in ag.frozen(tier.graph)
            }
            | {name: weights[first] for first, name in shared.items()},
            program=InTraining(
                *self._places(tier),
                self.step,
                self.multiplier,
                self.upload if self.in_training else 0,
            ),
            private=frozenset(tier.graph.state_names) - set(shared.values()),
            extras=state.group("sample"),
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average extractors and classifiers (line 5, Eqs. 4-5), and store features (line 4)."""
        # Ends differ only in names: with those of the first tier, averaging is a renaming.
        same = fl.identity_of(world.tiers[0].graph, tuple(state.group("shared")))
        counts, started = list(state.values["seen"]), list(state.values["started"])
        stores: dict[str, Tensor] = {}

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                client = result.client
                cut = self._cut(world.tier_of(client))
                names, fixed = self._mapped(world, cut), ag.frozen(cut.graph)
                back = {f: name for f, name in names.items() if name in result.state}
                ends = {first: result.state[name] for first, name in back.items()}
                unmerged = frozenset(f for f, n in names.items() if f not in back or n in fixed)
                yield fl.Contribution(
                    client, "shared", same.source, same, ends, result.weight(self.weights), unmerged
                )
                started[client] = True
                if self.in_training:
                    new = {name: result.extras[name] for name in cut.features}
                    draw = fl.seeded(world.seed, "fedin store", round, client)
                    old = state.group(f"store/{client}")
                    if self.store == "latest":
                        stored = _latest([old, new] if old else [new], self.capacity)
                    else:
                        stored = fl.reservoir(old, new, counts[client], self.capacity, draw)
                    stores.update({f"store/{client}/{name}": v for name, v in stored.items()})
                    counts[client] += _rows(new)

        # S is no longer needed: keep it out of checkpoints.
        merged = fl.group_means(world, state, contributions()).with_group("sample", {})
        return fl.ServerState({**merged.tensors, **stores}, merged.values).with_values(
            seen=counts, started=started
        )

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each tier's model, with the private intermediate layers of its clients."""
        weights = state.group("shared")

        def model(tier: fl.Tier) -> fl.Model:
            names = self._mapped(world, self._cut(tier))
            ends = {name: weights[first] for first, name in names.items()}
            return fl.Model(tier.graph, {**tier.state, **ends})

        return fl.by_tier(world, state, model=model, private=True, whole=False, idle=True)

    def _places(self, tier: fl.Tier) -> tuple[str | None, str | None]:
        """Return the options ``after`` and ``before`` for a tier; None if not set."""
        after, before = (
            names.get(tier.name) if isinstance(names, Mapping) else names
            for names in (self.after, self.before)
        )
        return after, before

    def _cut(self, tier: fl.Tier) -> Cut:
        """Split a tier's architecture into three parts."""
        try:
            return model_parts(tier.graph, *self._places(tier))
        except ag.ArchGraphError as error:
            hint = error.hint or "set `after` (end of the extractor) and `before` (classifier)"
            raise error.within(f"tier {tier.name}", kind=ag.RunError, hint=hint) from error

    def _shared(self, cut: Cut) -> tuple[str, ...]:
        """Return the names in a tier of the parameters and buffers that the server averages."""
        if not self.aggregate:
            return ()
        # In the order of `ends`, since parameters of different tiers are matched by order.
        local = fl.NormPolicy(self.norm).private(cut.graph)
        return tuple(name for name in cut.ends if name not in local)

    def _mapped(self, world: fl.World, cut: Cut) -> dict[str, str]:
        """Return a dict from the first tier's name of each shared parameter to this tier's."""
        return dict(zip(self._shared(self._cut(world.tiers[0])), self._shared(cut), strict=True))

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check that the client returned the features of its intermediate layers.

        Raises:
            RejectedUpdate: If a tensor is missing or has another shape or dtype. The message names
                the client and the tensor.
        """
        if not self.in_training:
            return
        cut = self._cut(world.tier_of(result.client))
        rows = {len(tensor) if tensor.dim() else 0 for tensor in result.extras.values()}
        for name, (shape, dtype) in cut.features.items():
            tensor = result.extras.get(name)
            received = None if tensor is None else (tuple(tensor.shape[1:]), tensor.dtype)
            if received != (shape, dtype) or len(rows) != 1 or 0 in rows:
                where, expected = f"client {result.client}: {name}", (shape, dtype)
                message = "features do not fit the cut"
                raise ag.RejectedUpdate(message, where=where, found=received, expected=expected)


# ---------------------------------------------------------------- three parts


@dataclass(frozen=True)
class Cut:
    """An architecture in three parts.

    Attributes:
        graph: The complete architecture.
        parts: Extractor, intermediate layers and classifier.
        after: Section or block at which the extractor ends.
        before: Section or block at which the classifier begins.
        ends: Parameters and buffers of the extractor and the classifier, in order of first use. All
            architectures with equal extractors and classifiers have the same order.
        features: Dict from name to shape (of one example) and dtype, for the inputs (``in/0``) and
            outputs (``out/0``) of the intermediate layers.
    """

    graph: ag.ArchGraph
    parts: tuple[ag.ArchGraph, ag.ArchGraph, ag.ArchGraph]
    after: str
    before: str
    ends: tuple[str, ...]
    features: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = field(repr=False)

    @property
    def middle(self) -> frozenset[str]:
        """Parameters and buffers that only the intermediate layers use."""
        return frozenset(self.graph.state_names) - set(self.ends)


@functools.lru_cache(maxsize=256)
def model_parts(graph: ag.ArchGraph, after: str | None = None, before: str | None = None) -> Cut:
    """Cut an architecture after its extractor and before its classifier (§IV).

    Args:
        graph: Any architecture.
        after: Section or block at which the extractor ends. Default: the first section. If this
            section extends to the classifier, the extractor ends at its first block instead.
        before: Section or block at which the classifier begins. Default: the last block with
            parameters.

    Raises:
        RewriteError: If a part would be empty, the intermediate layers have no trainable
            parameters, or a value that crosses a cut has a variable size in a dimension other than
            the first (the batch).
        GraphError: If a section or block does not exist.
    """
    before = before or _classifier(graph)
    after, split = _split(graph, after, before)
    parts = [part.graph for part in split]
    if len(parts) != 3:
        raise ag.RewriteError(f"no layers between the cuts after {after} and before {before}")
    extractor, middle, classifier = parts
    leaves = [leaf for part in (extractor, classifier) for leaf in ag.outline(part).leaves]
    ends = tuple(dict.fromkeys(name for name in leaves if graph.param[name].role != "constant"))
    if not any(p.trainable and p.name not in ends for p in middle.params):
        raise ag.RewriteError(
            "nothing between the cuts can be trained", found=f"after {after}, before {before}"
        )
    features = {
        f"{side}/{number}": _feature(graph, name)
        for side, crossing in (("in", _inputs(middle)), ("out", _results(middle, classifier)))
        for number, name in enumerate(crossing)
    }
    return Cut(graph, (extractor, middle, classifier), after, before, ends, features)


def _classifier(graph: ag.ArchGraph) -> str:
    """Return the last block that holds parameters."""
    return next(
        block.name
        for block in reversed(ag.structure(graph).blocks)
        if any(
            graph.param[leaf].role == "parameter"
            for node in block.nodes
            for leaf in graph.node[node].leaves()
        )
    )


def _split(
    graph: ag.ArchGraph, after: str | None, before: str
) -> tuple[str, Sequence[ag.Rewritten]]:
    """Return the name of the extractor's end, and the parts.

    If a section reaches up to the classifier, only its first block is the extractor.
    """
    structure = ag.structure(graph)
    section, last = after or structure.sections[0].name, structure.nodes(before)[0]
    inside = list(itertools.takewhile(lambda block: last not in block.nodes, structure.blocks))
    first = [block for block in inside if block.section == section]
    if len(first) > 1 and first[-1] is inside[-1] and after in (None, first[0].name):
        return first[0].name, ag.split(graph, before=(first[1].name, before))
    return section, ag.split(graph, after=section, before=before)


def _feature(graph: ag.ArchGraph, name: str) -> tuple[tuple[int, ...], torch.dtype]:
    """Return shape of one example's and dtype of a value that crosses a cut.

    Raises:
        RewriteError: If it is not a tensor, or mixes examples.
    """
    node = graph.node.get(name)
    if node is None or len(node.types) != 1:
        kind = "a parameter" if node is None else str(node.type)
        message = f"a value that crosses the cut is {kind}, not a tensor"
        raise ag.RewriteError(message, where=f"%{name}", hint="cut at another block")
    shape = tuple(size for size in node.shape[1:] if isinstance(size, int))
    if len(shape) != len(node.shape) - 1:
        message = "a value that crosses the cut depends on several examples"
        raise ag.RewriteError(message, where=f"%{name}", found=str(node.type))
    return shape, getattr(torch, node.dtype)


def _inputs(part: ag.ArchGraph) -> list[str]:
    return [key for key, _ in part.inputs]


def _results(part: ag.ArchGraph, following: ag.ArchGraph) -> list[str]:
    """Return the names under which a part's results enter the next one."""
    count = len(part.outputs) if isinstance(part.outputs, tuple) else 1
    return _inputs(following)[:count]


def _agree(one: str, first: Cut, other: str, cut: Cut) -> None:
    """Refuse tiers that differ in more than their intermediate layers."""
    pairs: list[tuple[str, str]] = []  # leaves of the ends, of the first tier and of the other
    hint = "choose other cut points; now " + ", ".join(
        f"{name} after {tier.after} and before {tier.before}"
        for name, tier in ((other, cut), (one, first))
    )
    for number in (0, 2):
        a, b = ag.outline(first.parts[number]), ag.outline(cut.parts[number])
        # Outlines have no names: an operator, an argument, a type or the wiring differs.
        for expected, actual in itertools.zip_longest(a.lines, b.lines):
            if expected != actual:
                raise ag.RunError(
                    f"the {PARTS[number]} differs from that of tier {one}",
                    where=f"tier {other}",
                    found=(actual or "nothing more")[:200],
                    expected=(expected or "nothing more")[:200],
                    hint=hint,
                )
        pairs += zip(a.leaves, b.leaves, strict=True)
    if first.features != cut.features:
        raise ag.RunError(
            f"the {PARTS[1]} have other inputs or outputs than in tier {one}",
            where=f"tier {other}",
            found=dict(cut.features),
            expected=dict(first.features),
            hint=hint,
        )
    # A weight that is tied in one tier must be tied in all tiers.
    for side in (0, 1):
        partner: dict[str, tuple[str, str]] = {}
        for pair in pairs:
            if partner.setdefault(pair[side], pair) != pair:
                raise ag.RunError(
                    f"extractor and classifier do not share the same weights as in tier {one}",
                    where=f"tier {other}",
                    found=pair[1],
                    expected=pair[0],
                )


# ---------------------------------------------------------------- both gradients


def summed(
    g_in: Sequence[Tensor], g_local: Sequence[Tensor], multiplier: float = 2.0
) -> list[Tensor]:
    """Compute ``Z = G_IN + λ/2 · G_local`` (Eq. 16).

    Example:
        >>> summed([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, -1.0])])
        [tensor([4., 1.])]
    """
    return [a.add(b, alpha=multiplier / 2) for a, b in zip(g_in, g_local, strict=True)]


def projected(g_in: Sequence[Tensor], g_local: Sequence[Tensor]) -> list[Tensor]:
    """Return the ``Z`` nearest to ``G_IN`` with ``⟨Z, G_local⟩ ≥ 0`` (Eq. 15).

    The inner product is over all intermediate weights together.

    Example:
        >>> projected([torch.tensor([1.0, -2.0])], [torch.tensor([0.0, 1.0])])
        [tensor([1., 0.])]
    """
    largest = max((float(g.abs().max()) for g in g_local if g.numel()), default=0.0)
    if largest == 0:
        return list(g_in)
    # Divided by the largest value, so that squares neither overflow nor underflow.
    local = [g.double() / largest for g in g_local]
    a, b = inner(local, local), inner(local, g_in)
    if b >= 0:
        return list(g_in)
    return [x.double().sub(y, alpha=b / a).to(x.dtype) for x, y in zip(g_in, local, strict=True)]


def inner(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Compute ``tr(AᵀB)`` over all tensors, in double precision."""
    return sum(
        float(torch.dot(x.flatten().double(), y.flatten().double()))
        for x, y in zip(one, other, strict=True)
    )


# ---------------------------------------------------------------- at the client


@dataclass(frozen=True)
class InTraining:
    """Program for local and IN training of one client (Algorithm 1, lines 8-20).

    Without features from the server, only local training takes place. IN training runs in training
    mode: it uses batch statistics of the received features, which also update the running
    statistics.

    Attributes:
        after: Section or block at which the extractor ends, as in :func:`model_parts`.
        before: Section or block at which the classifier begins.
        step: See the option of :class:`FedIN`.
        multiplier: λ of Eq. 16.
        upload: Number of latest pairs to return. Default: the batch size.
        objective: Local loss ``l_local``.
    """

    after: str | None = None
    before: str | None = None
    step: Step = "sum"
    multiplier: float = 2.0
    upload: int | None = None
    objective: fl.Objective = field(default_factory=fl.TaskLoss)

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return the state and the latest features.

        1. Local training collects the latest inputs and outputs of the intermediate layers.
        2. If the client has received features, each step combines the local gradients of the
           intermediate layers with those of the IN loss, by Eq. 16 or Eq. 15.
        3. With ``sequential``, these layers are instead trained on all received features after
           local training.
        """
        chain = Chain.of(model_parts(work.graph, self.after, self.before), work)
        middle = chain.middle
        received = {k: v.to(work.device) for k, v in work.extras.items()}
        count = _rows(received)
        step = self.step if count else None
        latest = Latest(work.local.batch if self.upload is None else self.upload)
        distances: list[Tensor] = []
        conflicts = 0

        def local(examples: fl.Examples) -> Tensor:  # 1
            features, outputs = chain(*examples.inputs)
            latest.add(features)
            return self.objective(outputs, examples, work)

        def distance(rows: Tensor) -> Tensor:
            value = chain.distance(_select(received, rows.to(work.device)))
            distances.append(value.detach())  # stays on the device: no need to wait for it
            return value

        def revise(parameters: Mapping[str, nn.Parameter]) -> None:  # 2
            nonlocal conflicts
            rows = torch.randperm(count, generator=work.generator)[: work.local.batch]
            leaves = list(middle.values())
            g_in = torch.autograd.grad(distance(rows), leaves, materialize_grads=True)
            g_local = [torch.zeros_like(p) if p.grad is None else p.grad for p in leaves]
            if step == "projection":
                conflicts += inner(g_in, g_local) < 0
                revised = projected(g_in, g_local)
            else:
                revised = summed(g_in, g_local, self.multiplier)
            for parameter, gradient in zip(leaves, revised, strict=True):
                parameter.grad = gradient

        metrics = fl.descend(
            work,
            chain.parameters,
            local,
            revise=revise if step in ("sum", "projection") else None,
        )
        # 3. All received pairs, also where an epoch sees a fraction of the client's own data.
        if step == "sequential":
            every = work.local.model_copy(update={"fraction": 1.0, "augment": None})
            pairs = dataclasses.replace(work, data=Pairs(count), local=every)
            fl.descend(
                pairs,
                middle,
                lambda examples: distance(examples.ids),
                counts=fl.by_examples,
            )
        if distances:
            metrics["in_loss"] = float(torch.stack(distances).mean())
        if step == "projection":
            metrics["conflicts"] = conflicts / max(len(distances), 1)
        return fl.Outcome(
            state=chain.state(), keep=work.keep, extras=latest.features(), metrics=metrics
        )


def _rows(features: Mapping[str, Tensor]) -> int:
    return len(next(iter(features.values()), ()))


def _select(features: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: tensor.index_select(0, rows) for name, tensor in features.items()}


@dataclass(frozen=True)
class Latest:
    """The latest pairs of features, in as few whole minibatches as possible.

    Attributes:
        limit: Number of pairs; 0 for none.
        batches: Minibatches, each a dict from name to features ``[example, ...]``.
    """

    limit: int
    batches: collections.deque[Mapping[str, Tensor]] = field(default_factory=collections.deque)

    def add(self, features: Mapping[str, Tensor]) -> None:
        """Add a minibatch, and drop minibatches that are no longer needed."""
        if self.limit:
            self.batches.append(features)
            while sum(map(_rows, self.batches)) - _rows(self.batches[0]) >= self.limit:
                self.batches.popleft()

    def features(self) -> dict[str, Tensor]:
        """Return the latest pairs as CPU tensors to send."""
        return _latest(self.batches, self.limit)


def _latest(batches: Iterable[Mapping[str, Tensor]], rows: int) -> dict[str, Tensor]:
    """Return the last rows of minibatches of features, in the form in which they are sent."""
    parts: dict[str, list[Tensor]] = {}
    for batch in batches:
        for name, tensor in batch.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(p)[-rows:].cpu().clone() for name, p in parts.items()}


@dataclass(frozen=True)
class Pairs:
    """Training data whose examples are the indices of the received pairs.

    Attributes:
        examples: Number of pairs.
        histogram: Empty, because pairs have no classes.
    """

    examples: int
    histogram: tuple[int, ...] = ()

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[fl.Examples]:
        """Yield one pass in random order, in minibatches whose sizes differ by at most one."""
        order = torch.randperm(self.examples, generator=generator)
        for ids in order.tensor_split(max(self.examples // size, 1)):
            yield fl.Examples((), ids, ids)


@dataclass(frozen=True, eq=False)
class Chain:
    """Extractor, intermediate layers and classifier as modules that share one set of tensors.

    Attributes:
        cut: The parts.
        modules: One module per part.
        parameters: All parameters by name, in the order of the whole network.
    """

    cut: Cut
    modules: tuple[nn.Module, ...]
    parameters: Mapping[str, nn.Parameter]

    @staticmethod
    def of(cut: Cut, work: fl.Work) -> Chain:
        """Build the modules in training mode, with a copy of the client's state."""
        modules = tuple(
            fl.module_of(
                fl.Model(p, {k: work.state[k] for k in p.state_names}), work.device
            ).train()
            for p in cut.parts
        )
        tensors: dict[str, Tensor | None] = {}
        parameters: dict[str, nn.Parameter] = {}
        for module in modules:
            # Tensors that two parts use are shared, so they get the gradients of both.
            for path, inside in module.named_modules():
                for table in (inside._parameters, inside._buffers):
                    for name in table:
                        table[name] = tensors.setdefault(f"{path}.{name}", table[name])
            parameters |= module.named_parameters(remove_duplicate=False)
        return Chain(
            cut, modules, {k: parameters[k] for k in cut.graph.state_names if k in parameters}
        )

    @property
    def middle(self) -> dict[str, nn.Parameter]:
        """Trained parameters ``w_in`` of the intermediate layers."""
        inside = self.cut.middle
        return {k: p for k, p in self.parameters.items() if k in inside and p.requires_grad}

    def __call__(self, *inputs: Tensor) -> tuple[dict[str, Tensor], object]:
        """Return the inputs and outputs of the intermediate layers, and the logits (Eqs. 7-9)."""
        _, middle, classifier = self.cut.parts
        values = dict(zip(_inputs(self.cut.graph), inputs, strict=True))
        values |= self._run(0, values)
        results = self._run(1, values)
        # Detached: they are sent as data, and would hold the graph of every minibatch.
        features = {f"in/{i}": values[key].detach() for i, key in enumerate(_inputs(middle))}
        features |= {f"out/{i}": x.detach() for i, x in enumerate(results.values())}
        values |= results
        return features, self.modules[2](**{key: values[key] for key in _inputs(classifier)})

    def distance(self, features: Mapping[str, Tensor]) -> Tensor:
        """Compute ``l_IN``: mean squared error of the intermediate layers' output to ``s_out``."""
        values = {key: features[f"in/{i}"] for i, key in enumerate(_inputs(self.cut.parts[1]))}
        results = self._run(1, values).values()
        pairs = [
            (x.flatten(), features[f"out/{i}"].flatten())
            for i, x in enumerate(results)
            if x.is_floating_point()
        ]
        outputs, targets = (torch.cat(side) for side in zip(*pairs, strict=True))
        return nn.functional.mse_loss(outputs, targets)

    def state(self) -> dict[str, Tensor]:
        """Return the state of the complete network, to be sent."""
        values: dict[str, Tensor] = {}
        for module in self.modules:
            values |= ag.state_of(module)
        return {name: values[name] for name in self.cut.graph.state_names}

    def _run(self, index: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results of a part by the names under which the next one takes them."""
        part, following = self.cut.parts[index : index + 2]
        outputs = self.modules[index](**{key: inputs[key] for key in _inputs(part)})
        values = cast("tuple[Tensor, ...]", outputs if isinstance(outputs, tuple) else (outputs,))
        return dict(zip(_results(part, following), values, strict=True))
