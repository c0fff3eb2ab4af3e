"""One tiny use of every operator row, and what cutting the axis that feeds it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

aten: Any = torch.ops.aten  # operators that torch's own functions do not reach directly
C = 8  # channels of an activation

# What an operand is before its producer: images, sequences, rows.
INPUTS = {"image": (2, 3, 6, 6), "tokens": (2, 5, 3), "row": (2, 3)}


@dataclass(frozen=True)
class Example:
    """A use of one row.

    Attributes:
        key: The row's key in ROWS.
        call: The use, from the module and its activations to a tensor.
        kind: What the activations are.
        operands: How many; each is made by a layer of its own.
        expect: Per operand ``free``, ``partly`` free, ``spanned`` or ``pinned``: what its
            channels should be.
        out: Dimension of the result that the following layer reads.
        params: Shapes of further parameters.
    """

    key: str
    call: Callable[..., Any]
    kind: str = "image"
    operands: int = 1
    expect: str = "free"
    out: int = -1
    params: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def keeps_shape(self) -> bool:
        """Whether the use gives an activation of its operand's shape."""
        if self.operands != 1 or self.params or self.kind == "row":
            return False
        shape = (2, C, 6, 6) if self.kind == "image" else (2, 5, C)
        found = self.call(None, torch.rand(shape))
        return bool(found.shape == shape and found.dtype == torch.float32)


class Net(nn.Module):
    """Activations made by layers, the example's operator, and a layer that reads its result."""

    def __init__(self, example: Example, *then: Example) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.examples = (example, *then)
        image = example.kind == "image"
        self.make = nn.ModuleList(
            nn.Conv2d(3, C, 1) if image else nn.Linear(3, C) for _ in range(example.operands)
        )
        for name, shape in example.params.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        with torch.no_grad():
            width = self.body(torch.rand(INPUTS[example.kind])).shape[self.examples[-1].out]
        self.read = nn.Linear(width, 3)

    def body(self, x):
        operands = [make(x) for make in self.make]
        for example in self.examples:
            operands = [example.call(self, *operands)]
        return operands[0]

    def forward(self, x):
        y = self.body(x)
        return self.read(y.to(x.dtype).movedim(self.examples[-1].out, -1))

    def input(self) -> torch.Tensor:
        return torch.rand(INPUTS[self.examples[0].kind])


def image(key, call, expect="free", operands=1, out=1, **params):
    return Example(key, call, "image", operands, expect, out, params)


def tokens(key, call, expect="free", operands=1, out=-1, **params):
    return Example(key, call, "tokens", operands, expect, out, params)


def row(key, call, expect="free", operands=1, out=-1, **params):
    return Example(key, call, "row", operands, expect, out, params)


def heads(x):
    """[N, T, C] as [N, 2, T, 4]."""
    return x.view(x.shape[0], 5, 2, 4).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(x.shape[0], 5, C)


INDEX = torch.tensor([1, 0, 3, 2, 2])

