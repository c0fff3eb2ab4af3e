"""What a federated method is made of: worlds, tasks, results, objectives, programs, strategies.

No loop lives here. An engine asks a :class:`Strategy` for tasks, lets clients run their programs,
and hands the results back. Every value is frozen and travels: a :class:`ServerState` is tensors and
plain values (safetensors + JSON), a :class:`Program` is a frozen dataclass that pickles.

How each published method maps onto these types is tabled in ``docs/decisions.md``. That table asked
for more than a single model per task, hence:

- ``World.tiers``: the architectures that are offered, apart from who runs which (dynamic rates,
  architecture search, a new submodel every round);
- ``Task.kept``: entries of the state that stay with the client. The engine lays what a client kept
  over the state it is sent and takes the same entries out of what it returns (personal layers,
  local statistics, adapters on a frozen base, no communication at all);
- ``Task.others``, ``Outcome.others``, ``Result.others``: further models of the same client (large
  and small together), each validated like the first;
- ``Task.extras``/``Result.extras``: named tensors that are no weights (features, logits, statistics
  per width), and example ids in every minibatch, by which feature stores are keyed;
- ``Strategy.survey``/``surveyed``: tasks before the first round (architecture search);
- ``Evaluated.predict``, ``.kept``, ``.states``, ``.program``: exits that vote, personal entries,
  versions of a client's own, what it does before a test;
- ``round`` wherever a schedule may depend on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from archgraph.analysis.layers import Layer as Layer
from archgraph.analysis.layers import layers as layers
from archgraph.analysis.outline import outline as outline
from archgraph.analysis.roles import frozen as frozen
from archgraph.analysis.roles import label_rows as label_rows
from archgraph.analysis.roles import layer_weights as layer_weights
from archgraph.analysis.roles import with_features as with_features
from archgraph.errors import RejectedUpdate, RunError, SpecError
from archgraph.graph.ir import ArchGraph
from archgraph.hints import nearest
from archgraph.module.build import build
from archgraph.module.build import state_of as detached_state
from archgraph.ops.table import normalisation, statistics
from archgraph.plain import Json
from archgraph.states.state import State as State
from archgraph.states.transfer import Transfer, signature
from archgraph.states.widths import widths as widths

# Whatever json.dumps writes: None, bool, int, float, str, lists and dicts of them.


def seeded(seed: int, *labels: int | str) -> torch.Generator:
    """A generator that depends on the seed and the labels only, not on what was drawn before.

    A run that is resumed at round 7 therefore draws what the uninterrupted run drew there.

    >>> a, b = seeded(0, "sample", 7), seeded(0, "sample", 7)
    >>> bool(torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b)))
    True
    """
    digest = hashlib.sha256(json.dumps([seed, *labels]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


# ---------------------------------------------------------------- who takes part


@dataclass(frozen=True)
class Tier:
    """An architecture that clients may run.

    Attributes:
        name: Its name in the family.
        graph: The architecture.
        transfer: Linear map from the global state to this architecture's.
        source: Where its first weights come from: the global state, or its own model's weights.
        own: Whether ``source`` is a state of this architecture already.
    """

    name: str
    graph: ArchGraph
    transfer: Transfer
    source: State = field(default_factory=dict, repr=False, compare=False)
    own: bool = False

    @property
    def state(self) -> State:
        """Weights before the first round, made anew at each look: the memory of one, not of all."""
        return self.source if self.own else self.transfer.pull(self.source)


@dataclass(frozen=True)
class Client:
    """What the server knows of a client.

    Attributes:
        id: Position in ``World.clients``.
        name: Name of the tier that the family gives it.
        graph: That tier's architecture.
        transfer: Linear map from the global state to this client's.
        examples: Number of training examples.
        histogram: Training examples per class; over the vocabulary for text.
    """

    id: int
    name: str
    graph: ArchGraph
    transfer: Transfer
    examples: int
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """All that stays the same during a run.

    Attributes:
        graph: The global architecture; empty where clients have only models of their own (see
            ``Strategy.needs_global``).
        state: Its initial weights.
        clients: The clients, by id.
        tiers: The architectures that are offered, in the family's order.
        classes: Number of classes (of words, for text).
        rounds: Number of rounds.
        seed: Seed of the run; see :func:`seeded`.
        device: Where server-side computation runs.
    """

    graph: ArchGraph
    state: State
    clients: tuple[Client, ...]
    tiers: tuple[Tier, ...]
    classes: int
    rounds: int
    seed: int
    device: str = "cpu"

    def tier(self, name: str) -> Tier:
        """Tier by name.

        Raises:
            RunError: If there is none of that name.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        names = [t.name for t in self.tiers]
        raise RunError(
            "unknown tier", found=name, expected=", ".join(names), hint=nearest(name, names)
        )


