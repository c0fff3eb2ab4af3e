"""Local training: optimisers, gradient descent, and the program that most methods use."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from archgraph.errors import RejectedUpdate
from archgraph.federation.objectives import Objective, Penalty, TaskLoss, Towards
from archgraph.federation.shard import Shard, batch_sizes
from archgraph.federation.tasks import ClientData, Examples, Model, Outcome, Work
from archgraph.federation.transforms import transform_images
from archgraph.language.local import LocalOptions
from archgraph.module.build import filled, state_of
from archgraph.plain import Json
from archgraph.states.copies import state_to_device, to_device
from archgraph.states.updates import all_finite, finite


def optimiser(
    local: LocalOptions, parameters: Iterable[Tensor], round: int, rounds: int
) -> torch.optim.Optimizer:
    """Return a new optimiser for one round. Its state is discarded after the round."""
    steps: torch.optim.Optimizer = local.chosen.make({"params": parameters})
    if local.over is None:
        _set(steps, local.settings_at(round, rounds, 1, 1))
    return steps


def _set(optimiser: torch.optim.Optimizer, settings: Mapping[str, Json]) -> None:
    for group in optimiser.param_groups:
        group.update(settings)


def module_of(
    model: Work | Model, device: str = "cpu", *, training: bool | None = None
) -> nn.Module:
    """Build a module with a copy of the model's weights.

    Weights have PyTorch's default memory format. Convolutions would be faster with the
    channels-last format, but batch norm in training on a CPU would be 10 to 25 times less accurate,
    and the errors would grow from layer to layer.

    Args:
        model: An architecture with weights, or a :class:`Work`, which contains both.
        device: Device of the module. Ignored for a :class:`Work`, which has its own device.
        training: Whether all modules are in training mode. Default: each module has the mode in
            which it was traced.
    """
    device = model.device if isinstance(model, Work) else device
    # The state is moved before it is copied, since allocation on a device is faster.
    there = state_to_device(model.state, device)
    return filled(model.graph, there, training=training)


def by_examples(batch: Examples) -> Tensor:
    """Return the number of examples in a minibatch.

    Use this function for ``counts`` of :func:`descend` if the loss does not depend on targets.
    """
    return torch.tensor(len(batch.ids))


def descend(
    work: Work,
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[Examples], Tensor],
    *,
    counts: Callable[[Examples], Tensor] | None = None,
    revise: Callable[[Mapping[str, nn.Parameter]], None] | None = None,
) -> dict[str, float]:
    """Train parameters on the client's data for one round, with the options ``work.local``.

    1. Draw the examples that the round uses.
    2. For each step, average the losses of ``local.accumulate`` minibatches, weighted by
       ``counts``. Add FedProx's term and compute the gradients. Then call ``revise``, clip the
       gradients, and take an optimiser step.

    Args:
        work: The client's data, options and random generator.
        parameters: Dict from name to parameter to train.
        loss: Function that returns the mean loss of a minibatch on ``work.device``.
        counts: Function that returns the weight of a minibatch as a 0-dim tensor. Default: the
            total weight of the minibatch's targets in the task's loss.
        revise: Function that changes the gradients before clipping.

    Returns:
        A dict with ``loss`` (weighted mean over the last epoch; NaN if all targets are ignored),
        ``steps`` (number of steps) and ``seen`` (number of examples over all epochs).

    Raises:
        RejectedUpdate: If the loss, or a parameter after a step, is not finite.
    """
    local, data = work.local, work.data
    trained = [p for p in parameters.values() if p.requires_grad]
    steps = optimiser(local, trained, work.round, work.rounds)
    if local.fraction < 1:  # 1
        data = _drawn(data, math.ceil(local.fraction * data.examples), work.generator)
    length, count = local.accumulate or 1, steps_of(data.examples, local)
    near = None
    if local.proximal is not None:
        near = Towards(local.proximal, {n: p.detach().clone() for n, p in parameters.items()})
    counts = counts or (lambda batch: work.learning.counts(batch.targets).sum())
    # Reading a number from a device waits for all its work. This is done once per pass.
    at_once = work.device == "cpu"
    step = trained_on = 0
    number = mean = 0.0
    for _ in range(local.epochs):
        losses: list[Tensor] = []
        numbers: list[float] = []
        sizes: list[Tensor] = []
        drawn = data.batches(work.generator, local.batch)
        while group := list(itertools.islice(drawn, length)):  # 2
            # Not `steps.zero_grad()`: it imports torch's compiler, which takes seconds.
            for parameter in trained:
                parameter.grad = None
            sizes += (counted := [counts(batch) for batch in group])
            for batch, share in zip(group, _shares(counted), strict=True):
                value = loss(_arrived(batch, work))
                if near is not None:
                    value = value + near(parameters, work)
                (value if length == 1 else value * share.to(value)).backward()
                losses.append(value.detach())
                trained_on += len(batch.ids)
            if revise is not None:
                revise(parameters)
            if at_once:
                # Before the step, while the parameters show which of them became non-finite first.
                numbers += _finite_loss(work, parameters, losses[len(numbers) :])
            if local.clip is not None:
                nn.utils.clip_grad_norm_(trained, local.clip)
            if local.over is not None:
                at = min(step + 1, count)  # if a program's own data has more minibatches
                _set(steps, local.settings_at(work.round, work.rounds, at, count))
            steps.step()
            step += 1
        if losses:
            if not at_once:
                numbers = _finite_loss(work, parameters, losses)
            number = numbers[-1]
            mean = _mean(numbers, torch.stack(sizes).cpu().tolist())
    # A gradient that is not finite makes a parameter permanently not finite.
    if not all_finite(trained):
        raise _not_finite(work, parameters, number)
    return {"loss": mean, "steps": float(step), "seen": float(trained_on)}


def _shares(counts: list[Tensor]) -> Sequence[Tensor]:
    """Return the relative weight of each minibatch in a step; equal weights if all are 0."""
    counted = torch.stack(counts).double()  # on the device: reading a number would wait for it
    total = counted.sum()
    return torch.where(total > 0, counted / total, 1 / len(counts)).unbind()


def _mean(values: Sequence[float], counts: Sequence[float]) -> float:
    """Return the weighted mean of values; NaN if all weights are 0."""
    total = sum(counts)
    return sum(x * n for x, n in zip(values, counts, strict=True)) / total if total else math.nan


def steps_of(examples: int, local: LocalOptions) -> int:
    """Return the number of training steps in a round, given the number of examples.

    >>> steps_of(10, LocalOptions(epochs=2, batch=4)), steps_of(9, LocalOptions(batch=2))
    (6, 4)
    """
    return local.epochs * math.ceil(
        len(batch_sizes(examples, local.batch)) / (local.accumulate or 1)
    )


def _arrived(batch: Examples, work: Work) -> Examples:
    """Return a minibatch on the client's device, with transformed images."""
    inputs = tuple(to_device(x, work.device) for x in batch.inputs)
    if work.local.transforms is not None:
        inputs = (transform_images(inputs[0], work.local.transforms, work.pixels), *inputs[1:])
    return batch._replace(inputs=inputs, targets=to_device(batch.targets, work.device))


