"""Latency: milliseconds of every submodel, from operators that were timed on a device."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from archgraph.analysis.axes import axes
from archgraph.analysis.cost import cost
from archgraph.analysis.cost_polynomial import (
    CostPart,
    CostPolynomial,
    OperatorSizes,
    operator_sizes,
)
from archgraph.analysis.positions import axis_refs
from archgraph.analysis.presence import Needs
from archgraph.errors import GraphError, RunError, SpecError, os_reason
from archgraph.files import write
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph, Leaf, Node, per_graph, show, walk
from archgraph.graph.passes import specialise
from archgraph.graph.polynomial import Polynomial
from archgraph.hints import nearest
from archgraph.limits import LIMITS
from archgraph.plain import Json
from archgraph.tables import Table, per_cent

if TYPE_CHECKING:
    import os


Runtime = Literal["torch", "onnxruntime"]

ATTOSECONDS = "attoseconds"  # the measure of a latency's polynomial: whole numbers, even per MAC
PER_NANOSECOND, PER_MILLISECOND = 10**9, 10**15


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What an operator takes, in nanoseconds.

    Attributes:
        call: Of a call.
        read: Of each byte of other operators' results.
        weights: Of each byte of leaves.
        written: Of each byte of results.
        macs: Of each multiply–accumulate.
    """

    call: float
    read: float
    weights: float
    written: float
    macs: float

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value < math.inf:
                raise SpecError("is not a time", where=name, found=value, expected="0 or more")

    def of(self, sizes: OperatorSizes) -> Polynomial:
        """Return the attoseconds of an operator in every submodel."""
        call, *others = (round(v * PER_NANOSECOND) for v in dataclasses.astuple(self))
        amounts = (sizes.read, sizes.weights, sizes.written, sizes.macs)
        terms = (c * amount for c, amount in zip(others, amounts, strict=True) if c)
        return sum(terms, Polynomial({}) + call)


