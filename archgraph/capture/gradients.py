"""Whether two backward passes are the same one: then neither has to run.

A backward pass consists of PyTorch's own formulas. If two forward passes record the same ones, with
the same numbers and saved tensors, and lead to the same parameters, the gradients are equal for
every incoming gradient. That holds unless code of the user's takes part: a function with a backward
of its own, a hook, or a forward that looks at gradients.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import PyTree

Edge: TypeAlias = tuple[Node | None, int]  # of a graph: a node, and which of its results

# Each hands the incoming gradient on: views and copies, which a graph may spell otherwise.
_PASSING = frozenset(
    f"{name}Backward{number}"
    for name, number in (
        *(("Alias", 0), ("Clone", 0), ("Expand", 0), ("Permute", 0), ("ReshapeAlias", 0)),
        *(("Select", 0), ("Slice", 0), ("Squeeze", 0), ("Squeeze", 1), ("Squeeze", 2), ("T", 0)),
        *(("Transpose", 0), ("UnsafeView", 0), ("Unsqueeze", 0), ("View", 0)),
    )
)
_GRADIENT, _NODE = (vars(torch._C.TensorBase)[name] for name in ("grad", "grad_fn"))
_LOOKS = frozenset(
    (
        *(_GRADIENT.__get__, _GRADIENT.__set__, _GRADIENT.__delete__, _NODE.__get__),
        *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook),
    )
)
_LARGE = 1e3  # a gradient that hooks which clip would change


@dataclass
class Recorded:
    """What a forward pass leaves for its backward pass.

    Attributes:
        saved: Digests of the tensors that autograd saves, and how often.
        looks: Whether forward reads or sets gradients, or nodes of the graph of gradients.
        ends: Where the graph of each result begins.
    """

    saved: Counter[tuple[object, ...]] = field(default_factory=Counter)
    looks: bool = False
    ends: list[Edge] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what forward leaves; its backward pass cannot run then, as nothing is kept."""

        def missing(_: None) -> Tensor:
            raise RuntimeError("saved tensors were not kept")

        with saved_tensors_hooks(self._count, missing), _Looking(self):
            yield

    def _count(self, tensor: Tensor) -> None:
        self.saved[_digest(tensor)] += 1

    def finish(self, results: Iterable[Tensor]) -> None:
        """Note where the graph of gradients of each result begins; a bare parameter has none."""
        for result in results:
            self.looks |= result.requires_grad and result.grad_fn is None
            self.ends.append((result.grad_fn, result.output_nr))


class _Looking(TorchFunctionMode):
    """Notes whether gradients are looked at."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.recorded = recorded

    def __torch_function__(
        self, func: object, types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        self.recorded.looks |= func in _LOOKS
        return func(*args, **(kwargs or {}))  # type: ignore[operator]  # a function of torch's


def _digest(tensor: Tensor) -> tuple[object, ...]:
    """Return what tells saved tensors apart: their form, and the bits of what was computed."""
    source = tensor._base if tensor._is_view() else tensor
    form = tensor.dtype, tuple(tensor.shape)
    if (
        (source is not None and source.is_leaf and source.requires_grad)
        or tensor.is_sparse
        or not tensor.numel()
    ):
        return form  # values of parameters are the state's, and their names are compared
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:  # of numbers in eight bits few can be reduced
        tensor = tensor.view(torch.uint8)
    return *form, int(torch.hash_tensor(tensor).view(torch.int64))


def adds_plainly(parameter: Tensor) -> bool:
    """Return whether a gradient that comes to a parameter stays as it is: no hook changes it."""
    before, parameter.grad = parameter.grad, None
    try:
        large = parameter.new_full((), _LARGE)
        torch.autograd.backward([parameter.view_as(parameter)], [large.expand_as(parameter)])
        arrived = parameter.grad
        return arrived is not None and bool((arrived == large).all())
    except Exception:  # whatever a hook raises
        return False
    finally:
        parameter.grad = before


def same_backward(
    ours: Recorded,
    theirs: Recorded,
    our_names: Mapping[Tensor, str],
    their_names: Mapping[Tensor, str],
) -> bool:
    """Return whether two forward passes have one backward pass.

    1. Neither looks at gradients, and both save the same tensors.
    2. From the results on, both graphs are walked together, past views and copies. Nodes
       correspond one to one: formulas of one name, with the same numbers, and as many arguments.
    3. Each way ends at parameters of one name, or at nothing.

    Args:
        ours: What the first forward pass left.
        theirs: What the second one left.
        our_names: Parameters of the first module, by tensor.
        their_names: Parameters of the second.
    """
    if (
        ours.looks
        or theirs.looks
        or ours.saved != theirs.saved
        or len(ours.ends) != len(theirs.ends)
    ):  # 1
        return False
    partner: dict[Node, Node] = {}
    waiting = list(zip(ours.ends, theirs.ends, strict=True))
    while waiting:  # 2
        (one, result), (other, same) = (_past_views(edge) for edge in waiting.pop())
        if one is None and other is None:
            continue
        if one is None or other is None or result != same:
            return False
        if one not in partner:
            if not _alike(one, other, our_names, their_names):
                return False
            partner[one] = other
            waiting += zip(one.next_functions, other.next_functions, strict=True)
        elif partner[one] is not other:
            return False
    return len({*partner.values()}) == len(partner)


def _past_views(edge: Edge) -> Edge:
    """Return the edge behind views and copies."""
    while edge[0] is not None and edge[0].name() in _PASSING:
        (edge,) = edge[0].next_functions
    return edge


def _alike(
    one: Node, other: Node, our_names: Mapping[Tensor, str], their_names: Mapping[Tensor, str]
) -> bool:
    """Return whether two nodes compute the same, saved tensors aside."""
    if isinstance(one, BackwardCFunction) or one.name() != other.name():
        return False
    if len(one.next_functions) != len(other.next_functions):
        return False
    if hasattr(one, "variable"):  # 3
        name = our_names.get(one.variable)
        return name is not None and name == their_names.get(other.variable)  # type: ignore[attr-defined]  # of one kind
    return _numbers(one) == _numbers(other)


def _numbers(node: Node) -> dict[str, object]:
    """Return what a formula has beside tensors; how these lie in memory changes no value."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    raw = {name.removeprefix("_raw") for name in dir(node) if name.startswith("_raw_saved_")}
    return {n: getattr(node, n) for n in names if n not in raw and not n.endswith("strides")}
