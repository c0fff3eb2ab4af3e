"""FedMD: clients with heterogeneous networks train towards their mean logits on public data.

Li, Wang: *FedMD: Heterogenous Federated Learning via Model Distillation*, 2019 (Algorithm 1).

====================  ========================================================================
symbol                here
====================  ========================================================================
``D_0``               examples of the experiment's ``public``, which every client has
``d_j``               ``subset`` of them, drawn for round j
``f_k(x⁰)``           ``Result.extras`` of client k: its logits on ``d_j`` (communicate)
``f̃(x⁰)``             group ``consensus``: mean logits over the round's clients (aggregate)
====================  ========================================================================

A round here starts in the middle of the paper's round. Its steps are distribute, digest, revisit,
communicate and aggregate. In its first round, a client begins with the transfer learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedMD(fl.Masking):
    """Options of FedMD.

    Attributes:
        subset: Number of public examples that are drawn in each round. Default: all.
        digest_epochs: Number of epochs for which a client trains towards the consensus on the drawn
            public examples.
        public_epochs: Number of epochs for which a client trains on the labelled public set before
            its first training on its own data (transfer learning). With 0, labels of public
            examples are not used.

    Example:
        >>> FedMD(subset=100).digest_epochs
        1
    """

    paper = "FedMD"
    year = 2019
    serves = ("any",)
    needs_global = False
    public = True
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "clients exchange scores of classes"
    )

    subset: int | None = fl.option(None, least=1)
    digest_epochs: int = fl.option(1, least=1)
    public_epochs: int = fl.option(0, least=0)

    def init(self, world: fl.World) -> fl.ServerState:
        """Start without a consensus.

        Raises:
            RunError: If ``subset`` is larger than the public set, or the public set has more
                classes than the task.
        """
        fl.check_single(world)
        public = public_set(world.public)
        for name, value, limit in (
            ("subset", self.subset or 0, public.examples),
            ("public_epochs", len(public.histogram) * bool(self.public_epochs), world.classes),
        ):
            if value > limit:
                words = "examples" if name == "subset" else "classes to learn"
                message = f"does not fit the public set: {words}"
                raise ag.RunError(message, where=name, found=value, expected=f"at most {limit}")
        return fl.ServerState(values={"drawn": 0})

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the consensus (step *distribute*). The network stays with the client."""
        party = Party(
            fl.TaskLoss(self.mask_absent),
            Draw(world.seed, self.subset),
            int(str(state.values["drawn"])),
            self.digest_epochs,
            self.public_epochs,
        )
        return fl.private_network(world, client, party, extras=state.group("consensus"))

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check that the client returned logits for each public example of the round.

        Raises:
            RejectedUpdate: If logits are missing or have another shape.
        """
        scores = result.extras.get("scores")
        actual = None if scores is None else tuple(scores.shape)
        expected = (self.subset or public_set(world.public).examples, world.classes)
        if actual != expected:
            where, message = f"client {result.client}", "are not scores of the drawn examples"
            raise ag.RejectedUpdate(message, where=where, found=actual, expected=expected)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the logits over clients with equal weights (step *aggregate*)."""
        arrived = {result.client: result.extras["scores"] for result in results}
        if not arrived:
            return state
        scores = [arrived[client] for client in sorted(arrived)]  # whatever the order of arrival
        mean = torch.stack(scores).mean(0)
        return state.with_group("consensus", {"scores": mean}).with_values(drawn=round)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each client's network."""
        return fl.private_networks(world, state)


def public_set(public: fl.ClientData | None) -> fl.ClientData:
    """Return the public examples.

    Raises:
        RunError: If the experiment has no public examples.
    """
    if public is None:
        raise ag.RunError("there are no public examples", hint="set `public` of the experiment")
    return public


@dataclass(frozen=True)
class Draw:
    """The public examples of a round; server and clients draw the same ones.

    Attributes:
        seed: Seed of the run.
        subset: Number of examples. Default: all.
    """

    seed: int
    subset: int | None

    def __call__(self, public: fl.ClientData | None, round: int) -> fl.Shard:
        """Return the examples of a round; ids count from 0."""
        examples = public_set(public)
        everything = next(iter(examples.batches(None, examples.examples)))
        draw = fl.seeded(self.seed, "fedmd", round)
        rows = torch.randperm(examples.examples, generator=draw)[: self.subset]
        inputs = tuple(x[rows] for x in everything.inputs)
        return fl.Shard(inputs, everything.targets[rows], examples.histogram)


@dataclass(frozen=True)
class Party:
    """Program of a client's round: digest, revisit, communicate.

    Attributes:
        objective: Loss on the client's own examples.
        draw: Draws the public examples of a round.
        drawn: The round in which the consensus was computed; 0 if there is no consensus yet.
        digest_epochs: Number of passes over the consensus' examples.
        public_epochs: Number of passes over the public set before the client's first round.
    """

    objective: fl.Objective
    draw: Draw
    drawn: int
    digest_epochs: int
    public_epochs: int

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return logits of the public examples that are drawn for this round."""
        steps: list[fl.Program] = [fl.Train(self.objective)]
        if self.drawn:
            steps.insert(0, Digest(self.draw(work.public, self.drawn), self.digest_epochs))
        if self.public_epochs and "begun" not in work.keep:
            steps.insert(0, TransferLearning(fl.Train(self.objective, epochs=self.public_epochs)))
        outcome = fl.InTurn(tuple(steps))(work)
        module = fl.module_of(replace(work, state=outcome.state)).eval()
        with torch.no_grad():
            scores = [
                work.learning.predictions(
                    module(*(fl.to_device(x, work.device) for x in batch.inputs))
                )
                for batch in self.draw(work.public, work.round).batches(None, work.local.batch)
            ]
        keep = {**outcome.keep, "begun": torch.ones(())}
        return replace(outcome, keep=keep, extras={"scores": torch.cat(scores)})


@dataclass(frozen=True)
class TransferLearning:
    """Program that trains on the public set with its labels."""

    train: fl.Program

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return the client's state."""
        return self.train(replace(work, data=public_set(work.public)))


@dataclass(frozen=True)
class Digest:
    """Program that trains towards the consensus.

    The loss is the mean absolute difference of logits, as in the published code.

    Attributes:
        public: The examples of the consensus, in the order of its logits.
        epochs: Number of passes over these examples.
    """

    public: fl.ClientData
    epochs: int

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, and return the client's state."""
        # All examples, without augmentation, as when the other clients computed their logits.
        changes = {"epochs": self.epochs, "fraction": 1.0, "augment": None}
        local = work.local.model_copy(update=changes)
        module = fl.module_of(work, training=True)

        def loss(examples: fl.Examples) -> Tensor:
            answers = work.learning.predictions(module(*examples.inputs))
            rows = fl.to_device(examples.ids, work.device)
            return (answers - work.extras["scores"][rows].to(answers)).abs().mean()

        work = replace(work, data=self.public, local=local)
        metrics = fl.descend(
            work,
            dict(module.named_parameters()),
            loss,
            counts=fl.by_examples,
        )
        return fl.Outcome(ag.state_of(module), work.keep, metrics=metrics)
