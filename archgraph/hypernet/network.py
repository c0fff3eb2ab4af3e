"""The graph hypernetwork: architectures and their current weights in, new weights out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from archgraph.analysis.roles import head, weight_operands
from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph
from archgraph.hypernet.decoders import Decoder, DecoderKind, decoder
from archgraph.hypernet.encoder import ParameterEncoder
from archgraph.hypernet.gnn import GatedGNN
from archgraph.hypernet.graphs import (
    DecoderSlot,
    GeneratedTensor,
    LocalRule,
    Vocabulary,
    entries,
    local,
    sweeps,
    sweeps_alone,
    sweeps_on,
    to_batch,
)
from archgraph.ops.table import row
from archgraph.states.copies import to_device

if TYPE_CHECKING:
    from archgraph.states import State


CodeKey = tuple[int, tuple[int, ...]]  # number of a slot, size of the kernel

AT_ONCE = 2**21  # most numbers that `pull_back` generates at a time, unless one tensor has more


class GraphHypernetwork(nn.Module):
    """GHN(G, a; φ): weights for any client's architecture, from one network at the server.

    Made by :meth:`for_graphs`, which sizes it; afterwards it takes any graph whose tensors fill
    slots that it knows, of whatever size.

    Args:
        vocabulary: The operators that it tells apart.
        largest: For each slot, the largest size of each dimension.
        width: Size of a node's features.
        hidden: Size of the decoders' hidden layers.
        steps: Traversals in both directions (τ).
        reach: Longest of the shortest paths along which a node hears another one directly, over a
            virtual edge; 1: over edges alone.
        bins: Numbers that a tensor is summarised by for the encoder.
        piece: Bins in a piece; the encoder attends to all pieces.
        decoders: ``tiled``: a tile that is repeated. ``low_rank``: a sum of outer products.
        tile: Longest side of a tile.
        rank: Terms of a sum of outer products.
        descriptor: Size of a client's descriptor (a_m); 0: clients are not described.
        clients: Clients that are described by an embedding of their ids, learned with φ; 0: their
            descriptors are given.
        mixing: How a node's word and the code of its tensors become its features: ``concat``, then
            a linear layer; ``sum``, with an embedding of its largest tensor's shape.
        described: What the descriptor decides on: ``all`` tensors, or those of the ``head``, the
            last operator that multiplies with a weight.
        shifts: Whether biases of normalisation are ``generated``, or stay ``local``.

    Raises:
        GraphError: If ``bins`` are not whole pieces.

    Source:
        RecipFL §3.2; ``sum``, ``head`` and ``local`` are the authors' code.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        largest: Mapping[DecoderSlot, tuple[int, ...]],
        *,
        width: int = 128,
        hidden: int = 256,
        steps: int = 1,
        reach: int = 1,
        bins: int = 128,
        piece: int = 8,
        decoders: DecoderKind = "tiled",
        tile: int = 64,
        rank: int = 8,
        descriptor: int = 0,
        clients: int = 0,
        mixing: Literal["concat", "sum"] = "concat",
        described: Literal["all", "head"] = "all",
        shifts: Literal["generated", "local"] = "generated",
    ) -> None:
        super().__init__()
        self.vocabulary, self.descriptor = vocabulary, descriptor
        self.described, self.shifts, self.reach = described, shifts, reach
        self.slots = {slot: number for number, slot in enumerate(sorted(largest))}
        self.word = nn.Embedding(len(vocabulary), width)
        self.encoder = ParameterEncoder(len(self.slots), width, bins=bins, piece=piece)
        # One of the two: concatenation and a linear layer, or a sum.
        self.join = nn.Linear(2 * width, width) if mixing == "concat" else None
        self.shape = ShapeEncoder(width) if mixing == "sum" else None
        self.client = nn.Embedding(clients, descriptor) if clients else None
        self.gnn = GatedGNN(width, steps, virtual=reach > 1)
        self.norm = nn.LayerNorm(width)
        self.decoders = nn.ModuleList(
            decoder(decoders, width + descriptor, hidden, largest[slot], tile, rank)
            for slot in self.slots
        )

    @classmethod
    def for_graphs(
        cls, graphs: Sequence[ArchGraph], *, seed: int = 0, **options: Any
    ) -> GraphHypernetwork:
        """Build a hypernetwork with a word per operator, and a decoder per slot, of these graphs.

        Args:
            graphs: Architectures that it shall generate.
            seed: Seed of its initial weights φ.
            options: Options of the class.

        Example:
            >>> from archgraph.capture.trace import trace
            >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
            >>> network = GraphHypernetwork.for_graphs([graph])
            >>> {k: tuple(v.shape) for k, v in network.generate([graph], [state])[0].items()}
            {'weight': (2, 3), 'bias': (2,)}
        """
        largest: dict[DecoderSlot, tuple[int, ...]] = {}
        shifts = options.get("shifts", "generated")
        for graph in graphs:
            for entry in _generated(graph, shifts):
                known = largest.get(entry.slot, entry.shape)
                largest[entry.slot] = tuple(map(max, known, entry.shape))
        # The caller's random state stays as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(Vocabulary.of(graphs), largest, **options)

    def unset(self, graph: ArchGraph) -> Mapping[str, LocalRule | Literal["shift"]]:
        """Return the names of a state that stay on the client, each with its rule.

        Raises:
            GraphError: If a tensor is neither generated nor local by a rule.
        """
        generated = self.entries(graph)
        for entry in generated:
            self._number(entry)  # refuses a tensor without a decoder
        rules: dict[str, LocalRule | Literal["shift"]] = {**local(graph)}
        return rules | {e.name: "shift" for e in entries(graph) if e not in generated}

    def entries(self, graph: ArchGraph) -> tuple[GeneratedTensor, ...]:
        """Return the generated tensors of a graph, in state order."""
        return _generated(graph, self.shifts)

    def generate(
        self,
        graphs: Sequence[ArchGraph],
        states: Sequence[State],
        descriptor: Tensor | None = None,
    ) -> list[dict[str, Tensor]]:
        """Generate weights for clients, differentiable in φ.

        Args:
            graphs: Each client's architecture.
            states: Each client's current weights (q_v), used without gradients.
            descriptor: [clients, descriptor], what is known of each client's data; or where ids are
                embedded, those: int64 [clients].

        Returns:
            For each client the generated part of its state; :meth:`unset` names the rest.

        Raises:
            GraphError: If a tensor has no decoder, or a state or descriptor does not fit.
        """
        codes = self._codes(graphs, states, descriptor)
        # The codes of a key are in the order of clients and entries: each takes the next one.
        rows = {key: iter(code.unbind()) for key, code in codes.items()}
        return [
            {
                e.name: self._tensors(next(rows[self._key(e)])[None], e)[0].to(e.dtype)
                for e in self.entries(g)
            }
            for g in graphs
        ]

    def pull_back(
        self,
        graphs: Sequence[ArchGraph],
        states: Sequence[State],
        trained: Sequence[State],
        descriptor: Tensor | None = None,
        weights: Sequence[float] | None = None,
    ) -> float:
        """Add Σ_m w_m Jᵀ(θ̃_m − θ_m) to φ's gradients: descending them moves θ̃ to what was trained.

        Only tensors of one size, and few, exist at a time.

        Args:
            graphs: As for :meth:`generate`.
            states: As they were when the clients' weights were generated.
            trained: The clients' weights after training (θ_m).
            descriptor: As for :meth:`generate`.
            weights: Weight of each client; default 1.

        Returns:
            The loss whose gradient this is, Σ_m w_m ½‖θ̃_m − θ_m‖².

        Raises:
            GraphError: As :meth:`generate`; or a trained tensor is missing or has another shape.

        Source:
            RecipFL, Eq. 4, whose printed sign is that of ascent.
        """
        self.check(graphs, trained)
        codes = self._codes(graphs, states, descriptor)
        gradients = {key: torch.zeros_like(code) for key, code in codes.items()}
        total: float | Tensor = 0.0
        for key, alike in self._alike(graphs).items():
            rows, clients, tensors = zip(*alike, strict=True)
            at = to_device(torch.tensor(rows), codes[key[0]].device)
            code = codes[key[0]].detach()[at].requires_grad_()
            value = self._tensors(code, tensors[0])
            # Sent weights were rounded to the tensor's type; the gap to them is not.
            wide = torch.promote_types(value.dtype, tensors[0].dtype)
            gap = value.detach().to(tensors[0].dtype).to(wide, copy=True)
            theirs = [
                to_device(trained[m][e.name].detach(), gap.device).to(gap.dtype)
                for m, e in zip(clients, tensors, strict=True)
            ]
            torch._foreach_sub_(gap.unbind(), theirs)
            share = torch.tensor(
                [1.0 if weights is None else weights[m] for m in clients], dtype=torch.float64
            )
            share = to_device(share, gap.device)
            total = total + share @ _squares(gap) / 2
            if weights is not None:
                gap.mul_(share.to(gap.dtype).view(-1, *[1] * (gap.dim() - 1)))
            # The gap is the gradient of half its square; the graph of these tensors ends here.
            value.backward(gap.to(value))
            gradients[key[0]][at] = cast(Tensor, code.grad)
        # One pass back through the network for all clients, from the gradients of their codes.
        if codes:
            torch.autograd.backward(list(codes.values()), list(gradients.values()))
        return float(total)

    # -- parts ----------------------------------------------------------------------------------

    def _codes(
        self, graphs: Sequence[ArchGraph], states: Sequence[State], descriptor: Tensor | None
    ) -> dict[CodeKey, Tensor]:
        """Return the codes of the tensors of each key, client by client in the order of entries."""
        self.check(graphs, states)
        described = self._described(graphs, descriptor)
        batch = to_batch(graphs, self.vocabulary, self.reach)
        starts, device = batch.ptr.tolist(), self.word.weight.device
        tensors: list[Tensor] = []
        slots, nodes, clients, informed = [], [], [], []
        places: dict[CodeKey, list[int]] = {}
        largest: dict[CodeKey, tuple[int, ...]] = {}
        for m, graph in enumerate(graphs):
            ends: frozenset[str] = frozenset()  # tensors of the last operator with a weight
            if last := head(graph):
                ends = weight_operands(graph)[last[0]] | set(graph.node[last[0]].leaves())
            for entry in self.entries(graph):
                informed.append(self.described == "all" or entry.name in ends)
                key = self._key(entry)
                places.setdefault(key, []).append(len(tensors))
                largest[key] = tuple(map(max, largest.get(key, entry.shape), entry.shape))
                tensors.append(states[m][entry.name])
                slots.append(key[0])
                nodes.append(starts[m] + entry.node)
                clients.append(m)
        words = self.word(to_device(batch.word, device))
        current = torch.zeros_like(words)
        slot, node, client = (
            to_device(torch.tensor(x, dtype=torch.long), device) for x in (slots, nodes, clients)
        )
        if tensors:
            codes = self.encoder(tensors, slot)
            # A node's tensors are averaged: features do not grow with their number.
            number = torch.tensor(nodes)  # of positions: known without the device's values
            share = to_device(1 / torch.bincount(number)[number].to(codes.dtype), device)
            current = current.index_add(0, node, codes * share[:, None])
        if self.join is not None:
            features = self.join(torch.cat([words, current], 1))
        else:
            assert self.shape is not None
            features = words + current + self.shape(tensors, nodes, len(words))
        if not features.is_meta:  # a check needs shapes alone, and a traversal keeps them
            # A plan is cached per graph, on the CPU.
            plans = sweeps_alone(graphs[0], self.reach) if len(graphs) == 1 else sweeps(batch)
            features = self.gnn(features, *sweeps_on(plans, device))
        features = self.norm(features)
        is_described = to_device(torch.tensor(informed, dtype=torch.bool), device)[:, None]
        by_key = {}
        for key, chosen in places.items():
            rows = to_device(torch.tensor(chosen), device)
            about = described[client[rows]] * is_described[rows]
            inputs = torch.cat([features[node[rows]], about], 1)
            by_key[key] = self.decoders[key[0]](inputs, largest[key])
        return by_key

    def _described(self, graphs: Sequence[ArchGraph], descriptor: Tensor | None) -> Tensor:
        """Return descriptors [clients, descriptor], with 0 columns for undescribed clients."""
        if self.client is not None and descriptor is not None and descriptor.dim() == 1:
            descriptor = self.client(to_device(descriptor, self.client.weight.device))
        expected = (len(graphs), self.descriptor)
        descriptors = torch.zeros(len(graphs), 0) if descriptor is None else descriptor
        if tuple(descriptors.shape) != expected:
            raise GraphError(
                "descriptors do not fit", found=tuple(descriptors.shape), expected=expected
            )
        return to_device(descriptors.to(self.word.weight.dtype), self.word.weight.device)

    def _number(self, entry: GeneratedTensor) -> int:
        number = self.slots.get(entry.slot)
        if number is None:
            hint = "size the hypernetwork for this graph too (for_graphs)"
            raise GraphError(
                "tensor without a decoder", where=entry.name, found=entry.slot, hint=hint
            )
        return number

    def check(self, graphs: Sequence[ArchGraph], states: Sequence[State]) -> None:
        """Check that there is a decoder for every tensor of some graphs, and that states fit them.

        Raises:
            GraphError: If there is not one state for each graph; or names the tensor.
        """
        if not isinstance(graphs, Sequence) or len(graphs) != len(states):
            raise GraphError(
                "a list of graphs and a list with a state for each are needed",
                found=f"{type(graphs).__name__}, {len(states)} states",
            )
        for graph, state in zip(graphs, states, strict=True):
            for entry in self.entries(graph):
                self._number(entry)
                shape = tuple(state[entry.name].shape) if entry.name in state else "nothing"
                if shape != entry.shape:
                    raise GraphError(
                        "state does not fit", where=entry.name, found=shape, expected=entry.shape
                    )

    def _key(self, entry: GeneratedTensor) -> CodeKey:
        """Return the slot and kernel whose tensors are decoded together.

        Kernels apart: beside ones of 3 × 3, a convolution of 1 × 1 needs a ninth of the code.
        """
        return self._number(entry), entry.shape[2:]

    def _alike(
        self, graphs: Sequence[ArchGraph]
    ) -> dict[tuple[CodeKey, Any, int], list[tuple[int, int, GeneratedTensor]]]:
        """Group tensors of clients that are decoded alike, at most ``AT_ONCE`` values each.

        Returns:
            Row of its code, client and entry of each, by key, way and number of the lot.
        """
        row: Counter[CodeKey] = Counter()
        before: Counter[tuple[CodeKey, Any]] = Counter()
        alike: dict[tuple[CodeKey, Any, int], list[tuple[int, int, GeneratedTensor]]] = {}
        for m, graph in enumerate(graphs):
            for entry in self.entries(graph):
                key, way = self._key(entry), (entry.shape, entry.dtype, entry.form, entry.scale)
                size = math.prod(entry.shape)
                lot = before[key, way] // max(AT_ONCE // max(size, 1), 1)
                # A tensor without values has a code, but nothing to pull back.
                if size:
                    alike.setdefault((key, way, lot), []).append((row[key], m, entry))
                row[key] += 1
                before[key, way] += 1
        return alike

    def _tensors(self, codes: Tensor, entry: GeneratedTensor) -> Tensor:
        decode = self.decoders[self._number(entry)]
        assert isinstance(decode, Decoder)
        return decode.tensors(codes, entry.shape, entry.formed)


