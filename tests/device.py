"""Two devices for machines that have none: ``other``, which compute on the processor.

Its tensors are not the processor's: an operation that mixes the two is refused, as on a GPU, and
so is reading their memory. What they hold is a tensor of the processor, so results have the same
bits. Once a process has used it, one that is forked from that one cannot (as with CUDA), and
PyTorch computes gradients in threads, as wherever there is a device: to be registered in processes
that do nothing else.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from archgraph.states import copies, updates

NAME = "other"
# What takes tensors of both kinds: copies from one to the other, and numbers.
_BOTH = ("aten::copy_", "aten::_to_copy", "aten::_copy_from")
_FACTORIES = ("empty.memory_format", "empty_strided")
# What asks a GPU for values, beside copies to the processor: numbers, and shapes that follow from
# values.
_ASKING = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "bincount"),
        *("_unique2", "unique_consecutive", "unique_dim", "repeat_interleave"),
    )
)
WAITS: Counter[str] = Counter()
"""How often a GPU would have been waited for, by operation."""


class OtherTensor(Tensor):
    """A tensor on the second device."""

    plain: Tensor

    @staticmethod
    def __new__(cls, plain: Tensor, number: int = 0) -> OtherTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            plain.size(),
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device=torch.device(NAME, number),
        )
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # it is annotated as a disabled one
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the device that it names or that its tensors are on."""
    _use()
    name = func._schema.name
    found: list[Tensor] = []
    own: dict[int, Tensor] = {}  # by what they hold

    def bare(value: Any) -> Any:
        if isinstance(value, OtherTensor):
            own[id(value.plain)] = value
            return value.plain
        if isinstance(value, Tensor):
            found.append(value)
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        return value

    plain_args, plain_kwargs = tree_map(bare, args), tree_map(bare, kwargs)
    mixed = [t for t in found if t.dim() or name.endswith("_")]
    numbers = {t.device.index for t in own.values()}
    if name not in _BOTH and own and (mixed or len(numbers) > 1):
        raise RuntimeError(f"{name}: all tensors have to be on the same device; {numbers}, cpu")
    to = kwargs.get("device")
    number = min(numbers, default=0) if to is None else torch.device(to).index or 0
    masks = name == "aten::index" and any(
        x.dtype is torch.bool for x in plain_args[1] if x is not None
    )
    if own and (name in _ASKING or masks):
        WAITS[name] += 1
    if name == "aten::_local_scalar_dense":
        return func(*plain_args)
    if name == "aten::copy_" and isinstance(args[0], OtherTensor) and found:
        WAITS["from the processor"] += not kwargs.get("non_blocking", any(args[2:]))
    result = func(*plain_args, **plain_kwargs)
    if to is not None and torch.device(to).type == "cpu":
        WAITS["to the processor"] += 1
        return result.clone() if id(result) in own else result
    if name == "aten::copy_" and not isinstance(args[0], OtherTensor):
        WAITS["to the processor"] += 1
        return args[0]

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return own[id(value)] if id(value) in own else OtherTensor(value, number)

    return tree_map(wrapped, result)


class _Module:
    """What PyTorch asks a device about."""

    user: int | None = None  # the process that first used it

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return _Module.user is not None

    @staticmethod
    def device_count() -> int:
        return 2

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return _Module.user not in (None, os.getpid())

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Its random numbers are the processor's."""

    @staticmethod
    def get_rng_state(device: object = None) -> Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: object = None) -> None:
        """The processor's generator is restored by whoever restores the processor's."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


def _use() -> None:
    """Note who uses the device.

    Raises:
        RuntimeError: If it was used before this process was forked.
    """
    if _Module._is_in_bad_fork():
        raise RuntimeError(f"{NAME} cannot be used again in a forked process")
    _Module.user = os.getpid()


def _made(factory: Any, *args: Any, **kwargs: Any) -> Tensor:
    _use()
    number = torch.device(kwargs["device"]).index or 0
    return OtherTensor(factory(*args, **{**kwargs, "device": "cpu"}), number)


def _filled(values: Tensor, place: OtherTensor, non_blocking: bool = False) -> Tensor:
    _use()
    WAITS["from the processor"] += not non_blocking
    place.plain.copy_(values)
    return place


@functools.cache
def register() -> Callable[[], None]:
    """Let PyTorch know of the device, once in a process.

    Returns:
        What forgets that it was used, for a test that begins anew.
    """
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module)
    library = torch.library.Library("aten", "IMPL")
    for name in _FACTORIES:
        packet, overload = name.split(".") if "." in name else (name, "default")
        factory = getattr(getattr(torch.ops.aten, packet), overload)
        library.impl(name, functools.partial(_made, factory), "PrivateUse1")
    library.impl("_copy_from", _filled, "PrivateUse1")
    copies.ASYNCHRONOUS.add(NAME)
    updates._ORDINARY = (*updates._ORDINARY, OtherTensor)  # as those of a GPU are

    def forget() -> None:
        _Module.user = None

    forget.library = library  # type: ignore[attr-defined]  # alive as long as the process
    return forget
