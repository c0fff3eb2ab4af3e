"""Low-rank adapters as PEFT writes and reads them."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archgraph.analysis.side_branches import SideBranch, side_branches, without
from archgraph.capture.trace import Traced
from archgraph.errors import GraphError, RewriteError
from archgraph.files import write
from archgraph.foreign.peft_names import ADAPTER, author_name, unwrapped
from archgraph.foreign.search import numbered_as, runs_as_used
from archgraph.foreign.transformers_folder import first_unlike, is_network_of, names_in_class
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import TRAINING, ArchGraph, Node, Param, Ref
from archgraph.hints import listed
from archgraph.module.build import state_dict
from archgraph.ops.table import row, statistics
from archgraph.rewrites.insert import fresh
from archgraph.rewrites.lora import Scaling, add_lora
from archgraph.rewrites.train_only import train_only
from archgraph.states import State

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODEL = "config.json"
PREFIX = "base_model.model."
# PEFT's tasks: the input that their models need, and the modules that PEFT trains whole for them.
TASKS = {
    "SEQ_CLS": ("input_ids", ("classifier", "score")),
    "TOKEN_CLS": ("input_ids", ("classifier", "score")),
    "QUESTION_ANS": ("input_ids", ("qa_outputs",)),
    "CAUSAL_LM": ("input_ids", ()),
    "SEQ_2_SEQ_LM": ("decoder_input_ids", ()),
    "FEATURE_EXTRACTION": ("input_ids", ()),
}
# The task of a class, by how its name ends.
_CLASSES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "ForFeatureExtraction": "FEATURE_EXTRACTION",
}
# Entries of a configuration that change what adapters compute, beside those that are read here.
_OTHER = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "alora_invocation_tokens",
    "target_parameters",
    "trainable_token_indices",
    "monteclora_config",
    "kasa_config",
    "arrow_config",
)
# Beginnings of adapters that PEFT subtracts from the weights of the base.
_SUBTRACTED = ("pissa", "olora", "corda", "loftq", "lora_ga")
# How names of the two factors end: of a layer, and of an embedding.
_ENDS = ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B"))
_HINT = "train_only leaves it out; ag.fold makes a model without adapters"


@takes_graph
def to_peft(
    graph: ArchGraph,
    state: State,
    folder: str | os.PathLike[str],
    *,
    base: str = "",
    task_type: str = "",
) -> None:
    """Write the low-rank adapters of a network as a folder that PEFT loads.

    Beside adapters it holds what else is trained in a network where some is frozen: layers that are
    trained whole (a classifier, say), biases, if all are trained or those of the layers with
    adapters, and running statistics.

    1. What was traced from a model of PEFT's gets the names of the author's class.
    2. Layers with adapters get the numbers that they have in the base.
    3. Beside adapters, what is trained is a bias or part of a module that is saved.
    4. What the folder lacks has to be in the base.

    Args:
        graph: A network with adapters, of :func:`archgraph.add_lora` or of PEFT.
        state: Its weights.
        folder: Where ``adapter_config.json`` and ``adapter_model.safetensors`` are written.
        base: Name or folder of the model that they belong to. Layers get the numbers that they
            have in a folder; beside a name they keep theirs. A network that lacks some blocks, or
            repeats some, needs one of the two: the folder that :func:`archgraph.to_transformers`
            wrote of it, or the original. PEFT knows layers by their numbers alone. A folder's
            weights are compared with those of the network that the adapters' folder lacks.
        task_type: PEFT's name of the task, ``CAUSAL_LM``, say. Default: what the class of the
            model is for. PEFT trains a head for some tasks (``classifier``): where the network
            does not, the default is none.

    Raises:
        RewriteError: If the network has no low-rank adapters, or some that compute something else
            (DoRA), or their dropouts differ; if its layers are not numbered without gaps and there
            is no base, the folder lacks their layers or has other weights; if a layer's weight is
            trained beside its adapter, or the task's head is not trained.
        GraphError: If the state does not fit the graph.

    Example:
        >>> import tempfile, torch, archgraph as ag
        >>> traced = ag.trace(torch.nn.Sequential(torch.nn.Linear(8, 6)), torch.zeros(1, 8))
        >>> graph, transfer = ag.add_lora(traced.graph, 2, alpha=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_peft(graph, transfer.pull(traced.state), folder)
        ...     again = from_peft(traced.graph, traced.state, folder)
        >>> again.graph == ag.train_only(graph, "*lora.*").graph
        True

    Source: Hu et al., *LoRA*, ICLR 2022; the format is PEFT's.
    """
    from safetensors.torch import save

    graph, state = unwrapped(graph, state)  # 1
    tensors = state_dict(graph, state)
    branches = _adapters(graph)
    names = _names_in(base, graph, tensors, branches)  # 2
    layers = {_module(names[f"{path}."]): branch for path, branch in branches.items()}
    trained = _trained(graph, branches, names)  # 3
    if both := [path for path in layers if _within(f"{path}.", trained.modules)]:
        raise RewriteError(
            "is trained beside its adapter: PEFT keeps one of them", where=both[0], hint=_HINT
        )
    result, lacking = dict[str, Tensor](), dict[str, Tensor]()
    for path, branch in layers.items():
        ends, down = _ENDS[branch.rank_dim], tensors.pop(branch.down)
        result[path + ends[0]] = down.T if branch.rank_dim else down
        result[path + ends[1]] = tensors.pop(branch.up)
    parameters = {n for p in graph.params if p.role == "parameter" for n in (p.name, *p.aliases)}
    for name, tensor in tensors.items():
        layer, _, leaf = names[name].rpartition(".")
        if _within(names[name], trained.modules):
            result[names[name]] = tensor
        elif name in trained.apart:
            # PEFT puts a layer that has an adapter into another module.
            inner = f"{layer}.base_layer" if layer in layers else layer
            result[f"{inner}.{leaf}"] = tensor
        elif name in parameters:
            lacking[names[name]] = tensor
    _check_base(base, lacking)  # 4
    config = _config(graph, layers) | {
        "base_model_name_or_path": base or None,
        "task_type": _task(task_type, graph, base, names.values(), trained.modules),
        "modules_to_save": trained.modules or None,
        "bias": trained.bias,
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
    """Read adapters that PEFT, or :func:`to_peft`, wrote, into a network.

    1. Layers of the folder get the numbers that they have in the network.
    2. Layers get adapters, those of one rank and scale at a time.
    3. Other tensors of the folder replace those of the state.
    4. What PEFT trains is trainable, and all else is frozen: the adapters, modules that the folder
       holds whole, and the biases that its configuration says. Weights of the base, which PEFT
       writes beside adapters of an embedding or of a language model's head, stay frozen.

    Args:
        graph: The model without adapters.
        state: Its weights.
        folder: A folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: Name or folder of the model beside which the adapters were trained, as for
            :func:`to_peft`. Default: the folder that their configuration names, if it is there.

    Returns:
        The graph with adapters and its state.

    Raises:
        GraphError: If the folder lacks a file, is of another kind of adapter, or has a tensor for
            which the graph has no layer.
        RewriteError: If layers of the graph are not numbered without gaps and there is no base, or
            a layer cannot have an adapter.

    Example:
        >>> import torch, archgraph as ag
        >>> from_peft(*ag.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), "here")
        Traceback (most recent call last):
        archgraph.errors.GraphError: here: is not a folder of adapters; expected adapter_config.json
    """
    config, tensors = _read(Path(folder))
    known = str(config.get("base_model_name_or_path") or "")
    base = base or (known if (Path(known) / MODEL).is_file() else "")
    owners = {name: p.name for p in graph.params for name in (p.name, *p.aliases)}
    layers = {key: re.split(r"\.lora_|\.\w+$", key)[0] for key in tensors}
    names = _names_in(base, graph, owners, () if base else layers.values())  # 1
    own = {new: old for old, new in names.items() if new.endswith(".")}
    paths = {layer: _module(own.get(f"{layer}.", f"{layer}.")) for layer in layers.values()}
    downs, ups = (
        {layers[key]: t for key, t in tensors.items() if key.endswith(ends)}
        for ends in zip(*_ENDS, strict=True)
    )
    rest = {
        key: paths[layer] + key.removeprefix(layer)
        for key, layer in layers.items()
        if not key.endswith(sum(_ENDS, ()))
    }
    odd = [key for key, name in rest.items() if name not in owners]
    if odd := odd or sorted(downs.keys() ^ ups.keys()):
        raise GraphError("is not a tensor of low-rank adapters or of the graph", where=odd[0])
    _check_tied(graph, state, {name: tensors[key] for key, name in rest.items()})
    new, full, trained = graph, dict(state), set[str]()
    for (rank, alpha), group in _groups(config, downs).items():  # 2
        scaling: Scaling = "rsqrt" if config.get("use_rslora") else "alpha_over_r"
        where = [paths[layer] for layer in group]
        rewritten = add_lora(new, rank, where, alpha=alpha, scaling=scaling)
        new, full = rewritten.graph, rewritten.transfer.pull(full)
    added = {_layer(new, b): b for b in side_branches(new) if b.low_rank}
    branches = {layer: added[paths[layer]] for layer in downs}
    for layer, branch in branches.items():
        down = downs[layer].T if branch.rank_dim else downs[layer]
        full[branch.down] = _fitting(new, branch.down, down)
        full[branch.up] = _fitting(new, branch.up, ups[layer])
        trained |= {branch.down, branch.up}
    biases = ".bias" if config.get("bias", "none") != "none" else ()
    for key, name in rest.items():  # 3
        leaf = owners[name]
        full[leaf] = _fitting(new, leaf, tensors[key])
        saved = _within(key, config.get("modules_to_save") or ()) or key.endswith(biases)
        trained |= {leaf} if saved and new.param[leaf].role == "parameter" else set()
    new = _with_dropout(new, branches.values(), float(config.get("lora_dropout") or 0))
    return Traced(train_only(new, sorted(trained)).graph, full)  # 4


def _read(folder: Path) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """Return the configuration of a folder, and its tensors by their names in the base.

    Raises:
        GraphError: If it lacks a file, or its adapters compute something else than is read here.
    """
    from safetensors.torch import load_file

    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise GraphError("is not a folder of adapters", where=str(folder), expected=name)
    config = json.loads((folder / CONFIG).read_text())
    where = str(folder / CONFIG)
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise GraphError(
            "is another kind of adapter",
            where=where,
            found=config.get("peft_type") if isinstance(config, dict) else config,
            expected="LORA",
        )
    if special := [key for key in _OTHER if config.get(key)]:
        raise GraphError(
            "computes more than low-rank adapters do", where=where, found=listed(special)
        )
    if str(start := config.get("init_lora_weights")).startswith(_SUBTRACTED):
        raise GraphError(
            "adapters belong to other weights: PEFT subtracted what they began as",
            where=where,
            found=f"init_lora_weights: {start}",
            hint="save_pretrained(…, path_initial_model_for_weight_conversion=…) writes plain ones",
        )
    # Of biases PEFT also saves those of modules that saved ones replace, and those of the latter.
    inner = re.compile(r"\.(original_module|modules_to_save)\.")
    stored = {k.removeprefix(PREFIX): v for k, v in load_file(folder / WEIGHTS).items()}
    return config, {author_name(k): v for k, v in stored.items() if not inner.search(k)}


def _groups(
    config: Mapping[str, Any], downs: Mapping[str, Tensor]
) -> dict[tuple[int, float], list[str]]:
    """Return layers by the rank and the alpha of their adapters.

    An alpha is that of the first pattern which the end of a layer's name matches.
    """
    patterns = config.get("alpha_pattern") or {}
    groups: dict[tuple[int, float], list[str]] = {}
    for layer, down in downs.items():
        alphas = (a for k, a in patterns.items() if re.match(rf"(.*\.)?({k})$", layer))
        alpha = next(alphas, config.get("lora_alpha"))
        groups.setdefault((len(down), float(alpha)), []).append(layer)
    return groups


def _check_tied(graph: ArchGraph, state: State, tensors: Mapping[str, Tensor]) -> None:
    """Check that a tied weight stays one.

    Raises:
        GraphError: If tensors of a folder have other values under one of its names alone.
    """
    for param in graph.params:
        names = (param.name, *param.aliases)
        changed = [name for name in names if name in tensors]
        values = [tensors.get(name, state[param.name]) for name in names if changed]
        if not all(torch.equal(value, values[0]) for value in values):
            raise GraphError(
                "the weight is tied, and the folder changes one of its places alone",
                where=param.name,
                found=listed(changed),
                expected=f"the same for {listed(names)}",
            )


def _config(graph: ArchGraph, layers: Mapping[str, SideBranch]) -> dict[str, Any]:
    """Return PEFT's configuration of adapters by layer; the commonest rank and scale are its own.

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
    asked: str, graph: ArchGraph, base: str, names: Iterable[str], modules: Iterable[str]
) -> str | None:
    """Return PEFT's word for the task: the one that is asked for, or that of the model's class.

    Args:
        asked: The argument; may be empty.
        graph: The network, whose label is its class where the base is not a folder.
        base: Name or folder of the base.
        names: Names in the base.
        modules: Modules of it that are trained whole.

    Raises:
        RewriteError: For a task that PEFT does not know, or whose head is not trained.
    """
    file = Path(base) / MODEL
    kinds = json.loads(file.read_text()).get("architectures") if file.is_file() else None
    kind = kinds[0] if kinds else graph.name
    task = asked or next((task for end, task in _CLASSES.items() if kind.endswith(end)), None)
    if task is None:
        return None
    if task not in TASKS:
        raise RewriteError("unknown task_type", found=task, expected=listed(TASKS))
    argument, heads = TASKS[task]
    frozen = [n for n in names if _within(n, heads) and not _within(n, modules)]
    if asked and frozen:
        raise RewriteError(
            "PEFT trains the head of a task, and the network does not",
            where=_module(frozen[0]),
            found=f"task_type {task}",
            hint="train_only trains it; without task_type PEFT leaves it alone",
        )
    return task if asked or (argument in dict(graph.inputs) and not frozen) else None


