"""Find the arguments with which the original model's class constructs a rewritten network."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from archgraph.analysis.axes import axes
from archgraph.errors import RewriteError
from archgraph.foreign.compare import FunctionComparison
from archgraph.foreign.search import (
    Arguments,
    ArgumentSearch,
    Route,
    StateShapes,
    changed,
    differences,
    extra_child,
    numbers_in,
    renumbered,
    runs,
    unequal_sizes,
)
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed
from archgraph.layout.layouts import AxisRef, Layout, leaves
from archgraph.module.build import state_dict
from archgraph.states import State

# Number of configurations with the right shapes that are compared before the search gives up.
COMPARED = 64
# An entry that configurations of transformers may lack; many classes then use a default.
OPEN = "head_dim"


class Fit:
    """A graph and the class of its original model.

    Attributes:
        label: Name of the class, for errors.
        start: The arguments of the original model.
        names: Name in the graph → name in the class, for all tensors that the class has.
        target: Shapes that the class must have, by its names.
        owner: Leaves of the graph by their names and aliases.

    Args:
        graph: The network.
        model: The original model, with or without weights.
        start: Its arguments.
        make: Constructs the network of some arguments.
        label: See above.
        derived: Entries of the arguments that the class computes if they are missing.
        origins: Leaves of the original from which those of the network come, if known.
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
        self.owner = {name: p.name for p in graph.params for name in (p.name, *p.aliases)}
        params = [graph.param[name] for name in graph.state_names]
        shapes = {name: p.shape for p in params for name in (p.name, *p.aliases)}
        original = self._original = shapes_of(model)
        # Tables that a class computes are non-persistent buffers: its state lacks them.
        computed = {name for name, _ in model.named_buffers()} - original.keys()
        # Leaves that forward does not read are not cut with the others.
        unread = {p.name for p in graph.params if not graph.leaf_users[p.name]}
        # An added layer has the same tensors as the others.
        alike = {unnumbered(name) for name in original}
        self._wrapper = _wrapper(shapes, alike)
        bare = {name.removeprefix(self._wrapper): name for name in self._in_order(shapes)}
        self.names = {
            bare[name]: new
            for name, new in renumbered(bare, set(original)).items()
            if new not in computed and bare[name] not in unread
        }
        self._leaves = {new: name for name, new in self.names.items()}
        foreign = sorted(n for n, new in self.names.items() if unnumbered(new) not in alike)
        if foreign:
            raise RewriteError(
                f"{type(model).__name__} does not have this tensor",
                where=foreign[0],
                found=listed(foreign),
                hint="write adapters with ag.to_peft; fold other added layers with ag.fold",
            )
        self.target: StateShapes = {n: shapes[k] for k, n in self.names.items()}

    def arguments(
        self, same: Callable[[nn.Module], bool] | None = None, most: int = COMPARED
    ) -> Arguments:
        """Find the first arguments with which the class has these shapes and the same function.

        Args:
            same: Returns whether a module computes the same as the graph. Default: compare them
                with random weights.
            most: Largest number of modules to compare.

        Raises:
            RewriteError: If there are none; names the axis in the way.
        """
        same = same or FunctionComparison(self.graph, self.names)
        tried = list[tuple[Arguments, Exception | None]]()
        for search in self._searches():
            for arguments in itertools.islice(search.fitting(), most):
                try:
                    if same(self.module(arguments)):
                        return arguments
                    tried.append((arguments, None))
                except Exception as error:  # a class may raise anything for these arguments
                    tried.append((arguments, error))
        if not tried:
            raise self._other_shapes(search)
        arguments, cause = min(tried, key=lambda pair: pair[1] is not None)  # prefer one that runs
        raise self._other_function(arguments, cause) from cause

    def module(self, arguments: Arguments) -> nn.Module:
        """Construct the network for some arguments in the dtypes of the original model.

        The caller's random state is preserved.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = self._make(arguments)
        types = {unnumbered(name): tensor.dtype for name, tensor in _tensors(self.model)}
        for name, tensor in _tensors(net):
            tensor.data = tensor.data.to(types.get(unnumbered(name), tensor.dtype))
        return net

    def filled(self, arguments: Arguments, state: State) -> nn.Module:
        """Construct the network for some arguments and load the weights.

        Tensors that forward does not read come from the original model if they have the same shape.
        Otherwise parameters are zero, and buffers keep the values that the class computes.
        """
        net = self.module(arguments)
        full, spare = net.state_dict(keep_vars=True), self.model.state_dict()
        tensors = state_dict(self.graph, state)
        values = {new: tensors[name] for name, new in self.names.items()}
        read = {id(full[name]) for name in values}  # includes names that only the class has
        for name in full.keys() - values.keys():
            if name in spare and spare[name].shape == full[name].shape:
                values[name] = spare[name]
            elif isinstance(full[name], nn.Parameter) and id(full[name]) not in read:
                values[name] = torch.zeros_like(full[name])
        net.load_state_dict(values, strict=False, assign=True)
        return net

    def changes(self, arguments: Arguments) -> dict[str, Any]:
        """Return the entries of arguments that differ from the original ones."""
        return {".".join(map(str, way)): value for way, value in differences(self.start, arguments)}

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """Return the names in the order in which forward reads them, then the others."""
        read = (leaf for node in self.graph.nodes for leaf in node.leaves())
        turn = {leaf: i for i, leaf in enumerate(dict.fromkeys(read))}
        return sorted(names, key=lambda name: turn.get(self.owner[name], len(turn)))

    def _remaining(self) -> dict[str, list[int]]:
        """Return the original numbers of the remaining layers, by the module that contains them."""
        origin: dict[tuple[str, str], int] = {}
        for name in self._in_order(self.names):
            source = self._origins.get(name, name).removeprefix(self._wrapper).split(".")
            for i, part in enumerate(name.removeprefix(self._wrapper).split(".")):
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

    def _searches(self) -> Iterator[ArgumentSearch]:
        """Yield a search that starts from the original arguments, then one with an added entry.

        If one value of ``OPEN`` leaves all shapes unchanged, it is the default of the class, and
        the search can change it. If several values do, the class does not read the entry.

        Raises:
            RewriteError: If the class refuses the arguments of the original.
        """
        try:
            self._meta(self.start)
        except Exception as error:  # whatever a class raises
            raise RewriteError(
                f"{self.label} cannot be constructed on the meta device from its own arguments",
                found=f"{type(error).__name__}: {error}",
            ) from error
        first = ArgumentSearch(
            self._meta, self.start, self.target, self._remaining(), self._derived
        )
        yield first
        shapes = first.shapes(self.start) or {}
        sizes = {size for shape in shapes.values() for size in shape}
        numbers = {value for _, value in numbers_in(self.start) if isinstance(value, int)}
        values = sorted({a // b for a, b in itertools.product(sizes, numbers) if a % b == 0})
        options = ({**self.start, OPEN: value} for value in values if self.start.get(OPEN) is None)
        equal = [*itertools.islice((o for o in options if first.shapes(o) == shapes), 2)]
        if len(equal) == 1:
            yield replace(first, start=equal[0])

    def _other_function(self, arguments: Arguments, error: Exception | None) -> RewriteError:
        """Return the error for arguments that give the right shapes but another function."""
        wrong = unequal_sizes(self.target, self._original)
        block = extra_child(self.target, self._original)
        where = str(self._layout(*next(iter(wrong)))) if wrong else block
        if error is not None:
            return RewriteError(
                f"no {self.label} with these shapes runs",
                where=where,
                found=f"{type(error).__name__}: {error}, {self._entries(arguments)}",
            )
        return RewriteError(
            f"every {self.label} with these shapes computes something else",
            where=where,
            found=self._entries(arguments),
            hint="the class derives a value from its sizes that the network keeps from the uncut "
            "model (a scale of attention or of an embedding), or has positions in another order",
        )

    def _other_shapes(self, search: ArgumentSearch) -> RewriteError:
        """Return an error that names the axis or block in which the nearest arguments differ."""
        nearest = search.nearest()
        shapes = search.shapes(nearest) or {}
        ranks = {name: len(shape) for name, shape in shapes.items()}
        lacking = [self._leaves[n] for n, s in self.target.items() if ranks.get(n) != len(s)]
        if sizes := unequal_sizes(self.target, shapes):
            wrong, (has, goal) = next(iter(sizes.items()))
            tensor, dim = wrong
            layout, (entry, tied) = self._layout(tensor, dim), self._tied(search, shapes, wrong)
            error = RewriteError(
                f"no {self.label} has these shapes: this axis is in the way",
                where=str(layout),
                found=f"{self._leaves[tensor]} with {goal} in dimension {dim}",
                expected=f"{has}, {self._entries(nearest)}",
                hint=self._way_out(layout, entry, tied),
            )
            error.tied = frozenset(a.name for layout in tied for a in _axes_of(layout))
            return error
        if lacking:
            return RewriteError(
                f"no {self.label} has this tensor together with the others",
                where=lacking[0],
                found=listed(lacking),
                expected=self._entries(nearest),
                hint="skip the same blocks wherever the class repeats them",
            )
        return RewriteError(
            f"every {self.label} has this block",
            where=extra_child(self.target, shapes),
            expected=self._entries(nearest),
            hint="no entry sets their number: do not skip any of them",
        )

    def _tied(
        self, search: ArgumentSearch, shapes: StateShapes, wrong: tuple[str, int]
    ) -> tuple[Route, list[Layout]]:
        """Return an entry that sets a dimension, and the uncut dimensions that it also sets.

        Args:
            search: The search that came nearest.
            shapes: Shapes of its nearest arguments.
            wrong: A tensor, and its dimension.
        """
        nearest = search.nearest()
        for way, value in numbers_in(nearest):
            larger = search.shapes(changed(nearest, way, value and 2 * value)) or {}
            moved = unequal_sizes(shapes, larger)
            uncut = [
                self._layout(name, dim)
                for name, dim in moved
                if self.target.get(name, ())[dim : dim + 1]
                == self._original.get(name, ())[dim : dim + 1]
            ]
            if wrong in moved and uncut:
                return way, uncut
        return (), []

    def _way_out(self, wrong: Layout, entry: Route, tied: Sequence[Layout]) -> str:
        """Return a hint for an axis that the class sets together with uncut axes.

        The uncut axes must also be cut, unless a result of the network pins one of them.
        """
        if not tied:
            return "ag.save writes the network as it is"
        word = ".".join(map(str, entry))
        others = [layout for layout in tied if layout != wrong]
        if not others:
            return (
                f"the class also sets uncut dimensions from {word}: cut all of them by one factor"
            )
        other = min(others, key=lambda layout: len([*leaves(layout)]))  # an axis, if there is one
        both = f"the class computes it and {other} from {word}"
        reasons = [axes(self.graph)[axis.name].reason for axis in _axes_of(other)]
        if reason := next((reason for reason in reasons if reason.endswith("output")), None):
            both += f", and that is {reason}: trace a wrapper that returns logits alone"
        return f"{both}; cut both by one factor"

    def _entries(self, arguments: Arguments) -> str:
        """Describe arguments by their changes."""
        changes = listed(f"{k}: {v}" for k, v in self.changes(arguments).items())
        return f"in the nearest configuration ({changes or 'the original one'})"

    def _layout(self, tensor: str, dim: int) -> Layout:
        """Return the axes of a dimension of a tensor, by its name in the class."""
        return axes(self.graph).of(self.owner[self._leaves[tensor]])[dim]


def _axes_of(layout: Layout) -> list[AxisRef]:
    return [leaf for leaf in leaves(layout) if isinstance(leaf, AxisRef)]


def _wrapper(names: Collection[str], known: Collection[str]) -> str:
    """Return the path of a model with known tensor names inside a wrapper.

    >>> _wrapper(["net.layer.0.weight", "net.norm.weight"], {"layer.#.weight", "norm.weight"})
    'net.'
    """
    first = next(iter(names), "")
    paths = ["", *(first[: dot.end()] for dot in re.finditer(r"\.", first))]
    bare = {path: {unnumbered(name.removeprefix(path)) for name in names} for path in paths}
    return next((path for path in paths if not bare[path].isdisjoint(known)), "")


def _tensors(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return itertools.chain(net.named_parameters(), net.named_buffers())


def unnumbered(name: str) -> str:
    """Replace the numbers of layers in a name by ``#``.

    >>> unnumbered("layers.11.mlp.fc1.out")
    'layers.#.mlp.fc1.out'
    """
    return ".".join("#" if part.isdecimal() else part for part in name.split("."))


def shapes_of(net: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's state."""
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}
