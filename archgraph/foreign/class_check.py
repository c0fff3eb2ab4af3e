"""Ask the class of a model whether it can be constructed as a network."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from archgraph.foreign.search import Arguments
from archgraph.foreign.timm_model import timm_fit
from archgraph.foreign.transformers_folder import transformers_finder
from archgraph.states.rewritten import Rewritten


def class_check(like: object) -> Callable[[Rewritten], Arguments]:
    """Return a function that finds the arguments by which a class constructs a network.

    It raises a RewriteError for a network that the class has not.

    Args:
        like: The model that was traced, of transformers, or its folder. Or the call that constructs
            it, of transformers or ``functools.partial(timm.create_model, name, …)``.

    Raises:
        GraphError: If it is none of these.
    """
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay
        if isinstance(like, functools.partial):
            if like.func.__module__.partition(".")[0] == "timm":
                beside = timm_fit(*like.args, **like.keywords)
                return lambda small: beside(small.graph).arguments()
            like = like()
        find = transformers_finder(like)
    return lambda small: find(small)[1]
