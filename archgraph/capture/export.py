"""One ``torch.export`` with a dynamic batch axis, and what it takes for granted of the batch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from archgraph.capture.aliases import Following, reads_elsewhere
from archgraph.capture.branches import deciding
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
from archgraph.capture.surroundings import attributes_first, neutral, quiet, spelt_forward, watched
from archgraph.capture.tape import Note, Observed


@dataclass(frozen=True)
class Captured:
    """What ``torch.export`` made of a module and example inputs."""

    program: torch.export.ExportedProgram
    batch: str | None  # symbol of the batch axis; none where every size is fixed
    inputs: ExampleInputs
    fixed: str  # why the batch has the example's size; empty where it is free
    range: Range  # batch sizes for which the program holds
    notes: tuple[Note, ...]  # what the program does otherwise than the module, `fixed` included
    observed: Observed

    @property
    def branches(self) -> bool:
        """Whether forward decides by a tensor which branch runs: eager PyTorch compiles that."""
        return any(n.target is torch.ops.higher_order.cond for n in self.program.graph.nodes)

    def larger(self, limit: float) -> ExampleInputs:
        """Return the example's inputs with one more in the batch, where that is open.

        ``limit`` is the largest batch for which the graph holds.
        """
        symbols = iter(_symbols(self.program))

        def longer(x: Tensor) -> Tensor:
            is_open = next(symbols) == self.batch is not None and len(x) < limit
            return torch.cat([x, x[-1:]]) if is_open else x

        return pytree.tree_map_only(Tensor, longer, self.inputs)


def export_program(
    model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], fixed: str = ""
) -> Captured:
    """Export a module with a dynamic batch axis.

    Several inputs may have different leading axes: those that have the size of the first one's
    are batch axes, where the module agrees; the others keep their size. ``fixed`` says why all
    sizes are the example's.

    1. Try a batch axis that export may not restrict, then one that it may (``AUTO``), both on an
       example of at least two; then the sizes of the example. A forward that goes by the values of
       a size leads to the last of them.
    2. If leading axes turn out to be independent, only the first one is the batch: export again
       with the others fixed.
    3. Find the batch sizes for which the program holds. If that is the example's alone, go on with
       fixed sizes.
    4. Note why the batch size is fixed, if it is.

    Raises:
        TraceError: If the module cannot be captured: the line of the user's code, and what to do.
    """
    example = args, kwargs
    register_dataclasses(example)
    first: Exception | None = None
    asked = fixed
    with neutral(), attributes_first(model):
        grown = grow(example)  # here: a copy that is made in inference mode stays in it
        free = [(grown, torch.export.Dim("batch", min=2)), (grown, torch.export.Dim.AUTO)]
        for inputs, dim in [*([] if fixed else free), (example, None)]:  # 1
            # Fixed sizes help only if sizes were the obstacle: one that forward goes by, or the two
            # that stood for a batch of one.
            if dim is None and not asked and not leading(inputs):
                break
            observed = Observed()
            try:
                program, batch = _one_batch(model, inputs, dim, observed)  # 2
            except Exception as error:  # export raises whatever the user's forward raises
                first = first or error
                # A branch on the values of a size holds for that size alone: go on to fixed sizes.
                if observed.sizes:
                    asked = asked or "the values of what it makes of that size"
                elif is_branch(error) or is_unknown(error):
                    break
                continue
            valid = _range(model, program, batch, inputs)  # 3
            if valid.single:  # what holds for this batch does not hold for others
                asked = valid.why
                continue
            notes = list(observed.notes)
            if valid.why:
                note = f"the graph holds for {valid}; forward goes by the batch size: {valid.why}"
                notes.insert(0, note)
            reason = first_line(first) if first else ""  # 4
            if asked:
                reason = f"forward goes by {asked}"
            if batch is None and reason and any(t.dim() for t in example_tensors(inputs)):
                fixed = fixed or f"the batch size is fixed at that of the example: {reason}"
                notes.insert(0, fixed)
            return Captured(program, batch, inputs, fixed, valid, tuple(notes), observed)
    assert first is not None
    raise explained_failure(model, first) from first


def _one_batch(
    model: nn.Module, inputs: ExampleInputs, dim: object, observed: Observed
) -> tuple[torch.export.ExportedProgram, str | None]:
    """Export with one open axis, the batch; return the program and its symbol."""
    count = len(example_tensors(inputs))
    program = _export(model, inputs, [dim] * count, observed)
    symbols = _symbols(program)
    batch = next(filter(None, symbols), None)
    if {*symbols} - {"", batch}:
        dims = [torch.export.Dim.AUTO if symbol == batch else None for symbol in symbols]
        program = _export(model, inputs, dims, observed)
        batch = next(filter(None, _symbols(program)), None)
    return program, batch


def _range(
    model: nn.Module,
    program: torch.export.ExportedProgram,
    batch: str | None,
    inputs: ExampleInputs,
) -> Range:
    """Return the batch sizes for which a program holds."""
    if batch is None:
        return Range()
    batched = [symbol == batch for symbol in _symbols(program)]
    size = example_tensors(inputs)[batched.index(True)].shape[0]
    at = functools.partial(_export_at, model, inputs, batched)
    return batches(model, program, batch, size, at)


def _export_at(
    model: nn.Module, inputs: ExampleInputs, batched: Sequence[bool], size: int
) -> tuple[torch.export.ExportedProgram, str | None] | None:
    """Export at another batch size; return None where that fails."""
    dims = [torch.export.Dim.AUTO if is_open else None for is_open in batched]
    try:
        program = _export(model, at_batch(inputs, batched, size), dims, Observed())
    except Exception:  # whatever forward raises for this size
        return None
    return program, next(filter(None, _symbols(program)), None)


def _symbols(program: torch.export.ExportedProgram) -> list[str]:
    """Return the symbol of each tensor's leading axis, in order; empty if it is a number."""
    fakes = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    symbols = []
    for spec in program.graph_signature.input_specs:
        value = fakes.get(getattr(spec.arg, "name", ""))
        if spec.kind.name == "USER_INPUT" and isinstance(value, Tensor):
            size: int | torch.SymInt = value.shape[0] if value.dim() else 0
            expr = size.node.expr if isinstance(size, torch.SymInt) else None
            symbols.append(str(expr) if expr is not None and expr.free_symbols else "")
    return symbols


