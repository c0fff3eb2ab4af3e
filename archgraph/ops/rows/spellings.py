"""Operators that no canonical graph contains: each call is written as one of another operator."""

from archgraph.ops import spelling
from archgraph.ops.operator import Operator, Rows, alike

_ALIASES = {
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose.int",
    "swapdims": "transpose.int",
    "moveaxis.intlist": "movedim.intlist",
    "moveaxis.int": "movedim.int",
    "broadcast_to": "expand",
    "linalg_matmul": "matmul",
    "ger": "outer",
    "absolute": "abs",
    "negative": "neg",
    "fix": "trunc",
    "row_stack": "vstack",
    "special_softmax": "softmax.int",
    "special_log_softmax": "log_softmax.int",
    "special_expit": "sigmoid",
    **{f"special_{k}": k for k in ("expm1", "erf", "erfc", "exp2", "log1p", "sinc", "round")},
    **{f"arc{k}": f"a{k}" for k in ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")},
    **{
        f"{long}.{overload}": f"{short}.{overload}"
        for long, short in (
            ("multiply", "mul"),
            ("divide", "div"),
            ("true_divide", "div"),
            ("subtract", "sub"),
            ("greater", "gt"),
            ("greater_equal", "ge"),
            ("less", "lt"),
            ("less_equal", "le"),
            ("not_equal", "ne"),
        )
        for overload in ("Tensor", "Scalar")
    },
    "divide.Tensor_mode": "div.Tensor_mode",
    "divide.Scalar_mode": "div.Scalar_mode",
    "clip": "clamp",
    "clip.Tensor": "clamp.Tensor",
}

ROWS: Rows = {
    **{name: Operator(alias=target) for name, target in _ALIASES.items()},
    **alike(
        ("_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as", "ravel"),
        Operator(spelling=spelling.reshape),
    ),
    **alike(("atleast_1d", "atleast_2d", "atleast_3d"), Operator(spelling=spelling.reshape)),
    **alike(
        ("chunk", "unsafe_chunk", "split", "unsafe_split", "unsafe_split_with_sizes"),
        Operator(spelling=spelling.split()),
    ),
    "tensor_split": Operator(spelling=spelling.split()),
    "hsplit": Operator(spelling=spelling.split(1)),
    "vsplit": Operator(spelling=spelling.split(0)),
    "dsplit": Operator(spelling=spelling.split(2)),
    "expand_as": Operator(spelling=spelling.expand),
    "fliplr": Operator(spelling=spelling.flip(1)),
    "flipud": Operator(spelling=spelling.flip(0)),
    "tile": Operator(spelling=spelling.tile),
    "narrow": Operator(spelling=spelling.narrow),
}
