"""Losses that a model computes itself. Of nothing they are seldom zero, and their result is one."""

from __future__ import annotations

from archgraph.ops.equations import Dims, Equations
from archgraph.ops.operator import Operator, Rows, alike


def _loss_axes(eq: Equations) -> list[Dims]:
    """Two operands compared position by position, then all of them, their mean or their sum."""
    both = eq.broadcast(eq.layouts())
    if len(eq.node.shape) == len(both) and eq.integer("reduction", 1) == 0:
        return [both]
    for layout in both:
        eq.span(layout, eq.node.op.split(".")[1])
    return [[]]


def _class_loss_axes(eq: Equations) -> list[Dims]:
    """Scores per class at x[1], addressed by the target's values."""
    x = eq.arg("self")
    classes = x[1] if len(x) > 1 else x[0]
    eq.pin([classes], "indexed by values")
    rest = [*x[:1], *x[2:]] if len(x) > 1 else []
    if eq.has("weight"):
        eq.pin(eq.arg("weight"), "indexed by values")
    if eq.integer("reduction", 1) == 0 and len(eq.node.shape) == len(rest):
        out: Dims = rest
    else:
        out = []
        for layout in rest:
            eq.span(layout, "cross entropy")
    return [out, *(eq.fixed(t.shape) for t in eq.node.types[1:])]


ROWS: Rows = {
    **alike(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), Operator(_loss_axes)),
    **alike(("binary_cross_entropy", "binary_cross_entropy_with_logits"), Operator(_loss_axes)),
    **alike(("soft_margin_loss", "poisson_nll_loss", "kl_div"), Operator(_loss_axes)),
    **alike(
        ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward"),
        Operator(_class_loss_axes),
    ),
}
