"""What an architecture is: frozen values, and their text form."""

from archgraph.graph.ir import ArchGraph, Node, Param, per_graph
from archgraph.graph.passes import prune, renumber, specialise
from archgraph.graph.text import parse

__all__ = ["ArchGraph", "Node", "Param", "parse", "per_graph", "prune", "renumber", "specialise"]
