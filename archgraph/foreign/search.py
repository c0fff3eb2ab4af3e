"""Search for a configuration with which a class constructs a network of given shapes.

A configuration is a nested dict whose meaning only the class knows. The search therefore changes
numbers, constructs the network on the meta device, and compares shapes.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from archgraph.errors import RewriteError

StateShapes: TypeAlias = Mapping[str, tuple[int, ...]]
Route: TypeAlias = tuple[str | int, ...]
Arguments: TypeAlias = dict[str, Any]  # a configuration: nested dicts and lists, as in JSON
# Distance for a missing tensor. A tensor of another shape has a smaller distance.
MISSING, EXTRA = 8, 4
# Smaller numbers are ignored, since they are dropout rates, standard deviations and the like.
RATE = 0.1
# Maximum number of entries that are changed together if shapes do not determine them.
TOGETHER = 3
# Maximum number of pairs of changes to try if no single change helps.
PAIRS = 200


def values_in(value: Any, way: Route = ()) -> Iterator[tuple[Route, Any]]:
    """Yield all values of a nested configuration with their paths; parents come first.

    >>> list(values_in({"depths": [2, 3]}))
    [((), {'depths': [2, 3]}), (('depths',), [2, 3]), (('depths', 0), 2), (('depths', 1), 3)]
    """
    yield way, value
    for key, item in items_of(value):
        yield from values_in(item, (*way, key))


def numbers_in(arguments: object) -> Iterator[tuple[Route, int | float | None]]:
    """Yield the paths and values of numbers above 0.1 and of unset entries (None).

    >>> list(numbers_in({"depths": [2, 3], "ratio": 4.0, "bias": True, "drop": 0.1}))
    [(('depths', 0), 2), (('depths', 1), 3), (('ratio',), 4.0)]
    """
    for way, value in values_in(arguments):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or (number and value > RATE):
            yield way, value


def items_of(value: object) -> Iterable[tuple[Any, Any]]:
    """Yield the keys and values of a dict or list; nothing for other values."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    return vars(value).items() if dataclasses.is_dataclass(type(value)) else ()


def changed(value: Any, way: Route, new: object) -> Any:
    """Return a copy of a configuration with a new value at a path.

    >>> changed({"depths": [2, 3]}, ("depths", 1), 1)
    {'depths': [2, 1]}
    """
    if not way:
        return new
    if dataclasses.is_dataclass(type(value)):
        return dataclasses.replace(value, **changed(vars(value), way, new))
    entries = {k: changed(v, way[1:], new) if k == way[0] else v for k, v in items_of(value)}
    return entries if isinstance(value, Mapping) else [*entries.values()]


def get(value: Any, way: Route) -> Any:
    """Return the value at a path of a configuration; None if the path does not exist."""
    for step in way:
        value = dict(items_of(value)).get(step)
    return value


def runs(names: Iterable[str]) -> dict[str, list[str]]:
    """Return a dict from module to its numbered children, in order of their numbers.

    >>> runs({"h.0.a.weight": 0, "h.2.a.weight": 0, "head.weight": 0})
    {'h.': ['0', '2']}
    """
    return {
        prefix: [str(i) for i in sorted(map(int, numbers))]
        for prefix, numbers in runs_as_used(names).items()
    }


def runs_as_used(names: Iterable[str]) -> dict[str, list[str]]:
    """Return a dict from module to its numbered children, in order of appearance.

    >>> runs_as_used(["h.2.a.weight", "h.0.a.weight"])
    {'h.': ['2', '0']}
    """
    children: dict[str, dict[str, None]] = {}
    for name in names:
        for match in re.finditer(r"(?:(?<=\.)|^)(\d+)(?=\.)", name):
            children.setdefault(name[: match.start()], {})[match[1]] = None
    return {prefix: [*numbers] for prefix, numbers in children.items()}


