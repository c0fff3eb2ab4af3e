"""Kinds of faulty client, as a table: what one does, and what the engine makes of it.

A client trains as it should; then its fault spoils what it returns, or the process around it. What
the engine makes of it is one of three:

``refused``   the round goes on without it, with a reason: the run is that of absent clients;
``harmless``  it changes nothing but what concerns itself: the run is that of honest clients;
``taken``     weights that training can lead to: they are averaged, and a bound refuses what is far
              off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from archgraph.federation import Outcome, Train, Work
from archgraph.states import State

Verdict = Literal["refused", "harmless", "taken"]

WEIGHT, VARIANCE, COUNTER = "5.weight", "1.running_var", "1.num_batches_tracked"


class Kind(NamedTuple):
    """A kind of faulty client.

    Attributes:
        fault: What it makes of its work and of its honest outcome.
        verdict: What the engine makes of that.
        reason: Part of what the record says of one that is refused.
    """

    fault: Callable[[Work, Outcome], Any]
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Faulty:
    """A program that trains, then does what its kind does."""

    kind: Kind

    def __call__(self, work: Work) -> Any:
        return self.kind.fault(work, Train()(work.copied()))


# -- what it returns as its weights ---------------------------------------------------------------


def entry(change: Callable[[Tensor], Any], name: str = WEIGHT) -> Callable[[Work, Outcome], Any]:
    """One entry of the state becomes something else."""
    return lambda work, out: replace(out, state={**out.state, name: change(out.state[name])})


def floats(change: Callable[[Tensor], Tensor]) -> Callable[[Work, Outcome], Any]:
    """All parameters become something else."""

    def fault(work: Work, out: Outcome) -> Outcome:
        return replace(
            out,
            state={
                k: change(v) if v.is_floating_point() and "running" not in k else v
                for k, v in out.state.items()
            },
        )

    return fault


def state(change: Callable[[dict[str, Any]], Any]) -> Callable[[Work, Outcome], Any]:
    """The whole state becomes something else."""
    return lambda work, out: replace(out, state=change(dict(out.state)))


def full(value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


def one(value: float) -> Callable[[Tensor], Tensor]:
    """The last of an entry's values becomes another one."""

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return change


class Lying(Mapping[str, Tensor]):
    """A mapping that gives honest weights when it is first read, and NaN from then on."""

    def __init__(self, honest: State) -> None:
        self.honest, self.read = honest, 0

    def __getitem__(self, name: str) -> Tensor:
        self.read += 1
        value = self.honest[name]
        return value if self.read <= len(self.honest) else value * torch.nan

    def __iter__(self) -> Iterator[str]:
        return iter(self.honest)

    def __len__(self) -> int:
        return len(self.honest)


