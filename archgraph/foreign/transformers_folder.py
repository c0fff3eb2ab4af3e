"""A folder that ``from_pretrained`` of transformers loads, from a graph that was rewritten."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from archgraph.analysis.axes import axes
from archgraph.errors import ErrorFacts, GraphError, RewriteError
from archgraph.foreign.compare import Comparison
from archgraph.foreign.search import (
    Arguments,
    Search,
    Shapes,
    differences,
    entries,
    get,
    renumbered,
    runs,
)
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.hints import import_cause, listed
from archgraph.module.build import state_dict
from archgraph.states import State

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Configurations of the right shapes whose results are compared before the search is given up.
COMPARED = 64


@takes_graph
def to_transformers(
    graph: ArchGraph,
    state: State,
    like: PreTrainedModel | str | os.PathLike[str],
    folder: str | os.PathLike[str],
) -> dict[str, Any]:
    """Write a cut or shortened network as a folder that ``from_pretrained`` loads.

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
        >>> import transformers, tempfile, archgraph as ag  # doctest: +SKIP
        >>> model = transformers.BertModel.from_pretrained("bert")  # doctest: +SKIP
        >>> small = ag.shorten(ag.trace(model, input_ids=ids).graph, {"layers": 6})  # doctest: +SKIP
    """
    model = _model(like)
    tensors = state_dict(graph, state)
    fit = _Fit(graph, model, tensors)
    arguments = fit.arguments()
    net = fit.module(arguments)
    full = net.state_dict()
    spare = model.state_dict()
    values = {new: tensors[name] for name, new in fit.names.items()}
    # What forward does not read is in no graph.
    for name in full.keys() - values.keys():
        if name in spare and spare[name].shape == full[name].shape:
            values[name] = spare[name]
    net.load_state_dict(values, strict=False, assign=True)
    net.tie_weights()
    with _quiet():
        net.save_pretrained(os.fspath(folder))
    return fit.changes(arguments)


class _Fit:
    """A graph beside the class that it came from.

    Attributes:
        names: Names in the class by those in the graph, for all that the class has.
        start: The original configuration.
    """

    def __init__(self, graph: ArchGraph, model: PreTrainedModel, tensors: State) -> None:
        self.graph, self.kind, self.config = graph, type(model), type(model.config)
        self.start: Arguments = model.config.to_dict()
        self.original: Shapes = _shapes(model)
        # Tables that a class computes are buffers which its state lacks.
        computed = {name for name, _ in model.named_buffers()} - self.original.keys()
        self.names = {
            name: new
            for name, new in renumbered(set(tensors), set(self.original)).items()
            if new not in computed
        }
        foreign = sorted(n for n, new in self.names.items() if new not in self.original)
        if foreign:
            raise RewriteError(
                f"{self.kind.__name__} has no such tensor",
                where=foreign[0],
                found=listed(foreign),
                hint="adapters are written with ag.to_peft; fold what else was added",
            )
        # What forward does not read is not cut with the rest.
        unread = {p.name for p in graph.params if not graph.leaf_users[p.name]}
        self.names = {name: new for name, new in self.names.items() if name not in unread}
        self.target: Shapes = {new: tuple(tensors[n].shape) for n, new in self.names.items()}

    def arguments(self) -> Arguments:
        """Return the first configuration that fits and computes the same."""
        kept = {
            prefix: [int(number) for number in numbers]
            for prefix, numbers in runs(set(self.names)).items()
        }
        search = Search(self._meta, self.start, self.target, kept, self._derived())
        compares = Comparison(self.graph, self.names)
        tried = 0
        for arguments in itertools.islice(search.fitting(), COMPARED):
            if compares(self.module(arguments)):
                return arguments
            tried += 1
        raise self._no_fit(search, tried)

    def _derived(self) -> frozenset[str]:
        """Return the lists that the class computes itself where they are missing."""
        rest = dict(self.start)
        for key in [k for k, v in rest.items() if isinstance(v, list | tuple)]:
            fewer = {k: v for k, v in rest.items() if k != key}
            with _quiet(), contextlib.suppress(Exception):  # a class may need it
                if self.config.from_dict(fewer).to_dict() == self.start:
                    rest = fewer
        return frozenset(self.start.keys() - rest.keys())

    def module(self, arguments: Arguments) -> PreTrainedModel:
        """Construct the network of a configuration; the caller's random numbers stay."""
        with _quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.kind(self.config.from_dict(arguments))

    def _meta(self, arguments: Arguments) -> Shapes:
        with torch.device("meta"):
            return _shapes(self.module(arguments))

    def _no_fit(self, search: Search, compared: int) -> RewriteError:
        """Return an error that says which axis is in the way."""
        nearest = search.nearest()
        name = self.config.__name__
        layouts = axes(self.graph)
        graph_name = {new: old for old, new in self.names.items()}
        if compared:
            sizes = {a.name: a.size for a in layouts.all if a.role in ("head_dim", "value_dim")}
            facts: ErrorFacts = {"found": listed(f"{k} = {v}" for k, v in sizes.items()) or None}
            facts["hint"] = (
                "the class computes from its sizes what the network keeps of the uncut one (a scale of "
                "attention or of an embedding) or has positions in another order"
            )
            return RewriteError(
                f"every {name} of these shapes computes something else",
                where=graph_name[next(iter(self.target))] if not sizes else next(iter(sizes)),
                **facts,
            )
        shapes = search.shapes(nearest) or {}
        wrong = differences(self.target, shapes)
        lacking = sorted(n for n in self.target if n not in shapes)
        if not wrong:
            left = [n for n, s in self.target.items() if shapes.get(n) != s] or lacking
            return RewriteError(
                f"no {name} has this tensor beside the others",
                where=graph_name[left[0]],
                found=listed(graph_name[n] for n in left),
                hint="leave out the same blocks wherever the class repeats them",
            )
        changes = listed(f"{k}: {v}" for k, v in self.changes(nearest).items())
        (tensor, dim), (has, wanted) = next(iter(wrong.items()))
        leaf = graph_name[tensor]
        owner = next(p.name for p in self.graph.params if leaf in (p.name, *p.aliases))
        return RewriteError(
            f"no {name} has these shapes: this axis is in the way",
            where=str(layouts.of(owner)[dim]),
            found=f"{leaf} with {wanted} in dimension {dim}",
            expected=f"{has}, in the nearest configuration ({changes or 'the original one'})",
            hint="cut it as the configuration can: everywhere alike, or heads instead of their "
            "size; ag.save writes the network as it is",
        )

    def changes(self, arguments: Arguments) -> dict[str, Any]:
        """Return the numbers of a configuration that differ from the original one's."""
        pairs = ((way, value, get(arguments, way)) for way, value in entries(self.start))
        return {".".join(map(str, w)): new for w, old, new in pairs if new not in (old, None)}


def _shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}


def _model(like: object) -> PreTrainedModel:
    try:
        import transformers
    except ImportError as error:
        cause, hint = import_cause(error)
        raise GraphError("transformers cannot be imported", found=cause, hint=hint) from error
    if isinstance(like, transformers.PreTrainedModel):
        return like
    if not isinstance(like, str | os.PathLike):
        raise GraphError(
            "is not a model of transformers",
            found=type(like).__name__,
            expected="the model that was traced, or its folder",
        )
    if not Path(like).is_dir():
        raise GraphError("names a folder that is not there", where=os.fspath(like))
    closed: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(os.fspath(like), **closed)
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
    """Keep warnings about configurations that are only tried to oneself."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
