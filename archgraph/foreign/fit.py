"""Find arguments with which the class of the original model constructs a rewritten network."""

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

# Maximum number of configurations with the right shapes that are compared.
COMPARED = 64
# A configuration of transformers may omit this entry. Many classes then compute a default.
OPEN = "head_dim"


class Fit:
    """A rewritten graph, and the class of its original model.

    Attributes:
        label: Name of the class, for errors.
        start: Arguments with which the original model was constructed.
        names: Dict from name in the graph to name in the class, for all tensors of the class.
        target: Dict from name in the class to the shape that the tensor must have.
        owner: Dict from each name or alias of a tensor to its name in the graph.

    Args:
        graph: The rewritten graph.
        model: The original model, with or without weights.
        start: Arguments with which the original model was constructed.
        make: Function that constructs a model from arguments.
        label: Name of the class, for errors.
        derived: Arguments that the class computes if they are missing.
        origins: Dict from tensors of the graph to the tensors of the original model from which they
            come, if known.
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
        # Tables that a class computes are non-persistent buffers, which its state does not contain.
        computed = {name for name, _ in model.named_buffers()} - original.keys()
        # Tensors that forward does not read are not cut.
        unread = {p.name for p in graph.params if not graph.leaf_users[p.name]}
        # An added layer has the same tensors as another layer, under a new number.
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
        """Find arguments with which the class has the graph's shapes and computes the same.

        Args:
            same: Function that returns whether a module computes the same as the graph. Default:
                compare results with random weights.
            most: Maximum number of modules to compare.

        Raises:
            RewriteError: If there are no such arguments. The error names the axis that prevents it.
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
        """Construct a model from arguments, in the dtypes of the original model.

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
        """Construct a model from arguments, and load the weights of the network.

        Tensors that forward does not read are those of the original model, if the shapes are equal.
        Otherwise, parameters are zero, and buffers have the values that the class computes.
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
        """Return the arguments that differ from the original ones, as a dict."""
        return {".".join(map(str, way)): value for way, value in differences(self.start, arguments)}

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """Return names in the order in which forward reads the tensors, then the other names."""
        read = (leaf for node in self.graph.nodes for leaf in node.leaves())
        turn = {leaf: i for i, leaf in enumerate(dict.fromkeys(read))}
        return sorted(names, key=lambda name: turn.get(self.owner[name], len(turn)))

    def _remaining(self) -> dict[str, list[int]]:
        """Return a dict from each module to the original numbers of its remaining layers."""
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
        """Yield a search from the original arguments, then a search that can also change ``OPEN``.

        If exactly one value of ``OPEN`` leaves all shapes unchanged, this value is the default of
        the class. If several values do, the class does not read the entry.

        Raises:
            RewriteError: If the class rejects the arguments of the original model.
        """
        try:
            self._meta(self.start)
        except Exception as error:  # a class may raise any error
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
        """Return an error for arguments with the right shapes, with which the class differs."""
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
        """Return an error that names the axis or block in which the best arguments still differ."""
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
            hint="no configuration entry sets the number of these blocks: do not skip any of them",
        )

    def _tied(
        self, search: ArgumentSearch, shapes: StateShapes, wrong: tuple[str, int]
    ) -> tuple[Route, list[Layout]]:
        """Return the entry that sets a dimension, and uncut dimensions that it also sets.

        Args:
            search: The search.
            shapes: Shapes with the best arguments of the search.
            wrong: A tensor and the dimension.
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

        The uncut axes must also be cut. This is impossible if an output of the network pins one.
        """
        if not tied:
            return "ag.save can write any network"
        word = ".".join(map(str, entry))
        others = [layout for layout in tied if layout != wrong]
        if not others:
            return f"{word} also sets dimensions that were not cut: cut all of them by one factor"
        other = min(others, key=lambda layout: len([*leaves(layout)]))  # prefer a single axis
        both = f"the class computes this axis and {other} from {word}"
        reasons = [axes(self.graph)[axis.name].reason for axis in _axes_of(other)]
        if reason := next((reason for reason in reasons if reason.endswith("output")), None):
            both += f", which is {reason}: trace a wrapper that returns only logits"
        return f"{both}; cut both by one factor"

    def _entries(self, arguments: Arguments) -> str:
        """Describe arguments by their differences from the original ones."""
        changes = listed(f"{k}: {v}" for k, v in self.changes(arguments).items())
        return f"in the nearest configuration ({changes or 'the original one'})"

    def _layout(self, tensor: str, dim: int) -> Layout:
        """Return the layout of a dimension of a tensor, which has its name in the class."""
        return axes(self.graph).of(self.owner[self._leaves[tensor]])[dim]


def _axes_of(layout: Layout) -> list[AxisRef]:
    return [leaf for leaf in leaves(layout) if isinstance(leaf, AxisRef)]


def _wrapper(names: Collection[str], known: Collection[str]) -> str:
    """Return the prefix that a wrapper adds to known tensor names.

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
    """Return a dict from the names in a module's state to their shapes."""
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}
