"""One ``torch.export`` with a dynamic batch axis, and what it takes for granted of the batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.aliases import Following, reads_elsewhere
from archgraph.capture.branches import Decided, deciding
from archgraph.capture.examples import (
    ExampleInputs,
    at_batch,
    example_tensors,
    grow,
    leading,
    register_dataclasses,
    shapes,
)
from archgraph.capture.failures import (
    UnknownType,
    explained_failure,
    first_line,
    is_branch,
    is_unknown,
)
from archgraph.capture.places import definition_of, is_own
from archgraph.capture.quick import quicker
from archgraph.capture.ranges import Range, batches
from archgraph.capture.restored import restored
from archgraph.capture.surroundings import neutral, quiet, reachable, spelt_forward, watched
from archgraph.capture.tape import Note


@dataclass(frozen=True)
class Captured:
    """What ``torch.export`` made of a module and example inputs."""

    program: torch.export.ExportedProgram
    batch: str | None  # symbol of the batch axis; none where every size is fixed
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fixed: str  # why the batch has the example's size; empty where it is free
    range: Range  # batch sizes for which the program holds
    notes: tuple[Note, ...]  # what the program does otherwise than the module, `fixed` included
    decided: Mapping[str, str]  # buffers whose values decide a branch, each with the place
    asks_autocast: bool  # whether the user's code asks for autocast

    @property
    def branches(self) -> bool:
        """Whether forward decides by a tensor which branch runs: eager PyTorch compiles that."""
        return any(n.target is torch.ops.higher_order.cond for n in self.program.graph.nodes)

    def larger(self, limit: float) -> ExampleInputs:
        """Return the example's inputs with one more in the batch, where that is open.

        ``limit`` is the largest batch for which the graph holds.
        """
        symbols = iter(_symbols(self.program))

        def longer(x: torch.Tensor) -> torch.Tensor:
            is_open = next(symbols) == self.batch is not None and len(x) < limit
            return torch.cat([x, x[-1:]]) if is_open else x

        return pytree.tree_map_only(torch.Tensor, longer, (self.args, self.kwargs))


def export_program(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], fixed: str = ""
) -> Captured:
    """Export a module with a dynamic batch axis.

    Several inputs may have different leading axes: those that have the size of the first one's
    are batch axes, where the module agrees; the others keep their size. ``fixed`` says why all
    sizes are the example's.

    Raises:
        TraceError: If the module cannot be captured: the line of the user's code, and what to do.
    """
    with neutral(), reachable(model):
        return _captured(model, args, kwargs, fixed)


def _captured(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], always: str
) -> Captured:
    """Export with the batch axis as open as forward allows.

    1. Try a batch axis that export may not restrict, then one that it may (``AUTO``), both on an
       example of at least two; then the sizes of the example. A forward that goes by the values of
       a size leads to the last of them.
    2. If leading axes turn out to be independent, only the first one is the batch: export again
       with the others fixed.
    3. Find the batch sizes for which the program holds. If that is the example's alone, go on with
       fixed sizes.
    4. Note why the batch size is fixed, if it is.
    """
    register_dataclasses((args, kwargs))
    first: Exception | None = None
    asked = always
    grown = grow((args, kwargs))
    batch = torch.export.Dim("batch", min=2)
    tries = [(grown, batch), (grown, torch.export.Dim.AUTO), ((args, kwargs), None)]
    for inputs, dim in tries[2 if always else 0 :]:  # 1
        if dim is None and not asked and not leading(inputs):
            break
        noted: list[Note] = []
        asked_of: set[str] = set()
        decided = Decided()
        try:
            program = _export(model, inputs, shapes(model, inputs, dim), noted, asked_of, decided)
            symbols = _symbols(program)
            main = next(filter(None, symbols), None)
            if {*symbols} - {"", main}:  # 2

                def dims(index: int, which: list[str] = symbols, one: str | None = main) -> Any:
                    return {0: torch.export.Dim.AUTO} if which[index] == one else None

                noted.clear()
                program = _export(
                    model, inputs, shapes(model, inputs, dims), noted, asked_of, decided
                )
                symbols = _symbols(program)
                main = next(filter(None, symbols), None)
        except Exception as error:  # export raises whatever the user's forward raises
            first = first or error
            # A branch on the values of a size holds for that size alone: go on to fixed sizes.
            if decided.sizes:  # a branch that is known for the example's size
                asked = asked or "the values of what it makes of that size"
                continue
            if is_branch(error) or is_unknown(error):
                break
            continue
        valid = Range()  # 3
        if main is not None:
            batched = [symbol == main for symbol in symbols]
            size = example_tensors(inputs)[batched.index(True)].shape[0]

            def at(other: int, inputs: Any = inputs, batched: list[bool] = batched) -> Any:
                def open_(index: int) -> Any:
                    return {0: torch.export.Dim.AUTO} if batched[index] else None

                try:
                    resized = at_batch(inputs, batched, other)
                    dims = shapes(model, resized, open_)
                    program = _export(model, resized, dims, [], set(), Decided())
                except Exception:  # whatever forward raises for this size
                    return None
                return program, next(filter(None, _symbols(program)), None)

            valid = batches(model, program, main, size, at)
            if valid.single:  # what holds for this batch does not hold for others
                asked = valid.why
                continue
            if valid.why:
                noted.insert(
                    0, f"the graph holds for {valid}; forward goes by the batch size: {valid.why}"
                )
        fixed = ""  # 4
        if main is None and (first or asked) and any(t.dim() for t in example_tensors(inputs)):
            why = f"forward goes by {asked}" if asked or first is None else first_line(first)
            fixed = always or f"the batch size is fixed at that of the example: {why}"
            noted.insert(0, fixed)
        return Captured(
            program,
            main,
            inputs[0],
            inputs[1],
            fixed,
            valid,
            tuple(noted),
            decided.buffers,
            bool(asked_of),
        )
    assert first is not None
    raise explained_failure(model, first) from first


def _symbols(program: torch.export.ExportedProgram) -> list[str]:
    """Return the symbol of each tensor's leading axis, in order; empty if it is a number."""
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
    decided: Decided,
) -> torch.export.ExportedProgram:
    def once(*around: contextlib.AbstractContextManager[Any]) -> torch.export.ExportedProgram:
        where = definition_of(type(model).forward)
        with contextlib.ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(quicker(open_sizes=shapes is not None))
            stack.enter_context(deciding(model, notes, decided))
            stack.enter_context(restored(model))
            stack.enter_context(_known(model))
            stack.enter_context(watched(notes, asked, where))
            for context in around:
                stack.enter_context(context)
            return torch.export.export(
                model, inputs[0], inputs[1], dynamic_shapes=shapes, strict=False
            )

    def followed() -> torch.export.ExportedProgram:
        program = once()
        if reads_elsewhere(model, program):
            notes.clear()
            decided.buffers.clear()
            program = once(Following(model))
        return program

    try:
        with spelt_forward(model, inputs[1]):
            return followed()
    except Exception as error:
        if isinstance(error, UnknownType) or not is_unknown(error):
            raise
    notes.clear()
    with spelt_forward(model, inputs[1], register=True):
        return followed()
