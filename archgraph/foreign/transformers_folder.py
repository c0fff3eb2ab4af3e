"""A folder that ``from_pretrained`` of transformers loads, from a graph that was rewritten."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from archgraph.errors import GraphError
from archgraph.foreign.fit import Fit
from archgraph.foreign.search import Arguments
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.hints import import_cause
from archgraph.states import State

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@takes_graph
def to_transformers(
    graph: ArchGraph,
    state: State,
    like: PreTrainedModel | str | os.PathLike[str],
    folder: str | os.PathLike[str],
) -> dict[str, Any]:
    r"""Write a cut or shortened network as a folder that ``from_pretrained`` loads.

    The configuration is found by trying: numbers of the original one that equal, or scale with,
    sizes that were cut and numbers of layers that were left out are changed until the class has the
    network's tensors in their shapes, and computes the same with random weights. Layers behind one
    that was left out are renumbered.

    Args:
        graph: The network, of a model that was traced and rewritten.
        state: Its weights.
        like: The model that was traced, or its folder.
        folder: Where ``config.json`` and ``model.safetensors`` are written.

    Returns:
        Entries of the configuration that differ from the original's: by name, in lists by index.

    Raises:
        RewriteError: If no configuration of the class has these shapes, or one has them and
            computes something else; names the axis in the way.
        GraphError: If the state does not fit the graph, or the folder's model is not readable.

    Example:
        >>> from archgraph.graph.text import parse
        >>> net = parse("%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x")
        >>> to_transformers(net, {}, "no/folder", "out")
        Traceback (most recent call last):
        archgraph.errors.GraphError: no/folder: names a folder that is not there
    """
    model = _model(like)
    kind, config = type(model), type(model.config)
    start: Arguments = model.config.to_dict()

    def make(arguments: Arguments) -> nn.Module:
        return kind(config.from_dict(arguments))

    with _quiet():
        fit = Fit(
            graph,
            state,
            model,
            start,
            make,
            label=config.__name__,
            derived=_derived(config, start),
        )
        arguments = fit.arguments()
        net = fit.filled(arguments)
        assert isinstance(net, kind)
        net.tie_weights()
        net.save_pretrained(os.fspath(folder))
    return fit.changes(arguments)


def _derived(config: type[PretrainedConfig], start: Arguments) -> frozenset[str]:
    """Return the lists that a configuration computes itself where they are missing."""
    rest = dict(start)
    for key in [k for k, v in rest.items() if isinstance(v, list | tuple)]:
        fewer = {k: v for k, v in rest.items() if k != key}
        with contextlib.suppress(Exception):  # a class may need it
            if config.from_dict(fewer).to_dict() == start:
                rest = fewer
    return frozenset(start.keys() - rest.keys())


def _model(like: object) -> PreTrainedModel:
    if isinstance(like, str | os.PathLike) and not Path(like).is_dir():
        raise GraphError("names a folder that is not there", where=os.fspath(like))
    try:
        import transformers
        from transformers import AutoConfig, PreTrainedModel
    except (ImportError, RuntimeError) as error:
        cause, hint = import_cause(error)
        raise GraphError("transformers cannot be imported", found=cause, hint=hint) from error
    if isinstance(like, PreTrainedModel):
        return like
    if not isinstance(like, str | os.PathLike):
        raise GraphError(
            "is not a model of transformers",
            found=type(like).__name__,
            expected="the model that was traced, or its folder",
        )
    closed: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(os.fspath(like), **closed)
    names = config.architectures or ()
    kind = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise GraphError(
            "names no class of transformers in architectures",
            where=str(Path(like) / "config.json"),
            found=names,
        )
    return kind.from_pretrained(os.fspath(like), use_safetensors=True, **closed)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings about configurations that are only tried, and the bar of writing."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
