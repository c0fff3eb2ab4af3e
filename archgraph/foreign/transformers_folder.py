"""Reading of transformers folders as graphs with weights, and writing of such folders."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from archgraph.capture.surroundings import replaced
from archgraph.capture.trace import trace
from archgraph.errors import GraphError, RunError, TraceWarning, os_reason
from archgraph.foreign.fit import Fit
from archgraph.foreign.folder_weights import FolderWeights
from archgraph.foreign.graph_comparison import first_unequal
from archgraph.foreign.peft_names import author_model, author_name, unwrapped
from archgraph.foreign.search import Arguments
from archgraph.foreign.shards import MAX_SHARD, write_shards
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed, optional_module
from archgraph.rewrites.laws import random_inputs
from archgraph.states import State
from archgraph.states.lazy import LazyState
from archgraph.states.rewritten import Rewritten

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

CONFIG, GENERATION = "config.json", "generation_config.json"
# Length of the example for a text model, on which the sizes of weights do not depend.
WORDS = 16
# Maximum number of configurations with the right shapes that are traced.
TRACED = 16
# Suffixes of files with weights. All other files of a folder are copied.
_WEIGHTS = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".pkl",
}  # fmt: skip


def _transformers() -> ModuleType:
    return optional_module("transformers", "AutoConfig", "PreTrainedModel")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about configurations during a search, and the progress bar of saving."""
    _transformers()
    from transformers.utils import logging

    with contextlib.ExitStack() as stack:
        stack.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


@_quiet()
def from_transformers(
    folder: str | os.PathLike[str], **inputs: Tensor
) -> tuple[ArchGraph, LazyState]:
    """Read the graph of a transformers folder, without loading its weights.

    The class that ``config.json`` names is constructed on the meta device in the configuration's
    dtype, and traced. Nothing is downloaded, no pickle is opened, and no code in the folder is
    executed. ``verify`` of :func:`archgraph.trace` is off, because it would require the weights.

    Args:
        folder: A folder with ``config.json`` and weights in safetensors, in one file or in shards.
        **inputs: Example inputs of ``forward``. Default: tokens, or an image of the size in the
            configuration.

    Returns:
        The graph, and a state that reads each tensor from its file on access.

    Raises:
        GraphError: If the folder contains no model, no weights or a quantised model, or if example
            inputs must be passed.
        TraceError: If the class cannot be traced.

    Example:
        >>> from_transformers("no/folder")
        Traceback (most recent call last):
        archgraph.errors.GraphError: no/folder: names a folder that does not exist
    """
    original = FolderModel(folder)
    weights = FolderWeights(original.folder, original.model)
    graph = original.trace(inputs or original.example())
    # Replace the notes about the meta device by one note.
    notes = [
        note
        for note in graph.notes
        if not note.startswith(("not verified", "the model is on the meta device"))
    ]
    notes.append("not verified: the weights stay in their files")
    if weights.unused:
        notes.append(f"the folder has tensors that the model lacks: {listed(weights.unused)}")
    lacking = {n: b for n, b in original.model.named_buffers() if n not in weights.types}
    types = {n: weights.types.get(n, lacking.get(n)) for n in graph.state_names}
    state = LazyState(
        {n: torch.empty_like(t, device="meta") for n, t in types.items() if t is not None},
        lambda n, a, b: weights.rows(n, a, b) if n not in lacking else _rows(lacking[n], a, b),
    )
    return graph.replace(notes=tuple(notes)), state


