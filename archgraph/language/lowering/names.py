"""What can be said about a model before anything is built: names, arguments, options."""

from __future__ import annotations

from collections.abc import Sequence

from archgraph.fields import Place
from archgraph.hints import unknown
from archgraph.language import steps as table
from archgraph.language.expression import is_expression
from archgraph.language.lowering.reader import BlockOptions, StepReader
from archgraph.language.model import SectionSpec, Step


def check_names(reader: StepReader) -> None:
    """Check names, arguments of blocks and options of steps, used or not.

    Raises:
        SpecError: For the first mistake, with file, line and key.
    """
    model = reader.model
    for name in model.blocks:
        if table.find(name) or name == "block":
            reader.document.fail(
                ("blocks", name), "has the name of a step", found=repr(name), hint="rename it"
            )
    seen: set[str] = set()
    for index, section in enumerate(model.sections):
        place: Place = ("sections", index)
        if section.name in seen or section.name in model.inputs:
            reader.document.fail(
                (*place, "name"), "is taken", found=repr(section.name), expected="another name"
            )
        seen.add(section.name)
        if section.block is not None:
            _check_arguments(reader, section, section.block, place)
        else:
            _check_steps(reader, section.steps or (), (*place, "steps"))
    for name, block in model.blocks.items():
        for part in ("steps", "after"):
            _check_steps(reader, getattr(block, part), ("blocks", name, part))


def _check_arguments(reader: StepReader, section: SectionSpec, name: str, place: Place) -> None:
    block = reader.model.blocks.get(name)
    if block is None:
        reader.document.fail(
            (*place, "block"),
            "is not a block of this model",
            **unknown(name, reader.model.blocks),
        )
    own = [k for k in type(section).model_fields if k != "steps"]
    for key in (*section.arguments, *section.first_arguments):
        if key not in block.params:
            inside = (*place, "first", key) if key in section.first else (*place, key)
            known = sorted({*own, *block.params})
            reader.document.fail(
                inside,
                f"is neither a section's key nor a parameter of block {name!r}",
                **unknown(key, known),
            )


def _check_steps(reader: StepReader, steps: Sequence[Step], place: Place) -> None:
    """Names and options of steps, whether any section uses them or not."""
    for index, step in enumerate(steps):
        here = (*place, index)
        if is_expression(step.name):
            continue
        if step.name == "block":
            options = reader.options(BlockOptions, step, "steps", here, None)
            _check_steps(reader, options.steps, (*here, "block", "steps"))
            _check_steps(reader, options.after, (*here, "block", "after"))
        elif step.name in reader.model.blocks:
            reader.block_arguments(step, here, None)
        else:
            row = reader.row(step.name, here)
            reader.options(row.options, step, row.main, here, None)
