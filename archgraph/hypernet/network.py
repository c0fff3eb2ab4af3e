"""The graph hypernetwork: architectures and their current weights in, new weights out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from archgraph.errors import GraphError
from archgraph.hypernet.decoders import Decoder, Kind, decoder
from archgraph.hypernet.encoder import ParameterEncoder
from archgraph.hypernet.gnn import GatedGNN
from archgraph.hypernet.graphs import (
    Entry,
    Rule,
    Slot,
    Vocabulary,
    entries,
    local,
    sweeps,
    to_batch,
)
from archgraph.ir import ArchGraph

if TYPE_CHECKING:
    from archgraph.ir import State


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
        decoders: ``tiled``: a tile that is repeated. ``low_rank``: a sum of outer products.
        tile: Longest side of a tile.
        rank: Terms of a sum of outer products.
        descriptor: Size of a client's descriptor (a_m); 0: clients are not described.

    Source:
        RecipFL §3.2.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        largest: Mapping[Slot, tuple[int, ...]],
        *,
        width: int = 128,
        hidden: int = 256,
        steps: int = 1,
        decoders: Kind = "tiled",
        tile: int = 64,
        rank: int = 8,
        descriptor: int = 0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.descriptor = vocabulary, descriptor
        self.slots = {slot: number for number, slot in enumerate(sorted(largest))}
        self.word = nn.Embedding(len(vocabulary), width)
        self.encoder = ParameterEncoder(len(self.slots), width)
        self.join = nn.Linear(2 * width, width)
        self.gnn = GatedGNN(width, steps)
        self.norm = nn.LayerNorm(width)
        self.decoders = nn.ModuleList(
            decoder(decoders, width + descriptor, hidden, largest[slot], tile, rank)
            for slot in self.slots
        )

    @classmethod
    def for_graphs(
        cls, graphs: Sequence[ArchGraph], *, seed: int = 0, **options: Any
    ) -> GraphHypernetwork:
        """A hypernetwork with a word for every operator, and a decoder for every slot, of graphs.

        Args:
            graphs: Architectures that it shall generate.
            seed: Seed of its initial weights φ.
            options: Options of the class.

        Example:
            >>> from archgraph.trace import trace
            >>> graph, state = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
            >>> network = GraphHypernetwork.for_graphs([graph])
            >>> {k: tuple(v.shape) for k, v in network.generate([graph], [state])[0].items()}
            {'weight': (2, 3), 'bias': (2,)}
        """
        largest: dict[Slot, tuple[int, ...]] = {}
        for graph in graphs:
            for entry in entries(graph):
                known = largest.get(entry.slot, entry.shape)
                largest[entry.slot] = tuple(map(max, known, entry.shape))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(Vocabulary.of(graphs), largest, **options)

    def unset(self, graph: ArchGraph) -> Mapping[str, Rule]:
        """Names of a state that stay on the client, each with its rule.

        Raises:
            GraphError: If a tensor is neither generated nor local by a rule.
        """
        for entry in entries(graph):
            self._number(entry)
        return local(graph)

    def generate(
        self,
        graphs: Sequence[ArchGraph],
        states: Sequence[State],
        descriptor: Tensor | None = None,
    ) -> list[dict[str, Tensor]]:
        """Weights for clients, differentiable in φ.

        Args:
            graphs: Each client's architecture.
            states: Each client's current weights (q_v), through which no gradient flows.
            descriptor: [clients, descriptor], what is known of each client's data.

        Returns:
            For each client the generated part of its state; :meth:`unset` names the rest.

        Raises:
            GraphError: If no decoder sets a tensor, or a state or descriptor does not fit.
        """
        codes = self._codes(graphs, states, descriptor)
        rows = [iter(code.unbind()) for code in codes]
        return [
            {
                entry.name: self._tensor(next(rows[self._number(entry)]), entry)
                for entry in entries(g)
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

        Only one generated tensor exists at a time.

        Args:
            graphs: As for :meth:`generate`.
            states: As they were when the clients' weights were generated.
            trained: What the clients made of them (θ_m).
            descriptor: As for :meth:`generate`.
            weights: Weight of each client; default 1.

        Returns:
            The loss whose gradient this is, Σ_m w_m ½‖θ̃_m − θ_m‖².

        Raises:
            GraphError: As :meth:`generate`; or a trained tensor is missing or has another shape.

        Source:
            RecipFL, Eq. 4, whose printed sign is that of ascent.
        """
        _check(graphs, trained)
        if weights is not None and len(weights) != len(graphs):
            raise GraphError(
                "not a weight for each client", found=len(weights), expected=len(graphs)
            )
        codes = self._codes(graphs, states, descriptor)
        gradients = [torch.zeros_like(code) for code in codes]
        rows = [iter(_leaves(*pair)) for pair in zip(codes, gradients, strict=True)]
        total = 0.0
        for m, graph in enumerate(graphs):
            weight = 1.0 if weights is None else weights[m]
            for entry in entries(graph):
                value = self._tensor(next(rows[self._number(entry)]), entry)
                gap = value.detach() - trained[m][entry.name].detach().to(value)
                total += weight / 2 * float(torch.linalg.vector_norm(gap)) ** 2
                value.backward(gap.mul_(weight))
        used = [number for number, code in enumerate(codes) if len(code)]
        if used:
            torch.autograd.backward([codes[i] for i in used], [gradients[i] for i in used])
        return total

    # -- parts ----------------------------------------------------------------------------------

    def _codes(
        self, graphs: Sequence[ArchGraph], states: Sequence[State], descriptor: Tensor | None
    ) -> list[Tensor]:
        """For each slot the codes of its tensors, client by client in the order of entries."""
        _check(graphs, states)
        described = self._described(graphs, descriptor)
        batch = to_batch(graphs, self.vocabulary).to(self.word.weight.device)
        tensors, slots, nodes, clients = [], [], [], []
        for m, graph in enumerate(graphs):
            for entry in entries(graph):
                tensors.append(states[m][entry.name])
                slots.append(self._number(entry))
                nodes.append(int(batch.ptr[m]) + entry.node)
                clients.append(m)
        words = self.word(batch.word)
        known = torch.zeros_like(words)
        slot, node, client = (
            torch.tensor(x, dtype=torch.long, device=words.device) for x in (slots, nodes, clients)
        )
        if tensors:
            codes = self.encoder(tensors, slot)
            share = 1 / torch.bincount(node, minlength=len(words))[node].to(codes)
            known = known.index_add(0, node, codes * share[:, None])
        features = self.norm(self.gnn(self.join(torch.cat([words, known], 1)), *sweeps(batch)))
        found = []
        for number, decode in enumerate(self.decoders):
            rows = torch.nonzero(slot == number).flatten()
            found.append(decode(torch.cat([features[node[rows]], described[client[rows]]], 1)))
        return found

    def _described(self, graphs: Sequence[ArchGraph], descriptor: Tensor | None) -> Tensor:
        """Descriptors [clients, descriptor], of no columns where clients are not described."""
        expected = (len(graphs), self.descriptor)
        given = torch.zeros(len(graphs), 0) if descriptor is None else descriptor
        if tuple(given.shape) != expected:
            raise GraphError("descriptors do not fit", found=tuple(given.shape), expected=expected)
        return given.to(self.word.weight)

    def _number(self, entry: Entry) -> int:
        found = self.slots.get(entry.slot)
        if found is None:
            raise GraphError(
                "no decoder sets this tensor",
                where=entry.name,
                found=entry.slot,
                expected=", ".join(map(str, self.slots)),
                hint="size the hypernetwork for this graph too (for_graphs)",
            )
        return found

    def _tensor(self, code: Tensor, entry: Entry) -> Tensor:
        decode = self.decoders[self._number(entry)]
        assert isinstance(decode, Decoder)
        return decode.tensor(code, entry.shape, entry.formed).to(entry.dtype)


def _leaves(codes: Tensor, gradients: Tensor) -> list[Tensor]:
    """Rows of codes as leaves of their own graphs, whose gradients are summed in place."""
    leaves = []
    for row, gradient in zip(codes.detach().unbind(), gradients.unbind(), strict=True):
        row.requires_grad_()
        row.grad = gradient
        leaves.append(row)
    return leaves


def _check(graphs: Sequence[ArchGraph], states: Sequence[State]) -> None:
    if len(states) != len(graphs):
        raise GraphError("not a state for each client", found=len(states), expected=len(graphs))
    for graph, state in zip(graphs, states, strict=True):
        for entry in entries(graph):
            found = tuple(state[entry.name].shape) if entry.name in state else "nothing"
            if found != entry.shape:
                raise GraphError(
                    "state does not fit", where=entry.name, found=found, expected=entry.shape
                )