WEIGHTS = [
    image("conv2d", lambda m, a: F.conv2d(a, m.w, m.b, padding=1), w=(6, C, 3, 3), b=(6,)),
    image("conv2d", lambda m, a: F.conv2d(a, m.w, groups=C), w=(2 * C, 1, 3, 3)),
    image("conv2d", lambda m, a: F.conv2d(a, m.w, groups=2), w=(6, C // 2, 3, 3)),
    image(  # a kernel that forward computes: exact, since the activation is zero where masked
        "conv2d",
        lambda m, a: F.conv2d(a, m.w.exp()),
        w=(6, C, 1, 1),
    ),
    image("conv2d", lambda m, a: F.conv2d(a.sigmoid(), m.w.exp()), "spanned", w=(6, C, 1, 1)),
    tokens("conv1d", lambda m, a: F.conv1d(a.mT, m.w, padding=1), out=1, w=(6, C, 3)),
    tokens("conv1d", lambda m, a: F.conv1d(a.mT, m.w, m.b, groups=4), out=1, w=(12, 2, 3), b=(12,)),
    image("conv3d", lambda m, a: F.conv3d(a[:, :, None], m.w), out=1, w=(6, C, 1, 3, 3)),
    image(
        "convolution",
        lambda m, a: aten.convolution(a, m.w, m.b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        w=(6, C, 1, 1),
        b=(6,),
    ),
    image(
        "convolution",
        lambda m, a: aten.convolution(a, m.w, m.b, [1, 1], [0, 0], [1, 1], True, [0, 0], 1),
        w=(C, 6, 1, 1),
        b=(6,),
    ),
    image("conv_transpose2d", lambda m, a: F.conv_transpose2d(a, m.w, m.b), w=(C, 6, 2, 2), b=(6,)),
    image("conv_transpose2d", lambda m, a: F.conv_transpose2d(a, m.w, groups=2), w=(C, 3, 2, 2)),
    image("conv_transpose2d", lambda m, a: F.conv_transpose2d(a, m.w, groups=C), w=(C, 1, 2, 2)),
    tokens("conv_transpose1d", lambda m, a: F.conv_transpose1d(a.mT, m.w), out=1, w=(C, 6, 2)),
    image(
        "conv_transpose3d", lambda m, a: F.conv_transpose3d(a[:, :, None], m.w), w=(C, 6, 1, 2, 2)
    ),
    tokens("linear", lambda m, a: F.linear(a, m.w, m.b), w=(6, C), b=(6,)),
    row("linear", lambda m, a: F.linear(a, m.w)[:, None], w=(C,)),
    tokens("linear", lambda m, a: F.linear(a, m.w.sigmoid()), w=(6, C)),
    tokens("linear", lambda m, a: F.linear(a.exp(), m.w.exp()), "spanned", w=(6, C)),
    tokens("linear", lambda m, a: F.linear(a.softmax(-1), m.w), "spanned", w=(6, C)),
    tokens(
        "bilinear", lambda m, a, b: F.bilinear(a, b, m.w, m.b), "free free", 2, w=(6, C, C), b=(6,)
    ),
    tokens(
        "bilinear",
        lambda m, a, b: F.bilinear(a.exp(), b, m.w.exp()),
        "spanned free",
        2,
        w=(6, C, C),
    ),
    row(
        "embedding",
        lambda m, a: F.embedding((a[:, :1] > 0).long(), m.w)[:, 0] * a,
        "free",
        w=(4, C),
    ),
    row(
        "embedding_bag",
        lambda m, a: F.embedding_bag((a > 0).long()[:, :3].detach(), m.w) + a[:, :1],
        "partly",
        w=(4, C),
    ),
    row(
        "embedding_bag.padding_idx",
        lambda m, a: (
            F.embedding_bag((m.t.sum(0) > 0).long().expand(a.shape[0], 3), m.w, mode="mean") * a
        ),
        "free",
        w=(4, C),
        t=(2, 3),
    ),
    row("addmm", lambda m, a: torch.addmm(m.b, a, m.w), w=(C, 6), b=(6,)),
    row("addmv", lambda m, a: torch.addmv(m.b, m.w, a.sum(0)), "free", w=(6, C), b=(6,)),
]

PRODUCTS = [
    tokens("baddbmm", lambda m, a, b: torch.baddbmm(m.z, a, b.mT), "free free", 2, z=(1, 5, 5)),
    tokens(
        "addbmm",
        lambda m, a, b: torch.addbmm(m.z, a.mT, b).flatten()[None],
        "free free",
        2,
        z=(C, C),
    ),
    tokens("matmul", lambda m, a, b: a @ b.mT, "free free", 2),
    tokens("matmul", lambda m, a, b: a @ b.mT.exp(), "free free", 2),
    tokens("matmul", lambda m, a, b: a.exp() @ b.mT.sigmoid(), "spanned spanned", 2),
    tokens("matmul", lambda m, a, b: F.elu(a) @ b.mT + 1, "free free", 2),
    tokens(  # linear attention: positive features are summed over
        "matmul",
        lambda m, a, b, v: (F.elu(a) + 1) @ ((F.elu(b) + 1).mT @ v),
        "spanned spanned free",
        3,
    ),
    tokens(
        "matmul",
        lambda m, a, b, v: joined((heads(a) @ heads(b).mT * 0.5).softmax(-1) @ heads(v)),
        "free free free",
        3,
    ),
    tokens("matmul", lambda m, a: (a.mT @ a.exp()).flatten(1), "free"),
    row("matmul", lambda m, a: (a @ m.w)[:, None], w=(C,)),
    tokens("bmm", lambda m, a, b: torch.bmm(a, b.mT), "free free", 2),
    row("mm", lambda m, a, b: torch.mm(a, b.T), "free free", 2, out=0),
    row("mv", lambda m, a: torch.mv(a, m.w)[:, None], w=(C,)),
    row("dot", lambda m, a: torch.dot(a.sum(0), m.w)[None], w=(C,)),
    row("vdot", lambda m, a: torch.vdot(a.sum(0), m.w)[None], w=(C,)),
    row("chain_matmul", lambda m, a: aten.chain_matmul([a, m.w, m.v]), w=(C, 6), v=(6, 4)),
    row("linalg_multi_dot", lambda m, a: torch.linalg.multi_dot([a, m.w, m.v]), w=(C, 6), v=(6, 4)),
    row(
        "linalg_multi_dot",
        lambda m, a: torch.linalg.multi_dot([a.exp(), m.w.exp(), m.v]),
        "spanned",
        w=(C, 6),
        v=(6, 4),
    ),
    tokens("inner", lambda m, a: torch.inner(a, m.w), w=(6, C)),
    tokens("linalg_vecdot", lambda m, a, b: torch.linalg.vecdot(a, b), "free free", 2),
    tokens(
        "linalg_vecdot", lambda m, a, b: torch.linalg.vecdot(a.exp(), b.cos()), "spanned spanned", 2
    ),
    tokens("tensordot", lambda m, a: torch.tensordot(a, m.w, dims=([2], [0])), w=(C, 6)),
    row("outer", lambda m, a: torch.outer(a[0], m.w).flatten()[None], "free", w=(5,)),
    row("kron", lambda m, a: torch.kron(a, m.w), "free", w=(1, 4)),
    tokens("einsum", lambda m, a: torch.einsum("ntc,co->nto", a, m.w), w=(C, 6)),
    tokens("einsum", lambda m, a, b: torch.einsum("nqc,nkc->nqk", a, b), "free free", 2),
    tokens(
        "einsum",
        lambda m, a, b: torch.einsum("nqc,nkc->nqk", a.exp(), b.exp()),
        "spanned spanned",
        2,
    ),
    tokens("einsum", lambda m, a, b: torch.einsum("...qc,...kc->...qk", a, b), "free free", 2),
    tokens("einsum", lambda m, a: torch.einsum("ntc,co,o->nto", a, m.w, m.v), w=(C, 6), v=(6,)),
    tokens("einsum", lambda m, a: torch.einsum("ntc->nt", a), "free"),
    tokens("einsum", lambda m, a: torch.einsum("ntc->nt", a.exp()), "spanned"),
    tokens("einsum", lambda m, a, b: torch.einsum("ntc,ntd->ncd", a, b).flatten(1), "free free", 2),
    tokens("einsum", lambda m, a, b: torch.einsum("...c,...c", a, b), "free free", 2),
    tokens(
        "einsum",
        lambda m, a, b, v: torch.einsum(
            "nhqk,nhkd->nqhd",
            torch.einsum("nhqd,nhkd->nhqk", heads(a), heads(b)).softmax(-1),
            heads(v),
        ).flatten(2),
        "free free free",
        3,
    ),
    tokens(
        "scaled_dot_product_attention",
        lambda m, a, b, v: joined(F.scaled_dot_product_attention(heads(a), heads(b), heads(v))),
        "free free free",
        3,
    ),
    tokens(
        "scaled_dot_product_attention",
        lambda m, a, b, v: F.scaled_dot_product_attention(a.exp(), b.exp(), v),
        "spanned spanned free",
        3,
    ),
    tokens(
        "scaled_dot_product_attention",
        lambda m, a, b, v: joined(
            F.scaled_dot_product_attention(
                heads(a), heads(b)[:, :1], heads(v)[:, :1], enable_gqa=True
            )
        ),
        "free free free",
        3,
    ),
    tokens("cdist", lambda m, a, b: torch.cdist(a, b), "free free", 2),
    tokens("cdist", lambda m, a, b: torch.cdist(a.exp(), b), "spanned spanned", 2),
    row(
        "pairwise_distance",
        lambda m, a, b: F.pairwise_distance(a, b, keepdim=True),
        "spanned spanned",
        2,
    ),
    tokens("cosine_similarity", lambda m, a, b: F.cosine_similarity(a, b, dim=-1), "free free", 2),
    tokens(
        "cosine_similarity",
        lambda m, a, b: F.cosine_similarity(a.exp(), b, dim=-1),
        "spanned spanned",
        2,
    ),
    tokens(
        "linalg_cross",
        lambda m, a, b: torch.linalg.cross(a[:, :3], b[:, 1:4], dim=1),
        "free free",
        2,
    ),
    tokens(
        "cross", lambda m, a, b: torch.cross(a[..., :3], b[..., :3], dim=-1), "partly partly", 2
    ),
]


NORMS = [
    image(
        "batch_norm",
        lambda m, a: F.batch_norm(a, m.r.detach(), m.v.detach().exp(), m.w, m.b),
        r=(C,),
        v=(C,),
        w=(C,),
        b=(C,),
    ),
    image(
        "batch_norm", lambda m, a: F.batch_norm(a, m.r.detach(), m.v.detach().exp()), r=(C,), v=(C,)
    ),
    image(
        "_native_batch_norm_legit",
        lambda m, a: aten._native_batch_norm_legit.no_stats(a, m.w, m.b, True, 0.1, 1e-5)[0],
        w=(C,),
        b=(C,),
    ),
    image("instance_norm", lambda m, a: F.instance_norm(a, weight=m.w, bias=m.b), w=(C,), b=(C,)),
    image("group_norm", lambda m, a: F.group_norm(a, 4, m.w, m.b), "spanned", w=(C,), b=(C,)),
    image("group_norm", lambda m, a: F.group_norm(a, C, m.w, m.b), w=(C,), b=(C,)),
    tokens("layer_norm", lambda m, a: F.layer_norm(a, (C,), m.w, m.b), "spanned", w=(C,), b=(C,)),
    tokens("layer_norm", lambda m, a: F.layer_norm(a, (C,)), "spanned"),
    tokens("rms_norm", lambda m, a: F.rms_norm(a, (C,), m.w), "spanned", w=(C,)),
    tokens(
        "native_layer_norm",
        lambda m, a: aten.native_layer_norm(a, [C], m.w, m.b, 1e-5)[0],
        "spanned",
        w=(C,),
        b=(C,),
    ),
    tokens(
        "_fused_rms_norm",
        lambda m, a: aten._fused_rms_norm(a, [C], m.w, 1e-5)[0],
        "spanned",
        w=(C,),
    ),
    tokens(
        "_weight_norm",
        lambda m, a: F.linear(a, torch._weight_norm(m.v, m.g, 0)),
        v=(6, C),
        g=(6, 1),
    ),
    tokens(
        "_weight_norm_interface",
        lambda m, a: F.linear(a, aten._weight_norm_interface(m.v, m.g, 0)[0]),
        v=(6, C),
        g=(6, 1),
    ),
]

POINTWISE = [
    tokens("softmax", lambda m, a: a.softmax(-1), "spanned"),
    tokens("softmax", lambda m, a: a.softmax(1), "free"),
    tokens("log_softmax", lambda m, a: a.log_softmax(-1), "spanned"),
    tokens("_softmax", lambda m, a: aten._softmax(a, -1, False), "spanned"),
    tokens("_log_softmax", lambda m, a: aten._log_softmax(a, -1, False), "spanned"),
    tokens("_safe_softmax", lambda m, a: aten._safe_softmax(a, -1), "spanned"),
    image("glu", lambda m, a: F.glu(a, 1)),
    image("prelu", lambda m, a: F.prelu(a, m.w), w=(C,)),
    image("prelu", lambda m, a: F.prelu(a, m.w), w=(1,)),
    image("dropout", lambda m, a: F.dropout(a, 0.5, False)),
    image("feature_dropout", lambda m, a: F.dropout2d(a, 0.5, False)),
    image("alpha_dropout", lambda m, a: F.alpha_dropout(a, 0.5, False)),
    image("feature_alpha_dropout", lambda m, a: F.feature_alpha_dropout(a, 0.5, False)),
    image("native_dropout", lambda m, a: aten.native_dropout(a, 0.5, False)[0]),
    image("add", lambda m, a, b: a + b, "free free", 2),
    image("add", lambda m, a: a + m.w, w=(C, 1, 1)),
    image("sub", lambda m, a, b: a - b, "free free", 2),
    image("rsub", lambda m, a: torch.rsub(a, 1)),
    image("mul", lambda m, a, b: a * b, "free free", 2),
    image("mul", lambda m, a: a * a.mean((2, 3), keepdim=True).sigmoid()),
    image("div", lambda m, a, b: a / (b.abs() + 1), "free free", 2),
    image("div", lambda m, a, b: a / b.abs(), "free free", 2),
    image("div", lambda m, a, b: a.exp() / b.abs(), "spanned spanned", 2),
    image("div", lambda m, a, b: (a / b.abs()).sum(1), "spanned spanned", 2),
    image("div", lambda m, a: (a / 2).sum(1)),
    image("reciprocal", lambda m, a: a.abs().reciprocal(), "spanned"),
    image("log", lambda m, a: a.abs().log(), "spanned"),
    image("to", lambda m, a: a.double().sin().float()),
    image("detach", lambda m, a: a + a.detach()),
    image("rrelu", lambda m, a: F.rrelu(a)),
    image("bernoulli", lambda m, a: a + 0 * torch.bernoulli(a.sigmoid())),
    image("bernoulli.p", lambda m, a: a + 0 * aten.bernoulli.p(a, 0.5)),
    image("poisson", lambda m, a: a + 0 * torch.poisson(a.abs())),
    image("normal_functional", lambda m, a: a + 0 * aten.normal_functional(a)),
    *(
        image(key, call)
        for key, call in {
            "uniform": lambda m, a: a + 0 * aten.uniform(a),
            "exponential": lambda m, a: a + 0 * aten.exponential(a),
            "geometric": lambda m, a: a + 0 * aten.geometric(a, 0.5),
            "log_normal": lambda m, a: a + 0 * aten.log_normal(a),
            "cauchy": lambda m, a: a + 0 * aten.cauchy(a).clamp(-1, 1),
            "ones_like": lambda m, a: a + torch.ones_like(a),
            "full_like": lambda m, a: a + torch.full_like(a, 2.0),
            "zeros_like": lambda m, a: a + torch.zeros_like(a),
            "empty_like": lambda m, a: a + 0 * torch.empty_like(a).nan_to_num(),
            "rand_like": lambda m, a: a + 0 * torch.rand_like(a),
            "randn_like": lambda m, a: a + 0 * torch.randn_like(a),
            "randint_like": lambda m, a: a + 0 * torch.randint_like(a.detach(), 3),
            "fill": lambda m, a: a + aten.fill(a, 2.0),
            "celu": lambda m, a: F.celu(a),
            "selu": lambda m, a: F.selu(a),
            "hardswish": lambda m, a: F.hardswish(a),
            "hardsigmoid": lambda m, a: F.hardsigmoid(a),
            "relu6": lambda m, a: aten.relu6(a),
            "mish": lambda m, a: F.mish(a),
            "softplus": lambda m, a: F.softplus(a),
            "log_sigmoid": lambda m, a: F.logsigmoid(a),
            "nan_to_num": lambda m, a: a.nan_to_num(),
            "hardshrink": lambda m, a: F.hardshrink(a),
            "softshrink": lambda m, a: F.softshrink(a),
            "threshold": lambda m, a: F.threshold(a, 0.1, 0.3),
            "logit": lambda m, a: a.sigmoid().logit(),
            "isreal": lambda m, a: a * torch.isreal(a),
            "_conj": lambda m, a: torch.complex(a, a).conj().imag,
            "angle": lambda m, a: torch.complex(a, a).angle(),
            "real": lambda m, a: aten.real(torch.complex(a, a)),
            "imag": lambda m, a: aten.imag(torch.complex(a, a)),
            "clamp": lambda m, a: a.clamp(-0.5, 0.5),
            "where": lambda m, a: torch.where(a > 0, a, -2 * a),
            "masked_fill": lambda m, a: a.masked_fill(a > 0.5, 0.5),
            "bucketize": lambda m, a: torch.bucketize(a, torch.tensor([0.0, 0.5])),
            "isin": lambda m, a: a * ~torch.isin(a, torch.tensor([7.0])),
            "logical_and": lambda m, a: a * torch.logical_and(a > 0, a < 1),
            "logical_or": lambda m, a: a * torch.logical_or(a > 0, a < 1),
            "logical_xor": lambda m, a: a * torch.logical_xor(a > 0, a < 1),
            "logical_not": lambda m, a: a * torch.logical_not(a > 0),
            "bitwise_and": lambda m, a: a * torch.bitwise_and(a > 0, a < 1),
            "__and__": lambda m, a: a * aten.__and__((a > 0), a < 1),
            "__or__": lambda m, a: a * aten.__or__((a > 0), a < 1),
            "__xor__": lambda m, a: a * aten.__xor__((a > 0), a < 1),
            "__lshift__": lambda m, a: a * aten.__lshift__((a > 0).int(), 1),
            "__rshift__": lambda m, a: a * aten.__rshift__((a > 0).int(), 1),
        }.items()
    ),
    image("normal", lambda m, a: a + 0 * aten.normal.Tensor_float(a, 1.0)),
    image("copy", lambda m, a, b: aten.copy(a, b), "free free", 2),
    image("max.other", lambda m, a, b: torch.max(a, b), "free free", 2),
    image("min.other", lambda m, a, b: torch.min(a, b), "free free", 2),
    image("lerp", lambda m, a, b: torch.lerp(a, b, 0.3), "free free", 2),
    image("floor_divide", lambda m, a: a.floor_divide(2.0)),
    image("isclose", lambda m, a, b: torch.isclose(a, b), "free free", 2),
    image("mul", lambda m, a: torch.multiply(a, 2.0)),
    image("getitem", lambda m, a: torch.var_mean(a, (2, 3))[0]),
    image("complex", lambda m, a, b: torch.complex(a, b).abs(), "free free", 2),
    image("polar", lambda m, a, b: torch.polar(a.abs(), b).real, "free free", 2),
    image(
        "broadcast_tensors",
        lambda m, a: torch.mul(*torch.broadcast_tensors(a, a.mean((2, 3), keepdim=True).exp())),
    ),
    tokens("randperm", lambda m, a: a[:, 0 * torch.randperm(5)]),
]

NEW = [
    *(
        tokens(key, call)
        for key, call in {
            "zeros": lambda m, a: a + torch.zeros(a.shape[0], 5, C),
            "ones": lambda m, a: a + torch.ones(a.shape[0], 5, C),
            "full": lambda m, a: a + torch.full((a.shape[0], 5, C), 2.0),
            "rand": lambda m, a: a + 0 * torch.rand(a.shape[0], 5, C),
            "randn": lambda m, a: a + 0 * torch.randn(a.shape[0], 5, C),
            "randint": lambda m, a: a + 0 * torch.randint(3, (a.shape[0], 5, C)),
            "empty": lambda m, a: a + 0 * torch.empty(a.shape[0], 5, C).nan_to_num(),
            "new_zeros": lambda m, a: a + a.new_zeros(a.shape[0], 5, C),
            "new_ones": lambda m, a: a + a.new_ones(a.shape[0], 5, C),
            "new_full": lambda m, a: a + a.new_full((a.shape[0], 5, C), 2.0),
            "new_empty": lambda m, a: a + 0 * a.new_empty(a.shape[0], 5, C).nan_to_num(),
            "arange": lambda m, a: a + torch.arange(a.shape[0])[:, None, None],
        }.items()
    ),
    tokens(  # ones are not zero where masked: the sum over them is not the cut network's
        "ones", lambda m, a: torch.ones(a.shape[0], 5, C) @ a.exp().mT, "spanned"
    ),
    tokens("zeros", lambda m, a: torch.zeros(a.shape[0], 5, C) @ a.exp().mT),
    tokens("one_hot", lambda m, a: F.one_hot((a > 0).long(), 3).flatten(2)),
]

REDUCTIONS = [
    image("sum", lambda m, a: a.sum((2, 3))),
    image("sum", lambda m, a: a.sum(1), out=-1),
    image("sum", lambda m, a: a.exp().sum(1), "spanned", out=-1),
    image("sum", lambda m, a: a.relu().sum(1, keepdim=True) * a),
    image("sum", lambda m, a: (a * a.sigmoid()).sum(1)),
    image("sum", lambda m, a: a.sigmoid().sum(1), "spanned"),
    image("sum", lambda m, a: (a + 1).sum(1), "spanned"),
    image("nansum", lambda m, a: a.nansum(1)),
    image("linalg_vector_norm", lambda m, a: torch.linalg.vector_norm(a, dim=1)),
    image(
        "linalg_vector_norm",
        lambda m, a: torch.linalg.vector_norm(a, float("-inf"), dim=1),
        "spanned",
    ),
    image("linalg_vector_norm", lambda m, a: F.normalize(a, dim=1)),
    image("norm", lambda m, a: aten.norm.ScalarOpt_dim(a, 2, [1])),
    image("any", lambda m, a: (a > 0.5).any(1)),
    image("count_nonzero", lambda m, a: torch.count_nonzero(a > 0.5, 1)),
    image("any", lambda m, a: a.any(1), "spanned"),
    image("sum", lambda m, a: a.sign().sum(1), "spanned"),
    image("all", lambda m, a: (a < 0.5).all(1), "spanned"),
    image("count_nonzero", lambda m, a: torch.count_nonzero(a, 1), "spanned"),
    image("logsumexp", lambda m, a: a.logsumexp(1), "spanned"),
    *(
        image(key, call, "spanned")
        for key, call in {
            "mean": lambda m, a: a.mean(1),
            "nanmean": lambda m, a: a.nanmean(1),
            "amax": lambda m, a: a.amax(1),
            "amin": lambda m, a: a.amin(1),
            "aminmax": lambda m, a: torch.aminmax(a, dim=1)[0],
            "var": lambda m, a: a.var(1),
            "std": lambda m, a: a.std(1),
            "prod": lambda m, a: a.prod(1),
            "max": lambda m, a: a.max(1)[0],
            "min": lambda m, a: a.min(1)[0],
            "var_mean": lambda m, a: torch.var_mean(a, 1)[1],
            "std_mean": lambda m, a: torch.std_mean(a, 1)[0],
            "median": lambda m, a: a.median(1)[0],
            "nanmedian": lambda m, a: a.nanmedian(1)[0],
        }.items()
    ),
    # Where an extreme is asks for the order of positions.
    *(
        image(key, call, "pinned")
        for key, call in {
            "argmax": lambda m, a: a.argmax(1),
            "argmin": lambda m, a: a.argmin(1),
            "max": lambda m, a: a.max(1)[1],
            "min": lambda m, a: a * a.min(1, keepdim=True).indices,
            "median": lambda m, a: a.median(1)[1],
            "nanmedian": lambda m, a: a.nanmedian(1)[1],
        }.items()
    ),
    image("mean", lambda m, a: a.mean((2, 3))),
    image("max", lambda m, a: a.max(2)[0].max(2)[0]),
]

FOURIER = [f"{i}{real}fft" for i in ("", "i") for real in ("", "r", "h")]

ALONG = [
    *(
        tokens(key, call, "pinned")
        for key, call in {
            "cumsum": lambda m, a: a.cumsum(-1),
            "cumprod": lambda m, a: a.cumprod(-1),
            "cummax": lambda m, a: a.cummax(-1)[0],
            "cummin": lambda m, a: a.cummin(-1)[0],
            "flip": lambda m, a: a.flip(-1),
            "roll": lambda m, a: a.roll(1, -1),
            "rot90": lambda m, a: a.rot90(1, (1, 2)),
            "sort": lambda m, a: a.sort(-1)[0],
            "topk": lambda m, a: a.topk(2, -1)[0],
            "msort": lambda m, a: a.movedim(-1, 0).msort().movedim(0, -1),
            "diff": lambda m, a: a.diff(dim=-1),
            "argsort": lambda m, a: a.argsort(-1),
            "logcumsumexp": lambda m, a: a.logcumsumexp(-1),
            "fft_fft": lambda m, a: torch.fft.fft(a).abs(),
            "fft_fftn": lambda m, a: torch.fft.fftn(a).abs(),
            "fft_fft2": lambda m, a: torch.fft.fft2(a, (4, 4)).abs(),
            "fft_fftshift": lambda m, a: torch.fft.fftshift(a),
            "kthvalue": lambda m, a: a.kthvalue(2, -1)[0],
            "mode": lambda m, a: a.mode(-1)[0],
        }.items()
    ),
    tokens("cumsum", lambda m, a: a.cumsum(1)),
    *(
        image(f"fft_{name}2", lambda m, a, f=name: getattr(torch.fft, f"{f}2")(a).abs())
        for name in FOURIER
    ),
    *(
        tokens(f"fft_{name}", lambda m, a, f=name: getattr(torch.fft, f)(a, dim=1).abs())
        for name in FOURIER
    ),
    *(
        tokens(f"fft_{name}n", lambda m, a, f=name: getattr(torch.fft, f"{f}n")(a, dim=[1]).abs())
        for name in FOURIER
    ),
    image("fft_rfftn", lambda m, a: torch.fft.rfftn(a, s=(4, 4), norm="ortho").imag),
    tokens("fft_fftshift", lambda m, a: torch.fft.fftshift(a, dim=1)),
    tokens("fft_ifftshift", lambda m, a: torch.fft.ifftshift(a, dim=(1,))),
    tokens("trapezoid", lambda m, a: torch.trapezoid(a), "pinned"),
    tokens("trapezoid", lambda m, a: torch.trapezoid(a, torch.arange(5.0), dim=1)),
    tokens("renorm", lambda m, a: a.renorm(2, 2, 1.0)),
    tokens("renorm", lambda m, a: a.renorm(1, 1, 1.0)),
    tokens("renorm", lambda m, a: a.exp().renorm(2, 1, 1.0), "spanned"),
    tokens("flip", lambda m, a: a.flip(1)),
    tokens("roll", lambda m, a: a.roll(2, 1)),
    row("roll", lambda m, a: aten.roll(a[0], [3])[None] * 2, "pinned"),
    tokens("sort", lambda m, a: a.sort(1)[0]),
    tokens("topk", lambda m, a: a.topk(2, 1)[1]),
    tokens("kthvalue", lambda m, a: a.kthvalue(2, 1)[0]),
    tokens("mode", lambda m, a: a.mode(1)[0]),
    tokens("argsort", lambda m, a: a.argsort(1)),
]

POOLING = [
    image("max_pool2d", lambda m, a: F.max_pool2d(a, 2)),
    image("avg_pool2d", lambda m, a: F.avg_pool2d(a, 2)),
    image("adaptive_avg_pool2d", lambda m, a: F.adaptive_avg_pool2d(a, 2)),
    image("adaptive_max_pool2d", lambda m, a: F.adaptive_max_pool2d(a, 2)),
    image("max_pool2d_with_indices", lambda m, a: F.max_pool2d(a, 2, return_indices=True)[1]),
    image(
        "fractional_max_pool2d",
        lambda m, a: aten.fractional_max_pool2d(
            a, [2, 2], [3, 3], torch.full((a.shape[0], 8, 2), 0.3)
        )[0],
    ),
    image("reflection_pad2d", lambda m, a: aten.reflection_pad2d(a, [1, 1, 1, 1])),
    image("replication_pad2d", lambda m, a: aten.replication_pad2d(a, [1, 1, 1, 1])),
    *(
        tokens(key, call, out=1)
        for key, call in {
            "max_pool1d": lambda m, a: F.max_pool1d(a.mT, 2),
            "max_pool1d_with_indices": lambda m, a: F.max_pool1d(a.mT, 2, return_indices=True)[0],
            "avg_pool1d": lambda m, a: F.avg_pool1d(a.mT, 2),
            "adaptive_avg_pool1d": lambda m, a: F.adaptive_avg_pool1d(a.mT, 2),
            "adaptive_max_pool1d": lambda m, a: F.adaptive_max_pool1d(a.mT, 2),
            "reflection_pad1d": lambda m, a: aten.reflection_pad1d(a.mT, [1, 1]),
            "replication_pad1d": lambda m, a: aten.replication_pad1d(a.mT, [1, 1]),
            "upsample_nearest1d": lambda m, a: F.interpolate(a.mT, scale_factor=2.0),
            "upsample_linear1d": lambda m, a: F.interpolate(a.mT, scale_factor=2.0, mode="linear"),
        }.items()
    ),
    *(
        image(key, call)
        for key, call in {
            "max_pool3d": lambda m, a: F.max_pool3d(a[:, :, None], (1, 2, 2)),
            "max_pool3d_with_indices": lambda m, a: aten.max_pool3d_with_indices(
                a[:, :, None], [1, 2, 2]
            )[0],
            "avg_pool3d": lambda m, a: F.avg_pool3d(a[:, :, None], (1, 2, 2)),
            "adaptive_avg_pool3d": lambda m, a: F.adaptive_avg_pool3d(a[:, :, None], 1),
            "adaptive_max_pool3d": lambda m, a: F.adaptive_max_pool3d(a[:, :, None], 1),
            "reflection_pad3d": lambda m, a: aten.reflection_pad3d(
                a[:, :, None], [1, 1, 1, 1, 0, 0]
            ),
            "replication_pad3d": lambda m, a: aten.replication_pad3d(
                a[:, :, None], [1, 1, 1, 1, 0, 0]
            ),
            "upsample_nearest2d": lambda m, a: F.interpolate(a, scale_factor=2.0),
            "upsample_nearest3d": lambda m, a: F.interpolate(a[:, :, None], scale_factor=2.0),
            "upsample_bilinear2d": lambda m, a: F.interpolate(a, scale_factor=2.0, mode="bilinear"),
            "upsample_bicubic2d": lambda m, a: F.interpolate(a, scale_factor=2.0, mode="bicubic"),
            "upsample_trilinear3d": lambda m, a: F.interpolate(
                a[:, :, None], scale_factor=2.0, mode="trilinear"
            ),
            "_upsample_bilinear2d_aa": lambda m, a: F.interpolate(
                a, (4, 4), mode="bilinear", antialias=True
            ),
            "_upsample_bicubic2d_aa": lambda m, a: F.interpolate(
                a, (4, 4), mode="bicubic", antialias=True
            ),
            "max_unpool2d": lambda m, a: F.max_unpool2d(
                *F.max_pool2d(a, 2, return_indices=True), (2, 2)
            ),
            "max_unpool3d": lambda m, a: F.max_unpool3d(
                *F.max_pool3d(a[:, :, None], (1, 2, 2), return_indices=True), (1, 2, 2)
            ),
        }.items()
    ),
    image(
        "grid_sampler",
        lambda m, a: F.grid_sample(a, a[:, :2].movedim(1, -1), align_corners=False),
        "partly",
    ),
    image(
        "grid_sampler",
        lambda m, a, b: F.grid_sample(
            a, b.mean(1, keepdim=True).expand(-1, 2, -1, -1).movedim(1, -1), align_corners=False
        ),
        "free spanned",
        2,
    ),
    image(
        "grid_sampler_2d",
        lambda m, a, b: aten.grid_sampler_2d(
            a, b.amax(1)[..., None].expand(-1, 6, 6, 2), 0, 0, False
        ),
        "free spanned",
        2,
    ),
    image(
        "grid_sampler_3d",
        lambda m, a, b: aten.grid_sampler_3d(
            a[:, :, None], b.amax(1)[:, None, :, :, None].expand(-1, 1, 6, 6, 3), 0, 0, False
        ),
        "free spanned",
        2,
    ),
]

SHAPES = [
    image("reshape", lambda m, a: a.flatten(1)),
    image("reshape", lambda m, a: a.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2)),
    image("reshape", lambda m, a: a.reshape(a.shape[0], 3, -1), "pinned"),
    image("permute", lambda m, a: a.permute(0, 2, 3, 1), out=-1),
    image("transpose", lambda m, a: a.swapaxes(1, 2), out=2),
    tokens("mT", lambda m, a: aten.mT(a), out=1),
    row("t", lambda m, a: a.t(), out=0),
    row("numpy_T", lambda m, a: a.T, out=0),
    tokens("mH", lambda m, a: aten.mH(a), out=1),
    tokens("adjoint", lambda m, a: aten.adjoint(a), out=1),
    row("matrix_H", lambda m, a: aten.matrix_H(a), out=0),
    image("movedim", lambda m, a: a.moveaxis(1, -1), out=-1),
    image("unsqueeze", lambda m, a: a.unsqueeze(1), out=2),
    image("squeeze", lambda m, a: a.mean(3, keepdim=True).squeeze(3)),
    row("expand", lambda m, a: a[:, None].expand(-1, 4, -1)),
    row("expand", lambda m, a, b: a.sum(1, keepdim=True).expand_as(b) * b, "free free", 2),
    row(
        "expand",
        lambda m, a, b: (a.sum(1, keepdim=True).expand_as(b) + b) @ m.w.exp(),
        "free spanned",
        2,
        w=(C, 4),
    ),
    tokens(
        "view_as_complex",
        lambda m, a: torch.view_as_real(
            torch.view_as_complex(a.view(*a.shape[:2], 4, 2)) * 2
        ).flatten(2),
        "partly",
    ),
    tokens("view_as_real", lambda m, a: torch.view_as_real(torch.complex(a, a)).flatten(2)),
    image("repeat", lambda m, a: a.repeat(1, 2, 1, 1)),
    image("repeat", lambda m, a: a.tile(2, 1, 1)),
    image("repeat_interleave", lambda m, a: a.repeat_interleave(2, 1)),
    image("repeat_interleave", lambda m, a: a.repeat_interleave(2, 1, output_size=2 * C)),
    tokens(
        "masked_scatter",
        lambda m, a, b: a.masked_scatter((b.detach().sum(-1, keepdim=True) > 0).expand_as(a), b),
        "free free",
        2,
    ),
    tokens("masked_scatter", lambda m, a, b: a.masked_scatter(b > 0, b), "pinned pinned", 2),
    image("cat", lambda m, a, b: torch.cat([a, b], 1), "free free", 2),
    image("cat", lambda m, a: torch.concat([a, a.exp()], 1)),
    tokens(
        "cat", lambda m, a: torch.cat([a, a.exp()], -1) @ torch.cat([a, a.exp()], -1).mT, "spanned"
    ),
    image("stack", lambda m, a, b: torch.stack([a, b], 2), "free free", 2),
    image("hstack", lambda m, a, b: torch.hstack([a, b]), "free free", 2),
    row("vstack", lambda m, a, b: torch.vstack([a, b]), "free free", 2),
    image("column_stack", lambda m, a, b: torch.column_stack([a, b]), "free free", 2),
    row("column_stack", lambda m, a, b: torch.column_stack([a[0], b[0]]), "free free", 2, out=0),
    tokens("dstack", lambda m, a, b: torch.dstack([a, b]), "free free", 2),
    image("split_with_sizes", lambda m, a: a.split([3, 5], 1)[1]),
    image("split_with_sizes", lambda m, a: torch.mul(*a.chunk(2, 1))),
    image("split_with_sizes", lambda m, a: a.hsplit(2)[0]),
    image("slice", lambda m, a: a[:, 2:5]),
    image("slice", lambda m, a: a.narrow(1, -3, 2)),
    image("slice", lambda m, a: a[:, ::2], "partly"),
    image("slice", lambda m, a: a[:, ::3], "pinned"),
    image("slice", lambda m, a: a[:, :, ::2, 1::2]),
    image("select", lambda m, a: a[:, 2], "pinned"),
    image("select", lambda m, a: a[:, :, 2]),
    image("unbind", lambda m, a: a.unbind(1)[0], "pinned"),
    image("unbind", lambda m, a: a.unbind(2)[0]),
    tokens("index", lambda m, a: a[:, INDEX], "free"),
    tokens("index", lambda m, a: a[..., INDEX], "pinned"),
    tokens("index_select", lambda m, a: a.index_select(1, INDEX)),
    tokens("index_select", lambda m, a: a.index_select(2, INDEX), "pinned"),
    tokens("gather", lambda m, a: a.gather(1, (a[:, :2] > 0).long())),
    tokens("gather", lambda m, a: a.gather(2, (a[..., :2] > 0).long()), "pinned"),
    tokens("take_along_dim", lambda m, a: a.take_along_dim((a[:, :2] > 0).long(), 1)),
    tokens(
        "scatter", lambda m, a, b: a.scatter(1, (a[:, :2] > 0).long(), b[:, :2]), "free free", 2
    ),
    tokens("scatter", lambda m, a: a.scatter(2, (a[..., :2] > 0).long(), 1.0), "pinned"),
    tokens(
        "scatter_add",
        lambda m, a, b: a.scatter_add(1, (a[:, :2] > 0).long(), b[:, :2]),
        "free free",
        2,
    ),
    tokens(
        "scatter_reduce",
        lambda m, a, b: a.scatter_reduce(1, (a > 0).long(), b, "amax"),
        "free free",
        2,
    ),
    tokens("index_add", lambda m, a, b: a.index_add(1, INDEX, b), "free free", 2),
    tokens("index_copy", lambda m, a, b: a.index_copy(1, INDEX[:3], b[:, :3]), "free free", 2),
    tokens("index_add", lambda m, a, b: a.index_add(2, INDEX, b[..., :5]), "pinned partly", 2),
    tokens("index_fill", lambda m, a: a.index_fill(1, INDEX, 2.0)),
    tokens(
        "index_put",
        lambda m, a, b: a.mT.index_put((torch.arange(a.shape[0]),), b.mT),
        "free free",
        2,
        out=1,
    ),
    tokens(
        "index_put", lambda m, a: a.movedim(1, 0).index_put((INDEX[:2],), torch.ones(1)), out=-1
    ),
    tokens(
        "index_put",
        lambda m, a: a.movedim(2, 0).index_put((INDEX[:2],), torch.ones(1)),
        "pinned",
        out=0,
    ),
    image("slice_scatter", lambda m, a, b: a.slice_scatter(b[:, :4], 1, 2, 6), "free free", 2),
    image(
        "slice_scatter", lambda m, a, b: a.slice_scatter(b[:, :4], 1, 0, 8, 2), "pinned partly", 2
    ),
    image("select_scatter", lambda m, a, b: a.select_scatter(b[:, :, 0], 2, 1), "free free", 2),
    image("select_scatter", lambda m, a, b: a.select_scatter(b[:, 0], 1, 1), "pinned pinned", 2),
    image("pad", lambda m, a: F.pad(a, (1, 1))),
    image("pad", lambda m, a: F.pad(a, (0, 0, 0, 0, 2, 1))),
    image("pad", lambda m, a: F.pad(a, (0, 0, 0, 0, 2, 1), value=1.0)),
    image("pad", lambda m, a: F.pad(a, (1, 1, 1, 1), mode="circular")),
    image("constant_pad_nd", lambda m, a: aten.constant_pad_nd(a, [1, 1])),
    image("pixel_shuffle", lambda m, a: F.pixel_shuffle(a, 2)),
    image("pixel_unshuffle", lambda m, a: F.pixel_unshuffle(a, 2)),
    image("channel_shuffle", lambda m, a: F.channel_shuffle(a, 2)),
    image("native_channel_shuffle", lambda m, a: aten.native_channel_shuffle(a, 4)),
    tokens("tril", lambda m, a: a.tril(), "pinned"),
    tokens("triu", lambda m, a: a.triu(), "pinned"),
    tokens("diagonal", lambda m, a: (a.mT @ a).diagonal(dim1=1, dim2=2)),
    tokens("diagonal", lambda m, a: (a.mT @ a).diagonal(1, dim1=1, dim2=2), "pinned"),
    tokens("linalg_diagonal", lambda m, a: torch.linalg.diagonal(a.mT @ a)),
    row("diag_embed", lambda m, a: torch.diag_embed(a).flatten(1)),
    row("diag_embed", lambda m, a: torch.diag_embed(a, 1), "pinned"),
    tokens("unfold", lambda m, a: a.unfold(1, 2, 1), out=2),
    tokens("unfold", lambda m, a: a.unfold(2, 2, 1), "pinned"),
    image("im2col", lambda m, a: F.unfold(a, 2)),
    image("col2im", lambda m, a: F.fold(F.unfold(a, 2) * 2, (6, 6), 2)),
]

LOSSES = [
    *(
        tokens(key, call, "spanned spanned", 2)
        for key, call in {
            "mse_loss": lambda m, a, b: F.mse_loss(a, b)[None],
            "l1_loss": lambda m, a, b: F.l1_loss(a, b)[None],
            "smooth_l1_loss": lambda m, a, b: F.smooth_l1_loss(a, b)[None],
            "huber_loss": lambda m, a, b: F.huber_loss(a, b)[None],
            "binary_cross_entropy": lambda m, a, b: F.binary_cross_entropy(
                a.sigmoid(), b.sigmoid()
            )[None],
            "binary_cross_entropy_with_logits": lambda m, a, b: F.binary_cross_entropy_with_logits(
                a, b.sigmoid()
            )[None],
            "soft_margin_loss": lambda m, a, b: F.soft_margin_loss(a, b.detach())[None],
            "poisson_nll_loss": lambda m, a, b: F.poisson_nll_loss(a, b)[None],
            "kl_div": lambda m, a, b: F.kl_div(a, b.sigmoid(), reduction="sum")[None],
        }.items()
    ),
    tokens("mse_loss", lambda m, a, b: F.mse_loss(a, b, reduction="none"), "free free", 2),
    row(
        "cross_entropy_loss", lambda m, a: F.cross_entropy(a, (a[:, 0] > 0).long())[None], "pinned"
    ),
    tokens(
        "cross_entropy_loss",
        lambda m, a: F.cross_entropy(a, (a[:, 0] > 0).long(), reduction="none"),
        "free",
    ),
    row("nll_loss_nd", lambda m, a: F.nll_loss(a, (a[:, 0] > 0).long())[None], "pinned"),
    row("nll_loss", lambda m, a: aten.nll_loss(a, (a[:, 0] > 0).long())[None], "pinned"),
    row(
        "nll_loss_forward",
        lambda m, a: aten.nll_loss_forward(a, (a[:, 0] > 0).long(), None, 1, -100)[0][None],
        "pinned",
    ),
    tokens(
        "triplet_margin_loss",
        lambda m, a, b: F.triplet_margin_loss(a, b, b + 1)[None],
        "spanned spanned",
        2,
    ),
    image(
        "nll_loss2d", lambda m, a: aten.nll_loss2d(a, (a[:, 0] > 0).long())[None], "pinned", out=0
    ),
]


def pointwise_operators(covered: set[str]) -> list[str]:
    """ATen's functional operators with the tag ``pointwise``, but those that are covered."""
    names = {
        n[6:].partition(".")[0] for n in torch._C._dispatch_get_all_op_names() if n[:6] == "aten::"
    }
    found = []
    for name in sorted(n for n in names if not n.startswith("special_")):
        if name.endswith(("_", "backward", "_functional")) and not name.startswith("__"):
            continue
        packet = None if name in covered else getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            given = [a for a in op._schema.arguments if not a.has_default_value()]
            tensors = [a for a in given if str(a.type) == "Tensor"]
            if (
                torch.Tag.pointwise in op.tags
                and torch.Tag.nondeterministic_seeded not in op.tags
                and not op._schema.is_mutable
                and len(op._schema.returns) == 1
                and tensors
                and all(
                    str(a.type) in ("Tensor", "number", "Scalar", "int", "float") for a in given
                )
                and "out" not in overload
                and name not in ("equal", "clip")
            ):
                found.append(f"{name}.{overload}")
                break
    return found


class Pointwise(nn.Module):
    """Pointwise operators side by side, each on a layer of its own."""

    def __init__(self, operators: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operators = operators
        self.make = nn.ModuleList(nn.Linear(3, C) for _ in operators)
        self.read = nn.ModuleList(nn.Linear(C, 3) for _ in operators)

    def one(self, operator, a):
        name, _, overload = operator.partition(".")
        op = getattr(getattr(torch.ops.aten, name), overload)
        required = [x for x in op._schema.arguments if not x.has_default_value()]

        def call(a):
            args = (a if str(x.type) == "Tensor" else 2 for x in required)
            return op(*args)

        if name.startswith(INTEGER):
            return call((a > 0).int())
        domain = (
            0.9 * torch.tanh(a) if name in INSIDE_ONE else a.abs() + (1 if name in ABOVE_ONE else 0)
        )
        return call(domain)

    def forward(self, x):
        found = [
            read(self.one(operator, make(x)).to(x.dtype))
            for operator, make, read in zip(self.operators, self.make, self.read, strict=True)
        ]
        return torch.cat(found, -1)


INTEGER = ("bitwise", "gcd", "lcm", "__")
INSIDE_ONE = {"acos", "asin", "atanh", "erfinv", "arccos", "arcsin", "arctanh"}
ABOVE_ONE = {"acosh", "arccosh", "mvlgamma"}
# Not finite, or not defined, where all operands are zero: no mask can stand for a cut.
ENDLESS = {
    "addcdiv", "fmod", "remainder", "igamma", "igammac",
    "digamma", "lgamma", "log", "log10", "log2", "reciprocal", "rsqrt", "polygamma",
}  # fmt: skip


class Recurrent(nn.Module):
    """A recurrent layer between two others."""

    def __init__(self, inside: nn.Module, read: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.make, self.inside, self.choose = nn.ModuleList([nn.Linear(3, C)]), inside, read
        self.read = nn.Linear(6, 3)

    def forward(self, x):
        return self.read(self.choose(self.inside(self.make[0](x))))


def _layer(kind: Any, **options: Any) -> Recurrent:
    return Recurrent(kind(C, 6, batch_first=True, **options), lambda y: y[0])


def _cell(kind: Any, **options: Any) -> Recurrent:
    return Recurrent(
        nn.Sequential(nn.Flatten(0, 1), kind(C, 6, **options)),
        lambda y: y[0] if isinstance(y, tuple) else y,
    )


RECURRENT: dict[str, Callable[[], Recurrent]] = {
    "lstm": lambda: _layer(nn.LSTM),
    "gru": lambda: _layer(nn.GRU),
    "rnn_tanh": lambda: _layer(nn.RNN),
    "rnn_relu": lambda: _layer(nn.RNN, nonlinearity="relu"),
    "lstm_cell": lambda: _cell(nn.LSTMCell),
    "gru_cell": lambda: _cell(nn.GRUCell),
    "rnn_tanh_cell": lambda: _cell(nn.RNNCell),
    "rnn_relu_cell": lambda: _cell(nn.RNNCell, nonlinearity="relu"),
}

EXAMPLES = [
    *WEIGHTS, *PRODUCTS, *NORMS, *POINTWISE, *NEW, *REDUCTIONS, *ALONG, *POOLING,
    *SHAPES, *LOSSES,
]  # fmt: skip

# Operators whose rows pin all they touch, on purpose: a few stand for the one rule behind all.
PINNING = [
    tokens(
        "stft",
        lambda m, a: torch.stft(a.flatten(1), 8, window=torch.ones(8), return_complex=True).abs(),
        "pinned",
    ),
    tokens("quantile", lambda m, a: a.quantile(0.5, -1), "pinned"),
    tokens("linalg_inv", lambda m, a: torch.linalg.inv(a.mT @ a + torch.eye(C)), "pinned"),
    tokens("as_strided", lambda m, a: torch.as_strided(a, (2, 4), (4, 1)), "pinned"),
    row("diag", lambda m, a: torch.diag(a[0]), "pinned"),
]
