"""Run ``torch.export`` with open axes, and find its assumptions about their sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from archgraph.capture.aliases import Following, reads_elsewhere
from archgraph.capture.branches import deciding
from archgraph.capture.draws import other_draws
from archgraph.capture.examples import (
    ExampleInputs,
    OpenAxes,
    all_axes,
    at_size,
    axis_of,
    example_tensors,
    grow,
    leading,
    register_dataclasses,
    shapes,
    size_values,
)
from archgraph.capture.failures import (
    UnknownType,
    explained_failure,
    first_line,
    is_branch,
    is_unknown,
    place_of,
)
from archgraph.capture.modes import without_momentum
from archgraph.capture.places import definition_of, is_own
from archgraph.capture.quick import quicker
from archgraph.capture.ranges import Range, canonical_graph, ranges
from archgraph.capture.restored import restored
from archgraph.capture.surroundings import (
    attributes_first,
    neutral,
    noting_numbers,
    quiet,
    spelt_forward,
    watched,
)
from archgraph.capture.tape import Note, Observed
from archgraph.errors import TraceError
from archgraph.graph.sizes import OpenSize
from archgraph.graph.values import BATCH_WORD

_LONGEST = 512  # largest end of a range that is verified, unless the example is longer


@dataclass(frozen=True)
class Captured:
    """The result of ``torch.export`` for a module and example inputs."""

    program: torch.export.ExportedProgram
    names: Mapping[str, str]  # of open sizes, by symbol
    axes: OpenAxes  # open axes of the inputs' tensors, in order
    inputs: ExampleInputs
    fixed: str  # why the batch has the example's size; empty if it is open
    ranges: Mapping[str, Range]  # values of open sizes for which the program is valid
    notes: tuple[Note, ...]  # differences of the program from the module, including `fixed`
    observed: Observed

    @property
    def branches(self) -> bool:
        """Whether forward calls ``torch.cond``, which PyTorch compiles in eager mode."""
        return any(n.target is torch.ops.higher_order.cond for n in self.program.graph.nodes)

    def sizes(self) -> dict[str, OpenSize]:
        """Return the open sizes of the graph; their ``axes`` are empty."""
        examples = {**size_values(self.inputs, self.axes), BATCH_WORD: 1}
        return {n: OpenSize(n, examples[n], *r.ends, ()) for n, r in self.ranges.items()}

    def ends(self) -> Iterator[tuple[str, ExampleInputs]]:
        """Yield inputs for the least and the largest value of each open size except the batch.

        Large values are skipped, because their results would need more memory than the model.
        """
        for name, size in self.sizes().items():
            for value in {size.low, size.high} - {size.example, math.inf}:
                if name != BATCH_WORD and value <= max(_LONGEST, 4 * size.example):
                    inputs = at_size(self.inputs, self.axes, name, int(value))
                    yield f"{name} of {int(value)}", inputs

    def few(self) -> ExampleInputs:
        """Return the inputs with two examples, or the least valid number, if the batch is open."""
        examples = size_values(self.inputs, self.axes).get(BATCH_WORD)
        if examples is None:
            return self.inputs
        few = min(examples, max(2, int(self.ranges[BATCH_WORD].ends[0])))
        return at_size(self.inputs, self.axes, BATCH_WORD, few)

    def larger(self, inputs: ExampleInputs) -> ExampleInputs:
        """Return inputs with each open size increased by one, if the range allows it."""
        for name, value in size_values(inputs, self.axes).items():
            if value < self.ranges[name].ends[1]:
                inputs = at_size(inputs, self.axes, name, value + 1)
        return inputs


def export_program(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    fixed: str = "",
    stated: OpenAxes = (),
) -> Captured:
    """Export a module with an open (dynamic) batch, and with other axes that the user has opened.

    Several inputs may have leading axes of different sizes. Axes of the same size as the first
    leading axis are batch axes, if the module allows this; other axes keep their sizes. ``fixed``
    is the reason why the batch has the example's size, and ``stated`` contains the open axes of
    each tensor.

    1. Export with a batch axis that export must not fix. If this fails, export with a batch axis
       that export may fix (``AUTO``). If this fails as well, export with the batch size of the
       example, for example because forward branches on the batch size. The first two exports use an
       example with a batch of at least two. If only one input has a batch, try ``AUTO`` first,
       because no sizes have to be equal. If ``AUTO`` fixes the batch, the export without ``AUTO``
       fails with the reason, and the batch size of the example is used. Export may restrict the
       batch to a range, which step 3 may find to be unnecessary.
    2. If leading axes turn out to be independent, only the first leading axis is the batch. Export
       again with the others fixed.
    3. Find the batch sizes for which the program is valid. If only the size of the example is
       valid, continue with a fixed size.
    4. If the batch size is fixed, add a note with the reason.

    Raises:
        TraceError: If the module cannot be captured. The error names the line of the user's code
            and has a hint.
    """
    example = args, kwargs
    register_dataclasses(example)
    axes, obstacles = all_axes(example, stated), _Obstacles(asked=fixed)
    with neutral(), attributes_first(model):
        grown = grow(example, axes)  # here, since a copy made in inference mode would keep it
        free = [(grown, torch.export.Dim("batch", min=2)), (grown, torch.export.Dim.AUTO)]
        batches = sum(axis_of(mine) is not None for mine in axes)
        if batches == 1:
            free.reverse()
        for inputs, dim in [*([] if fixed else free), (example, None)]:  # 1
            # A fixed size helps only if sizes were the obstacle: one that forward depends on, or
            # the size of two that replaced a batch of one.
            if dim is None and not (obstacles.asked or obstacles.fixes or leading(inputs, axes)):
                break
            observed = Observed()
            try:
                program, opened = _one_batch(model, inputs, axes, dim, observed)  # 2
            except Exception as error:  # export raises whatever the user's forward raises
                location = obstacles.location or _place_of_number(model, inputs, axes, observed)
                if not obstacles.add(error, location, by_size=bool(observed.sizes)):
                    break
                continue
            names = _names(program, opened)
            at = functools.partial(_export_at, model, inputs, opened)  # 3
            bounds = ranges(model, program, names, size_values(inputs, opened), at)
            valid = bounds.get(BATCH_WORD, Range())
            if valid.single:  # the program is valid for this batch size only
                obstacles.asked = valid.why
                obstacles.location = " and ".join(dict.fromkeys(observed.narrowed))
                continue
            is_fixed = BATCH_WORD not in names.values()
            # There is no reason yet, or the example's batch of one was repeated: continue.
            if (
                is_fixed
                and dim is not None
                and (leading(example, axes) or (batches and not obstacles.first))
            ):
                obstacles.fixes = True
                continue
            captured = Captured(program, names, opened, inputs, fixed, bounds, (), observed)
            return _with_notes(model, captured, obstacles.reason())  # 4
    assert obstacles.first is not None
    first = obstacles.first
    raise explained_failure(model, first, functools.partial(_run, model, example)) from first


@dataclass
class _Obstacles:
    """Reasons against an open batch that have been found so far.

    Attributes:
        asked: Condition on the batch that forward requires.
        first: First failure of an export.
        location: Line of the user's code that needs the example's size.
        fixes: Whether an export fixed the batch.
    """

    asked: str
    first: Exception | None = None
    location: str = ""
    fixes: bool = False

    def add(self, error: Exception, location: str, by_size: bool) -> bool:
        """Add a failure; return whether another export may succeed.

        If ``by_size``, forward branches on the values of a size, which must then be fixed.
        """
        self.first = self.first or error
        self.location = location
        if by_size:
            self.asked = self.asked or "values that it computes from that size"
            self.location = location or _written(place_of(error))
            return True
        return not (is_branch(error) or is_unknown(error))

    def reason(self) -> str:
        """Return the reason why the batch has the example's size, with the line of code."""
        location = self.location
        if self.asked:
            reason = f"forward depends on {self.asked}"
        elif location:
            reason = "forward works for this size only"
        else:
            reason = first_line(self.first) if self.first else ""
            location = _written(place_of(self.first)) if self.first else ""
        return f"{reason} ({location})" if location else reason


