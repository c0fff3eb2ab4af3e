"""Build the graph of an authored model (a list of sections).

Sections are built one after the other, and each step appends its operators to the same graph. A
block is a list of steps with its own names. Names that a block does not define are looked up in the
lists of steps that contain the block.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Mapping, Sequence

from archgraph.errors import ErrorFacts, SpecError
from archgraph.fields import Place
from archgraph.graph.ir import ArchGraph, Record, Ref, TensorType, Value
from archgraph.graph.polynomial import Polynomial
from archgraph.language import steps as table
from archgraph.language.document import Document
from archgraph.language.draft import GraphDraft
from archgraph.language.expression import ParamValue
from archgraph.language.lowering.choices import choose
from archgraph.language.lowering.reader import BlockOptions, StepReader
from archgraph.language.lowering.scope import CHANNELS, FEATURES, INPUT, Scope, labels_of, lookup
from archgraph.language.lowering.shortcut import Shortcut, shortcut_of
from archgraph.language.model import AuthoredModel, BlockBody, BlockSpec, SectionSpec, Step
from archgraph.language.steps import Site, StepOptions
from archgraph.limits import LIMITS


def lower(
    document: Document, model: AuthoredModel, choices: Mapping[str, int | str] | None = None
) -> ArchGraph:
    """Return the graph of an authored model.

    Args:
        document: The file of the model, for errors.
        model: The model.
        choices: Dict from ``section.key`` or parameter to a value that replaces the value in the
            file.

    Raises:
        SpecError: If the model cannot be built; names file, line and key.
        GraphError: If every step is valid, but the complete graph is not.
    """
    reader = StepReader(document, choose(document, model, choices or {})).resolved()
    reader.check()
    graph = _Lowering(reader).graph()
    reader.check_used()  # last: an expression that cannot be read uses nothing
    return graph


def _unusual(name: str, sizes: Sequence[int | str]) -> str | None:
    """Warn about sizes that look like those of a batch of images, or have channels last."""
    shape = [size for size in sizes if isinstance(size, int)]
    match shape if len(shape) == len(sizes) else ():
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
        self.places: dict[str, Place] = {}  # node → the step that created it
        self.nesting: list[str] = []
        self.unfolded = 0  # steps so far
        self.maps: set[Ref] = set()  # values [batch, channel, size, size, …]

    # -- the whole ------------------------------------------------------------------------

    def graph(self) -> ArchGraph:
        model = self.model
        sizes = {name: spec.size(name) for name, spec in model.open.items()}
        values = {}
        for name, spec in model.inputs.items():
            shape = (Polynomial.of(s) if isinstance(s, str) else s for s in model.shape(name))
            values[name] = self.draft.input(name, TensorType(tuple(shape), spec.dtype), sizes)
            if _is_image(spec.shape):
                self.maps.add(values[name])
        labels = {label for s in model.sections for label in labels_of(s.steps or ()) if label}
        # Known beforehand, so that an error distinguishes "made later" from "unknown".
        later = frozenset(labels | {s.name for s in model.sections})
        root = Scope("", values, model.params, later=later)
        x = next(iter(values.values()))
        sections: list[tuple[str, tuple[str, ...]]] = []
        # Before anything is unfolded: too many steps are refused at once.
        self._bound_depths(root)
        for index, section in enumerate(model.sections):
            loc: Place = ("sections", index)
            if section.block is None:
                x = self._plain(section, (*loc, "steps"), root, x)
                blocks: tuple[str, ...] = ()  # found within it by analysis
            else:
                x, blocks = self._section(section, section.block, loc, root, x)
            sections.append((section.name, blocks))
            values[section.name] = x
        outputs = self._outputs(root, x)
        self._check_used(outputs)
        graph = self.draft.graph(outputs, name=model.name, sections=tuple(sections))
        notes = (_unusual(name, spec.shape) for name, spec in model.inputs.items())
        return graph.replace(notes=tuple(filter(None, notes)))

    def _check_used(self, outputs: Value) -> None:
        """Refuse a result that is never used: almost always a forgotten `from:` or a wrong name."""
        for name in self.draft.unused(outputs):
            if self.draft.nodes[name].op != "input":
                hint = "use it in a later step (from:), or remove it"
                loc = self.places.get(name, ())
                self.document.fail(loc, "makes a value that nothing uses", hint=hint)

    def _outputs(self, root: Scope, last: Ref) -> Value:
        find = functools.partial(lookup, self.document, root, ())
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

    def _plain(self, section: SectionSpec, loc: Place, root: Scope, x: Ref) -> Ref:
        """Lower a section of plain steps; all later sections know the names that they give."""
        steps = section.steps or ()
        scope = Scope(section.name, {INPUT: x}, self._with_sizes(root.params, x), root, root.later)
        # Here, and not only step by step: these names are merged into the root's at the end.
        for index, label in enumerate(labels_of(steps)):
            if label in root.values:
                self.reader.duplicate(label, (*loc, index, steps[index].name, "as"))
        modules = self._modules(steps, (), loc[:-1], scope)
        y = self._steps(steps, loc, scope, x, modules)
        root.values.update((k, v) for k, v in scope.values.items() if k != INPUT)
        return y

    def _section(
        self, section: SectionSpec, name: str, loc: Place, root: Scope, x: Ref
    ) -> tuple[Ref, tuple[str, ...]]:
        """Lower a run of equal blocks; returns its result, and the paths of the blocks."""
        block = self.model.blocks[name]
        blocks = []
        for index in range(self._depth(section, loc, root)):
            params = self._arguments(section, loc, root, first=index == 0)
            path = f"{section.name}.{index}"
            try:
                x = self._block(block, ("blocks", name), loc, params, root, path, x)
            except SpecError as error:
                line = self.document.lines.get(loc, 1)
                # The error points into the block, which several sections may use.
                hint = f"in block {path} of the section on line {line}"
                error.hint = "; ".join(filter(None, (error.hint, hint)))
                raise
            blocks.append(path)
        return x, tuple(blocks)

    def _depth(self, section: SectionSpec, loc: Place, root: Scope) -> int:
        """Return the number of a section's blocks."""
        loc = (*loc, "depth")
        depth = self.reader.resolve(section.depth, root.params, loc)
        if type(depth) is not int or not 1 <= depth <= LIMITS.blocks:
            expected = f"1 to {LIMITS.blocks}"
            self.document.fail(loc, "has a wrong value", found=depth, expected=expected)
        return depth

    def _bound_depths(self, root: Scope) -> None:
        """Raise an error for sections of too many steps before the first of them is unfolded."""
        total = 0
        for index, section in enumerate(self.model.sections):
            if section.block is not None:
                block = self.model.blocks[section.block]
                steps = 1 + len(block.steps) + len(block.after)
                total += self._depth(section, ("sections", index), root) * steps
                self._bound(total, ("sections", index, "depth"))

    def _bound(self, steps: int, loc: Place) -> None:
        if steps > LIMITS.unfolded_steps:
            loc = self.document.known((), loc)
            number, expected = f"{steps:,} with those before", f"at most {LIMITS.unfolded_steps:,}"
            self.document.fail(loc, "unfolds to too many steps", found=number, expected=expected)

    def _arguments(
        self, section: SectionSpec, loc: Place, root: Scope, *, first: bool
    ) -> dict[str, ParamValue]:
        """Return the arguments that a section passes to one of its blocks."""
        written = {**section.arguments, **(section.first_arguments if first else {})}
        params: dict[str, ParamValue] = {}
        for key, value in written.items():
            here = (*loc, "first", key) if key in section.first else (*loc, key)
            params[key] = self.reader.resolve(value, root.params, here)
        for key in ("width", "stride"):
            size = params.get(key, 1)
            if not isinstance(size, int) or size < 1:
                self.document.fail((*loc, key), "has a wrong value", found=size, expected="≥ 1")
        return params

    def _block(
        self,
        block: BlockBody,
        loc: Place,
        user: Place,
        arguments: Mapping[str, ParamValue],
        outer: Scope,
        path: str,
        x: Ref,
    ) -> Ref:
        """Lower one use of a block on a value."""
        self.nesting.append(str(loc[-1]))
        if len(self.nesting) > LIMITS.block_nesting:
            expected = f"at most {LIMITS.block_nesting} blocks, none inside itself"
            chain = " → ".join(self.nesting[-4:])
            self.document.fail(loc, "is nested too deeply", found=chain, expected=expected)
        # An inline block has no own parameters: it sees those of the enclosing block.
        defaults = block.params if isinstance(block, BlockSpec) else {}
        # Inner names hide outer ones, as in Python.
        params = {**outer.params, **arguments}
        for key, value in defaults.items():
            # In order, so that a default may be computed from parameters before it.
            if key not in arguments:
                params[key] = self.reader.parameter(value, params, (*loc, "params", key))
        for key in defaults:
            if params[key] is None:
                self.document.fail(user, f"lacks the parameter {key!r} of block {loc[-1]!r}")
        scope = Scope(path, {INPUT: x}, self._with_sizes(params, x), outer, outer.later)
        modules = self._modules(block.steps, block.after, loc, scope)
        count = len(block.steps)
        y = self._steps(block.steps, (*loc, "steps"), scope, x, modules[:count])
        kind = shortcut_of(self.reader, block, loc, scope)
        if kind is not None:
            norm = _is_norm(self.reader.step_name(block.steps[-1], scope.params, loc))
            shortcut = Shortcut(self.reader, self.draft, scope, (*loc, "shortcut"), kind, norm)
            added = shortcut.add(x, y)
            if y in self.maps:
                self.maps.add(added)
            y = added
        # After the sum: ResNets apply a ReLU here, pre-activation nets nothing.
        y = self._steps(block.after, (*loc, "after"), scope, y, modules[count:])
        self.nesting.pop()
        return y

    def _with_sizes(self, params: Mapping[str, ParamValue], x: Ref) -> dict[str, ParamValue]:
        """Return the parameters, and the sizes of a list's input."""
        shape = self.draft.shape(x)
        sizes = {}
        # Not an integer where the axis depends on the batch.
        if len(shape) > 1 and isinstance(shape[1], int):
            sizes[CHANNELS] = shape[1]
        if shape and isinstance(shape[-1], int):
            sizes[FEATURES] = shape[-1]
        return {**params, **sizes}

    # -- steps ----------------------------------------------------------------------------

    def _modules(
        self, steps: Sequence[Step], after: Sequence[Step], loc: Place, scope: Scope
    ) -> list[str]:
        """Return module names: the value of ``name:``, else the stem, numbered if it repeats."""
        parts = [((*loc, "steps", i), s) for i, s in enumerate(steps)]
        parts += [((*loc, "after", i), s) for i, s in enumerate(after)]
        stems, names = [], []
        for here, step in parts:
            kind = self.reader.step_name(step, scope.params, here)
            row = table.find(kind)
            stems.append(row.stem if row is not None else kind)
            explicit = step.options.get("name") if isinstance(step.options, dict) else None
            names.append(self.reader.resolve(explicit, scope.params, (*here, step.name, "name")))
        several = collections.Counter(s for s, name in zip(stems, names, strict=True) if not name)
        numbers: collections.Counter[str] = collections.Counter()
        modules = ["shortcut"]  # the name of the projection, where there is one
        for stem, name, (here, step) in zip(stems, names, parts, strict=True):
            numbers[stem] += not name
            module = str(name) if name else f"{stem}{numbers[stem]}" if several[stem] > 1 else stem
            if module in modules:
                # Keys of the state would be the same, and one tensor overwrite the other.
                here = (*here, step.name, "name") if name else here
                facts: ErrorFacts = {"found": repr(module), "expected": "a unique name"}
                self.document.fail(here, "has the module name of another step", **facts)
            modules.append(module)
        return modules[1:]

    def _steps(
        self, steps: Sequence[Step], loc: Place, scope: Scope, x: Ref, modules: Sequence[str]
    ) -> Ref:
        """Lower a list of steps, one after the other, on a value."""
        # All names first: a batch norm anywhere in the list decides on the bias of convolutions.
        names = [self.reader.step_name(s, scope.params, (*loc, i)) for i, s in enumerate(steps)]
        normalised = any(map(_is_norm, names))
        labels = labels_of(steps)
        for index, (step, name) in enumerate(zip(steps, names, strict=True)):
            here = (*loc, index)
            find = functools.partial(lookup, self.document, scope, steps)
            x = self._step(
                Step(name, step.options), here, scope, x, modules[index], normalised, find
            )
            label = labels[index]
            if label is not None:
                if label in scope.values or label in self.model.inputs:
                    self.reader.duplicate(label, (*here, step.name, "as"))
                scope.values[label] = x
        return x

    def _step(
        self,
        step: Step,
        loc: Place,
        scope: Scope,
        x: Ref,
        module: str,
        normalised: bool,
        find: functools.partial[Ref],
    ) -> Ref:
        """Lower one step: a block of the model, an inline block, or a row of the table."""
        inner = (*loc, step.name)
        reader = self.reader
        self.unfolded += 1
        self._bound(self.unfolded, loc)
        block: BlockBody | None = self.model.blocks.get(step.name)
        where: Place = ("blocks", step.name)
        arguments: dict[str, ParamValue] = {}
        row = None
        options: StepOptions
        if block is not None:
            options, arguments = reader.block_arguments(step, loc, scope.params)
        elif step.name == "block":
            # Expressions inside are resolved by the inner steps, which know their sizes.
            options = inline = reader.options(BlockOptions, step, "steps", loc, None)
            block, where = inline, inner
        else:
            row = reader.row(step.name, loc)
            options = reader.options(row.options, step, row.main, loc, scope.params)
        sources = (options.source,) if isinstance(options.source, str) else options.source
        inputs = tuple(find(n, (*inner, "from")) for n in sources) if sources else (x,)
        if len(inputs) > 1 and (row is None or not row.several):
            facts: ErrorFacts = {"found": len(inputs), "expected": "one"}
            self.document.fail((*inner, "from"), "names several values", **facts)
        path = scope.under(module)
        if row is None:
            assert block is not None
            return self._block(block, where, loc, arguments, scope, path, inputs[0])
        other = self.document.known(inner, ("other",))
        site = Site(self.draft, path, lambda name: find(name, other), normalised)
        # A step may append several operators: errors about any of them point at its line.
        before = len(self.draft.nodes)
        self._check_axes(row, options, inputs[0], inner)
        with reader.guard(inner):
            result = row.emit(site, options, inputs)
        if row.axes == "maps" or (row.axes == "same" and inputs[0] in self.maps):
            self.maps.add(result)
        for name in itertools.islice(self.draft.nodes, before, None):
            self.places[name] = loc
        return result

    def _check_axes(self, row: table.StepRow, options: StepOptions, x: Ref, loc: Place) -> None:
        """Raise an error for steps that would work on a spatial axis: usually a forgotten flatten.

        A layer norm may include the channels.
        """
        spatial = len(self.draft.shape(x)) - 2 if x in self.maps else 0
        if row.axes != "last" or spatial < 2 or getattr(options, "axes", 1) > spatial:
            return
        sizes = ", ".join(map(str, self.draft.shape(x)[1:]))
        self.document.fail(
            loc,
            "works on the last axis, which is a spatial one here",
            found=f"[{sizes}]: channels, then sizes",
            expected="flatten, or global_avg_pool and flatten, in front of it",
            hint="for the channels at each position: permute: [0, 2, 3, 1] in front of it; to use "
            f"the last axis anyway: aten.{loc[-1]}",
        )


def _is_image(sizes: Sequence[int | str]) -> bool:
    """Return whether an input is one grey or colour image: channels, height, width."""
    match sizes:
        case (1 | 3, height, width):
            return all(isinstance(size, str) or size > 3 for size in (height, width))
    return False


def _is_norm(name: str) -> bool:
    row = table.find(name)
    return row is not None and row.batch_norm
