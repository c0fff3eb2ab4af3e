"""FML: each client's private network and a small shared network teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: *Federated Mutual Learning*, 2020.

======================  =========================================================================
symbol                  here
======================  =========================================================================
``θ_meme``              group ``shared``; ``Task.others["shared"]`` at a client
``ω_k``                 the client's private network
``α``                   ``L_private = α L_ce + (1 - α) D_KL(p_meme ‖ p_private)``
``β``                   ``L_meme = β L_ce + (1 - β) D_KL(p_private ‖ p_meme)``
======================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

import archgraph as ag
from archgraph import federation as fl

SHARED = "shared"


@dataclass(frozen=True)
class FML(fl.Masking):
    """Options of FML.

    Attributes:
        alpha: α, the weight of the loss on the targets in the training of a private network. The
            distillation loss has the weight 1 - α.
        beta: β, the weight of the loss on the targets in the training of the shared network. The
            distillation loss has the weight 1 - β.
        shared: Tier whose architecture the shared network has. Default: the smallest tier.
        weights: Weight of a client in the mean of shared networks: its number of examples
            (``examples``), or 1 (``uniform``).

    Example:
        >>> FML(alpha=0.3).beta
        0.5
    """

    paper = "Federated Mutual Learning"
    year = 2020
    serves = ("any",)
    needs_global = False
    unlearnable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("labels", "values", "any"), "its networks compare probabilities of classes"
    )

    alpha: float = fl.option(0.5, least=0, most=1)
    beta: float = fl.option(0.5, least=0, most=1)
    shared: str | None = None
    weights: fl.Weights = "examples"

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the shared network's initial weights."""
        return fl.ServerState().with_group(SHARED, self._shared(world).state)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send ``θ_meme`` (step *fork*). The private network stays with the client."""
        program = Mutual(fl.TaskLoss(self.mask_absent), self.alpha, self.beta)
        shared = fl.Model(self._shared(world).graph, state.group(SHARED))
        return fl.private_network(world, client, program, others={SHARED: shared})

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the shared networks (step *merge*)."""
        graph = self._shared(world).graph
        same = fl.identity_of(graph, graph.state_names)

        def contributions() -> Iterator[fl.Contribution]:
            for result in results:
                weight, trained = result.weight(self.weights), result.others[SHARED]
                yield fl.Contribution(result.client, SHARED, graph, same, trained, weight)

        return fl.group_means(world, state, contributions())

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the shared network, and each client's private network."""
        yield fl.Evaluated(fl.GLOBAL, self._shared(world).graph, state.group(SHARED))
        yield from fl.private_networks(world, state)

    def _shared(self, world: fl.World) -> fl.Tier:
        return world.by_size[0] if self.shared is None else world.tier(self.shared)


def divergence(answers: Tensor, teacher: Tensor) -> Tensor:
    """Compute ``D_KL(softmax(teacher) ‖ softmax(answers))``, averaged over targets.

    Args:
        answers: Logits ``[target, class]`` of the network that is trained.
        teacher: Logits ``[target, class]`` of the teacher; no gradient goes through them.
    """
    p, q = teacher.detach().log_softmax(-1), answers.log_softmax(-1)
    return functional.kl_div(q, p, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Mutual:
    """Program that trains two networks on the same minibatches; each is the other's teacher.

    Attributes:
        objective: ``L_ce``.
        alpha: α.
        beta: β.
    """

    objective: fl.Objective
    alpha: float
    beta: float

    def __call__(self, work: fl.Work) -> fl.Outcome:
        """Train both networks with one optimiser; ``local.clip`` bounds their joint gradient."""
        models = fl.Model(work.graph, work.state), work.others[SHARED]
        private, meme = (fl.module_of(model, work.device, training=True) for model in models)
        parameters = dict(private.named_parameters())
        parameters |= {f"{SHARED}/{name}": p for name, p in meme.named_parameters()}

        def loss(examples: fl.Examples) -> Tensor:
            outputs = [network(*examples.inputs) for network in (private, meme)]
            mine, theirs = (
                fl.counted_logits(work.learning.predictions(x), examples) for x in outputs
            )
            hard = [self.objective(x, examples, work) for x in outputs]
            value = self.alpha * hard[0] + (1 - self.alpha) * divergence(mine, theirs)
            return value + self.beta * hard[1] + (1 - self.beta) * divergence(theirs, mine)

        metrics = fl.descend(work, parameters, loss)
        macs = sum(ag.cost(model.graph).macs for model in models)
        return fl.Outcome(
            state=ag.state_of(private),
            keep=work.keep,
            others={SHARED: ag.state_of(meme)},
            metrics={**metrics, "macs": macs * metrics["seen"]},
        )