@dataclass(frozen=True)
class ServerState:
    """All that changes between rounds on the server: tensors and plain values.

    Tensor names are paths; the part before the first slash is a group, e.g.
    ``global/layer1.0.conv1.weight``. Tensors are never changed in place: a checkpoint writes only
    the groups that have other tensors than before.
    """

    tensors: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)

    def group(self, name: str) -> dict[str, Tensor]:
        """Tensors below a path, without it.

        >>> ServerState({"global/w": torch.ones(1), "h/w": torch.zeros(1)}).group("global")
        {'w': tensor([1.])}
        """
        prefix = f"{name}/"
        return {k[len(prefix) :]: v for k, v in self.tensors.items() if k.startswith(prefix)}

    def with_group(self, name: str, tensors: State) -> ServerState:
        """The state with all tensors below a path replaced."""
        prefix = f"{name}/"
        others = {k: v for k, v in self.tensors.items() if not k.startswith(prefix)}
        return ServerState(others | {prefix + k: v for k, v in tensors.items()}, self.values)

    def with_values(self, **values: Json) -> ServerState:
        """The state with some plain values replaced."""
        return ServerState(self.tensors, {**self.values, **values})


# ---------------------------------------------------------------- local work


class Examples(NamedTuple):
    """A minibatch.

    Attributes:
        inputs: Arguments of the model in its order; batch axis first.
        targets: Classes ``[batch]`` or ``[batch, position]``; ``-100`` counts for nothing.
        ids: Position of each example in the client's data ``[batch]``: stable over rounds.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    ids: Tensor


class ClientData(Protocol):
    """A client's training data."""

    @property
    def examples(self) -> int:
        """Number of examples."""

    @property
    def histogram(self) -> tuple[int, ...]:
        """Examples per class (words per vocabulary entry)."""

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        """One pass in an order drawn from the generator; None: in the order of the data.

        A remainder of one example joins the batch before it: batch statistics need two.
        """


@dataclass(frozen=True)
class LocalOptions:
    """How clients train.

    Attributes:
        epochs: Passes over the local data in one round.
        batch: Examples in a minibatch.
        optimiser: ``sgd`` or ``adam``.
        lr: Learning rate in the first round.
        momentum: Of SGD.
        weight_decay: L2 coefficient.
        milestones: Rounds (≥ 1) or fractions of all rounds (< 1) after which the rate falls.
        decay: Factor of each fall.
        schedule: ``steps``: the rate falls at the milestones. ``cosine``: it falls along half a
            cosine towards 0 (Loshchilov and Hutter, *SGDR*, ICLR 2017, Eq. 5).
        warmup: Rounds (≥ 1) or a fraction of all rounds (< 1) in which the rate rises in equal
            steps to what it then falls from.
        clip: Largest norm of the gradient; None: any.
        fraction: Share of the local data that is used in a round (FedADP: 0.2).

    Example:
        >>> options = LocalOptions(lr=0.1, milestones=(0.5, 75))
        >>> [round(options.lr_at(t, 100), 6) for t in (1, 50, 51, 76)]
        [0.1, 0.1, 0.01, 0.001]
        >>> options = LocalOptions(lr=0.1, schedule="cosine", warmup=2)
        >>> [round(options.lr_at(t, 10), 6) for t in (1, 2, 3, 7, 10)]
        [0.05, 0.1, 0.1, 0.05, 0.003806]
    """

    epochs: int = 1
    batch: int = 32
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    milestones: tuple[float, ...] = ()
    decay: float = 0.1
    schedule: Literal["steps", "cosine"] = "steps"
    warmup: float = 0.0
    clip: float | None = None
    fraction: float = 1.0

    def lr_at(self, round: int, rounds: int) -> float:
        """Learning rate in a round (counted from 1)."""
        rise = rounds_of(self.warmup, rounds)
        if round <= rise:
            return self.lr * round / math.ceil(rise)
        if self.schedule == "cosine":
            done = (round - 1 - math.floor(rise)) / max(rounds - math.floor(rise), 1)
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        passed = sum(round > rounds_of(m, rounds) for m in self.milestones)
        return self.lr * self.decay**passed

    def optimise(
        self, parameters: Iterable[Tensor], round: int, rounds: int
    ) -> torch.optim.Optimizer:
        """The optimiser for one round; its state does not outlive the round."""
        lr = self.lr_at(round, rounds)
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


