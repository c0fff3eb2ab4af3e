"""Graphs of architectures as immutable values, and their text form.

``values`` defines the values of arguments and the types of tensors. ``ir`` defines the graph:
parameters, buffers and constants (``Param``), also called leaves, and operators (``Node``) in
topological order. A size is a number or a ``polynomial`` of open sizes. ``sizes`` finds the open
sizes in a graph's inputs. ``passes`` transform graphs: they select one of the two modes, remove
unneeded operators, or make names canonical. ``text`` parses the printed form of a graph.
``argument`` lets functions accept any object that has a graph.

1. Graphs of the same architecture compare equal and have the same digest. An architecture includes
   the module paths of operators (blocks are derived from them), the user's sections, and the
   initial values of buffers that no operator initialises. Name, notes and flags are labels and do
   not count. A run can therefore be resumed even if the wording of a note has changed.
2. A graph is never referred to by the names of its nodes: transfers, axes and blocks use parameters
   and module paths. ``renumber`` makes the names of nodes canonical.
3. A graph does not have weights or a device. Results that are computed from a graph are cached on
   the graph (``per_graph``), and live as long as the graph.
4. Reading text does not evaluate code: a word is a number, a leaf or one of a few reserved words.
   This package does not import torch.
"""

from archgraph.graph.ir import ArchGraph, Node, Param, per_graph
from archgraph.graph.passes import prune, renumber, specialise
from archgraph.graph.text import parse

__all__ = ["ArchGraph", "Node", "Param", "parse", "per_graph", "prune", "renumber", "specialise"]
