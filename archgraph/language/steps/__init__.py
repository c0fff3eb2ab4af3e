"""The steps of a block: one table, from which the reader, the errors, the schema and help come.

A row has a step's name, its options (a pydantic model with the defaults) and how it becomes
operators. Steps that are one operator are rows of data (:mod:`.derived`); any further ATen operator
is written by its own name (:mod:`.raw`).
"""

from archgraph.language.steps import derived, norms, recurrent, shapes, tokens, windows
from archgraph.language.steps.base import STEPS, Site, StepOptions, StepRow
from archgraph.language.steps.raw import RawOptions, aten_names, find, raw_row

__all__ = ["STEPS", "RawOptions", "Site", "StepOptions", "StepRow", "aten_names", "find", "raw_row"]

# Each of these files puts its steps into the table.
_FILES = (windows, tokens, recurrent, norms, derived, shapes)
