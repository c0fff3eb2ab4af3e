"""What a dimension can be: layouts, and their unification."""

from archgraph.layout.layouts import AxisRef, Fixed, Layout, Prod, Solver, Sum, Var, leaves

__all__ = ["AxisRef", "Fixed", "Layout", "Prod", "Solver", "Sum", "Var", "leaves"]