def rounds_of(given: float, rounds: int) -> float:
    """A number of rounds, or a fraction of all, as one: 0.29 of 100 is 29, not 28.999….

    >>> rounds_of(0.29, 100), rounds_of(7, 100)
    (29.0, 7)
    """
    return round(given * rounds, 9) if given < 1 else given


class Model(NamedTuple):
    """An architecture with weights."""

    graph: ArchGraph
    state: State


class Progress(Protocol):
    """Told after every step of local training."""

    def __call__(self, *, epoch: int, step: int, loss: float) -> None:
        """Take note; epochs and steps count from 0, steps over all epochs."""


def silent(*, epoch: int, step: int, loss: float) -> None:
    """A :class:`Progress` that takes no note."""


@dataclass(frozen=True)
class Work:
    """What a program works on: a task as it arrived at a client, with what is there.

    Attributes:
        client: Whose it is.
        round: Counted from 1; 0 for the survey before the first.
        rounds: Number of rounds.
        graph: Architecture of the client's model.
        state: Full state of it: what was sent, overlaid with what this client kept of it.
        data: The client's training data.
        local: How to train.
        generator: Source of all randomness of this client in this round. The engine seeds torch's
            own generator (dropout) from it before it calls the program.
        keep: What this client kept beside its state.
        others: Further models by name.
        extras: Tensors that the server sent.
        values: Plain values that the server sent.
        device: Where to compute.
        progress: Called after every step.
    """

    client: int
    round: int
    rounds: int
    graph: ArchGraph
    state: State
    data: ClientData
    local: LocalOptions
    generator: torch.Generator
    keep: State = field(default_factory=dict)
    others: Mapping[str, Model] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)
    device: str = "cpu"
    progress: Progress = silent

    @property
    def present(self) -> Tensor:
        """Which classes this client has examples of, bool ``[classes]``."""
        return torch.tensor([n > 0 for n in self.data.histogram])


@dataclass(frozen=True)
class Outcome:
    """What a program leaves behind.

    Attributes:
        state: Full state of the model after the work. The engine takes ``Task.kept`` out of it.
        keep: Replaces what the client keeps beside its state.
        others: States of the further models.
        extras: Tensors for the server.
        metrics: Numbers for the record.
    """

    state: State
    keep: State = field(default_factory=dict)
    others: Mapping[str, State] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Program(Protocol):
    """What a client does with its work: a frozen dataclass, so that it pickles and prints."""

    def __call__(self, work: Work) -> Outcome:
        """Do it."""


@dataclass(frozen=True)
class Task:
    """What the server sends to a client.

    Attributes:
        client: To whom.
        graph: Architecture of the model.
        state: Its weights. Entries of ``kept`` may be left out where the client has them.
        program: What to do.
        kept: Entries that stay with the client from round to round and are never returned. A later
            task that keeps one of them gives it the same shape. :func:`frozen` ones are not held
            for a client, since nothing changes them: every task brings them.
        others: Further models by name; all of their state is sent and returned.
        extras: Tensors that are no weights.
        values: Plain values.
        tier: Which architecture this is, for the record; empty: the client's own.
    """

    client: int
    graph: ArchGraph
    state: State
    program: Program
    kept: frozenset[str] = frozenset()
    others: Mapping[str, Model] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)
    tier: str = ""


@dataclass(frozen=True)
class Result:
    """What the server sees of a client's work, validated by the engine.

    ``state`` holds all entries of the task's graph except ``Task.kept``; floating point tensors,
    those of ``extras`` too, are finite.
    """

    client: int
    state: State
    examples: int
    others: Mapping[str, State] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


# ---------------------------------------------------------------- predictions and objectives


class Predict(Protocol):
    """From a model's outputs to logits ``[batch, ..., classes]``."""

    def __call__(self, outputs: Any) -> Tensor:
        """Take or compute the logits."""


