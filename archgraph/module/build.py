"""Build: an :class:`ArchGraph` becomes an ``nn.Module`` again.

What is built consists of layers of ``torch.nn`` at the paths of the model, of blocks for the paths
whose work stands together, and of containers otherwise. A graph keeps a template of its module,
with the classes and the generated code; to build is to copy the template and to give it tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from archgraph.errors import GraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Param, Ref
from archgraph.module.code import Blocks, are_numbers, forward, is_sorted
from archgraph.module.initial import initial_state
from archgraph.module.inputs import InputTypes, checked
from archgraph.module.plan import ModulePlan, ancestors, is_under
from archgraph.ops.constants import tensor_of
from archgraph.ops.schema import torch_dtype
from archgraph.ops.stacks import single_layers
from archgraph.states import State


class ArchBlock(nn.Module):
    """A part of a built module: what the graph computes inside of one module path.

    Its arguments are what it reads from outside, in order of first use; its result is what is read
    of it, a tuple if that is several tensors. Its class is made for one graph.
    """

    _graph: ClassVar[ArchGraph]
    _path: ClassVar[str] = ""

    def extra_repr(self) -> str:
        """A recurrent layer whose layers or directions a cut left with unequal sizes."""
        return single_layers(self._graph, [n for n in self._graph.nodes if n.scope == self._path])

    def __reduce__(self) -> tuple[Any, ...]:
        """By graph and path, since its class has no name; with everything that the user changed."""
        return _blank, (self._graph, self._path), self.__getstate__()


class ArchModule(ArchBlock):
    """A module built from a graph.

    Attributes:
        arch: The graph. State-dict keys, layers, training flags and outputs are those of the model
            that it was traced from.
    """

    arch: ClassVar[ArchGraph]
    _inputs: ClassVar[InputTypes]

    def extra_repr(self) -> str:
        """One line: name, operators."""
        return f"{self.arch.name}: {len(self.arch.nodes)} operators"


class ArchSequential(ArchModule, nn.Sequential):
    """A module built from a chain of modules, such as a traced ``nn.Sequential``."""

    def forward(self, input: torch.Tensor) -> Any:  # the name that nn.Sequential gives it
        """Call the modules one after the other."""
        self._inputs.check(self, (input,), {})
        return nn.Sequential.forward(self, input)

    def __getitem__(self, index: Any) -> Any:
        """Return one module, or a plain ``nn.Sequential`` of some."""
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


def _blank(graph: ArchGraph, path: str) -> nn.Module:
    """A module of the class that a path of a graph has, without anything in it."""
    kind = type(_template(graph).parts[path])
    return kind.__new__(kind)


@takes_graph
def build(graph: ArchGraph, state: State | None = None, *, seed: int = 0) -> ArchModule:
    """Build the module that computes a graph.

    It consists of layers of ``torch.nn`` under the paths of the model that was traced, so hooks,
    pruning, parametrisations, adapters and replaced layers work as they do on that model. Its
    ``training`` flags are those that the model had when it was traced; what is built from a
    description is in training mode, as any new module.

    Args:
        graph: The architecture.
        state: Tensors by leaf name (copied, each where it is); without it leaves start as their
            operators' defaults.
        seed: Seed of the initialisation.

    Raises:
        GraphError: If the state lacks a leaf or has one of another shape, or has different values
            for tied ones.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> graph, state = trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.zeros(1, 3))
        >>> build(graph, state)
        ArchSequential(
          Sequential: 2 operators
          (0): Linear(in_features=3, out_features=2, bias=True)
        )
    """
    values = dict(state) if state is not None else initial_state(graph, seed)
    _check_tied(graph, values)
    template = _template(graph)
    devices = {v.device for v in values.values()}
    device = next(iter(devices)) if len(devices) == 1 else torch.device("cpu")
    leaves: dict[str, torch.Tensor] = {}
    for param in graph.params:
        if param.role == "constant":
            assert param.value is not None
            leaves[param.name] = tensor_of(param.value).to(device)
            continue
        value = values.get(param.name)
        if value is None:
            raise GraphError("state lacks a tensor", where=param.name, expected=str(param.type))
        if tuple(value.shape) != param.shape:
            raise GraphError(
                "state has another shape",
                where=param.name,
                found=tuple(value.shape),
                expected=param.shape,
            )
        leaf = value.detach().to(torch_dtype(param.dtype), copy=True)
        if param.role == "parameter":
            leaf = nn.Parameter(leaf, requires_grad=param.trainable)
        leaves[param.name] = leaf
    return template.filled(leaves)


# -- templates ----------------------------------------------------------------------------------


class Template:
    """A built module without tensors, and where its leaves go.

    Attributes:
        parts: Its modules by path, the root included.
        places: Module path, own name and leaf of each state-dict key and constant.
    """

    def __init__(self, graph: ArchGraph) -> None:
        plan = ModulePlan.of(graph)
        self.blocks = Blocks(plan)
        self.graph = graph
        self.parts: dict[str, nn.Module] = {}
        self.places: list[tuple[str, str, str]] = []
        for name, param in _names(graph):
            path, _, last = name.rpartition(".")
            self.places.append((path, last, param.name))
        try:
            root = forward(plan, "", plan.work, self.blocks)
        except KeyError:  # work of a path that cannot stand together: its results come too late
            self.blocks = Blocks(plan, flat=True)
            root = forward(plan, "", plan.work, self.blocks)
        tree = _tree(plan, [path for path, _, _ in self.places], self.blocks.made)
        kind, run = ArchModule, {"forward": checked(root.run)}
        owns = any(not path for path, _, _ in self.places)
        if not owns and self._is_sequential(tuple(tree[""])):
            kind, run = ArchSequential, {}
        own = {"arch": graph, "_inputs": InputTypes.of(graph)}
        self.parts[""] = self._class(kind, "", **own, **run)()
        for path, children in tree.items():
            for name in children:
                inside = f"{path}.{name}" if path else name
                self.parts[inside] = self._part(inside, tuple(tree.get(inside, ())))
        self._fill_gaps(tree)
        others = self._unite(graph.shared)
        for path, part in self.parts.items():
            if path:
                outer, _, name = path.rpartition(".")
                self.parts[outer]._modules[name] = part
        for path, children in tree.items():
            part = self.parts[path]
            if isinstance(part, nn.Sequential | nn.ModuleList) and are_numbers(children):
                part._modules = dict(sorted(part._modules.items(), key=lambda item: int(item[0])))
        for path, last, leaf in self.places:
            if path not in others:
                self._register(path, last, graph.param[leaf])
        for outer, flag in graph.flags:
            for path, part in self.parts.items():
                if is_under(path, outer):
                    part.training = flag
        for path, layer in plan.layers.items():
            if layer.counter and f"{path}.{layer.counter}" not in graph.param:
                self.parts[path]._buffers[layer.counter] = None

    def _fill_gaps(self, tree: Mapping[str, list[str]]) -> None:
        """Let modules of lists stand at their numbers: what computes nothing is an identity."""
        for path, children in tree.items():
            listed = isinstance(self.parts[path], nn.Sequential | nn.ModuleList)
            if not listed or not are_numbers(children):
                continue
            last = max(map(int, children))
            for number in map(str, range(min(last, _GAPS + len(children)))):
                inside = f"{path}.{number}" if path else number
                self.parts.setdefault(inside, nn.Identity())

    def _unite(self, shared: Iterable[tuple[str, ...]]) -> set[str]:
        """Let all names of one module stand for one part; gives the further names."""
        others = set()
        for first, *further in shared:
            for path in further:
                if self._are_alike(first, path):
                    self.parts[path] = self.parts[first]
                    others.add(path)
        return others

    def _are_alike(self, one: str, other: str) -> bool:
        """Whether two paths have the same layer, or blocks with the same code."""
        layers, blocks = self.blocks.plan.layers, self.blocks.made
        if one in layers and other in layers:
            return layers[one] == layers[other]
        mine, theirs = blocks.get(one), blocks.get(other)
        return mine is not None and theirs is not None and mine.sources == theirs.sources

    def _is_sequential(self, children: tuple[str, ...]) -> bool:
        """Whether the network calls its modules one after the other, and does nothing else."""
        (key, value), *others = self.graph.inputs or (("", None),)
        single = key == "input" and isinstance(value, Ref) and not others
        single = single and isinstance(self.graph.outputs, Ref) and is_sorted(children)
        return single and self.blocks.chain("") == children

    def _class(self, base: type[ArchBlock], path: str, **own: Any) -> type[ArchBlock]:
        """The class of a block, which knows where it belongs."""
        place = {"_graph": self.graph, "_path": path, "__module__": __name__}
        return type(base.__name__, (base,), place | own)

    def _part(self, path: str, children: tuple[str, ...]) -> nn.Module:
        """The module at a path: a layer, a chain or list of modules, a block, or a container."""
        layer = self.blocks.plan.layers.get(path)
        if layer is not None:
            return layer.made()
        owns = any(outer == path for outer, _, _ in self.places)
        block = self.blocks.made.get(path)
        if block is None:
            return nn.ModuleList() if are_numbers(children) and not owns else nn.Module()
        if not owns and self.blocks.chain(path) == children and is_sorted(children):
            return nn.Sequential()
        return self._class(ArchBlock, path, forward=block.run)()

    def _register(self, path: str, name: str, param: Param) -> None:
        """Reserve a leaf's place; in the tables, which take every name that a module has.

        (``self.type = Linear(…)`` is a legal module name; ``add_module("type", …)`` refuses it.)
        """
        module = self.parts[path]
        if path in self.blocks.plan.layers:
            return  # a layer has its places
        if name in module._modules or name in module._parameters or name in module._buffers:
            raise GraphError("two leaves have one place", found=f"{path}.{name}" if path else name)
        if param.role == "parameter":
            module._parameters[name] = None
        else:
            module._buffers[name] = None
            if param.role == "constant":
                module._non_persistent_buffers_set.add(name)

    def filled(self, leaves: Mapping[str, torch.Tensor]) -> ArchModule:
        """A copy with tensors."""
        copies: dict[str, nn.Module] = {}
        made: dict[nn.Module, nn.Module] = {}
        for path, part in self.parts.items():
            copies[path] = copy = made.get(part) or made.setdefault(part, _copied(part))
            if path:
                outer, _, name = path.rpartition(".")
                copies[outer]._modules[name] = copy
        for path, name, leaf in self.places:
            module, tensor = copies[path], leaves[leaf]
            if type(module).__setattr__ is not nn.Module.__setattr__:  # a list of weights beside
                setattr(module, name, tensor)
                continue
            table = module._parameters if isinstance(tensor, nn.Parameter) else module._buffers
            cast(dict[str, Any], table)[name] = tensor
        return cast(ArchModule, copies[""])


_GAPS = 1000  # modules that compute nothing, in one list


def _template(graph: ArchGraph) -> Template:
    return cast(Template, graph._memo("archgraph.build", Template))


_TABLES = frozenset((dict, OrderedDict, set, list))  # of a module and of a recurrent layer


def _copied(module: nn.Module) -> nn.Module:
    """A module with tables of its own; what is in them is the same."""
    copy = module.__new__(type(module))
    own = copy.__dict__
    for name, value in vars(module).items():
        kind = type(value)
        own[name] = value if kind not in _TABLES else value.copy() if value else kind()
    return copy


def _names(graph: ArchGraph) -> Iterable[tuple[str, Param]]:
    """All names of leaves, those of tied ones last, where they stand in the original's state."""
    names = [(param.name, param) for param in graph.params]
    names += [(name, param) for param in graph.params for name in param.aliases]
    for name, _ in names:
        if not all(part and part.isprintable() for part in name.split(".")):
            raise GraphError("a leaf's name is not a path of attributes", found=name)
    taken = {name for name, _ in names}
    for name, _ in names:
        if not taken.isdisjoint(ancestors(name)):
            raise GraphError("a leaf's name runs through another leaf", found=name)
    return names


