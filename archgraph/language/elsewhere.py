"""Names that people bring from elsewhere, and ours for the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from archgraph.hints import nearest

# By their letters alone. What only differs in spelling (BatchNorm2d, nn.ReLU) needs no row.
OURS = {
    "adaptiveavgpool": "global_avg_pool",
    "aggregation": "aggregate",
    "algorithm": "strategy",
    "backbone": "model",
    "batchsize": "batch",
    "bn": "batch_norm",
    "clientspercent": "sample",
    "clientsperround": "sample",
    "concat": "cat",
    "concatenate": "cat",
    "convolution": "conv",
    "dataset": "data",
    "dense": "linear",
    "embeddingdim": "width",
    "enddim": "end",
    "epsilon": "eps",
    "fc": "linear",
    "filters": "out",
    "fractionfit": "sample",
    "fullyconnected": "linear",
    "globalaveragepooling": "global_avg_pool",
    "gn": "group_norm",
    "keepdim": "keep",
    "kernelsize": "kernel",
    "learningrate": "lr",
    "ln": "layer_norm",
    "localepochs": "epochs",
    "multiheadattention": "attention",
    "multiply": "mul",
    "normgroups": "groups",
    "numclients": "count",
    "numembeddings": "count",
    "numgroups": "groups",
    "numheads": "heads",
    "numrounds": "rounds",
    "optimizer": "optimiser",
    "outchannels": "out",
    "outfeatures": "out",
    "randomseed": "seed",
    "rate": "p",
    "startdim": "start",
    "swish": "silu",
    "units": "out",
}

# What follows from the input here.
FOLLOWS = {"embeddim", "inchannels", "infeatures", "inputshape", "inputsize", "numfeatures"}


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return the hint about an unknown name: its archgraph name, or the most similar one.

    Args:
        name: The unknown name.
        known: The valid names.

    >>> suggestion("nn.BatchNorm2d", ["conv1d", "batch_norm"]), suggestion("in_channels", ["out"])
    ("it is 'batch_norm' here", 'leave it out: it follows from the input')
    >>> suggestion("learning_rate", ["lr", "epochs"]), suggestion("kernal", ["kernel", "out"])
    ("it is 'lr' here", "did you mean 'kernel'?")
    """
    names = list(known)
    letters = _letters(name)
    ours = {letters, OURS.get(letters), OURS.get(_plain(letters)), _plain(letters)}
    for one in names:
        if one in ours or (_letters(one) in ours and one != name):
            return f"it is {one!r} here"
    if letters in FOLLOWS:
        return "leave it out: it follows from the input"
    return nearest(name, names)


def _letters(name: str) -> str:
    """Strip a name of its library, case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower())


def _plain(letters: str) -> str:
    """Strip a name of its number of dimensions."""
    return re.sub(r"[123]d$", "", letters)
