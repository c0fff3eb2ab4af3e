"""From an authored model to a graph: blocks unfold, names are bound, shortcuts find their form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import pydantic

from archgraph.errors import GraphError, SpecError
from archgraph.fields import Mistake, Place
from archgraph.graph.ir import ArchGraph, Batch, Record, Ref, Size, TensorType, Value
from archgraph.hints import nearest
from archgraph.language import steps as table
from archgraph.language.document import Document, shorten
from archgraph.language.draft import GraphDraft
from archgraph.language.expression import Scalar, is_expression, resolve
from archgraph.language.model import (
    AuthoredModel,
    BlockBody,
    BlockSpec,
    SectionSpec,
    ShortcutSpec,
    Step,
)
from archgraph.language.steps import Site, StepOptions
from archgraph.limits import LIMITS

Kind = TypeVar("Kind", bound=StepOptions)

SHORTCUTS = ("auto", "projection", "identity", "where_equal", "none")

# Names that every list of steps has: its own input, and two sizes of it.
INPUT = "input"
CHANNELS = "in_channels"
FEATURES = "in_features"


class BlockOptions(BlockBody, StepOptions):
    """A block written in place."""


@dataclass
class Scope:
    """What names mean in a list of steps.

    Attributes:
        path: Module path.
        values: Values by the names that ``as:`` gave.
        params: What ``$name`` stands for.
        outer: The scope around it.
        later: Names that later steps give, here or in the scopes around.
    """

    path: str
    values: dict[str, Ref]
    params: Mapping[str, Scalar]
    outer: Scope | None = None
    later: frozenset[str] = frozenset()

    def find(self, name: str) -> Ref | None:
        """The value of a name, here or around."""
        if name in self.values:
            return self.values[name]
        return self.outer.find(name) if self.outer else None

    def names(self) -> Iterator[str]:
        """All names that stand for values."""
        yield from self.values
        if self.outer:
            yield from self.outer.names()

    def under(self, name: str) -> str:
        """Path of a module inside."""
        return f"{self.path}.{name}" if self.path else name


def lower(
    document: Document, model: AuthoredModel, choices: Mapping[str, int] | None = None
) -> ArchGraph:
    """The graph of an authored model.

    Args:
        document: Where the model was read from; mistakes point there.
        model: The model.
        choices: Values other than the written ones, by ``section.key`` or parameter.

    Raises:
        SpecError: If it cannot be built, with file, line and key.
    """
    return _Lowering(document, choose(document, model, choices or {})).graph()


def choose(document: Document, model: AuthoredModel, choices: Mapping[str, int]) -> AuthoredModel:
    """The model with other values of what its choices leave open.

    Raises:
        SpecError: If a choice is unknown or its value not among the candidates.
    """
    sections = {s.name: s for s in model.sections}
    params = dict(model.params)
    for key, value in choices.items():
        if key not in model.choices:
            raise SpecError(
                "is no choice of the model",
                where=document.file,
                found=repr(key),
                expected=f"one of {', '.join(model.choices)}" if model.choices else "no choice",
                hint=nearest(key, model.choices),
            )
        if value not in model.choices[key]:
            raise SpecError(
                f"is no candidate of {key!r}",
                where=document.where(("choices", key)),
                found=value,
                expected=f"one of {', '.join(map(str, model.choices[key]))}",
            )
    written_choices(document, model)
    for key, value in choices.items():
        name, dot, option = key.partition(".")
        if not dot:
            params[key] = value
        else:
            sections[name] = sections[name].model_copy(update={option: value})
    return model.model_copy(
        update={"params": params, "sections": tuple(sections[s.name] for s in model.sections)}
    )


def written_choices(document: Document, model: AuthoredModel) -> dict[str, int]:
    """What the model itself says where its choices leave something open.

    Raises:
        SpecError: If a choice belongs to nothing, or leaves out the written value.
    """
    sections = {s.name: s for s in model.sections}
    found: dict[str, int] = {}
    for key, candidates in model.choices.items():
        place = ("choices", key)
        name, dot, option = key.partition(".")
        if not dot and key in model.params:
            now: Any = model.params[key]
        elif dot and name in sections:
            section = sections[name]
            given = {"depth": section.depth, **section.arguments}
            if section.stride is not None:
                given["stride"] = section.stride
            if option not in given:
                document.fail(
                    place,
                    "is nothing that the section sets",
                    found=repr(option),
                    expected=f"one of {', '.join(given)}",
                    hint=nearest(option, given),
                )
            now = given[option]
        else:
            known = [*model.params, *(f"{s}.depth" for s in sections)]
            document.fail(
                place,
                "is neither a parameter nor a section's key",
                found=repr(key),
                expected="'section.key' or a parameter",
                hint=nearest(key, known),
            )
        if isinstance(now, bool) or not isinstance(now, int) or now not in candidates:
            document.fail(
                place, "leaves out the written value", found=list(candidates), expected=f"{now} too"
            )
        found[key] = now
    return found


class _Lowering:
    def __init__(self, document: Document, model: AuthoredModel) -> None:
        self.document = document
        self.model = model
        self.draft = GraphDraft()
        self.places: dict[str, Place] = {}  # node → the step that made it
        self.nesting: list[str] = []
        self._check_names()

    # -- what can be said before anything is built ----------------------------------------

    def _check_names(self) -> None:
        model = self.model
        for name in model.blocks:
            if table.find(name) or name == "block":
                self.document.fail(
                    ("blocks", name), "has the name of a step", found=repr(name), hint="rename it"
                )
        seen: set[str] = set()
        for index, section in enumerate(model.sections):
            place: Place = ("sections", index)
            if section.name in seen or section.name in model.inputs:
                self.document.fail(
                    (*place, "name"), "is taken", found=repr(section.name), expected="another name"
                )
            seen.add(section.name)
            if section.block is not None:
                self._check_arguments(section, section.block, place)
            else:
                self._check_steps(section.steps or (), (*place, "steps"))
        for name, block in model.blocks.items():
            for part in ("steps", "after"):
                self._check_steps(getattr(block, part), ("blocks", name, part))

    def _check_arguments(self, section: SectionSpec, name: str, place: Place) -> None:
        block = self.model.blocks.get(name)
        if block is None:
            self.document.fail(
                (*place, "block"),
                "is no block of this model",
                found=repr(name),
                expected=f"one of {', '.join(self.model.blocks) or 'none'}",
                hint=nearest(name, self.model.blocks),
            )
        own = [k for k in type(section).model_fields if k != "steps"]
        for key in (*section.arguments, *section.first_arguments):
            if key not in block.params:
                inside = (*place, "first", key) if key in section.first else (*place, key)
                known = sorted({*own, *block.params})
                self.document.fail(
                    inside,
                    f"is neither a section's key nor a parameter of block {name!r}",
                    found=repr(key),
                    expected=f"one of {', '.join(known)}",
                    hint=nearest(key, known),
                )

    def _check_steps(self, steps: Sequence[Step], place: Place) -> None:
        """Names and options of steps, whether any section uses them or not."""
        for index, step in enumerate(steps):
            here = (*place, index)
            if is_expression(step.name):
                continue
            if step.name == "block":
                options = self._options(BlockOptions, step, "steps", here, None)
                self._check_steps(options.steps, (*here, "block", "steps"))
                self._check_steps(options.after, (*here, "block", "after"))
            elif step.name in self.model.blocks:
                self._block_arguments(step, here, None)
            else:
                row = self._row(step.name, here)
                self._options(row.options, step, row.main, here, None)

    def _row(self, name: str, place: Place) -> table.StepRow:
        row = table.find(name)
        if row is None and name.startswith("aten."):
            try:
                table.raw_row(name)
            except GraphError as error:
                known = table.aten_names()
                self.document.fail(
                    place,
                    error.message,
                    found=repr(name),
                    expected=error.expected,
                    hint=nearest(name, known, cutoff=0.8),
                )
        if row is None:
            known = [*table.STEPS, *self.model.blocks, "block"]
            self.document.fail(
                place,
                "is no known operator",
                found=repr(name),
                expected="a step, a block of this model, or an ATen operator (aten.…)",
                hint=nearest(name, known),
            )
        return row

    def _options(
        self,
        kind: type[Kind],
        step: Step,
        main: str,
        place: Place,
        params: Mapping[str, Scalar] | None,
    ) -> Kind:
        """A step's options; without parameters, expressions stay unchecked."""
        data = step.options
        inner = (*place, step.name)
        if data is None:
            data = {}
        elif not isinstance(data, dict):
            if not main:
                self.document.fail(
                    inner,
                    "has a wrong value",
                    found=shorten(data),
                    expected="options: {key: value}",
                )
            data = {main: data}
        try:
            if params is not None:
                data = resolve(data, params)
            return kind.model_validate(data)
        except Mistake as mistake:
            self.document.fail(self._known(inner, mistake.place), mistake.message, **mistake.facts)
        except pydantic.ValidationError as error:
            errors = error.errors(include_url=False)
            if params is None and all(_has_expression(e["input"]) for e in errors):
                plain = {k: v for k, v in data.items() if not _has_expression(v)}
                return kind.model_construct(None, **plain)
            self.document.explain(
                error, kind, inner, ignore=_has_expression if params is None else None
            )

    def _known(self, place: Place, rest: Place) -> Place:
        """The longest part of a place that the file has: a main option has no key of its own."""
        for key in rest:
            if (*place, key) in self.document.lines:
                place = (*place, key)
        return place

    def _block_arguments(
        self, step: Step, place: Place, params: Mapping[str, Scalar] | None
    ) -> tuple[StepOptions, dict[str, Scalar]]:
        """Common options and parameters of a step that uses a block."""
        block = self.model.blocks[step.name]
        data = {} if step.options is None else step.options
        inner = (*place, step.name)
        if not isinstance(data, dict):
            self.document.fail(
                inner, "has a wrong value", found=shorten(data), expected="parameters: {key: value}"
            )
        common = {f.alias or n for n, f in StepOptions.model_fields.items()}
        given: dict[str, Scalar] = {}
        for key, value in data.items():
            if key in common:
                continue
            if key not in block.params:
                known = sorted({*common, *block.params})
                self.document.fail(
                    (*inner, key),
                    f"is no parameter of block {step.name!r}",
                    found=repr(key),
                    expected=f"one of {', '.join(known)}",
                    hint=nearest(key, known),
                )
            if params is not None:
                value = self._resolve(value, params, (*inner, key))
            given[key] = value
        rest = Step(step.name, {k: v for k, v in data.items() if k in common})
        return self._options(StepOptions, rest, "", place, params), given

    def _resolve(self, value: Any, params: Mapping[str, Scalar], place: Place) -> Any:
        try:
            return resolve(value, params)
        except Mistake as mistake:
            self.document.fail(place, mistake.message, **mistake.facts)

    # -- building -------------------------------------------------------------------------

    def graph(self) -> ArchGraph:
        model = self.model
        values: dict[str, Ref] = {}
        for name, spec in model.inputs.items():
            values[name] = self.draft.input(name, TensorType((Batch(), *spec.shape), spec.dtype))
        given = {label for s in model.sections for label in _labels(s.steps or ()) if label}
        root = Scope(
            "", values, model.params, later=frozenset(given | {s.name for s in model.sections})
        )
        x = next(iter(values.values()))
        sections: list[tuple[str, tuple[str, ...]]] = []
        for index, section in enumerate(model.sections):
            place: Place = ("sections", index)
            if section.block is None:
                x = self._plain(section, (*place, "steps"), root, x)
            else:
                x, blocks = self._section(section, section.block, place, root, x)
                sections.append((section.name, blocks))
            values[section.name] = x
        outputs = self._outputs(root, x)
        for name in self.draft.unused(outputs):
            if self.draft.nodes[name].op != "input":
                self.document.fail(
                    self.places.get(name, ()),
                    "makes a value that nothing uses",
                    hint="draw it with from:, or take it out",
                )
        try:
            return self.draft.graph(outputs, name=model.name, sections=tuple(sections))
        except GraphError as error:
            raise SpecError(
                f"{error.where}: {error.message}" if error.where else error.message,
                where=self.document.file,
                found=error.found,
                expected=error.expected,
                hint=error.hint,
            ) from error

    def _outputs(self, root: Scope, last: Ref) -> Value:
        outputs = self.model.outputs
        if outputs is None:
            return last
        if isinstance(outputs, str):
            return self._output(root, outputs, ("outputs",))
        if isinstance(outputs, tuple):
            return tuple(self._output(root, n, ("outputs", i)) for i, n in enumerate(outputs))
        return Record(tuple((k, self._output(root, n, ("outputs", k))) for k, n in outputs.items()))

    def _output(self, root: Scope, name: str, place: Place) -> Ref:
        found = root.find(name)
        if found is None:
            known = list(root.names())
            self.document.fail(
                place,
                "names an unknown value",
                found=repr(name),
                expected=f"one of {', '.join(known)}",
                hint=nearest(name, known),
            )
        return found

    def _with_sizes(self, params: Mapping[str, Scalar], x: Ref) -> dict[str, Scalar]:
        """Parameters and the sizes of a list's input."""
        shape = self.draft.shape(x)
        sizes = {}
        if len(shape) > 1 and isinstance(shape[1], int):
            sizes[CHANNELS] = shape[1]
        if shape and isinstance(shape[-1], int):
            sizes[FEATURES] = shape[-1]
        return {**params, **sizes}

    def _plain(self, section: SectionSpec, place: Place, root: Scope, x: Ref) -> Ref:
        """A section of plain steps; the names that they give are known to all later sections."""
        steps = section.steps or ()
        scope = Scope(section.name, {INPUT: x}, self._with_sizes(root.params, x), root, root.later)
        for index, label in enumerate(_labels(steps)):
            if label in root.values:
                self.document.fail(
                    (*place, index, steps[index].name, "as"), "is taken", found=repr(label),
                    expected="another name",
                )  # fmt: skip
        y = self._steps(steps, place, scope, x, self._modules(steps, (), place, scope))
        root.values.update((k, v) for k, v in scope.values.items() if k != INPUT)
        return y

    def _section(
        self, section: SectionSpec, name: str, place: Place, root: Scope, x: Ref
    ) -> tuple[Ref, tuple[str, ...]]:
        block = self.model.blocks[name]
        depth = self._resolve(section.depth, root.params, (*place, "depth"))
        if not isinstance(depth, int) or isinstance(depth, bool) or not 1 <= depth <= LIMITS.blocks:
            self.document.fail(
                (*place, "depth"),
                "has a wrong value",
                found=depth,
                expected=f"1 to {LIMITS.blocks}",
            )
        blocks = []
        for index in range(depth):
            given = {**section.arguments, **(section.first_arguments if index == 0 else {})}
            params: dict[str, Scalar] = {
                k: self._resolve(
                    v, root.params, (*place, "first", k) if k in section.first else (*place, k)
                )
                for k, v in given.items()
            }
            for key in ("width", "stride"):
                size = params.get(key, 1)
                if not isinstance(size, int) or size < 1:
                    self.document.fail(
                        (*place, key), "has a wrong value", found=size, expected="≥ 1"
                    )
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

    def _block(
        self,
        block: BlockBody,
        place: Place,
        user: Place,
        given: Mapping[str, Scalar],
        outer: Scope,
        path: str,
        x: Ref,
    ) -> Ref:
        """One use of a block on a value."""
        self.nesting.append(str(place[-1]))
        if len(self.nesting) > LIMITS.block_nesting:
            self.document.fail(
                place,
                "is nested too deeply",
                found=" → ".join(self.nesting[-4:]),
                expected=f"at most {LIMITS.block_nesting} blocks, none inside itself",
            )
        own = block.params if isinstance(block, BlockSpec) else {}
        params = {**outer.params, **own, **given}
        for key in own:
            if params[key] is None:
                self.document.fail(user, f"lacks the parameter {key!r} of block {place[-1]!r}")
        scope = Scope(path, {INPUT: x}, self._with_sizes(params, x), outer, outer.later)
        modules = self._modules(block.steps, block.after, place, scope)
        count = len(block.steps)
        y = self._steps(block.steps, (*place, "steps"), scope, x, modules[:count])
        shortcut = self._shortcut_of(block, place, scope)
        if shortcut is not None and shortcut != "none":
            norm = _is_norm(self._step_name(block.steps[-1], scope, place))
            y = self._shortcut(shortcut, (*place, "shortcut"), scope, x, y, norm)
        y = self._steps(block.after, (*place, "after"), scope, y, modules[count:])
        self.nesting.pop()
        return y

    def _shortcut_of(
        self, block: BlockBody, place: Place, scope: Scope
    ) -> ShortcutSpec | str | None:
        """A block's shortcut, looked up where a parameter says it."""
        if not isinstance(block.shortcut, str) or not is_expression(block.shortcut):
            return block.shortcut
        found = self._resolve(block.shortcut, scope.params, (*place, "shortcut"))
        if found not in SHORTCUTS:
            self.document.fail(
                (*place, "shortcut"),
                "has an unknown value",
                found=f"{block.shortcut} = {found!r}",
                expected=f"one of {', '.join(SHORTCUTS)}",
                hint=nearest(str(found), SHORTCUTS),
            )
        return str(found)

    def _shortcut(
        self,
        how: ShortcutSpec | str,
        place: Place,
        scope: Scope,
        x: Ref,
        y: Ref,
        ends_in_norm: bool,
    ) -> Ref:
        """The sum of a block's result and its input, projected where their shapes differ."""
        have, want = self.draft.shape(x), self.draft.shape(y)
        if have != want and how == "where_equal":
            return y
        site = Site(self.draft, scope.under("shortcut"), lambda _: x)
        if have != want or how == "projection":
            options = how if isinstance(how, ShortcutSpec) else ShortcutSpec()
            source = x
            if options.source is not None:
                found = scope.find(options.source)
                if found is None:
                    self._missing(options.source, (*place, "from"), scope, (), 0)
                source = found
            stride = _projection(self.draft.shape(source), want)
            if how == "identity" or stride is None:
                self.document.fail(
                    place,
                    "cannot add the block's input to its result",
                    found=f"{_shown(have)} and {_shown(want)}",
                    expected="equal shapes"
                    if how == "identity"
                    else "equal shapes, or sizes that one stride relates",
                )
            x = self._project(options, site, source, want, stride, place, ends_in_norm)
        made = self._guard(place, lambda: site.draft.call(
            "aten.add.Tensor", {"self": y, "other": x}, scope.path
        ))  # fmt: skip
        return made

    def _project(
        self,
        options: ShortcutSpec,
        site: Site,
        x: Ref,
        want: tuple[Size, ...],
        stride: int,
        place: Place,
        ends_in_norm: bool,
    ) -> Ref:
        norm = ends_in_norm if options.batch_norm is None else options.batch_norm
        have = self.draft.shape(x)
        image = len(want) > 3 or (len(want) == 3 and have[1] != want[1])
        name, width = ("conv", want[1]) if image else ("linear", want[-1])
        data: dict[str, Any] = {"out": width, "bias": options.bias}
        if image:
            name = "conv1d" if len(want) == 3 else "conv"
            data |= {"kernel": 1, "stride": stride}
        row = table.STEPS[name]
        own = row.options.model_validate(data)
        norm_row = table.STEPS["batch_norm"]

        def emit() -> Ref:
            y = row.emit(site.within(row.stem), own, (x,))
            if norm:
                y = norm_row.emit(site.within(norm_row.stem), norm_row.options(), (y,))
            return y

        return self._guard(place, emit)

    def _steps(
        self, steps: Sequence[Step], place: Place, scope: Scope, x: Ref, modules: Sequence[str]
    ) -> Ref:
        """A list of steps, one after the other, on a value."""
        names = [self._step_name(s, scope, (*place, i)) for i, s in enumerate(steps)]
        labels = _labels(steps)
        normalised = any(map(_is_norm, names))
        for index, (step, name) in enumerate(zip(steps, names, strict=True)):
            here = (*place, index)

            def find(wanted: str, at: Place, index: int = index) -> Ref:
                found = scope.find(wanted)
                if found is None:
                    self._missing(wanted, at, scope, steps, index)
                return found

            x = self._step(
                Step(name, step.options), here, scope, x, modules[index], normalised, find
            )
            label = labels[index]
            if label is not None:
                if label in scope.values or label in self.model.inputs:
                    self.document.fail(
                        (*here, step.name, "as"),
                        "is taken",
                        found=repr(label),
                        expected="another name",
                    )
                scope.values[label] = x
        return x

    def _step_name(self, step: Step, scope: Scope, place: Place) -> str:
        if not is_expression(step.name):
            return step.name
        name = self._resolve(step.name, scope.params, place)
        if not isinstance(name, str):
            self.document.fail(
                place, "is no step", found=f"{step.name} = {name!r}", expected="a step's name"
            )
        if name not in self.model.blocks and name != "block":
            self._row(name, place)
        return name

    def _modules(
        self, steps: Sequence[Step], after: Sequence[Step], place: Place, scope: Scope
    ) -> list[str]:
        """Module names: what ``name:`` gives, else the stem, numbered where there are several."""
        parts = [("steps", i, s) for i, s in enumerate(steps)]
        parts += [("after", i, s) for i, s in enumerate(after)]
        if place[-1] == "steps":
            place = place[:-1]
        stems, given = [], []
        for part, index, step in parts:
            name = self._step_name(step, scope, (*place, part, index))
            row = table.find(name)
            stems.append(row.stem if row is not None else name)
            own = step.options.get("name") if isinstance(step.options, dict) else None
            given.append(self._resolve(own, scope.params, (*place, part, index, step.name, "name")))
        taken = {"shortcut"}
        result: list[str] = []
        for number, (part, index, step) in enumerate(parts):
            stem = stems[number]
            unnamed = [s for s, g in zip(stems, given, strict=True) if g is None]
            ordinal = sum(
                s == stem and g is None for s, g in zip(stems[: number + 1], given, strict=False)
            )
            own = given[number]
            module = str(own) if own else f"{stem}{ordinal}" if unnamed.count(stem) > 1 else stem
            if module in taken:
                self.document.fail(
                    (*place, part, index, *((step.name, "name") if own else ())),
                    "has the module name of another step",
                    found=repr(module),
                    expected="a name of its own",
                )
            taken.add(module)
            result.append(module)
        return result

    def _step(
        self,
        step: Step,
        place: Place,
        scope: Scope,
        x: Ref,
        module: str,
        normalised: bool,
        find: Callable[[str, Place], Ref],
    ) -> Ref:
        inner = (*place, step.name)
        block: BlockBody | None = self.model.blocks.get(step.name)
        where: Place = ("blocks", step.name)
        given: dict[str, Scalar] = {}
        row: table.StepRow | None = None
        options: StepOptions
        if block is not None:
            options, given = self._block_arguments(step, place, scope.params)
        elif step.name == "block":
            # The expressions inside wait for the steps that hold them.
            options = inline = self._options(BlockOptions, step, "steps", place, None)
            block, where = inline, inner
        else:
            row = self._row(step.name, place)
            options = self._options(row.options, step, row.main, place, scope.params)
        sources = (options.source,) if isinstance(options.source, str) else options.source
        inputs = tuple(find(n, (*inner, "from")) for n in sources) if sources else (x,)
        if len(inputs) > 1 and (row is None or not row.several):
            self.document.fail(
                (*inner, "from"), "names several values", found=len(inputs), expected="one"
            )
        path = scope.under(module)
        if block is not None:
            return self._block(block, where, place, given, scope, path, inputs[0])
        assert row is not None
        emit = row.emit
        site = Site(
            self.draft, path, lambda name: find(name, self._known(inner, ("other",))), normalised
        )
        before = len(self.draft.nodes)
        result = self._guard(inner, lambda: emit(site, options, inputs))
        for name in itertools.islice(self.draft.nodes, before, None):
            self.places[name] = place
        return result

    def _guard(self, place: Place, emit: Any) -> Ref:
        """Append operators; what does not fit is a mistake of the step."""
        try:
            return emit()
        except Mistake as mistake:
            self.document.fail(self._known(place, mistake.place), mistake.message, **mistake.facts)
        except GraphError as error:
            self.document.fail(
                place, error.message, found=error.found, expected=error.expected, hint=error.hint
            )

    def _missing(
        self, name: str, place: Place, scope: Scope, steps: Sequence[Step], index: int
    ) -> NoReturn:
        """A name that stands for nothing yet: unknown, given later, or given by a cycle."""
        labels = _labels(steps)
        if name in labels:
            path = _cycle(steps, labels, index, labels.index(name))
            if path:
                self.document.fail(
                    place, "draws a cycle", found=" → ".join(path), expected="a value made before"
                )
        if name in labels or name in scope.later:
            self.document.fail(
                place,
                "names a value that is made only later",
                found=repr(name),
                hint="move the step that makes it up",
            )
        known = list(dict.fromkeys(scope.names()))
        self.document.fail(
            place,
            "names an unknown value",
            found=repr(name),
            expected=f"one of {', '.join(known)}",
            hint=nearest(name, known),
        )


