"""Which functional ATen operators have no row: ``python -m tests.ops.missing``."""

from __future__ import annotations

import re
import sys

import torch

from archgraph.errors import GraphError
from archgraph.ops.operator import Operator
from archgraph.ops.schema import op_name, op_schema
from archgraph.ops.table import ROWS, row

# Backward passes, backends, storage formats: nothing that a forward pass of a model writes.
ELSEWHERE = re.compile(
    r"^_|backward|sparse|quant|q_per|int_repr|cudnn|mkldnn|miopen|slow_conv|thnn|nested|to_padded"
    r"|fbgemm|csr|csc|bsr|bsc|ccol|crow|coalesce|to_dense|hspmm|smm|sspaddmm|(un)?flatten_dense"
    r"|batch_norm_|conv_depthwise3d|get_gradients|rename|refine|align|names|_copy$|special_"
    r"|overrideable|embedding_renorm|native_norm|segment_reduce|linalg_l|linalg_e|linalg_householder"
)


def functional(packet: str) -> list[str]:
    """Graph names of a packet's overloads that return tensors and change nothing."""
    found = []
    held = getattr(torch.ops.aten, packet, None)
    for overload in held.overloads() if held is not None else ():
        op = getattr(held, overload)
        tensors = any("Tensor" in str(r.type) for r in op._schema.returns)
        name = op_name(op)
        try:
            op_schema(name)
        except GraphError:
            continue
        if tensors and not overload.endswith("out") and "name" not in overload.lower():
            found.append(name)
    return found


def missing() -> tuple[int, list[str]]:
    """How many operators have a row or another spelling, and the names of those that have not."""
    packets = {
        n[6:].partition(".")[0]
        for n in torch._C._dispatch_get_all_op_names()
        if n.startswith("aten::")
    }
    names = [n for p in sorted(packets) if not ELSEWHERE.search(p) for n in functional(p)]
    without = [n for n in names if row(n) == Operator() and n.removeprefix("aten.") not in ROWS]
    return len(names) - len(without), without


if __name__ == "__main__":
    have, without = missing()
    sys.stdout.write(f"{have} operators with a row, {len(without)} without:\n")
    sys.stdout.writelines(f"  {name}\n" for name in without)
