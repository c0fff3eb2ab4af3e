"""Torch without its compiler, whose import takes longer than everything else before a first step.

Torch hides some functions from ``torch.compile``: each imports ``torch._dynamo`` when it is first
called, only to call through. Until something else imports it there is nothing to hide from, and
these functions can be called as they are: the same code runs, with the same results.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys

import torch
from torch._compile import _disable_dynamo

COMPILER = "torch._dynamo"
# Where the wrapper keeps what it calls, once it knows.
_ANSWER = "__dynamo_disable"


@functools.cache
def without_compiler() -> None:
    """Let torch's hidden functions run without its compiler, until that is imported.

    A torch that hides functions in another way is left as it is: it is only slower.
    """
    if COMPILER in sys.modules:
        return
    wrapper = next(filter(inspect.iscode, _disable_dynamo.__code__.co_consts), None)
    wrapped = filter(inspect.isfunction, gc.get_referrers(wrapper) if wrapper else ())
    functions = (inspect.getclosurevars(f).nonlocals.get("fn") for f in wrapped)
    hidden = [f for f in functions if f is not None]
    for function in hidden:
        vars(function)[_ANSWER] = function
    sys.meta_path.insert(0, _Undo(hidden))


def step_optimiser(optimiser: torch.optim.Optimizer) -> None:
    """Call ``optimiser.step()`` with the same bits; its hooks are not called."""
    with torch.no_grad():
        inspect.unwrap(type(optimiser).step)(optimiser)


class _Undo:
    """Hides the functions as torch wants them when its compiler is about to be imported."""

    def __init__(self, hidden: list[object]) -> None:
        self.hidden = hidden

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing: the compiler is imported as ever."""
        if name == COMPILER:
            # It stays in the list: Python is walking through it, and would skip the next finder.
            for function in self.hidden:
                vars(function).pop(_ANSWER, None)
            self.hidden.clear()
