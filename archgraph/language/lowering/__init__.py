"""Build the graph of an authored model: choices, names, steps and shortcuts."""

from archgraph.language.lowering.build import lower
from archgraph.language.lowering.choices import choose, written_choices
from archgraph.language.lowering.reader import BlockOptions

__all__ = ["BlockOptions", "choose", "lower", "written_choices"]
