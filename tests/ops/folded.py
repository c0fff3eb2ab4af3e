"""Uses of operators with several activations, whose heads are folded into the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

aten: Any = torch.ops.aten  # operators that torch's own functions do not reach directly
HEADS, TOKENS, WIDTH = 4, 5, 6


Call = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Use:
    """A use of one row.

    Attributes:
        key: The row's key in ROWS, or a pointwise operator without a row.
        number: Which of the row's uses it is.
        call: The use, from activations [batch · heads, tokens, width] to a tensor that begins with
            batch · heads.
        count: How many activations it takes.
    """

    key: str
    number: int
    call: Call
    count: int

    def __str__(self) -> str:
        return f"{self.key}-{self.number}"


class Folded(nn.Module):
    """Operators with several inputs, side by side; the heads of all inputs are in the batch.

    Heads are the only axis: tokens and width are those of the model's input.
    """

    def __init__(self, uses: Sequence[Use]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.uses = uses
        self.make = nn.ModuleList(
            nn.ModuleList(nn.Linear(3, HEADS) for _ in range(use.count)) for use in uses
        )
        self.read = nn.ModuleList(nn.Linear(HEADS, 2) for _ in uses)

    def forward(self, x):
        results = []
        for i, (use, read) in enumerate(zip(self.uses, self.read, strict=True)):
            makes = self.make.get_submodule(str(i)).children()
            y = use.call(*(make(x).permute(0, 3, 1, 2).flatten(0, 1) for make in makes))
            results.append(read(y.to(x.dtype).reshape(x.shape[0], -1, y[0].numel()).mean(-1)))
        return tuple(results)


def input_of(seed: int = 0, batch: int = 2) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch, TOKENS, WIDTH, 3, generator=random).double()


# -- what operators ask of their operands ---------------------------------------------------------
def classes(x):
    """[n, 5]: numbers 0 to 3."""
    return (4 * x[..., 0].sigmoid()).long()


def numbers(x, size):
    """[n, 5, 6]: numbers below a size."""
    return (size * x.sigmoid()).long()


def square(x):
    """[n, 5, 5] that can be inverted."""
    return x[..., :5] + 5 * torch.eye(5)


def signs(x):
    return torch.where(x > 0, 1.0, -1.0)


TWICE = torch.tensor([1, 0, 3, 2, 2])
TABLE = torch.arange(12.0).reshape(4, 3).sin().double()
THRESHOLDS = torch.tensor([-0.5, 0.0, 0.5]).double()
CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0, 1.0]).double()

CONVOLUTIONS = {
    # One kernel per head of each example: they are groups of one picture.
    "conv1d": [
        lambda a, b: F.conv1d(
            a.reshape(1, -1, WIDTH), b[..., :3].reshape(-1, 1, 3), groups=a.shape[0] * TOKENS
        ).reshape(a.shape[0], TOKENS, 4),
        lambda a, b: F.conv1d(
            a.reshape(1, -1, WIDTH), b[:, None, :, :3].reshape(-1, TOKENS, 3), groups=a.shape[0]
        ).transpose(0, 1),
        lambda a, b: F.conv1d(
            a.reshape(-1, WIDTH),
            b[..., :3].reshape(-1, 1, 3),
            b[..., 0].flatten(),
            groups=a.shape[0] * TOKENS,
        ).reshape(a.shape[0], TOKENS, 4),
    ],
    "conv2d": [
        lambda a, b: F.conv2d(a[None], b[:, None, :3, :3], groups=a.shape[0]).transpose(0, 1),
        lambda a, b, c: F.conv2d(
            a[None], b[:, None, :3, :3], c[:, 0, 0], groups=a.shape[0]
        ).transpose(0, 1),
    ],
    "conv3d": [
        lambda a, b: F.conv3d(
            a[None, :, None], b[:, None, None, :3, :3], groups=a.shape[0]
        ).transpose(0, 1)
    ],
    "convolution": [
        lambda a, b: aten.convolution(
            a[None], b[:, None, :3, :3], None, [1, 1], [0, 0], [1, 1], False, [0, 0], a.shape[0]
        ).transpose(0, 1),
        lambda a, b: aten.convolution(
            a[None], b[:, None, :3, :3], None, [1, 1], [0, 0], [1, 1], True, [0, 0], a.shape[0]
        ).transpose(0, 1),
    ],
    "conv_transpose1d": [
        lambda a, b: F.conv_transpose1d(
            a.reshape(1, -1, WIDTH), b[..., :4].reshape(-1, 2, 2), groups=a.shape[0]
        ).reshape(a.shape[0], 2, 7),
    ],
    "conv_transpose2d": [
        lambda a, b: F.conv_transpose2d(a[None], b[:, None, :2, :2], groups=a.shape[0]).transpose(
            0, 1
        ),
    ],
    "conv_transpose3d": [
        lambda a, b: F.conv_transpose3d(
            a[None, :, None], b[:, None, None, :2, :2], groups=a.shape[0]
        ).transpose(0, 1),
    ],
}


EMBEDDINGS = {
    "embedding_bag": [
        lambda a, b: F.embedding_bag(classes(a), TABLE, mode="sum", per_sample_weights=b[..., 0]),
        lambda a, b: a[:, 0, :3] * F.embedding_bag(classes(b), TABLE, mode="mean"),
        lambda a, b: a[:, 0, :3] * F.embedding_bag(classes(b), TABLE, mode="max"),
        lambda a, b: a[:, 0, :3] * F.embedding_bag(classes(b), TABLE, padding_idx=1),
    ],
}

INDEXING = {
    "slice_scatter": [lambda a, b: a.slice_scatter(b[:, :2], 1, 1, 3)],
    "select_scatter": [
        lambda a, b: a.select_scatter(b[:, 1], 1, 2),
        lambda a, b: a.select_scatter(b[..., 1], -1, 2),
    ],
    "index": [
        lambda a, b: a[..., :3] * TABLE[classes(b)],
        lambda a, b, c: a * TABLE[classes(b), classes(c).clamp(max=2)][..., None],
        lambda a, b: a.movedim(1, 0)[TWICE].movedim(0, 1) * b,
    ],
    "index_select": [
        lambda a, b: a[:, 0, :3] * TABLE.index_select(0, classes(b)[:, 0]),
        lambda a, b: a.index_select(1, TWICE) * b,
    ],
    "gather": [
        lambda a, b: a.gather(1, numbers(b, TOKENS)),
        lambda a, b: a.gather(-1, numbers(b, WIDTH)),
        lambda a, b: a.gather(1, numbers(b[:, :2], TOKENS)),
        lambda a, b: a.flatten(1).gather(1, classes(b)),
    ],
    "take_along_dim": [
        lambda a, b: a.take_along_dim(numbers(b[..., :1], TOKENS), 1),
        lambda a, b: a.take_along_dim(b.argsort(1), 1),
    ],
    "scatter": [
        lambda a, b, c: a.scatter(1, numbers(b[:, :2], TOKENS), c),
        lambda a, b: a.scatter(1, numbers(b[:, :2], TOKENS), 1.0),
        lambda a, b: torch.zeros_like(a).scatter(-1, a.topk(2)[1], b),
        lambda a, b, c: a.scatter(1, numbers(b[:, :1], TOKENS), c, reduce="multiply"),
    ],
    "scatter_add": [
        lambda a, b, c: a.scatter_add(1, numbers(b, TOKENS), c),
        lambda a, b: torch.zeros(a.shape[0], 4).double().scatter_add(1, classes(a), b[..., 0]),
    ],
    "scatter_reduce": [
        lambda a, b, c: a.scatter_reduce(1, numbers(b, TOKENS), c, "amax"),
        lambda a, b, c: a.scatter_reduce(1, numbers(b, TOKENS), c, "mean", include_self=False),
    ],
    "index_add": [lambda a, b: a.index_add(1, TWICE, b)],
    "index_copy": [lambda a, b: a.index_copy(1, TWICE[:3], b[:, :3])],
    "index_fill": [lambda a, b: b * a.index_fill(1, TWICE, 2.0)],
    "index_put": [
        lambda a, b: a.index_put((b > 0,), torch.zeros((), dtype=torch.float64)),
        lambda a, b: a.index_put((b[:, 0, 0] > 0,), torch.ones((), dtype=torch.float64)),
        lambda a, b: a.movedim(1, 0).index_put((TWICE[:4],), b.movedim(1, 0)[:4]).movedim(0, 1),
        lambda a, b, c: a * TABLE.index_put((classes(b)[:, 0],), c[:, 0, :3], True).sum(),
    ],
    "masked_scatter": [
        lambda a, b, c: a.masked_scatter(b > 0, c),
        lambda a, b: a.masked_scatter(a > 0, b),
    ],
}

NOISE = {
    "bernoulli.Tensor": [lambda a, b: a * aten.bernoulli.Tensor(a, b.sigmoid())],
    "normal": [lambda a, b: aten.normal.Tensor_Tensor(a, b.abs() + 1)],
}

NORMS = {
    # Examples and heads as channels of one picture, each with numbers of its own (AdaIN).
    "batch_norm": [
        lambda a, b, c: F.batch_norm(
            a[None], None, None, b.mean((1, 2)), c[:, 0, 0], training=True
        )[0],
    ],
    "_native_batch_norm_legit": [
        lambda a, b, c: aten._native_batch_norm_legit.no_stats(
            a[None], b[:, 0, 0], c[:, 0, 0], True, 0.1, 1e-5
        )[0][0],
    ],
    "instance_norm": [
        lambda a, b, c: F.instance_norm(a[None], weight=b[:, 0, 0], bias=c[:, 0, 0])[0],
    ],
    "group_norm": [
        lambda a, b, c: F.group_norm(a[None], a.shape[0], b[:, 0, 0], c[:, 0, 0])[0],
        lambda a, b: F.group_norm(a[None], a.shape[0])[0] * b,
    ],
    "_weight_norm": [lambda a, b: torch._weight_norm(a, b[:, :1, :1], 0)],
    "_weight_norm_interface": [
        lambda a, b: aten._weight_norm_interface(a, b.mean((1, 2), True), 0)[0]
    ],
}

POINTWISE = {
    "add": [lambda a, b: a + b, lambda a, b: a + b[:, :1, :1]],
    "sub": [lambda a, b: a - b],
    "rsub": [lambda a, b: torch.rsub(a, b)],
    "mul": [lambda a, b: a * b],
    "div": [lambda a, b: a / (b.exp() + 1)],
    "max.other": [lambda a, b: torch.max(a, b)],
    "min.other": [lambda a, b: torch.min(a, b)],
    "maximum": [lambda a, b: torch.maximum(a, b)],
    "minimum": [lambda a, b: torch.minimum(a, b)],
    "lerp": [lambda a, b: torch.lerp(a, b, 0.3), lambda a, b, c: torch.lerp(a, b, c)],
    "floor_divide": [lambda a, b: a.floor_divide(b.exp() + 1)],
    "isclose": [lambda a, b: torch.isclose(a, b, 0.5)],
    "complex": [lambda a, b: torch.complex(a, b).abs()],
    "polar": [lambda a, b: torch.polar(a.abs(), b).real],
    "__or__": [lambda a, b: aten.__or__(a > 0, b > 0)],
    "__xor__": [lambda a, b: aten.__xor__(a > 0, b > 0)],
    "__and__": [lambda a, b: aten.__and__(a > 0, b > 0)],
    "__lshift__": [lambda a, b: aten.__lshift__((a > 0).int(), (b > 0).int())],
    "__rshift__": [lambda a, b: aten.__rshift__((a > 0).int(), (b > 0).int())],
    "logical_or": [lambda a, b: torch.logical_or(a > 0, b > 0)],
    "logical_xor": [lambda a, b: torch.logical_xor(a > 0, b > 0)],
    "logical_and": [lambda a, b: torch.logical_and(a > 0, b > 0)],
    "bitwise_and": [lambda a, b: torch.bitwise_and(a > 0, b > 0)],
    "where": [lambda a, b, c: torch.where(a > 0, b, c), lambda a, b: torch.where(a > 0, b, 2.0)],
    "masked_fill": [lambda a, b: a.masked_fill(b > 0, 3.0)],
    "broadcast_tensors": [
        lambda a, b: torch.mul(*torch.broadcast_tensors(a, b[:, :1])),
    ],
    "bucketize": [
        lambda a, b: a * torch.bucketize(b, THRESHOLDS),
        lambda a, b: a * torch.bucketize(a, b[:, 0, 0].sort()[0]),
        lambda a, b: a * torch.bucketize(a, b[:, 0, 0]),
    ],
    "isin": [
        lambda a, b: b * torch.isin(numbers(a, 9), torch.tensor([3, 4])),
        lambda a, b: a * torch.isin(numbers(a, 99), numbers(b, 99)),
    ],
    "copy": [lambda a, b: a * aten.copy(a, b[:, :1])],
    "clamp_min": [lambda a, b: a.clamp_min(b)],
    "clamp_max": [lambda a, b: a.clamp_max(b)],
    "clamp": [lambda a, b, c: a.clamp(b, c), lambda a, b: a.clamp(max=b[:, :1])],
    "prelu": [lambda a, b: F.prelu(a[None], b[:, 0, 0])[0]],
}

POOLING = {
    "max_unpool2d": [
        lambda a, b: F.max_unpool2d(
            F.max_pool2d(a[:, None, :4], 2),
            F.max_pool2d(b[:, None, :4], 2, return_indices=True)[1],
            (2, 2),
        ),
    ],
    "max_unpool3d": [
        lambda a, b: F.max_unpool3d(
            F.max_pool3d(a[:, None, None, :4], (1, 2, 2)),
            F.max_pool3d(b[:, None, None, :4], (1, 2, 2), return_indices=True)[1],
            (1, 2, 2),
        ),
    ],
    "grid_sampler": [
        lambda a, b: F.grid_sample(a[:, None], b[:, :, None, :2].tanh(), align_corners=False),
        lambda a, b: F.grid_sample(
            a[:, None, None], b[:, :, None, None, :3].tanh(), align_corners=True
        ),
    ],
    "grid_sampler_2d": [
        lambda a, b: aten.grid_sampler_2d(a[:, None], b[:, :, None, :2].tanh(), 1, 0, False),
    ],
    "grid_sampler_3d": [
        lambda a, b: aten.grid_sampler_3d(
            a[:, None, None], b[:, :, None, None, :3].tanh(), 0, 1, False
        ),
    ],
    "fractional_max_pool2d": [
        lambda a, b: F.fractional_max_pool2d(
            a[:, None], 2, output_size=(3, 3), _random_samples=b[:, :1, :2].sigmoid().detach()
        ),
    ],
    "fractional_max_pool3d": [
        lambda a, b: F.fractional_max_pool3d(
            torch.stack([a, b], 1)[:, None],
            (1, 2, 2),
            output_size=(1, 3, 3),
            _random_samples=b[:, :1, :3].sigmoid().detach(),
        ),
    ],
    "affine_grid_generator": [
        lambda a, b: (
            a[..., 0]
            * F.affine_grid(b[:, :2, :3], [b.shape[0], 1, TOKENS, 3], align_corners=False)[
                :, :, 0, 0
            ]
        ),
        lambda a, b: F.grid_sample(
            a[:, None],
            F.affine_grid(b[:, :2, :3], [a.shape[0], 1, 3, 3], align_corners=False),
            align_corners=False,
        ),
        lambda a, b: (
            a[..., 0, None]
            * F.affine_grid(b[:, :3, :4], [b.shape[0], 1, TOKENS, 2, 2], align_corners=False)[
                :, :, 0, 0
            ]
        ),
    ],
}

PRODUCTS = {
    "linear": [
        lambda a, b: a * F.linear(a[:, 0].T, b[:, 1].T).sum(),
    ],
    "bilinear": [lambda a, b: F.bilinear(a, b, TABLE[:, :1, None].expand(-1, 6, 6))],
    "matmul": [
        lambda a, b: a @ b.mT,
        lambda a, b: a[:, None] @ b[:, None].mT,
        lambda a, b: a[..., 0] * (a[:, 0].T @ b[:, 1]).sum(),
    ],
    "bmm": [lambda a, b: torch.bmm(a, b.mT)],
    "mm": [lambda a, b: a * torch.mm(a[:, 0].T, b[:, 1]).sum()],
    "mv": [lambda a, b: a * torch.mv(a[:, 0].T, b[:, 0, 0])],
    "dot": [lambda a, b: a * torch.dot(a[:, 0, 0], b[:, 0, 0])],
    "vdot": [lambda a, b: a * torch.vdot(a[:, 0, 0], b[:, 0, 0])],
    "addmm": [lambda a, b, c: torch.addmm(a[:, 0], b[:, 0], torch.mm(b[:, 1].T, c[:, 0]))],
    "baddbmm": [lambda a, b, c: torch.baddbmm(a[..., :5], b, c.mT)],
    "addmv": [lambda a, b, c: torch.addmv(a[:, 0, 0], b[:, 0], torch.mv(b[:, 1].T, c[:, 0, 0]))],
    "addbmm": [lambda a, b, c: a[..., :5] * torch.addbmm(b.sum(0)[:, :5], b, c.mT)],
    "chain_matmul": [lambda a, b: aten.chain_matmul([a[:, 0], a[:, 1].T, b[:, 0]])],
    "linalg_multi_dot": [lambda a, b: torch.linalg.multi_dot([a[:, 0], a[:, 1].T, b[:, 0]])],
    "inner": [lambda a, b: a * torch.inner(a[:, 0].T, b[:, 1].T).sum()],
    "linalg_vecdot": [
        lambda a, b: torch.linalg.vecdot(a, b),
        lambda a, b: torch.linalg.vecdot(a, b, dim=1),
    ],
    "tensordot": [
        lambda a, b: a * torch.tensordot(a, b, dims=([0], [0])).sum(),
    ],
    "outer": [lambda a, b: torch.outer(a[:, 0, 0], b[:, 0, 0]).view(-1, 1, b.shape[0]) @ b[:, 0]],
    "kron": [lambda a, b: torch.kron(a, b.sum(0, keepdim=True))],
    "cross": [lambda a, b: torch.cross(a[..., :3], b[..., :3], dim=-1)],
    "linalg_cross": [lambda a, b: torch.linalg.cross(a[..., :3], b[:, :1, :3])],
    "cdist": [
        lambda a, b: torch.cdist(a, b),
        lambda a, b: torch.cdist(a[:, None], b[:, None], 1.0),
    ],
    "pairwise_distance": [
        lambda a, b: F.pairwise_distance(a, b),
        lambda a, b: F.pairwise_distance(a[:, 0], b[:, 0], keepdim=True),
    ],
    "cosine_similarity": [
        lambda a, b: F.cosine_similarity(a, b, dim=-1),
        lambda a, b: F.cosine_similarity(a[:, :, None], b[:, None], dim=-1),
    ],
    "einsum": [
        lambda a, b: torch.einsum("nqc,nkc->nqk", a, b),
        lambda a, b, c: torch.einsum("nqc,nkc,nkd->nqd", a, b, c),
        lambda a, b: torch.einsum("n...c,n...c->n...", a, b),
    ],
    "scaled_dot_product_attention": [
        lambda a, b, c: F.scaled_dot_product_attention(a, b, c),
        lambda a, b, c: F.scaled_dot_product_attention(a[:, None], b[:, None], c[:, None]),
        lambda a, b, c, d: F.scaled_dot_product_attention(a, b, c, attn_mask=d[..., :5]),
        lambda a, b, c, d: F.scaled_dot_product_attention(
            a[:, None], b[:, None], c[:, None], attn_mask=d[:, None, :1, :5] > 0
        ),
    ],
}


def _weights(gates, units=2, inside=WIDTH):
    rows = torch.arange(float(gates * units))
    return [
        torch.outer(rows, torch.ones(inside)).sin().double(),
        torch.outer(rows, torch.arange(float(units))).cos().double(),
    ]


def layer(op, gates):
    states = 2 if gates == 4 else 1

    def call(a, b):
        hx = [b[None, :, 0, :2].contiguous()] * states
        args = hx if states == 2 else hx[0]
        return op(a, args, _weights(gates), False, 1, 0.0, False, False, True)[0]

    return call


def cell(op, gates):
    states = 2 if gates == 4 else 1

    def call(a, b):
        hx = [b[:, 0, :2]] * states
        found = op(a[:, 0], hx if states == 2 else hx[0], *_weights(gates))
        return found[0] if states == 2 else found

    return call


RECURRENT = {
    "lstm": [layer(aten.lstm.input, 4)],
    "gru": [layer(aten.gru.input, 3)],
    "rnn_tanh": [layer(aten.rnn_tanh.input, 1)],
    "rnn_relu": [layer(aten.rnn_relu.input, 1)],
    "lstm_cell": [cell(aten.lstm_cell, 4)],
    "gru_cell": [cell(aten.gru_cell, 3)],
    "rnn_tanh_cell": [cell(aten.rnn_tanh_cell, 1)],
    "rnn_relu_cell": [cell(aten.rnn_relu_cell, 1)],
}


def each(loss, second=lambda b: b, first=lambda a: a):
    """Return a loss for each position."""
    return [lambda a, b: loss(first(a), second(b), reduction="none")]


def reduced(loss, second=lambda b: b, first=lambda a: a):
    """Return a loss for each position, and their mean and their sum, with which scores grow."""
    return [
        *each(loss, second, first),
        lambda a, b: a * loss(first(a), second(b), reduction="mean"),
        lambda a, b: a * loss(first(a), second(b), reduction="sum"),
    ]


LOSSES = {
    "mse_loss": reduced(F.mse_loss),
    "l1_loss": each(F.l1_loss),
    "smooth_l1_loss": each(F.smooth_l1_loss),
    "huber_loss": each(F.huber_loss),
    "binary_cross_entropy": [
        *each(F.binary_cross_entropy, torch.sigmoid, torch.sigmoid),
        lambda a, b, c: F.binary_cross_entropy(
            a.sigmoid(), b.sigmoid(), c.detach(), reduction="none"
        ),
    ],
    "binary_cross_entropy_with_logits": [
        *each(F.binary_cross_entropy_with_logits, torch.sigmoid),
        lambda a, b, c: F.binary_cross_entropy_with_logits(
            a, b.sigmoid(), pos_weight=c.exp().detach(), reduction="none"
        ),
    ],
    "soft_margin_loss": each(F.soft_margin_loss, signs),
    "poisson_nll_loss": each(F.poisson_nll_loss),
    "kl_div": each(F.kl_div, lambda b: b.softmax(-1)),
    "cross_entropy_loss": [
        *reduced(F.cross_entropy, classes, lambda a: a.mT),
        *each(F.cross_entropy, lambda b: b.softmax(-1).mT, lambda a: a.mT),
        lambda a, b: F.cross_entropy(
            a.mT, classes(b), CLASS_WEIGHTS, reduction="none", label_smoothing=0.1
        ),
        lambda a, b: F.cross_entropy(a[:, 0], classes(b)[:, 0], ignore_index=1, reduction="none"),
        lambda a, b: F.cross_entropy(a[:, 0], b[:, 0].softmax(-1), reduction="none"),
        lambda a, b: F.cross_entropy(
            a[:, :, :, None], numbers(b, TOKENS)[:, 0, :, None], reduction="none"
        ),
    ],
    "nll_loss": [
        lambda a, b: aten.nll_loss(a[:, 0], classes(b)[:, 0], None, 0),
        lambda a, b: aten.nll_loss(a[:, 0], classes(b)[:, 0], CLASS_WEIGHTS, 0),
    ],
    "nll_loss2d": [
        lambda a, b: aten.nll_loss2d(a[..., None], numbers(b, TOKENS)[:, 0, :, None], None, 0),
    ],
    "nll_loss_nd": [
        *each(F.nll_loss, classes, lambda a: a.mT),
        lambda a, b: F.nll_loss(a.mT, classes(b), CLASS_WEIGHTS, ignore_index=0, reduction="none"),
        lambda a, b: F.nll_loss(a[:, 0], classes(b)[:, 0], reduction="none"),
    ],
    "nll_loss_forward": [
        lambda a, b: aten.nll_loss_forward(a[:, 0], classes(b)[:, 0], None, 0, -100)[0],
    ],
    "cosine_embedding_loss": [
        lambda a, b, c: F.cosine_embedding_loss(
            a[:, 0], b[:, 0], signs(c)[:, 0, 0], reduction="none"
        ),
    ],
    "hinge_embedding_loss": each(F.hinge_embedding_loss, signs),
    "margin_ranking_loss": [
        lambda a, b, c: F.margin_ranking_loss(a, b, signs(c), reduction="none"),
        lambda a, b, c: a * F.margin_ranking_loss(a, b, signs(c)),
    ],
    "triplet_margin_loss": [
        lambda a, b, c: F.triplet_margin_loss(a, b, c, reduction="none"),
        lambda a, b, c: a * F.triplet_margin_loss(a, b, c),
    ],
    "multi_margin_loss": [
        lambda a, b: F.multi_margin_loss(a[:, 0], classes(b)[:, 0], reduction="none"),
        lambda a, b: a * F.multi_margin_loss(a[:, 0], classes(b)[:, 0], weight=CLASS_WEIGHTS),
    ],
    "multilabel_margin_loss": [
        lambda a, b: F.multilabel_margin_loss(a[:, 0], numbers(b[:, 0], WIDTH), reduction="none"),
    ],
}

REDUCTIONS = {
    "diff": [
        lambda a, b: a.diff(prepend=b, dim=1),
        lambda a, b: a.diff(append=b[:, :1], dim=1),
        lambda a, b: a.diff(dim=-1) * b[..., 1:],
    ],
    "dist": [lambda a, b: a * torch.dist(a, b)],
    "trapezoid": [lambda a, b: torch.trapezoid(a, b, dim=1)],
    "cumulative_trapezoid": [lambda a, b: torch.cumulative_trapezoid(a, b, dim=1)],
    "searchsorted": [
        lambda a, b: b * torch.searchsorted(a.sort()[0], b),
        lambda a, b: a * torch.searchsorted(THRESHOLDS, b),
    ],
}

SHAPES = {
    "cat": [
        lambda a, b: torch.cat([a, b], 1),
        lambda a, b: torch.cat([a, b], 0).relu()[a.shape[0] :],
        lambda a, b: torch.cat([a, b], 0).chunk(2)[1] * a,
        lambda a, b: torch.cat([a, b], 0).view(2, -1, TOKENS, WIDTH)[0],
        lambda a, b: torch.mul(*torch.cat([a, b], 0).split(a.shape[0])),
        lambda a, b: torch.cat([a, b], 0).relu()[: a.shape[0]],
    ],
    "stack": [
        lambda a, b: torch.stack([a, b], 1),
        lambda a, b: torch.stack([a, b], -1),
        lambda a, b: torch.stack([a, b], 0).flatten(0, 1).view(2, -1, TOKENS, WIDTH)[1],
        lambda a, b: torch.stack([a, b]).transpose(0, 1),
    ],
    "hstack": [lambda a, b: torch.hstack([a, b])],
    "vstack": [lambda a, b: torch.vstack([a, b]).view(2, -1, TOKENS, WIDTH).sum(0)],
    "dstack": [lambda a, b: torch.dstack([a, b])],
    "column_stack": [lambda a, b: torch.column_stack([a[:, 0, 0], b[:, 0]])],
}

OTHERS = {
    "linalg_solve": [lambda a, b: torch.linalg.solve(square(a), b)],
    "linalg_solve_ex": [lambda a, b: torch.linalg.solve_ex(square(a), b)[0]],
    "take": [lambda a, b: a * TABLE.take(classes(b))[..., None]],
    "put": [lambda a, b: a * TABLE.put(classes(a), b[..., 0], True).sum()],
    "diagonal_scatter": [lambda a, b: a.diagonal_scatter(b[:, :, 0], 0, 1, 2)],
    "block_diag": [lambda a, b: torch.block_diag(a[:, 0], b[:, 0])[: a.shape[0]]],
    "meshgrid": [
        lambda a, b: (
            torch.stack(torch.meshgrid(a[:, 0, 0], THRESHOLDS, indexing="ij"), -1) * b[:, :3, :2]
        )
    ],
    "cartesian_prod": [
        lambda a, b: torch.cartesian_prod(a[:, 0, 0], THRESHOLDS).view(-1, 3, 2) * b[:, :3, :2]
    ],
    "addr": [lambda a, b, c: torch.addr(a[:, 0], b[:, 0, 0], (b[:, 0] * c[:, 0]).sum(0))],
}

FAMILIES: tuple[Mapping[str, Any], ...] = (
    CONVOLUTIONS, EMBEDDINGS, INDEXING, NOISE, NORMS, POINTWISE, POOLING, PRODUCTS, RECURRENT,
    LOSSES, REDUCTIONS, SHAPES, OTHERS,
)  # fmt: skip
USES = [
    Use(key, number, call, len(inspect.signature(call).parameters))
    for family in FAMILIES
    for key, calls in family.items()
    for number, call in enumerate(calls)
]

# Rows that take several tensors, of which one at most is an activation with a batch.
ONE_ACTIVATION = {
    **dict.fromkeys(
        ("layer_norm", "rms_norm", "_fused_rms_norm", "native_layer_norm"),
        "weights have the shape of what is normalised, which has no batch",
    ),
    **dict.fromkeys(("native_batch_norm", "native_group_norm"), "opaque; capture keeps batch_norm"),
    **dict.fromkeys(("linspace", "logspace", "fill", "randint_like"), "the others are numbers"),
    **dict.fromkeys(("quantile", "nanquantile"), "the others are numbers"),
    "linalg_pinv": "the others are tolerances",
    "embedding": "a table has no batch",
    "conv_tbc": "a kernel has no batch",
    **dict.fromkeys(("stft", "istft"), "a window has no batch"),
    **dict.fromkeys(("bincount", "cov"), "weights of observations: all are counted as one"),
    "gradient": "steps between positions, which stay",
    "repeat_interleave": "numbers of copies; how many results there are depends on values",
    "type_as": "the other one gives its type alone",
    "to": "the other one gives its type alone",
    "ctc_loss": "torch.export has no such operator",
    **dict.fromkeys(
        ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
        "of inference in eager mode: torch.export writes their parts",
    ),
}

# What heads are where they are not one free axis of all activations, or not copied exactly.
APART = {  # free, but the operator need not relate them
    "addbmm-0": "all matrices of the batch are added up",
    "block_diag-0": "blocks",
    "outer-0": "every position with every other",
    "kron-0": "every position with every other",
    "cat-1": "one part is cut out again",
    "cat-5": "one part is cut out again",
}
SPANNED = {
    "isin-1": "elements are compared with all of the others",
    **dict.fromkeys(("mse_loss-1", "cross_entropy_loss-1", "margin_ranking_loss-1"), "a mean"),
    **dict.fromkeys(("triplet_margin_loss-1", "multi_margin_loss-1"), "a mean"),
    **dict.fromkeys(("mse_loss-2", "cross_entropy_loss-2"), "a sum"),
}
PINNED = {
    **dict.fromkeys(
        ("embedding_bag-0", "embedding_bag-1", "embedding_bag-2", "embedding_bag-3"),
        "bags are parts of one list",
    ),
    "index_put-3": "which number is written last, or how often, depends on values",
    **dict.fromkeys(("masked_scatter-0", "masked_scatter-1"), "filled in order"),
    **dict.fromkeys(("bucketize-1", "bucketize-2"), "boundaries are in order"),
    "put-0": "positions of the flattened tensor",
}
# Sums over the batch, for which no layer's weights are divided: no factor is known to a part of it.
SUMMED = {
    f"{key}-0"
    for key in (
        "mm",
        "mv",
        "dot",
        "vdot",
        "addmm",
        "addmv",
        "addbmm",
        "addr",
        "outer",
        "dist",
        "linear",
        "inner",
        "kron",
    )
} | {"matmul-2", "tensordot-0", "chain_matmul-0", "linalg_multi_dot-0"}
RANDOM = {"bernoulli.Tensor", "normal"}
