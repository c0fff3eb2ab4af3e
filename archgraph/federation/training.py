"""Local training: options, gradient descent, the program of most methods."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from archgraph.errors import RejectedUpdate
from archgraph.federation.augment import augmented
from archgraph.federation.objectives import Objective, Penalty, TaskLoss
from archgraph.federation.shard import Shard
from archgraph.federation.tasks import ClientData, Examples, Model, Outcome, Work
from archgraph.language.local import LocalOptions
from archgraph.module.build import build, state_of
from archgraph.states.updates import finite


def optimiser(
    local: LocalOptions, parameters: Iterable[Tensor], round: int, rounds: int
) -> torch.optim.Optimizer:
    """Return the optimiser for one round; its state does not outlive the round."""
    lr = local.lr_at(round, rounds)
    if local.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=local.momentum, weight_decay=local.weight_decay
    )


# Whether modules for clients' work are compiled: a mode, as autocast is, that no program asks for.
_COMPILED: ContextVar[bool] = ContextVar("compiled", default=False)
# Of one code: all networks share some, in two modes and for several sizes of batches.
_VARIANTS = 10_000


@contextlib.contextmanager
def compiling(on: bool) -> Iterator[None]:
    """Let :func:`module_of` give modules that PyTorch compiles when they are first called.

    The process caches compiled code for all modules of a graph.
    """
    if not on:
        yield
        return
    import torch._dynamo  # takes seconds
    import torch._inductor.config

    mode = _COMPILED.set(True)
    # Beyond the limit PyTorch runs the code uncompiled, and a tier would be slow in silence.
    limits = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), _VARIANTS)
    try:
        with (
            torch._dynamo.config.patch(limits),
            torch._inductor.config.patch(fallback_random=True),  # dropout draws as it else does
        ):
            yield
    finally:
        _COMPILED.reset(mode)


def module_of(model: Work | Model, device: str = "cpu") -> nn.Module:
    """Build a module with a copy of the state, on the work's device or the one passed.

    Images' channels lie last in memory: convolutions take that faster, and values are the same.
    """
    device = model.device if isinstance(model, Work) else device
    # With AVX2 as the newest extension, oneDNN overwrites memory in the backward pass of 1x1
    # convolutions with stride 2 whose channels lie last.
    last = device != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX2"

    def placed(value: Tensor) -> Tensor:
        # Moved before it is copied: memory of a device is taken faster.
        value = value.to(device)
        images = last and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if images else value

    module: nn.Module = build(model.graph, {k: placed(v) for k, v in model.state.items()})
    if _COMPILED.get():
        module.compile()
    return module


def descend(
    work: Work,
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[Examples], Tensor],
    *,
    revise: Callable[[Mapping[str, nn.Parameter]], None] | None = None,
) -> dict[str, float]:
    """Minimise a loss over the client's data: local training with the client's options.

    Args:
        work: Data, options, randomness, progress.
        parameters: The parameters to train, by name.
        loss: Mean loss of a minibatch (already on ``work.device``).
        revise: Changes gradients between the backward pass and the step (momentum distillation).

    Returns:
        Metrics: ``loss`` (mean over the last epoch's examples), ``steps``, ``seen`` (examples).

    Raises:
        RejectedUpdate: If the loss, or a parameter after a step, is not finite; names the first.
    """
    trained = [p for p in parameters.values() if p.requires_grad]
    steps = optimiser(work.local, trained, work.round, work.rounds)
    data = work.data
    if work.local.fraction < 1:
        data = _drawn(data, math.ceil(work.local.fraction * data.examples), work.generator)
    # Reading a number from a device waits for all work there: ten times a second is enough.
    pause, due = (0.0 if work.device == "cpu" else 0.1), 0.0
    step = trained_on = 0
    number, mean = 0.0, 0.0
    for epoch in range(work.local.epochs):
        losses: list[Tensor] = []
        sizes: list[int] = []
        for batch in data.batches(work.generator, work.local.batch):
            inputs = tuple(x.to(work.device) for x in batch.inputs)
            if work.local.augment is not None:
                inputs = (augmented(inputs[0], work.local.augment, work.generator), *inputs[1:])
            examples = Examples(inputs, batch.targets.to(work.device), batch.ids)
            # Not `steps.zero_grad()`: it imports torch's compiler, which takes seconds.
            for parameter in trained:
                parameter.grad = None
            value = loss(examples)
            value.backward()
            if revise is not None:
                revise(parameters)
            losses.append(value.detach())
            sizes.append(len(batch.ids))
            seen = time.monotonic() >= due
            if seen:
                # Before the step, while the parameters still say which of them broke first.
                number = _finite_loss(work, parameters, losses[-1:])[0]
            if work.local.clip is not None:
                nn.utils.clip_grad_norm_(trained, work.local.clip)
            steps.step()
            if seen:
                work.progress(epoch=epoch, step=step, loss=number)
                due = time.monotonic() + pause
            step += 1
        trained_on += sum(sizes)
        if losses:
            numbers = _finite_loss(work, parameters, losses)
            number = numbers[-1]
            mean = sum(x * n for x, n in zip(numbers, sizes, strict=True)) / sum(sizes)
    # A gradient that is not finite leaves a parameter that is not, for good.
    if not all(finite(p) for p in trained):
        raise _not_finite(work, parameters, number)
    return {"loss": mean, "steps": float(step), "seen": float(trained_on)}


def _finite_loss(
    work: Work, parameters: Mapping[str, nn.Parameter], losses: list[Tensor]
) -> list[float]:
    """Read losses from the device; refuse the first that is not finite."""
    numbers: list[float] = torch.stack(losses).cpu().tolist()
    for number in numbers:
        if not math.isfinite(number):
            raise _not_finite(work, parameters, number)
    return numbers


def _drawn(data: ClientData, count: int, generator: torch.Generator) -> Shard:
    """Draw some of a client's examples, the same ones in every pass."""
    # One minibatch of everything is in a drawn order: its first examples are a random part.
    everything = next(iter(data.batches(generator, data.examples)))
    inputs = tuple(x[:count] for x in everything.inputs)
    return Shard(inputs, everything.targets[:count], data.histogram, everything.ids[:count])


def _not_finite(work: Work, parameters: Mapping[str, nn.Parameter], loss: float) -> RejectedUpdate:
    bad = [name for name, p in parameters.items() if not finite(p)]
    return RejectedUpdate(
        f"{bad[0]} is not finite" if bad else "loss is not finite",
        where=f"client {work.client}",
        found=f"loss {loss:g}",
        expected="finite numbers",
        hint="lower `local.lr`, or set `local.clip`",
    )


@dataclass(frozen=True)
class Train:
    """The program of most methods: supervised training of one model on the client's data.

    Attributes:
        objective: What it minimises.
        penalty: A further term that sees the parameters.
        epochs: Passes over the data, where they are not those of the experiment (fine-tuning).
    """

    objective: Objective = field(default_factory=TaskLoss)
    penalty: Penalty | None = None
    epochs: int | None = None

    def __call__(self, work: Work) -> Outcome:
        """Train, and return the state and the metrics of :func:`descend`."""
        if self.epochs is not None:
            local = work.local.model_copy(update={"epochs": self.epochs})
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