def _adapters(graph: ArchGraph) -> dict[str, SideBranch]:
    """Return the low-rank adapters of a network by the layer that they stand beside.

    Raises:
        RewriteError: If there are none, or others of PEFT's.
    """
    branches = {_layer(graph, b): b for b in side_branches(graph) if b.low_rank}
    factors = _leaves(branches)
    if others := [name for name in graph.param if ADAPTER in name and name not in factors]:
        raise RewriteError(
            "belongs to an adapter that is not a plain low-rank one",
            where=others[0],
            hint="DoRA, a bias of an adapter and a second adapter of a layer are not written; "
            "adapters of embeddings are: save_pretrained of PEFT, then ag.from_peft",
        )
    if not branches:
        raise RewriteError("has no low-rank adapters", hint="ag.add_lora gives a model some")
    return branches


def _leaves(branches: Mapping[str, SideBranch]) -> set[str]:
    return {leaf for branch in branches.values() for leaf in (branch.down, branch.up)}


class _Trained(NamedTuple):
    """What is trained beside adapters.

    Attributes:
        bias: PEFT's word for which biases are.
        modules: Modules that are saved whole, by their names in the base.
        apart: Tensors that are saved by themselves: biases and running statistics.
    """

    bias: str = "none"
    modules: Sequence[str] = ()
    apart: frozenset[str] = frozenset()


