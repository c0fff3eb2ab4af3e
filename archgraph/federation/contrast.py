"""MOON's term: features are drawn to those of the model that was sent, away from the last one's.

Li, He, Song: *Model-Contrastive Federated Learning*, CVPR 2021.

==============  ====================================================================
symbol          here
==============  ====================================================================
``z``           features of the model in training: what its last layer is applied to
``z_glob``      those of the model that was sent
``z_prev``      those of the client's model after its last round
``τ``, ``μ``    ``local.contrast``: ``temperature``, ``weight``
==============  ====================================================================

Both other models answer in evaluation mode. In a client's first round there is no last model: as
the one that was sent, it would give the term no gradient, so the term is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archgraph.analysis.roles import frozen, with_features
from archgraph.federation.tasks import Examples, Model, Work
from archgraph.graph.ir import ArchGraph
from archgraph.language.local import ContrastOptions
from archgraph.states import State

LAST = "contrast/"
"""Beginning of the names in ``Outcome.keep`` of the client's last model."""


def contrast(z: Tensor, sent: Tensor, last: Tensor, temperature: float) -> Tensor:
    """Return the mean of ``-log(e^{sim(z, z_glob)/τ} / (e^{…z_glob…} + e^{sim(z, z_prev)/τ}))``.

    Args:
        z: Features ``[example, ...]``.
        sent: ``z_glob``, of the same shape.
        last: ``z_prev``.
        temperature: ``τ``.

    Example:
        >>> z = torch.tensor([[1.0, 0.0]])
        >>> round(float(contrast(z, z, z, 0.5)), 4), round(float(contrast(z, z, -z, 0.5)), 4)
        (0.6931, 0.0181)
    """
    flat = z.flatten(1)
    cosines = [nn.functional.cosine_similarity(flat, y.flatten(1)) for y in (sent, last)]
    return -(torch.stack(cosines, 1) / temperature).log_softmax(1)[:, 0].mean()


def last_model(work: Work) -> State | None:
    """Return the client's model after its last round; None where it had none of these shapes.

    A strategy may have sent a model of another size then.
    """
    state = {name: work.keep.get(LAST + name, value) for name, value in work.state.items()}
    same = all(state[name].shape == value.shape for name, value in work.state.items())
    return state if same and any(name.startswith(LAST) for name in work.keep) else None


def remembered(graph: ArchGraph, state: State) -> dict[str, Tensor]:
    """Return what a client keeps of its model; what is frozen every task brings."""
    return {LAST + name: state[name] for name in state.keys() - frozen(graph)}


class Contrast:
    """The term of one client's round.

    Args:
        options: Weight and temperature.
        models: The models that were sent and that the client had last; see :func:`compared`.
    """

    def __init__(self, options: ContrastOptions, models: Mapping[str, nn.Module]) -> None:
        self._options = options
        self._models = models

    def __call__(self, features: Tensor, examples: Examples) -> Tensor:
        """Return the term for a minibatch."""
        with torch.no_grad():
            sent, last = (self._models[name](*examples.inputs)[1] for name in ("sent", "last"))
        return self._options.weight * contrast(features, sent, last, self._options.temperature)


def compared(work: Work) -> dict[str, Model]:
    """Return the models whose features a client compares its own with; none in its first round."""
    last, graph = last_model(work), with_features(work.graph)
    if last is None:
        return {}
    return {"sent": Model(graph, work.state), "last": Model(graph, last)}
