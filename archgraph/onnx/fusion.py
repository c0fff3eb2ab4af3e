"""Linear layers, norms, activations and attention that a file spells out become one operator.

A spelling is replaced only where it is exactly one of :data:`SPELLINGS` and no other node reads a
value inside it; else it stays as it is. Norms are then seen as norms, and constants of a spelling
(a scale of scores, the ones of a norm of groups) are no weights that training changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from archgraph.onnx.operators import ROWS
from archgraph.onnx.operators.known import FOLDS
from archgraph.onnx.operators.spelt import SPELT
from archgraph.onnx.patterns import (
    DerivedVariable,
    Found,
    NumberVariable,
    OnnxReader,
    Pattern,
    TensorVariable,
    either,
    operator,
)
from archgraph.onnx.singles import singles

if TYPE_CHECKING:
    from archgraph.onnx.network import OnnxStep

Add, Sub, Mul, Div, Pow = map(operator, ("Add", "Sub", "Mul", "Div", "Pow"))
Sqrt, Reciprocal, Erf, Tanh, Sigmoid = map(
    operator, ("Sqrt", "Reciprocal", "Erf", "Tanh", "Sigmoid")
)
Clip, HardSigmoid, MatMul, Softmax = map(operator, ("Clip", "HardSigmoid", "MatMul", "Softmax"))
Reshape, Transpose, Concat, Shape, Slice = map(
    operator, ("Reshape", "Transpose", "Concat", "Shape", "Slice")
)
ReduceMean, InstanceNormalization = map(operator, ("ReduceMean", "InstanceNormalization"))
IsNaN, Where = map(operator, ("IsNaN", "Where"))

AttributesOf: TypeAlias = "Callable[[Found, OnnxReader], dict[str, Any] | None]"


class SpeltForm(NamedTuple):
    """One way to spell an operator out.

    Attributes:
        kind: The operator, of ``ROWS`` or ``SPELT``.
        pattern: What its result is compared with.
        inputs: Variables that are its inputs; those without a value of the file are left out.
        attributes: Its attributes; None where the operator computes something else after all.
        flat: Variables whose tensors become one-dimensional; no other node may read them.
    """

    kind: str
    pattern: Pattern
    inputs: tuple[str, ...] = ("x",)
    attributes: AttributesOf = lambda found, reader: {}
    flat: tuple[str, ...] = ()


# -- layers and norms -------------------------------------------------------------------------


def _square(x: Pattern) -> Pattern:
    return either(Pow(x, 2.0), Mul(x, x))


def _divided(x: Pattern, by: Pattern) -> Pattern:
    return either(Div(x, by), Mul(x, either(Reciprocal(by), Div(1.0, by))))


def _mean(x: Pattern) -> Pattern:
    return ReduceMean(x, (-1,))


def _moved(x: Pattern) -> Pattern:
    """Scaled by a weight and moved by a bias, if at all."""
    return either(
        Add(Mul(x, TensorVariable("w")), TensorVariable("b")), Mul(x, TensorVariable("w")), x
    )


def _along_last(found: Found, reader: OnnxReader) -> dict[str, Any] | None:
    """Return the options of a norm whose weights lie along the last axis, or None."""
    weights = [reader.stored[found.values[name]] for name in ("w", "b") if name in found.values]
    if any(w.dim() != 1 or w.shape != weights[0].shape for w in weights):
        return None
    return {"epsilon": found.values["eps"], "axis": -1}


def _groups(found: Found, reader: OnnxReader) -> dict[str, Any] | None:
    """Return the options of a group norm, or None if it is not one.

    The norm of each group must not scale or shift by itself, and the weights must lie along the
    second axis.
    """
    shape, ones, zeros = (reader.numbers(found.values[n]) for n in ("shape", "ones", "zeros"))
    w, b = (reader.stored[found.values[n]] for n in ("w", "b"))
    plain = ones is not None and {*ones} == {1.0} and zeros == [0.0] * len(ones)
    channels = 1 < w.dim() and w.shape == b.shape and w.shape[0] == w.numel()
    if ones is None or not plain or shape != [0, len(ones), -1] or not channels:
        return None
    eps, trailing = found.values["eps"], w.dim() - 1
    return {"num_groups": len(ones), "epsilon": eps, "trailing": trailing}


def _matrix(found: Found, reader: OnnxReader) -> dict[str, Any] | None:
    """Return no options, or None if there is a bias without one number for each output."""
    outputs = reader.stored[found.values["w"]].shape[:1]
    return (
        {} if "b" not in found.values or reader.stored[found.values["b"]].shape == outputs else None
    )


_product = MatMul("x", Transpose(TensorVariable("w"), perm=[1, 0]))
_linear = either(Add(_product, TensorVariable("b")), _product)
_centred = Sub("x", _mean("x"))
_layer_norm = _divided(_centred, Sqrt(Add(_mean(_square(_centred)), NumberVariable("eps"))))
_rms_norm = _divided("x", Sqrt(Add(_mean(_square("x")), NumberVariable("eps"))))
_grouped = InstanceNormalization(Reshape("x", "shape"), "ones", "zeros", epsilon="eps")
_group_norm = Add(
    Mul(Reshape(_grouped, Shape("x"), allowzero="any"), TensorVariable("w")), TensorVariable("b")
)

# -- activations ------------------------------------------------------------------------------


def _half(x: Pattern, gate: Pattern) -> Pattern:
    """Half of a product, wherever the half stands."""
    return either(Mul(Mul(x, gate), 0.5), Mul(Mul(x, 0.5), gate), Mul(x, Mul(gate, 0.5)))


_erf = Erf(either(Div("x", math.sqrt(2)), Mul("x", math.sqrt(0.5))))
_cube = either(Pow("x", 3.0), Mul(Mul("x", "x"), "x"))
_tanh = Tanh(Mul(Add("x", Mul(_cube, 0.044715)), math.sqrt(2 / math.pi)))
_clipped = Clip(Add("x", 3.0), 0.0, 6.0)
_hard_swish = either(
    Mul("x", HardSigmoid("x", alpha=1 / 6, beta=0.5)),
    Div(Mul("x", _clipped), 6.0),
    Mul("x", Div(_clipped, 6.0)),
    Mul(Mul("x", _clipped), 1 / 6),
)

# -- attention --------------------------------------------------------------------------------


def _scores(found: Found, reader: OnnxReader) -> dict[str, Any] | None:
    """Return the options of attention scores, their constant factors merged into one scale.

    None unless the softmax runs over the last axis and no divisor is 0.
    """
    values, order = found.values, found.values.get("perm")
    axis = values["axis"] if values["axis"] is not None else -1 if reader.opset > 12 else 1
    if order is None and ("perm" in values or axis != -1):
        return None
    if order is not None and axis not in (-1, len(order) - 1):
        return None
    numbers = {name: values.get(name, 1.0) for name in ("times", "times of k", "over")}
    first, second, over = (v if isinstance(v, float) else 1.0 for v in numbers.values())
    if not over:
        return None
    if order is not None:
        order = [*order[:-2], order[-1], order[-2]]
        order = None if order == [*range(len(order))] else order
    return {"scale": first * second / over, "perm": order, "axis": axis, "flat": reader.opset < 13}


_keys = Shape("k")
_size, _length = Slice(_keys, (-1,), (2**63 - 1,)), Slice(_keys, (-2,), (-1,))
_turned = either(
    Transpose("k", perm="perm"),
    Reshape(  # so PyTorch's exporter writes it, for any rank
        Transpose(Reshape("k", Concat((-1,), _length, _size, axis=0)), perm=[0, 2, 1]),
        Concat(Slice(_keys, (-(2**63),), (-2,)), _size, _length, axis=0),
    ),
)
_times, _times_of_k, _over = map(DerivedVariable, ("times", "times of k", "over"))
_products = either(
    MatMul(Mul("q", _times), Mul(_turned, _times_of_k)),
    MatMul(Mul("q", _times), _turned),
    MatMul(Div("q", _over), _turned),
    Mul(MatMul("q", _turned), _times),
    Div(MatMul("q", _turned), _over),
    MatMul("q", _turned),
)
_shares = Softmax(either(_products, Add(_products, "mask")), axis="axis")
_attention = MatMul(_shares, "v")
_attention_or_zero = MatMul(Where(IsNaN(_shares), 0.0, _shares), "v")

SPELLINGS = (
    SpeltForm("LayerNormalization", _moved(_layer_norm), ("x", "w", "b"), _along_last),
    SpeltForm(
        "RMSNormalization",
        either(Mul(_rms_norm, TensorVariable("w")), _rms_norm),
        ("x", "w"),
        _along_last,
    ),
    SpeltForm("spelt GroupNormalization", _group_norm, ("x", "w", "b"), _groups, ("w", "b")),
    SpeltForm("spelt Linear", _linear, ("x", "w", "b"), _matrix),
    SpeltForm("Gelu", _half("x", Add(_erf, 1.0))),
    SpeltForm(
        "Gelu",
        _half("x", Add(_tanh, 1.0)),
        attributes=lambda found, reader: {"approximate": "tanh"},
    ),
    SpeltForm("Swish", Mul("x", Sigmoid("x"))),
    SpeltForm("HardSwish", _hard_swish),
    SpeltForm(
        "spelt Attention",
        _attention,
        ("q", "k", "v", "mask", "times", "times of k", "over"),
        _scores,
    ),
    SpeltForm(
        "spelt Attention",
        _attention_or_zero,
        ("q", "k", "v", "mask", "times", "times of k", "over"),
        lambda found, reader: (
            None if (at := _scores(found, reader)) is None else at | {"or_zero": 1}
        ),
    ),
)

# ---------------------------------------------------------------------------------------------


def fuse(
    steps: Sequence[OnnxStep],
    results: Collection[str],
    known: Mapping[str, Any],
    stored: dict[str, torch.Tensor],
    opset: int,
) -> list[OnnxStep]:
    """Replace the steps in which an operator is spelt out by one step of that operator.

    Args:
        steps: All, in order.
        results: Names of the file's results.
        known: Constants.
        stored: Tensors; those that nothing reads any more are removed.
        opset: The file's.
    """
    made = {name: step for step in steps for name in step.outputs}
    reader = OnnxReader(made, known, stored, _derived(steps, known), singles(steps, known), opset)
    reads = Counter(name for step in steps for name in step.inputs) + Counter(results)
    gone: set[str] = set()  # first results of steps
    fused: dict[str, OnnxStep] = {}
    for step in reversed(steps):
        if step.outputs[0] in gone:
            continue
        for spelling, found, at in _spelt(step, reader, reads):
            gone |= {*found.steps} - {step.outputs[0], *reader.derived}
            fused[step.outputs[0]] = _replaced(step, spelling, found, at)
            for name in spelling.flat:
                stored[found.values[name]] = stored[found.values[name]].flatten()
            break
    left = [fused.get(s.outputs[0], s) for s in steps if s.outputs[0] not in gone]
    still = {name for step in left for name in step.inputs} | {*results}
    for name in reads.keys() - still:
        stored.pop(name, None)
    return left


def _spelt(
    step: OnnxStep, reader: OnnxReader, reads: Mapping[str, int]
) -> Iterator[tuple[SpeltForm, Found, Mapping[str, Any]]]:
    """Spellings of which a step is the last, what they match, and the operator's attributes."""
    for spelling in SPELLINGS:
        for found in reader.matches(spelling.pattern, step.outputs[0], Found()):
            at = spelling.attributes(found, reader) if _alone(step, found, reader, reads) else None
            if at is not None and all(reads[found.values[n]] == 1 for n in spelling.flat):
                yield spelling, found, at