def _tree(plan: ModulePlan, owners: Iterable[str], blocks: Iterable[str]) -> dict[str, list[str]]:
    """The modules inside of each module, outer ones first, in the order of the model.

    1. Modules with leaves stand as their leaves do.
    2. The others stand behind the one that works before them.
    """
    tree: dict[str, list[str]] = {"": []}

    def add(path: str, after: str | None) -> None:
        outer, _, name = path.rpartition(".")
        if path and path not in tree:
            add(outer, None)
            known = tree[outer]
            at = len(known) if after is None else known.index(after) + 1 if after in known else 0
            known.insert(at, name)
            tree[path] = []

    for path in owners:  # 1
        for outer in (*ancestors(path), path):
            add(outer, None)
    last: dict[str, str] = {}  # the module inside of each path that worked last
    made = {*plan.layers, *blocks}
    for node in plan.work:  # 2
        for path in (*ancestors(node.scope)[1:], node.scope):
            if not path or (path not in made and path not in tree):
                continue
            outer, _, name = path.rpartition(".")
            add(path, last.get(outer, ""))
            last[outer] = name
    return tree


# -- states -------------------------------------------------------------------------------------


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a built module: owners only, detached, in graph order.

    A tensor that is parametrised (``torch.nn.utils.parametrizations``) is what the module computes
    with; all others are views of the module's own. Around the built module there may be others
    (``torch.compile``, ``DataParallel``, ``AveragedModel``, a model of your own that has it as a
    part).

    Raises:
        GraphError: If the module was not built from a graph, or its tensors are no longer those of
            the graph (pruned, with adapters, with further parameters); names the first.
    """
    module = _built(module)
    graph = module.arch
    full = module.state_dict(keep_vars=True)
    state = {name: _tensor(module, name, full) for name in graph.state_names}
    known = {name for param in graph.params for name in (param.name, *param.aliases)}
    extra = [k for k in full if k not in known and not _parametrises(module, k)]
    if extra:
        raise GraphError(
            "the module has a tensor that its graph does not have",
            where=extra[0],
            hint="merge it into the graph's tensors, or remove it, before reading the state",
        )
    return state


def _built(module: nn.Module) -> ArchModule:
    """The one built module that a module is or has inside."""
    found = [part for part in module.modules() if isinstance(part, ArchModule)]
    if len(found) != 1:
        raise GraphError(
            "not a module built by archgraph",
            found=f"{type(module).__name__} with {len(found)} built modules inside",
        )
    return found[0]


def _tensor(module: nn.Module, name: str, full: Mapping[str, Any]) -> torch.Tensor:
    """A tensor of a built module by the graph's name, detached."""
    if name in full:
        return cast(torch.Tensor, full[name].detach())
    path, _, last = name.rpartition(".")
    prefix = f"{path}." if path else ""
    owner = dict(module.named_modules(remove_duplicate=False)).get(path)
    if owner is not None and parametrize.is_parametrized(owner, last):
        with torch.no_grad():
            return cast(torch.Tensor, getattr(owner, last))
    raise GraphError(
        "the module no longer has this tensor of its graph",
        where=name,
        found=", ".join(k for k in full if k.startswith(prefix)) or "nothing at this path",
        hint="undo what replaced it (prune.remove, merge_and_unload) first",
    )