def _finite_loss(
    work: Work, parameters: Mapping[str, nn.Parameter], losses: list[Tensor]
) -> list[float]:
    """Read losses from the device; raise an error if a loss is not finite."""
    numbers: list[float] = torch.stack(losses).cpu().tolist()
    for number in numbers:
        if not math.isfinite(number):
            raise _not_finite(work, parameters, number)
    return numbers


def _drawn(data: ClientData, count: int, generator: torch.Generator) -> Shard:
    """Draw some of a client's examples, which all passes of the round use."""
    if not isinstance(data, Shard):
        (every,) = data.batches(None, data.examples)
        data = Shard(every.inputs, every.targets, data.histogram, every.ids)
    return data.part(torch.randperm(data.examples, generator=generator)[:count])


def _not_finite(work: Work, parameters: Mapping[str, nn.Parameter], loss: float) -> RejectedUpdate:
    bad = [name for name, p in parameters.items() if not finite(p)]
    return RejectedUpdate(
        f"{bad[0]} is not finite" if bad else "loss is not finite",
        where=f"client {work.client}",
        found=f"loss {loss:g}",
        expected="finite numbers",
        hint="lower the learning rate, or set `local.clip`",
    )


@dataclass(frozen=True)
class Train:
    """The program of most methods: supervised training of one model on the client's data.

    Attributes:
        objective: The loss to minimise.
        penalty: An additional term of the loss that depends on the parameters.
        epochs: Number of epochs. Default: the experiment's ``local.epochs``.
    """

    objective: Objective = field(default_factory=TaskLoss)
    penalty: Penalty | None = None
    epochs: int | None = None

    def __call__(self, work: Work) -> Outcome:
        """Train the model, and return its state and the metrics of :func:`descend`."""
        if self.epochs is not None:
            local = work.local.model_copy(update={"epochs": self.epochs})
            work = dataclasses.replace(work, local=local)
        module = module_of(work, training=True)
        parameters = dict(module.named_parameters())

        def loss(examples: Examples) -> Tensor:
            value = self.objective(module(*examples.inputs), examples, work)
            if self.penalty is not None:
                value = value + self.penalty(parameters, work)
            return value

        metrics = descend(work, parameters, loss)
        return Outcome(state=state_of(module), keep=work.keep, metrics=metrics)
