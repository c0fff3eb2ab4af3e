"""Products of activations that are summed over an axis, distances, attention."""

from archgraph.ops import contractions, costs, rules, spelling, starts, types, zeros
from archgraph.ops.operator import Growth, Init, Operator, Rows, TypeRule, alike

_SMALL: dict[str, Init] = {"self": starts.small, "other": starts.small}
_bilinear = Growth(bilinear=True)


def _product(growth: Growth, type_: TypeRule | None = None) -> Operator:
    return Operator(
        contractions.matmul, zeros.some, costs.matmul, _SMALL, growth=growth, type=type_
    )


ROWS: Rows = {
    **alike(("baddbmm", "addmv"), Operator(contractions.addmm, zeros.added, costs.matmul)),
    "addbmm": Operator(contractions.summed_products, zeros.added, costs.summed),
    "matmul": _product(_bilinear, types.matmul),
    **alike(("bmm", "mm", "mv"), _product(_bilinear)),
    **alike(("dot", "vdot"), _product(Growth(finite=False))),
    **alike(("chain_matmul", "linalg_multi_dot"), Operator(contractions.chained, zeros.some)),
    "inner": Operator(contractions.inner, zeros.some),
    "linalg_vecdot": Operator(contractions.vector_product, zeros.some),
    "tensordot": Operator(contractions.tensordot, zeros.some),
    "outer": Operator(contractions.outer, zeros.some),
    "kron": Operator(contractions.kronecker, zeros.some),
    "einsum": Operator(
        contractions.einsum, zeros.some, costs.einsum, {"tensors": starts.small}, growth=_bilinear
    ),
    "scaled_dot_product_attention": Operator(
        contractions.attention,
        zeros.attended,
        costs.attention,
        attends=("query", "attn_mask"),
        rates=("dropout_p", "scale"),
        growth=Growth(),
        type=types.attention,
        spelling=spelling.attention,
    ),
    "cdist": Operator(contractions.distances),
    "pairwise_distance": Operator(contractions.distance, rates=("eps",)),
    "cosine_similarity": Operator(contractions.similarity, zeros.some, rates=("eps",)),
    **alike(("cross", "linalg_cross"), Operator(rules.cross, zeros.some)),
}
