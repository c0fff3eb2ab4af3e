"""The environment of an export: isolate it from the caller, and undo the effects of forward.

The caller's settings (autocast, ``no_grad``) do not affect the capture. Notes are added for
behaviour that the captured program cannot show: custom gradients, hooks, seeds and random numbers
of Python.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import sympy  # type: ignore[import-untyped]  # no stubs exist
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StrictMinMaxConstraint
from torch.fx.proxy import TracerBase
from torch.utils import checkpoint

from archgraph.capture.draws import generators
from archgraph.capture.examples import register_dataclasses
from archgraph.capture.places import NO_GRAD, is_users, running
from archgraph.capture.tape import Observed
from archgraph.errors import TraceError

P = ParamSpec("P")
R = TypeVar("R")

MAX_POOL1D = torch.max_pool1d
_INHERITED = object()  # marks an attribute that the holder itself does not have
_AUTOCAST = ("is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype")


@contextlib.contextmanager
def recording(model: nn.Module) -> Iterator[None]:
    """Enable autograd, even for a model that was created or is traced in inference mode.

    Autograd cannot record tensors that were created in inference mode, so copies replace them.
    """
    with torch.inference_mode(False), torch.enable_grad():
        copies: dict[int, Tensor] = {}  # tied weights remain tied
        swapped: list[tuple[dict[str, Any], str, Tensor]] = []
        # Other objects, and modules with lazy weights, are refused later.
        for module in model.modules() if isinstance(model, nn.Module) else ():
            owners: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for owner in owners:
                for name, tensor in owner.items():
                    lazy = tensor is None or nn.parameter.is_lazy(tensor)
                    if not lazy and tensor.is_inference():
                        swapped.append((owner, name, tensor))
                        copy = tensor.detach().clone()
                        if isinstance(tensor, nn.Parameter):
                            copy = nn.Parameter(copy, tensor.requires_grad)
                        owner[name] = copies.setdefault(id(tensor), copy)
        try:
            yield
        finally:
            for owner, name, tensor in swapped:
                owner[name] = tensor


@contextlib.contextmanager
def spelt_forward(
    model: nn.Module, keywords: Mapping[str, object], register: bool = False
) -> Iterator[None]:
    """Make ``**kwargs`` of forward explicit parameters, and register its dataclasses as pytrees."""
    forward = model.forward
    signature = inspect.signature(forward)
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    rest = next((k for k, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
    if rest is None and not register:
        yield
        return

    @functools.wraps(forward)
    def spelt_out(*args: object, **values: object) -> object:
        result = forward(*args, **values)
        if register:
            register_dataclasses(result)
        return result

    parameters = [p for p in signature.parameters.values() if p.name != rest]
    parameters += [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY) for k in keywords if k not in kinds
    ]
    spelt_out.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # export reads it
    with replaced(((model, "forward", spelt_out),)):
        yield


@contextlib.contextmanager
def attributes_first(model: nn.Module) -> Iterator[None]:
    """Make ``model.type`` return a submodule of this name, not the method, as export expects."""
    hidden = [
        (vars(module), name, part)
        for module in model.modules()
        for name, part in (module._modules | module._parameters | module._buffers).items()
        if name not in vars(module) and hasattr(type(module), name)
    ]
    for attributes, name, part in hidden:
        attributes[name] = part
    try:
        yield
    finally:
        for attributes, name, _ in hidden:
            attributes.pop(name, None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress logs and output of export, whose errors archgraph reports itself."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Temporarily disable the caller's autocast, ``no_grad`` and inference mode."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def watched(observed: Observed, where: str) -> Iterator[None]:
    """Record behaviour that an exported program cannot show.

    Functions with a custom gradient are exported as their forward. Export would drop or split
    gradient checkpoints and inference mode. Checkpoints are therefore replaced by plain calls, and
    inference mode by ``no_grad``. Hooks that pack tensors saved for gradients have no effect.
    """
    functions = _Functions()
    inference = torch.inference_mode
    attributes = (
        (torch.autograd.function, "_is_setup_context_defined", functions.begin),
        (checkpoint.CheckpointFunction, "apply", lambda run, _, *args: run(*args)),
        (TracerBase, "_filter_traceback_frames", functions.frames),
        (inference, "__enter__", _enter_inference),
        (inference, "__exit__", lambda self, *_: torch.set_grad_enabled(self.before)),
        (nn.Module, "_apply", _converted),
        (torch.autograd.graph.saved_tensors_hooks, "__enter__", _save),
        (torch, "max_pool1d", _max_pool1d),
        *((torch, name, _noting(getattr(torch, name), observed)) for name in _AUTOCAST),
    )
    with replaced(attributes), _drawing(observed, where):
        yield


@contextlib.contextmanager
def replaced(attributes: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    """Temporarily replace attributes of classes or objects."""
    # From the holder's own table: getattr() would bind methods and unwrap static ones.
    attributes = tuple(attributes)
    before = [(holder, name, vars(holder).get(name, _INHERITED)) for holder, name, _ in attributes]
    for holder, name, new in attributes:
        setattr(holder, name, new)
    try:
        yield
    finally:
        for holder, name, old in before:
            if old is _INHERITED:
                delattr(holder, name)
            else:
                setattr(holder, name, old)


def _max_pool1d(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute max_pool1d for an open length, which torch's function would replace by a number."""
    if not isinstance(input.shape[-1], torch.SymInt):
        return MAX_POOL1D(input, *args, **kwargs)
    result, _ = torch.max_pool1d_with_indices(input, *args, **kwargs)
    return result


