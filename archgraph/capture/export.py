"""One ``torch.export`` with a dynamic batch axis, and what it takes for granted of the batch."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.examples import (
    ExampleInputs,
    grow,
    leading,
    register_dataclasses,
    shapes,
    tensors,
)
from archgraph.capture.failures import UnknownType, explained, first_line, is_branch, is_unknown
from archgraph.capture.places import is_own, place
from archgraph.capture.restored import restored
from archgraph.capture.surroundings import neutral, quiet, spelt_forward, watched
from archgraph.capture.tape import Note
from archgraph.ops.fakes import short_ways


@dataclass(frozen=True)
class Captured:
    """What ``torch.export`` made of a module and example inputs."""

    program: torch.export.ExportedProgram
    batch: str | None  # symbol of the batch axis; none where every size is fixed
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fixed: str  # why the batch has the example's size; empty where it is free
    notes: tuple[Note, ...]  # what the program does otherwise than the module, `fixed` included
    asks_autocast: bool  # whether the user's code asks for autocast

    @property
    def branches(self) -> bool:
        """Whether forward decides by a tensor which branch runs: eager PyTorch compiles that."""
        return any(n.target is torch.ops.higher_order.cond for n in self.program.graph.nodes)

    def larger(self, inputs: ExampleInputs) -> ExampleInputs:
        """Inputs like the example's with one more in the batch, where its size is open."""
        spec = self.program.call_spec.in_spec
        if self.batch is None or spec is None:
            return inputs
        flags = iter(_symbols(self.program))
        values = pytree.tree_leaves((self.args, self.kwargs))
        leaves = [next(flags) if isinstance(v, torch.Tensor) else "" for v in values]
        if len(leaves) != spec.num_leaves:
            return inputs
        args, kwargs = pytree.tree_unflatten(leaves, spec)

        def grow(path: Any, x: Any) -> Any:
            return torch.cat([x, x[-1:]]) if free.get(pytree.keystr(path)) == self.batch else x

        free = {pytree.keystr(k): v for k, v in pytree.tree_leaves_with_path((args, kwargs))}
        return pytree.tree_map_with_path(grow, inputs)


def export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Export a module with a dynamic batch axis.

    Several inputs may have different leading axes: those that have the size of the first one's
    are batch axes, where the module agrees; the others keep their size.

    Raises:
        TraceError: If the module cannot be captured: the line of the user's code, and what to do.
    """
    with neutral():
        return _captured(model, args, kwargs)


def _captured(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    register_dataclasses((args, kwargs))
    first: Exception | None = None
    asked = ""
    grown = grow((args, kwargs))
    batch = torch.export.Dim("batch", min=2)
    for inputs, dim in ((grown, batch), (grown, torch.export.Dim.AUTO), ((args, kwargs), None)):
        if dim is None and not asked and not leading(inputs):
            break
        noted: list[Note] = []
        asked_of: set[str] = set()
        try:
            program = _export(model, inputs, shapes(model, inputs, dim), noted, asked_of)
            symbols = _symbols(program)
            main = next(filter(None, symbols), None)
            if {*symbols} - {"", main}:  # independent leading axes: only the first one is the batch

                def dims(index: int, which: list[str] = symbols, one: str | None = main) -> Any:
                    return {0: torch.export.Dim.AUTO} if which[index] == one else None

                noted.clear()
                program = _export(model, inputs, shapes(model, inputs, dims), noted, asked_of)
                main = next(filter(None, _symbols(program)), None)
        except Exception as error:  # export raises whatever the user's forward raises
            first = first or error
            if is_branch(error) or is_unknown(error):
                break
            continue
        if main is not None:
            asked = _asked(program)
            if asked:  # what holds for this batch does not hold for others
                continue
        fixed = ""
        if main is None and (first or asked) and any(t.dim() for t in tensors(inputs)):
            why = f"forward goes by {asked}" if asked or first is None else first_line(first)
            fixed = f"the batch size is fixed at that of the example: {why}"
            noted.insert(0, fixed)
        return Captured(program, main, inputs[0], inputs[1], fixed, tuple(noted), bool(asked_of))
    assert first is not None
    raise explained(model, first) from first


_SIZE = re.compile(r"L\[[^\]]*\](?:\[[^\]]*\])*\.size\(\)\[0\]")
_CONSTANT = re.compile(r"\(?(\d+\*)?n\)? == \d+")  # of an axis that is not the batch
_BATCHES = range(2, 130)  # batch sizes for which a guard must hold


def _asked(program: torch.export.ExportedProgram) -> str:
    """What a capture takes for granted of the batch size; empty where it holds for any.

    Guards are arithmetic on the inputs' first sizes, which are one symbol here; a size that has to
    be a certain number belongs to an input without the batch.
    """

    def holds(guard: str) -> bool:
        test, count = _SIZE.subn("n", guard)
        if not count or _CONSTANT.fullmatch(test):
            return True
        try:
            code = compile(test, "<guard>", "eval")
            # torch wrote the text: arithmetic on the inputs' sizes
            return all(eval(code, {"__builtins__": {}}, {"n": n}) for n in _BATCHES)
        except (NameError, SyntaxError, TypeError, ZeroDivisionError):
            return False

    guards = getattr(program, "_guards_code", None) or []
    return ", ".join(g for g in guards if not holds(g))


def _symbols(program: torch.export.ExportedProgram) -> list[str]:
    """Symbol of each tensor input's leading axis, in order; empty where it is a number."""
    stand_ins = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    symbols = []
    for spec in program.graph_signature.input_specs:
        value = stand_ins.get(getattr(spec.arg, "name", ""))
        if spec.kind.name == "USER_INPUT" and isinstance(value, torch.Tensor):
            size: Any = value.shape[0] if value.dim() else 0
            expr = size.node.expr if isinstance(size, torch.SymInt) else None
            symbols.append(str(expr) if expr is not None and expr.free_symbols else "")
    return symbols


@contextlib.contextmanager
def _known(model: torch.nn.Module) -> Iterator[None]:
    """Stop as soon as forward gives an object that torch cannot look into, and never will."""

    def check(*call: Any) -> None:
        for value in pytree.tree_leaves(call[-1]):
            if is_own(type(value)) and not dataclasses.is_dataclass(value):
                raise UnknownType(f"{type(value)} is not a known type")

    hook = model.register_forward_hook(check)
    try:
        yield
    finally:
        hook.remove()


def _export(
    model: torch.nn.Module,
    inputs: ExampleInputs,
    shapes: Any,
    notes: list[Note],
    asked: set[str],
) -> torch.export.ExportedProgram:
    def once() -> torch.export.ExportedProgram:
        where = place(type(model).forward)
        with (
            quiet(),
            short_ways(),
            restored(model),
            _known(model),
            watched(notes, asked, where),
        ):
            return torch.export.export(
                model, inputs[0], inputs[1], dynamic_shapes=shapes, strict=False
            )

    try:
        with spelt_forward(model, inputs[1]):
            return once()
    except Exception as error:
        if isinstance(error, UnknownType) or not is_unknown(error):
            raise
    notes.clear()
    with spelt_forward(model, inputs[1], register=True):
        return once()
