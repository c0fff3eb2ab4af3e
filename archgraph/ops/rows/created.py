"""New tensors: filled with a number, counted, drawn."""

from archgraph.ops import rules, zeros
from archgraph.ops.operator import Operator, Rows, alike

_factory = Operator(rules.factory)


def _like(fill: int | None = None) -> Operator:
    """Of its operand's shape."""
    return Operator(
        rules.same, zeros.always if fill == 0 else zeros.never, pointwise=True, fill=fill
    )


ROWS: Rows = {
    **alike(("zeros", "empty"), Operator(rules.factory, zeros.always)),
    **alike(("new_zeros", "new_empty"), Operator(rules.factory, zeros.always, fill=0)),
    "new_ones": Operator(rules.factory, fill=1),
    "new_full": Operator(rules.factory, fill="argument"),
    **alike(("zeros_like", "empty_like"), _like(0)),
    "ones_like": _like(1),
    "full_like": Operator(rules.same, pointwise=True, fill="argument"),
    **alike(("rand_like", "randn_like", "randint_like"), _like()),
    "zero": Operator(functional="aten.zeros_like"),
    **alike(("ones", "full", "rand", "randn", "randint", "randperm"), _factory),
    **alike(("arange", "range", "eye", "linspace", "logspace", "scalar_tensor"), _factory),
    **alike(
        ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window"),
        _factory,
    ),
    "one_hot": Operator(rules.one_hot),
}
