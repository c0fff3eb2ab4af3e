"""Leaves of a model: its state-dict keys, and which of them are one tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from archgraph.capture.tape import dtype_name
from archgraph.graph.ir import Param, TensorType


@dataclass(frozen=True)
class Leaves:
    """State-dict keys of a model and who owns which tensor."""

    owner: Mapping[str, str]
    params: tuple[Param, ...]

    @staticmethod
    def of(model: torch.nn.Module) -> Leaves:
        """The leaves of a model."""
        tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        roles = dict.fromkeys(tensors, "parameter")
        buffers = dict(model.named_buffers(remove_duplicate=False))
        keys = [k for k in model.state_dict(keep_vars=True) if k in tensors or k in buffers]
        tensors |= buffers
        first: dict[int, str] = {}
        owner: dict[str, str] = {}
        for key in keys:
            owner[key] = first.setdefault(id(tensors[key]), key)
        params = []
        for key in keys:
            if owner[key] != key:
                continue
            tensor = tensors[key]
            params.append(
                Param(
                    key,
                    TensorType(tuple(map(int, tensor.shape)), dtype_name(tensor.dtype)),
                    "parameter" if roles.get(key) else "buffer",
                    bool(tensor.requires_grad) if roles.get(key) else False,
                    tuple(k for k in keys if owner[k] == key and k != key),
                )
            )
        return Leaves(owner, tuple(params))

    @functools.cached_property
    def parameters(self) -> frozenset[str]:
        """Names of those that are parameters."""
        return frozenset(p.name for p in self.params if p.role == "parameter")

    def state(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Copies of the model's tensors, by owner."""
        full = model.state_dict()
        return {p.name: full[p.name].detach().clone() for p in self.params}
