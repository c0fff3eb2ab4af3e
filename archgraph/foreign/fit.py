"""A graph beside the class that its model came from: which arguments the class needs for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from archgraph.analysis.axes import axes
from archgraph.errors import ErrorFacts, RewriteError
from archgraph.foreign.compare import FunctionComparison
from archgraph.foreign.search import (
    Arguments,
    ArgumentSearch,
    StateShapes,
    get,
    numbers_in,
    renumbered,
    runs,
    unequal_sizes,
)
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed
from archgraph.module.build import state_dict
from archgraph.states import State

# Configurations of the right shapes whose results are compared before the search is given up.
COMPARED = 64


class Fit:
    """A graph beside the class that its model came from.

    Attributes:
        label: What the arguments are called in errors: the name of a class.
        start: The arguments of the original model.
        names: Names in the class by those in the graph, for all that the class has.
        target: StateShapes by the names in the class.

    Args:
        graph: The network.
        state: Its weights.
        model: The original model.
        start: Its arguments.
        make: Constructs the network of some arguments.
        label: See above.
        derived: Entries of the arguments that the class computes where they are missing.
    """

    def __init__(
        self,
        graph: ArchGraph,
        state: State,
        model: nn.Module,
        start: Arguments,
        make: Callable[[Arguments], nn.Module],
        *,
        label: str,
        derived: frozenset[str] = frozenset(),
    ) -> None:
        self.graph, self.model, self.start, self.label = graph, model, start, label
        self._make, self._derived = make, derived
        self._tensors = state_dict(graph, state)
        original = shapes_of(model)
        # Tables that a class computes are buffers which its state lacks.
        computed = {name for name, _ in model.named_buffers()} - original.keys()
        # What forward does not read is not cut with the rest.
        unread = {p.name for p in graph.params if not graph.leaf_users[p.name]}
        self.names = {
            name: new
            for name, new in renumbered(set(self._tensors), set(original)).items()
            if new not in computed and name not in unread
        }
        foreign = sorted(n for n, new in self.names.items() if new not in original)
        if foreign:
            raise RewriteError(
                f"{type(model).__name__} has no such tensor",
                where=foreign[0],
                found=listed(foreign),
                hint="adapters are written with ag.to_peft; fold what else was added",
            )
        self.target: StateShapes = {n: tuple(self._tensors[k].shape) for k, n in self.names.items()}

    def arguments(self) -> Arguments:
        """Return the first arguments that give these shapes and the same function.

        Raises:
            RewriteError: If there are none; says which axis is in the way.
        """
        remaining = {
            prefix: [*map(int, numbers)] for prefix, numbers in runs(set(self.names)).items()
        }
        search = ArgumentSearch(self._meta, self.start, self.target, remaining, self._derived)
        compares = FunctionComparison(self.graph, self.names)
        tried = 0
        for arguments in itertools.islice(search.fitting(), COMPARED):
            if compares(self.module(arguments)):
                return arguments
            tried += 1
        raise self._no_fit(search, tried)

    def module(self, arguments: Arguments) -> nn.Module:
        """Construct the network of some arguments; the caller's random numbers stay."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._make(arguments)

    def filled(self, arguments: Arguments) -> nn.Module:
        """Construct the network of some arguments, with the weights.

        What forward does not read comes from the original model, where it has the same shape.
        """
        net = self.module(arguments)
        full, spare = net.state_dict(), self.model.state_dict()
        values = {new: self._tensors[name] for name, new in self.names.items()}
        for name in full.keys() - values.keys():
            if name in spare and spare[name].shape == full[name].shape:
                values[name] = spare[name]
        net.load_state_dict(values, strict=False, assign=True)
        return net

    def changes(self, arguments: Arguments) -> dict[str, Any]:
        """Return the numbers of arguments that differ from the original ones."""
        pairs = ((way, value, get(arguments, way)) for way, value in numbers_in(self.start))
        return {".".join(map(str, w)): new for w, old, new in pairs if new not in (old, None)}

    def _meta(self, arguments: Arguments) -> StateShapes:
        with torch.device("meta"):
            return shapes_of(self.module(arguments))

    def _no_fit(self, search: ArgumentSearch, compared: int) -> RewriteError:
        """Return an error that says which axis is in the way."""
        nearest = search.nearest()
        name = self.label
        layouts = axes(self.graph)
        graph_name = {new: old for old, new in self.names.items()}
        if compared:
            sizes = {a.name: a.size for a in layouts.all if a.role in ("head_dim", "value_dim")}
            facts: ErrorFacts = {"found": listed(f"{k} = {v}" for k, v in sizes.items()) or None}
            facts["hint"] = (
                "the class computes from its sizes what the network keeps of the uncut one (a "
                "scale of attention or of an embedding) or has positions in another order"
            )
            return RewriteError(
                f"every {name} of these shapes computes something else",
                where=graph_name[next(iter(self.target))] if not sizes else next(iter(sizes)),
                **facts,
            )
        shapes = search.shapes(nearest) or {}
        wrong = unequal_sizes(self.target, shapes)
        lacking = sorted(n for n in self.target if n not in shapes)
        if not wrong:
            left = [n for n, s in self.target.items() if shapes.get(n) != s] or lacking
            return RewriteError(
                f"no {name} has this tensor beside the others",
                where=graph_name[left[0]],
                found=listed(graph_name[n] for n in left),
                hint="leave out the same blocks wherever the class repeats them",
            )
        changes = listed(f"{k}: {v}" for k, v in self.changes(nearest).items())
        (tensor, dim), (has, goal) = next(iter(wrong.items()))
        leaf = graph_name[tensor]
        owner = next(p.name for p in self.graph.params if leaf in (p.name, *p.aliases))
        return RewriteError(
            f"no {name} has these shapes: this axis is in the way",
            where=str(layouts.of(owner)[dim]),
            found=f"{leaf} with {goal} in dimension {dim}",
            expected=f"{has}, in the nearest configuration ({changes or 'the original one'})",
            hint="cut it as the configuration can: everywhere alike, or heads instead of their "
            "size; ag.save writes the network as it is",
        )


def shapes_of(net: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's state."""
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}
