"""The graph hypernetwork: maps architectures and their current weights to new weights."""

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


CodeKey = tuple[int, tuple[int, ...]]  # index of a slot, size of the kernel

AT_ONCE = 2**21  # maximum number of values that `pull_back` generates at a time, or one tensor


class GraphHypernetwork(nn.Module):
    """GHN(G, a; φ): a network on the server that generates weights for many architectures.

    Create the network with :meth:`for_graphs`, which computes ``vocabulary`` and ``largest`` from
    graphs. The network also accepts graphs that were not passed to :meth:`for_graphs`, if the slot
    of each of their tensors (see :class:`DecoderSlot`) occurs in a graph that was passed. The sizes
    of the tensors may differ.

    Args:
        vocabulary: The operators that the network distinguishes.
        largest: Dict from slot to the largest size of each dimension among the slot's tensors.
        width: Size of a node's features.
        hidden: Size of the decoders' hidden layers.
        steps: Number of times that the graph is traversed forward and backward (τ).
        reach: Maximum length of a shortest path that becomes a virtual edge. With 1, the network
            uses only the graph's edges.
        bins: Maximum number of means to which the values of a tensor are reduced for the encoder.
        piece: Number of means per token. The encoder is a Transformer.
        decoders: Class of the decoders: ``tiled`` (:class:`Tiled`) or ``low_rank``
            (:class:`LowRank`).
        tile: Maximum side length of a tile.
        rank: Number of outer products in a sum, for ``low_rank`` decoders.
        descriptor: Size of a client's descriptor (a_m). 0 if no descriptors are used.
        clients: Number of clients, if descriptors are learned embeddings of the clients' ids. 0 if
            descriptors are passed.
        mixing: How the features of a node are computed from the embedding of its operator and the
            code of its tensors. ``concat``: by a linear layer whose input is both vectors. ``sum``:
            as the sum of both vectors and an embedding of the shape of the node's largest tensor.
        described: The tensors that the client's descriptor affects. ``all``: all tensors. ``head``:
            the tensors of the last operator that multiplies its input by a weight.
        shifts: Whether biases of norm layers are ``generated``, or stay on the client (``local``).

    Raises:
        GraphError: If ``bins`` is not a positive multiple of ``piece``.

    Source:
        RecipFL §3.2; ``sum``, ``head`` and ``local`` follow the authors' code.
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
        """Create a hypernetwork that can generate all tensors of these graphs.

        Args:
            graphs: Architectures to generate weights for.
            seed: Seed of the initial parameters φ.
            options: Further arguments of the class.

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
        # Do not change the caller's random state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(Vocabulary.of(graphs), largest, **options)

    def unset(self, graph: ArchGraph) -> Mapping[str, LocalRule | Literal["shift"]]:
        """Return the tensors that are not generated, as a dict from name to reason.

        Raises:
            GraphError: If a tensor that should be generated has no decoder.
        """
        generated = self.entries(graph)
        for entry in generated:
            self._number(entry)  # raises an error for a tensor without a decoder
        rules: dict[str, LocalRule | Literal["shift"]] = {**local(graph)}
        return rules | {e.name: "shift" for e in entries(graph) if e not in generated}

    def entries(self, graph: ArchGraph) -> tuple[GeneratedTensor, ...]:
        """Return the tensors of a graph that are generated, in the order of the state."""
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
            states: Each client's current weights (q_v). No gradients flow to these weights.
            descriptor: Descriptors of each client's data, [clients, descriptor]. If the network
                embeds clients' ids, pass the ids instead, int64 [clients].

        Returns:
            For each client, a dict from name to generated tensor. :meth:`unset` returns the names
            of all other tensors.

        Raises:
            GraphError: If a tensor has no decoder, or a state or descriptor has the wrong shape.
        """
        codes = self._codes(graphs, states, descriptor)
        # The codes of a key are in the order of clients and entries: take them one by one.
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
        """Add the gradient of the loss Σ_m w_m ½‖θ̃_m − θ_m‖² to the ``grad`` of the parameters φ.

        Gradient descent then moves the generated weights θ̃_m towards the trained weights θ_m. Only
        a few generated tensors are in memory at a time.

        Args:
            graphs: As in :meth:`generate`.
            states: The states from which the clients' weights were generated.
            trained: The clients' weights after training (θ_m).
            descriptor: As in :meth:`generate`.
            weights: Weight of each client. Default: 1.

        Returns:
            The loss.

        Raises:
            GraphError: As in :meth:`generate`, or if a trained tensor is missing or has another
                shape.

        Source:
            RecipFL, Eq. 4. The paper prints the equation with the opposite sign.
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
            # Sent weights were rounded to the tensor's dtype; the difference to them is not.
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
            # The difference is the gradient of half its square; these tensors' graph ends here.
            value.backward(gap.to(value))
            gradients[key[0]][at] = cast(Tensor, code.grad)
        # One backward pass through the network for all clients, from the gradients of their codes.
        if codes:
            torch.autograd.backward(list(codes.values()), list(gradients.values()))
        return float(total)

    # -- parts ----------------------------------------------------------------------------------

    def _codes(
        self, graphs: Sequence[ArchGraph], states: Sequence[State], descriptor: Tensor | None
    ) -> dict[CodeKey, Tensor]:
        """Return the codes of each key's tensors, client by client in the order of entries."""
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
            # Average a node's tensors, so that features do not grow with their number.
            number = torch.tensor(nodes)  # of positions: known without values from the device
            share = to_device(1 / torch.bincount(number)[number].to(codes.dtype), device)
            current = current.index_add(0, node, codes * share[:, None])
        if self.join is not None:
            features = self.join(torch.cat([words, current], 1))
        else:
            assert self.shape is not None
            features = words + current + self.shape(tensors, nodes, len(words))
        if not features.is_meta:  # a check only needs shapes, which a traversal does not change
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
        """Return descriptors [clients, descriptor], with 0 columns if clients are not described."""
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
            hint = "create the hypernetwork for this graph, too (for_graphs)"
            raise GraphError(
                "tensor without a decoder", where=entry.name, found=entry.slot, hint=hint
            )
        return number

    def check(self, graphs: Sequence[ArchGraph], states: Sequence[State]) -> None:
        """Check that each tensor of some graphs has a decoder, and that states match the graphs.

        Raises:
            GraphError: If the numbers of graphs and states differ, a tensor has no decoder, or a
                state does not match its graph. The message names the tensor.
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
        """Return the slot and kernel size, by which tensors are decoded together.

        Kernel sizes are separate: next to 3 × 3 kernels, a 1 × 1 convolution needs a ninth of the
        code.
        """
        return self._number(entry), entry.shape[2:]

    def _alike(
        self, graphs: Sequence[ArchGraph]
    ) -> dict[tuple[CodeKey, Any, int], list[tuple[int, int, GeneratedTensor]]]:
        """Group clients' tensors that are decoded equally, at most ``AT_ONCE`` values per group.

        Returns:
            Row of the code, client and entry of each tensor, by key, form and group number.
        """
        row: Counter[CodeKey] = Counter()
        before: Counter[tuple[CodeKey, Any]] = Counter()
        alike: dict[tuple[CodeKey, Any, int], list[tuple[int, int, GeneratedTensor]]] = {}
        for m, graph in enumerate(graphs):
            for entry in self.entries(graph):
                key, way = self._key(entry), (entry.shape, entry.dtype, entry.form, entry.scale)
                size = math.prod(entry.shape)
                lot = before[key, way] // max(AT_ONCE // max(size, 1), 1)
                # An empty tensor has a code, but nothing to pull back.
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
    """Return Σ g² of each row, in parts: a single float32 sum of 40 M numbers is 0.5 % too low."""
    parts = gaps.shape[1] if gaps.dim() > 2 else 1
    lengths = torch.linalg.vector_norm(gaps.reshape(len(gaps), parts, -1), dim=2)
    return lengths.double().square().sum(1)


def _generated(graph: ArchGraph, shifts: str) -> tuple[GeneratedTensor, ...]:
    """Return the generated entries of a graph, without norm biases if those stay local."""
    return tuple(
        entry
        for entry in entries(graph)
        if shifts == "generated"
        or entry.form != "shift"
        or not row(graph.nodes[entry.node].op).normalises
    )


class ShapeEncoder(nn.Module):
    """Encode the shape of a node's largest tensor as a vector; 0 for a node without tensors.

    Args:
        width: Size of the vector.

    Source:
        The authors' code has an embedding for each size that occurs. This class embeds the base-2
        logarithm, rounded to quarters, so that every size has an embedding.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # Split the width as evenly as possible, larger parts first.
        self.sizes = nn.ModuleList(
            nn.Embedding(QUARTERS, (width + i) // DIMENSIONS) for i in reversed(range(DIMENSIONS))
        )

    def forward(self, tensors: Sequence[Tensor], node: Sequence[int], nodes: int) -> Tensor:
        """Return the vectors of all nodes.

        Args:
            tensors: Tensors of any shapes.
            node: Index of the node to which each tensor belongs.
            nodes: Number of nodes.

        Returns:
            Vectors [nodes, width].
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
    """Return four times the base-2 logarithm of a size, rounded: 1 → 0, 2 → 4, 3 → 6."""
    return min(round(4 * math.log2(max(size, 1))), QUARTERS - 1)
