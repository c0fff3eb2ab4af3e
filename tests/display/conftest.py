"""Hand-built graphs, so that pictures are tested apart from tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from archgraph.graph.ir import (
    BATCH,
    TRAINING,
    ArchGraph,
    Leaf,
    Mode,
    Node,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
)

Sections = list[tuple[str, list[tuple[str, list[str]]]]]


class Builder:
    """Appends operators; every method returns a reference to the result."""

    def __init__(self) -> None:
        self.params: list[Param] = []
        self.nodes: list[Node] = []
        self.count: dict[str, int] = {}

    def leaf(self, name: str, *shape: int, buffer: bool = False) -> Leaf:
        role = "buffer" if buffer else "parameter"
        self.params.append(Param(name, TensorType(shape, "float32"), role=role))  # type: ignore[arg-type]
        return Leaf(name)

    def add(self, op: str, shape: Sequence[int], scope: str = "", /, **args: Value) -> Ref:
        stem = op.split(".")[1]
        index = self.count.get(stem, 0)
        self.count[stem] = index + 1
        name = f"{stem}_{index}" if index else stem
        kind = TensorType((BATCH, *shape), "float32")
        self.nodes.append(Node(name, op, tuple(args.items()), kind, scope))
        return Ref(name)

    def conv(self, x: Ref, scope: str, shape: Sequence[int], inputs: int, **args: Value) -> Ref:
        weight = self.leaf(f"{scope}.weight", shape[0], inputs, 3, 3)
        args |= {"padding": (1, 1)}
        return self.add("aten.conv2d", shape, scope, input=x, weight=weight, **args)

    def norm(self, x: Ref, scope: str, shape: Sequence[int]) -> Ref:
        return self.add(
            "aten.batch_norm",
            shape,
            scope,
            input=x,
            weight=self.leaf(f"{scope}.weight", shape[0]),
            bias=self.leaf(f"{scope}.bias", shape[0]),
            running_mean=self.leaf(f"{scope}.running_mean", shape[0], buffer=True),
            running_var=self.leaf(f"{scope}.running_var", shape[0], buffer=True),
            training=TRAINING,
        )


def residual_net(
    depths: Sequence[int], widths: Sequence[int], *, aux: bool = False, pre: bool = False
) -> tuple[ArchGraph, Sections]:
    """A residual network and its sections, `layer1` to `layerN`."""
    b = Builder()
    b.nodes.append(Node("x", "input", (), TensorType((BATCH, 3, 32, 32), "float32")))
    y: Ref = b.conv(Ref("x"), "conv1", (8, 32, 32), 3)
    channels, size = 8, 32
    for number, (depth, width) in enumerate(zip(depths, widths, strict=True), 1):
        for index in range(depth):
            scope = f"layer{number}.{index}"
            half = number > 1 and index == 0
            size = size // 2 if half else size
            shape = (width, size, size)
            stride: dict[str, Value] = {"stride": (2, 2)} if half else {}
            z, before = y, (channels, size, size)
            for step, moved in ((1, stride), (2, {})):
                inner = channels if step == 1 else width
                if pre:
                    z = b.norm(z, f"{scope}.bn{step}", before)
                    z = b.add("aten.relu", before, scope, self=z)
                z = b.conv(z, f"{scope}.conv{step}", shape, inner, **moved)
                if not pre:
                    z = b.norm(z, f"{scope}.bn{step}", shape)
                    if step == 1:
                        z = b.add("aten.relu", shape, scope, self=z)
                before = shape
            if half or channels != width:
                y = b.conv(y, f"{scope}.down", shape, channels, **stride)
            y = b.add("aten.add.Tensor", shape, scope, self=z, other=y)
            if not pre:
                y = b.add("aten.relu", shape, scope, self=y)
            channels = width
    side = None
    if aux:
        flat = b.add("aten.mean.dim", (channels,), "aux", self=y, dim=(-2, -1))
        side = b.add(
            "aten.linear", (5,), "aux", input=flat, weight=b.leaf("aux.weight", 5, channels)
        )
    y = b.add("aten.mean.dim", (channels,), "", self=y, dim=(-2, -1))
    y = b.add("aten.linear", (10,), "fc", input=y, weight=b.leaf("fc.weight", 10, channels))
    sections: dict[str, dict[str, list[str]]] = {}
    for node in b.nodes:
        if node.scope.startswith("layer"):
            section, index_text = node.scope.split(".")[:2]
            inside = sections.setdefault(section, {})
            inside.setdefault(f"{section}.{index_text}", []).append(node.name)
    outputs: Value = Record((("logits", y),))
    if side is not None:
        outputs = Mode(Record((("logits", y), ("aux", side))), outputs)
    graph = ArchGraph((("x", Ref("x")),), tuple(b.params), tuple(b.nodes), outputs, name="residual")
    return graph, [(s, list(blocks.items())) for s, blocks in sections.items()]


@pytest.fixture(scope="session")
def residual() -> Callable[..., tuple[ArchGraph, Sections]]:
    return residual_net