@dataclass(frozen=True)
class Logits:
    """The logits among a model's outputs.

    Attributes:
        output: Key or position of the output; None: the only one, or the one called ``logits``.

    Example:
        >>> Logits()({"logits": torch.zeros(2, 3), "features": torch.zeros(2, 8)}).shape
        torch.Size([2, 3])
    """

    output: str | int | None = None

    def __call__(self, outputs: Any) -> Tensor:
        """Take them.

        Raises:
            RunError: If it is not clear which output is meant.
        """
        key = self.output
        if isinstance(outputs, Tensor) and key is None:
            return outputs
        if isinstance(outputs, Mapping):
            if key is None:
                key = "logits" if "logits" in outputs else next(iter(outputs), None)
                key = key if key == "logits" or len(outputs) == 1 else None
            found = outputs.get(key)
            names = ", ".join(map(str, outputs))
        elif isinstance(outputs, Sequence):
            at = 0 if key is None and len(outputs) == 1 else key
            fields = getattr(outputs, "_fields", range(len(outputs)))
            found = next(
                (
                    v
                    for n, i, v in zip(fields, range(len(outputs)), outputs, strict=True)
                    if at in (n, i)
                ),
                None,
            )
            names = ", ".join(map(str, fields))
        else:
            found, names = None, type(outputs).__name__
        if isinstance(found, Tensor):
            return found
        raise RunError(
            "no logits among the outputs of the model",
            found=names,
            expected="one tensor, one called logits" if key is None else key,
            hint="say which: Logits(output=...)",
        )


class Objective(Protocol):
    """What local training minimises."""

    def __call__(self, outputs: Any, examples: Examples, work: Work) -> Tensor:
        """Mean loss over the minibatch, a scalar with gradient."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy, with the logits of absent classes set to zero if so asked.

    Attributes:
        mask_absent: Set the logits of classes that the client has no example of to 0 before the
            loss (HeteroFL §3.3, FedFA §5.1), so that training does not push them down.
        label_smoothing: Of ``torch.nn.functional.cross_entropy``.
        predict: Where the logits are.
    """

    mask_absent: bool = False
    label_smoothing: float = 0.0
    predict: Predict = Logits()

    def __call__(self, outputs: Any, examples: Examples, work: Work) -> Tensor:
        """Mean over all targets (positions of a text count one by one)."""
        logits = self.predict(outputs)
        if self.mask_absent:
            logits = mask_absent(logits, work.present)
        return nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            examples.targets.reshape(-1),
            label_smoothing=self.label_smoothing,
        )


def mask_absent(logits: Tensor, present: Tensor) -> Tensor:
    """Logits ``[..., classes]`` with those of absent classes set to 0.

    Args:
        logits: Logits, last axis classes.
        present: Which classes are present, bool ``[classes]``.

    Raises:
        RunError: If the number of classes differs.

    Example:
        >>> mask_absent(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([True, False, True]))
        tensor([[1., 0., 3.]])
    """
    if logits.shape[-1] != len(present):
        raise RunError(
            "model and data differ in the number of classes",
            found=f"{logits.shape[-1]} logits",
            expected=f"{len(present)}, the classes of the data",
        )
    if bool(present.all()):
        return logits
    return logits.masked_fill(~present.to(logits.device), 0.0)


class Penalty(Protocol):
    """A term of the loss that sees the parameters (proximal terms, FedDyn)."""

    def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
        """Value of the term, a scalar with gradient."""


# ---------------------------------------------------------------- local training


def module_of(model: Work | Model, device: str = "cpu") -> nn.Module:
    """The model as a module with a copy of its state; on the work's device, or the given one."""
    module: nn.Module = build(model.graph, model.state)
    return module.to(model.device if isinstance(model, Work) else device)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """State of a module as it travels: on the CPU, detached, contiguous."""
    return {k: v.cpu().contiguous() for k, v in detached_state(module).items()}


