"""Name axes: each axis gets the name of the first operator or parameter that has it."""

from __future__ import annotations

from collections.abc import Sequence

from archgraph.graph.ir import Leaf, Node, Ref, walk
from archgraph.layout.layouts import Fixed, Layout, Var, leaves
from archgraph.ops.equations import Equations
from archgraph.ops.table import row


class Naming:
    """Names, roles and spans of axes, which are variables in the solved equations.

    An axis is named after the first layer that has it as ``in`` or ``out`` (``fc1.out``). Any other
    axis is named after a dimension of a parameter or buffer (``embed.weight.1``), or else of a
    constant.

    Attributes:
        names: Dict from variable to the name of its axis, in the order of the first use.
        roles: Dict from variable to its role, if an operator determines one. Other variables are
            channels.
        spans: Dict from variable to the norms, softmaxes and reductions over it, in order.
        weighed: Variables that occur in parameters.
    """

    def __init__(self, eq: Equations) -> None:
        self._eq = eq
        self._inside: dict[int, tuple[Var, ...]] = {}
        self._complete: set[int] = set()  # runs of variables that are all named
        self._count: dict[str, int] = {}
        self._names: dict[Var, str] = {}
        self.roles: dict[Var, str] = {}
        for layout, role, _ in eq.roles:
            for var in self.variables(layout):
                self.roles.setdefault(var, role)
        self.spans = self._spans()
        used = [leaf for node in eq.graph.nodes for leaf in node.leaves()]
        self._order = self._ordered([*used, *eq.leaves])
        self.weighed = {
            var
            for param in eq.graph.params
            if param.role == "parameter"
            for layout in eq.leaves[param.name]
            for var in self.variables(layout)
        }
        for node in eq.graph.nodes:
            self._name_sides(node)
        constant = {p.name: p.role == "constant" for p in eq.graph.params}
        for leaf in [*sorted(dict.fromkeys(used), key=constant.__getitem__), *eq.leaves]:
            self._name_leaf(leaf, ())
        ordered = sorted(self._names, key=self._order.__getitem__)
        self.names = {var: self._names[var] for var in ordered}

    def variables(self, layout: Layout) -> tuple[Var, ...]:
        """Return the variables of a layout. Returns the same object for the same layout."""
        layout = self._eq.resolve(layout)
        if isinstance(layout, Var):
            return (layout,)
        if isinstance(layout, Fixed):
            return ()
        inside = self._inside.get(id(layout))  # binding is over, so resolved layouts stay alive
        if inside is None:
            inside = tuple(v for v in leaves(layout) if isinstance(v, Var))
            self._inside[id(layout)] = inside
        return inside

    def _spans(self) -> dict[Var, dict[str, None]]:
        """Return the norms, softmaxes and reductions over each variable, with their modules."""
        spans: dict[Var, dict[str, None]] = {}
        for layout, name, what in self._eq.spans:
            location = self._eq.graph.node[name].scope or f"%{name}"
            for var in self.variables(layout):
                spans.setdefault(var, {})[f"{what} in {location}"] = None
        return spans

    def _ordered(self, names: Sequence[str]) -> dict[Var, int]:
        """Return a dict from variable to its index in the order of the given leaves."""
        visited: set[int] = set()
        order: dict[Var, int] = {}
        for leaf in dict.fromkeys(names):
            for run in map(self.variables, self._eq.leaves[leaf]):
                if len(run) == 1 or id(run) not in visited:
                    visited.add(id(run))
                    for var in run:
                        order.setdefault(var, len(order))
        return order

    def _name_sides(self, node: Node) -> None:
        """Name the axes of an operator's weights ``in`` and ``out``, as the operator table says."""
        sides = row(node.op).sides
        for argument, value in node.args:
            for item in walk(value) if argument in sides else ():
                if isinstance(item, Leaf):
                    self._name_leaf(item.name, sides[argument])
                elif isinstance(item, Ref) and node.scope:
                    self._name(node.scope, "", self._eq.of(item), sides[argument])

    def _name_leaf(self, leaf: str, sides: Sequence[str]) -> None:
        prefix, _, last = leaf.rpartition(".")
        self._name(prefix or last, leaf, self._eq.leaves[leaf], sides)

    def _name(self, owner: str, leaf: str, dims: Sequence[Layout], sides: Sequence[str]) -> None:
        """Name the axes of a tensor: ``owner.side``, or for dimensions without side ``leaf.index``.

        The owner of a computed weight (weight norm, a scaled kernel) is the operator that uses the
        weight.
        """
        for index, layout in enumerate(dims):
            run = self.variables(layout)
            # Concatenations recur in many leaves (DenseNet): visit each only once.
            if id(run) in self._complete:
                continue
            stem = f"{owner}.{sides[index]}" if index < len(sides) else f"{leaf}.{index}"
            nameless = not leaf and index >= len(sides)
            if len(run) > 1 and not nameless:
                self._complete.add(id(run))
            for position, var in enumerate(run):
                role = self.roles.get(var)
                if var in self._names or var not in self._order or (nameless and not role):
                    continue
                part = f".{position}" if len(run) > 1 else ""
                self._names[var] = self._fresh(f"{owner}.{role}" if role else stem + part)

    def _fresh(self, stem: str) -> str:
        """Return the name, with a number if it is already in use."""
        count = self._count.get(stem, 0)
        self._count[stem] = count + 1
        return stem if not count else f"{stem}~{count + 1}"
