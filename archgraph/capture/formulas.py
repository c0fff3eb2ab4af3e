"""Formulas: run a module, forward and backward, without computing numbers.

Every value that depends on a parameter is a tensor whose memory is never accessed. A formula
identifies its content: the operator, the formulas and memory layouts of its operands, and its
settings. Everything else in a call runs as usual: Python, autograd, hooks, random numbers. If the
results of two modules have equal formulas, the modules compute equal results. Comparing formulas
takes a thousandth of the time for computing numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch._C import TensorBase
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import PyTree

from archgraph.capture.surroundings import replaced

_aten = torch.ops.aten
Strides: TypeAlias = tuple[tuple[int, int], ...]  # sizes with strides
Places: TypeAlias = tuple[int, Strides, int]  # offset, dimensions and size of an item in bytes
# Methods that show the memory of a tensor to code that runs no operator.
_LOOKS = (
    *("numpy", "tolist", "__array__", "data_ptr", "storage", "untyped_storage", "__dlpack__"),
    # `torch.tensor([x])` calls these without passing through a mode.
    *("item", "__bool__", "__int__", "__float__", "__complex__", "__index__"),
)
# Another thread would run outside of the mode and compute with numbers.
_THREADS = ((threading.Thread, "start"), (ThreadPoolExecutor, "submit"))
_NUMBERS = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
_MEMORY = frozenset((_aten.set_, _aten.resize_, _aten.resize_as_, _aten._resize_output_))
# The result shares its operand's memory, although the schema does not declare it.
_VIEWS = frozenset({_aten._unsafe_view.default})
# Operators that use only the shape of their operand.
_FILLED = frozenset(
    getattr(_aten, name).default
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)
# Arguments that a batch norm writes to in training, although the schema does not declare it.
_STATISTICS = (3, 4)


def _attention(args: PyTree, kwargs: PyTree, mask: Tensor | None) -> tuple[PyTree, PyTree]:
    """Make the scale explicit, and replace a computed mask by its equivalent argument."""
    tensors = sum(isinstance(arg, Tensor) for arg in args)
    rate, causal = (*args[tensors:], 0.0, False)[:2]
    kwargs = {"scale": None, "attn_mask": None, **kwargs}
    if kwargs["scale"] is None:
        kwargs["scale"] = 1 / math.sqrt(args[1].shape[-1])
    if mask is not None and mask.dim() < 2 and not mask.any():
        kwargs["attn_mask"] = None
    elif mask is not None and torch.equal(mask, torch.full_like(mask, -math.inf).triu(1)):
        kwargs["attn_mask"], causal = None, True
    return (*args[:tensors], rate, causal), kwargs


def _slice(args: PyTree, kwargs: PyTree, _: Tensor | None) -> tuple[PyTree, PyTree]:
    """Make the start and the end of a slice explicit, counted from zero."""
    incoming, shape, dim, start, end, step = args
    bounds = slice(start, end).indices(shape[dim])[:2]
    return (incoming, shape, dim % len(shape), *bounds, step), kwargs


def _adds_nothing(computed: Callable[[object], bool], x: Tensor, other: object, *_: object) -> bool:
    """Return whether adding ``other`` (for example a mask) changes neither values nor shape."""
    if not isinstance(other, Tensor) or not computed(other):
        return False
    return x.shape == _broadcast([x, other]) and not other.any()


# Calls whose result has the values of the first operand.
_COPIES: Mapping[object, Callable[..., bool]] = {
    _aten.clone.default: lambda computed, x, *_: True,
    _aten.constant_pad_nd.default: lambda computed, x, sizes, *_: not any(sizes),
    _aten.slice_backward.default: lambda computed, x, shape, *_: x.shape == tuple(shape),
    _aten.add.Tensor: _adds_nothing,
    _aten.add_.Tensor: _adds_nothing,
}
# One form for calls that compute the same, given the mask if it was computed.
_SPELLINGS: Mapping[object, Callable[..., tuple[PyTree, PyTree]]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention,
    _aten.slice_backward.default: _slice,
}


class Unclear(Exception):
    """Raised if the result of a call depends on numbers, or on values without a formula."""


class Formulas(TorchDispatchMode):
    """A dispatch mode that runs operators on formulas instead of numbers.

    1. Views are created as usual. They share memory, from which their formula is found. Values that
       do not depend on a parameter are computed.
    2. The formula of a result consists of the operator, its settings and the values of its
       operands: the formulas that were written to their memory, and the parts of the memory that
       they read, in order (:meth:`value`). A computed tensor is identified by its bytes. If random
       numbers are drawn, the state of the generator is part of the formula. Equal formulas have the
       same number.
    3. The result gets memory of the right size, which is never read or written. A copy has the
       values of its operand.
    4. If an operator writes to all of a tensor's memory, the tensor gets the formula of the
       operator's result. Otherwise its formula consists of the previous content and the written
       part.

    Attributes:
        unclear: Description of the first value without a formula; empty if there is none. Forward
            may have caught the exception.
        drew: Whether random numbers would have been drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unclear = ""
        self.drew = False
        self._numbers: dict[Hashable, int] = {}  # number of each formula so far
        self._parts: dict[int, tuple[int, Places]] = {}  # formulas that are parts of another one
        self._metas: dict[Hashable, Sequence[PyTree]] = {}  # results without memory, by call
        self._counts: dict[int, int] = {}  # number of values of a formula
        self._memory: dict[int, tuple[int, Places]] = {}  # written formula and place, by address
        self._kept: list[torch.UntypedStorage] = []  # so that no address is reused
        self._made: list[torch.UntypedStorage] = []  # memory of results

    @contextlib.contextmanager
    def of(self, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Record the formulas of a call of a module; the formula of a parameter is its name.

        The call raises an error if its code reads the values of a tensor that has a formula.
        """
        for name, parameter in parameters.items():
            if _address(parameter) not in self._memory:
                self._hold(parameter, self._number(name))

        def guarded(look: Callable[..., PyTree]) -> Callable[..., PyTree]:
            def method(tensor: Tensor, *args: PyTree, **kwargs: PyTree) -> PyTree:
                if _address(tensor) in self._memory:
                    raise self._stop(f"code that calls Tensor.{look.__name__}")
                return look(tensor, *args, **kwargs)

            return method

        def threaded(*args: PyTree, **kwargs: PyTree) -> PyTree:
            raise self._stop("code that runs in another thread")

        looks: list[tuple[object, str, object]]
        looks = [(Tensor, name, guarded(getattr(Tensor, name))) for name in _LOOKS]
        looks += ((m, "to_dlpack", guarded(m.to_dlpack)) for m in (torch, torch.utils.dlpack))
        threads = ((owner, name, threaded) for owner, name in _THREADS)
        settings: PyTree = torch.utils.deterministic
        fills, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
        try:
            with replaced((*looks, *threads)), self:
                yield
        finally:
            settings.fill_uninitialized_memory = fills

    def kept_outside(self) -> bool:
        """Return whether the user's code still references a result, and fill such results with NaN.

        Release your own references to results before you call this method.
        """

        def alive() -> list[torch.UntypedStorage]:
            return [m for m in self._made if torch._C._storage_Use_Count(m._cdata) > 1]

        if alive():
            gc.collect()  # autograd and forward may reference each other
        leaked = alive()
        for memory in leaked:
            torch.empty(0, dtype=torch.uint8).set_(memory).fill_(255)
        return bool(leaked)

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        try:
            return self._called(func, args, kwargs or {})
        except Exception as error:  # forward may catch it
            self.unclear = self.unclear or str(error) or type(error).__name__
            raise

    def _called(self, func: torch._ops.OpOverload, args: PyTree, kwargs: PyTree) -> PyTree:
        tensors: list[Tensor] = []
        settings = _described((args, tuple(kwargs.items())), tensors)
        known = any(_address(tensor) in self._memory for tensor in tensors)
        if _reads_no_numbers(func) or not known:  # 1
            result = func(*args, **kwargs)
            if known and func not in _FILLED and not self._shares(result):
                raise self._stop(f"{func}, which copies in inference mode")
            return result
        self._check(func, tensors)
        copied = self._copies(func, args, kwargs)
        if copied and func._schema.is_mutable:
            return args[0]
        if func is _aten.copy_.default and _alike(*args[:2]):
            self._write(args[0], self._read(args[1]))
            return args[0]
        formula = self._operator(func, args, kwargs, settings, tensors)  # 2
        written = self._written(func, args, kwargs, formula)
        if written:
            return written[0] if len(written) == 1 else written
        call = func, settings, tuple(map(_layout, tensors))
        if call not in self._metas:
            self._metas[call] = self._without_memory(func, args, kwargs, tensors)
        results = self._results(self._metas[call], formula, tensors[0] if copied else None)  # 3
        return results[0] if _gives_one(func) else results

    def _copies(self, func: torch._ops.OpOverload, args: PyTree, kwargs: PyTree) -> bool:
        """Return whether a call returns the values of its first operand."""
        may = func in _COPIES and "alpha" not in kwargs
        return may and _COPIES[func](self._computed, *args)

    def _shares(self, results: PyTree) -> bool:
        """Return whether views share the memory of a value with a formula."""
        return all(not self._computed(result) for result in pytree.tree_leaves(results))

    def _results(
        self, metas: Sequence[PyTree], formula: int, copied: Tensor | None
    ) -> list[Tensor | None]:
        """Return results of a call that have a formula, or that are copies of an operand."""
        results: list[Tensor | None] = []
        for index, meta in enumerate(metas):
            result, values = None, self._number((formula, index))
            if meta is not None:
                result = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype)
                if copied is not None and copied.dtype == meta.dtype and _is_plain(copied):
                    values = self._read(copied)
                self._hold(result, values)
                self._made.append(self._kept[-1])
            results.append(result)
        return results

    def _operator(
        self,
        func: torch._ops.OpOverload,
        args: PyTree,
        kwargs: PyTree,
        settings: Hashable,
        tensors: list[Tensor],
    ) -> int:
        """Return the formula of a call, in place or not."""
        if func in _SPELLINGS:
            mask = kwargs.get("attn_mask")
            computed = _least(mask) if self._computed(mask) else None
            args, kwargs = _SPELLINGS[func](args, kwargs, computed)
            tensors = []
            settings = _described((args, tuple(kwargs.items())), tensors)
        more: Hashable = None
        if torch.Tag.pointwise in func.tags:  # operands are broadcast, so repeats do not matter
            more = tuple(_broadcast(tensors))
            tensors = [_least(t) if self._computed(t) else t for t in tensors]
        # Attention on a CPU has no dropout, despite its tags.
        if torch.Tag.nondeterministic_seeded in func.tags and func not in _SPELLINGS:
            self.drew = True
            more = self._drawn(), *map(_layout, tensors)  # draws follow the memory format
        name = func._schema.name.removesuffix("_"), func._schema.overload_name
        operands = tuple(map(self.value, tensors))
        return self._number((name, settings, more, operands))

    def _drawn(self) -> bytes:
        """Return the state of the generator and advance it, so that the next draw differs."""
        state = _hash(torch.get_rng_state())
        torch.default_generator.manual_seed(int.from_bytes(state[:7], "little"))
        return state

    def _computed(self, operand: object) -> bool:
        """Return whether an operand is a tensor with numbers."""
        return isinstance(operand, Tensor) and _address(operand) not in self._memory

    def value(self, tensor: Tensor) -> int:
        """Return a number for a tensor's content, which is equal for equal formulas."""
        kind = tensor.shape, tensor.dtype, tensor.is_conj(), tensor.is_neg()
        return self._number((self._read(tensor), *kind))

    def _read(self, tensor: Tensor) -> int:
        """Return a number for a tensor's values in order, which may be a part of its memory."""
        if _address(tensor) not in self._memory:
            return self._number(_bytes(tensor))
        written, places = self._memory[_address(tensor)]
        mine = _places(tensor)
        if mine == places:
            return written
        if places[:2] != (0, _merged([(math.prod(size for size, _ in places[1]), 1)])):
            written = self._number(("memory", written, places))
        if written in self._parts:
            around, outer = self._parts[written]
            composed = _composed(mine, outer)
            if composed is not None:
                written, mine = around, composed
        if written in self._counts and mine[:2] == (0, _merged([(self._counts[written], 1)])):
            return written
        number = self._number(("part", written, mine))
        self._parts[number] = written, mine
        return number

    def _number(self, formula: Hashable) -> int:
        return self._numbers.setdefault(formula, len(self._numbers))

    def _check(self, func: torch._ops.OpOverload, tensors: Sequence[Tensor]) -> None:
        """Raise if formulas cannot express a call."""
        # Only masks give an indexed tensor an open shape.
        indexed = func is _aten.index.Tensor and all(t.dtype != torch.bool for t in tensors[1:])
        if _needs_numbers(func) and not indexed:
            raise self._stop(f"{func}, which needs numbers")
        for tensor in tensors:
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.device.type != "cpu":
                raise self._stop(f"{func} of a {type(tensor).__name__} on {tensor.device}")

    def _stop(self, reason: str) -> Unclear:
        self.unclear = reason
        return Unclear(reason)

    def _written(
        self, func: torch._ops.OpOverload, args: PyTree, kwargs: PyTree, formula: int
    ) -> list[Tensor]:
        """Record an operator's writes; return the written tensors if the operator returns them."""
        for index in _STATISTICS if func is _aten.native_batch_norm.default and args[5] else ():
            if args[index] is not None:
                self._write(args[index], self._number((formula, "argument", index)))
        if not func._schema.is_mutable:
            return []
        places, returned = _writes(func)
        arguments = dict(enumerate(args)) | kwargs
        written = [arguments.get(index, arguments.get(name)) for index, name in places]
        if returned is None or not all(isinstance(tensor, Tensor) for tensor in written):
            raise self._stop(f"{func}, which writes to tensors other than its results")
        for i, tensor in enumerate(written):
            key = (formula, i) if returned else (formula, "argument", i)
            self._write(tensor, self._number(key))
        return written if returned else []

    def _write(self, tensor: Tensor, formula: int) -> None:
        """Record a write to a tensor."""
        if not TensorBase.untyped_storage(tensor).resizable():  # shared with NumPy
            raise self._stop("code that writes to memory of an array")
        if any(size > 1 and not stride for size, stride in _places(tensor)[1]):
            raise self._stop("code that writes to the same memory several times")
        self._hold(tensor, formula)

    def _hold(self, tensor: Tensor, formula: int) -> None:  # 4
        """Record the content of a tensor's memory from now on."""
        memory, places = TensorBase.untyped_storage(tensor), _places(tensor)
        self._kept.append(memory)
        if memory.nbytes() != tensor.nbytes or not _is_dense(tensor):
            everything = torch.empty(0, dtype=tensor.dtype).set_(memory)
            before = self._read(everything)
            formula = self._number(("written", before, places, formula))
            places = _places(everything)
        self._counts[formula] = memory.nbytes() // tensor.itemsize
        self._memory[memory._cdata] = formula, places

    def _without_memory(
        self, func: torch._ops.OpOverload, args: PyTree, kwargs: PyTree, tensors: Sequence[Tensor]
    ) -> Sequence[PyTree]:
        """Return the results of an operator as tensors without memory.

        PyTorch's functions for this take milliseconds. A pointwise operator is run only once, on
        single numbers. If the real result has another memory format, both modules have the same
        error.
        """
        if func in _SHAPES:
            return _SHAPES[func](*args, **kwargs)
        # Calls with options (a clone with a memory format) determine the layout of the result.
        if torch.Tag.pointwise in func.tags and not kwargs:
            single = pytree.tree_map_only(Tensor, lambda t: _meta(t, [1] * t.dim()), args)
            numbers: list[Tensor] = []
            key = func, _described(single, numbers), tuple(map(_layout, numbers))
            if key not in self._metas:
                self._metas[key] = [func(*single)]
            number = self._metas[key][0]
            shape = _broadcast(tensors)
            dense = (_meta(t) for t in tensors if t.shape == shape and _is_dense(t))
            pattern = next(dense, _meta(tensors[0], shape))
            return [torch.empty_like(pattern, dtype=number.dtype)]
        inside, options = pytree.tree_map_only(Tensor, _meta, (args, kwargs))
        results = func(*inside, **options)
        return [results] if isinstance(results, Tensor) else results


@functools.cache
def _reads_no_numbers(func: torch._ops.OpOverload) -> bool:
    """Return whether an operator is a view, or uses only a shape."""
    views = func.is_view or torch.Tag.inplace_view in func.tags or func in _VIEWS | _FILLED
    return views and func._overloadpacket not in _MEMORY


@functools.cache
def _needs_numbers(func: torch._ops.OpOverload) -> bool:
    """Return whether an operator needs numbers, or has unknown effects."""
    results = {str(result.type) for result in func._schema.returns}
    tagged = func.namespace != "aten" or not _NUMBERS.isdisjoint(func.tags)
    return tagged or func._overloadpacket in _MEMORY or not results <= {"Tensor", "List[Tensor]"}


@functools.cache
def _writes(func: torch._ops.OpOverload) -> tuple[list[tuple[int, str]], bool | None]:
    """Return the arguments to which an operator writes, and whether it returns all of them.

    The second result is None if the operator returns only some of them.
    """
    places = [
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returned = [result.alias_info is not None for result in func._schema.returns]
    if any(returned) and (not all(returned) or len(returned) != len(places)):
        return places, None
    return places, any(returned)


@functools.cache
def _gives_one(func: torch._ops.OpOverload) -> bool:
    """Return whether an operator returns a single tensor."""
    return [str(result.type) for result in func._schema.returns] == ["Tensor"]


def _described(value: object, tensors: list[Tensor]) -> Hashable:
    """Describe arguments without their tensors, which are collected in ``tensors``."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, tuple | list):
        return tuple(_described(item, tensors) for item in value)
    return type(value), repr(value) if isinstance(value, float) else value  # 0.0 is not -0.0


def _broadcast(tensors: Sequence[Tensor]) -> Sequence[int]:
    """Return the shape of a pointwise operator's result."""
    shapes = {tensor.shape for tensor in tensors}
    return shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether memory contains a tensor's values unchanged."""
    return not (tensor.is_conj() or tensor.is_neg())


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether a tensor can be an unchanged copy of another one."""
    same = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same and _is_plain(one) and _is_plain(other)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor covers its memory from the first to the last item exactly once."""
    if tensor.is_contiguous():
        return True
    dims = sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda dim: -dim[1])
    return _merged(dims) == _merged([(tensor.numel(), 1)])


def _least(tensor: Tensor) -> Tensor:
    """Return a tensor without the leading dimensions along which it repeats."""
    while tensor.dim() and len(tensor) and _bytes(tensor) == _bytes(tensor[:1].expand_as(tensor)):
        tensor = tensor[0]
    return tensor


def _address(tensor: Tensor) -> int:
    """Return the address of the object that describes a tensor's memory."""
    return TensorBase.untyped_storage(tensor)._cdata


def _layout(tensor: Tensor) -> Hashable:
    places = tensor.shape, tensor.stride(), tensor.storage_offset()
    return *places, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _places(tensor: Tensor) -> Places:
    """Return the positions of a tensor's values in memory, in as few dimensions as possible."""
    dims = _merged(zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()), dims, tensor.itemsize


def _merged(dims: Iterable[tuple[int, int]]) -> Strides:
    """Merge dimensions that are contiguous in memory."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if size == 0:
            return ((0, 1),)
        if merged and merged[-1][1] == size * stride:
            merged[-1] = merged[-1][0] * size, stride
        elif size > 1:
            merged.append((size, stride))
    return tuple(merged)


def _composed(inner: Places, outer: Places) -> Places | None:
    """Return the positions of a part of a part in memory; None if strides cannot express them.

    1. The inner part counts the values of the outer part in order. Find the index of its first
       value in each outer dimension.
    2. Each inner dimension steps along outer dimensions, starting with the last. It steps within an
       outer dimension, or through all of it and into the next.
    """
    (start, dims, item), (offset, around, outer_item) = inner, outer
    if item != outer_item or (0, 1) in dims:
        return None
    spans = [math.prod(size for size, _ in around[i + 1 :]) for i in range(len(around))]
    at = [start // span % size for span, (size, _) in zip(spans, around, strict=True)]  # 1
    offset += sum(i * stride for i, (_, stride) in zip(at, around, strict=True))
    composed: list[tuple[int, int]] = []
    for size, stride in dims:  # 2
        pieces: list[tuple[int, int]] = []
        for i, (length, apart) in reversed([*enumerate(around)]):
            step, between = divmod(stride, spans[i])
            if between or not 0 < step < length:
                continue
            fits = at[i] + (size - 1) * step < length
            count = size if fits else length // step
            if not fits and (at[i] or length % step or size % count):
                return None
            at[i] += (count - 1) * step
            pieces.insert(0, (count, step * apart))
            size, stride = size // count, spans[i] * length
        if size != 1:
            return None
        composed += pieces
    return offset, _merged(composed), item


def _meta(tensor: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return a meta tensor with the same layout, or with a given shape."""
    if shape is not None:
        return torch.empty(shape, dtype=tensor.dtype, device="meta")
    shape, strides = tensor.shape, tensor.stride()
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def _batch_norm(x: Tensor, *options: PyTree) -> tuple[Tensor, ...]:
    training = options[4]
    statistics = [_meta(x, [x.shape[1] if training else 0]) for _ in range(2)]
    return _meta(x, x.shape), *statistics


def _batch_norm_backward(
    incoming: Tensor, x: Tensor, *options: PyTree
) -> tuple[Tensor | None, ...]:
    needed = zip((x.shape, x.shape[1:2], x.shape[1:2]), options[-1], strict=True)
    return tuple(_meta(x, shape) if is_needed else None for shape, is_needed in needed)


def _layer_norm(x: Tensor, shape: Sequence[int], *options: PyTree) -> tuple[Tensor, ...]:
    sizes = (*x.shape[: -len(shape)], *[1] * len(shape))
    return _meta(x, x.shape), _meta(x, sizes), _meta(x, sizes)


def _layer_norm_backward(
    incoming: Tensor, x: Tensor, shape: Sequence[int], *options: PyTree
) -> tuple[Tensor | None, ...]:
    needed = zip((x.shape, shape, shape), options[-1], strict=True)
    return tuple(_meta(x, size) if is_needed else None for size, is_needed in needed)


# Shapes of operators for which PyTorch's own functions take milliseconds.
_SHAPES: Mapping[object, Callable[..., PyTree]] = {
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
}


def _bytes(tensor: Tensor) -> bytes:
    """Return a hash of a tensor's values in order, without keeping a reference to its memory."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return _hash(flat)


def _hash(tensor: Tensor) -> bytes:
    """Return a hash of a tensor's memory in order."""
    return blake2b(ctypes.string_at(TensorBase.data_ptr(tensor), tensor.nbytes)).digest()