@_quiet()
def to_transformers(
    graph: GraphLike,
    state: State,
    like: PreTrainedModel | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    max_shard_size: int | None = None,
) -> dict[str, Any]:
    r"""Write a narrowed, shortened or lengthened network as a folder for ``from_pretrained``.

    The configuration is found by a search: numbers in the original configuration are changed until
    the transformers class has the shapes of the network and computes the same. If ``like`` is a
    module, both models are run with the same random weights to compare them. If ``like`` is a
    folder, the operators of both models are compared instead. Layers are numbered without gaps.
    Weights keep their dtype.

    If the model returns its hidden states, their width cannot be cut. To cut this width, trace a
    wrapper that has the same arguments as the model's ``forward`` but returns only the logits. As
    ``like``, pass the model inside the wrapper.

    To copy from folder to folder without loading the whole model into memory, pass the state
    ``state.through(small.transfer)``, where ``state`` is the result of
    :func:`archgraph.from_transformers`. Tensors then keep the dtype of their file, and other files
    of the folder (such as a tokenizer) are copied.

    Args:
        graph: A traced and rewritten model.
        state: The weights of the network.
        like: The model that was traced, or its folder. The model may be a PEFT model.
        folder: Folder for ``config.json`` and the weights. If the original is a folder, this folder
            must be new or empty.
        max_shard_size: Maximum size of a file of weights, in bytes. Default: as in the original
            folder, at most 5 GB.

    Returns:
        A dict of the configuration values that differ from the original. For an item of a list, the
        key is the name of the list followed by the index. A list whose length differs is returned
        completely.

    Raises:
        RewriteError: If no configuration of the class has the shapes of the network and computes
            the same. The error names the axis or block that no configuration can produce, and the
            nearest configuration.
        GraphError: If the state does not match the graph, or the model in the folder ``like``
            cannot be read.
        RunError: If the folder is not empty, or cannot be written.

    Example:
        >>> from archgraph.graph.text import parse
        >>> net = parse("%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x")
        >>> to_transformers(net, {}, "no/folder", "out")
        Traceback (most recent call last):
        archgraph.errors.GraphError: no/folder: names a folder that does not exist
    """
    bare, state = unwrapped(graph_of(graph), state)
    if isinstance(like, str | os.PathLike):
        original = FolderModel(like)
        check_new(Path(folder), original.folder)
        _check_spare(bare, state, original.model)
        return _rewrite_folder(graph, state, original, Path(folder), max_shard_size)
    find = transformers_finder(like)
    _check_spare(bare, state, like)
    fit, arguments = find(graph)
    net = fit.filled(arguments, state)
    net.tie_weights()  # type: ignore[operator]
    changes = fit.changes(net.config.to_dict())  # type: ignore[operator, union-attr]
    net.save_pretrained(  # type: ignore[operator]
        os.fspath(folder), max_shard_size=max_shard_size or MAX_SHARD
    )
    if (generation := getattr(like, "generation_config", None)) is not None:
        (Path(folder) / GENERATION).write_text(generation.to_json_string(), "utf-8")
    return changes


@_quiet()
def transformers_finder(like: object) -> Callable[[GraphLike], tuple[Fit, Arguments]]:
    """Return a function that finds the configuration for a network.

    Args:
        like: The original model, or its folder.

    Raises:
        GraphError: If ``like`` is neither a transformers model nor a folder.
    """
    if isinstance(like, str | os.PathLike):
        like = FolderModel(like)
    like = like.get_base_model() if hasattr(like, "get_base_model") else like
    if not isinstance(like, FolderModel | _transformers().PreTrainedModel):
        raise GraphError(
            "is not a model of transformers",
            where="like",
            found=type(like).__name__,
            expected="the traced model, or its folder",
            hint="for timm, ag.fit takes functools.partial(timm.create_model, name, …); "
            "ag.to_timm writes",
        )
    folder = like if isinstance(like, FolderModel) else None
    model = like.model if isinstance(like, FolderModel) else author_model(like)
    config, start = type(model.config), model.config.to_dict()
    label, derived = config.__name__, _derived(config, start)

    def make(arguments: Arguments) -> nn.Module:
        candidate = config.from_dict(arguments)
        return type(model)(candidate) if folder is None else folder.make(candidate)

    @_quiet()
    def find(graph: GraphLike) -> tuple[Fit, Arguments]:
        entries = graph.transfer.entries if isinstance(graph, Rewritten) else {}
        origins = {
            author_name(name): author_name(entry.source)
            for name, entry in entries.items()
            if entry.source is not None
        }
        bare, _ = unwrapped(graph_of(graph), {})
        fit = Fit(bare, model, start, make, label=label, derived=derived, origins=origins)
        if folder is None:
            return fit, fit.arguments()
        inputs = random_inputs(fit.graph)

        def same(module: nn.Module) -> bool:
            return folder.computes(fit.graph, fit.names, inputs, module)

        return fit, fit.arguments(same, TRACED)

    return find


def _check_spare(graph: ArchGraph, state: State, model: nn.Module) -> None:
    """Raise an error if the state has a tensor that neither the network nor its class has."""
    known = {name for p in graph.params for name in (p.name, *p.aliases)} | {
        *map(author_name, model.state_dict())
    }
    if spare := [name for name in state if name not in known]:
        raise GraphError(
            "is not a tensor of the network",
            where=spare[0],
            found=f"{listed(spare)} in the state, but neither in the graph nor in the class",
            hint="fold adapters first and write both results: folded = ag.fold(graph, state), "
            "then ag.to_transformers(folded.graph, folded.state, …)",
        )


