"""Steps that rename or reorder what is there, and steps that join several values."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field

from archgraph.fields import Mistake, Name, Natural
from archgraph.graph.ir import Batch, Ref
from archgraph.language.steps.base import AxisNumber, Site, StepOptions, step


class ReshapeOptions(StepOptions):
    """Another shape; the batch axis stays."""

    shape: tuple[Annotated[int, Field(ge=-1)], ...] = Field(
        description="sizes without the batch axis; -1: what is left"
    )


@step("reshape", ReshapeOptions, main="shape", example="reshape: [4, -1]")
def _reshape(site: Site, o: ReshapeOptions, xs: tuple[Ref, ...]) -> Ref:
    """The same numbers in another shape; the batch axis stays."""
    return site.call("aten.reshape", self=xs[0], shape=(Batch(), *o.shape))


class TransposeOptions(StepOptions):
    """Two axes exchanged."""

    dims: tuple[AxisNumber, AxisNumber] = Field(description="the two axes")


@step("transpose", TransposeOptions, main="dims", example="transpose: [1, 2]")
def _transpose(site: Site, o: TransposeOptions, xs: tuple[Ref, ...]) -> Ref:
    """Two axes change places."""
    return site.call("aten.transpose.int", self=xs[0], dim0=o.dims[0], dim1=o.dims[1])


class GetOptions(StepOptions):
    """One of several results."""

    index: Natural = Field(description="which of the results, from 0")


@step("get", GetOptions, main="index", example="get: {index: 1, from: parts}")
def _get(site: Site, o: GetOptions, xs: tuple[Ref, ...]) -> Ref:
    """One of the values that a step such as split gives."""
    return site.call("getitem", source=xs[0], index=o.index)


@step("identity", StepOptions, example="identity: {as: skip}")
def _identity(site: Site, o: StepOptions, xs: tuple[Ref, ...]) -> Ref:
    """The value as it is, e.g. to name it."""
    return xs[0]


class AddOptions(StepOptions):
    """A sum of values."""

    other: Name | tuple[Name, ...] = Field(default=(), description="names of what is added")


class MulOptions(StepOptions):
    """A product of values."""

    other: Name | tuple[Name, ...] | float = Field(
        default=(), description="names of the factors, or a number"
    )


class CatOptions(StepOptions):
    """Values one after the other along an axis."""

    other: Name | tuple[Name, ...] = Field(default=(), description="names of what follows")
    dim: AxisNumber = Field(default=1, description="the axis")


def _operands(
    site: Site, o: AddOptions | MulOptions | CatOptions, xs: tuple[Ref, ...]
) -> list[Ref]:
    names = o.other
    others = (names,) if isinstance(names, str) else names if isinstance(names, tuple) else ()
    values = [*xs, *map(site.lookup, others)]
    if len(values) < 2:
        raise Mistake(
            "joins fewer than two values", found=len(values), hint="name the other: add: <name>"
        )
    return values


@step("add", AddOptions, main="other", several=True, example="add: input")
def _add(site: Site, o: AddOptions, xs: tuple[Ref, ...]) -> Ref:
    """The sum of two or more values."""
    return functools.reduce(
        lambda a, b: site.call("aten.add.Tensor", self=a, other=b), _operands(site, o, xs)
    )


@step("mul", MulOptions, main="other", several=True, example="mul: input")
def _mul(site: Site, o: MulOptions, xs: tuple[Ref, ...]) -> Ref:
    """The product of two or more values, or of a value and a number."""
    if isinstance(o.other, float | int):
        return site.call("aten.mul.Tensor", self=xs[0], other=float(o.other))
    return functools.reduce(
        lambda a, b: site.call("aten.mul.Tensor", self=a, other=b), _operands(site, o, xs)
    )


@step("cat", CatOptions, main="other", several=True, example="cat: {other: input, dim: 1}")
def _cat(site: Site, o: CatOptions, xs: tuple[Ref, ...]) -> Ref:
    """Two or more values one after the other along an axis."""
    return site.call("aten.cat", tensors=tuple(_operands(site, o, xs)), dim=o.dim)
