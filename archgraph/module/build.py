"""Build an ``nn.Module`` from an :class:`ArchGraph`.

The module has ``torch.nn`` layers at the paths of the traced model. Other paths are blocks with a
generated forward, or containers. A graph caches a template of its module, with the classes and the
generated code. Building a module copies the template and fills in tensors.

The module has layers because hooks, pruning, adapters and per-example gradients need them. A module
with the right weights but without layers would accept a hook and never call it. The module is not a
``torch.fx.GraphModule``, because that has one graph for training and evaluation, and each copy
would generate its code again.
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
    """A submodule of a built module, with a generated forward.

    Its arguments are the values that its operators use from outside, in order of first use. It
    returns the values that operators outside use, as a tuple if there are several.
    """

    _graph: ClassVar[ArchGraph]  # not ``arch``, which marks modules that compute a whole graph
    _path: ClassVar[str] = ""

    def extra_repr(self) -> str:
        """Return a description of recurrent layers that have unequal sizes after a cut."""
        return single_layers(self._graph, [n for n in self._graph.nodes if n.scope == self._path])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the graph, the path and the attributes, because the class is not importable."""
        return _blank, (self._graph, self._path), self.__getstate__()


class ArchModule(ArchBlock):
    """A module built from a graph.

    The module has the state-dict keys, layers, training flags and outputs of the model from which
    the graph was traced.

    Attributes:
        arch: The graph.
    """

    arch: ClassVar[ArchGraph]

    def extra_repr(self) -> str:
        """Return the name of the graph and its number of operators."""
        return f"{self.arch.name}: {len(self.arch.nodes)} operators"


class ArchSequential(ArchModule, nn.Sequential):
    """A built module that calls its submodules in sequence, such as a traced ``nn.Sequential``."""

    def __getitem__(self, index: slice | int) -> nn.Module:
        """Return the module at an index, or an ``nn.Sequential`` for a slice."""
        # nn.Sequential creates a slice by calling its class, but this class has the whole graph.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


def _blank(graph: ArchGraph, path: str) -> nn.Module:
    """Return an empty module of the class of the module at a path of a graph."""
    kind = type(_template(graph).parts[path])
    return kind.__new__(kind)


