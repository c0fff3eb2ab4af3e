"""Build an ``nn.Module`` from an :class:`ArchGraph`.

The module consists of ``torch.nn`` layers at the paths of the model, blocks for paths whose work is
contiguous, and containers otherwise. A graph caches a template of its module, with the classes and
the generated code. Building copies the template and fills in tensors.

Hooks, pruning, adapters and per-example gradients work on layers. A module with the right weights
but without layers accepted them and did nothing. A ``torch.fx.GraphModule`` has a single graph, so
code for training only would also run in evaluation, and each copy would generate its code again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Param, Ref, per_graph
from archgraph.module.code import Blocks, Forward, are_numbers, forward
from archgraph.module.initial import initial_state
from archgraph.module.inputs import InputTypes, checked
from archgraph.module.plan import ModulePlan, ancestors, is_under, joined
from archgraph.ops.constants import constant_tensor
from archgraph.ops.recurrent import single_layers
from archgraph.ops.schema import torch_dtype
from archgraph.states import State
from archgraph.states.state import missing, widened


class ArchBlock(nn.Module):
    """A part of a built module that computes the work of one module path.

    Its arguments are the values that the work reads from outside, in order of first use. It returns
    the values that others read, as a tuple if there are several. Its class belongs to one graph.
    """

    _graph: ClassVar[ArchGraph]  # not ``arch``, which marks modules that compute a whole graph
    _path: ClassVar[str] = ""

    def extra_repr(self) -> str:
        """Describe a recurrent layer whose layers or directions have unequal sizes after a cut."""
        return single_layers(self._graph, [n for n in self._graph.nodes if n.scope == self._path])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by graph and path, since the class is not importable; includes user changes."""
        return _blank, (self._graph, self._path), self.__getstate__()


class ArchModule(ArchBlock):
    """A module built from a graph.

    Attributes:
        arch: The graph. The module has the state-dict keys, layers, training flags and outputs of
            the model that the graph was traced from.
    """

    arch: ClassVar[ArchGraph]

    def extra_repr(self) -> str:
        """Describe the module in one line: name, operators."""
        return f"{self.arch.name}: {len(self.arch.nodes)} operators"


class ArchSequential(ArchModule, nn.Sequential):
    """A module built from a chain of modules, such as a traced ``nn.Sequential``."""

    def __getitem__(self, index: slice | int) -> nn.Module:
        """Return one module, or a plain ``nn.Sequential`` for a slice."""
        # torch creates the slice by calling the class, but its graph computes all modules.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


def _blank(graph: ArchGraph, path: str) -> nn.Module:
    """Return an empty module of the class that a path of a graph has."""
    kind = type(_template(graph).parts[path])
    return kind.__new__(kind)


@takes_graph
def build(graph: ArchGraph, state: State | None = None, *, seed: int = 0) -> ArchModule:
    """Build the module that computes a graph.

    The module consists of ``torch.nn`` layers under the paths of the traced model, so hooks,
    pruning, parametrisations, adapters and replaced layers work as on that model. Each part is in
    the mode that it had when the model was traced. A module built from a graph that was not traced
    is in train mode.

    Args:
        graph: The architecture, or the result of a rewrite.
        state: Dict from name to tensor, as returned by :func:`trace`, :func:`state_of` and
            ``transfer.pull``. They are copied and stay on their devices. Default: new values,
            initialised like those of the original layers.
        seed: Seed of new values.

    Raises:
        GraphError: If the state lacks a tensor, has one with another shape, or has different values
            under the names of a tied tensor.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.zeros(1, 3))
        >>> build(graph, state)
        ArchSequential(
          Sequential: 2 operators
          (0): Linear(in_features=3, out_features=2, bias=True)
        )
    """
    return filled(graph, initial_state(graph, seed) if state is None else state)


