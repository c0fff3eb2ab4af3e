"""Leaves that forward reads from elsewhere than the module: a dict, a list, a closure.

An export replaces the leaves in the tables of modules alone; what forward reads from anywhere else
would be a constant of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


def reads_elsewhere(model: torch.nn.Module, program: torch.export.ExportedProgram) -> bool:
    """Return whether a constant of a program may be a leaf of the model."""
    leaves = {t.untyped_storage().data_ptr() for _, _, t in _leaves(model) if not t.is_meta}
    buffers = {*program.graph_signature.buffers}  # outside of the state: constants, and leaves
    constants = (t for k, t in program.constants.items() if torch.is_tensor(t) and k not in buffers)
    return any(not t.is_meta and t.untyped_storage().data_ptr() in leaves for t in constants)


class Following(TorchFunctionMode):
    """Give every function the leaf that a module holds now, in place of the one that it held."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._tables = {id(leaf): (table, name, leaf) for table, name, leaf in _leaves(model)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with current leaves."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._current, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _current(self, tensor: torch.Tensor) -> torch.Tensor:
        table, name, leaf = self._tables.get(id(tensor), (None, "", None))
        return table[name] if table is not None and leaf is tensor else tensor


def _leaves(model: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Yield the tables of modules, with the names and tensors in them."""
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            yield from ((table, name, leaf) for name, leaf in table.items() if leaf is not None)