def _replaced(step: OnnxStep, spelling: SpeltForm, found: Found, at: Mapping[str, Any]) -> OnnxStep:
    values = [found.values.get(name) for name in spelling.inputs]
    inputs = tuple(v if isinstance(v, str) else "" for v in values)
    row = (ROWS | SPELT)[spelling.kind]
    return dataclasses.replace(step, kind=spelling.kind, row=row, attributes=at, inputs=inputs)


def _alone(step: OnnxStep, found: Found, reader: OnnxReader, reads: Mapping[str, int]) -> bool:
    """Return whether nothing else reads inner results, except those that follow from shapes."""
    inside = Counter(name for s in found.steps.values() for name in s.inputs)
    return all(
        reads[name] == inside[name]
        for name in found.steps
        if name != step.outputs[0] and name not in reader.derived
    )


def _derived(steps: Sequence[OnnxStep], constants: Mapping[str, Any]) -> set[str]:
    """Return the names of what follows from shapes and constants as the nodes are computed."""
    names = {"", *constants}
    for step in steps:
        types = step.row.types if step.row else ()
        numbers = [name for i, name in enumerate(step.inputs) if i not in types]
        known = step.kind in FOLDS and names.issuperset(numbers)
        if known or step.kind in ("Shape", "Size"):
            names.update(step.outputs)
    return names
