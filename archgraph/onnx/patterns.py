"""Matching of a file's values with patterns: expressions of :mod:`archgraph.ops.patterns`.

Kinds of variables: ``tensor``: a tensor of the file, by name. ``number``: a constant with one
number, as this number. ``derived``: a value that follows from shapes and constants, by name if it
is not a number yet. It may then turn out to be several numbers, which the row must check.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archgraph.onnx.operators.row import Known, OnnxSetting, OnnxStep
from archgraph.ops.patterns import Applied, PatternReader

FEW = 4096  # largest size of a tensor that is compared
# Attributes that are inputs in newer opsets, in this order, after the other inputs.
AS_INPUTS = {"ReduceMean": ("axes",), "Clip": ("min", "max")}
DEFAULTS: Mapping[tuple[str, str], OnnxSetting] = {
    ("ReduceMean", "keepdims"): 1,
    ("ReduceMean", "noop_with_empty_axes"): 0,
    ("Reshape", "allowzero"): 0,
    ("Shape", "start"): 0,
    ("HardSigmoid", "alpha"): 0.2,
    ("HardSigmoid", "beta"): 0.5,
    ("InstanceNormalization", "epsilon"): 1e-5,
}


@dataclass(frozen=True)
class OnnxReader(PatternReader[OnnxSetting, OnnxStep]):
    """A file's values and steps, for matching patterns.

    Attributes:
        producer: Name of a value → the step that computes it.
        known: Constants.
        stored: Tensors.
        derived: Names of values that follow from shapes and constants, without these.
        opset: The opset of the file.
    """

    producer: Mapping[str, OnnxStep]
    known: Mapping[str, Known]
    stored: Mapping[str, Tensor]
    derived: Collection[str]
    opset: int

    def applied(
        self, operand: OnnxSetting, pattern: Applied
    ) -> tuple[list[OnnxSetting], dict[str, OnnxSetting], dict[str, OnnxStep]] | None:
        """Return how the pattern's operator computes a value; None if another operator does."""
        step = self.producer.get(operand) if isinstance(operand, str) else None
        if step is None or step.kind.lower() != pattern.kind.lower():
            return None
        attributes = dict(step.attributes)
        names = [name for name in AS_INPUTS.get(step.kind, ()) if name in attributes]
        operands = [*step.inputs, *map(attributes.pop, names)]
        # An attribute that the pattern omits must have its default: it changes the operator.
        listed = pattern.options or {}
        defaults = {name: DEFAULTS.get((step.kind, name)) for name in {**attributes, **listed}}
        options = {
            name: attributes.get(name, default)
            for name, default in defaults.items()
            if name in listed or attributes[name] != default
        }
        return operands, options, {step.outputs[0]: step}

    def admitted(self, kind: str, operand: OnnxSetting) -> OnnxSetting:
        """Return the value of a variable of a kind; None if the operand is not of this kind."""
        if kind == "tensor":
            return operand if operand in self.stored else None
        number = self.number(operand)
        if number is None and kind == "derived" and operand in self.derived:
            return operand
        return number

    def items(self, operand: OnnxSetting) -> list[float] | None:
        """Return the numbers of a list, or None."""
        return self.numbers(operand)

    def numbers(self, operand: OnnxSetting) -> list[float] | None:
        """Return the numbers of a constant of at most one axis; None if the value is not known."""
        array = self._constant(operand)
        if array is None or array.ndim > 1:
            return None
        # 1e-5 for the nearest float32 number
        return [float(str(n)) if array.dtype.kind == "f" else n.item() for n in array.ravel()]

    def number(self, operand: OnnxSetting) -> float | None:
        """Return the number of a constant that has only one number, or None.

        A constant with more axes is not accepted, since it could add axes to the other operand.
        """
        numbers = self.numbers(operand)
        return float(numbers[0]) if numbers is not None and len(numbers) == 1 else None

    def _constant(self, operand: OnnxSetting) -> Known | None:
        value = self.known.get(operand) if isinstance(operand, str) else np.asarray(operand)
        if value is None and operand in self.stored and self.stored[operand].numel() <= FEW:
            value = as_array(self.stored[operand])
        # An array of objects may contain the batch size, which is not a number yet.
        return None if value is None or value.dtype == object else value


def as_array(tensor: Tensor) -> Known:
    """Convert a tensor to an array, also from bfloat16, which NumPy lacks."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
