"""Find the values of open sizes for which a capture is valid.

A branch on a size becomes a guard of the exported program. If a guard restricts the batch size, the
module is exported again at a size for which the guard fails. If both programs are equal, the branch
has no effect.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, SimpleNamespace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from archgraph.capture.spell import canonical
from archgraph.errors import TraceError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.passes import prune, renumber
from archgraph.graph.values import BATCH_WORD

# A size of an input, which may be an item or an attribute of an argument.
_KEY = r"\[(?:'[^']*'|\"[^\"]*\"|[^\]'\"]*)\]"
_SIZE = re.compile(rf"L{_KEY}(?:{_KEY}|\.\w+)*\.size\(\)\[\d+\]")
_NUMBER = re.compile(rf"({_SIZE.pattern}) == (\d+)")
_CONSTANT = re.compile(r"\(?(\d+\*)?\w+\)? == \d+")  # condition on an axis that is not open
_PROBES = (*range(2, 256), *(2**k for k in range(8, 25)))  # guards may change between these
_DENSE = 4096  # guards are tried at each value of an open size below this
_EXPORTS = 4  # maximum number of exports at other sizes

_NAMES = {
    "__builtins__": {},
    "min": min,
    "max": max,
    "Min": min,
    "Max": max,
    "abs": abs,
    "math": SimpleNamespace(ceil=math.ceil, floor=math.floor, trunc=math.trunc, sqrt=math.sqrt),
    "torch": SimpleNamespace(sym_float=float),
}

Exported: TypeAlias = "tuple[torch.export.ExportedProgram, Mapping[str, str]]"
ExportAt: TypeAlias = Callable[[int], "Exported | None"]


@dataclass(frozen=True)
class Range:
    """Values of an open size for which a capture is valid: ``low`` to ``high``, both included.

    ``why`` is the condition that forward requires; empty if the capture is valid for all values.
    """

    low: int | None = None
    high: int | None = None
    why: str = ""

    @property
    def single(self) -> bool:
        """Whether the range has only one value."""
        return bool(self.why) and self.low == self.high

    @property
    def ends(self) -> tuple[int, float]:
        """The least and the largest value: 0 and infinity if there is no bound."""
        return self.low or 0, math.inf if self.high is None else self.high

    def __str__(self) -> str:
        low = f"{self.low} <= " if self.low is not None and self.high is not None else ""
        high = f" < {self.high + 1}" if self.high is not None else f" >= {self.low}"
        return f"{low}batch{high}"


def ranges(
    model: nn.Module,
    program: torch.export.ExportedProgram,
    names: Mapping[str, str],
    example: Mapping[str, int],
    export_at: ExportAt,
) -> dict[str, Range]:
    """Find the ranges of open sizes, around the example's, for which an exported program is valid.

    1. Consider each size separately, with the other sizes as in the example. For the batch, further
       exports find guards that do not change the program.
    2. Guards of several sizes must also hold on a grid of values.

    Args:
        model: The exported model.
        program: Its program for the example.
        names: Dict from symbols to the names of open sizes.
        example: Dict from open sizes to their values in the example.
        export_at: Function that exports the model at another batch size. It returns the program and
            its names, or None if the export fails.

    Raises:
        TraceError: If only the example's value of a size is valid, or two sizes depend on each
            other.
    """
    tests = _tests(program, names)
    known: dict[str, Range] = {}
    for name in dict.fromkeys(names.values()):  # 1
        rest = {other: value for other, value in example.items() if other != name}
        if name == BATCH_WORD:
            known[name] = _batches(model, program, names, example[name], rest, export_at)
        else:
            mine = {guard: test for guard, test in tests.items() if name in test}
            known[name] = _range_of(name, mine, example[name], rest)
    _check_together(tests.values(), known, example)  # 2
    return known


def _range_of(name: str, tests: Mapping[str, str], size: int, rest: Mapping[str, int]) -> Range:
    """Find the range of a size around the example in which its guards hold, with others fixed.

    Raises:
        TraceError: If the guards hold only for the example's value.
    """
    tried = {*range(2, max(_DENSE, 2 * size)), size, *_all_boundaries(tests.values(), name, rest)}
    failing = {guard: _failing(test, name, tried, rest) for guard, test in tests.items()}
    holding = tried.difference(*failing.values())
    asked = ", ".join(guard for guard, values in failing.items() if values)
    low, high = _around(size, tried, holding | {size})
    range_ = Range(max(low or 2, 2), high, asked or f"{name} >= 2")
    if range_.single:
        others = sorted(holding - {size}, key=lambda n: abs(n - size))[:3]
        reason = f"forward needs it to be {size}"
        if others:
            some = ", ".join(map(str, sorted(others)))
            reason = f"forward accepts {some}, but not every size in between"
        beside = (t for t in tests.values() if _failing(t, name, (size - 1, size + 1), rest))
        raise TraceError(
            f"{name} cannot be open: {reason}",
            found=min(beside, key=len),
            hint="remove it from `open`, or change the code that requires it",
        )
    return range_


def _check_together(
    tests: Iterable[str], known: Mapping[str, Range], example: Mapping[str, int]
) -> None:
    """Check guards of several sizes on a grid.

    Raises:
        TraceError: If two sizes depend on each other.
    """
    sizes = {test: sorted({*re.findall(r"\w+", test)} & known.keys()) for test in tests}
    joint = [test for test, several in sizes.items() if len(several) > 1]
    grid = [sorted(_sample(known[name], example[name])) for name in known]
    for values in itertools.product(*grid) if joint else ():
        at = dict(zip(known, values, strict=True))
        broken = next((test for test in joint if not _holds(test, at)), None)
        if broken:
            raise TraceError(
                f"{' and '.join(sizes[broken])} depend on each other; keep one of them fixed",
                found=broken,
            )


def _sample(range_: Range, example: int) -> set[int]:
    """Return values of a range for which guards of several sizes are evaluated together."""
    low, high = range_.ends
    low = max(low, 2)
    values = {*range(low, low + 12), *range(example - 2, example + 3), 1000, 1001, _PROBES[-4]}
    return {n for n in values | {low} if low <= n <= high} | (
        {int(high)} if high < math.inf else set()
    )


def _failing(test: str, name: str, values: Iterable[int], rest: Mapping[str, int]) -> set[int]:
    """Return the values of a size at which a guard fails."""
    numbers = np.array(sorted(values))
    with (
        contextlib.suppress(AttributeError, TypeError, ValueError, ZeroDivisionError),
        np.errstate(all="ignore"),
    ):
        result = eval(_code(test), dict(_NAMES), {**rest, name: numbers})  # as in `_holds`
        return set(numbers[~np.broadcast_to(np.asarray(result, bool), numbers.shape)].tolist())
    return {n for n in numbers.tolist() if not _holds(test, {**rest, name: n})}


def _batches(
    model: nn.Module,
    program: torch.export.ExportedProgram,
    names: Mapping[str, str],
    size: int,
    rest: Mapping[str, int],
    export_at: ExportAt,
) -> Range:
    """Find the batch sizes for which a program is valid; ``rest`` has the other open sizes.

    1. Evaluate the guards at all sizes up to a limit, and around larger sizes at which guards
       change. Sizes for which all guards hold are valid.
    2. Export at the nearest other size, since only the contiguous range around the example counts.
       All sizes for which the guards of this export hold have the exported graph.
    3. If this graph is the same, the branch has no effect, and these sizes are valid. Otherwise the
       range ends before this size, and sizes beyond it do not matter.
    """
    tests = _tests(program, names)
    tried = {*range(2, _DENSE), size, *_all_boundaries(tests.values(), BATCH_WORD, rest)}  # 1
    asked = ", ".join(g for g, test in tests.items() if _holding([test], tried, rest) != tried)
    if not asked:
        return Range()
    holding = _holding(tests.values(), tried, rest) | {size}
    ours = canonical_graph(model, program, names)
    left = tried - holding
    for _ in range(_EXPORTS):  # 2
        if not left:
            break
        other = min(left, key=lambda n: (abs(n - size), n))
        exported, valid = export_at(other), {other}
        if exported is not None and BATCH_WORD in exported[1].values():
            theirs = _tests(*exported).values()
            further = {*_all_boundaries(theirs, BATCH_WORD, rest)} - tried
            tried |= further
            left |= further
            valid |= _holding(theirs, left, rest)
            if ours is not None and canonical_graph(model, *exported) == ours:  # 3
                holding |= valid
        left = {n for n in left - valid if other in holding or (n > other) != (other > size)}
    low, high = _around(size, tried, holding)
    return Range() if low is None and high is None else Range(low, high, asked)


def _holding(tests: Collection[str], sizes: set[int], rest: Mapping[str, int]) -> set[int]:
    """Return the batch sizes at which all guards hold."""
    return sizes.difference(*(_failing(test, BATCH_WORD, sizes, rest) for test in tests))


def _around(size: int, tried: Iterable[int], holding: set[int]) -> tuple[int | None, int | None]:
    """Return the ends of the contiguous valid range around the example; None for no end."""
    below = [n for n in {*tried} - holding if n < size]
    above = [n for n in {*tried} - holding if n > size]
    low = min(n for n in tried if n > max(below)) if below else None
    high = max(n for n in tried if n < min(above)) if above else None
    return low, high


def _tests(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from guards on open sizes to their conditions, as expressions of names.

    A size that must be a certain number belongs to an input without open axes.
    """
    guards = getattr(program, "_guards_code", None) or []
    sources = _sources(program, names)
    # Sizes that are not open are numbers.
    known = {m[1]: m[2] for m in map(_NUMBER.fullmatch, guards) if m} | sources
    tests = {}
    for guard in guards:
        read = set(_SIZE.findall(guard)) & sources.keys()
        test = _SIZE.sub(lambda match: known.get(match[0], match[0]), guard)
        if read and not _CONSTANT.fullmatch(test):
            tests[guard] = test
    return tests