def renumbered(names: Iterable[str], original: set[str]) -> dict[str, str]:
    """Renumber layers without gaps; return a dict from old to new names.

    For example, if the original has layers 0, 1 and 2, and only 0 and 2 are left, they become 0 and
    1. If a layer was added, all layers are numbered in order of appearance.

    >>> renumbered(["h.0.w", "h.2.w"], {"h.0.w", "h.1.w", "h.2.w"})
    {'h.0.w': 'h.0.w', 'h.2.w': 'h.1.w'}
    >>> renumbered(["h.0.w", "h.2.w", "h.1.w"], {"h.0.w", "h.1.w"})
    {'h.0.w': 'h.0.w', 'h.1.w': 'h.2.w', 'h.2.w': 'h.1.w'}
    """
    names = [*names]
    full, left = runs(original), runs(names)
    for prefix, numbers in runs_as_used(names).items():
        before = full.get(prefix, [])
        if before and set(numbers) - set(before):
            left[prefix] = numbers
            full[prefix] = before + [
                str(int(before[-1]) + i + 1) for i in range(len(numbers) - len(before))
            ]

    new = {
        (prefix, old): number
        for prefix, numbers in left.items()
        for old, number in zip(numbers, full.get(prefix, numbers), strict=False)
    }
    return {name: _renamed(name, new) for name in sorted(names)}


def _renamed(name: str, numbers: Mapping[tuple[str, str], str]) -> str:
    """Replace the numbers in a name; ``numbers`` is a dict from prefix and number to a number."""
    parts, prefix = list[str](), ""
    for part in name.split("."):
        parts.append(numbers.get((prefix, part), part))
        prefix += f"{part}."
    return ".".join(parts)