@dataclass(frozen=True, slots=True)
class ModelError:
    """How well a profile predicts submodels of a model that its fit did not see.

    Attributes:
        model: Its name.
        milliseconds: Of the whole model, as measured.
        submodels: How many were held out.
        mean: Mean of the relative errors.
        worst: The largest one.
    """

    model: str
    milliseconds: float
    submodels: int
    mean: float
    worst: float

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, repr=False)
class DeviceProfile:
    """What the operators of some models take on a device.

    Attributes:
        operators: Coefficients by signature (an operator and those of its arguments that no cut
            changes), and by operator, for signatures that were not timed.
        errors: By model, the error on submodels that were held out.
        device: ``cpu``, or the name of an accelerator.
        processor: Name of the processor.
        runtime: What runs the models, ``torch`` or ``onnxruntime``.
        threads: Threads of the processor.
        batch: Examples per call.
        training: Whether a call is a forward and a backward pass, in training.
        versions: Of the packages.
    """

    operators: Mapping[str, Coefficients]
    errors: tuple[ModelError, ...]
    device: str
    processor: str
    runtime: Runtime
    threads: int
    batch: int
    training: bool
    versions: Mapping[str, str]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    def __post_init__(self) -> None:
        for name, number in (("batch", self.batch), ("threads", self.threads)):
            if number < 1:
                raise SpecError("is too small", where=name, found=number, expected="1 or more")

    def milliseconds(self, graph: GraphLike) -> float:
        """Return how long a network takes, in milliseconds.

        Raises:
            GraphError: If it has an operator that was not timed.
        """
        costs = self.polynomial(graph)
        return costs.polynomial(ATTOSECONDS).value(costs.axes) / PER_MILLISECOND

    def polynomial(self, graph: GraphLike) -> CostPolynomial:
        """Return the latency of every submodel, as :attr:`archgraph.analysis.cost.Cost.polynomial`.

        Its one measure is ``attoseconds``: 10¹⁵ of them are a millisecond.

        Raises:
            GraphError: If the graph has an operator that was not timed.
        """
        graph = graph_of(graph)
        parts: dict[Needs, Polynomial] = defaultdict(lambda: Polynomial({}))
        names = signatures(graph, self.training)
        for sizes in operator_sizes(graph, self.batch, self.training):
            known = self._coefficients(names[sizes.node.name], sizes.node)
            parts[sizes.needs] += known.of(sizes)
        timed = tuple(CostPart(needs, p) for needs, p in parts.items() if p.terms)
        return dataclasses.replace(cost(graph).polynomial, parts={ATTOSECONDS: timed})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile as JSON.

        Raises:
            RunError: If the file cannot be written.
        """
        import json

        values = {"archgraph": 1, "profile": dataclasses.asdict(self)}
        return write(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> DeviceProfile:
        """Read a profile.

        Raises:
            SpecError: If the file is not one.
            RunError: If it cannot be read.
        """
        return _parsed(_json(Path(path)), str(path))

    def __repr__(self) -> str:
        work = "training step" if self.training else "forward pass"
        where = f"{self.runtime} on {self.device}, {self.processor}, threads: {self.threads}"
        return f"<DeviceProfile: {work} of {self.batch}, {where}; {self._summary()}>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def table(self) -> Table:
        """Return the error on held-out submodels, a row for each model."""
        rows = tuple(
            (
                e.model,
                f"{e.milliseconds:.2f}",
                str(e.submodels),
                per_cent(e.mean, 1),
                per_cent(e.worst, 1),
            )
            for e in self.errors
        )
        columns = ("model", "milliseconds", "held out", "mean error", "worst error")
        return Table(repr(self).strip("<>"), columns, rows, frozenset({1, 2, 3, 4}))

    def _summary(self) -> str:
        count = sum(error.submodels for error in self.errors)
        mean = sum(error.mean * error.submodels for error in self.errors) / max(count, 1)
        return f"{len(self.operators)} signatures, held-out error {per_cent(mean, 1)}"

    def _coefficients(self, name: str, node: Node) -> Coefficients:
        known = self.operators.get(name) or self.operators.get(node.op)
        if known is None:
            raise GraphError(
                "operator was not timed",
                where=node.scope or node.name,
                found=node.op,
                expected="an operator of the profiled models",
                hint=nearest(node.op, self.operators) or "profile this model, too",
            )
        return known


@per_graph
def signatures(graph: ArchGraph, training: bool = False) -> Mapping[str, str]:
    """Return what the operators of a mode are timed as, by name.

    An operator with the arguments that no cut changes: without numbers that follow from sizes, and
    without fractions, on which no time depends; of a leaf, the dimensions behind the second, such
    as a kernel's.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> graph = trace(torch.nn.Conv2d(3, 8, 5, stride=2), torch.zeros(1, 3, 9, 9)).graph
        >>> signatures(graph)["conv2d"]
        'aten.conv2d float32 input weight[5, 5] bias stride=(2, 2)'
    """
    solved = axes(graph)
    free = {axis.name for axis in solved.free}

    def word(node: Node, name: str, value: Any) -> str | None:
        if isinstance(value, Leaf) and (behind := solved.leaf[value.name][2:]):
            cut = (any(ref.name in free for ref in axis_refs(layout)) for layout in behind)
            sizes = ("*" if c else str(d.size) for c, d in zip(cut, behind, strict=True))
            return f"{name}[{', '.join(sizes)}]"
        scalars = list(walk(value))
        if any(isinstance(item, float) for item in scalars):
            return None
        plain = all(isinstance(item, bool | int | str | None) for item in scalars)
        stated = (node.name, name) in solved.attributes
        return f"{name}={show(value)}" if plain and not stated else name

    return {
        node.name: " ".join(
            filter(None, (node.op, node.dtype, *(word(node, k, v) for k, v in node.args)))
        )
        for node in specialise(graph, training=training).nodes
        if node.op != "input"
    }


# -- files ---------------------------------------------------------------------------------------


def _json(path: Path) -> Json:
    import json

    try:
        if path.stat().st_size > LIMITS.file_bytes:
            raise SpecError(
                "is too large", where=str(path), expected=f"{LIMITS.file_bytes:,} bytes"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = os_reason(error)
        raise RunError("cannot be read", where=str(path), found=reason) from error
    except (RecursionError, ValueError) as error:
        raise SpecError("is not JSON", where=str(path), found=str(error)[:200]) from error


def _parsed(values: Json, where: str) -> DeviceProfile:
    """Return a profile from plain values.

    Raises:
        SpecError: Names the key that is wrong.
    """
    import json

    from pydantic import TypeAdapter, ValidationError

    if not isinstance(values, dict) or values.keys() != {"archgraph", "profile"}:
        hint = "archgraph profile MODEL -o FILE writes one"
        raise SpecError("is not a profile of a device", where=where, hint=hint)
    if values["archgraph"] != 1:
        raise SpecError("is of another version", where=where, found=values["archgraph"], expected=1)
    try:
        # As JSON: in strict mode a list of plain values is not a tuple.
        return TypeAdapter(DeviceProfile).validate_json(json.dumps(values["profile"]))
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise SpecError(first["msg"], where=f"{where}: {at}", found=first["input"]) from error
    except SpecError as error:
        raise error.within(where) from error
