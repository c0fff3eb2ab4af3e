"""What the operator table says that autograd saves is what torch saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.graph.ir import ArchGraph, Atom, Leaf, Node, Polynomial, Ref, Value, size_at
from archgraph.graph.passes import specialise
from archgraph.ops.operands import Counted
from archgraph.ops.schema import from_atom, op_schema, torch_dtype
from archgraph.ops.table import backward, base
from tests.nets import captured
from tests.ops.examples import EXAMPLES, PINNING, RECURRENT, Net, Pointwise
from tests.ops.test_rows import OPERATORS, name

# What has no gradient at all, or none in these examples.
WITHOUT = {"fractional_max_pool2d", "batch_norm", "soft_margin_loss"}


def lower(value: Value, values: dict[Any, Any]) -> object:
    match value:
        case Ref() | Leaf():
            return values[value]
        case tuple():
            return [lower(item, values) for item in value]
        case Polynomial():
            return value.value({"batch": 2})
        case Atom():
            return from_atom(value)
        case _:
            return value


def new(shape: tuple[int, ...], dtype: str) -> Tensor:
    kind = torch_dtype(dtype)
    return torch.rand(shape).to(kind) if kind.is_floating_point else torch.zeros(shape, dtype=kind)


def storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def calls(graph: ArchGraph) -> Iterator[tuple[Node, int, int]]:
    """Yield operators with the bytes that torch saves, and those that the table says."""
    torch.manual_seed(0)
    values: dict[Any, Any] = {Leaf(p.name): new(p.shape, p.dtype) for p in graph.params}
    for node in graph.nodes:
        if node.op == "input":
            values[Ref(node.name)] = new(
                tuple(size_at(s, {"batch": 2}) for s in node.shape), node.dtype
            )
            continue
        operands: dict[Any, Any] = {value: values[value] for value in node.operands()}
        if node.op == "getitem":
            values[Ref(node.name)] = operands[node.arg("source")][node.arg("index")]
            continue
        for value, tensor in operands.items():
            tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
            real = tensor.is_floating_point() or tensor.is_complex()
            operands[value] = tensor.detach().clone().requires_grad_(real)
        saved: dict[int, int] = {}

        def pack(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[storage(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        schema = op_schema(node.op)
        positional, keyword = schema.call_args({k: lower(v, operands) for k, v in node.args})
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                results = schema.overload(*positional, **keyword)
        except RuntimeError:  # needs more than one number, or a gradient that it does not have
            assert base(node.op) in WITHOUT
            return
        several = tuple(results) if isinstance(results, (list, tuple)) else (results,)
        if not any(t.requires_grad for t in several):
            saved.clear()  # nothing refers to them
        # Weights count as parameters, whoever saves them.
        weights = {storage(t) for v, t in operands.items() if isinstance(v, Leaf)}
        found = sum(size for key, size in saved.items() if key not in weights)
        yield node, found, stated(node, operands, several, weights)
        detached = tuple(t.detach() for t in several)
        values[Ref(node.name)] = detached if isinstance(results, (list, tuple)) else detached[0]


def stated(
    node: Node,
    operands: dict[Any, Tensor],
    results: tuple[Tensor, ...],
    weights: set[int],
) -> int:
    """Return the bytes that the table says, each storage once."""
    known = backward(node)
    if not any(t.requires_grad for t in results):
        return 0

    def tensors(argument: str) -> list[Tensor]:
        value = node.arg(argument)
        items = value if isinstance(value, tuple) else (value,)
        return [operands[v] for v in items if isinstance(v, (Ref, Leaf))]

    saved = [results[number] for number in known.results]
    for argument, needed in known.operands.items():
        if not needed or any(t.requires_grad for n in needed.split() for t in tensors(n)):
            saved += tensors(argument)
    sizes = {storage(t): t.untyped_storage().nbytes() for t in saved}
    total = sum(size for key, size in sizes.items() if key not in weights)
    if known.extra is not None:
        shapes: dict[Any, tuple[int, ...]] = {v: tuple(t.shape) for v, t in operands.items()}
        counted = Counted(node, lambda v: shapes.get(v, ()), tuple(results[0].shape))
        for count, dtype in known.extra(counted):
            assert isinstance(count, int)
            total += count * torch_dtype(dtype or node.dtype).itemsize
    return total


def check(graph: ArchGraph) -> None:
    for node, found, says in calls(specialise(graph, training=True)):
        if backward(node).checked:
            assert (node.op, found) == (node.op, says)
        else:
            assert found <= says or base(node.op) in COMPOSED, node.op


# Made of operators that save results of their own; PyTorch's LSTM rounds sizes up to pages.
COMPOSED = set(
    "chain_matmul float_power linalg_multi_dot lstm nanmean poisson_nll_loss quantile "
    "triplet_margin_loss".split()
)


@pytest.mark.sample(40)
@pytest.mark.parametrize("example", EXAMPLES + PINNING, ids=name)
def test_rows_save_what_they_say(example):
    net = Net(example)
    check(captured(net, net.input(), train=False).graph)


@pytest.mark.sample(3)
@pytest.mark.parametrize("start", range(0, len(OPERATORS), 16))
def test_pointwise_operators_save_what_they_say(start):
    net = Pointwise(OPERATORS[start : start + 16])
    check(captured(net, torch.rand(2, 3), train=False).graph)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_save_what_they_say(kind):
    check(captured(RECURRENT[kind](), torch.rand(2, 5, 3), train=False).graph)


@pytest.mark.parametrize("steps, batch, inside, hidden", [(50, 32, 64, 128), (20, 16, 48, 100)])
def test_an_lstm_saves_what_its_kernel_needs_without_padding(steps, batch, inside, hidden):
    net = nn.LSTM(inside, hidden, batch_first=True)
    x = torch.rand(batch, steps, inside, requires_grad=True)
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(x)
    found = sum(saved.values()) - sum(p.nbytes for p in net.parameters())
    says = ag.cost(captured(net, x).graph).training(batch).saved
    assert found == pytest.approx(says, rel=0.1)
