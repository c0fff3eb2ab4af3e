"""For which batch sizes a capture holds.

A branch on the batch size becomes a guard of the exported program. Sizes for which it does not hold
are exported, too: where the programs are the same, nothing depends on the branch.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

import torch
from torch import nn

from archgraph.capture.spell import canonical
from archgraph.errors import TraceError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.passes import prune, renumber

# The first size of an input, which may be an item or an attribute of an argument.
_SIZE = re.compile(r"L\[[^\]]*\](?:\[[^\]]*\]|\.\w+)*\.size\(\)\[0\]")
_CONSTANT = re.compile(r"\(?(\d+\*)?n\)? == \d+")  # of an axis that is not the batch
# Batch sizes for which guards are tried, besides those that they name: up to 128, as people train.
_USUAL = range(2, 130)
_PROBES = (*range(2, 256), *(2**k for k in range(8, 25)))  # between which guards may change
_EXPORTS = 4  # of other sizes, at most

_NAMES = {"__builtins__": {}, "min": min, "max": max, "Min": min, "Max": max, "abs": abs}

ExportAt = Callable[[int], "tuple[torch.export.ExportedProgram, str | None] | None"]


@dataclass(frozen=True)
class Range:
    """Batch sizes for which a capture holds: ``low`` to ``high``, both included.

    ``why`` is what forward asks of the batch size; empty where the capture holds for all.
    """

    low: int | None = None
    high: int | None = None
    why: str = ""

    @property
    def single(self) -> bool:
        """Whether there is only one."""
        return bool(self.why) and self.low == self.high

    def __str__(self) -> str:
        low = f"{self.low} <= " if self.low is not None and self.high is not None else ""
        high = f" < {self.high + 1}" if self.high is not None else f" >= {self.low}"
        return f"{low}batch{high}"


def batches(
    model: nn.Module,
    program: torch.export.ExportedProgram,
    batch: str,
    size: int,
    export_at: ExportAt,
) -> Range:
    """Find the batch sizes around the example's for which an exported program holds.

    Args:
        model: What was exported.
        program: Its program for the example.
        batch: Symbol of the batch axis in it.
        size: Batch size of the example.
        export_at: Exports the model at another batch size: the program and the symbol of its batch
            axis; None where that fails.
    """
    tests = _tests(program)
    tried = {*_USUAL, size, *_all_boundaries(tests.values())}
    sizes = sorted(tried)
    holding = {n for n in sizes if _all_hold(tests.values(), n)} | {size}
    asked = ", ".join(g for g, test in tests.items() if not all(_holds(test, n) for n in sizes))
    if not asked:
        return Range()
    ours = _graph(model, program, batch)
    rest = [n for n in sizes if n not in holding]
    for _ in range(_EXPORTS):
        if not rest:
            break
        # The nearest first: what counts is how far the range around the example goes.
        other = min(rest, key=lambda n: abs(n - size))
        exported = export_at(other)
        valid = {other}
        if exported is not None and exported[1] is not None:
            theirs = _tests(exported[0]).values()
            further = {*_all_boundaries(theirs)} - tried
            tried |= further
            rest += sorted(further)
            valid |= {n for n in rest if _all_hold(theirs, n)}
            # The same graph: whatever the branch decides, it is the same on both of its sides.
            if ours is not None and _graph(model, exported[0], exported[1]) == ours:
                holding |= valid
        rest = [n for n in rest if n not in valid]
    # The range is what holds around the example without a gap.
    below = [n for n in tried - holding if n < size]
    above = [n for n in tried - holding if n > size]
    if not below and not above:
        return Range()
    low = min(n for n in tried if n > max(below)) if below else None
    high = max(n for n in tried if n < min(above)) if above else None
    return Range(low, high, asked)


def _tests(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return what an export assumes of the batch size ``n``, by guard.

    Guards are arithmetic on the inputs' first sizes, which are one symbol here; a size that has to
    be a certain number belongs to an input without the batch.
    """
    tests = {}
    for guard in getattr(program, "_guards_code", None) or []:
        test, count = _SIZE.subn("n", guard)
        if count and not _CONSTANT.fullmatch(test):
            tests[guard] = test
    return tests


def _all_boundaries(tests: Iterable[str]) -> Iterator[int]:
    """Yield the batch sizes around those at which guards change.

    1. Numbers in a guard may be such sizes.
    2. Between two probes for which it differs lies one, found by halving.
    """
    for test in tests:
        numbers = {int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", test)}
        for low, high in itertools.pairwise(_PROBES):
            before = _holds(test, low)
            if before != _holds(test, high):
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if _holds(test, middle) == before else (low, middle)
                numbers.add(high)
        yield from (m for n in numbers for m in (n - 1, n, n + 1) if 2 <= m <= _PROBES[-1])


@functools.lru_cache(maxsize=1 << 8)
def _code(test: str) -> CodeType:
    return compile(test, "<guard>", "eval")


def _holds(test: str, size: int) -> bool:
    try:
        # torch wrote the text: arithmetic on the inputs' sizes
        return bool(eval(_code(test), dict(_NAMES), {"n": size}))
    except (NameError, SyntaxError, TypeError, ZeroDivisionError):
        return False


def _all_hold(tests: Iterable[str], size: int) -> bool:
    return all(_holds(test, size) for test in tests)


def _graph(model: nn.Module, program: torch.export.ExportedProgram, batch: str) -> ArchGraph | None:
    """Return a program in canonical form; None if it has none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    owners = {key: key for key in model.state_dict()}
    try:
        spelt = canonical(program, batch, owners, parameters)
    except TraceError:
        return None
    constants, updates = tuple(spelt.constants.values()), tuple(spelt.updates.items())
    graph = ArchGraph((), constants, spelt.nodes, spelt.outputs, updates)
    return renumber(prune(graph, leaves=False))
