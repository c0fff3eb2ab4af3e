"""Make ``torch.export`` faster without changing the exported program.

This module caches the results of arithmetic on open sizes, and disables the cache of fake tensors,
which would compute these sizes again. It also avoids the frames and source lines of stack traces
that are never requested, and the Python code of graphs that are never called.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import TypeAlias

import torch
from torch.fx import GraphModule, proxy
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode

from archgraph.capture.places import is_users
from archgraph.capture.surroundings import replaced
from archgraph.ops.fakes import short_ways

_Operation: TypeAlias = Callable[[SymNode, SymNode], SymNode]

# Arithmetic on sizes that most operators use.
_ARITHMETIC = (
    "_add", "_sub", "_mul", "_int_floordiv", "_sym_max", "_sym_min",
    "_eq", "_ne", "_ge", "_gt", "_le", "_lt", "_and_", "_or_", "_sym_and", "_sym_or",
)  # fmt: skip


@contextlib.contextmanager
def quicker(open_sizes: bool) -> Iterator[None]:
    """Speed up exports; ``open_sizes`` is True if a size of the inputs is a symbol."""
    results: dict[Hashable, SymNode] = {}
    methods = vars(SymNode)
    attributes = (
        *((SymNode, k, _remembering(k, methods[k], results)) for k in _ARITHMETIC if k in methods),
        (proxy, "CapturedTraceback", _Frames),
        (GraphModule, "recompile", _compile_later),
    )
    # Sizes are part of the cache's keys: with open sizes, the cache costs more than it saves.
    uncached = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    with short_ways(), replaced(attributes), uncached if open_sizes else contextlib.nullcontext():
        yield


def _remembering(name: str, compute: _Operation, results: dict[Hashable, SymNode]) -> _Operation:
    """Cache an operation on sizes, whose result depends only on the expressions of the sizes.

    The replacements of symbols have a version, which is part of the key. While torch records
    operations on sizes, the cache is not used.
    """

    @functools.wraps(compute)
    def remembered(self: SymNode, other: SymNode) -> SymNode:
        if get_proxy_mode():
            return compute(self, other)
        sizes = self.shape_env
        # Older releases of torch have one counter, for more than the replacements of open sizes.
        version = getattr(sizes, "_replacements_version_counter", None)
        version = getattr(sizes, "_version_counter", None) if version is None else version
        key = name, self._expr, other._expr, self.pytype, other.pytype, sizes, version
        if key not in results:
            results[key] = compute(self, other)
        return results[key]

    return remembered


class _Frames:
    """The stack of a call: only the frames of the user's code and of forward methods."""

    @staticmethod
    def extract() -> _Frames:
        """Return the current stack, whose frames are read later."""
        return _Frames()

    def summary(self) -> traceback.StackSummary:
        """Return the frames without their lines of code."""
        frames = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward" or is_users(code.co_filename):
                frames.append(_frame(code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        return traceback.StackSummary.from_list(frames[::-1])


@functools.lru_cache(maxsize=1 << 12)
def _frame(file: str, line: int, name: str) -> traceback.FrameSummary:
    return traceback.FrameSummary(file, line, name, lookup_line=False, line="")


_compile = GraphModule.recompile


def _compile_later(module: GraphModule) -> None:
    """Replace ``recompile``, so that a graph is compiled to Python code when it is called."""
    info = getattr(module.graph._codegen, "pytree_info", None)
    if info is not None:  # export reads these, whether compiled or not
        module._in_spec, module._out_spec = info.in_spec, info.out_spec

    def forward(self: GraphModule, *args: object, **kwargs: object) -> object:
        _compile(self)
        return self.forward(*args, **kwargs)

    type(module).forward = forward  # every graph module has its own class