def filled(
    graph: ArchGraph, state: State, *, training: bool | None = None, shared: bool = False
) -> ArchModule:
    """Build a module like :func:`build`, in a given mode.

    Args:
        graph: The architecture.
        state: Tensors by name.
        training: The mode of all parts. Default: the modes in the graph.
        shared: Whether parameters share memory with the state instead of being copied.
    """
    _check_fit(graph, state, _shapes(graph))
    leaves: dict[str, Tensor] = {}
    for name in graph.state_names:
        param, value = graph.param[name], state[name].detach()
        copied = not (shared and param.role == "parameter")
        leaf = value.to(torch_dtype(param.dtype), copy=copied)
        if param.role == "parameter":
            leaf = nn.Parameter(leaf, requires_grad=param.trainable)
        leaves[name] = leaf
    devices = {leaf.device for leaf in leaves.values()}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    for param in graph.params:
        if param.role == "constant" and param.value is not None:
            leaves[param.name] = constant_tensor(param.value).to(device)
    return _template(graph).filled(leaves, training)


# -- templates ----------------------------------------------------------------------------------


class Template:
    """A built module without tensors, and the destinations of its leaves.

    1. Generate the network's forward, and a block for the work of each path. If a block would run
       after code that reads its results, no path becomes a block.
    2. Create a module for each path with work or leaves: a layer, chain, list, block or container.
    3. Fill the missing numbers of lists and chains with identities.
    4. Let all names of a shared module stand for the same module.
    5. Register each module in its parent; keep constants out of the state dict.

    Attributes:
        parts: Dict from path to module, parents first, including the root.
        leaves: For each state-dict key and constant, the module's path, the name in the module, and
            the leaf.
        copied: Each module with the names of its attributes that are tables.
        inside: Each path except the root with its parent's path and its name there.
    """

    def __init__(self, graph: ArchGraph) -> None:
        plan = ModulePlan.of(graph)
        self.graph = graph
        self.leaves = [(*_split(name), param.name) for name, param in _names(graph)]
        self.blocks, root = _forwards(plan)  # 1
        owners = dict.fromkeys(path for path, _, _ in self.leaves)
        tree = _tree(plan, owners, {*plan.layers, *self.blocks.forwards})
        self.parts = {"": self._root(root, tuple(tree[""]), "" in owners)}  # 2
        for path, names in tree.items():
            for inside in (joined(path, name) for name in names):
                self.parts[inside] = self._part(inside, tuple(tree[inside]), inside in owners)
        self._fill(tree)  # 3
        self._unite(graph.shared)  # 4
        self._enter(tree)  # 5
        for outer, flag in graph.flags:
            for path, part in self.parts.items():
                if is_under(path, outer):
                    part.training = flag
        self.copied = [
            (part, [name for name, value in vars(part).items() if type(value) in _TABLES])
            for part in dict.fromkeys(self.parts.values())
        ]
        self.inside = [(path, *_split(path)) for path in self.parts if path]

    def _fill(self, tree: Mapping[str, list[str]]) -> None:
        """Add missing numbers to the names in lists and chains, with identities as modules."""
        for path, names in tree.items():
            if are_numbers(names) and isinstance(self.parts[path], nn.Sequential | nn.ModuleList):
                numbers = {*map(int, names), *range(min(max(map(int, names)), _GAPS + len(names)))}
                names[:] = map(str, sorted(numbers))
                for name in names:
                    self.parts.setdefault(joined(path, name), nn.Identity())

    def _enter(self, tree: Mapping[str, Iterable[str]]) -> None:
        """Register modules in their parents, and exclude constants from the state dict."""
        for path, names in tree.items():
            # Into the table: ``self.type = Linear(…)`` is legal, ``add_module("type", …)`` is not.
            self.parts[path]._modules.update((n, self.parts[joined(path, n)]) for n in names)
        for path, name, leaf in self.leaves:
            part = self.parts[path]
            if name in part._modules:
                raise GraphError("a leaf and a module share a name", found=joined(path, name))
            if self.graph.param[leaf].role == "constant":
                part._non_persistent_buffers_set.add(name)

    def _unite(self, shared: Iterable[tuple[str, ...]]) -> None:
        """Use one part for all names of a shared module: the same layer, or the same code."""
        layers, blocks = self.blocks.plan.layers, self.blocks.forwards
        for first, *others in shared:
            layer, block = layers.get(first), blocks.get(first)
            for path in others:
                other = blocks.get(path)
                alike = block is not None and other is not None and block.sources == other.sources
                if alike or (layer is not None and layer == layers.get(path)):
                    self.parts[path] = self.parts[first]

    def _root(self, root: Forward, names: tuple[str, ...], owns: bool) -> nn.Module:
        """Return the network itself; a chain if it only calls its modules in turn."""
        kind, run = ArchModule, root.run
        match self.graph.inputs, self.graph.outputs:
            case ((("input", Ref()),), Ref()) if not owns and self.blocks.chain("") == names:
                kind, run = ArchSequential, nn.Sequential.forward
        run = checked(run, InputTypes.of(self.graph))
        return self._block(kind, "", forward=run, arch=self.graph)

    def _part(self, path: str, names: tuple[str, ...], owns: bool) -> nn.Module:
        """Return the module at a path with child modules of these names, and possibly leaves."""
        layer, block = self.blocks.plan.layers.get(path), self.blocks.forwards.get(path)
        if layer is not None:
            module = layer.module()
            if layer.counter:  # remains None if the graph does not have it
                module._buffers[layer.counter] = None
            return module
        if block is None:
            return nn.ModuleList() if are_numbers(names) and not owns else nn.Module()
        if not owns and self.blocks.chain(path) == names:
            return nn.Sequential()
        return self._block(ArchBlock, path, forward=block.run)

    def _block(self, base: type[ArchBlock], path: str, **attributes: object) -> nn.Module:
        """Return a module of a new class, which stores its graph and path."""
        attributes |= {"_graph": self.graph, "_path": path, "__module__": __name__}
        return type(base.__name__, (base,), attributes)()

    def filled(self, leaves: Mapping[str, Tensor], training: bool | None = None) -> ArchModule:
        """Return a copy with tensors, in a mode. Default: the modes in the graph."""
        shared = {part: _copied(part, tables) for part, tables in self.copied}
        copies = {path: shared[part] for path, part in self.parts.items()}
        for path, outer, name in self.inside:
            copies[outer]._modules[name] = copies[path]
        if training is not None:
            for copy in shared.values():
                copy.__dict__["training"] = training
        for path, name, leaf in self.leaves:
            module, tensor = copies[path], leaves[leaf]
            if type(module).__setattr__ is not nn.Module.__setattr__:
                setattr(module, name, tensor)  # a recurrent layer also keeps a list of its weights
            # Into the tables: setting an attribute would search all others, for each tensor.
            elif isinstance(tensor, nn.Parameter):
                module._parameters[name] = tensor
            else:
                module._buffers[name] = tensor
        return cast(ArchModule, copies[""])