@takes_graph
def build(graph: ArchGraph, state: State | None = None, *, seed: int = 0) -> ArchModule:
    """Build the ``nn.Module`` that computes a graph.

    The module has ``torch.nn`` layers at the same paths as the traced model. Hooks, pruning,
    parametrisations, adapters and the replacement of layers therefore work as on the traced model.
    Each submodule is in the mode (train or eval) that it had when the model was traced. If the
    graph does not come from a trace, the module is in train mode.

    Args:
        graph: The architecture, or the result of a rewrite.
        state: Dict from name to tensor, as returned by :func:`trace`, :func:`state_of` and
            ``transfer.pull``. The tensors are copied and stay on their devices. Default: new
            weights, initialised as in the ``torch.nn`` layers.
        seed: Seed of the new weights.

    Raises:
        GraphError: If the state lacks a tensor; if a tensor has another shape than in the graph; if
            the state contains a tied tensor under several names with different values.

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
        state: Dict from name to tensor.
        training: The mode of all submodules. Default: the modes in the graph.
        shared: If True, parameters share memory with the state instead of being copied.
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
    """A built module without tensors, and the module to which each parameter or buffer belongs.

    1. Generate the forward of the network and of the block at each path. If a block would run after
       code that uses its results, generate the network's forward without any blocks.
    2. Create a module for each path with operators or leaves: a layer, ``nn.Sequential``,
       ``nn.ModuleList``, block or container.
    3. Fill gaps in the numbers of lists and sequences with ``nn.Identity``.
    4. Use one module for all names of a shared module.
    5. Register each module in its parent, and exclude constants from the state dict.

    Attributes:
        parts: Dict from path to module, parents first, including the root.
        leaves: For each state-dict key and constant, the path of its module, its name in the
            module, and the name of the leaf in the graph.
        copied: Pairs of a module and the names of its attributes that are dicts, sets or lists.
        inside: For each path except the root: the path, the path of the parent, and the name there.
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
        """Fill gaps in the numbers of lists and sequences with ``nn.Identity``."""
        for path, names in tree.items():
            if are_numbers(names) and isinstance(self.parts[path], nn.Sequential | nn.ModuleList):
                numbers = {*map(int, names), *range(min(max(map(int, names)), _GAPS + len(names)))}
                names[:] = map(str, sorted(numbers))
                for name in names:
                    self.parts.setdefault(joined(path, name), nn.Identity())

    def _enter(self, tree: Mapping[str, Iterable[str]]) -> None:
        """Register modules in their parents, and exclude constants from the state dict."""
        for path, names in tree.items():
            # Write into the table, because ``add_module`` refuses names such as "type".
            self.parts[path]._modules.update((n, self.parts[joined(path, n)]) for n in names)
        for path, name, leaf in self.leaves:
            part = self.parts[path]
            if name in part._modules:
                raise GraphError("a leaf and a module share a name", found=joined(path, name))
            if self.graph.param[leaf].role == "constant":
                part._non_persistent_buffers_set.add(name)

    def _unite(self, shared: Iterable[tuple[str, ...]]) -> None:
        """Use one module for all names of a shared module, if its layer or its code is the same."""
        layers, blocks = self.blocks.plan.layers, self.blocks.forwards
        for first, *others in shared:
            layer, block = layers.get(first), blocks.get(first)
            for path in others:
                other = blocks.get(path)
                alike = block is not None and other is not None and block.sources == other.sources
                if alike or (layer is not None and layer == layers.get(path)):
                    self.parts[path] = self.parts[first]

    def _root(self, root: Forward, names: tuple[str, ...], owns: bool) -> nn.Module:
        """Return the network itself, an ``ArchSequential`` if it calls its modules in sequence."""
        kind, run = ArchModule, root.run
        match self.graph.inputs, self.graph.outputs:
            case ((("input", Ref()),), Ref()) if not owns and self.blocks.chain("") == names:
                kind, run = ArchSequential, nn.Sequential.forward
        run = checked(run, InputTypes.of(self.graph))
        return self._block(kind, "", forward=run, arch=self.graph)

    def _part(self, path: str, names: tuple[str, ...], owns: bool) -> nn.Module:
        """Return a module for a path.

        Args:
            path: The path.
            names: Names of its child modules.
            owns: Whether parameters or buffers belong to the path itself.
        """
        layer, block = self.blocks.plan.layers.get(path), self.blocks.forwards.get(path)
        if layer is not None:
            module = layer.module()
            if layer.counter:  # remains None if the graph does not have this buffer
                module._buffers[layer.counter] = None
            return module
        if block is None:
            return nn.ModuleList() if are_numbers(names) and not owns else nn.Module()
        if not owns and self.blocks.chain(path) == names:
            return nn.Sequential()
        return self._block(ArchBlock, path, forward=block.run)

    def _block(self, base: type[ArchBlock], path: str, **attributes: object) -> nn.Module:
        """Return a module of a new subclass of ``base``, which stores the graph and the path."""
        attributes |= {"_graph": self.graph, "_path": path, "__module__": __name__}
        return type(base.__name__, (base,), attributes)()

    def filled(self, leaves: Mapping[str, Tensor], training: bool | None = None) -> ArchModule:
        """Return a copy of the module with tensors.

        Args:
            leaves: Dict from leaf to tensor.
            training: The mode of all submodules. Default: the modes in the graph.
        """
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
            # Write into the tables, because setting an attribute searches all tables each time.
            elif isinstance(tensor, nn.Parameter):
                module._parameters[name] = tensor
            else:
                module._buffers[name] = tensor
        return cast(ArchModule, copies[""])


def _forwards(plan: ModulePlan) -> tuple[Blocks, Forward]:
    """Return the blocks of a plan, and the forward of the network that calls them."""
    # A KeyError means that an operator uses the result of a block that runs later.
    blocks = Blocks(plan)
    try:
        return blocks, forward(plan, "", plan.work, blocks)
    except KeyError:
        blocks = Blocks(plan, flat=True)
        return blocks, forward(plan, "", plan.work, blocks)


_GAPS = 1000  # maximum number of identities to fill gaps in one list


def _template(graph: ArchGraph) -> Template:
    return graph._memo("archgraph.build", Template)


_TABLES = frozenset((dict, OrderedDict, set, list))  # types of attributes that a copy must copy