def _with_notes(model: nn.Module, captured: Captured, reason: str) -> Captured:
    """Return a capture with notes on its differences from the module.

    ``reason`` is the reason for which the batch would have the example's size.
    """
    notes, fixed = list(captured.observed.notes), captured.fixed
    if captured.observed.drew and _depends_on_draws(model, captured):
        draws = TraceError(
            "forward draws random numbers from Python or NumPy, and its results depend on the "
            "numbers that it drew during tracing",
            where=definition_of(type(model).forward),
            hint="use torch's random numbers instead",
        )
        notes.append(draws)
    valid = captured.ranges.get(BATCH_WORD, Range())
    if valid.why:
        notes.insert(
            0, f"the graph is valid for {valid}; forward depends on the batch size: {valid.why}"
        )
    is_fixed = BATCH_WORD not in captured.names.values()
    if is_fixed and reason and any(t.dim() for t in example_tensors(captured.inputs)):
        fixed = fixed or f"the batch size is fixed at that of the example: {reason}"
        notes.insert(0, fixed)
    return dataclasses.replace(captured, fixed=fixed, notes=tuple(notes))


def _run(model: nn.Module, inputs: ExampleInputs) -> object:
    """Run forward once and restore the module."""
    args, kwargs = pytree.tree_map_only(Tensor, torch.clone, inputs)
    with neutral(), restored(model), quiet(), torch.no_grad():
        return model(*args, **kwargs)