def _forwards(plan: ModulePlan) -> tuple[Blocks, Forward]:
    """Return the blocks of a plan, and the forward of the network that calls them."""
    # Only code generation shows which blocks exist: readers look up a block's results, and a block
    # that runs later has none yet.
    blocks = Blocks(plan)
    try:
        return blocks, forward(plan, "", plan.work, blocks)
    except KeyError:
        blocks = Blocks(plan, flat=True)
        return blocks, forward(plan, "", plan.work, blocks)


_GAPS = 1000  # maximum number of modules without work in one list


def _template(graph: ArchGraph) -> Template:
    return graph._memo("archgraph.build", Template)


_TABLES = frozenset((dict, OrderedDict, set, list))  # of a module and of a recurrent layer


def _copied(module: nn.Module, tables: Iterable[str]) -> nn.Module:
    """Return a copy of a module with its own tables, but the same contents."""
    # Not copy.copy(): a block pickles by its graph (:meth:`ArchBlock.__reduce__`).
    copy = module.__new__(type(module))
    values = copy.__dict__
    values.update(vars(module))
    for name in tables:
        values[name] = values[name].copy()
    return copy


def _split(name: str) -> tuple[str, str]:
    """Return the parent's path of a module or leaf, and its name there."""
    path, _, last = name.rpartition(".")
    return path, last


