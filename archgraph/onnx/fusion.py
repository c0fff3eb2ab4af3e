"""Fusion of linear layers, norms, activations and attention that a file decomposes into nodes.

A decomposition is replaced by one operator only if it exactly matches a pattern in
:data:`SPELLINGS` and no other node reads its intermediate values. Rewrites then recognise norms,
and constants of a decomposition, such as the scale of attention, do not become trainable weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from archgraph.onnx.operators import ROWS
from archgraph.onnx.operators.known import FOLDS
from archgraph.onnx.operators.row import Known, OnnxSetting, OnnxStep
from archgraph.onnx.operators.spelt import SPELT
from archgraph.onnx.patterns import OnnxReader
from archgraph.ops.idioms import SPELT_GELU, SPELT_GELU_TANH, SPELT_SILU
from archgraph.ops.patterns import Pattern, PatternMatch, Variable, either, op

# Dict from the variables of a pattern to names of values, numbers or attributes.
Bindings: TypeAlias = Mapping[str, OnnxSetting]
Options: TypeAlias = dict[str, OnnxSetting]
OnnxMatch: TypeAlias = PatternMatch[OnnxSetting, OnnxStep]


class SpeltForm(NamedTuple):
    """A pattern for one decomposition of an operator.

    Attributes:
        kind: The operator that is decomposed; a key of ``ROWS`` or ``SPELT``.
        pattern: Pattern for the last node of the decomposition.
        inputs: Variables of the pattern that are inputs of the operator.
        attributes: Function that returns the attributes of the operator, or None if the matched
            nodes are not this operator.
        flat: Variables whose tensors are flattened; no other node may read these tensors.
    """

    kind: str
    pattern: Pattern
    inputs: tuple[str, ...] = ("x",)
    attributes: Callable[[Bindings, OnnxReader], Options | None] = lambda values, reader: {}
    flat: tuple[str, ...] = ()


# -- layers and norms -------------------------------------------------------------------------


def _square(x: Pattern) -> Pattern:
    return either(op.Pow(x, 2.0), op.Mul(x, x))


def _divided(x: Pattern, by: Pattern) -> Pattern:
    return either(op.Div(x, by), op.Mul(x, either(op.Reciprocal(by), op.Div(1.0, by))))


def _mean(x: Pattern) -> Pattern:
    return op.ReduceMean(x, (-1,))


def _moved(x: Pattern) -> Pattern:
    """Return a pattern with an optional weight as factor and an optional bias."""
    scaled = op.Mul(x, Variable("w"))
    return either(op.Add(scaled, Variable("b")), scaled, x)


def _along_last(values: Bindings, reader: OnnxReader) -> Options | None:
    """Return the options of a norm with weights along the last axis; else None."""
    weights = [reader.stored[values[name]] for name in ("w", "b") if name in values]
    if any(w.dim() != 1 or w.shape != weights[0].shape for w in weights):
        return None
    return {"epsilon": values["eps"], "axis": -1}


def _groups(values: Bindings, reader: OnnxReader) -> Options | None:
    """Return the options of a group norm; None if the match is not a group norm.

    In a group norm, the instance norm has neither scale nor shift, and the weights are along the
    second axis.
    """
    shape, ones, zeros = (reader.numbers(values[name]) for name in ("shape", "ones", "zeros"))
    w, b = (reader.stored[values[name]] for name in ("w", "b"))
    channels = 1 < w.dim() and w.shape == b.shape and w.shape[0] == w.numel()
    if not channels or not ones or {*ones} != {1.0} or zeros != [0.0] * len(ones):
        return None
    if shape != [0, len(ones), -1]:
        return None
    return {"num_groups": len(ones), "epsilon": values["eps"], "trailing": w.dim() - 1}


def _matrix(values: Bindings, reader: OnnxReader) -> Options | None:
    """Return empty options; None if there is a bias without one number per output."""
    outputs = reader.stored[values["w"]].shape[:1]
    return {} if "b" not in values or reader.stored[values["b"]].shape == outputs else None


_eps = Variable("eps", "number")
_product = op.MatMul("x", op.Transpose(Variable("w"), perm=(1, 0)))
_linear = either(op.Add(_product, Variable("b")), _product)
_centred = op.Sub("x", _mean("x"))
_layer_norm = _divided(_centred, op.Sqrt(op.Add(_mean(_square(_centred)), _eps)))
_rms_norm = _divided("x", op.Sqrt(op.Add(_mean(_square("x")), _eps)))
_grouped = op.InstanceNormalization(op.Reshape("x", "shape"), "ones", "zeros", epsilon="eps")
_group_norm = op.Add(
    op.Mul(op.Reshape(_grouped, op.Shape("x"), allowzero="any"), Variable("w")), Variable("b")
)

# -- activations ------------------------------------------------------------------------------


_clipped = op.Clip(op.Add("x", 3.0), 0.0, 6.0)
_hard_swish = either(
    op.Mul("x", op.HardSigmoid("x", alpha=1 / 6, beta=0.5)),
    op.Div(op.Mul("x", _clipped), 6.0),
    op.Mul("x", op.Div(_clipped, 6.0)),
    op.Mul(op.Mul("x", _clipped), 1 / 6),
)

# -- attention --------------------------------------------------------------------------------


def _scores(values: Bindings, reader: OnnxReader) -> Options | None:
    """Return the options of attention, with constant factors of the scores merged into one scale.

    The result is None if the softmax does not run over the last axis, or a divisor is 0.
    """
    order = values.get("perm")
    axis = values["axis"] if values["axis"] is not None else -1 if reader.opset > 12 else 1
    if order is None:
        if "perm" in values or axis != -1:  # without `perm`, Transpose reverses all axes
            return None
    elif axis not in (-1, len(order) - 1):
        return None
    # Factors that are not known yet become inputs of the operator, which multiplies by them.
    numbers = [v if isinstance(v := values.get(name), float) else 1.0 for name in _factors]
    divisor = math.prod(numbers[3:])
    if not divisor:
        return None
    if order is not None:
        # The operator swaps the last two axes of the keys; first apply the rest of `perm`.
        order = [*order[:-2], order[-1], order[-2]]
        order = None if order == [*range(len(order))] else order
    scale, flat = math.prod(numbers[:3]) / divisor, reader.opset < 13
    return {"scale": scale, "perm": order, "axis": axis, "flat": flat}


def _scores_or_zero(values: Bindings, reader: OnnxReader) -> Options | None:
    options = _scores(values, reader)
    return None if options is None else options | {"or_zero": 1}


_keys = op.Shape("k")
_size, _length = op.Slice(_keys, (-1,), (2**63 - 1,)), op.Slice(_keys, (-2,), (-1,))
_turned = either(
    op.Transpose("k", perm="perm"),
    op.Reshape(  # as PyTorch's exporter writes it, for any rank
        op.Transpose(op.Reshape("k", op.Concat((-1,), _length, _size, axis=0)), perm=(0, 2, 1)),
        op.Concat(op.Slice(_keys, (-(2**63),), (-2,)), _size, _length, axis=0),
    ),
)
_factors = ("q times", "k times", "scores times", "q over", "scores over")
_of_q, _of_k, _of_scores, _over_q, _over_scores = (Variable(name, "derived") for name in _factors)
_products = either(
    op.MatMul(op.Mul("q", _of_q), op.Mul(_turned, _of_k)),
    op.MatMul(op.Mul("q", _of_q), _turned),
    op.MatMul(op.Div("q", _over_q), _turned),
    op.Mul(op.MatMul("q", _turned), _of_scores),
    op.Div(op.MatMul("q", _turned), _over_scores),
    op.MatMul("q", _turned),
)
_shares = op.Softmax(either(_products, op.Add(_products, "mask")), axis="axis")
_attention = op.MatMul(_shares, "v")
_attention_or_zero = op.MatMul(op.Where(op.IsNaN(_shares), 0.0, _shares), "v")

_operands = ("q", "k", "v", "mask", *_factors)

SPELLINGS = (
    SpeltForm("LayerNormalization", _moved(_layer_norm), ("x", "w", "b"), _along_last),
    SpeltForm(
        "RMSNormalization",
        either(op.Mul(_rms_norm, Variable("w")), _rms_norm),
        ("x", "w"),
        _along_last,
    ),
    SpeltForm("spelt GroupNormalization", _group_norm, ("x", "w", "b"), _groups, ("w", "b")),
    SpeltForm("spelt Linear", _linear, ("x", "w", "b"), _matrix),
    SpeltForm("Gelu", SPELT_GELU),
    SpeltForm("Gelu", SPELT_GELU_TANH, ("x",), lambda *_: {"approximate": "tanh"}),
    SpeltForm("Swish", SPELT_SILU),
    SpeltForm("HardSwish", _hard_swish),
    SpeltForm("spelt Attention", _attention, _operands, _scores),
    SpeltForm("spelt Attention", _attention_or_zero, _operands, _scores_or_zero),
)

# ---------------------------------------------------------------------------------------------


def fuse(
    steps: Sequence[OnnxStep],
    results: Collection[str],
    known: Mapping[str, Known],
    stored: dict[str, Tensor],
    opset: int,
) -> list[OnnxStep]:
    """Replace the nodes (steps) of each decomposed operator by one step.

    Args:
        steps: All steps, in order.
        results: Names of the file's results.
        known: Dict from name to constant.
        stored: Dict from name to tensor. Tensors that are no longer read are removed.
        opset: The opset of the file.
    """
    reader = OnnxReader(
        {name: step for step in steps for name in step.outputs},
        known,
        stored,
        _derived(steps, known),
        opset,
    )
    reads = Counter(name for step in steps for name in step.inputs) + Counter(results)
    gone: set[str] = set()  # names of the first results of removed steps
    fused: dict[str, OnnxStep] = {}
    # From the last step to the first, so that a decomposition is found before its parts.
    for step in reversed(steps):
        last = step.outputs[0]
        if last in gone:
            continue
        for spelling, matched, options in _spelt(step, reader, reads):
            # Keep values derived from shapes, since other steps may read them.
            gone |= {*matched.steps} - {last, *reader.derived}
            fused[last] = _replaced(step, spelling, matched.values, options)
            for name in spelling.flat:
                stored[matched.values[name]] = stored[matched.values[name]].flatten()
            break
    left = [fused.get(s.outputs[0], s) for s in steps if s.outputs[0] not in gone]
    for name in reads.keys() - {name for step in left for name in step.inputs} - {*results}:
        stored.pop(name, None)
    return left


def _spelt(
    step: OnnxStep, reader: OnnxReader, reads: Mapping[str, int]
) -> Iterator[tuple[SpeltForm, OnnxMatch, Options]]:
    """Yield the decompositions that end in a step, each with its match and options."""
    for spelling in SPELLINGS:
        for matched in reader.matches(spelling.pattern, step.outputs[0], PatternMatch()):
            if not _alone(step, matched, reader, reads):
                continue
            options = spelling.attributes(matched.values, reader)
            if options is not None and all(reads[matched.values[n]] == 1 for n in spelling.flat):
                yield spelling, matched, options


def _replaced(step: OnnxStep, spelling: SpeltForm, values: Bindings, options: Options) -> OnnxStep:
    operands = [values.get(name) for name in spelling.inputs]
    inputs = tuple(v if isinstance(v, str) else "" for v in operands)  # numbers are options
    return dataclasses.replace(
        step,
        kind=spelling.kind,
        row=(ROWS | SPELT)[spelling.kind],
        attributes=options,
        inputs=inputs,
    )


def _alone(
    step: OnnxStep, matched: OnnxMatch, reader: OnnxReader, reads: Mapping[str, int]
) -> bool:
    """Return whether no other step reads intermediate results that depend on the input."""
    inside = Counter(name for s in matched.steps.values() for name in s.inputs)
    return all(
        reads[name] == inside[name]
        for name in matched.steps
        if name != step.outputs[0] and name not in reader.derived
    )


def _derived(steps: Sequence[OnnxStep], constants: Mapping[str, Known]) -> set[str]:
    """Return the names of values that only depend on shapes and constants."""
    names = {"", *constants}
    for step in steps:
        types = step.row.types if step.row else ()
        numbers = [name for i, name in enumerate(step.inputs) if i not in types]
        known = step.kind in FOLDS and names.issuperset(numbers)
        if known or step.kind in ("Shape", "Size"):
            names.update(step.outputs)
    return names - {"", *constants}
