"""From an authored model to a graph: blocks unfold, names are bound, steps become operators.

Sections follow one another; a block is a list of steps with a scope of its own, whose names are
also looked up in the scopes around it; each step appends operators to one growing graph.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Mapping, Sequence

from archgraph.errors import SpecError
from archgraph.fields import Place
from archgraph.graph.ir import ArchGraph, Batch, Record, Ref, TensorType, Value
from archgraph.language import steps as table
from archgraph.language.document import Document
from archgraph.language.draft import GraphDraft
from archgraph.language.expression import ParamValue
from archgraph.language.lowering.choices import choose
from archgraph.language.lowering.reader import BlockOptions, StepReader
from archgraph.language.lowering.scope import (
    CHANNELS,
    FEATURES,
    INPUT,
    Scope,
    labels_of,
    lookup,
)
from archgraph.language.lowering.shortcut import Shortcut, kind_of
from archgraph.language.model import AuthoredModel, BlockBody, BlockSpec, SectionSpec, Step
from archgraph.language.steps import Site, StepOptions, StepRow
from archgraph.limits import LIMITS


def lower(
    document: Document, model: AuthoredModel, choices: Mapping[str, int] | None = None
) -> ArchGraph:
    """Return the graph of an authored model.

    Args:
        document: The file of the model; errors point into it.
        model: The model.
        choices: Values other than the written ones, by ``section.key`` or parameter.

    Raises:
        SpecError: If it cannot be built, with file, line and key.
        GraphError: If the whole breaks a law that no step could break alone.
    """
    reader = StepReader(document, choose(document, model, choices or {}))
    reader.check()
    return _Lowering(reader).graph()


def _unusual(name: str, shape: Sequence[int]) -> str | None:
    """Warn about sizes that look like those of a batch of images, or have channels last."""
    match tuple(shape):
        case (_, 1 | 3, height, width) if min(height, width) > 3:
            read, how = "channel, depth, height, width", "sizes come without the batch axis"
        case (height, width, 1 | 3) if min(height, width) > 3:
            read, how = "channel, height, width", "channels come first"
        case _:
            return None
    return f"inputs.{name}: {list(shape)} is read as {read}; {how}"


class _Lowering:
    def __init__(self, reader: StepReader) -> None:
        self.reader = reader
        self.document = reader.document
        self.model = reader.model
        self.draft = GraphDraft()
        self.places: dict[str, Place] = {}  # node → the step that made it
        self.nesting: list[str] = []
        self.unfolded = 0  # steps so far

    # -- the whole ------------------------------------------------------------------------

    def graph(self) -> ArchGraph:
        model = self.model
        values: dict[str, Ref] = {}
        for name, spec in model.inputs.items():
            values[name] = self.draft.input(name, TensorType((Batch(), *spec.shape), spec.dtype))
        labels = {label for s in model.sections for label in labels_of(s.steps or ()) if label}
        later = frozenset(labels | {s.name for s in model.sections})
        root = Scope("", values, model.params, later=later)
        x = next(iter(values.values()))
        sections: list[tuple[str, tuple[str, ...]]] = []
        # Before anything is unfolded: too many steps are refused at once.
        self._bound_depths(root)
        for index, section in enumerate(model.sections):
            place: Place = ("sections", index)
            if section.block is None:
                x = self._plain(section, (*place, "steps"), root, x)
            else:
                x, blocks = self._section(section, section.block, place, root, x)
                sections.append((section.name, blocks))
            values[section.name] = x
        outputs = self._outputs(root, x)
        # A result that is never used is almost always a forgotten `from:` or a wrong name.
        for name in self.draft.unused(outputs):
            if self.draft.nodes[name].op != "input":
                self.document.fail(
                    self.places.get(name, ()),
                    "makes a value that nothing uses",
                    hint="use it in a later step (from:), or remove it",
                )
        graph = self.draft.graph(outputs, name=model.name, sections=tuple(sections))
        notes = (_unusual(name, spec.shape) for name, spec in model.inputs.items())
        return graph.replace(notes=tuple(filter(None, notes)))

    def _outputs(self, root: Scope, last: Ref) -> Value:
        find = functools.partial(lookup, self.document, root, (), 0)
        match self.model.outputs:
            case None:
                return last
            case str(name):
                return find(name, ("outputs",))
            case tuple(names):
                return tuple(find(n, ("outputs", i)) for i, n in enumerate(names))
            case names:
                return Record(tuple((k, find(n, ("outputs", k))) for k, n in names.items()))

    # -- sections and blocks --------------------------------------------------------------

    def _plain(self, section: SectionSpec, place: Place, root: Scope, x: Ref) -> Ref:
        """Lower a section of plain steps; all later sections know the names that they give."""
        steps = section.steps or ()
        scope = Scope(section.name, {INPUT: x}, self._with_sizes(root.params, x), root, root.later)
        for index, label in enumerate(labels_of(steps)):
            if label in root.values:
                self._taken(label, (*place, index, steps[index].name, "as"))
        modules = self._modules(steps, (), place[:-1], scope)
        y = self._steps(steps, place, scope, x, modules)
        root.values.update((k, v) for k, v in scope.values.items() if k != INPUT)
        return y

    def _section(
        self, section: SectionSpec, name: str, place: Place, root: Scope, x: Ref
    ) -> tuple[Ref, tuple[str, ...]]:
        """Lower a run of equal blocks; returns its result, and the paths of the blocks."""
        block = self.model.blocks[name]
        blocks = []
        for index in range(self._depth(section, place, root)):
            params = self._arguments(section, place, root, first=index == 0)
            path = f"{section.name}.{index}"
            try:
                x = self._block(block, ("blocks", name), place, params, root, path, x)
            except SpecError as error:
                line = self.document.lines.get(place, 1)
                hint = f"in block {path} of the section on line {line}"
                error.hint = f"{error.hint}; {hint}" if error.hint else hint
                raise
            blocks.append(path)
        return x, tuple(blocks)

    def _depth(self, section: SectionSpec, place: Place, root: Scope) -> int:
        """Return the number of a section's blocks."""
        depth = self.reader.resolve(section.depth, root.params, (*place, "depth"))
        if not isinstance(depth, int) or isinstance(depth, bool) or not 1 <= depth <= LIMITS.blocks:
            self.document.fail(
                (*place, "depth"),
                "has a wrong value",
                found=depth,
                expected=f"1 to {LIMITS.blocks}",
            )
        return depth

    def _bound_depths(self, root: Scope) -> None:
        """Refuse sections of too many steps before the first of them is unfolded."""
        total = 0
        for index, section in enumerate(self.model.sections):
            if section.block is not None:
                place: Place = ("sections", index)
                block = self.model.blocks[section.block]
                steps = 1 + len(block.steps) + len(block.after)
                total += self._depth(section, place, root) * steps
                self._bound(total, (*place, "depth"))

    def _bound(self, steps: int, place: Place) -> None:
        if steps > LIMITS.unfolded_steps:
            self.document.fail(
                self.reader.known((), place),
                "unfolds to too many steps",
                found=f"{steps:,} with those before",
                expected=f"at most {LIMITS.unfolded_steps:,}",
            )

    def _arguments(
        self, section: SectionSpec, place: Place, root: Scope, *, first: bool
    ) -> dict[str, ParamValue]:
        """Return the arguments that a section gives to one of its blocks."""
        written = {**section.arguments, **(section.first_arguments if first else {})}
        params: dict[str, ParamValue] = {}
        for key, value in written.items():
            here = (*place, "first", key) if key in section.first else (*place, key)
            params[key] = self.reader.resolve(value, root.params, here)
        for key in ("width", "stride"):
            size = params.get(key, 1)
            if not isinstance(size, int) or size < 1:
                self.document.fail((*place, key), "has a wrong value", found=size, expected="≥ 1")
        return params

    def _block(
        self,
        block: BlockBody,
        place: Place,
        user: Place,
        arguments: Mapping[str, ParamValue],
        outer: Scope,
        path: str,
        x: Ref,
    ) -> Ref:
        """Lower one use of a block on a value."""
        self.nesting.append(str(place[-1]))
        if len(self.nesting) > LIMITS.block_nesting:
            self.document.fail(
                place,
                "is nested too deeply",
                found=" → ".join(self.nesting[-4:]),
                expected=f"at most {LIMITS.block_nesting} blocks, none inside itself",
            )
        defaults = block.params if isinstance(block, BlockSpec) else {}
        params = {**outer.params, **defaults, **arguments}
        for key in defaults:
            if params[key] is None:
                self.document.fail(user, f"lacks the parameter {key!r} of block {place[-1]!r}")
        scope = Scope(path, {INPUT: x}, self._with_sizes(params, x), outer, outer.later)
        modules = self._modules(block.steps, block.after, place, scope)
        count = len(block.steps)
        y = self._steps(block.steps, (*place, "steps"), scope, x, modules[:count])
        kind = kind_of(self.reader, block, place, scope)
        if kind is not None:
            norm = _is_norm(self.reader.step_name(block.steps[-1], scope.params, place))
            shortcut = Shortcut(self.reader, self.draft, scope, (*place, "shortcut"), kind, norm)
            y = shortcut.add(x, y)
        y = self._steps(block.after, (*place, "after"), scope, y, modules[count:])
        self.nesting.pop()
        return y

    def _with_sizes(self, params: Mapping[str, ParamValue], x: Ref) -> dict[str, ParamValue]:
        """Return the parameters, and the sizes of a list's input."""
        shape = self.draft.shape(x)
        sizes = {}
        if len(shape) > 1 and isinstance(shape[1], int):
            sizes[CHANNELS] = shape[1]
        if shape and isinstance(shape[-1], int):
            sizes[FEATURES] = shape[-1]
        return {**params, **sizes}

    # -- steps ----------------------------------------------------------------------------

    def _modules(
        self, steps: Sequence[Step], after: Sequence[Step], place: Place, scope: Scope
    ) -> list[str]:
        """Return module names: what ``name:`` gives, else the stem, numbered if it repeats."""
        parts = [("steps", i, s) for i, s in enumerate(steps)]
        parts += [("after", i, s) for i, s in enumerate(after)]
        stems, names = [], []
        for part, index, step in parts:
            here = (*place, part, index)
            kind = self.reader.step_name(step, scope.params, here)
            row = table.find(kind)
            stems.append(row.stem if row is not None else kind)
            explicit = step.options.get("name") if isinstance(step.options, dict) else None
            names.append(self.reader.resolve(explicit, scope.params, (*here, step.name, "name")))
        unnamed = [stem for stem, name in zip(stems, names, strict=True) if name is None]
        several = collections.Counter(unnamed)
        numbers: collections.Counter[str] = collections.Counter()
        modules: dict[str, None] = {"shortcut": None}  # taken, in order
        for stem, name, (part, index, step) in zip(stems, names, parts, strict=True):
            numbers[stem] += name is None
            module = str(name) if name else f"{stem}{numbers[stem]}" if several[stem] > 1 else stem
            if module in modules:
                self.document.fail(
                    (*place, part, index, *((step.name, "name") if name else ())),
                    "has the module name of another step",
                    found=repr(module),
                    expected="a name of its own",
                )
            modules[module] = None
        return list(modules)[1:]

    def _steps(
        self, steps: Sequence[Step], place: Place, scope: Scope, x: Ref, modules: Sequence[str]
    ) -> Ref:
        """Lower a list of steps, one after the other, on a value."""
        names = [self.reader.step_name(s, scope.params, (*place, i)) for i, s in enumerate(steps)]
        normalised = any(map(_is_norm, names))
        labels = labels_of(steps)
        for index, (step, name) in enumerate(zip(steps, names, strict=True)):
            here = (*place, index)
            find = functools.partial(lookup, self.document, scope, steps, index)
            x = self._step(
                Step(name, step.options), here, scope, x, modules[index], normalised, find
            )
            label = labels[index]
            if label is not None:
                if label in scope.values or label in self.model.inputs:
                    self._taken(label, (*here, step.name, "as"))
                scope.values[label] = x
        return x

    def _step(
        self,
        step: Step,
        place: Place,
        scope: Scope,
        x: Ref,
        module: str,
        normalised: bool,
        find: functools.partial[Ref],
    ) -> Ref:
        """Lower one step: a block of the model, an inline block, or a row of the table."""
        inner = (*place, step.name)
        reader = self.reader
        self.unfolded += 1
        self._bound(self.unfolded, place)
        block: BlockBody | None = self.model.blocks.get(step.name)
        where: Place = ("blocks", step.name)
        arguments: dict[str, ParamValue] = {}
        row: StepRow | None = None
        options: StepOptions
        if block is not None:
            options, arguments = reader.block_arguments(step, place, scope.params)
        elif step.name == "block":
            # Expressions inside are resolved by the inner steps, which know their sizes.
            options = inline = reader.options(BlockOptions, step, "steps", place, None)
            block, where = inline, inner
        else:
            row = reader.row(step.name, place)
            options = reader.options(row.options, step, row.main, place, scope.params)
        sources = (options.source,) if isinstance(options.source, str) else options.source
        inputs = tuple(find(n, (*inner, "from")) for n in sources) if sources else (x,)
        if len(inputs) > 1 and (row is None or not row.several):
            self.document.fail(
                (*inner, "from"), "names several values", found=len(inputs), expected="one"
            )
        path = scope.under(module)
        if block is not None:
            return self._block(block, where, place, arguments, scope, path, inputs[0])
        assert row is not None
        emit = row.emit
        site = Site(
            self.draft, path, lambda name: find(name, reader.known(inner, ("other",))), normalised
        )
        # A step may append several operators: errors about any of them point at its line.
        before = len(self.draft.nodes)
        result = reader.guard(inner, lambda: emit(site, options, inputs))
        for name in itertools.islice(self.draft.nodes, before, None):
            self.places[name] = place
        return result

    def _taken(self, label: str, place: Place) -> None:
        self.document.fail(place, "is taken", found=repr(label), expected="another name")


def _is_norm(name: str) -> bool:
    row = table.find(name)
    return row is not None and row.batch_norm
