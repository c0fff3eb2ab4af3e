"""One ``torch.export`` under the conditions that a graph needs, and why it failed if it did.

Whatever the caller has switched on (autocast, ``no_grad``) stays out of the capture; whatever
forward assigns while it is captured is taken back; what the captured program cannot show (custom
gradients, draws from Python's own random numbers) is noted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import linecache
import logging
import random
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx.proxy import TracerBase
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from archgraph.errors import TraceError

_TORCH = str(Path(torch.__file__).parent) + "/"
_PYTHON = sysconfig.get_paths()["stdlib"] + "/"
_OURS = (__file__, str(Path(__file__).with_name("trace.py")))
_BRANCH = (
    "forward decides something in Python by the values of a tensor; use torch.where or torch.cond, "
    "trace the submodule that does not, or make the value an argument of forward (a Python number "
    "given as example input is fixed in the graph)"
)


def users_line(stack: str | None) -> tuple[str, int] | None:
    """Innermost line of the user's own code in a printed stack trace: file and line."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack or "")
    own = [(file, int(line)) for file, line in frames if _is_users(file)]
    return own[-1] if own else None


def _is_users(file: str) -> bool:
    if file.startswith((_TORCH, "<")) or file in _OURS:
        return False
    return not file.startswith(_PYTHON) or "site-packages" in file


_NO_GRAD = traceback.FrameSummary("<no_grad>", 0, "no_grad", lookup_line=False)


_Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def under_no_grad(stack: str | None) -> bool:
    """Whether a printed stack trace was taken while gradients were off."""
    return _NO_GRAD.filename in (stack or "")


@dataclass(frozen=True)
class Captured:
    """What ``torch.export`` made of a module.

    Attributes:
        program: The exported program.
        batch: Symbol of the batch axis; None where every size is fixed.
        args: Positional example inputs as they were captured.
        kwargs: Named example inputs as they were captured.
        notes: What the program does otherwise than the module.
    """

    program: torch.export.ExportedProgram
    batch: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...]


