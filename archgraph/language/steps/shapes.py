"""Steps that reshape, select, name, add, multiply and concatenate values."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field

from archgraph.fields import Mistake, Name, Natural
from archgraph.graph.ir import BATCH, Ref
from archgraph.language.steps.base import AxisNumber, Site, add_step


@add_step("reshape", main="shape", example="reshape: [4, -1]")
def _reshape(
    site: Site,
    x: Ref,
    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1)], ...],
        "sizes without the batch axis; -1: the remaining size",
    ],
) -> Ref:
    """Give the same numbers another shape; the batch axis stays."""
    # The batch stays a separate axis, whatever its size is when the network runs.
    return site.call("aten.reshape", self=x, shape=(BATCH, *shape))


@add_step("transpose", main="dims", example="transpose: [1, 2]")
def _transpose(
    site: Site, x: Ref, dims: Annotated[tuple[AxisNumber, AxisNumber], "the two axes"]
) -> Ref:
    """Exchange two axes."""
    return site.call("aten.transpose.int", self=x, dim0=dims[0], dim1=dims[1])


@add_step("get", main="index", example="get: {index: 1, from: parts}", axes="same")
def _get(
    site: Site, x: Ref, index: Annotated[Natural, "index of the result, counted from 0"]
) -> Ref:
    """Take one of the values of a step such as split."""
    return site.call("getitem", source=x, index=index)


@add_step("identity", example="identity: {as: skip}", axes="same")
def _identity(site: Site, x: Ref) -> Ref:
    """Return the value unchanged, e.g. to name it."""
    return x


def _operands(site: Site, names: Name | tuple[Name, ...], xs: tuple[Ref, ...]) -> list[Ref]:
    values = [*xs, *map(site.lookup, (names,) if isinstance(names, str) else names)]
    if len(values) < 2:
        raise Mistake("joins fewer than two values", hint="name the other: add: <name>")
    return values


@add_step("add", main="other", several=True, example="add: input", axes="same")
def _add(
    site: Site,
    xs: tuple[Ref, ...],
    other: Annotated[Name | tuple[Name, ...], "names of the summands"] = (),
) -> Ref:
    """Add two or more values."""
    return functools.reduce(
        lambda a, b: site.call("aten.add.Tensor", self=a, other=b), _operands(site, other, xs)
    )


@add_step("mul", main="other", several=True, example="mul: input", axes="same")
def _mul(
    site: Site,
    xs: tuple[Ref, ...],
    other: Annotated[Name | tuple[Name, ...] | float, "names of the factors, or a number"] = (),
) -> Ref:
    """Multiply two or more values, or a value and a number."""
    if isinstance(other, float | int):
        # A float, so that 2 and 2.0 give one graph.
        return site.call("aten.mul.Tensor", self=xs[0], other=float(other))
    return functools.reduce(
        lambda a, b: site.call("aten.mul.Tensor", self=a, other=b), _operands(site, other, xs)
    )


@add_step("cat", main="other", several=True, example="cat: {other: input, dim: 1}", axes="same")
def _cat(
    site: Site,
    xs: tuple[Ref, ...],
    other: Annotated[Name | tuple[Name, ...], "names of the values that follow"] = (),
    dim: Annotated[AxisNumber, "the axis"] = 1,
) -> Ref:
    """Concatenate two or more values along an axis."""
    return site.call("aten.cat", tensors=tuple(_operands(site, other, xs)), dim=dim)
