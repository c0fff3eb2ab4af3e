"""Losses that a model computes itself."""

from archgraph.ops import rules
from archgraph.ops.operator import Operator, Rows, alike

ROWS: Rows = {
    **alike(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), Operator(rules.loss)),
    **alike(("binary_cross_entropy", "binary_cross_entropy_with_logits"), Operator(rules.loss)),
    **alike(("soft_margin_loss", "poisson_nll_loss", "kl_div"), Operator(rules.loss)),
    **alike(
        ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward"),
        Operator(rules.class_loss),
    ),
}
