"""Writing and reading of low-rank adapters in the file format of PEFT."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from archgraph.analysis.side_branches import SideBranch, low_rank_branches, without
from archgraph.capture.trace import Traced
from archgraph.errors import GraphError, RewriteError
from archgraph.files import write
from archgraph.foreign.peft_names import ADAPTER, author_name, unwrapped
from archgraph.foreign.search import numbered_as, runs_as_used
from archgraph.foreign.shards import opened
from archgraph.foreign.transformers_folder import FolderModel
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import TRAINING, ArchGraph, Node, Param, Ref, Value
from archgraph.hints import listed
from archgraph.module.build import state_dict
from archgraph.ops.infer import infer
from archgraph.ops.table import row, statistics
from archgraph.plain import Json
from archgraph.rewrites.insert import fresh
from archgraph.rewrites.laws import random_inputs
from archgraph.rewrites.lora import Scaling, add_lora
from archgraph.rewrites.train_only import train_only
from archgraph.states import State

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODEL = "config.json"
PREFIX = "base_model.model."
# Dict from the suffix of a class name to PEFT's task, an argument of PEFT's models for this task,
# and the modules that PEFT then trains completely.
_TASKS = {
    "ForSequenceClassification": ("SEQ_CLS", "input_ids", ("classifier", "score")),
    "ForTokenClassification": ("TOKEN_CLS", "input_ids", ("classifier", "score")),
    "ForQuestionAnswering": ("QUESTION_ANS", "input_ids", ("qa_outputs",)),
    "ForCausalLM": ("CAUSAL_LM", "input_ids", ()),
    "LMHeadModel": ("CAUSAL_LM", "input_ids", ()),
    "ForConditionalGeneration": ("SEQ_2_SEQ_LM", "decoder_input_ids", ()),
    "ForSeq2SeqLM": ("SEQ_2_SEQ_LM", "decoder_input_ids", ()),
}
# Configuration entries that are supported. Other entries may change what adapters compute.
_KNOWN = {
    # Read by this module.
    "peft_type", "lora_alpha", "alpha_pattern", "use_rslora", "lora_dropout", "init_lora_weights",
    "bias", "modules_to_save", "base_model_name_or_path",
    # These can also be read from the tensors.
    "r", "rank_pattern", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "fan_in_fan_out", "ensure_weight_tying",
    # These do not change what adapters compute.
    "peft_version", "task_type", "auto_mapping", "revision", "inference_mode", "megatron_core",
    "qalora_group_size", "loftq_config", "eva_config", "corda_config", "velora_config",
}  # fmt: skip
# PEFT subtracts adapters with these initialisations from the weights of the base.
_SUBTRACTED = ("pissa", "olora", "corda", "loftq", "lora_ga")
_HINT = "freeze it with train_only, or merge the adapters with ag.fold"
# Names of both factors of an adapter, for layers and for embeddings.
_ENDS = ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B"))
_FACTORS = _ENDS[0] + _ENDS[1]


@takes_graph
def to_peft(
    graph: ArchGraph,
    state: State,
    folder: str | os.PathLike[str],
    *,
    base: str = "",
    task_type: str = "",
) -> None:
    """Write the low-rank adapters of a network as a folder that PEFT can load.

    If some parameters of the network are frozen, the folder also contains the trained tensors that
    are not adapters. (If no parameter is frozen, the folder contains only the adapters, and the
    base model must be saved separately.) The trained tensors can be complete layers (such as a
    classifier), running statistics, and biases. Trained biases are supported only if all biases of
    the network are trained, or exactly the biases of the layers with adapters.

    1. If the network was traced from a PEFT model, use the names of the model inside the PEFT
       model.
    2. Give the layers with adapters the numbers that they have in the base model.
    3. Save the other trained tensors, as biases or as complete modules.
    4. Check that the base model contains all tensors that the folder lacks.

    Args:
        graph: A network with adapters, added by :func:`archgraph.add_lora` or PEFT.
        state: Its weights.
        folder: Folder for the files ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: Name or folder of the model to which PEFT will add the adapters (the base model). PEFT
            identifies layers by their numbers. If a folder is passed, layers get the numbers of the
            model in the folder. Weights that ``to_peft`` does not save are then compared with the
            weights in the folder. If a name is passed, layers keep their numbers. If blocks of the
            network were removed or repeated, a base is required. Pass the folder that
            :func:`archgraph.to_transformers` wrote for the network, or the original model.
        task_type: PEFT's name for the task, such as ``CAUSAL_LM``. Default: the task of the model's
            class. If this task would make PEFT train a head (``classifier``) that is frozen in the
            network, no task is set.

    Raises:
        RewriteError: If the network has no low-rank adapters, adapters of another kind (such as
            DoRA), or adapters with different dropouts; if layers are not numbered consecutively and
            no base is passed; if the base model lacks a layer or has different weights; if both the
            weight and the adapter of a layer are trained.
        GraphError: If the state does not match the graph.

    Example:
        >>> import tempfile, torch, archgraph as ag
        >>> traced = ag.trace(torch.nn.Sequential(torch.nn.Linear(8, 6)), torch.zeros(1, 8))
        >>> graph, transfer = ag.add_lora(traced.graph, 2, alpha=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_peft(graph, transfer.pull(traced.state), folder)
        ...     again = from_peft(traced.graph, traced.state, folder)
        >>> again.graph == ag.train_only(graph, "*lora.*").graph
        True

    Source: Hu et al., *LoRA*, ICLR 2022. The file format is that of PEFT.
    """
    from safetensors.torch import save

    graph, state = unwrapped(graph, state)  # 1
    tensors = state_dict(graph, state)
    branches = _adapters(graph)
    model = _folder_model(base)
    names = _names_in(base, model, graph, tensors, branches)  # 2
    layers = {_module(names[f"{path}."]): branch for path, branch in branches.items()}
    bias, apart, modules = _trained(graph, branches, names)  # 3
    if both := [path for path in layers if _within(f"{path}.", modules)]:
        raise RewriteError(
            "is trained in addition to its adapter, but PEFT saves only one of them",
            where=both[0],
            hint=_HINT,
        )
    factors = _leaves(branches)
    saved = [n for n in tensors if n in apart or _within(names[n], modules)]
    parameters = _names(p for p in graph.params if p.role == "parameter") - factors - {*saved}
    lacking = {names[n]: t for n, t in tensors.items() if n in parameters}
    if model is not None and (other := model.first_unlike(lacking)):  # 4
        raise RewriteError(
            "differs from the base: with that base, the adapters would compute something else",
            where=other,
            found=f"a weight that {base} lacks, or that has other values there",
            hint="if more than adapters was trained (as by flora), write the result of ag.fold "
            "with ag.to_transformers; if a layer was initialised at random, save the model before "
            "the run and pass that folder, or train the layer with train_only",
        )
    result = {_wrapped(names[n], layers): tensors[n] for n in saved}
    for path, branch in layers.items():
        ends, down = _ENDS[branch.rank_dim], tensors[branch.down]
        result[path + ends[0]] = down.T if branch.rank_dim else down
        result[path + ends[1]] = tensors[branch.up]
    config = _config(graph, layers) | {
        "base_model_name_or_path": base or None,
        "task_type": _task(graph, task_type, names.values(), modules),
        "modules_to_save": modules or None,
        "bias": bias,
    }
    contiguous = {
        PREFIX + name: tensor.detach().cpu().contiguous().clone() for name, tensor in result.items()
    }
    write(Path(folder) / WEIGHTS, save(contiguous, metadata={"format": "pt"}))
    write(Path(folder) / CONFIG, json.dumps(config, indent=2) + "\n")


@takes_graph
def from_peft(
    graph: ArchGraph, state: State, folder: str | os.PathLike[str], *, base: str = ""
) -> Traced:
    """Add the adapters in a folder, written by PEFT or :func:`to_peft`, to a network.

    1. Find the layer of the network for each adapter in the folder.
    2. Add the adapters.
    3. Copy the other tensors in the folder to the state.
    4. Freeze all parameters that PEFT does not train. PEFT trains adapters, modules that the folder
       contains completely, and the biases that the configuration names. If an embedding or a
       language-model head has an adapter, the folder may contain its original weight, which stays
       frozen.

    Args:
        graph: The model without adapters.
        state: Its weights.
        folder: A folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: Name or folder of the model for which the adapters were trained, as for
            :func:`to_peft`. Default: the folder that the configuration of the adapters names, if
            this folder exists.

    Returns:
        The graph with adapters, and its state.

    Raises:
        GraphError: If the folder lacks a file, contains adapters that are not low-rank adapters, or
            contains a tensor for a layer that the graph does not have.
        RewriteError: If an adapter cannot be added to a layer, or if a base is required because the
            graph's layers are not numbered consecutively.

    Example:
        >>> import torch, archgraph as ag
        >>> from_peft(*ag.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), "here")
        Traceback (most recent call last):
        archgraph.errors.GraphError: here: is not a folder of adapters; expected adapter_config.json
    """
    config, tensors = _read(Path(folder))
    layers = {key: re.split(r"\.lora_|\.\w+$", key)[0] for key in tensors}
    owners = {name: p.name for p in graph.params for name in (p.name, *p.aliases)}
    model = _folder_model(base or config.get("base_model_name_or_path"))
    # With a base, layers are numbered as in the base.
    names = _names_in(base, model, graph, owners, () if base or model else layers.values())  # 1
    paths = _paths(names, layers.values())
    downs, ups = (
        {layers[key]: t for key, t in tensors.items() if key.endswith(ends)}
        for ends in zip(*_ENDS, strict=True)
    )
    rest = {k: paths[v] + k.removeprefix(v) for k, v in layers.items() if not k.endswith(_FACTORS)}
    odd = [key for key, name in rest.items() if name not in owners]
    if odd := odd or sorted(downs.keys() ^ ups.keys()):
        raise GraphError("belongs neither to a low-rank adapter nor to the graph", where=odd[0])
    new, factors = _with_adapters(graph, config, (downs, ups), paths)  # 2
    every = state_dict(graph, state) | factors | {n: tensors[k] for k, n in rest.items()}  # 3
    state_dict(new, every)  # checks shapes, and that tied weights are equal
    trained = [graph.param[owners[n]] for key, n in rest.items() if _is_trained(key, config)]
    parameters = {*factors, *(p.name for p in trained if p.role == "parameter")}
    new = train_only(new, sorted(parameters)).graph  # 4
    return Traced(new, {name: every[name].clone() for name in new.state_names})


def _paths(names: Mapping[str, str], layers: Iterable[str]) -> dict[str, str]:
    """Return a dict from the name of a layer in the base to its name in the graph."""
    ours = {new: old for old, new in names.items() if new.endswith(".")}
    return {layer: _module(ours.get(f"{layer}.", f"{layer}.")) for layer in layers}


def _is_trained(name: str, config: Mapping[str, Json]) -> bool:
    """Return whether PEFT trains a tensor that does not belong to an adapter."""
    biases = ".bias" if config.get("bias", "none") != "none" else ()
    return name.endswith(biases) or _within(name, config.get("modules_to_save") or ())


def _folder_model(base: str | None) -> FolderModel | None:
    """Return the model of a base folder; None if the base is not a folder."""
    return FolderModel(base) if base and (Path(base) / MODEL).is_file() else None


def _with_adapters(
    graph: ArchGraph,
    config: Mapping[str, Json],
    factors: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    paths: Mapping[str, str],
) -> tuple[ArchGraph, dict[str, Tensor]]:
    """Add adapters to a graph; return the new graph and the tensors of the adapters.

    The alpha of a layer is that of the first pattern that matches the end of the layer's name.

    Args:
        graph: The graph.
        config: PEFT's configuration.
        factors: Dict from the name of a layer in the base to both factors of its adapter.
        paths: Dict from the name of a layer in the base to its name in the graph.
    """
    downs, ups = factors
    groups: dict[tuple[int, float], list[str]] = {}
    for layer, down in downs.items():
        patterns = (config.get("alpha_pattern") or {}).items()
        alphas = [a for k, a in patterns if re.match(rf"(.*\.)?({k})$", layer)]
        alpha = float([*alphas, config.get("lora_alpha", 8)][0])
        groups.setdefault((len(down), alpha), []).append(paths[layer])
    scaling: Scaling = "rsqrt" if config.get("use_rslora") else "alpha_over_r"
    new = graph
    for (rank, alpha), where in groups.items():
        new = add_lora(new, rank, where, alpha=alpha, scaling=scaling).graph
    branches = {_layer(new, b): b for b in low_rank_branches(new)}
    added = {layer: branches[paths[layer]] for layer in downs}
    tensors = {branch.up: ups[layer] for layer, branch in added.items()}
    for layer, branch in added.items():
        tensors[branch.down] = downs[layer].T if branch.rank_dim else downs[layer]
    return _with_dropout(new, added.values(), float(config.get("lora_dropout") or 0)), tensors


def _read(folder: Path) -> tuple[Mapping[str, Json], dict[str, Tensor]]:
    """Return the configuration of a folder, and a dict from names in the base to tensors.

    Raises:
        GraphError: If the folder lacks a file, or contains other adapters than low-rank ones.
    """
    from safetensors.torch import load_file

    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise GraphError("is not a folder of adapters", where=str(folder), expected=name)
    where = str(folder / CONFIG)
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except ValueError as error:
        raise GraphError("is not JSON", where=where, found=error) from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise GraphError("is another kind of adapter", where=where, found=kind, expected="LORA")
    if special := [key for key, value in config.items() if value and key not in _KNOWN]:
        raise GraphError(
            "sets more than plain low-rank adapters", where=where, found=listed(special)
        )
    start = str(config.get("init_lora_weights")).lower()
    if start == "mica":
        raise GraphError(
            "one factor of each adapter is frozen", where=where, found=f"init_lora_weights: {start}"
        )
    if start.startswith(_SUBTRACTED):
        raise GraphError(
            "the adapters belong to a modified base: PEFT subtracted their initial product from "
            "its weights",
            where=where,
            found=f"init_lora_weights: {start}",
            hint="save_pretrained(…, path_initial_model_for_weight_conversion=…) writes plain "
            "adapters",
        )
    # PEFT saves biases of replaced modules, and also those of their replacements.
    inner = re.compile(r"\.(original_module|modules_to_save)\.")
    with opened(folder / WEIGHTS):  # its errors name the file
        stored = {k.removeprefix(PREFIX): v for k, v in load_file(folder / WEIGHTS).items()}
    return config, {author_name(k): v for k, v in stored.items() if not inner.search(k)}


def _config(graph: ArchGraph, layers: Mapping[str, SideBranch]) -> dict[str, Json]:
    """Return PEFT's configuration of adapters; the most common rank and scale are the defaults.

    Raises:
        RewriteError: If adapters have different dropouts.
    """
    ranks = {path: graph.param[b.down].shape[b.rank_dim] for path, b in layers.items()}
    alphas = {path: _plain(b.scale * ranks[path]) for path, b in layers.items()}
    rank, alpha = (Counter(d.values()).most_common(1)[0][0] for d in (ranks, alphas))
    return {
        "peft_type": "LORA",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {f"^{p}": r for p, r in ranks.items() if r != rank},
        "alpha_pattern": {f"^{p}": a for p, a in alphas.items() if a != alpha},
        "target_modules": sorted(layers),
        "lora_dropout": _dropout(graph, layers),
        "use_rslora": False,
        "fan_in_fan_out": all(branch.transposed for branch in layers.values()),
    }


def _task(
    graph: ArchGraph, asked: str, names: Collection[str], modules: Sequence[str]
) -> str | None:
    """Return PEFT's name for the task.

    By default, the task follows from the model's class, unless its head is frozen.

    Args:
        graph: The network, whose label is the name of its class.
        asked: The requested task; empty for the default.
        names: Names in the base.
        modules: Modules of the base that are trained completely.

    Raises:
        RewriteError: If PEFT trains a head for the requested task that is frozen here.
    """
    for ending, (task, argument, heads) in _TASKS.items():
        frozen = [n for n in names if _within(n, heads) and not _within(n, modules)]
        if frozen and task == asked:
            raise RewriteError(
                "is frozen, but PEFT trains it for this task",
                where=frozen[0],
                found=f"task_type {task}",
                hint="train it with train_only; without task_type, PEFT does not train it",
            )
        if (
            not asked
            and not frozen
            and graph.name.endswith(ending)
            and argument in dict(graph.inputs)
        ):
            return task
    return asked or None


def _adapters(graph: ArchGraph) -> dict[str, SideBranch]:
    """Return a dict from each layer to its low-rank adapter.

    Raises:
        RewriteError: If the network does not have low-rank adapters, or has other adapters of PEFT.
    """
    branches = {_layer(graph, b): b for b in low_rank_branches(graph)}
    factors = _leaves(branches)
    if others := [name for name in graph.param if ADAPTER in name and name not in factors]:
        raise RewriteError(
            "belongs to an adapter that is not a plain low-rank one",
            where=others[0],
            hint="DoRA, a bias of an adapter and a second adapter of a layer are not supported; "
            "for adapters of embeddings, use save_pretrained of PEFT, then ag.from_peft",
        )
    if not branches:
        raise RewriteError("has no low-rank adapters", hint="add some with ag.add_lora")
    for path, branch in branches.items():
        users = graph.leaf_users.get(branch.weight, ())  # some layers do not have a weight
        if len({graph.node[user].scope for user in users}) > 1:
            raise RewriteError(
                "adapts a tied weight, which PEFT adapts in another module",
                where=path,
                hint="merge the adapters with ag.fold",
            )
    return branches


def _leaves(branches: Mapping[str, SideBranch]) -> set[str]:
    return {leaf for branch in branches.values() for leaf in (branch.down, branch.up)}


def _trained(
    graph: ArchGraph, branches: Mapping[str, SideBranch], names: Mapping[str, str]
) -> tuple[str, set[str], list[str]]:
    """Return the trained tensors that do not belong to adapters.

    1. If no parameter is frozen, return nothing, since the complete model must be written instead.
    2. Save biases individually if all biases are trained, or those of all layers with adapters.
    3. Save other tensors as complete modules. Choose the outermost module that is trained
       completely and has operators of its own (PEFT cannot replace a list of modules). If there is
       none, choose the tensor's own module.
    4. Save a tied weight under each of its names, since PEFT replaces modules one by one.
    5. Save running statistics individually. They also change in frozen modules, and PEFT would
       train a complete module.

    Args:
        graph: The network.
        branches: Its adapters.
        names: Names in the base.

    Returns:
        PEFT's setting for biases, the names of tensors to save individually, and the names of
        modules to save completely. The names are those in the base.

    Raises:
        RewriteError: If a trained parameter does not belong to a module.
    """
    adapters = _leaves(branches)
    params = [p for p in graph.params if p.role == "parameter" and p.name not in adapters]
    frozen = _names(p for p in params if not p.trainable)
    if not frozen:  # 1
        return "none", set(), []
    bias, biases = _trained_biases(params, branches)  # 2
    leaves = _names(p for p in params if p.trainable and p.name not in biases)  # 4
    if alone := [leaf for leaf in leaves if not _module(leaf)]:
        raise RewriteError(
            "is trained, but not part of a module: PEFT only saves modules",
            where=min(alone),
            hint=_HINT,
        )
    called = {n.scope for n in graph.nodes}.difference(*map(_modules, frozen))
    modules = {_outermost(leaf, called, names) for leaf in leaves}  # 3
    apart = _names(p for p in params if p.name in biases).union(statistics(graph))  # 5
    return bias, apart, sorted(module for module in modules if not _within(module, modules))


def _outermost(leaf: str, modules: Container[str], names: Mapping[str, str]) -> str:
    """Return the outermost of some modules that contain a tensor; by default its own module."""
    module = next((path for path in _modules(leaf) if path in modules), _module(leaf))
    return ".".join(names[leaf].split(".")[: module.count(".") + 1])


def _trained_biases(params: Collection[Param], layers: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Return PEFT's setting for trained biases of frozen layers, and the names of these biases.

    Args:
        params: All parameters except those of adapters.
        layers: Modules that have adapters.
    """
    biases = {p.name for p in params if f".{p.name}".endswith(".bias")}
    trained = {p.name for p in params if p.trainable}
    frozen = {_module(p.name) for p in params if not p.trainable}
    alone = {name for name in biases & trained if _module(name) in frozen}
    if alone and alone == {name for name in biases if _module(name) in {*layers}}:
        return "lora_only", frozenset(alone)
    return ("all", frozenset(biases)) if alone and biases <= trained else ("none", frozenset())