def _labels(steps: Sequence[Step]) -> list[str | None]:
    """What the steps' results are called, if anything."""
    return [
        str(s.options["as"]) if isinstance(s.options, dict) and s.options.get("as") else None
        for s in steps
    ]


def _cycle(steps: Sequence[Step], labels: Sequence[str | None], start: int, goal: int) -> list[str]:
    """Steps on a way from a later step back to the one that draws on it, if there is one."""

    def drawn(index: int) -> list[int]:
        options = steps[index].options if isinstance(steps[index].options, dict) else {}
        names: list[str] = []
        for key in ("from", "other", "context"):
            value = options.get(key)
            names += (
                [value] if isinstance(value, str) else value if isinstance(value, tuple) else []
            )
        found = [labels.index(n) for n in names if n in labels]
        return found if "from" in options else [*found, index - 1]

    def title(index: int) -> str:
        return labels[index] or steps[index].name

    pending = [[goal]]
    seen: set[int] = set()
    while pending:
        path = pending.pop()
        if path[-1] == start:
            return [title(i) for i in (*path[::-1], start)] if start != goal else [title(start)] * 2
        for index in drawn(path[-1]):
            if index >= 0 and index not in seen:
                seen.add(index)
                pending.append([*path, index])
    return []


def _has_expression(value: Any) -> bool:
    """Whether a YAML value has an expression anywhere inside."""
    if isinstance(value, Mapping):
        return any(map(_has_expression, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_expression, value))
    return is_expression(value)


def _is_norm(name: str) -> bool:
    row = table.find(name)
    return row is not None and row.batch_norm


def _shown(shape: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _projection(have: tuple[Size, ...], want: tuple[Size, ...]) -> int | None:
    """Stride of the 1×1 projection between two shapes; None where there is none."""
    if len(have) != len(want) or have[0] != want[0] or len(want) < 2:
        return None
    if len(want) < 4 and have[:-1] == want[:-1]:
        return 1
    pairs = list(zip(have[2:], want[2:], strict=True))
    # A stride s leaves ceil(a / s) positions; the sizes above 1 say which it was.
    strides = [
        -(-a // b)
        for a, b in pairs
        if isinstance(a, int) and isinstance(b, int) and (a, b) != (1, 1)
    ]
    stride = max(strides, default=1)
    fits = all(isinstance(a, int) and -(-a // stride) == b for a, b in pairs)
    return stride if fits else None
