"""Check the laws of rewrites numerically.

A law states how a rewritten network relates to the original: it computes the same, or the same as
the original with some weights set to zero. Both networks run on random weights in float64.
:func:`check_law` raises an error if a law holds only because there is nothing to compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import Kept, positions
from archgraph.errors import RewriteError
from archgraph.graph.ir import (
    ArchGraph,
    Atom,
    Constant,
    Node,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
    replace,
    size_at,
)
from archgraph.graph.sizes import example_sizes, other_sizes
from archgraph.module.build import build
from archgraph.ops.constants import constant_tensor
from archgraph.ops.schema import canonical_args, op_schema, torch_dtype
from archgraph.rewrites.cut import cut_axes
from archgraph.states import Rewritten, State, Transfer

# Factor of dropped positions. Its square is still a float64. With 0, normalising a vector of
# dropped weights (weight norm's v / ‖v‖) would give 0 / 0.
NOTHING = 1e-100
VISIBLE = 1e-9  # a relative change above rounding error
# In single precision, the rounding of a deep network would hide a wrong rule.
_WIDE = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), "float64"),
    **dict.fromkeys(("complex64", "complex32"), "complex128"),
}

GraphAndState: TypeAlias = tuple[ArchGraph, State]
# Function from the original in float64 to the network that a rewritten network must equal.
Reference: TypeAlias = Callable[[ArchGraph, State], GraphAndState]


def in_float64(graph: ArchGraph) -> ArchGraph:
    """Replace every floating-point type by float64, every complex type by complex128."""

    def wide(type_: TensorType) -> TensorType:
        return dataclasses.replace(type_, dtype=_WIDE.get(type_.dtype, type_.dtype))

    def wide_value(value: Value) -> Value:
        return Atom(_WIDE.get(value.name, value.name)) if isinstance(value, Atom) else value

    def wide_param(param: Param) -> Param:
        if param.dtype not in _WIDE:
            return param
        value = param.value
        if value is not None:
            dtype = _WIDE[param.dtype]
            data = constant_tensor(value).to(torch_dtype(dtype)).numpy().tobytes()
            value = Constant(dtype, value.shape, data)
        return dataclasses.replace(param, type=wide(param.type), value=value)

    def wide_node(node: Node) -> Node:
        type_ = tuple(map(wide, node.type)) if isinstance(node.type, tuple) else wide(node.type)
        args = tuple((k, replace(v, wide_value)) for k, v in node.args)
        # A factory function has its dtype as an argument, or uses PyTorch's default.
        makes = node.op.startswith("aten.") and op_schema(node.op).makes_tensor
        if makes and node.arg("dtype") is None and node.dtype in _WIDE:
            args = canonical_args(node.op, dict(args) | {"dtype": Atom(_WIDE[node.dtype])})
        return dataclasses.replace(node, type=type_, args=args)

    return graph.replace(
        params=tuple(map(wide_param, graph.params)), nodes=tuple(map(wide_node, graph.nodes))
    )


def random_state(
    graph: ArchGraph, seed: int = 0, *, positive: bool = False
) -> dict[str, torch.Tensor]:
    """Draw float64 weights of typical scale without zeros, so that no law holds by accident.

    Args:
        graph: The architecture.
        seed: Seed of the weights.
        positive: Draw only positive weights, so that ReLUs return nonzero values even in a narrow
            network.
    """
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, torch.Tensor] = {}
    for param in graph.params:
        if param.role == "constant":
            continue
        if param.value is not None and param.role != "parameter":
            # A table or a mask, whose values matter: keep them.
            state[param.name] = constant_tensor(param.value)
            continue
        dtype = torch_dtype(_WIDE.get(param.dtype, param.dtype))
        if not (dtype.is_floating_point or dtype.is_complex):
            state[param.name] = torch.zeros(param.shape, dtype=dtype)  # counters
            continue
        fan_in = max(int(np.prod(param.shape[1:])), 1)
        tensor = torch.randn(param.shape, generator=generator, dtype=dtype)
        if len(param.shape) < 2:  # norm weights, biases, means, variances: around 1, at least 0.75
            tensor = 1 + 0.25 * tensor.tanh()
        elif positive:
            tensor = (tensor.abs() / fan_in).to(dtype)
        else:
            tensor *= (1.5 / fan_in) ** 0.5
        state[param.name] = tensor
    return state


def random_inputs(
    graph: ArchGraph, batch: int = 2, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Draw random inputs for a graph, and return them as a dict from argument name to value.

    Complex and floating-point inputs are drawn from a normal distribution. Integers are 0 or 1,
    which are valid indices of any embedding with at least two rows. Inputs that forward rounds to
    integers are drawn from [0, 2).

    Args:
        graph: The graph.
        batch: Number of examples.
        seed: Seed of the numbers.
        sizes: Dict from the name of a dynamic size to its value. Default: the sizes of the traced
            example.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    rounded = _rounded(graph)
    values = {**example_sizes(graph, batch), **(sizes or {})}
    for node in graph.nodes:
        if node.op == "input":
            shape, dtype = [size_at(s, values) for s in node.shape], torch_dtype(node.dtype)
            tensors[node.name] = _drawn(shape, dtype, node.name in rounded, generator).to(dtype)

    def real(value: Value) -> Any:
        match value:
            case Ref(name):
                return tensors[name]
            case tuple():
                return tuple(real(v) for v in value)
            case Record():
                return {k: real(v) for k, v in value.fields}
            case _:
                return value

    return {k: real(v) for k, v in graph.inputs}


def _drawn(
    shape: list[int], dtype: torch.dtype, rounded: bool, generator: torch.Generator
) -> torch.Tensor:
    """Draw an input of a shape and dtype; ``rounded`` is True if forward rounds it to integers.

    1. Complex and floating-point inputs are drawn from a normal distribution.
    2. Integers are 0 or 1, which are valid indices of any embedding with two rows. The first value
       along the last dimension is 1: if the input is a mask of zeros, attention computes 0/0.
    3. Inputs that forward rounds to integers are drawn from [0, 2), so that several values occur.
    """
    if not (dtype.is_floating_point or dtype.is_complex):  # 2
        tensor = torch.randint(0, 2, shape, generator=generator)
        if len(shape) > 1 and shape[-1] > 1:
            tensor[..., 0] = 1
        return tensor
    if rounded and not dtype.is_complex:  # 3
        return 2 * torch.rand(shape, generator=generator, dtype=torch.float64)
    wide = torch.complex128 if dtype.is_complex else torch.float64  # 1
    return torch.randn(shape, generator=generator, dtype=wide)


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _rounded(graph: ArchGraph) -> set[str]:
    """Return the inputs that forward rounds to integers before a weight uses them (indices)."""
    # Dict from each result of inputs and constants alone to these inputs.
    made_of: dict[str, set[str]] = {}
    rounded: set[str] = set()
    for node in graph.nodes:
        used = list(node.uses())
        if node.op == "input":
            made_of[node.name] = {node.name}
        elif all(u in made_of for u in used) and not any(
            graph.param[leaf].role == "parameter" for leaf in node.leaves()
        ):
            made_of[node.name] = {i for u in used for i in made_of[u]}
            if _is_whole(torch_dtype(node.dtype)):
                floats = (u for u in used if torch_dtype(graph.node[u].dtype).is_floating_point)
                rounded |= {i for u in floats for i in made_of[u]}
    return rounded


def outputs(module: torch.nn.Module, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return all output tensors of a module, in order, without gradients."""
    with torch.no_grad():
        result = module(**inputs)
    return [t.detach() for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def evaluated(graph: ArchGraph, state: State, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Run a network in evaluation in float64, and return all output tensors.

    A network that draws random numbers in evaluation draws the same numbers in each call.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # also the dtype of quotients of integers
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return outputs(build(graph, state).eval(), inputs)
    finally:
        torch.set_default_dtype(before)


def relative_difference(results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest absolute difference, relative to the largest expected magnitude.

    Equal infinities (masked positions) have no difference. NaN differs from every value.
    """
    worst = 0.0
    for a, b in zip(results, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if not b.numel():
            continue
        x, y = (t if t.is_complex() else t.double() for t in (a, b))
        sizes = y.abs()[y.isfinite()]
        # An output of zeros has no scale.
        scale = max(float(sizes.max()) if sizes.numel() else 0.0, 1e-12)
        # x == y first: the difference of equal infinities is NaN.
        gap = float(torch.where(x == y, 0.0, (x - y).abs()).max()) / scale
        worst = max(worst, gap if gap == gap else float("inf"))  # max() would ignore NaN
    return worst


def masked(
    graph: ArchGraph, state: State, selection: Kept
) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Return the wide graph and state with zeros at every dropped position, also in constants.

    Floating-point numbers are multiplied by :data:`NOTHING` (1e-100) instead of zero, so that the
    quotient of dropped weights (weight norm's ``v/‖v‖``) remains finite.
    """
    solved = axes(graph)
    values: dict[str, torch.Tensor] = {}
    params: list[Param] = []
    for param in graph.params:
        value = param.value if param.role == "constant" else None
        tensor = state[param.name] if value is None else constant_tensor(value)
        stays = np.zeros(tensor.shape, dtype=bool)
        stays[np.ix_(*(positions(layout, selection) for layout in solved.of(param.name)))] = True
        mask = torch.from_numpy(stays)
        floating = tensor.is_floating_point()
        tensor = tensor * (mask.double().clamp(min=NOTHING) if floating else mask)
        if value is not None:
            data = Constant(param.dtype, param.shape, tensor.numpy().tobytes())
            param = dataclasses.replace(param, value=data)
        else:
            values[param.name] = tensor
        params.append(param)
    return graph.replace(params=tuple(params)), values


def mask_equals_take(
    graph: ArchGraph,
    rewritten: Rewritten,
    selection: Kept,
    *,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> float:
    """Check the law mask ≡ take: a cut network equals the original with zeros at dropped positions.

    A norm, softmax or reduction over an axis also counts zeros, so the law does not hold for such
    axes. The comparison leaves these axes uncut. For the network in which they are cut, the
    function only checks that the network runs and that its output depends on its input.

    Returns:
        The largest relative difference.

    Raises:
        RewriteError: If the difference exceeds the tolerance, or nothing is compared.
    """
    spanned = {a.name for a in axes(graph).free if a.spans}
    if any(name in spanned for name in selection):
        check_law(graph, rewritten, None, seed=seed)
        selection = {k: v for k, v in selection.items() if k not in spanned}
        if not selection:
            return 0.0
        rewritten = cut_axes(graph, selection)
    return check_law(
        graph,
        rewritten,
        lambda wide, state: masked(wide, state, selection),
        "mask ≡ take does not hold: a rule of the operator table is wrong (please report it)",
        tolerance=tolerance,
        seed=seed,
    )


def same_function(
    graph: ArchGraph, rewritten: Rewritten, *, tolerance: float = 1e-10, seed: int = 0
) -> float:
    """Check that the rewritten network computes the same as the original in evaluation.

    Returns:
        The largest relative difference.

    Raises:
        RewriteError: If the difference exceeds the tolerance, or nothing is compared.
    """
    message = "the rewrite changed the function"
    return check_law(graph, rewritten, lambda *wide: wide, message, tolerance=tolerance, seed=seed)


def check_law(
    graph: ArchGraph,
    rewritten: Rewritten,
    reference: Reference | None,
    message: str = "",
    *,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> float:
    """Compare a rewritten network with a reference, and return the largest relative difference.

    1. Check that no tensor of the rewritten network is empty.
    2. Draw random weights and inputs, and compare the two networks in evaluation, with the traced
       example's dynamic sizes and with other sizes.
    3. Check that every output depends on the input if it does in the original. If an output does
       not, repeat the check with positive weights, because ReLUs may have returned only zeros. If
       the output still does not depend on the input, raise an error.

    Args:
        graph: The original.
        rewritten: The rewritten network, with the same number of outputs.
        reference: Function from the original and its state to the network to compare with. If None,
            step 2 does not compare anything.
        message: Error message if the results differ.
        tolerance: Largest allowed difference.
        seed: Seed of the weights and the inputs.

    Raises:
        RewriteError: If the difference exceeds the tolerance; if a tensor is empty; if an output
            does not depend on the input.
    """
    refuse_empty(graph, rewritten.graph)  # 1
    wide, narrow = in_float64(graph), in_float64(rewritten.graph)
    transfer, where = to_float64(rewritten.transfer), graph.name or "graph"
    inputs, others = random_inputs(wide, seed=seed), random_inputs(wide, seed=seed + 1)
    sizes = other_sizes(wide)
    resized = [random_inputs(wide, seed=seed, sizes=sizes)] if sizes else []
    gap, constant = 0.0, list[int]()
    for positive in (False, True):
        state = random_state(wide, seed, positive=positive)
        pulled = transfer.pull(state)
        results = evaluated(narrow, pulled, inputs)
        if reference is not None:  # 2
            full = reference(wide, state)
            gap = max(gap, relative_difference(results, evaluated(*full, inputs)))
            for more in resized:
                theirs = evaluated(*full, more)
                gap = max(gap, relative_difference(evaluated(narrow, pulled, more), theirs))
        if not gap <= tolerance:
            difference = f"relative difference {gap:.3g}"
            most = f"≤ {tolerance:g}"
            raise RewriteError(message, where=where, found=difference, expected=most)
        changed = evaluated(narrow, pulled, others)  # 3
        pairs = enumerate(zip(results, changed, strict=True))
        constant = [i for i, (a, b) in pairs if torch.equal(a, b)]
        if constant:
            one, other = (evaluated(wide, state, value) for value in (inputs, others))
            constant = [i for i in constant if relative_difference([other[i]], [one[i]]) > VISIBLE]
        if not constant:
            return gap
    problem = "the output no longer depends on the input"
    result = f"output {constant[0]} is the same for two random inputs"
    hint = "keep more positions of its axes, or more blocks"
    raise RewriteError(problem, where=where, found=result, hint=hint)


def refuse_empty(before: ArchGraph, after: ArchGraph) -> None:
    """Check that a rewrite made no parameter and no result empty.

    Raises:
        RewriteError: If a parameter or result is empty. The message names the first one.
    """
    nonempty = {p.name for p in before.params if 0 not in p.shape}
    empty: list[tuple[str, TensorType]] = [
        (p.name, p.type) for p in after.params if p.name in nonempty and 0 in p.shape
    ]
    if not any(0 in type_.shape for n in before.nodes for type_ in n.types):
        empty += [(f"%{n.name}", t) for n in after.nodes for t in n.types if 0 in t.shape]
    if empty:
        raise RewriteError("tensor would be empty", where=empty[0][0], found=empty[0][1])


def to_float64(transfer: Transfer) -> Transfer:
    """Return a transfer with all floating-point types replaced by float64."""
    source, target = (
        tuple(s._replace(dtype=_WIDE.get(s.dtype, s.dtype)) for s in slots)
        for slots in (transfer.source, transfer.target)
    )
    return Transfer(source, target, transfer.entries)