def _with_dropout(graph: ArchGraph, branches: Iterable[SideBranch], p: float) -> ArchGraph:
    """Add a dropout before all adapters except those of embeddings, as PEFT does."""
    heads = {branch.nodes[0] for branch in branches if p and not branch.rank_dim}
    names, nodes = set(graph.node), list[Node]()
    for node in graph.nodes:
        if node.name in heads:
            args = (("input", node.arg("input")), ("p", p), ("train", TRAINING))
            name = fresh(names, "lora_dropout")
            nodes.append(Node(name, "aten.dropout", args, node.type, node.scope, node.source))
            node = node.with_args(input=Ref(name))
        nodes.append(node)
    return infer(graph.replace(nodes=tuple(nodes)))


def _dropout(graph: ArchGraph, layers: Mapping[str, SideBranch]) -> Value:
    """Return the dropout rate before all adapters except those of embeddings.

    Raises:
        RewriteError: If dropout rates differ, or another operator precedes an adapter.
    """
    values: dict[Value, str] = {}
    for path, branch in layers.items():
        nodes = (graph.node[name] for name in branch.nodes)
        before = [*itertools.takewhile(lambda node: row(node.op).linear_map is None, nodes)]
        if [node.op for node in before] not in ([], ["aten.dropout"]):
            raise RewriteError(
                "an operator other than dropout precedes an adapter",
                where=path,
                found=", ".join(node.op for node in before),
            )
        if not branch.rank_dim:
            values.setdefault(before[0].arg("p") if before else 0.0, path)
    if len(values) > 1:
        raise RewriteError(
            "adapters have different dropouts, but PEFT has one for all",
            found=", ".join(f"{p} ({path})" for p, path in values.items()),
        )
    return next(iter(values), 0.0)


