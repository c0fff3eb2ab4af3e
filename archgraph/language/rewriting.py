"""Apply several rewrites, which are named by the keys of a family file."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping

from archgraph.analysis.structure import structure
from archgraph.errors import ArchGraphError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.language.consent import allowed
from archgraph.language.document import Document, places
from archgraph.language.family import Rewrites
from archgraph.language.loading import load_model
from archgraph.language.python import import_named
from archgraph.plain import Json
from archgraph.rewrites.options import UnreadSteps
from archgraph.rewrites.registry import apply, rewrite_rows
from archgraph.states import Rewritten
from archgraph.states.importance import Importance


@takes_graph
def rewrite(graph: ArchGraph, /, *, verify: bool = False, **rewrites: object) -> Rewritten:
    """Apply several rewrites to a graph.

    The keywords are the keys of a client in a family file. The order of the keywords does not
    matter. Rewrites that change the depth are applied first, then rewrites that change widths, then
    additions (such as adapters). The command ``archgraph help`` prints the complete order. For
    another order, compose single rewrites with ``>>``.

    Args:
        graph: The architecture.
        verify: If True, check what each rewrite guarantees, for example that the function of the
            model is unchanged.
        **rewrites: The keyword is the name of a rewrite. The value is the first argument of its
            function, a dict of options, or True. For your own rewrites, pass a dict as ``python``.
            Each key of the dict names a function, such as ``"package.module:function"``. Each value
            is the function's first argument, a dict of options, or True. Keywords with the value
            None or False are ignored.

    Raises:
        SpecError: For an unknown rewrite, or an invalid value.
        RewriteError: If a rewrite cannot be applied. The message names the keyword.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> small = rewrite(graph, take=0.5, train_only="2.*", verify=True)
        >>> small.graph.param["0.weight"].shape, small.graph.param["0.weight"].trainable
        ((2, 3), False)
        >>> rewrite(graph, tak=0.5)
        Traceback (most recent call last):
        archgraph.errors.SpecError: rewrite: tak: is an unknown key; found 'tak'; ...
    """
    values = {key: _as_read(value) for key, value in rewrites.items() if value is not None}
    document = Document("rewrite", values, dict.fromkeys(places(values), 0))
    requested = document.validate(Rewrites)
    with allowed(bool(requested.python)):  # naming code in a call is consent
        return rewritten(graph, requested, verify=verify)


def rewritten(
    graph: ArchGraph,
    rewrites: Rewrites,
    *,
    verify: bool = False,
    where: Callable[[str], str] = str,
    like: Callable[[], object] | None = None,
) -> Rewritten:
    """Apply the rewrites of a file, a command line or keywords.

    Args:
        graph: The architecture.
        rewrites: The rewrites, applied in the order of their keys.
        verify: Passed to each rewrite: check what it guarantees, for example that the function is
            the same.
        where: Function that returns the prefix of error messages about a key.
        like: Function that returns the constructor of the model, for ``like: true``.

    Raises:
        RewriteError: If a rewrite cannot be applied.
    """
    done = Rewritten.identity(graph)
    for key, call, value in _calls(rewrites):
        if value not in (None, False, (), {}):
            try:
                if like is not None and getattr(value, "like", False):
                    value = value.model_copy(update={"like": like()})
                done = done >> call(done.graph, heads(value, done.graph), verify=verify)
            except ArchGraphError as error:
                raise error.within(where(key)) from error
    return done


def _calls(rewrites: Rewrites) -> Iterator[tuple[str, Callable[..., Rewritten], Json]]:
    """Yield every key, the function it calls, and its value, in order."""
    *before, last = rewrite_rows().values()
    for row in before:
        yield row.name, row.apply, getattr(rewrites, row.name)
    for name, value in rewrites.python.items():
        yield "python", functools.partial(_call_own, name), value
    # The last rewrite may name parts that the user's rewrites add.
    yield last.name, last.apply, getattr(rewrites, last.name)


def _call_own(name: str, graph: ArchGraph, value: Json, *, verify: bool) -> Rewritten:
    """Call a rewrite without a row: its signature determines which values are options."""
    function = import_named(name, Rewritten, name)
    if value is True:
        return apply(function, graph, verify=verify)
    # A mapping is either the options or the value itself, {axis: size}: the names decide.
    options = [*inspect.signature(function).parameters][1:]
    if isinstance(value, Mapping) and set(value) <= set(options):
        return apply(function, graph, verify=verify, **value)
    return apply(function, graph, value, verify=verify)


def _as_read(value: Json) -> Json:
    """Convert a Python value to a value as read from a file, or an object to its graph."""
    if isinstance(value, Importance):
        return _as_read(value.plain())
    graph = getattr(value, "graph", None)
    if isinstance(graph, ArchGraph):
        return graph
    if isinstance(value, Mapping):
        return {key: _as_read(item) for key, item in value.items()}
    return tuple(map(_as_read, value)) if isinstance(value, list | tuple | range) else value


def heads(asked: Json, graph: ArchGraph) -> Json:
    """Replace the lists of steps in a rewrite's options by graphs.

    The key of a list is a section or block, whose result is the input of the steps. Other values
    are unchanged.

    Raises:
        SpecError: If a list of steps is invalid, or does not fit the result of the section.
        GraphError: For a section or block that does not exist.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
        >>> graph = trace(net, torch.zeros(1, 1, 5, 5)).graph
        >>> made = heads({"0": UnreadSteps(("flatten", {"linear": 2}))}, graph)
        >>> made["0"].param["head.linear.weight"].shape
        (2, 36)
    """
    if not isinstance(asked, Mapping):
        return asked
    return {
        name: _head(name, head, graph) if isinstance(head, UnreadSteps) else head
        for name, head in asked.items()
    }


def _head(name: str, steps: UnreadSteps, graph: ArchGraph) -> ArchGraph:
    end = graph.node[structure(graph).end(name)]
    model = {
        "archgraph": 1,
        "inputs": {"features": {"shape": end.shape[1:], "dtype": end.dtype}},
        "sections": ({"name": "head", "steps": steps},),
    }
    return load_model(Document(f"steps after {name}", model, {}))[0]