def _copied(module: nn.Module, tables: Iterable[str]) -> nn.Module:
    """Return a shallow copy of a module whose dicts, sets and lists are copied as well."""
    # Not copy.copy(), which would call :meth:`ArchBlock.__reduce__`.
    copy = module.__new__(type(module))
    values = copy.__dict__
    values.update(vars(module))
    for name in tables:
        values[name] = values[name].copy()
    return copy


def _split(name: str) -> tuple[str, str]:
    """Return the path of the parent of a module or leaf, and its name in the parent."""
    path, _, last = name.rpartition(".")
    return path, last


def _names(graph: ArchGraph) -> Iterable[tuple[str, Param]]:
    """Return all names of leaves, each with its leaf; further names of tied leaves come last."""
    names = [
        *((param.name, param) for param in graph.params),
        *((name, param) for param in graph.params for name in param.aliases),
    ]
    known = {name for name, _ in names}
    for name, _ in names:
        if not all(part and part.isprintable() for part in name.split(".")):
            raise GraphError("a leaf's name is not a path of attributes", found=name)
        if not known.isdisjoint(ancestors(name)):
            raise GraphError("the parent of a leaf is another leaf, not a module", found=name)
    return names


def _tree(
    plan: ModulePlan, owners: Iterable[str], workers: Collection[str]
) -> dict[str, list[str]]:
    """Return a dict from each module to the names of its children, in the order of the model.

    1. Add modules with leaves (``owners``), in the order of their leaves.
    2. Insert layers and blocks without leaves after the module whose operators run before them.
    """
    tree: dict[str, list[str]] = {"": []}

    def add(path: str, after: str | None) -> None:
        """Add a path after the sibling ``after``.

        If ``after`` is None, the path is added at the end. If there is no such sibling, the path is
        added at the start.
        """
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
    last: dict[str, str] = {}  # dict from path to the child whose operators came last
    for node in plan.work:  # 2
        for path in (*ancestors(node.scope)[1:], node.scope):
            if path and (path in workers or path in tree):
                outer, name = _split(path)
                add(path, last.get(outer, ""))
                last[outer] = name
    return tree


# -- states -------------------------------------------------------------------------------------


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a built module: a dict from name to detached tensor.

    A tied tensor has one name in the state. The tensors share memory with the module, except
    parametrised tensors (``torch.nn.utils.parametrizations``), which are computed by this call. The
    built module may be wrapped in another module, such as ``DataParallel``, the result of
    ``torch.compile``, or a model of your own.

    Raises:
        GraphError: If the module was not built from a graph; if its tensors no longer match the
            graph, for example after pruning or with additional parameters; if a tied weight was
            untied and now has several values. The message names the first tensor that does not
            match.

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
    """Raise if two names of a tied weight have different values: one value would be lost."""
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
    """Return the built module that a module is or contains; raise if there is not exactly one."""
    parts = [part for part in module.modules() if isinstance(part, ArchModule)]
    if len(parts) != 1:
        raise GraphError(
            "not a module built by archgraph",
            found=f"{type(module).__name__} with {len(parts)} built modules inside",
            hint="pass one of the built modules"
            if parts
            else "ag.trace returns the state of an ordinary model",
        )
    return parts[0]


def _tensor(module: nn.Module, name: str, full: State) -> Tensor:
    """Return the detached tensor of a built module with a name in the graph."""
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
    """Convert a state to a ``state_dict`` of the model from which the graph was traced.

    A state and a ``state_dict`` differ only in tied tensors (tensors with several names). A state
    contains a tied tensor under one name, but the model's ``load_state_dict`` requires the tensor
    under all of its names.

    Raises:
        GraphError: If the state lacks a tensor; if a tensor has another shape than in the graph; if
            the state contains a tied tensor under several names with different values.

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
    """Copy a state (dict from name to tensor) into a module built from a graph, in place.

    Raises:
        GraphError: If a tensor is missing or has another shape than in the module; if the state
            contains a tied tensor under several names with different values. In these cases,
            nothing is copied.
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
    """Raise if a state has a missing tensor, a wrong shape, or tied tensors that differ."""
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
    # Tensors that share memory need no comparison.
    same = (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride())
    return same or (
        one.shape == other.shape
        and torch.allclose(widened(one), widened(other.to(one)), rtol=0, atol=0, equal_nan=True)
    )