def _parametrises(module: nn.Module, key: str) -> bool:
    """Whether an entry of a state dict is what a parametrised tensor is computed from."""
    return ".parametrizations." in f".{key}"


@takes_graph
def state_dict(graph: ArchGraph, state: State) -> dict[str, torch.Tensor]:
    """A state as the ``state_dict`` of the model that the graph was traced from.

    A state has each tensor once. A model with tied weights has them in its ``state_dict`` under
    each of their names, and ``load_state_dict`` asks for all of them.

    Raises:
        GraphError: If the state lacks a tensor or has one of another shape, or has different values
            for tied ones.

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
    params = [param for param in graph.params if param.role != "constant"]
    _fits(state, {param.name: param.shape for param in params})
    _check_tied(graph, state)
    return {name: state[param.name] for param in params for name in (param.name, *param.aliases)}


def load_state(module: nn.Module, state: State) -> None:
    """Copy a state into a built module, in place.

    Raises:
        GraphError: If a tensor is missing or has another shape, or tied ones differ; nothing is
            copied then.
    """
    module = _built(module)
    own = state_of(module)
    _fits(state, {name: tuple(tensor.shape) for name, tensor in own.items()})
    computed = own.keys() - module.state_dict(keep_vars=True).keys()
    if computed:
        raise GraphError(
            "is parametrised, and a state has no values for its parametrisation",
            where=min(computed),
            hint="torch.nn.utils.parametrize.remove_parametrizations makes it a parameter again",
        )
    _check_tied(module.arch, state)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


def _fits(state: State, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a state that lacks a tensor or has one of another shape."""
    for name, shape in shapes.items():
        found = tuple(state[name].shape) if name in state else "nothing"
        if found != shape:
            raise GraphError("state does not fit", where=name, found=found, expected=shape)


def _check_tied(graph: ArchGraph, state: State) -> None:
    """Refuse a state that has a tensor under several names, with different values."""
    for param in graph.params:
        for name in param.aliases:
            if name not in state or param.name not in state:
                continue
            one, other = state[param.name], state[name]
            if not _equal(one, other):
                raise GraphError(
                    "tied tensors have different values",
                    where=name,
                    found=f"other values than {param.name}",
                    expected="the same, since the graph has one tensor for both",
                    hint=f"leave {name} out, or trace the model with its weights untied",
                )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same values; NaN equals NaN."""
    if (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()):
        return True
    return one.shape == other.shape and bool(
        torch.isclose(one, other.to(one), rtol=0, atol=0, equal_nan=True).all()
    )