def _sources(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from sizes of inputs, as guards write them, to open sizes."""
    sources: dict[str, str] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, Tensor):
            continue
        for size in value.shape:
            if not isinstance(size, torch.SymInt):
                continue
            env = size.node.shape_env
            for symbol, origins in env.var_to_sources.items():
                name = names.get(str(env.replace(symbol)), "")
                sources |= {origin.name: name for origin in origins if name}
            return sources
    return sources


def _all_boundaries(tests: Iterable[str], name: str, rest: Mapping[str, int]) -> Iterator[int]:
    """Yield values of a size close to the values at which guards change.

    1. A guard may change at the numbers that occur in it.
    2. If a guard differs at two neighbouring probes, bisection finds the value between them.
    """
    for test in tests:
        numbers = {int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", test)}
        for low, high in itertools.pairwise(_PROBES):
            before = _holds(test, {**rest, name: low})
            if before != _holds(test, {**rest, name: high}):
                while high - low > 1:
                    middle = (low + high) // 2
                    is_low = _holds(test, {**rest, name: middle}) == before
                    low, high = (middle, high) if is_low else (low, middle)
                numbers.add(high)
        yield from (m for n in numbers for m in (n - 1, n, n + 1) if 2 <= m <= _PROBES[-1])


@functools.lru_cache(maxsize=1 << 8)
def _code(test: str) -> CodeType:
    return compile(test, "<guard>", "eval")


def _holds(test: str, sizes: Mapping[str, int]) -> bool:
    try:
        # The text is from torch: arithmetic on the inputs' sizes.
        return bool(eval(_code(test), dict(_NAMES), dict(sizes)))
    except (AttributeError, NameError, SyntaxError, TypeError, ZeroDivisionError):
        return False


def canonical_graph(
    model: nn.Module, program: torch.export.ExportedProgram, names: Mapping[str, str]
) -> ArchGraph | None:
    """Return a program in canonical form, with the structure of its result; None if impossible."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    owners = {key: key for key in model.state_dict()}
    try:
        spelt = canonical(program, names, owners, parameters)
    except TraceError:
        return None
    constants, updates = tuple(spelt.constants.values()), tuple(spelt.updates.items())
    outputs = (str(program.call_spec.out_spec), spelt.outputs)
    graph = ArchGraph((), constants, spelt.nodes, outputs, updates)
    return renumber(prune(graph, leaves=False))