def _trained(
    graph: ArchGraph, branches: Mapping[str, SideBranch], names: Mapping[str, str]
) -> _Trained:
    """Return what is trained beside adapters.

    1. Where nothing is frozen, all is trained: then the model itself is to be written.
    2. Biases by themselves, if all are trained or those of the layers with adapters.
    3. All else by modules: by the outermost one that is trained whole and has operators of its own
       (a list of modules has none, and PEFT cannot replace one), or else by the tensor's own.
    4. Of a tied weight under each of its names: PEFT replaces modules one by one.
    5. Running statistics change beside frozen weights, too: by themselves, since PEFT would train
       the module.

    Args:
        graph: The network.
        branches: Its adapters.
        names: Names in the base.

    Raises:
        RewriteError: If a parameter that is trained is in no module.
    """
    adapters = _leaves(branches)
    params = [p for p in graph.params if p.role == "parameter" and p.name not in adapters]
    frozen = {n for p in params if not p.trainable for n in (p.name, *p.aliases)}
    if not frozen:  # 1
        return _Trained()
    bias, biases = _trained_biases(params, branches)  # 2
    apart = {n for p in params if p.name in biases for n in (p.name, *p.aliases)}
    open_ = {n.scope for n in graph.nodes}.difference(*map(_modules, frozen))
    modules = set[str]()
    for leaf in {n for p in params if p.trainable for n in (p.name, *p.aliases)} - apart:  # 4
        if not _module(leaf):
            raise RewriteError(
                "is trained, but in no module: PEFT saves modules", where=leaf, hint=_HINT
            )
        depth = next((m for m in _modules(leaf) if m in open_), _module(leaf)).count(".") + 1  # 3
        modules.add(".".join(names[leaf].split(".")[:depth]))
    outermost = sorted(module for module in modules if not _within(module, modules))
    return _Trained(bias, outermost, frozenset(apart | {*statistics(graph)}))  # 5