def _names_in(
    base: str,
    model: FolderModel | None,
    graph: ArchGraph,
    tensors: Collection[str],
    paths: Iterable[str],
) -> Mapping[str, str]:
    """Return a dict from the names of tensors and modules (``h.0.``) to their names in the base.

    1. If the base is a name, keep the names of the network.
    2. If there is no base, also keep the names. Layers must be numbered from 0 in the order in
       which the network reads them.
    3. If the base is a folder whose model has as many layers as the network, use the numbers of the
       folder, in the order in which the network reads the layers. If the folder has more layers,
       including all numbers of the network, keep the names: blocks of the folder's model were
       removed.
    4. If the folder has the same numbers, but the network reads its layers in another order, use
       the numbers of step 3 only if the folder's model then computes the same as the network.

    Args:
        base: Name or folder of the base; may be empty.
        model: The model of the base folder.
        graph: The network.
        tensors: Names of its tensors, in order.
        paths: Modules that have adapters, or to which adapters may be added.

    Raises:
        RewriteError: If layers are not numbered without gaps, or the folder lacks a layer.
    """
    read = dict.fromkeys(leaf for node in graph.nodes for leaf in node.leaves())
    every = dict.fromkeys([*(name for name in read if name in tensors), *tensors])
    paths, modules = [*paths], [f"{_module(name)}." for name in every]
    every |= dict.fromkeys([*modules, *(f"{path}." for path in paths)])
    same = dict(zip(every, every, strict=True))
    if model is None:
        if not base:
            _check_numbers(every, paths)  # 2
        return same  # 1
    # Use the names in the class, since files of transformers may contain older names.
    new = numbered_as(every, model.model.state_dict())  # 3
    if new != same and {*new.values()} == {*same.values()}:  # 4
        bare, _ = without(graph, low_rank_branches(graph))
        new = new if model.computes(bare, new, random_inputs(bare)) else same
    return new


