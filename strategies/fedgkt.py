"""FedGKT: clients train small networks, the server a large one on their features.

He, Annavaram, Avestimehr: *Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge*,
NeurIPS 2020 (Algorithm 1, Eqs. 5-8).

========================  ===============================================================
symbol                    here
========================  ===============================================================
``f_e``, ``f_c``          extractor and classifier of a client, from :func:`model_halves`
``f_s``, ``W_s``          the global model following ``after``; its weights in group ``server``
``H_k``, ``z_c``, ``Y_k``  ``Result.extras`` of client k: features, logits, targets, by ``ids``
``z_s``                   groups ``logits/k``, by ``ids``
``l_c`` (Eq. 8)           :class:`KnowledgeTransfer`: ``L_ce + α T² D_KL(p_s ‖ p_c)``
``l_s`` (Eq. 7)           :meth:`FedGKT.receive`: ``T² D_KL(p_c ‖ p_s) + α L_ce``
========================  ===============================================================
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import archgraph as ag
from archgraph import federation as fl

SENT = ("features", "logits", "targets", "ids")


@dataclass(frozen=True)
class FedGKT(fl.Strategy):
    """Options of FedGKT.

    Attributes:
        after: Section or block of the global model after which the server's part begins. Default:
            the first section.
        alpha: α, the weight of the distillation loss at a client, and of the loss on the targets at
            the server.
        temperature: T, the temperature of distillation, both at clients and at the server.
        server_epochs: Number of epochs for which the server trains on the features of a round. The
            default is the published value for CIFAR-10. With fewer epochs, the server's logits were
            less useful for distillation.
        server_batch: Number of examples in a minibatch of the server.
        server_lr: Learning rate of the server's SGD, whose momentum is 0.9.

    Example:
        >>> FedGKT(after="layer1").temperature
        3.0
    """

    paper = "Group Knowledge Transfer"
    year = 2020
    serves = ("split",)

    after: str | None = None
    alpha: float = fl.option(1.0, least=0)
    temperature: float = fl.option(3.0, above=0)
    server_epochs: int = fl.option(20, least=1)
    server_batch: int = fl.option(64, least=2)
    server_lr: float = fl.option(0.01, above=0)

    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "it distils probabilities of classes"
    )

    def init(self, world: fl.World) -> fl.ServerState:
        """Start the server's weights ``W_s`` from the initial weights of the global model.

        Raises:
            RunError: If a tier's features do not match the input of the server's part.
        """
        server = self._server(world)
        for tier in world.tiers:
            sent, accepted = _features(tier.graph), _types(server.graph)
            extractor = model_halves(tier.graph).extractor
            shared = set(extractor.state_names) & set(server.graph.state_names)
            if sent != accepted or shared:
                raise ag.RunError(
                    "its features do not match the input of the server's part",
                    where=f"tier {tier.name}",
                    found=f"{sent}, sharing {', '.join(sorted(shared)) or 'no weights'} with it",
                    expected=f"{accepted}, as after {self._after(world)}, sharing no weights",
                    hint="give clients `ends_after: {section: SECTION, head: CLASSES}`, and the "
                    "strategy `after: SECTION`; fedin serves other cuts, nefl and fedfa parts of "
                    "the whole model",
                )
        return fl.ServerState().with_group("server", server.transfer.pull(world.state))

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the server's logits for the client's examples (none in the client's first round)."""
        program = KnowledgeTransfer(self.alpha, self.temperature)
        return fl.private_network(world, client, program, extras=state.group(f"logits/{client}"))

    def examine(self, world: fl.World, result: fl.Result) -> None:
        """Check that a client's tensors have one row for each of the client's examples.

        Raises:
            RejectedUpdate: If a tensor is missing, has another shape, or contains targets or ids
                out of range. The message names the tensor.
        """
        count, features = result.examples, _features(world.tier_of(result.client).graph)
        shapes = {"features": features, "logits": (world.classes,), "targets": (), "ids": ()}
        for name, shape in shapes.items():
            ignored = fl.IGNORED if name == "targets" else 0
            tensor = result.extras.get(name)
            actual = None if tensor is None else tuple(tensor.shape)
            most = {"targets": world.classes, "ids": count}.get(name)
            outside = (
                most is not None
                and tensor is not None
                and bool(((tensor < 0) & (tensor != ignored) | (tensor >= most)).any())
            )
            if actual != (count, *shape) or outside:
                raise ag.RejectedUpdate(
                    "does not match the client's examples",
                    where=f"client {result.client}: {name}",
                    found="numbers out of range" if outside else actual,
                    expected=(count, *shape),
                )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Train the server's network ``f_s`` on this round's features, and store its logits."""
        arrived = {result.client: result.extras for result in results}
        sent = dict(sorted(arrived.items()))  # results must not depend on the order of arrival
        if not sent:
            return state
        everything = {name: torch.cat([extras[name] for extras in sent.values()]) for name in SENT}
        graph, predict = self._server(world).graph, world.learning.predictions
        draw = fl.seeded(world.seed, "fedgkt server", round)
        # The caller may have turned gradients off; dropout draws from torch's own generator.
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(draw.initial_seed())
            module = fl.module_of(fl.Model(graph, state.group("server")), world.device).train()
            steps = torch.optim.SGD(module.parameters(), lr=self.server_lr, momentum=0.9)
            for _ in range(self.server_epochs):
                for rows in fl.minibatches(
                    torch.randperm(len(everything["ids"]), generator=draw), self.server_batch
                ):
                    batch = {k: v[rows].to(world.device) for k, v in everything.items()}
                    steps.zero_grad(set_to_none=True)
                    self.server_loss(world, module, batch).backward()
                    steps.step()
        # After all epochs: every client gets answers of the same server model.
        module.eval()
        for client, extras in sent.items():
            with torch.no_grad():
                parts = extras["features"].split(self.server_batch)
                answers = [predict(module(x.to(world.device))).cpu() for x in parts]
            logits = {"ids": extras["ids"], "logits": torch.cat(answers)}
            state = state.with_group(f"logits/{client}", logits)
        trained = ag.state_of(module).items()
        return state.with_group("server", {k: v.cpu().contiguous() for k, v in trained})

    def server_loss(self, world: fl.World, module: nn.Module, batch: fl.State) -> Tensor:
        """Compute the server's loss ``l_s`` on a minibatch of features."""
        answers = world.learning.predictions(module(batch["features"]))
        hard = world.learning.loss(answers, batch["targets"])
        examples = fl.Examples((), batch["targets"], batch["ids"])
        mine, theirs = (fl.counted_logits(x, examples) for x in (answers, batch["logits"]))
        return taught(mine, theirs, self.temperature) + self.alpha * hard

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each client's model, and each client's extractor followed by ``f_s``."""

        def whole(tier: fl.Tier) -> fl.Model:
            extractor, server = model_halves(tier.graph).extractor, self._server(world).graph
            private = {name: tier.state[name] for name in extractor.state_names}
            return fl.Model(ag.chain([extractor, server]), private | state.group("server"))

        yield from fl.private_networks(world, state)
        for tested in fl.by_tier(world, state, model=whole, private=True, whole=False):
            yield fl.Evaluated(
                f"{tested.name}+server", tested.graph, tested.state, tested.clients, private=True
            )

    def _after(self, world: fl.World) -> str:
        return self.after or ag.structure(world.graph).sections[0].name

    def _server(self, world: fl.World) -> ag.Rewritten:
        """Return the part of the global model after the cut."""
        return ag.split(world.graph, after=self._after(world))[1]


class Halves(NamedTuple):
    """A client's model, cut into extractor and classifier."""

    extractor: ag.ArchGraph
    classifier: ag.ArchGraph