@contextlib.contextmanager
def _known(model: nn.Module) -> Iterator[None]:
    """Stop as soon as forward gives an object that torch cannot look into, and never will."""

    def check(*call: object) -> None:
        for value in pytree.tree_leaves(call[-1]):
            if is_own(type(value)) and not dataclasses.is_dataclass(value):
                raise UnknownType(f"{type(value)} is not a known type")

    hook = model.register_forward_hook(check)
    try:
        yield
    finally:
        hook.remove()


def _export(
    model: nn.Module, inputs: ExampleInputs, dims: Sequence[object], observed: Observed
) -> torch.export.ExportedProgram:
    """Export once, or as often as it takes to see through what forward reads and returns.

    1. Export as it is.
    2. Where leaves became constants, follow them to where forward reads them.
    3. Where forward returns a dataclass that torch does not know, make it known.
    """

    def once(*around: contextlib.AbstractContextManager[object]) -> torch.export.ExportedProgram:
        observed.clear()
        where = definition_of(type(model).forward)
        with contextlib.ExitStack() as stack:
            for context in (
                quiet(),
                quicker(open_sizes=any(dim is not None for dim in dims)),
                deciding(model, observed),
                restored(model),
                _known(model),
                watched(observed, where),
                *around,
            ):
                stack.enter_context(context)
            return torch.export.export(
                model,
                *inputs,
                dynamic_shapes=shapes(inputs, dims),  # type: ignore[arg-type]  # see its docstring
                strict=False,
            )

    def followed() -> torch.export.ExportedProgram:
        program = once()  # 1
        return once(Following(model)) if reads_elsewhere(model, program) else program  # 2

    try:
        with spelt_forward(model, inputs[1]):
            return followed()
    except Exception as error:  # whatever forward raises
        if isinstance(error, UnknownType) or not is_unknown(error):
            raise
    with spelt_forward(model, inputs[1], register=True):  # 3
        return followed()
