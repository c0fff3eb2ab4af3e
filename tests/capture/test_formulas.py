"""Modules that run without numbers: equal formulas are equal values, and memory is not read."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.capture import verify
from archgraph.capture.formulas import Formulas, Unclear, _composed, _merged, _places
from tests.nets import with_parts

WEIGHT = nn.Parameter(torch.arange(24.0).reshape(2, 3, 4))


def value(make: Callable[[Tensor], Tensor], formulas: Formulas | None = None) -> int:
    """Return the number of what a function makes of a weight."""
    formulas = formulas or Formulas()
    weight = WEIGHT.detach().clone()
    torch.manual_seed(0)
    with formulas.of({"weight": weight}):
        return formulas.value(make(weight))


def same(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> bool:
    formulas = Formulas()
    return value(one, formulas) == value(other, formulas)


# -- parts of memory ------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("select"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("slice"), st.integers(0, 3), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("transpose"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("clone")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("reshape"), st.integers(0, 7)),
    st.tuples(st.just("expand")),
    st.tuples(st.just("unsqueeze")),
)
SHAPES = ((24,), (2, 12), (6, 4), (4, 6), (2, 3, 4), (3, 8), (1, 24), (12, 2))


def stepped(x: Tensor, step: tuple[Any, ...]) -> Tensor:
    """Take one step; steps that do not fit a tensor leave it as it is."""
    kind, *more = step
    dim = more[0] % x.dim() if more and x.dim() else 0
    match kind:
        case "select" if x.dim() > 1:
            return x.select(dim, more[1] % x.shape[dim])
        case "slice" if x.dim() and x.shape[dim] > more[1]:
            return x[(slice(None),) * dim + (slice(more[1], None, more[2]),)]
        case "transpose" if x.dim():
            return x.transpose(dim, more[1] % x.dim())
        case "clone":
            return x.clone(memory_format=torch.contiguous_format)
        case "copy":  # in the order of memory
            return x.clone()
        case "reshape" if x.numel() == 24:
            return x.reshape(SHAPES[more[0]])
        case "expand" if 0 < x.dim() < 4:
            return x.unsqueeze(0).expand(2, *x.shape)
        case "unsqueeze" if x.dim() < 4:
            return x.unsqueeze(-1)
    return x


@given(st.lists(STEPS, max_size=6), st.lists(STEPS, max_size=6))
def test_equal_formulas_of_parts_are_equal_values(first, second):
    def after(steps: list[tuple[Any, ...]]) -> Callable[[Tensor], Tensor]:
        def make(x: Tensor) -> Tensor:
            for step in steps:
                x = stepped(x, step)
            return x

        return make

    one, other = after(first), after(second)
    if same(one, other):  # all numbers of the weight differ: equal values are equal parts
        assert torch.equal(one(WEIGHT), other(WEIGHT))
    assert same(one, after([*first, ("clone",), ("clone",)]))  # copies hold the same


@given(st.lists(STEPS, max_size=5), st.lists(STEPS, max_size=5))
def test_a_part_of_a_part_has_the_places_of_both(first, second):
    x = torch.arange(24).reshape(2, 3, 4)
    for step in first:
        x = stepped(x, step) if step[0] not in ("clone", "copy", "reshape") else x
    flat = x.contiguous().view(-1)
    inner = flat.view(x.shape)
    for step in second:
        inner = stepped(inner, step) if step[0] not in ("clone", "copy", "reshape") else inner
    if inner.data_ptr() < flat.data_ptr() or not inner.numel():
        return
    relative = int(inner.storage_offset() - flat.storage_offset()), *_places(inner)[1:]
    composed = _composed(relative, _places(x))
    if composed is not None:
        offset, dims, _ = composed
        places = torch.tensor([offset])
        for size, stride in dims:
            places = (places[:, None] + stride * torch.arange(size)).reshape(-1)
        assert torch.equal(places, inner.reshape(-1))  # arange: a number is its place


def test_dimensions_that_follow_one_another_are_one():
    assert _merged([(2, 12), (3, 4), (4, 1)]) == ((24, 1),)
    assert _merged([(2, 12), (1, 7), (3, 4), (2, 1)]) == ((6, 4), (2, 1))
    assert _merged([(2, 0), (3, 0)]) == ((6, 0),)
    assert _merged([(3, 1), (0, 5)]) == ((0, 1),)
    assert _merged([]) == ()


# -- operators ------------------------------------------------------------------------------------

EQUAL: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "in place": (lambda w: (w + 1).relu_(), lambda w: (w + 1).relu()),
    "a view of new memory": (lambda w: (w * 2).view(6, 4).t(), lambda w: (w * 2).reshape(6, 4).T),
    "no padding": (lambda w: F.pad(w, (0, 0)) * 2, lambda w: w * 2),
    "a mask of zeros": (lambda w: w + torch.zeros(4), lambda w: w + torch.zeros(3, 4)),
    "repeated operands": (lambda w: w * torch.full((3, 1), 2.0), lambda w: w * torch.tensor(2.0)),
    "layouts": (lambda w: w.mT.contiguous().mT.exp() + w, lambda w: w.exp() + w),
}
DIFFERENT: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "operators": (lambda w: w.sin(), lambda w: w.cos()),
    "settings": (lambda w: F.softmax(w, 0), lambda w: F.softmax(w, 1)),
    "types of settings": (lambda w: w * 1, lambda w: w * 1.0),
    "order": (lambda w: w[0] - w[1], lambda w: w[1] - w[0]),
    "parts": (lambda w: w[0], lambda w: w[1]),
    "directions": (lambda w: w.flip(0), lambda w: w),
    "constants": (lambda w: w + torch.ones(4), lambda w: w + torch.full((4,), 1.5)),
    "shapes of constants": (
        lambda w: w[0, 0] + torch.ones(4, 1),
        lambda w: w[0, 0] + torch.ones(1),
    ),
    "masks": (lambda w: w + torch.tensor([0.0, 0, 0, -1]), lambda w: w),
    "dtypes": (lambda w: w.double(), lambda w: w),
    "bits": (lambda w: w.view(torch.int32), lambda w: w),
    "what is written": (lambda w: part(w, 1), lambda w: part(w, 2)),
    "where it is written": (lambda w: part(w, 1), lambda w: part(w, 1, at=1)),
    "whether it is written": (lambda w: part(w, 1), lambda w: w * 1),
    "attention": (lambda w: attended(w), lambda w: attended(w, is_causal=True)),
    "scales": (lambda w: attended(w), lambda w: attended(w, scale=0.25)),
}


def part(w: Tensor, number: float, at: int = 0) -> Tensor:
    y = w * 1
    y[at, 1:] += number
    return y


def attended(w: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(w[None], w[None], w[None], **options)


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL)
def test_what_is_equal_has_equal_formulas(pair):
    one, other = pair
    assert torch.equal(one(WEIGHT.detach().clone()), other(WEIGHT.detach().clone()))
    assert same(*pair)


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_has_different_formulas(pair):
    assert not same(*pair)


def test_masks_and_scales_of_attention_have_one_spelling():
    causal = torch.full((3, 3), -torch.inf).triu(1)
    assert same(lambda w: attended(w, is_causal=True), lambda w: attended(w, attn_mask=causal))
    ones = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    assert same(attended, lambda w: attended(w, attn_mask=ones))
    assert same(attended, lambda w: attended(w, scale=0.5))


def test_random_numbers_go_by_the_generator_and_the_order_of_memory():
    assert same(lambda w: F.dropout(w), lambda w: F.dropout(w))
    assert not same(lambda w: F.dropout(w), lambda w: (F.dropout(w * 2), F.dropout(w))[1])
    assert not same(lambda w: F.dropout(w.mT).mT, lambda w: F.dropout(w))
    assert not same(
        lambda w: torch.rand(3, 4) + w, lambda w: (F.dropout(w), torch.rand(3, 4) + w)[1]
    )

    def again(w: Tensor) -> Tensor:
        state = torch.get_rng_state()
        F.dropout(w)
        torch.set_rng_state(state)
        return F.dropout(w)

    assert same(again, F.dropout)


# -- code that looks at numbers -------------------------------------------------------------------

LOOKS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "format": lambda x: f"{x}",
    "equal": lambda x: torch.equal(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "deepcopy": lambda x: copy.deepcopy(x),
    "pickle": lambda x: pickle.dumps(x),
    "address": lambda x: x.data_ptr(),
    "memory": lambda x: x.untyped_storage(),
    "list": lambda x: torch.tensor([x.sum()]),
    "inference": lambda x: torch.inference_mode()(Tensor.contiguous)(x.mT),
    "array": lambda x: torch.from_numpy(np.zeros(3, np.float32)).copy_(x[0, 0, :3]),
    "dlpack": lambda x: torch.utils.dlpack.from_dlpack(x),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_code_that_looks_at_numbers_is_noticed(look):
    formulas, weight = Formulas(), WEIGHT.detach().clone()
    with formulas.of({"weight": weight}):
        look(torch.ones(2, 3, 4))  # what depends on no parameter has numbers
        with pytest.raises(Unclear):
            look(weight * 2)
    assert formulas.unclear
    look(weight * 2)  # afterwards everything is as ever


def test_other_threads_are_noticed():
    formulas = Formulas()
    with formulas.of({}), pytest.raises(Unclear, match="thread"):
        threading.Thread(target=print).start()
    assert formulas.unclear


def test_memory_is_not_touched():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096

    formulas, weight = Formulas(), torch.ones(1)
    before = resident()
    with formulas.of({"weight": weight}):
        assert formulas.value(weight.repeat(2**29).exp() * 2)  # 2 GiB each
    assert resident() - before < 2**28


def test_what_is_kept_outside_is_nan():
    kept: list[Tensor] = []
    formulas, weight = Formulas(), WEIGHT.detach().clone()
    with formulas.of({"weight": weight}):
        kept.append((weight * 2)[0])
    assert formulas.kept_outside() and kept[0].isnan().all()
    kept.clear()
    assert not formulas.kept_outside()


# -- modules --------------------------------------------------------------------------------------


@with_parts(
    lambda: {
        "layer": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
    }
)
def Attention(self, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return self.layer(x, src_mask=mask, is_causal=True)


class Cumulative(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))


MODULES = {
    "norms": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardswish(inplace=True), nn.Dropout(0.2),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 5), nn.LayerNorm(5), nn.Softmax(1),
        ),
        (2, 3, 8, 8),
    ),
    "attention": (Attention, (2, 5, 8)),
    "cumulative": (Cumulative, (3, 4)),
}  # fmt: skip


def test_parameters_in_memory_of_arrays_have_formulas(monkeypatch):
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.from_numpy(np.ones((2, 3), np.float32)))
    monkeypatch.setattr(verify, "_too_large", lambda _: "never")  # to run it with numbers
    assert ag.trace(model, torch.randn(2, 3)).notes == ()


@pytest.mark.parametrize(("make", "shape"), MODULES.values(), ids=MODULES)
def test_modules_run_once_with_numbers_in_each_mode_that_draws(make, shape, monkeypatch):
    calls = []
    run = verify._Verification._run

    def counted(self: Any, *args: Any) -> Any:
        calls.append(args[2])
        return run(self, *args)

    monkeypatch.setattr(verify._Verification, "_run", counted)
    model = make()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    ag.trace(model, torch.randn(shape))
    draws = any(isinstance(module, nn.Dropout) for module in model.modules())
    assert [call.training for call in calls] == [False, False, *[True, True] * draws]
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())