class FolderModel:
    """The model of a transformers folder, without its weights.

    Attributes:
        folder: The folder.
        model: The model, with parameters on the meta device and buffers as computed by the class.

    Raises:
        GraphError: If the folder does not contain a model, or contains a quantised model.
    """

    def __init__(self, like: str | os.PathLike[str]) -> None:
        self.folder = folder = Path(like)
        if not folder.is_dir():
            raise GraphError("names a folder that does not exist", where=os.fspath(like))
        transformers = _transformers()
        where = str(folder / CONFIG)
        try:
            config = transformers.AutoConfig.from_pretrained(
                os.fspath(folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise GraphError("is not a configuration", where=where, found=error) from error
        if getattr(config, "quantization_config", None) is not None:
            raise GraphError(
                "belongs to a quantised model",
                where=where,
                found="quantization_config",
                hint="cut the original model, then quantise it",
            )
        names = config.architectures or ()
        kind = getattr(transformers, names[0], None) if names else None
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            raise GraphError(
                "does not name a transformers class in `architectures`", where=where, found=names
            )
        self._kind: type[PreTrainedModel] = kind
        self.model = self.make(config)

    def make(self, config: PretrainedConfig) -> PreTrainedModel:
        """Construct the model of a configuration, in the dtype in which it would be loaded."""
        # Use the default attention: a configuration may name code of another package or repository.
        config._attn_implementation = None
        if hasattr(config, "_experts_implementation"):  # others use operators outside ATen
            config._experts_implementation = "batched_mm"
        dtype = getattr(config, "dtype", None) or torch.get_default_dtype()
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with _without_memory():
                return self._kind(config).eval()
        finally:
            torch.set_default_dtype(before)

    def example(self) -> dict[str, Tensor]:
        """Return example inputs.

        Raises:
            GraphError: If the configuration does not specify the inputs of the model.
        """
        name, config = self.model.main_input_name, self.model.config
        words = getattr(config, "text_config", config)
        inputs: dict[str, Tensor] = {}
        if name == "input_ids":
            names = [name, "decoder_input_ids"] if config.is_encoder_decoder else [name]
            most = getattr(words, "max_position_embeddings", None) or WORDS
            length = min(most, WORDS) if most > 0 else WORDS
            inputs |= {name: torch.zeros(2, length, dtype=torch.int64) for name in names}
        # Images require special tokens, so use an example without images.
        beside = "image" in self.model.input_modalities and not hasattr(config, "image_token_id")
        images = (
            getattr(config, "vision_config", config) if beside or name == "pixel_values" else None
        )
        if isinstance(size := getattr(images, "image_size", None), int):
            channels = getattr(images, "num_channels", 3)
            inputs["pixel_values"] = torch.zeros(2, channels, size, size)
        if name in inputs:
            return inputs
        raise GraphError(
            "does not specify the inputs of the model",
            where=str(self.folder / CONFIG),
            found=name,
            hint="pass an example: ag.from_transformers(folder, NAME=tensor)",
        )

    def trace(
        self, inputs: Mapping[str, Any], model: nn.Module | None = None, *, train: bool = False
    ) -> ArchGraph:
        """Trace this model, or another model of its class, without verification."""
        model = model or self.model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TraceWarning)  # warnings are also notes of the graph
            return trace(model, train=train, strict=False, verify=False, **inputs).graph

    @_quiet()
    def computes(
        self,
        graph: ArchGraph,
        names: Mapping[str, str],
        inputs: Mapping[str, Any],
        model: nn.Module | None = None,
    ) -> bool:
        """Return whether a graph has the same operators as a model.

        Args:
            graph: The graph, which may also have operators of training, such as dropout.
            names: Dict from the name of a tensor in the graph to its name in the model.
            inputs: Example inputs.
            model: The model. Default: the model of the folder.
        """
        traced = (self.trace(inputs, model, train=train) for train in (False, True))
        return any(first_unequal(graph, one, names) is None for one in traced)

    def first_unlike(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Return the first tensor that the files lack or that differs; None if all are equal.

        Only safetensors files are read.

        Args:
            tensors: Dict from name in the class to tensor.

        Raises:
            GraphError: If the files cannot be read, or lack weights of the model.
        """
        if not any(self.folder.glob("model*.safetensors*")):
            return None
        weights = FolderWeights(self.folder, self.model)
        same = (n in weights and torch.equal(weights[n].to(t), t) for n, t in tensors.items())
        return next((name for name, equal in zip(tensors, same, strict=True) if not equal), None)


def _rewrite_folder(
    graph: GraphLike,
    state: State,
    original: FolderModel,
    folder: Path,
    max_shard_size: int | None,
) -> dict[str, Any]:
    """Write a network whose state is read from a folder to another folder, tensor by tensor."""
    fit, arguments = transformers_finder(original)(graph)
    net = original.make(type(original.model.config).from_dict(arguments))
    weights = FolderWeights(original.folder, original.model)
    lazy = (
        state
        if isinstance(state, LazyState)
        else LazyState(
            {name: tensor.to("meta") for name, tensor in state.items()},
            lambda name, start, stop: _rows(state[name], start, stop),
        )
    )
    size = min(max_shard_size or weights.shards.shard_size, MAX_SHARD)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".draft-{folder.name}-") as at:
            draft = Path(at) / folder.name
            draft.mkdir()
            for file in original.folder.iterdir():
                other = file.suffix not in _WEIGHTS and not file.name.endswith(".index.json")
                if other and file.is_file() and file.name != CONFIG:
                    shutil.copyfile(file, draft / file.name)
            changes = fit.changes(net.config.to_dict())
            net.config.architectures = list(original.model.config.architectures)
            net.config.save_pretrained(os.fspath(draft))
            write_shards(draft, _arranged(net, fit, lazy, weights), size)
            if folder.exists():
                folder.rmdir()
            draft.replace(folder)
    except OSError as error:
        raise RunError(
            "cannot write the folder", where=str(folder), found=os_reason(error)
        ) from error
    return changes


def _arranged(net: nn.Module, fit: Fit, state: LazyState, weights: FolderWeights) -> LazyState:
    """Return a state with the names and the order of a class; tied weights occur once.

    1. Take weights from the network.
    2. Take tensors that forward does not read from the original, if the shapes are equal.
    3. Otherwise, parameters are zero, and buffers have the values that the class computes.
    """
    leaf = {new: fit.owner[name] for name, new in fit.names.items()}
    tensors = dict(net.named_parameters(remove_duplicate=False))
    zeros = LazyState(
        tensors, lambda name, a, b: torch.zeros_like(_rows(tensors[name], a, b), device="cpu")
    )
    full, names = net.state_dict(keep_vars=True), dict[int, list[str]]()
    for name, tensor in full.items():
        names.setdefault(id(tensor), []).append(name)
    sources: dict[str, tuple[LazyState, str]] = {}
    for aliases in names.values():
        name = aliases[0]
        mine = [leaf[n] for n in aliases if n in leaf]
        shape = full[name].shape
        spare = [n for n in aliases if n in weights.types and weights.types[n].shape == shape]
        if mine:  # 1
            sources[name] = state, mine[0]
        elif spare:  # 2
            sources[name] = weights, spare[0]
        elif name in tensors:  # 3
            sources[name] = zeros, name
    return _Arranged(sources)


class _Arranged(LazyState):
    """A state of tensors from several other states, under new names."""

    def __init__(self, sources: Mapping[str, tuple[LazyState, str]]) -> None:
        self._sources = sources
        super().__init__(
            {name: state.types[old] for name, (state, old) in sources.items()},
            lambda name, a, b: sources[name][0].rows(sources[name][1], a, b),
        )

    def bands(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor as consecutive groups of rows, as its original state does."""
        state, old = self._sources[name]
        return state.bands(old)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor[start:stop] if tensor.dim() else tensor


def check_new(folder: Path, original: Path) -> None:
    """Check that a folder is empty and is not the original folder.

    Raises:
        RunError: If the folder is not empty, or is the original folder.
    """
    if folder.resolve() == original.resolve():
        raise RunError("is the original folder", where=str(folder), expected="another one")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError("is not empty", where=str(folder), expected="a new folder")


@contextlib.contextmanager
def _without_memory() -> Iterator[None]:
    """Move each parameter to the meta device as soon as a module registers it.

    Buffers keep their values, since a graph contains tables (such as frequencies) but no weights.
    """
    register = nn.Module.register_parameter

    @functools.wraps(register)
    def registered(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            hollow = nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)
            self._parameters[name] = hollow

    with replaced([(nn.Module, "register_parameter", registered)]):
        yield


def _derived(config: type[PretrainedConfig], start: Arguments) -> frozenset[str]:
    """Return the names of lists that a configuration computes if they are missing."""
    rest = dict(start)
    for key in [k for k, v in rest.items() if isinstance(v, list | tuple)]:
        fewer = {k: v for k, v in rest.items() if k != key}
        with contextlib.suppress(Exception):  # the configuration may require the list
            if config.from_dict(fewer).to_dict() == start:
                rest = fewer
    return frozenset(start.keys() - rest.keys())
