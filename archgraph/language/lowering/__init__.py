"""From an authored model to a graph: choices, names, steps, shortcuts, and what builds them."""

from archgraph.language.lowering.build import lower
from archgraph.language.lowering.choices import choose, written_choices
from archgraph.language.lowering.reader import BlockOptions

__all__ = ["BlockOptions", "choose", "lower", "written_choices"]