def _place_of_number(
    model: nn.Module, inputs: ExampleInputs, axes: OpenAxes, observed: Observed
) -> str:
    """Return the line that needs the batch to be a number; empty if there is none.

    Raises:
        TraceError: If forward needs another open size to be a number. The error names the size and
            the line.
    """
    signature = inspect.signature(model.forward)
    bound = dict(signature.bind(*inputs[0], **inputs[1]).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # as in `spelt_forward`
            bound |= bound.pop(name, {})
    labels = {
        id(leaf): f"L[{key!r}]{pytree.keystr(path)}"
        for key, value in bound.items()
        for path, leaf in pytree.tree_leaves_with_path(value)
    }
    location = ""
    for tensor, mine in zip(example_tensors(inputs), axes, strict=True):
        for axis, name in mine.items():
            number, where = observed.numbers.get(f"{labels[id(tensor)]}.size()[{axis}]", (None, ""))
            if name == BATCH_WORD:
                location = location or where
            elif number is not None:
                raise TraceError(
                    f"{name} cannot be open: forward needs it to be {number}",
                    where=where,
                    hint="remove it from `open`, or change the code that requires it",
                )
    return location


def _written(location: tuple[str, int, str] | None) -> str:
    """Format the file and the line of a location; empty if there is none."""
    return f"{location[0]}:{location[1]}" if location else ""


def _one_batch(
    model: nn.Module, inputs: ExampleInputs, axes: OpenAxes, dim: object, observed: Observed
) -> tuple[torch.export.ExportedProgram, OpenAxes]:
    """Export with one batch and the other open axes; return the program and its open axes.

    ``dim`` is the batch dimension for ``torch.export``; None if it is fixed.
    """
    program = _export(model, inputs, _dims(axes, dim), observed)
    batches = [_symbol(t, axis_of(a)) for t, a in zip(_fakes(program), axes, strict=True)]
    batch = next(filter(None, batches), "")
    same = _only(axes, [symbol == batch != "" for symbol in batches])
    if {*batches} - {"", batch}:
        program = _export(model, inputs, _dims(same, torch.export.Dim.AUTO), observed)
        # An axis that follows from the others is a number now.
        left = zip(_fakes(program), same, strict=True)
        same = _only(same, [bool(_symbol(t, axis_of(a))) for t, a in left])
    return program, same


def _only(axes: OpenAxes, batched: Sequence[bool]) -> OpenAxes:
    """Return the open axes, without the batch of tensors that are not batched."""
    return [
        {axis: name for axis, name in mine.items() if name != BATCH_WORD or is_batched}
        for mine, is_batched in zip(axes, batched, strict=True)
    ]


def _dims(axes: OpenAxes, batch: object) -> list[dict[int, object]]:
    """Return the ``torch.export`` dimension of each axis."""
    kinds = {BATCH_WORD: batch}
    dims = [
        {axis: kinds.get(name, torch.export.Dim.DYNAMIC) for axis, name in mine.items()}
        for mine in axes
    ]
    return [{axis: dim for axis, dim in mine.items() if dim is not None} for mine in dims]


def _names(program: torch.export.ExportedProgram, axes: OpenAxes) -> dict[str, str]:
    """Return the names of a program's symbols.

    Raises:
        TraceError: If the module needs two open sizes to be equal, or one to follow from another.
    """
    names: dict[str, str] = {}
    for tensor, mine in zip(_fakes(program), axes, strict=True):
        for axis, name in mine.items():
            symbol = _symbol(tensor, axis)
            other = names.setdefault(symbol, name)
            if other != name or not symbol.isidentifier():
                raise TraceError(
                    f"{other} and {name} cannot both be open: forward needs them to be equal"
                    if other != name
                    else f"{name} cannot be open: forward needs it to be {symbol}",
                    hint="give both axes the same name, or keep one of them fixed",
                )
    return names


def _export_at(
    model: nn.Module, inputs: ExampleInputs, axes: OpenAxes, size: int
) -> tuple[torch.export.ExportedProgram, Mapping[str, str]] | None:
    """Export at another batch size; return None if that fails."""
    dims = _dims(axes, torch.export.Dim.AUTO)
    try:
        program = _export(
            model, at_size(inputs, axes, BATCH_WORD, size, numbers=False), dims, Observed()
        )
        return program, _names(program, axes)
    except Exception:  # whatever forward raises at this size
        return None


def _depends_on_draws(model: nn.Module, captured: Captured) -> bool:
    """Return whether random numbers of Python or NumPy change the program or its results.

    1. Compare programs for a few series of numbers, since an export takes long.
    2. Compare results for many series of numbers, which also reach a rare branch such as
       ``randrange(20) == 3``. Torch draws the same numbers each time.
    """
    inputs, axes = captured.inputs, captured.axes
    size = size_values(inputs, axes).get(BATCH_WORD, 0)
    expected = canonical_graph(model, captured.program, captured.names)
    for _ in other_draws(4):  # 1
        exported = _export_at(model, inputs, axes, size)
        if exported is None or canonical_graph(model, *exported) != expected:
            return True
    results: list[Tensor] = []
    for _ in other_draws(64):  # 2
        with torch.random.fork_rng():
            torch.manual_seed(0)
            leaves = [x for x in pytree.tree_leaves(_run(model, inputs)) if isinstance(x, Tensor)]
        results = results or leaves
        if not all(map(_same, results, leaves)):
            return True
    return False


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(one.isclose(other, 0, 0, equal_nan=True).all())


def _fakes(program: torch.export.ExportedProgram) -> list[Tensor]:
    """Return the fake tensor of each input tensor of a program, in order."""
    fakes = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    specs = [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    values = [fakes.get(getattr(spec.arg, "name", "")) for spec in specs]
    return [value for value in values if isinstance(value, Tensor)]


def _symbol(tensor: Tensor, axis: int | None) -> str:
    """Return the symbol of an axis; empty if it is a number, or if there is no axis."""
    if axis is None:
        return ""
    size: int | torch.SymInt = tensor.shape[axis]
    expr = size.node.expr if isinstance(size, torch.SymInt) else None
    return str(expr) if expr is not None and expr.free_symbols else ""


@contextlib.contextmanager
def _known(model: nn.Module) -> Iterator[None]:
    """Raise an error as soon as forward returns an object that torch cannot flatten."""

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
    model: nn.Module,
    inputs: ExampleInputs,
    dims: Sequence[Mapping[int, object]],
    observed: Observed,
) -> torch.export.ExportedProgram:
    """Export, repeatedly if necessary, until all parameters and results of forward are recognised.

    1. Export the model unchanged.
    2. If parameters became constants, export again and replace them where forward reads them.
    3. If forward returns a dataclass that torch does not know, register the dataclass.
    """

    def once(*around: contextlib.AbstractContextManager[object]) -> torch.export.ExportedProgram:
        observed.clear()
        where = definition_of(type(model).forward)
        with contextlib.ExitStack() as stack:
            for context in (
                quiet(),
                quicker(open_sizes=any(dims)),
                deciding(model, observed),
                restored(model),
                _known(model),
                without_momentum(model),
                watched(observed, where),
                noting_numbers(observed),
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
