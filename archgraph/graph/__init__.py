"""What an architecture is: frozen values, and their text form.

``values`` is what arguments, types and leaves consist of; ``ir`` has the graph: leaves (``Param``)
and operators (``Node``) in topological order. A size is a number or a ``polynomial`` of open sizes,
which ``sizes`` reads off a graph's inputs. ``passes`` make other graphs: one mode of two, without
what no output needs, with canonical names. ``text`` reads what ``str`` prints. ``argument`` lets
functions take whatever has a graph.

1. Equal graphs are one architecture: they compare equal and have one digest. Module scopes belong
   to it (blocks are derived from them), and so do the user's sections and first values of buffers
   that no operator initialises. Name, notes and flags are labels: words of a note may change, and a
   run can still be resumed.
2. Nothing refers to nodes of another graph: transfers, axes and blocks go by leaves and module
   paths, and ``renumber`` names nodes canonically.
3. A graph has no weights and no device. What is computed of it is cached with it (``per_graph``)
   and lives as long.
4. Reading text evaluates nothing: a word is a number, a leaf or one of a few reserved words. This
   room does not import torch.
"""

from archgraph.graph.ir import ArchGraph, Node, Param, per_graph
from archgraph.graph.passes import prune, renumber, specialise
from archgraph.graph.text import parse

__all__ = ["ArchGraph", "Node", "Param", "parse", "per_graph", "prune", "renumber", "specialise"]