class _Functions:
    """The functions with a custom gradient that are running. Their forwards record no gradients."""

    def __init__(self) -> None:
        self._recorded: dict[types.FrameType, bool] = {}  # of ``Function.apply``
        self._defined = torch.autograd.function._is_setup_context_defined
        self._apply = vars(torch.autograd.Function)["apply"].__func__.__code__

    def begin(self, setup: Callable[..., object]) -> bool:
        """Record the start of ``Function.apply``."""
        frame = sys._getframe(1)
        if frame.f_code is self._apply:
            self._recorded[frame] = torch.is_grad_enabled()
        return self._defined(setup)

    def records_gradients(self) -> bool:
        """Return whether gradients are recorded, here or outside of the running function."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame not in self._recorded:
            frame = frame.f_back
        return torch.is_grad_enabled() or (frame is not None and self._recorded[frame])

    def frames(self, stack: traceback.StackSummary) -> traceback.StackSummary:
        """Return the frames of the user's code, with a mark if gradients are not recorded."""
        start = next((i for i, f in enumerate(stack) if f.name == "forward"), len(stack))
        marks = [] if self.records_gradients() else [NO_GRAD]
        return traceback.StackSummary.from_list(
            [*(f for f in stack[start:] if is_users(f.filename)), *marks]
        )


def _noting(function: Callable[P, R], observed: Observed) -> Callable[P, R]:
    """Wrap a torch function so that it records calls from the user's code."""

    @functools.wraps(function)
    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_users(sys._getframe(1).f_code.co_filename):
            observed.autocast.add(function.__name__)
        return function(*args, **kwargs)

    return noted


def _save(_: object) -> None:
    """Push hooks that do not change saved tensors; leaving the context pops them."""
    torch._C._autograd._push_saved_tensors_default_hooks(lambda t: t, lambda t: t)


_apply = nn.Module._apply


def _converted(
    module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> nn.Module:
    """Replace ``Module._apply``, so that a conversion to a module's own type does nothing."""
    # Forward may call self.float(), for which torch would assign new tensors to the module.
    tensors = [*module.parameters(recurse), *module.buffers(recurse)]
    with torch.no_grad():
        pairs = [(tensor, fn(tensor)) for tensor in tensors]
    if all((a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape) for a, b in pairs):
        return module
    return _apply(module, fn, recurse)


def _enter_inference(self: torch.inference_mode) -> None:
    # Like `no_grad`, which a capture includes.
    self.before = torch.is_grad_enabled()  # type: ignore[attr-defined]  # ours, for the exit
    if self.mode:
        torch.set_grad_enabled(False)


@contextlib.contextmanager
def _drawing(observed: Observed, where: str) -> Iterator[None]:
    """Record random numbers that forward draws from Python or NumPy, and seeds that it sets."""
    seeded, before = torch.get_rng_state(), generators()
    yield
    # Fake tensors draw nothing, so only a seed can have changed the state of the CPU's generator.
    if not torch.equal(seeded, torch.get_rng_state()):
        text = "forward seeds torch's random numbers, but a graph does not: seed before the call"
        observed.notes.append(TraceError(text, where=where))
    observed.drew = generators() != before


@contextlib.contextmanager
def noting_numbers(observed: Observed) -> Iterator[None]:
    """Record the sizes of inputs that must be numbers, and the user's line that requires this.

    Conditions that fail for the next or the previous size are recorded as well, because several
    conditions together may allow only one size. A size that must be in a range is not recorded,
    because guards of the program express this.
    """
    decide, relate, render = (
        ShapeEnv._set_replacement,
        ShapeEnv._maybe_guard_rel,
        ShapeEnv._render_range_for_constraint_violation,
    )

    def noted(self: ShapeEnv, symbol: sympy.Symbol, value: sympy.Expr, message: str) -> None:
        if value.is_number:
            for source in self.var_to_sources.get(symbol, ()):
                observed.numbers.setdefault(source.name, (int(value), running()))
        decide(self, symbol, value, message)

    def narrowed(self: ShapeEnv, condition: sympy.Basic) -> None:
        for symbol in condition.free_symbols if len(condition.free_symbols) == 1 else ():
            size = getattr(self, "backed_var_to_val", {}).get(symbol)  # newer than torch 2.10
            if size and sympy.false in (condition.subs(symbol, size + n) for n in (-1, 1)):
                observed.narrowed.append(running())
        relate(self, condition)

    def in_range(self: ShapeEnv, source: Any, constraint: StrictMinMaxConstraint) -> str:
        # A function inside of that one asks for a size that became a number, and must fail.
        if sys._getframe(1).f_code is ShapeEnv.produce_guards_verbose.__code__:
            object.__setattr__(constraint, "warn_only", True)  # it is frozen
        return render(self, source, constraint)

    attributes = (
        (ShapeEnv, "_set_replacement", noted),
        (ShapeEnv, "_maybe_guard_rel", narrowed),
        (ShapeEnv, "_render_range_for_constraint_violation", in_range),
    )
    with replaced(attributes):
        yield