@functools.lru_cache(maxsize=256)
def model_halves(graph: ag.ArchGraph) -> Halves:
    """Cut a client's model before its classifier, which is the last block with parameters.

    Raises:
        RewriteError: If the classifier is the first block, or both parts share a weight.
    """
    blocks = ag.structure(graph).blocks
    last = next(b for b in reversed(blocks) if any(graph.node[n].leaves() for n in b.nodes))
    extractor, classifier = (part.graph for part in ag.split(graph, before=last.name))
    shared = set(extractor.state_names) & set(classifier.state_names)
    if shared:
        names = ", ".join(sorted(shared))
        message = "extractor and classifier share weights"
        raise ag.RewriteError(message, where=last.name, found=names)
    return Halves(extractor, classifier)


def _types(graph: ag.ArchGraph) -> tuple[object, ...]:
    """Return the shape of one example of a part's only input; empty where it takes several."""
    inputs = [node for node in graph.nodes if node.op == "input"]
    return tuple(inputs[0].shape[1:]) if len(inputs) == 1 else ()


def _features(graph: ag.ArchGraph) -> tuple[object, ...]:
    """Return the shape of one example's features."""
    return _types(model_halves(graph).classifier)


def taught(answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute ``T² D_KL(softmax(teacher / T) ‖ softmax(answers / T))``, averaged over examples.

    Example:
        >>> taught(torch.zeros(1, 2), torch.zeros(1, 2), 3.0).item()
        0.0
    """
    mine, theirs = (
        (logits.flatten(0, -2) / temperature).log_softmax(-1) for logits in (answers, teacher)
    )
    distance = functional.kl_div(mine, theirs.detach(), reduction="batchmean", log_target=True)
    return temperature**2 * distance


@dataclass(frozen=True)
class KnowledgeTransfer:
    """Program that trains a small network with the server's network as teacher.

    Attributes:
        alpha: Weight of distillation.
        temperature: Temperature of distillation.
        objective: Loss ``L_ce`` on the targets.
    """

    alpha: float
    temperature: float
    objective: fl.Objective = field(default_factory=fl.TaskLoss)

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train, then return features, logits, targets and ids of all examples."""
        parts = [
            fl.module_of(fl.Model(part, {k: work.state[k] for k in part.state_names}), work.device)
            for part in model_halves(work.graph)
        ]
        extractor, classifier = (part.train() for part in parts)
        parameters = {k: p for part in parts for k, p in part.named_parameters()}
        # Looked up by id, since the order of the examples differs in each epoch.
        ids = work.extras.get("ids", torch.empty(0)).cpu().tolist()
        row_of = {int(i): row for row, i in enumerate(ids)}

        def loss(examples: fl.Examples) -> Tensor:
            outputs = classifier(extractor(*examples.inputs))
            value = self.objective(outputs, examples, work)
            # None in the first round; a client that was not sampled has logits of an earlier round.
            known = [row for row, i in enumerate(examples.ids.tolist()) if i in row_of]
            if known:
                rows = torch.tensor([row_of[i] for i in examples.ids[known].tolist()])
                teacher = work.extras["logits"][fl.to_device(rows, work.device)]
                chosen = fl.to_device(torch.tensor(known), work.device)
                everything = work.learning.predictions(outputs)
                part = examples._replace(targets=examples.targets[chosen])
                mine = fl.counted_logits(everything[chosen], part)
                teacher = fl.counted_logits(teacher, part)
                # The mean over examples with logits is weighted by their share of the minibatch.
                share = len(mine) / len(fl.counted_logits(everything, examples))
                value = value + share * self.alpha * taught(mine, teacher, self.temperature)
            return value

        metrics = fl.descend(work, parameters, loss)
        state = {name: value for part in parts for name, value in ag.state_of(part).items()}
        return fl.Outcome(
            state={name: state[name] for name in work.graph.state_names},
            keep=work.keep,
            extras=_told(work, extractor.eval(), classifier.eval()),
            metrics=metrics,
        )


def _told(work: fl.Work, extractor: nn.Module, classifier: nn.Module) -> dict[str, Tensor]:
    """Compute a client's features, logits and labels for all its examples."""

    def each() -> Iterator[tuple[Tensor, ...]]:
        for examples in work.data.batches(None, work.local.batch):
            features = extractor(*(x.to(work.device) for x in examples.inputs))
            answers = work.learning.predictions(classifier(features))
            yield features, answers, examples.targets, examples.ids

    with torch.no_grad():
        return dict(zip(SENT, map(torch.cat, zip(*each(), strict=True)), strict=True))