def descend(
    work: Work,
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[Examples], Tensor],
    *,
    revise: Callable[[Mapping[str, nn.Parameter]], None] | None = None,
) -> dict[str, float]:
    """Local training: minimise a loss over the client's data with its options.

    Args:
        work: Data, options, randomness, progress.
        parameters: What is trained, by name.
        loss: Mean loss of a minibatch (already on ``work.device``).
        revise: Changes gradients between the backward pass and the step (momentum distillation).

    Returns:
        Metrics: ``loss`` (mean over the last epoch's examples), ``steps``, ``seen`` (examples).

    Raises:
        RejectedUpdate: If the loss or a gradient is not finite; names the first such parameter.
    """
    trained = [p for p in parameters.values() if p.requires_grad]
    optimiser = work.local.optimise(trained, work.round, work.rounds)
    data = work.data
    if work.local.fraction < 1:
        data = _Part.of(work.data, math.ceil(work.local.fraction * data.examples), work.generator)
    step = seen = 0
    total, count = 0.0, 0
    for epoch in range(work.local.epochs):
        total, count = 0.0, 0
        for batch in data.batches(work.generator, work.local.batch):
            examples = Examples(
                tuple(x.to(work.device) for x in batch.inputs),
                batch.targets.to(work.device),
                batch.ids,
            )
            optimiser.zero_grad(set_to_none=True)
            value = loss(examples)
            value.backward()
            if revise is not None:
                revise(parameters)
            gradients = [p.grad for p in trained if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            number = float(value.detach())
            if not (math.isfinite(number) and math.isfinite(float(norm))):
                raise _not_finite(work, parameters, number)
            if work.local.clip is not None:
                nn.utils.clip_grads_with_norm_(trained, work.local.clip, norm)
            optimiser.step()
            size = len(batch.ids)
            total, count, seen = total + number * size, count + size, seen + size
            work.progress(epoch=epoch, step=step, loss=number)
            step += 1
    return {"loss": total / max(count, 1), "steps": float(step), "seen": float(seen)}


@dataclass(frozen=True, eq=False)
class _Part:
    """Some of a client's examples, the same ones in every pass.

    Attributes:
        whole: All of them together.
        histogram: Of all the client's examples.
    """

    whole: Examples
    histogram: tuple[int, ...]

    @staticmethod
    def of(data: ClientData, count: int, generator: torch.Generator) -> _Part:
        """So many, drawn from the generator."""
        batch = next(iter(data.batches(generator, data.examples)))
        inputs = tuple(x[:count] for x in batch.inputs)
        return _Part(Examples(inputs, batch.targets[:count], batch.ids[:count]), data.histogram)

    @property
    def examples(self) -> int:
        return len(self.whole.ids)

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        count = self.examples
        order = (
            torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        )
        for at in cut(order, size):
            there = at.to(self.whole.targets.device)
            yield Examples(
                tuple(x.index_select(0, there) for x in self.whole.inputs),
                self.whole.targets.index_select(0, there),
                self.whole.ids[at],
            )


def cut(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Consecutive pieces of a size; a remainder of one joins the piece before it.

    >>> [len(piece) for piece in cut(torch.arange(7), 3)], [len(p) for p in cut(torch.arange(8), 3)]
    ([3, 4], [3, 3, 2])
    """
    sizes = [size] * (len(order) // size)
    rest = len(order) - sum(sizes)
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return order.split(sizes)


def _not_finite(work: Work, parameters: Mapping[str, nn.Parameter], loss: float) -> RejectedUpdate:
    bad = [
        name
        for name, p in parameters.items()
        if p.grad is not None and not bool(torch.isfinite(p.grad).all())
    ]
    return RejectedUpdate(
        f"gradient of {bad[0]} is not finite" if bad else "loss is not finite",
        where=f"client {work.client}",
        found=f"loss {loss:g}",
        expected="finite numbers",
        hint="lower the learning rate or set clip",
    )


@dataclass(frozen=True)
class Train:
    """The program of most methods: supervised training of one model on the client's data.

    Attributes:
        objective: What it minimises.
        penalty: A further term that sees the parameters.
        epochs: Passes over the data, where they are not those of the experiment (fine-tuning).
    """

    objective: Objective = CrossEntropy()
    penalty: Penalty | None = None
    epochs: int | None = None

    def __call__(self, work: Work) -> Outcome:
        """Train, and return the state and the metrics of :func:`descend`."""
        if self.epochs is not None:
            local = dataclasses.replace(work.local, epochs=self.epochs)
            work = dataclasses.replace(work, local=local)
        module = module_of(work).train()
        parameters = dict(module.named_parameters())

        def loss(examples: Examples) -> Tensor:
            value = self.objective(module(*examples.inputs), examples, work)
            if self.penalty is not None:
                value = value + self.penalty(parameters, work)
            return value

        metrics = descend(work, parameters, loss)
        return Outcome(state=state_of(module), keep=work.keep, metrics=metrics)


# ---------------------------------------------------------------- normalisation


NormName: TypeAlias = Literal["averaged", "local", "static", "per_submodel", "per_width_stats"]


@dataclass(frozen=True)
class NormPolicy:
    """What becomes of normalisation layers: which entries are merged, kept or recomputed.

    Attributes:
        name: ``averaged``: statistics are averaged like weights. ``local``: they never leave the
            client. ``static``: no running statistics in training; cumulative ones are computed in
            one pass over training data before evaluation (HeteroFL's sBN). ``per_submodel``: whole
            norm layers are held per submodel (NeFL). ``per_width_stats``: statistics are held per
            width, scale and shift are shared (FjORD).
    """

    name: NormName

    def kept(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that stay with the client: for ``Task.kept``."""
        return frozenset(statistics(graph)) if self.name == "local" else frozenset()

    def grouped(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that the server holds once per submodel (or width) instead of once."""
        match self.name:
            case "per_submodel":
                return frozenset(normalisation(graph)) & frozenset(graph.state_names)
            case "per_width_stats":
                return frozenset(statistics(graph))
            case _:
                return frozenset()

    def left_out(self, graph: ArchGraph) -> frozenset[str]:
        """Entries that are not merged into the global state: for ``Merger.add(skip=...)``."""
        if self.name in ("local", "static"):
            return frozenset(statistics(graph))
        return self.grouped(graph)

    def filled(self, graph: ArchGraph, state: State) -> State:
        """A returned state as the merger wants it: zeros for what its client keeps and it skips."""
        absent = self.kept(graph) - state.keys()
        if not absent:
            return state
        zeros = {s.name: torch.zeros(s.shape, dtype=s.torch_dtype) for s in signature(graph)}
        return {name: state[name] if name in state else zeros[name] for name in graph.state_names}

    @property
    def evaluation(self) -> Literal["stored", "recompute"]:
        """Which statistics evaluation uses: for ``Evaluated.statistics``."""
        return "recompute" if self.name == "static" else "stored"


# ---------------------------------------------------------------- strategies


@dataclass(frozen=True)
class Evaluated:
    """A model that the strategy answers for.

    Attributes:
        name: Tier, cluster, client or ``global``.
        graph: Its architecture.
        state: Its weights.
        clients: Whose local test data it is tested on, beside the global test data.
        statistics: ``stored``: as in the state; ``recompute``: cumulative statistics from one pass
            over training data first.
        predict: From outputs to logits (a mean over exits, say).
        kept: Overlay each client's kept entries (personal layers) before testing on its data.
        program: Run on each client's training data before testing on its data (fine-tuning).
        states: Weights of a client's own version by its id, made when asked for; ``state`` then is
            one of them.
    """

    name: str
    graph: ArchGraph
    state: State
    clients: tuple[int, ...] = ()
    statistics: Literal["stored", "recompute"] = "stored"
    predict: Predict = Logits()
    kept: bool = False
    program: Program | None = None
    states: Callable[[int], State] | None = None

    @property
    def personal(self) -> bool:
        """Whether each client has it in its own way."""
        return self.kept or self.program is not None or self.states is not None


@dataclass(frozen=True)
class Strategy(ABC):
    """A federated method: pure functions from server state to server state.

    Subclasses are frozen dataclasses whose fields are the method's options, final, one per paper.
    Randomness comes from :func:`seeded` with ``world.seed``, a label and the round.

    One run calls ``init``, then ``survey`` and ``surveyed`` once, then in every round ``begin``,
    ``send`` for each sampled client, ``receive``, and ``evaluated`` where the model is tested.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {}
    """Named option values, where sources use one name for different algorithms."""

    needs_global: ClassVar[bool] = True
    """Whether clients' models have to be parts of a global one."""

    @abstractmethod
    def init(self, world: World) -> ServerState:
        """State before the first round.

        Raises:
            RunError: If the method cannot serve this world.
        """

    def survey(self, world: World, state: ServerState) -> Iterable[Task]:
        """Tasks that clients do once before the first round (architecture search)."""
        return ()

    def surveyed(self, world: World, state: ServerState, results: Iterable[Result]) -> ServerState:
        """State after the survey."""
        return state

    def begin(
        self, world: World, state: ServerState, round: int, sampled: Sequence[int]
    ) -> ServerState:
        """State at the beginning of a round, before anything is sent: what the round draws."""
        return state

    @abstractmethod
    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """What a sampled client is to do in this round."""

    def examine(self, world: World, result: Result) -> None:  # noqa: B027  # most ask for weights
        """Look at what came beside a client's weights, before the server takes any of it.

        Raises:
            RejectedUpdate: If it is not what was asked for; the round goes on without this client.
        """

    @abstractmethod
    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """State after a round. ``results`` is a stream: one update is in memory at a time.

        There may be fewer results than clients were sampled, or none.
        """

    @abstractmethod
    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """The models that the method answers for, one at a time."""


GROUP = "archgraph.strategies"


def strategy_names() -> tuple[str, ...]:
    """Names of the installed strategies, sorted."""
    return tuple(sorted({e.name for e in importlib.metadata.entry_points(group=GROUP)}))


def find_strategy(name: str) -> type[Strategy]:
    """The strategy of a name, from the entry-point group ``archgraph.strategies``.

    Raises:
        SpecError: If there is none, or it is no strategy.

    Example:
        >>> find_strategy("fedav")
        Traceback (most recent call last):
        archgraph.errors.SpecError: strategy: unknown strategy; found 'fedav'; expected one of ...
    """
    entries = {e.name: e for e in importlib.metadata.entry_points(group=GROUP)}
    if name not in entries:
        raise SpecError(
            "unknown strategy",
            where="strategy",
            found=repr(name),
            expected=f"one of {', '.join(sorted(entries))}",
            hint=nearest(name, entries),
        )
    try:
        found = entries[name].load()
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"strategy {name} cannot be imported",
            where="strategy",
            found=f"{entries[name].value}: {error}",
            hint="install what it needs: pip install 'archgraph[NAME]' with its extra",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise SpecError(
            f"{name} is no strategy",
            where="strategy",
            found=entries[name].value,
            expected="a subclass of archgraph.federation.strategy.Strategy",
        )
    return found


def configure(name: str, options: Mapping[str, Json] | None = None) -> Strategy:
    """A strategy with options as a spec gives them: plain values, checked field by field.

    Args:
        name: Name of the strategy.
        options: Its fields by name; ``preset`` names a set of values that the others override.

    Raises:
        SpecError: For an unknown strategy, option or preset (with the nearest name), or a value of
            the wrong type or outside its range; ``where`` is ``strategy.name.option``.

    Example:
        >>> configure("fedavg", {"weights": "uniform"}).weights
        'uniform'
    """
    import pydantic

    cls = find_strategy(name)
    given = dict(options or {})
    preset = given.pop("preset", None)
    if preset is not None:
        if preset not in cls.presets:
            raise SpecError(
                "unknown preset",
                where=f"strategy.{name}.preset",
                found=repr(preset),
                expected=f"one of {', '.join(cls.presets) or 'none'}",
                hint=nearest(str(preset), cls.presets),
            )
        given = {**cls.presets[preset], **given}
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in given:
        if key not in fields:
            raise SpecError(
                "unknown option",
                where=f"strategy.{name}.{key}",
                found=repr(key),
                expected=f"one of {', '.join(fields) or 'none'}",
                hint=nearest(key, fields),
            )
    types = typing.get_type_hints(cls)
    values = {}
    for key, value in given.items():
        try:
            # JSON's strictness: 1 is a float, "1" and True are not; a list is a tuple.
            text = json.dumps(value)
            values[key] = pydantic.TypeAdapter(types[key]).validate_json(text, strict=True)
        except (pydantic.ValidationError, TypeError) as error:
            detail = error.errors()[0]["msg"] if isinstance(error, pydantic.ValidationError) else ""
            raise SpecError(
                "wrong value",
                where=f"strategy.{name}.{key}",
                found=repr(value),
                expected=fields[key].type if isinstance(fields[key].type, str) else None,
                hint=detail or None,
            ) from None
    try:
        return cls(**values)
    except SpecError as error:
        inside = f".{error.where}" if error.where else ""
        raise SpecError(
            error.message,
            where=f"strategy.{name}{inside}",
            found=error.found,
            expected=error.expected,
            hint=error.hint,
        ) from None