def _squares(gaps: Tensor) -> Tensor:
    """Return Σ g² of each row, piecewise: one float32 sum of 40 M numbers is 0.5 % short."""
    parts = gaps.shape[1] if gaps.dim() > 2 else 1
    lengths = torch.linalg.vector_norm(gaps.reshape(len(gaps), parts, -1), dim=2)
    return lengths.double().square().sum(1)


def _generated(graph: ArchGraph, shifts: str) -> tuple[GeneratedTensor, ...]:
    """Return the generated entries of a graph, without norm biases where those stay local."""
    return tuple(
        entry
        for entry in entries(graph)
        if shifts == "generated"
        or entry.form != "shift"
        or not row(graph.nodes[entry.node].op).normalises
    )


class ShapeEncoder(nn.Module):
    """The shape of a node's largest tensor as a vector; of a node without tensors 0.

    Args:
        width: Size of the vector.

    Source:
        The shape embedding of the authors' code, there a table of the sizes that occur: here one of
        their logarithms, in steps of a quarter, so that any size has an entry.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # As equal parts of the width as possible, the larger ones first.
        self.sizes = nn.ModuleList(
            nn.Embedding(QUARTERS, (width + i) // DIMENSIONS) for i in reversed(range(DIMENSIONS))
        )

    def forward(self, tensors: Sequence[Tensor], node: Sequence[int], nodes: int) -> Tensor:
        """Return vectors of nodes.

        Args:
            tensors: Tensors of any shapes.
            node: The node of each.
            nodes: Number of nodes.

        Returns:
            [nodes, width].
        """
        largest: dict[int, Tensor] = {}
        for position, tensor in zip(node, tensors, strict=True):
            if position not in largest or tensor.numel() > largest[position].numel():
                largest[position] = tensor
        codes = [
            [_quarters(size) for size in (*tensor.shape, *[1] * DIMENSIONS)[:DIMENSIONS]]
            for tensor in largest.values()
        ]
        device = next(self.parameters()).device
        index = to_device(torch.tensor(codes, dtype=torch.long), device).reshape(-1, DIMENSIONS)
        vectors = torch.cat([table(index[:, i]) for i, table in enumerate(self.sizes)], 1)
        at = to_device(torch.tensor(list(largest), dtype=torch.long), device)
        return vectors.new_zeros(nodes, vectors.shape[1]).index_add(0, at, vectors)


DIMENSIONS, QUARTERS = 4, 128


def _quarters(size: int) -> int:
    """Return four times a size's logarithm to base 2, rounded: 1 → 0, 2 → 4, 3 → 6."""
    return min(round(4 * math.log2(max(size, 1))), QUARTERS - 1)