def _trained_biases(params: Iterable[Param], layers: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Return PEFT's word for which biases are trained beside frozen weights, and their names.

    Args:
        params: All parameters but those of adapters.
        layers: Modules that have adapters.
    """
    params = [*params]
    biases = {p.name for p in params if f".{p.name}".endswith(".bias")}
    trained = {p.name for p in params if p.trainable}
    frozen = {_module(p.name) for p in params if not p.trainable}
    alone = {name for name in biases & trained if _module(name) in frozen}
    if alone and alone == {name for name in biases if _module(name) in {*layers}}:
        return "lora_only", frozenset(alone)
    return ("all", frozenset(biases)) if alone and biases <= trained else ("none", frozenset())


def _check_base(base: str, lacking: Mapping[str, Tensor]) -> None:
    """Check that a base, if it is a folder, has what the folder of adapters lacks.

    Raises:
        RewriteError: If it lacks a weight, or has it with other values.
    """
    if (Path(base) / MODEL).is_file() and (other := first_unlike(base, lacking)):
        raise RewriteError(
            "is not the base's: beside it, the adapters would compute something else",
            where=other,
            found=f"a weight that {base} lacks, or has with other values",
            hint="of a model that was trained beyond its adapters (flora, say) write ag.fold's "
            "result by ag.to_transformers; a layer that was drawn: save the model before the run "
            "and name that folder, or let train_only train the layer",
        )


def _with_dropout(graph: ArchGraph, branches: Iterable[SideBranch], p: float) -> ArchGraph:
    """Return the graph with a dropout before some adapters, as in PEFT: not of embeddings."""
    heads = {branch.nodes[0] for branch in branches if p and not branch.rank_dim}
    names, nodes = set(graph.node), list[Node]()
    for node in graph.nodes:
        if node.name in heads:
            source = node.arg("input")
            assert isinstance(source, Ref)
            args = (("input", source), ("p", p), ("train", TRAINING))
            name, kind = fresh(names, "lora_dropout"), graph.node[source.name].type
            nodes.append(Node(name, "aten.dropout", args, kind, node.scope, node.source))
            node = node.with_args(input=Ref(name))
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes))


def _dropout(graph: ArchGraph, layers: Mapping[str, SideBranch]) -> float:
    """Return the dropout before every adapter; an embedding has none.

    Raises:
        RewriteError: If they differ, or something else stands before one: PEFT knows one number.
    """
    values = dict[float, str]()
    for path, branch in layers.items():
        nodes = (graph.node[name] for name in branch.nodes)
        before = [*itertools.takewhile(lambda node: row(node.op).linear_map is None, nodes)]
        p = before[0].arg("p") if before else 0
        if len(before) > 1 or (before and before[0].op != "aten.dropout"):
            raise RewriteError(
                "something else than a dropout stands before an adapter",
                where=path,
                found=", ".join(node.op for node in before),
            )
        assert isinstance(p, (int, float))
        if not branch.rank_dim:
            values.setdefault(float(p), path)
    if len(values) > 1:
        raise RewriteError(
            "adapters have different dropouts: PEFT knows one for all",
            found=", ".join(f"{p:g} ({path})" for p, path in values.items()),
        )
    return next(iter(values), 0.0)


def _names_in(
    base: str, graph: ArchGraph, tensors: Iterable[str], paths: Iterable[str]
) -> Mapping[str, str]:
    """Return the names that tensors and modules (``h.0.``) have in the model of the adapters.

    1. Beside the name of a model they stay as they are.
    2. Without one they do too, if layers are numbered from 0 in the order in which they are read.
    3. In a folder's model, as many layers as ours have its numbers in that order. Where it has
       more, ours among them, it is the original of a network without some blocks: ours stay.
    4. Where it has just our numbers, but we read them in another order, either may be meant: they
       stay unless the folder's model computes what the network does with those of 3.

    Args:
        base: Name or folder of the model; may be empty.
        graph: The network.
        tensors: Names of its tensors.
        paths: Modules that have adapters, or may have them.

    Raises:
        RewriteError: If layers have numbers that no model has, or the folder lacks one of them.
    """
    read = dict.fromkeys(leaf for node in graph.nodes for leaf in node.leaves())
    every = dict.fromkeys([*(name for name in read if name in tensors), *tensors])
    paths, modules = [*paths], [f"{_module(name)}." for name in every]
    every |= dict.fromkeys([*modules, *(f"{path}." for path in paths)])
    same = dict(zip(every, every, strict=True))
    if not base:
        _check_numbers(every, paths)  # 2
    if not (Path(base) / MODEL).is_file():  # 1
        return same
    # Of the class, not of its file: transformers stores some models under older names.
    known = names_in_class(base)
    new = numbered_as(every, known)  # 3
    if new != same and {*new.values()} == {*same.values()}:  # 4
        bare, _ = without(graph, (b for b in side_branches(graph) if b.low_rank))
        new = new if is_network_of(base, bare, new) else same
    theirs = {_module(name) for name in known}
    if lacking := [path for path in paths if _module(new[f"{path}."]) not in theirs]:
        raise RewriteError(
            "the base model has no such layer",
            where=lacking[0],
            found=base,
            hint="name the folder that ag.to_transformers wrote of this network",
        )
    return new


def _check_numbers(names: Iterable[str], paths: Iterable[str]) -> None:
    """Check that layers with adapters are numbered from 0 in the order of their names.

    Raises:
        RewriteError: If they are not.
    """
    for prefix, numbers in runs_as_used(names).items():
        of_layers = re.compile(rf"{re.escape(prefix)}\d+\.\w")  # not of a Sequential
        counted = [*map(int, numbers)] == [*range(len(numbers))]
        if not counted and any(map(of_layers.match, paths)):
            raise RewriteError(
                "layers are not numbered from 0 in the order in which they are read",
                where=prefix.rstrip("."),
                found=listed(numbers, 12),
                hint="of a network without some blocks, or with more, base= names the folder "
                "that ag.to_transformers wrote, or the model whose numbers these are",
            )


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _modules(name: str) -> list[str]:
    """Return the modules that a tensor or module is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _within(name: str, modules: Iterable[str]) -> bool:
    """Return whether PEFT takes a name as inside of modules, which it knows by how paths end."""
    return any(path.endswith(module) for path in _modules(name) for module in modules)


def _fitting(graph: ArchGraph, name: str, tensor: Tensor) -> Tensor:
    if tuple(tensor.shape) != (shape := graph.param[name].shape):
        raise GraphError("has another shape", where=name, found=tuple(tensor.shape), expected=shape)
    return tensor


def _layer(graph: ArchGraph, branch: SideBranch) -> str:
    """Return the path of the layer that an adapter stands beside."""
    return _module(branch.weight) or graph.node[branch.base].scope


def _plain(number: float) -> float | int:
    """Return a whole number as one, as PEFT writes it."""
    return int(number) if math.isclose(number, round(number), rel_tol=1e-12) else number
