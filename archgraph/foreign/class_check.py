"""Check whether the class of an original model can construct a rewritten network."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from archgraph.foreign.search import Arguments
from archgraph.foreign.timm_model import timm_fit
from archgraph.foreign.transformers_folder import transformers_finder
from archgraph.states.rewritten import Rewritten


def class_check(like: object) -> Callable[[Rewritten], Arguments]:
    """Return a function that finds the arguments with which a class constructs a network.

    The returned function raises a RewriteError if the class cannot construct the network.

    Args:
        like: The transformers model that was traced, its folder, or a partial call that constructs
            the model, such as ``functools.partial(timm.create_model, name, …)``.

    Raises:
        GraphError: If ``like`` is none of these.
    """
    with torch.random.fork_rng(devices=[]):  # keep the caller's random state
        if isinstance(like, functools.partial):
            if like.func.__module__.partition(".")[0] == "timm":
                beside = timm_fit(*like.args, **like.keywords)
                return lambda small: beside(small.graph).arguments()
            like = like()
        find = transformers_finder(like)
    return lambda small: find(small)[1]