def _check_numbers(names: Iterable[str], paths: Iterable[str]) -> None:
    """Check that layers with adapters are numbered from 0 in the order of their names.

    Raises:
        RewriteError: If layers have other numbers.
    """
    for prefix, numbers in runs_as_used(names).items():
        of_layers = re.compile(rf"{re.escape(prefix)}\d+\.\w")  # but not a layer of a Sequential
        counted = [*map(int, numbers)] == [*range(len(numbers))]
        if not counted and any(map(of_layers.match, paths)):
            raise RewriteError(
                "layers are not numbered from 0 in the order in which they are read",
                where=prefix.rstrip("."),
                found=listed(numbers, 12),
                hint="for a network that lacks or repeats blocks, pass base=, the folder that "
                "ag.to_transformers wrote, or the model that these numbers belong to",
            )


def _names(params: Iterable[Param]) -> set[str]:
    return {name for p in params for name in (p.name, *p.aliases)}


def _wrapped(name: str, layers: Container[str]) -> str:
    """Return the name of a tensor in a PEFT model, which wraps layers with adapters."""
    layer, _, leaf = name.rpartition(".")
    return f"{layer}.base_layer.{leaf}" if layer in layers else name


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _modules(name: str) -> list[str]:
    """Return the modules that contain a tensor or module, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _within(name: str, modules: Iterable[str]) -> bool:
    """Return whether a name is inside one of some modules; modules match path suffixes."""
    return any(path.endswith(module) for path in _modules(name) for module in modules)


def _layer(graph: ArchGraph, branch: SideBranch) -> str:
    """Return the path of the layer that has an adapter."""
    return _module(branch.weight) or graph.node[branch.base].scope


def _plain(number: float) -> float | int:
    """Convert a whole number to int, as PEFT writes it."""
    return int(number) if math.isclose(number, round(number), rel_tol=1e-12) else number