def _names(graph: ArchGraph) -> Iterable[tuple[str, Param]]:
    """Return all names of leaves; those of tied leaves come last, as in the original's state."""
    names = [
        *((param.name, param) for param in graph.params),
        *((name, param) for param in graph.params for name in param.aliases),
    ]
    known = {name for name, _ in names}
    for name, _ in names:
        if not all(part and part.isprintable() for part in name.split(".")):
            raise GraphError("a leaf's name is not a path of attributes", found=name)
        if not known.isdisjoint(ancestors(name)):
            raise GraphError("a leaf's name runs through another leaf", found=name)
    return names


def _tree(
    plan: ModulePlan, owners: Iterable[str], workers: Collection[str]
) -> dict[str, list[str]]:
    """Return the child modules of each module, parents first, in the order of the model.

    1. Modules with leaves (``owners``) come in the order of their leaves.
    2. Layers and blocks without leaves follow the module that works before them.
    """
    tree: dict[str, list[str]] = {"": []}

    def add(path: str, after: str | None) -> None:
        """Add a path after a name; at the start if it is unknown, at the end if it is None."""
        if path in tree:
            return
        outer, name = _split(path)
        add(outer, None)
        names = tree[outer]
        if after is None:
            names.append(name)
        else:
            names.insert(names.index(after) + 1 if after in names else 0, name)
        tree[path] = []

    for path in owners:  # 1
        add(path, None)
    last: dict[str, str] = {}  # the child module of each path that worked last
    for node in plan.work:  # 2
        for path in (*ancestors(node.scope)[1:], node.scope):
            if path and (path in workers or path in tree):
                outer, name = _split(path)
                add(path, last.get(outer, ""))
                last[outer] = name
    return tree


# -- states -------------------------------------------------------------------------------------


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a built module: detached tensors by name, each tied tensor once.

    The tensors share memory with the module's, except parametrised ones
    (``torch.nn.utils.parametrizations``), which are computed. The built module may be wrapped in
    another one: ``torch.compile``, ``DataParallel``, ``AveragedModel``, or a model of your own.

    Raises:
        GraphError: If the module was not built from a graph, its tensors no longer match the graph
            (pruned, with adapters, with additional parameters), or a tied weight was untied and now
            has several values; names the first such tensor.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> net = build(*trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)))
        >>> {name: tuple(tensor.shape) for name, tensor in state_of(net).items()}
        {'weight': (2, 3), 'bias': (2,)}
    """
    module = _built(module)
    graph = module.arch
    full = module.state_dict(keep_vars=True)
    state = {name: _tensor(module, name, full) for name in graph.state_names}
    for name, tensor in state.items():
        for alias in graph.param[name].aliases:
            # Untying a weight (a new parameter, a replaced layer) leaves both names in place.
            _check_tied(name, tensor, alias, _tensor(module, alias, full), UNTIED)
    known = _known(graph)
    # A parametrised tensor is computed from entries under ``parametrizations``.
    extra = [k for k in full if k not in known and ".parametrizations." not in f".{k}"]
    if extra:
        raise GraphError(
            "the module has a tensor that its graph lacks; merge or remove it", where=extra[0]
        )
    return state


UNTIED = (
    "assign one parameter to both names again, e.g. module.head.weight = module.embed.weight, or "
    "trace the module as it is now, which gives a graph with a tensor for each"
)


def _check_tied(name: str, tensor: Tensor, alias: str, other: Tensor, hint: str) -> None:
    """Refuse different values under two names of a tied weight: one of them would be lost."""
    if not _equal(tensor, other):
        raise GraphError(
            f"differs from {name}: they are tied, and the graph has one tensor for both",
            where=alias,
            hint=hint,
        )


@per_graph
def _known(graph: ArchGraph) -> frozenset[str]:
    return frozenset(name for param in graph.params for name in (param.name, *param.aliases))


def _built(module: nn.Module) -> ArchModule:
    """Return the single built module that a module is or contains."""
    parts = [part for part in module.modules() if isinstance(part, ArchModule)]
    if len(parts) != 1:
        raise GraphError(
            "not a module built by archgraph",
            found=f"{type(module).__name__} with {len(parts)} built modules inside",
            hint="pass one of them" if parts else "ag.trace returns the state of an ordinary model",
        )
    return parts[0]


def _tensor(module: nn.Module, name: str, full: State) -> Tensor:
    """Return a tensor of a built module by the graph's name, detached."""
    if name in full:
        return full[name].detach()
    path, last = _split(name)
    owner = dict(module.named_modules(remove_duplicate=False)).get(path)
    if owner is not None and parametrize.is_parametrized(owner, last):
        with torch.no_grad():
            return cast(Tensor, getattr(owner, last))
    raise GraphError(
        "the module no longer has this tensor of its graph",
        where=name,
        found=", ".join(k for k in full if is_under(k, path)) or "nothing at this path",
        hint="undo what replaced it (prune.remove, merge_and_unload) first",
    )


