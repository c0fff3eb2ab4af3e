"""The steps of a block. One table defines them for parsing, errors, JSON schema and help.

A row contains a step's options (a pydantic model with the defaults) and a function that appends the
step's operators. Rows of steps that consist of one ATen operator are derived from the operator's
schema (:mod:`.derived`). Any other ATen operator can be used under its own name (:mod:`.raw`).
"""

from archgraph.language.steps import derived, norms, recurrent, shapes, tokens, windows
from archgraph.language.steps.base import STEPS, Site, StepOptions, StepRow
from archgraph.language.steps.raw import RawOptions, aten_names, find, raw_row

__all__ = ["STEPS", "RawOptions", "Site", "StepOptions", "StepRow", "aten_names", "find", "raw_row"]

# Each of these files puts its steps into the table.
_FILES = (windows, tokens, recurrent, norms, derived, shapes)