def capture(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Export a module with a dynamic batch axis.

    Several inputs may have different leading axes: those that have the size of the first one's
    are batch axes, where the module agrees; the others keep their size.

    Raises:
        TraceError: If the module cannot be captured: the line of the user's code, and what to do.
    """
    with _neutral():
        return _captured(model, args, kwargs)


def _captured(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    _register_dataclasses((args, kwargs))
    notes: list[str] = []
    first: Exception | None = None
    asked = ""
    grown = _grow((args, kwargs))
    batch = torch.export.Dim("batch", min=2)
    for inputs, dim in ((grown, batch), (grown, torch.export.Dim.AUTO), ((args, kwargs), None)):
        if dim is None and not asked and not _leading(inputs):
            break
        noted: list[str] = []
        try:
            program = _export(model, inputs, _shapes(model, inputs, dim), noted)
        except Exception as error:  # export raises whatever the user's forward raises
            first = first or error
            if _is_branch(error):
                break
            continue
        symbols = _symbols(program)
        main = next((s for s in symbols if s), None)
        others = {s for s in symbols if s} - {main}
        if others:  # independent leading axes: only the first one is the batch

            def dims(index: int, which: list[str] = symbols, one: str | None = main) -> Any:
                return {0: torch.export.Dim.AUTO} if which[index] == one else None

            try:
                noted = []
                program = _export(model, inputs, _shapes(model, inputs, dims), noted)
            except Exception as error:
                first = first or error
                continue
            main = next((s for s in _symbols(program) if s), None)
        if main is not None:
            asked = _asked(program)
            if asked:  # what holds for this batch does not hold for others
                continue
        if main is None and (first or asked) and any(t.dim() for t in _tensors(inputs)):
            why = f"forward goes by {asked}" if asked or first is None else _first_line(first)
            notes.append(f"the batch size is fixed at that of the example: {why}")
        return Captured(program, main, inputs[0], inputs[1], tuple(notes + noted))
    assert first is not None
    raise _explained(model, first) from first


_SIZE = re.compile(r"L\[[^\]]*\](?:\[[^\]]*\])*\.size\(\)\[0\]")
_BATCHES = range(2, 130)  # batch sizes for which a guard must hold


def _asked(program: torch.export.ExportedProgram) -> str:
    """What a capture takes for granted of the batch size; empty where it holds for any.

    Guards are arithmetic on the inputs' first sizes, which are one symbol here.
    """

    def holds(guard: str) -> bool:
        test, found = _SIZE.subn("n", guard)
        if not found:
            return True
        try:
            code = compile(test, "<guard>", "eval")
            # torch wrote the text: arithmetic on the inputs' sizes
            return all(eval(code, {"__builtins__": {}}, {"n": n}) for n in _BATCHES)
        except (NameError, SyntaxError, TypeError, ZeroDivisionError):
            return False

    guards = getattr(program, "_guards_code", None) or []
    return ", ".join(g for g in guards if not holds(g))


# -- example inputs ---------------------------------------------------------------------------


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]


def _leading(inputs: Any) -> bool:
    return any(t.dim() and t.shape[0] == 1 for t in _tensors(inputs))


def _grow(inputs: Any) -> Any:
    """Repeat examples of batch size one: export would take a size of one for a constant."""
    batch = next((t.shape[0] for t in _tensors(inputs) if t.dim()), None)

    def grow(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.dim() and x.shape[0] == batch == 1:
            return x.detach().expand(2, *x.shape[1:]).contiguous()
        return x.detach().clone()  # one tensor given twice is still two inputs

    return pytree.tree_map(grow, inputs)


def _shapes(model: torch.nn.Module, inputs: _Inputs, dim: Any) -> dict[str, Any]:
    """What export asks for: the inputs with each tensor replaced by its dynamic axes."""
    signature = inspect.signature(model.forward)
    bound = signature.bind(*inputs[0], **inputs[1])
    counter = iter(range(1 << 30))

    def dims(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            index = next(counter)
            if dim is None or not x.dim():
                return None
            return dim(index) if inspect.isfunction(dim) else {0: dim}
        if isinstance(x, Mapping):
            return {k: dims(v) for k, v in x.items()}
        if type(x) not in pytree.SUPPORTED_NODES and not pytree.is_namedtuple(x):
            return None
        children = [dims(v) for v in pytree.tree_flatten(x, is_leaf=lambda v: v is not x)[0]]
        if pytree.is_namedtuple(x):
            return type(x)(*children)
        return tuple(children) if isinstance(x, tuple) else children

    shapes: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        if signature.parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
            shapes |= dims(value)
        else:
            shapes[key] = dims(value)
    return shapes


def _symbols(program: torch.export.ExportedProgram) -> list[str]:
    """Symbol of each tensor input's leading axis, in order; empty where it is a number."""
    held = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    found = []
    for spec in program.graph_signature.input_specs:
        value = held.get(getattr(spec.arg, "name", ""))
        if spec.kind.name == "USER_INPUT" and isinstance(value, torch.Tensor):
            size: Any = value.shape[0] if value.dim() else 0
            expr = size.node.expr if isinstance(size, torch.SymInt) else None
            found.append(str(expr) if expr is not None and expr.free_symbols else "")
    return found


def _register_dataclasses(inputs: Any) -> None:
    """Let pytrees look into the dataclasses among some values."""
    for value in pytree.tree_leaves(inputs):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if type(value) not in pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(type(value))
                _register_dataclasses(value)


# -- the export and its surroundings ------------------------------------------------------------


def _export(
    model: torch.nn.Module, inputs: _Inputs, shapes: Any, notes: list[str]
) -> torch.export.ExportedProgram:
    def once() -> torch.export.ExportedProgram:
        with _quiet(), _restored(model, notes), _watched(notes):
            return torch.export.export(
                model, inputs[0], inputs[1], dynamic_shapes=shapes, strict=False
            )

    try:
        with _forward(model, inputs[1]):
            return once()
    except Exception as error:
        if "not a known type" not in str(error):
            raise
    notes.clear()
    with _forward(model, inputs[1], register=True):
        return once()


@contextlib.contextmanager
def _forward(
    model: torch.nn.Module, named: Mapping[str, Any], register: bool = False
) -> Iterator[None]:
    """A forward whose ``**kwargs`` are spelt out, and whose dataclasses pytrees can look into."""
    forward = model.forward
    signature = inspect.signature(forward)
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    rest = next((k for k, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
    if rest is None and not register:
        yield
        return

    @functools.wraps(forward)
    def spelt_out(*given: Any, **values: Any) -> Any:
        result = forward(*given, **values)
        if register:
            _register_dataclasses(result)
        return result

    parameters = [p for p in signature.parameters.values() if p.name != rest]
    parameters += [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY) for k in named if k not in kinds
    ]
    spelt_out.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # export reads it
    held = vars(model).get("forward")
    model.forward = spelt_out
    try:
        yield
    finally:
        if held is None:
            del model.forward
        else:
            model.forward = held


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what export logs and prints on the way: its reason reappears in our error."""
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
def _neutral() -> Iterator[None]:
    """Nothing of the caller's surroundings: they apply to the built module as to the original."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _restored(model: torch.nn.Module, notes: list[str]) -> Iterator[None]:
    """Take back what forward assigns to its modules: stand-ins of the capture, not tensors.

    A number that forward changes is noted: the graph has what followed from its value this time.
    """

    def contents(value: Any) -> Any:
        return value.copy() if isinstance(value, (dict, list, set)) else None

    held = [
        (module, vars(module).copy(), {k: contents(v) for k, v in vars(module).items()})
        for module in model.modules()
    ]

    def note(*_: Any) -> None:  # right after forward: export takes numbers back by itself
        for module, known, _inside in held:
            for key, value in known.items():
                if isinstance(value, (bool, int, float, str)) and vars(module).get(key) != value:
                    notes.append(
                        f"forward changes {type(module).__name__}.{key}: the graph has what its "
                        f"value {value!r} led to"
                    )

    hook = model.register_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()
        for module, attributes, inside in held:
            if any(vars(module).get(k) is not v for k, v in attributes.items()) or len(
                vars(module)
            ) != len(attributes):
                vars(module).clear()
                vars(module).update(attributes)
            for key, value in attributes.items():
                before = inside[key]
                if isinstance(value, list) and len(value) != len(before):
                    value[:] = before
                elif isinstance(value, dict) and (
                    value.keys() != before.keys()
                    or any(value[k] is not v for k, v in before.items())
                ):
                    value.clear()
                    value.update(before)
                elif isinstance(value, set) and value != before:
                    value.clear()
                    value.update(before)


@contextlib.contextmanager
def _watched(notes: list[str]) -> Iterator[None]:
    """Note what an exported program cannot show, and keep places inside helper functions.

    Functions with a gradient of their own are exported as their forward; gradient checkpoints
    and inference mode, which export would drop or take apart, become what they compute.
    """
    function = torch.autograd.Function
    apply, filter_frames = function.__dict__["apply"], TracerBase._filter_traceback_frames
    inference = torch.inference_mode
    enter, leave = inference.__enter__, inference.__exit__
    seen: dict[str, None] = {}
    wanted: list[bool] = []

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is checkpoint.CheckpointFunction:
            run, _, *rest = args
            return run(*rest)
        if not cls.__module__.startswith("torch."):
            seen[cls.__qualname__.rpartition(".")[2]] = None
        wanted.append(torch.is_grad_enabled())  # a function's forward runs without gradients
        try:
            return apply.__func__(cls, *args, **kwargs)
        finally:
            wanted.pop()

    def frames(self: Any, stack: traceback.StackSummary) -> traceback.StackSummary:
        start = next((i for i, f in enumerate(stack) if f.name == "forward"), len(stack))
        graded = torch.is_grad_enabled() or (wanted and wanted[-1])
        marks = [] if graded else [_NO_GRAD]
        return traceback.StackSummary.from_list(
            [*(f for f in stack[start:] if _is_users(f.filename)), *marks]
        )

    def entered(self: Any) -> None:
        self.held = torch.is_grad_enabled()
        if self.mode:
            torch.set_grad_enabled(False)

    def left(self: Any, *_: Any) -> None:
        torch.set_grad_enabled(self.held)

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # forward may use it
    replaced: list[tuple[Any, str, Any, Any]] = [
        (function, "apply", apply, classmethod(applied)),
        (TracerBase, "_filter_traceback_frames", filter_frames, frames),
        (inference, "__enter__", enter, entered),
        (inference, "__exit__", leave, left),
    ]
    for holder, name, _, new in replaced:
        setattr(holder, name, new)
    try:
        yield
    finally:
        for holder, name, old, _ in replaced:
            setattr(holder, name, old)
        notes += [f"gradient of {name} is that of its forward, not its own" for name in seen]
        after = np.random.get_state()  # noqa: NPY002  # forward may use it
        if python != random.getstate() or not all(map(np.array_equal, numpy, after)):
            notes.append(
                "forward draws from Python's random numbers: what it drew while it was traced is "
                "fixed in the graph; draw with torch instead"
            )
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # forward may use it


# -- failures -----------------------------------------------------------------------------------


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _is_branch(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}"
    return any(
        word in text for word in ("data-dependent", "GuardOnDataDependent", "DataDependentOutput")
    )


def _place(error: BaseException) -> tuple[str, int, str] | None:
    """Innermost line of the user's code that was running: file, line, function."""
    frames = [
        (f.filename, f.lineno or 0, f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if _is_users(f.filename)
    ]
    start = next((i for i, f in enumerate(frames) if f[2] == "forward"), None)
    if start is not None:
        return frames[-1]
    quoted = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', str(error))
    own = [(file, int(line), name) for file, line, name in quoted if _is_users(file)]
    return next(iter([*reversed(own), *reversed(frames)]), None)


_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"\.numpy\(\) is not supported|numpy\(\)|can't convert .* to numpy",
        "forward leaves torch for numpy",
        "write it with torch functions",
    ),
    (
        r"ScriptModule",
        "a scripted module has no Python to capture",
        "trace the module that it was scripted from",
    ),
    (
        r"not a known type|Unsupported input type",
        "an input or output is of a type that torch cannot look into",
        "use tensors, tuples, dicts and dataclasses, or register it with "
        "torch.utils._pytree.register_pytree_node",
    ),
    (
        r"fake tensor in the exported program constant|BatchedTensor|GradTrackingTensor",
        "forward computes gradients or batches of functions on the way (torch.autograd.grad, vmap)",
        "trace the submodule that does not",
    ),
    (
        r"is a view and is being modified inplace",
        "forward writes in place to one of several views made at once",
        "this fails without tracing too; index the tensor instead of splitting it",
    ),
    (
        r"not on the expected device|same device|is on \w+, different from other tensors",
        "tensors on different devices meet",
        "make tensors in forward on the device of an input: device=x.device",
    ),
)


def _explained(model: torch.nn.Module, error: Exception) -> TraceError:
    """Where and why ``torch.export`` gave up, in one sentence."""
    text, place = f"{type(error).__name__} {error}", _place(error)
    where = f"{place[0]}:{place[1]} in {place[2]}" if place else None
    code = linecache.getline(place[0], place[1]).strip() if place else ""
    subject = type(model).__name__
    if _is_branch(error):
        return TraceError(
            f"{subject} cannot be captured: it branches on the values of a tensor",
            where=where,
            found=code or _first_line(error),
            hint=_BRANCH,
        )
    for pattern, reason, hint in _REASONS:
        if re.search(pattern, text):
            message = f"{subject} cannot be captured: {reason} ({_first_line(error)})"
            return TraceError(message, where=where, found=code or None, hint=hint)
    return TraceError(
        f"{subject} cannot be captured: {_first_line(error)}",
        where=where,
        found=code or None,
        hint="give example inputs that forward accepts when it is called without tracing",
    )


__all__ = ["Captured", "capture", "under_no_grad", "users_line"]
