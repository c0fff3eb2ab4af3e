"""Architectures as frozen values, and their text form.

``values`` defines the values of arguments, types and leaves. ``ir`` has the graph: leaves
(``Param``) and operators (``Node``) in topological order. A size is a number or a ``polynomial`` of
open sizes, which ``sizes`` finds in a graph's inputs. ``passes`` transform graphs: select one of
the two modes, remove unneeded operators, make names canonical. ``text`` parses what ``str`` prints.
``argument`` lets functions accept anything that has a graph.

1. Equal graphs are the same architecture: they compare equal and have the same digest. Module
   scopes are part of it (blocks are derived from them), as are the user's sections and the initial
   values of buffers that no operator initialises. Name, notes and flags are labels: the wording of
   a note may change without preventing a run from being resumed.
2. Nothing refers to nodes of another graph: transfers, axes and blocks use leaves and module paths,
   and ``renumber`` makes node names canonical.
3. A graph has no weights and no device. Results computed from it are cached on it (``per_graph``)
   and live as long as the graph.
4. Reading text evaluates nothing: a word is a number, a leaf or one of a few reserved words. This
   room does not import torch.
"""

from archgraph.graph.ir import ArchGraph, Node, Param, per_graph
from archgraph.graph.passes import prune, renumber, specialise
from archgraph.graph.text import parse

__all__ = ["ArchGraph", "Node", "Param", "parse", "per_graph", "prune", "renumber", "specialise"]