def numbered_as(names: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Return a dict from names to the names of the same layers in another model.

    If both models have equally many layers, layers correspond by their order, and their numbers may
    differ. If the other model has more layers, layers correspond by their numbers.

    Raises:
        RewriteError: If the other model has fewer layers, or lacks one of the numbers.

    >>> numbered_as(["h.0.w", "h.4.w", "h.2.w"], ["h.0.w", "h.1.w", "h.2.w"])
    {'h.0.w': 'h.0.w', 'h.4.w': 'h.1.w', 'h.2.w': 'h.2.w'}
    >>> numbered_as(["h.2.w"], ["h.0.w", "h.1.w", "h.2.w"])
    {'h.2.w': 'h.2.w'}
    """
    names, theirs = [*names], runs(known)
    new: dict[tuple[str, str], str] = {}  # from prefix and number to number
    for prefix, numbers in sorted(runs_as_used(names).items(), key=lambda pair: len(pair[0])):
        order = theirs.get(_renamed(prefix, new), numbers)
        if len(order) == len(numbers):
            new |= {(prefix, old): one for old, one in zip(numbers, order, strict=True)}
        elif lacking := sorted(set(numbers) - set(order), key=int):
            raise RewriteError(
                "the base model does not have this layer",
                where=prefix + lacking[0],
                found=f"{len(order)} layers in it, {len(numbers)} in the network",
                hint="pass the folder that ag.to_transformers wrote for this network",
            )
    return {name: _renamed(name, new) for name in names}


def unequal_sizes(
    target: StateShapes, shapes: StateShapes
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return a dict from tensor and dimension to its size and target size, where they differ."""
    return {
        (name, dim): (has, goal)
        for name, shape in target.items()
        if len(shapes.get(name, ())) == len(shape)
        for dim, (has, goal) in enumerate(zip(shapes.get(name, ()), shape, strict=True))
        if has != goal
    }


def distance_to(target: StateShapes, shapes: StateShapes) -> int:
    """Return the distance between shapes and target shapes; 0 if all shapes are equal."""
    missing = sum(len(shapes.get(n, (None,) * 9)) != len(s) for n, s in target.items())
    extra = len(shapes.keys() - target.keys())
    return MISSING * missing + EXTRA * extra + len(unequal_sizes(target, shapes))


def extra_child(target: StateShapes, shapes: StateShapes) -> str | None:
    """Return the first numbered layer that only one of two networks has; None if there is none.

    >>> extra_child({"h.0.w": (2,)}, {"h.0.w": (2,), "h.1.w": (2,)})
    'h.1'
    """
    goal = runs(target)
    for prefix, numbers in runs(shapes).items():
        if odd := {*numbers} ^ {*goal.get(prefix, numbers)}:
            return prefix + min(odd, key=int)
    return None


def differences(before: Any, after: Any, way: Route = ()) -> Iterator[tuple[Route, Any]]:
    """Yield the paths and values in ``after`` that differ from ``before``.

    >>> [*differences({"depths": (2, 2), "kinds": ["a", "b"]}, {"depths": (2, 1), "kinds": ["b"]})]
    [(('depths', 1), 1), (('kinds',), ['b'])]
    """
    entries, others = dict(items_of(before)), dict(items_of(after))
    mappings = isinstance(before, Mapping) and isinstance(after, Mapping)
    if mappings or (entries and entries.keys() == others.keys()):
        for key, value in others.items():
            yield from differences(entries.get(key), value, (*way, key))
    elif before != after:
        yield way, after


@dataclass
class ArgumentSearch:
    """Search for a configuration with target shapes.

    Attributes:
        make: Function that constructs the network of a configuration on the meta device, and
            returns the shapes of its tensors.
        start: The configuration of the original network.
        target: Dict from name in the class to the target shape.
        remaining: Dict from each module to the original numbers of its remaining layers.
        derived: Entries of ``start`` that the class computes if they are missing.
    """

    make: Callable[[Arguments], StateShapes]
    start: Arguments
    target: StateShapes
    remaining: Mapping[str, list[int]]
    derived: frozenset[str] = frozenset()
    _tried: dict[str, StateShapes | None] = field(default_factory=dict)

    def shapes(self, arguments: Arguments) -> StateShapes | None:
        """Return the shapes of a configuration's network; None if the class rejects it."""
        key = repr(arguments)
        if key not in self._tried:
            try:
                self._tried[key] = self.make(arguments)
            except Exception:  # a class may raise any error for inconsistent values
                self._tried[key] = None
        return self._tried[key]

    def nearest(self) -> Arguments:
        """Return the configuration whose shapes have the smallest distance to the target.

        1. Repeatedly make the single change that reduces the distance most.
        2. First try numbers that equal a size, then numbers that scale with a size and unset
           entries.
        3. If no single change helps, change two numbers by the same ratio.
        """
        here = self.start
        while rest := self._distance(here):
            for step in (self._equal, self._scaled, self._pairs):  # 2, 3
                best = min(step(here), key=self._distance, default=here)
                if self._distance(best) < rest:  # 1
                    here = best
                    break
            else:
                return here
        return here

    def fitting(self) -> Iterator[Arguments]:
        """Yield configurations with the target shapes, first the one with the fewest changes.

        Some numbers, such as the number and the size of heads, affect shapes only through their
        product. For the same shapes, there are then several configurations.

        1. Yield the configuration of :meth:`nearest`.
        2. Keep the values of numbers that alone determine the size of a dimension.
        3. Combine changes of the other numbers: all by one ratio, or a few at a time.
        """
        first = self.nearest()
        goal = self.shapes(first) or {}
        equal = all(goal.get(name) == shape for name, shape in self.target.items())
        if not equal or extra_child(self.target, goal):
            return
        yield first  # 1
        options = self._options(first, goal)
        while True:  # 2
            dims = [*itertools.chain.from_iterable(options.values())]
            alone = [
                o for o, changes in options.items() if any(dims.count(d) == 1 for d in changes)
            ]
            if not alone:
                break
            options = {o: changes for o, changes in options.items() if o not in alone}
        alike: dict[Fraction, list[tuple[Route, int]]] = {}  # by their ratio
        for way, value in options:
            alike.setdefault(Fraction(value, get(first, way)), []).append((way, value))
        groups = dict.fromkeys(map(tuple, alike.values()))
        few = (itertools.combinations(options, count + 1) for count in range(TOGETHER))
        others = (some for some in itertools.chain(*few) if some not in groups)
        for combined in itertools.chain(groups, others):  # 3
            if len({way for way, _ in combined}) < len(combined):
                continue
            arguments = first
            for way, value in combined:
                arguments = changed(arguments, way, value)
            if self.shapes(arguments) == goal:
                yield arguments

    def _distance(self, arguments: Arguments) -> float:
        shapes = self.shapes(arguments)
        return float("inf") if shapes is None else distance_to(self.target, shapes)

    def _pairs_of_sizes(self, arguments: Arguments) -> set[tuple[int, int]]:
        """Return pairs of an actual and a target size, of dimensions and of numbers of layers."""
        shapes = self.shapes(arguments) or {}
        pairs = set(unequal_sizes(self.target, shapes).values())
        goal = runs(self.target)
        return pairs | {
            (len(has), len(goal[prefix]))
            for prefix, has in runs(shapes).items()
            if len(has) != len(goal.get(prefix, has))
        }

    def _equal(self, arguments: Arguments) -> Iterator[Arguments]:
        """Yield configurations in which a number that equals a size is set to the target size."""
        for has, goal in sorted(self._pairs_of_sizes(arguments)):
            for way, value in numbers_in(arguments):
                if value == has:
                    result = changed(arguments, way, goal)
                    yield result
                    yield from self._with_lists(result, has, goal)

    def _with_lists(self, arguments: Arguments, has: int, goal: int) -> Iterator[Arguments]:
        """Yield configurations in which lists with an item per layer lose items of removed layers.

        Entries that the class computes, such as lists of stage names, are removed.
        """
        for remaining in self.remaining.values():
            if len(remaining) != goal:
                continue
            result = arguments
            for way, items in values_in(arguments):
                if _is_list(items) and len(items) == has > max(remaining):
                    result = changed(result, way, [items[i] for i in remaining])
            if result != arguments:
                yield result
        if self.derived & arguments.keys():
            yield {k: v for k, v in arguments.items() if k not in self.derived}

    def _scaled(self, arguments: Arguments) -> Iterator[Arguments]:
        """Yield configurations in which a number is multiplied by a ratio, or None is replaced.

        The ratios are those of target sizes to actual or original sizes, and their inverses, since
        a size may be a quotient of other sizes.
        """
        ratios = self._ratios(arguments) | self._ratios(self.start)
        ratios |= {1 / ratio for ratio in ratios if ratio}
        yield from (changed(arguments, *move[:2]) for move in self._moves(arguments, ratios))

    def _ratios(self, arguments: Arguments) -> set[Fraction]:
        return {Fraction(goal, has) for has, goal in self._pairs_of_sizes(arguments) if has}

    def _moves(
        self, arguments: Arguments, ratios: set[Fraction]
    ) -> Iterator[tuple[Route, int | float, Fraction]]:
        sizes = {goal for _, goal in self._pairs_of_sizes(arguments)}
        for way, value in numbers_in(arguments):
            if value is None:
                yield from ((way, size, Fraction(0)) for size in sorted(sizes))
                continue
            for ratio in sorted(ratios):
                new = value * ratio if isinstance(value, int) else float(value * float(ratio))
                if isinstance(new, float):
                    yield way, new, ratio
                elif new.denominator == 1 and new > 0:
                    yield way, int(new), ratio

    def _pairs(self, arguments: Arguments) -> Iterator[Arguments]:
        moves = [m for m in self._moves(arguments, self._ratios(arguments)) if m[2]]
        pairs = itertools.combinations(moves, 2)
        alike = ((a, b) for a, b in pairs if a[2] == b[2] and a[0] != b[0])
        for (way, new, _), (other, also, _) in itertools.islice(alike, PAIRS):
            yield changed(changed(arguments, way, new), other, also)

    def _options(
        self, first: Arguments, goal: StateShapes
    ) -> dict[tuple[Route, int], set[tuple[str, int]]]:
        """Return a dict from each possible change (path, number) to the dimensions it affects."""
        result = {}
        for way, new, _ in self._moves(self.start, {Fraction(1), *self._ratios(self.start)}):
            if not isinstance(new, int) or get(first, way) in (None, new):
                continue
            shapes = self.shapes(changed(first, way, new))
            if shapes is None or shapes.keys() == goal.keys():
                result[way, new] = {*unequal_sizes(goal, shapes or {})}
        return result


def _is_list(value: object) -> bool:
    """Return whether a value is a list whose items are all lists, or all other values."""
    return (
        isinstance(value, list | tuple) and len({isinstance(v, list | tuple) for v in value}) == 1
    )
