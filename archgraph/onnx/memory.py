"""How much memory a module would take: it runs without data, and every result is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from archgraph.errors import SpecError
from archgraph.limits import LIMITS


def check_memory(
    module: torch.nn.Module, inputs: Mapping[str, object], where: Callable[[], str]
) -> None:
    """Refuse a module that holds too much at once, inside an operator or between two.

    Args:
        module: The module, in eval mode; one that cannot run without data is let through.
        inputs: What it is called with.
        where: Where it is now, for errors.

    Raises:
        SpecError: If it does.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        # What the module has is there already; a view of it (a weight transposed) takes nothing.
        leaves = [mode.from_tensor(tensor) for tensor in (*module.parameters(), *module.buffers())]
        counted = _Counted([tensor.untyped_storage() for tensor in leaves])
        fake = {
            k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()
        }
        try:
            with torch.no_grad(), _Attention(), counted:
                module(**fake)
        except _TooLarge as error:
            size, most, unit = error.args
            raise SpecError(
                "has results that are too large for a comparison of two examples",
                where=where(),
                found=f"{size:,} {unit}",
                expected=f"at most {most:,}",
            ) from None
        except (IndexError, RuntimeError, SpecError, TypeError, ValueError):
            return  # the run on numbers says what is wrong


_FUSED = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


class _TooLarge(Exception):
    """Ends a run without data; no error that a module could raise."""


class _Counted(TorchDispatchMode):
    """Counts the elements of results as they are made, and of those that are still there."""

    def __init__(self, present: Sequence[torch.UntypedStorage]) -> None:
        super().__init__()
        self.live: dict[StorageWeakRef, int] = {StorageWeakRef(storage): 0 for storage in present}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        results = func(*args, **(kwargs or {}))
        for result in pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self.count(result)
        return results

    def count(self, result: torch.Tensor) -> None:
        """Count memory that is new; a view keeps what it is of."""
        storage = result.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference in self.live:
            return
        elements = int(storage.nbytes()) // result.element_size()
        self.live = {one: size for one, size in self.live.items() if not one.expired()}
        self.live[reference] = elements
        if elements > LIMITS.onnx_result_elements:
            raise _TooLarge(elements, LIMITS.onnx_result_elements, "elements")
        if (total := sum(self.live.values())) > LIMITS.onnx_live_elements:
            raise _TooLarge(total, LIMITS.onnx_live_elements, "elements at once")


class _Attention(TorchFunctionMode):
    """Attention holds no scores where the CPU's fused kernel takes it."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[torch.Tensor] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in _FUSED:
            q, k, v = args[:3]
            if q.dim() == k.dim() == v.dim() == 4 and q.shape[-1] == v.shape[-1]:
                return torch.zeros_like(q)
        return func(*args, **(kwargs or {}))