@takes_graph
def state_dict(graph: ArchGraph, state: State) -> dict[str, Tensor]:
    """Return a state as the ``state_dict`` of the model that the graph was traced from.

    A state contains a tied tensor once. The model's ``state_dict`` has it under each of its names,
    and ``load_state_dict`` requires all of them.

    Raises:
        GraphError: If the state lacks a tensor, has one with another shape, or has different values
            under the names of a tied tensor.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> tied[1].weight = tied[0].weight
        >>> graph, state = trace(tied, torch.zeros(1, 2))
        >>> sorted(state_dict(graph, state).keys() - state.keys())
        ['1.weight']
        >>> tied.load_state_dict(state_dict(graph, state))
        <All keys matched successfully>
    """
    _check_fit(graph, state, _shapes(graph))
    return {
        name: state[key] for key in graph.state_names for name in (key, *graph.param[key].aliases)
    }


def load_state(module: nn.Module, state: State) -> None:
    """Copy a state into a built module in place.

    Raises:
        GraphError: If a tensor is missing or has another shape, or tied tensors differ. Nothing is
            copied in this case.
    """
    module = _built(module)
    tensors = state_of(module)
    _check_fit(module.arch, state, {name: tensor.shape for name, tensor in tensors.items()})
    full = module.state_dict(keep_vars=True)
    keys = {name: (name, *module.arch.param[name].aliases) for name in tensors}
    computed = {key for several in keys.values() for key in several} - full.keys()
    if computed:
        raise GraphError(
            "is parametrised: call torch.nn.utils.parametrize.remove_parametrizations first",
            where=min(computed),
        )
    with torch.no_grad():
        for name, several in keys.items():
            # A tied weight that was untied with equal values consists of several tensors.
            for tensor in {id(full[key]): full[key] for key in several}.values():
                tensor.copy_(state[name])


@per_graph
def _shapes(graph: ArchGraph) -> Mapping[str, tuple[int, ...]]:
    return {name: graph.param[name].shape for name in graph.state_names}


def _check_fit(graph: ArchGraph, state: State, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a state with a missing tensor, a wrong shape, or tied tensors that differ."""
    if not isinstance(state, Mapping):
        raise GraphError(
            "a state is a mapping of names to tensors, as ag.trace, ag.state_of and transfer.pull "
            "return it",
            found=type(state).__name__,
        )
    for name, expected in shapes.items():
        value = state.get(name)
        if not isinstance(value, Tensor):
            raise GraphError(
                "the state lacks this tensor",
                where=name,
                expected=tuple(expected),
                **missing(name, state),
            )
        if value.shape != expected:
            raise GraphError(
                "the state has this tensor with another shape",
                where=name,
                found=tuple(value.shape),
                expected=tuple(expected),
                hint="for the graph of a rewrite, pull the state: rewritten.transfer.pull(state)",
            )
        for alias in graph.param[name].aliases:
            if alias in state:
                hint = f"omit {alias}, or trace the model with its weights untied"
                _check_tied(name, value, alias, state[alias], hint)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same values; NaN equals NaN."""
    # Equal memory needs no comparison: states of tied models contain one tensor under two names.
    same = (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride())
    return same or (
        one.shape == other.shape
        and torch.allclose(widened(one), widened(other.to(one)), rtol=0, atol=0, equal_nan=True)
    )