class Smooth(Tensor):
    """A tensor that says of itself that it is small and finite."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("linalg_vector_norm", "isfinite", "isnan", "isinf"):
            return torch.zeros(())
        return super().__torch_function__(func, types, args, kwargs or {})


HELD: dict[int, Outcome] = {}


def held(work: Work, out: Outcome) -> Outcome:
    """Writes into what it returned in the round before."""
    if work.client in HELD:
        for value in HELD[work.client].state.values():
            value.fill_(77)
    HELD[work.client] = out
    return out


WEIGHTS: dict[str, Kind] = {
    "NaN everywhere": Kind(floats(full(torch.nan)), "refused", "not finite"),
    "one NaN": Kind(entry(one(torch.nan)), "refused", "1 NaN and 0 infinite"),
    "infinite": Kind(entry(full(torch.inf)), "refused", "not finite"),
    "minus infinite": Kind(entry(one(-torch.inf)), "refused", "0 NaN and 1 infinite"),
    "3e38": Kind(floats(full(3e38)), "refused", "too large to be averaged"),
    "one value of 1e30": Kind(entry(one(1e30)), "refused", "too large to be averaged"),
    "variances of -1000": Kind(entry(full(-1000), VARIANCE), "refused", "negative variance"),
    "a variance of NaN": Kind(entry(one(torch.nan), VARIANCE), "refused", "not finite"),
    "a counter that goes back": Kind(entry(full(-1), COUNTER), "refused", "a counter"),
    "a counter of 2**62": Kind(entry(full(2**62), COUNTER), "refused", "a counter"),
    "wrong shape": Kind(entry(lambda t: t[:-1]), "refused", "wrong shape"),
    "transposed": Kind(entry(lambda t: t.T), "refused", "wrong shape"),
    "an axis more": Kind(entry(lambda t: t[None]), "refused", "wrong shape"),
    "flat": Kind(entry(lambda t: t.flatten()), "refused", "wrong shape"),
    "empty tensor": Kind(entry(lambda t: t[:0]), "refused", "wrong shape"),
    "float64": Kind(entry(lambda t: t.double()), "refused", "wrong dtype; found float64"),
    "float16": Kind(entry(lambda t: t.half()), "refused", "wrong dtype; found float16"),
    "bfloat16": Kind(entry(lambda t: t.bfloat16()), "refused", "wrong dtype; found bfloat16"),
    "int64": Kind(entry(lambda t: t.long()), "refused", "wrong dtype; found int64"),
    "bool": Kind(entry(lambda t: t > 0), "refused", "wrong dtype; found bool"),
    "complex": Kind(entry(lambda t: t.to(torch.complex64)), "refused", "wrong dtype"),
    "sparse": Kind(entry(lambda t: t.to_sparse()), "refused", "not a dense tensor"),
    "compressed": Kind(
        entry(lambda t: t.to_sparse_coo().coalesce()), "refused", "not a dense tensor"
    ),
    "without values": Kind(entry(lambda t: t.to("meta")), "refused", "not a dense tensor"),
    "quantised": Kind(
        entry(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)),
        "refused",
        "quantized tensor",
    ),
    "nested": Kind(
        entry(lambda t: torch.nested.as_nested_tensor(list(t))), "refused", "nested tensor"
    ),
    "a tensor that lies": Kind(
        entry(lambda t: (t * torch.nan).as_subclass(Smooth)), "refused", "not a dense tensor"
    ),
    "numpy array": Kind(entry(lambda t: t.numpy()), "refused", "found ndarray"),
    "list": Kind(entry(lambda t: t.tolist()), "refused", "found list"),
    "None for an entry": Kind(entry(lambda t: None), "refused", "found None"),
    "string for an entry": Kind(entry(lambda t: "weights"), "refused", "found str"),
    "missing entry": Kind(
        state(lambda s: {k: v for k, v in s.items() if k != WEIGHT}), "refused", "missing entry"
    ),
    "extra entry": Kind(
        state(lambda s: {**s, "more": torch.zeros(1)}), "refused", "more: unknown entry"
    ),
    "a thousand extra entries": Kind(
        state(lambda s: s | {f"more{i}": torch.zeros(1) for i in range(1000)}),
        "refused",
        "unknown entry; found 1000 more",
    ),
    "an entry named by a number": Kind(
        state(lambda s: {**s, 5: torch.zeros(1)}), "refused", "found int"
    ),
    "an entry with a name of a megabyte": Kind(
        state(lambda s: {**s, "\x1b[2J" + "m" * 2**20: torch.zeros(1)}), "refused", "\\x1b[2Jmm"
    ),
    "empty state": Kind(state(lambda s: {}), "refused", "missing entry"),
    "None for the state": Kind(state(lambda s: None), "refused", "returned the wrong type"),
    "list of tensors": Kind(state(lambda s: list(s.values())), "refused", "found list"),
    "generator": Kind(state(lambda s: (pair for pair in s.items())), "refused", "found generator"),
    "returns nothing": Kind(lambda work, out: None, "refused", "check that every path returns"),
    "returns its state alone": Kind(lambda work, out: out.state, "refused", "expected Outcome"),
    "returns a class": Kind(lambda work, out: Outcome, "refused", "expected Outcome"),
    "a mapping that lies": Kind(state(Lying), "harmless"),
    "tensors that need gradients": Kind(
        state(lambda s: {k: v.requires_grad_(v.is_floating_point()) for k, v in s.items()}),
        "harmless",
    ),
    "parameters": Kind(
        state(lambda s: {k: nn.Parameter(v, v.is_floating_point()) for k, v in s.items()}),
        "harmless",
    ),
    "results of a graph": Kind(
        state(
            lambda s: {
                k: v + torch.zeros((), requires_grad=True) if v.is_floating_point() else v
                for k, v in s.items()
            }
        ),
        "harmless",
    ),
    "not contiguous": Kind(entry(lambda t: t.T.contiguous().T), "harmless"),
    "in another order": Kind(state(lambda s: dict(reversed(s.items()))), "harmless"),
    "writes into what it returned": Kind(held, "harmless"),
    "10⁶ θ": Kind(floats(lambda t: t * 1e6), "taken"),
    "one value of 1e20": Kind(entry(one(1e20)), "taken"),
    "the other way, a hundred times": Kind(floats(lambda t: t * -100), "taken"),
    "noise": Kind(floats(lambda t: t + 100 * torch.randn_like(t)), "taken"),
    "one value for all": Kind(
        floats(lambda t: torch.tensor(50.0, dtype=t.dtype).expand(t.shape)), "taken"
    ),
}


# -- what it returns beside -----------------------------------------------------------------------


def beside(field: str, value: Any) -> Callable[[Work, Outcome], Any]:
    """Something goes with its weights."""
    return lambda work, out: replace(out, **{field: value})


class Wavering:
    """A number when it is first asked for, then an error."""

    def __init__(self) -> None:
        self.asked = 0

    def __float__(self) -> float:
        self.asked += 1
        if self.asked % 2 == 0:
            raise ArithmeticError
        return 0.5


BESIDE: dict[str, Kind] = {
    "string metric": Kind(beside("metrics", {"loss": "low"}), "refused", "expected a number"),
    "metric without a value": Kind(beside("metrics", {"loss": None}), "refused", "found None"),
    "metric of two values": Kind(
        beside("metrics", {"loss": torch.ones(2)}), "refused", "expected a number"
    ),
    "complex metric": Kind(beside("metrics", {"loss": 1j}), "refused", "found complex"),
    "metric beyond every float": Kind(
        beside("metrics", {"loss": 10**400}), "refused", "metrics['loss']"
    ),
    "metric that wavers": Kind(
        lambda work, out: beside("metrics", {"x": Wavering()})(work, out),
        "refused",
        "ArithmeticError",
    ),
    "metrics that are NaN": Kind(beside("metrics", {"loss": torch.nan}), "harmless"),
    "claims other examples": Kind(
        beside("metrics", {"examples": 1e9}), "refused", "a recorded value"
    ),
    "claims to be another client": Kind(
        beside("metrics", {"client": 0}), "refused", "a recorded value"
    ),
    "a metric whose name is not text": Kind(
        beside("metrics", {"\udc80": 0.5}), "refused", "expected text"
    ),
    "metrics of None": Kind(beside("metrics", None), "refused", "metrics: returned the wrong type"),
    "keeps NaN": Kind(beside("keep", {"m": torch.tensor(torch.nan)}), "harmless"),
    "keeps a sparse tensor": Kind(
        beside("keep", {"m": torch.eye(2).to_sparse()}), "refused", "not a dense tensor"
    ),
    "keeps a nested tensor": Kind(
        lambda w, o: replace(o, keep={"m": torch.nested.as_nested_tensor([torch.ones(2)])}),
        "refused",
        "not a dense tensor",
    ),
    "keeps what no file holds": Kind(
        beside("keep", {"m": torch.zeros(2, dtype=torch.complex128)}), "refused", "complex128"
    ),
    "keeps under a name that is not text": Kind(
        beside("keep", {"\udc80": torch.zeros(1)}), "refused", "expected text"
    ),
    "keeps an object": Kind(beside("keep", {"m": object()}), "refused", "found object"),
    "keeps a hundred thousand values more": Kind(
        lambda w, o: replace(o, keep={"m": torch.zeros(100_000 * w.round)}), "harmless"
    ),
    "huge extras": Kind(beside("extras", {"x": torch.ones(2**22)}), "harmless"),
    "infinite extras": Kind(
        beside("extras", {"x": torch.tensor([torch.inf])}), "refused", "not finite"
    ),
    "extras of objects": Kind(beside("extras", {"x": "y"}), "refused", "found str"),
    "a model that nobody asked for": Kind(
        beside("others", {"x": {}}), "refused", "other models than the task's"
    ),
}


# -- how it dies ----------------------------------------------------------------------------------


class Mute(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


def dies(error: BaseException) -> Callable[[Work, Outcome], Any]:
    """Raises something."""

    def fault(work: Work, out: Outcome) -> Any:
        raise error

    return fault


def deep(work: Work, out: Outcome) -> Any:
    return deep(work, out)


def too_large(work: Work, out: Outcome) -> Any:
    return torch.empty(2**60)


DEATHS: dict[str, Kind] = {
    **{
        f"raises {type(error).__name__}": Kind(dies(error), "refused", type(error).__name__)
        for error in (
            ValueError("no"),
            AssertionError(),
            StopIteration(),
            StopAsyncIteration(),
            GeneratorExit(),
            SystemExit(3),
            MemoryError(),
            RecursionError(),
            OSError(28, "no space left on the device"),
            UnicodeDecodeError("utf-8", b"\x80", 0, 1, "no"),
            BaseExceptionGroup("both", [ValueError(), SystemExit()]),
            Mute(),
            BaseException("as plain as can be"),
        )
    },
    "raises control characters": Kind(
        dies(ValueError("\x1b[2J\udc80" + "m" * 2**20)), "refused", "ValueError: \\x1b[2J\\udc80mm"
    ),
    "calls itself for ever": Kind(deep, "refused", "RecursionError"),
    "asks for an exabyte": Kind(too_large, "refused", "RuntimeError"),
}


# -- what it does to the process, and to what it was given ----------------------------------------


def does(*actions: Callable[[], object]) -> Callable[[Work, Outcome], Any]:
    """Changes something for the whole process; its outcome is honest."""

    def fault(work: Work, out: Outcome) -> Outcome:
        for action in actions:
            action()
        return out

    return fault


def spoils(action: Callable[[Work], object]) -> Callable[[Work, Outcome], Any]:
    """Changes something that it was given; its outcome is honest."""

    def fault(work: Work, out: Outcome) -> Outcome:
        action(work)
        return out

    return fault


# Contexts that are entered and never left stay alive.
OPEN: list[Any] = []


def enters(make: Callable[[], Any]) -> Callable[[Work, Outcome], Any]:
    """Enters a context, which it never leaves."""

    def action() -> None:
        OPEN.append(make())
        OPEN[-1].__enter__()

    return does(action)


def writes(work: Work) -> None:
    for value in (*work.state.values(), *work.keep.values()):
        value.fill_(1)


def examples(work: Work) -> None:
    for batch in work.data.batches(None, work.data.examples):
        batch.inputs[0].fill_(torch.nan)
        batch.targets.zero_()


def tables(work: Work) -> None:
    known: Any
    for known in (work.graph.node, work.graph.param, work.graph.users, work.graph.leaf_users):
        try:
            known.clear()
        except AttributeError:
            continue


PROCESS: dict[str, Kind] = {
    name: Kind(fault, "harmless")
    for name, fault in {
        "turns gradients off": does(lambda: torch.set_grad_enabled(False)),
        "enters inference mode": enters(torch.inference_mode),
        "changes the default dtype": does(lambda: torch.set_default_dtype(torch.float64)),
        "changes the number of threads": does(lambda: torch.set_num_threads(3)),
        "seeds everything": does(
            lambda: torch.manual_seed(0),
            lambda: random.seed(0),
            lambda: np.random.seed(0),  # noqa: NPY002  # that is the point
        ),
        "seeds its generator": spoils(lambda work: work.generator.manual_seed(0)),
        "writes into its state": spoils(writes),
        "writes into its examples": spoils(examples),
        "empties its state": spoils(lambda work: work.state.clear()),  # type: ignore[attr-defined]
        "empties the tables of its graph": spoils(tables),
    }.items()
}


KINDS: dict[str, Kind] = {**WEIGHTS, **BESIDE, **DEATHS, **PROCESS}
