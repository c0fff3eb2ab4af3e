"""Parameters and buffers that forward reads from a dict, a list or a closure, not from a module.

An export replaces only the parameters and buffers that are attributes of modules. A parameter or
buffer that forward reads in another way would become a constant of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._pytree import PyTree


def reads_elsewhere(model: nn.Module, program: torch.export.ExportedProgram) -> bool:
    """Return whether a constant of a program may be a parameter or buffer of the model."""
    leaves = {t.untyped_storage().data_ptr() for _, _, t in _leaves(model) if not t.is_meta}
    buffers = {*program.graph_signature.buffers}  # constants outside of the state, and leaves
    constants = (t for k, t in program.constants.items() if torch.is_tensor(t) and k not in buffers)
    return any(not t.is_meta and t.untyped_storage().data_ptr() in leaves for t in constants)


class Following(TorchFunctionMode):
    """A mode that replaces parameters and buffers in arguments by the modules' current tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._tables = {id(leaf): (table, name, leaf) for table, name, leaf in _leaves(model)}

    def __torch_function__(
        self, func: Callable[..., object], types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        """Call a function with current parameters and buffers."""
        current = pytree.tree_map_only(Tensor, self._current, (args, kwargs or {}))
        return func(*current[0], **current[1])

    def _current(self, tensor: Tensor) -> Tensor:
        table, name, leaf = self._tables.get(id(tensor), ({}, "", None))
        # Compare identity as well, since the id of a deleted tensor may be reused.
        return table[name] if leaf is tensor else tensor


def _leaves(model: nn.Module) -> Iterator[tuple[Mapping[str, Tensor], str, Tensor]]:
    """Yield the dicts of parameters and buffers of modules, with their names and tensors."""
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            yield from ((table, name, leaf) for name, leaf in table.items() if leaf is not None)  # type: ignore[misc]  # entries of None are skipped
