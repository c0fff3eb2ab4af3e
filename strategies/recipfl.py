r"""RecipFL: a graph hypernetwork at the server generates the weights of every client's model.

*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge Computing
Environments*, 2023 (Algorithm 1, Eqs. 2-9).

==========================  =================================================================
symbol                      here
==========================  =================================================================
``GHN(G_m, a_m; φ)``        :class:`archgraph.hypernet.GraphHypernetwork`; φ in group ``hypernet``
``η_s``                     ``lr`` of Adam, whose moments are in group ``optimiser``
``G_m``                     the architecture of the client's tier
``q_v``                     the client's latest trained weights, in group ``last-m``
``a_m``                     ``descriptor``
``Δθ_m`` of Eq. 4           ``θ̃_m - θ_m``: see :meth:`RecipFL.receive`
``f_m^L``, ``f_m^S``        a strong client's own model; ``Task.others["small"]``
Eq. 9                       :class:`Teach`
==========================  =================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

import archgraph as ag
from archgraph import federation as fl
from archgraph.hypernet import (
    GraphHypernetwork,
    follow_gradients,
    on_disk,
    optimiser_state,
    with_state,
)

Divergence = Literal["small_large", "large_small"]
OWN, SMALL = "own", "small"
LOGITS = fl.Logits()
# Options of the strategy that are options of the hypernetwork with the same names.
NETWORK = (
    *("width", "hidden", "steps", "reach", "bins", "piece", "tile"),
    *("mixing", "described", "shifts"),
)
MEBI = 1 << 20
# Bytes of trained states that are pulled back together.
TOGETHER = 256 * MEBI
# Networks that read a φ, by its first tensor, with their other dependencies.
READERS = WeakTensorKeyDictionary()
# Bytes that the encoder keeps per piece for its backward pass, measured at the default sizes.
PIECE = 4400


@dataclass(frozen=True)
class RecipFL(fl.Masking):
    """Options of RecipFL.

    Attributes:
        lr: Learning rate of the server's Adam (η_s).
        clip: Maximum norm of the hypernetwork's gradient.
        weights: Weight of a client in the hypernetwork's gradient (Eq. 4). ``examples``: its number
            of examples, divided by the mean over all clients. ``uniform``: 1.
        transfer: If True, strong clients also train the small model by distillation (§3.3). If
            False, this is RecipFL without knowledge transfer (KT).
        small: Tier whose architecture strong clients train in addition to their own. Default: the
            tier with the fewest parameters.
        strong: Tiers whose clients are strong. Default: all tiers with another architecture than
            ``small``.
        descriptor: Description of a client that is an input of the hypernetwork: its class
            proportions (``classes``), a learned embedding of its ``id``, or ``none``.
        embedding: Size of the embedding of an id.
        steps: Number of times that the hypernetwork traverses a graph forwards and backwards (τ).
        reach: Maximum distance of two nodes that a virtual edge connects (GHN-2: 50). With 1
            (paper), there are no virtual edges.
        bins: Maximum number of means to which a tensor is reduced before the encoder reads it. Each
            is the mean of consecutive values.
        piece: Number of means (see ``bins``) in each token of the encoder, which is a Transformer.
            The published code uses 1, but 8 is faster.
        width: Size of a node's features.
        hidden: Size of the decoders' hidden layers.
        tile: Maximum side length of a generated weight tensor (tile). For a larger layer, the tile
            is repeated, so that some neurons have equal weights. For LeNet-5, with a layer of 120 ×
            256, the studies use 256.
        mixing: How a node's features are computed. ``concat`` (paper): a linear layer reads the
            concatenation of the operator's embedding and the encoding of the operator's weights.
            ``sum`` (published code): the sum of these two vectors and an embedding of the shape.
        described: Layers that the descriptor influences: ``all`` (paper), or the ``head``
            (published code).
        shifts: Biases of norm layers. ``generated`` (paper): by the hypernetwork. ``local``
            (published code): they stay with the client.
        divergence: Divergence of hidden features in Eq. 9. ``small_large`` (as printed): D_KL(p^S ‖
            p^L). ``large_small`` (published code): D_KL(p^L ‖ p^S).
        bound: Maximum magnitude of a returned parameter. Updates with a larger value are rejected.
        memory: Maximum memory, in MiB, for the clients' latest weights at the server. Further
            weights are stored in the folder for temporary files (``TMPDIR``).

    Example:
        >>> from archgraph.federation import configure
        >>> configure("recipfl", {"preset": "official"}).mixing  # as in the authors' code
        'sum'
    """

    paper = "How Few Davids Improve One Goliath"
    year = 2024
    serves = ("any",)
    needs_global = False

    lr: float = fl.option(0.001, above=0)
    clip: float = fl.option(50.0, above=0)
    weights: Literal["uniform", "examples"] = "uniform"
    transfer: bool = True
    small: str | None = None
    strong: tuple[str, ...] | None = None
    descriptor: Literal["classes", "id", "none"] = "classes"
    embedding: int = fl.option(32, least=1)
    steps: int = fl.option(1, least=1)
    reach: int = fl.option(1, least=1)
    bins: int = fl.option(128, least=1)
    piece: int = fl.option(8, least=1)
    width: int = fl.option(128, least=1)
    hidden: int = fl.option(256, least=1)
    tile: int = fl.option(64, least=1)
    mixing: Literal["concat", "sum"] = "concat"
    described: Literal["all", "head"] = "all"
    shifts: Literal["generated", "local"] = "generated"
    divergence: Divergence = "small_large"
    bound: float = fl.option(1e6, above=0)
    memory: float = fl.option(1024.0, least=0)

    extra = "hypernet"
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "it distils probabilities of classes (Eq. 9)"
    )

    presets: ClassVar[Mapping[str, Mapping[str, fl.Json]]] = {
        "official": {
            "mixing": "sum",
            "described": "head",
            "shifts": "local",
            "divergence": "large_small",
            "piece": 1,
            "reach": 50,
        }
    }

    def __post_init__(self) -> None:
        """Check the options, for example that ``bins`` is a multiple of ``piece``."""
        super().__post_init__()
        if self.bins % self.piece:
            message = f"{self.bins} is not a multiple of piece, {self.piece}"
            raise ag.SpecError(message, where="bins")

    # -- Algorithm 1 ------------------------------------------------------------------------------

    @property
    def reads_labels(self) -> bool:
        """Whether clients are described by their class proportions."""
        return self.descriptor == "classes"

    def init(self, world: fl.World) -> fl.ServerState:
        """Draw the initial weights φ of the hypernetwork from the run's seed.

        Raises:
            RunError: If ``small`` or ``strong`` names an unknown tier.
        """
        for name in self.strong or ():
            world.tier(name)
        graphs = self.graphs(world)
        # A check before a run only needs shapes; on the meta device, no weights are drawn.
        with torch.device("meta" if world.device == "meta" else "cpu"):
            network = GraphHypernetwork.for_graphs(graphs, seed=world.seed, **self.sizes(world))
        return fl.ServerState().with_group("hypernet", _phi(network.to(world.device)))

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the generated weights ``θ̃_m`` (line 5).

        A strong client also gets the small model (§3.3).
        """
        server = Server.of(self, world, state)
        main, *small = server.parts([client])
        states = [{**part.first, **tensors} for part, tensors in server.generated([main, *small])]
        train = fl.Train(fl.TaskLoss(mask_absent=self.mask_absent))
        # Frozen parameters are not stored per client; every task refers to them.
        local = server.local(main.graph)
        private = local - ag.frozen(main.graph)
        return fl.Task(
            client=client,
            graph=main.graph,
            # Private tensors are sent until the client has its own.
            state={k: v for k, v in states[0].items() if not (main.trained and k in private)},
            program=Teach(train, server.changing(small[0].graph), self.divergence)
            if small
            else train,
            private=local,
            others={p.name: fl.Model(p.graph, s) for p, s in zip(small, states[1:], strict=True)},
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Update the hypernetwork's weights φ from the clients' trained weights (line 7).

        The server stores the trained weights as ``q_v``. The pseudo-gradient is ``θ̃_m - θ_m``, as
        in the authors' code. With the printed sign, ``θ_m - θ̃_m``, gradient descent would move
        away from the trained weights.
        """
        server = Server.of(self, world, state, change=True)
        network = server.network
        optimiser = torch.optim.Adam(network.parameters(), lr=self.lr)
        with_state(network, optimiser, state.group("optimiser"))
        spilled = server.spilled()
        tensors = dict(state.tensors)
        # Gradients are pulled back in batches: memory does not grow with the number of clients.
        for batch in _batches(results, self.bins // self.piece):
            parts = server.parts(result.client for result in batch)
            sent = {result.client: result for result in batch}
            new = [server.taken(part, sent[part.client]) for part in parts]
            # θ̃ is generated again here: nothing generated is kept from `send` to `receive`.
            network.pull_back(
                [part.graph for part in parts],
                [part.last for part in parts],
                new,
                server.about(parts),
                [self.weight(world, part.client) for part in parts],
            )
            for part, trained in zip(parts, new, strict=True):
                stored = on_disk(trained) if part.client in spilled else trained
                tensors |= {f"{part.place}/{name}": value for name, value in stored.items()}
        # Without results Adam must not step either: its moments would move φ.
        if all(parameter.grad is None for parameter in network.parameters()):
            return state
        follow_gradients(network, optimiser, self.clip)
        return (
            fl.ServerState(tensors, state.values)
            .with_group("hypernet", _phi(network))
            .with_group("optimiser", optimiser_state(network, optimiser))
        )

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check that no parameter of a client exceeds ``bound``.

        Raises:
            RejectedUpdate: If a parameter exceeds the bound. The message names the tensor.
        """
        small, main = self.small_tier(world).graph, world.tier_of(result.client).graph
        # A single large number would dominate the gradient's norm and the clipped step.
        sent = [("", main, result.state), *((n, small, s) for n, s in result.others.items())]
        for model, graph, state in sent:
            for name, tensor in state.items():
                if graph.param[name].role != "parameter" or not tensor.is_floating_point():
                    continue  # not read by the server
                largest = float(tensor.abs().max()) if tensor.numel() else 0.0
                if largest > self.bound:
                    where = f"client {result.client}: {model and model + '/'}{name}"
                    message = f"{largest:.3g} is too large to learn from (bound: {self.bound:g})"
                    raise ag.RejectedUpdate(message, where=where)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each tier's clients with the models that the server would now send to them."""
        server = Server.of(self, world, state)
        for tier in world.tiers:
            if clients := world.clients_of(tier.name):
                yield fl.Evaluated(
                    name=tier.name,
                    graph=tier.graph,
                    state=server.version(clients[0]),
                    clients=clients,
                    private=True,
                    states=server.version,
                )

    # -- what follows from the options ------------------------------------------------------------

    def small_tier(self, world: fl.World) -> fl.Tier:
        """Return the tier whose architecture strong clients train in addition to their own.

        Raises:
            RunError: If ``small`` names an unknown tier.
        """
        return world.by_size[0] if self.small is None else world.tier(self.small)

    def graphs(self, world: fl.World) -> list[ag.ArchGraph]:
        """Return all distinct architectures for which the hypernetwork generates weights."""
        tiers = (*world.tiers, self.small_tier(world))
        return list({tier.graph.digest: tier.graph for tier in tiers}.values())

    def sizes(self, world: fl.World) -> dict[str, Any]:
        """Return the options of the hypernetwork."""
        described = {"classes": world.classes, "id": self.embedding, "none": 0}
        return {
            **{name: getattr(self, name) for name in NETWORK},
            "descriptor": described[self.descriptor],
            "clients": len(world.clients) if self.descriptor == "id" else 0,
        }

    def weight(self, world: fl.World, client: int) -> float:
        """Return the weight of a client's pseudo-gradient."""
        if self.weights == "uniform":
            return 1.0
        # Divided by the mean, so that the size of a step does not grow with the data.
        mean = sum(c.weight for c in world.clients) / len(world.clients)
        return world.clients[client].weight / mean

    def taught(self, world: fl.World, client: int) -> bool:
        """Return whether a client is strong. Strong clients also train the small model."""
        tier = world.tier_of(client)
        strong = self.strong is None or tier.name in self.strong
        return self.transfer and strong and tier.graph != self.small_tier(world).graph


class Part(NamedTuple):
    """One of the models that a client trains.

    Attributes:
        client: Id of the client.
        name: ``own`` or ``small``.
        graph: Architecture of the model.
        first: Complete state of the model before the first round.
        trained: Generated tensors as the client last trained them; empty before its first round.
    """

    client: int
    name: str
    graph: ag.ArchGraph
    first: fl.State
    trained: fl.State

    @property
    def last(self) -> dict[str, Tensor]:
        """The weights that the hypernetwork reads (``q_v``)."""
        return {**self.first, **self.trained}

    @property
    def place(self) -> str:
        """Path of the trained tensors in the server's state, with one group per client."""
        return f"last-{self.client}/{self.name}"


@dataclass(frozen=True, eq=False)
class Server:
    """The hypernetwork, together with the server state from which its inputs are read.

    Attributes:
        strategy: The options.
        world: Clients, tiers and the device.
        state: The server's state.
        network: The hypernetwork with the φ of this state.
    """

    strategy: RecipFL
    world: fl.World
    state: fl.ServerState
    network: GraphHypernetwork

    @staticmethod
    def of(
        strategy: RecipFL, world: fl.World, state: fl.ServerState, *, change: bool = False
    ) -> Server:
        """Build the hypernetwork with the state's φ; with ``change``, φ is copied.

        Networks that only read φ are cached, so that all clients of a round use the same one.
        """
        group = state.group("hypernet")
        key, graphs = next(iter(group.values())), strategy.graphs(world)
        # A state may share the first tensor with another one and differ in the rest.
        memory = [value.data_ptr() for value in group.values()]
        known = [graph.digest for graph in graphs], strategy.sizes(world), world.device, memory
        if not change and key in READERS and READERS[key][0] == known:
            return Server(strategy, world, state, READERS[key][1])
        # On the meta device no values are drawn: φ replaces them all.
        with torch.device("meta"):
            network = GraphHypernetwork.for_graphs(graphs, **strategy.sizes(world))
        phi = {
            k: v.to(world.device, copy=change or (v.is_cpu and not _aligned(v)))
            for k, v in group.items()
        }
        network.load_state_dict(phi, assign=True)
        if not change:
            READERS[key] = known, network
        return Server(strategy, world, state, network)

    def parts(self, clients: Iterable[int]) -> list[Part]:
        """List each client's own model, followed by the small model if the client is strong."""
        small, parts = self.strategy.small_tier(self.world), []
        for client in clients:
            models = {OWN: self.world.tier_of(client)}
            if self.strategy.taught(self.world, client):
                models[SMALL] = small
            for name, tier in models.items():
                trained = self.state.group(f"last-{client}/{name}")
                parts.append(Part(client, name, tier.graph, dict(tier.state), trained))
        return parts

    def about(self, parts: Sequence[Part]) -> Tensor | None:
        """Return the client's descriptor ``a_m`` for each model: class proportions, or ids."""
        clients = [part.client for part in parts]
        match self.strategy.descriptor:
            case "none":
                return None
            case "id":
                return torch.tensor(clients)
            case "classes":
                counts = torch.tensor([self.world.clients[c].histogram for c in clients])
                return counts / counts.sum(1, keepdim=True).clamp(min=1)

    def generated(self, parts: Sequence[Part]) -> list[tuple[Part, dict[str, Tensor]]]:
        """Return pairs of a model and its generated tensors on the CPU, without gradients."""
        with torch.no_grad():
            states = self.network.generate(
                [part.graph for part in parts], [part.last for part in parts], self.about(parts)
            )
        # In a check before a run, tensors are on the meta device.
        return [
            (part, {k: (v if v.is_meta else v.cpu()).contiguous() for k, v in tensors.items()})
            for part, tensors in zip(parts, states, strict=True)
        ]

    def version(self, client: int) -> dict[str, Tensor]:
        """Return a client's own model as the server would send it now."""
        [(part, tensors)] = self.generated(self.parts([client])[:1])
        return {**part.first, **tensors}

    def local(self, graph: ag.ArchGraph) -> frozenset[str]:
        """Return the tensors that are not generated."""
        return frozenset(self.network.unset(graph))

    def changing(self, graph: ag.ArchGraph) -> tuple[str, ...]:
        """Return the private tensors that training changes, in state order."""
        stay = self.local(graph) - ag.frozen(graph)
        return tuple(name for name in graph.state_names if name in stay)

    def spilled(self) -> frozenset[int]:
        """Return the clients whose latest weights are stored on disk because of ``memory``."""
        small = self.strategy.small_tier(self.world).graph
        total, exceeding = 0, set()
        for client in self.world.clients:
            total += self._bytes(self.world.tier(client.name).graph)
            total += self._bytes(small) if self.strategy.taught(self.world, client.id) else 0
            if total > self.strategy.memory * MEBI:
                exceeding.add(client.id)
        return frozenset(exceeding)

    def _bytes(self, graph: ag.ArchGraph) -> int:
        """Return the memory of the tensors generated for an architecture."""
        entries = self.network.entries(graph)
        return sum(math.prod(entry.shape) * entry.dtype.itemsize for entry in entries)

    def taken(self, part: Part, result: fl.Result) -> dict[str, Tensor]:
        """Return, from a client's result, the tensors of one model that are generated."""
        sent = result.state if part.name == OWN else result.others[part.name]
        return {entry.name: sent[entry.name] for entry in self.network.entries(part.graph)}


def _aligned(tensor: Tensor) -> bool:
    """Return whether the tensor's memory starts at a multiple of 64 bytes, as PyTorch allocates it.

    The last bits of a matrix product may depend on the alignment. Tensors of a checkpoint are
    adjacent in a file, so a resumed run could yield other weights than an uninterrupted one.
    """
    return tensor.data_ptr() % 64 == 0


def _phi(network: GraphHypernetwork) -> dict[str, Tensor]:
    """Return φ, which stays on the device like the moments."""
    return {name: tensor.detach() for name, tensor in network.state_dict().items()}


def _batches(results: Iterable[fl.Result], pieces: int) -> Iterator[list[fl.Result]]:
    """Yield results in groups that fit in memory together with the encoder's activations.

    Args:
        results: Results of clients.
        pieces: Most pieces of a tensor that the encoder attends to.
    """
    batch: list[fl.Result] = []
    size = 0
    for result in results:
        batch.append(result)
        states = (result.state, *result.others.values())
        sizes = [tensor.nbytes for state in states for tensor in state.values()]
        size += sum(sizes) + len(sizes) * pieces * PIECE
        if size >= TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---------------------------------------------------------------- knowledge transfer


@dataclass(frozen=True)
class Teach:
    """Program of a strong client: train its own model, then distil it into the small model.

    Attributes:
        train: Program that trains the client's own model. Its objective is also the first part of
            the small model's loss.
        local: Parameters and buffers of the small model that are private to the client.
        divergence: See the option of :class:`RecipFL`.

    Source:
        RecipFL §3.3, Eq. 9.
    """

    train: fl.Train
    local: tuple[str, ...] = ()
    divergence: Divergence = "small_large"

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train both models, and return both states."""
        large = self.train(work)
        model = work.others[SMALL]
        private = {n: work.keep[f"{SMALL}/{n}"] for n in self.local if f"{SMALL}/{n}" in work.keep}
        teacher = fl.module_of(
            fl.Model(ag.with_features(work.graph), large.state), work.device
        ).eval()
        student = fl.module_of(
            fl.Model(ag.with_features(model.graph), {**model.state, **private}), work.device
        ).train()
        # The teacher is the large model just trained, in evaluation mode.
        small = replace(work, graph=model.graph)

        def loss(examples: fl.Examples) -> Tensor:
            with torch.no_grad():
                taught = teacher(*examples.inputs)
            outputs = student(*examples.inputs)
            hard = self.train.objective(outputs[0], examples, small)

            def predict(outputs: object) -> Tensor:
                return fl.counted_logits(work.learning.predictions(outputs), examples)

            return hard + guidance(outputs, taught, predict, self.divergence)

        metrics = fl.descend(small, dict(student.named_parameters()), loss)
        state = ag.state_of(student)
        keep = {**work.keep, **{f"{SMALL}/{name}": state[name] for name in self.local}}
        metrics_of_both = {**large.metrics, "small_loss": metrics["loss"]}
        return fl.Outcome(
            state=large.state, keep=keep, others={SMALL: state}, metrics=metrics_of_both
        )


def guidance(
    small: tuple[Any, ...],
    large: tuple[Any, ...],
    predict: fl.Predict = LOGITS,
    divergence: Divergence = "small_large",
) -> Tensor:
    """Compute ``CE(f^S, softmax f^L) + D_KL(p^S ‖ p^L)``, which Eq. 9 adds to the loss.

    Args:
        small: Outputs of the small model, and its last hidden features if any.
        large: Outputs of the large model, and its last hidden features if any, without gradients.
        predict: Function from outputs to logits ``[batch, ..., classes]``.
        divergence: ``small_large`` for the second term above, or ``large_small`` for D_KL(p^L ‖
            p^S).

    Returns:
        The mean over the batch. Without features, or if both models have different numbers of
        features, the second term is omitted.
    """
    logits, targets = (predict(outputs[0]).flatten(0, -2) for outputs in (small, large))
    value = functional.cross_entropy(logits, targets.softmax(-1))
    if len(small) == len(large) == 2 and small[1].shape == large[1].shape:
        p, q = (f.flatten(1).log_softmax(1) for f in (small[1], large[1]))
        if divergence == "large_small":
            p, q = q, p
        value = value + functional.kl_div(q, p, reduction="batchmean", log_target=True)
    return value
