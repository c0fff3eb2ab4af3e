"""Matching of the values in an ONNX file with patterns of :mod:`archgraph.ops.patterns`.

A variable of a pattern has one of three kinds:

- ``tensor`` matches a tensor of the file and returns its name.
- ``number`` matches a constant with one element and returns the number.
- ``derived`` also matches a value that only depends on shapes and constants. If the value is not
  known yet, its name is returned. The value may have several elements; the operator must check
  this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archgraph.onnx.operators.row import Known, OnnxSetting, OnnxStep
from archgraph.ops.patterns import Applied, PatternReader

FEW = 4096  # maximum number of elements of a tensor that is compared
# Attributes that became the last inputs in newer opsets, in this order.
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
    """The values and steps of a file, for matching patterns.

    Attributes:
        producer: Dict from the name of a value to the step that computes it.
        known: Dict from name to constant.
        stored: Dict from name to tensor.
        derived: Names of computed values that only depend on shapes and constants.
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
        """Return operands, options and step of a value; None if another operator computes it."""
        step = self.producer.get(operand) if isinstance(operand, str) else None
        if step is None or step.kind.lower() != pattern.kind.lower():
            return None
        attributes = dict(step.attributes)
        names = [name for name in AS_INPUTS.get(step.kind, ()) if name in attributes]
        operands = [*step.inputs, *map(attributes.pop, names)]
        # Attributes that the pattern does not mention must have their defaults.
        listed = pattern.options or {}
        defaults = {name: DEFAULTS.get((step.kind, name)) for name in {**attributes, **listed}}
        options = {
            name: attributes.get(name, default)
            for name, default in defaults.items()
            if name in listed or attributes[name] != default
        }
        return operands, options, {step.outputs[0]: step}

    def admitted(self, kind: str, operand: OnnxSetting) -> OnnxSetting:
        """Return the value of a variable of some kind; None if the operand does not match it."""
        if kind == "tensor":
            return operand if operand in self.stored else None
        number = self.number(operand)
        if number is None and kind == "derived" and operand in self.derived:
            return operand
        return number

    def items(self, operand: OnnxSetting) -> list[float] | None:
        """Return the numbers of a list; None if the operand is not a known list."""
        return self.numbers(operand)

    def numbers(self, operand: OnnxSetting) -> list[float] | None:
        """Return the numbers of a constant with at most one axis; None for other values."""
        array = self._constant(operand)
        if array is None or array.ndim > 1:
            return None
        # 1e-5 instead of the nearest float32 number
        return [float(str(n)) if array.dtype.kind == "f" else n.item() for n in array.ravel()]

    def number(self, operand: OnnxSetting) -> float | None:
        """Return the number of a constant with one element; None for other values.

        A constant with more than one axis is not accepted: broadcasting would add axes to the other
        operand.
        """
        numbers = self.numbers(operand)
        return float(numbers[0]) if numbers is not None and len(numbers) == 1 else None

    def _constant(self, operand: OnnxSetting) -> Known | None:
        value = self.known.get(operand) if isinstance(operand, str) else np.asarray(operand)
        if value is None and operand in self.stored and self.stored[operand].numel() <= FEW:
            value = as_array(self.stored[operand])
        # An array of objects may contain the symbol of the batch size.
        return None if value is None or value.dtype == object else value


def as_array(tensor: Tensor) -> Known:
    """Convert a tensor to an array; bfloat16, which NumPy lacks, becomes float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
