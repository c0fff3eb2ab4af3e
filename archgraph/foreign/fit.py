"""A graph beside the class that its model came from: which arguments the class needs for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
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
        model: The original model, which may be without weights.
        start: Its arguments.
        make: Constructs the network of some arguments.
        label: See above.
        derived: Entries of the arguments that the class computes where they are missing.
        origins: Leaves of the original that those of the network come from, where known.
    """

    def __init__(
        self,
        graph: ArchGraph,
        model: nn.Module,
        start: Arguments,
        make: Callable[[Arguments], nn.Module],
        *,
        label: str,
        derived: frozenset[str] = frozenset(),
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self.graph, self.model, self.start, self.label = graph, model, start, label
        self._make, self._derived, self._origins = make, derived, dict(origins or {})
        params = [graph.param[name] for name in graph.state_names]
        shapes = {name: p.shape for p in params for name in (p.name, *p.aliases)}
        original = shapes_of(model)
        # Tables that a class computes are buffers which its state lacks.
        computed = {name for name, _ in model.named_buffers()} - original.keys()
        # What forward does not read is not cut with the rest.
        unread = {p.name for p in graph.params if not graph.leaf_users[p.name]}
        self.names = {
            name: new
            for name, new in renumbered(self._in_order(shapes), set(original)).items()
            if new not in computed and name not in unread
        }
        # A layer more is as those before it.
        alike = {_unnumbered(name) for name in original}
        foreign = sorted(n for n, new in self.names.items() if _unnumbered(new) not in alike)
        if foreign:
            raise RewriteError(
                f"{type(model).__name__} has no such tensor",
                where=foreign[0],
                found=listed(foreign),
                hint="adapters are written with ag.to_peft; fold what else was added",
            )
        self.target: StateShapes = {n: shapes[k] for k, n in self.names.items()}

    def arguments(
        self, same: Callable[[nn.Module], bool] | None = None, most: int = COMPARED
    ) -> Arguments:
        """Return the first arguments that give these shapes and the same function.

        Args:
            same: Whether a module computes what the graph does. Default: with random weights.
            most: How many modules are asked about.

        Raises:
            RewriteError: If there are none; says which axis is in the way.
        """
        search = ArgumentSearch(
            self._meta, self.start, self.target, self._remaining(), self._derived
        )
        same = same or FunctionComparison(self.graph, self.names)
        tried = 0
        for arguments in itertools.islice(search.fitting(), most):
            if same(self.module(arguments)):
                return arguments
            tried += 1
        raise self._no_fit(search, tried)

    def module(self, arguments: Arguments) -> nn.Module:
        """Construct the network of some arguments; the caller's random numbers stay."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._make(arguments)

    def filled(self, arguments: Arguments, state: State) -> nn.Module:
        """Construct the network of some arguments, with the weights.

        What forward does not read comes from the original model, where it has the same shape.
        """
        net = self.module(arguments)
        full, spare = net.state_dict(), self.model.state_dict()
        tensors = state_dict(self.graph, state)
        values = {new: tensors[name] for name, new in self.names.items()}
        for name in full.keys() - values.keys():
            if name in spare and spare[name].shape == full[name].shape:
                values[name] = spare[name]
        net.load_state_dict(values, strict=False, assign=True)
        return net

    def changes(self, arguments: Arguments) -> dict[str, Any]:
        """Return the numbers of arguments that differ from the original ones."""
        pairs = ((way, value, get(arguments, way)) for way, value in numbers_in(self.start))
        return {".".join(map(str, w)): new for w, old, new in pairs if new not in (old, None)}

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """Return the names in the order in which forward reads them, then the others."""
        owner = {n: p.name for p in self.graph.params for n in (p.name, *p.aliases)}
        read = (leaf for node in self.graph.nodes for leaf in node.leaves())
        turn = {leaf: i for i, leaf in enumerate(dict.fromkeys(read))}
        return sorted(names, key=lambda name: turn.get(owner[name], len(turn)))

    def _remaining(self) -> dict[str, list[int]]:
        """Return the number that each layer had in the original, by the module that holds them."""
        origin: dict[tuple[str, str], int] = {}
        for name in self._in_order(self.names):
            source = self._origins.get(name, name).split(".")
            for i, part in enumerate(name.split(".")):
                if part.isdecimal() and len(source) > i and source[i].isdecimal():
                    prefix = "".join(f"{p}." for p in self.names[name].split(".")[:i])
                    origin.setdefault((prefix, self.names[name].split(".")[i]), int(source[i]))
        return {
            prefix: [origin[prefix, n] for n in numbers if (prefix, n) in origin]
            for prefix, numbers in runs(self.names.values()).items()
        }

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


def _unnumbered(name: str) -> str:
    return ".".join("#" if part.isdecimal() else part for part in name.split("."))


def shapes_of(net: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's state."""
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}
