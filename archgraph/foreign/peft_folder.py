"""Low-rank adapters as PEFT writes and reads them."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archgraph.analysis.side_branches import SideBranch, side_branches, without
from archgraph.capture.trace import Traced
from archgraph.errors import GraphError, RewriteError
from archgraph.files import write
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
# Entries of a configuration that change what adapters compute, beside those that are read here.
_OTHER = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "alora_invocation_tokens",
)
# Beginnings of adapters that PEFT subtracts from the weights of the base.
_SUBTRACTED = ("pissa", "olora", "corda", "loftq", "lora_ga")


@takes_graph
def to_peft(
    graph: ArchGraph, state: State, folder: str | os.PathLike[str], *, base: str = ""
) -> None:
    """Write the low-rank adapters of a network as a folder that PEFT loads.

    Beside adapters it holds what else is trained in a network where some is frozen: layers that are
    trained whole (a classifier, say), biases, if all are trained or those of the layers with
    adapters, and running statistics.

    Args:
        graph: A network with adapters, of :func:`archgraph.add_lora` or of PEFT.
        state: Its weights.
        folder: Where ``adapter_config.json`` and ``adapter_model.safetensors`` are written.
        base: Name or folder of the model that they belong to. Layers get the numbers that they
            have in a folder; beside a name they keep theirs. A network that lacks some blocks, or
            repeats some, needs one of the two: the folder that :func:`archgraph.to_transformers`
            wrote of it, or the original. PEFT knows layers by their numbers alone. A folder's
            weights are compared with those of the network that the adapters' folder lacks.

    Raises:
        RewriteError: If the network has no low-rank adapters, or their dropouts differ, its layers
            are not numbered without gaps and there is no base, the folder lacks their layers or has
            other weights, or a layer's weight is trained beside its adapter.
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

    tensors = state_dict(graph, state)
    branches = {_layer(graph, b): b for b in side_branches(graph) if b.low_rank}
    names = _names_in(base, graph, tensors, branches)
    layers = {_module(names[f"{path}."]): branch for path, branch in branches.items()}
    if not layers:
        raise RewriteError("has no low-rank adapters", hint="ag.add_lora gives a model some")
    result: dict[str, Tensor] = {}
    ranks, alphas = dict[str, int](), dict[str, float]()
    for path, branch in layers.items():
        down, up = tensors[branch.down], tensors[branch.up]
        if branch.rank_dim:  # written by a class with transposed weights
            down, up = down.T, up.T
        result[f"{PREFIX}{path}.lora_A.weight"], result[f"{PREFIX}{path}.lora_B.weight"] = down, up
        ranks[path], alphas[path] = len(down), branch.scale * len(down)
    adapters = {leaf for b in layers.values() for leaf in (b.down, b.up)}
    parameters = [p for p in graph.params if p.role == "parameter"]
    owners = {name: p.name for p in parameters for name in (p.name, *p.aliases)}
    others = [p for p in parameters if p.name not in adapters]
    # Where nothing is frozen, all is trained: then the model itself is to be written.
    trained, bias, biases, changed = list[Param](), "none", frozenset[str](), frozenset[str]()
    if not all(p.trainable for p in others):
        bias, biases = _trained_biases(others, branches)
        trained = [p for p in others if p.trainable and p.name not in biases]
        # Running statistics change beside frozen weights, too: those of a module that PEFT saves
        # would be trained.
        changed = frozenset(statistics(graph))
    # Under each name of a tied weight: PEFT replaces modules one by one.
    leaves = [name for p in trained for name in (p.name, *p.aliases)]
    modules = sorted({_module(names[f"{_module(leaf)}."]) for leaf in leaves})
    modules = [module for module in modules if not _within(module, modules)]  # the outermost
    hint = "train_only leaves it out; ag.fold makes a model without adapters"
    if alone := [leaf for leaf in leaves if not _module(leaf)]:
        raise RewriteError(
            "is trained, but in no module: PEFT saves modules", where=alone[0], hint=hint
        )
    if both := [path for path in layers if _within(f"{path}.", modules)]:
        raise RewriteError(
            "is trained beside its adapter: PEFT keeps one of them", where=both[0], hint=hint
        )
    lacking = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if name not in adapters and _within(names[name], modules):
            result[PREFIX + names[name]] = tensor
        elif name in changed or owners.get(name) in biases:
            # PEFT puts a layer that has an adapter into another module.
            layer, _, leaf = names[name].rpartition(".")
            key = f"{layer}.base_layer.{leaf}" if layer in layers else names[name]
            result[PREFIX + key] = tensor
        elif name in owners and owners[name] not in adapters:
            lacking[names[name]] = tensor
    if (Path(base) / MODEL).is_file() and (other := first_unlike(base, lacking)):
        raise RewriteError(
            "is not the base's: beside it, the adapters would compute something else",
            where=other,
            found=f"a weight that {base} lacks, or has with other values",
            hint="of a model that was trained beyond its adapters (flora, say) write ag.fold's "
            "result by ag.to_transformers; a layer that was drawn: save the model before the run "
            "and name that folder, or let train_only train the layer",
        )
    rank, alpha = (Counter(d.values()).most_common(1)[0][0] for d in (ranks, alphas))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base or None,
        "task_type": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "rank_pattern": {f"^{p}": r for p, r in ranks.items() if r != rank},
        "alpha_pattern": {f"^{p}": _plain(a) for p, a in alphas.items() if a != alpha},
        "target_modules": sorted(layers),
        "modules_to_save": modules or None,
        "lora_dropout": _dropout(graph, layers),
        "bias": bias,
        "use_rslora": False,
        "fan_in_fan_out": all(branch.transposed for branch in layers.values()),
    }
    contiguous = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in result.items()
    }
    write(Path(folder) / WEIGHTS, save(contiguous, metadata={"format": "pt"}))
    write(Path(folder) / CONFIG, json.dumps(config, indent=2) + "\n")


@takes_graph
def from_peft(
    graph: ArchGraph, state: State, folder: str | os.PathLike[str], *, base: str = ""
) -> Traced:
    """Read adapters that PEFT, or :func:`to_peft`, wrote, into a network.

    Args:
        graph: The model without adapters.
        state: Its weights.
        folder: A folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: Name or folder of the model beside which the adapters were trained, as for
            :func:`to_peft`. Default: the folder that their configuration names, if it is there.

    Returns:
        The graph with adapters and its state; layers that the folder holds whole replace those of
        the state. What PEFT trains is trainable, and all else is frozen: the adapters, layers that
        the folder holds whole, and the biases that its configuration says.

    Raises:
        GraphError: If the folder lacks a file, is of another kind of adapter, or has a tensor for
            which the graph has no layer.
        RewriteError: If layers of the graph are not numbered without gaps and there is no base.

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
    names = _names_in(base, graph, owners, () if base else layers.values())
    mine = {new: old for old, new in names.items() if new.endswith(".")}
    tensors = {
        _module(mine.get(f"{layer}.", f"{layer}.")) + key.removeprefix(layer): tensors[key]
        for key, layer in layers.items()
    }
    downs = {k.removesuffix(".lora_A.weight"): v for k, v in tensors.items() if ".lora_A." in k}
    ups = {k.removesuffix(".lora_B.weight"): v for k, v in tensors.items() if ".lora_B." in k}
    rest = {k: v for k, v in tensors.items() if ".lora_" not in k}
    unknown = [k for k in rest if k not in owners]
    unknown += [k for k in tensors if ".lora_" in k and not re.search(r"\.lora_[AB]\.weight$", k)]
    if unknown or downs.keys() != ups.keys():
        odd = unknown or sorted(downs.keys() ^ ups.keys())
        raise GraphError("is not a tensor of low-rank adapters or of the graph", where=odd[0])
    for param in graph.params:
        places = (param.name, *param.aliases)
        copies = [rest[name] for name in places if name in rest]
        if copies and not (
            len(copies) == len(places) and all(torch.equal(one, copies[0]) for one in copies)
        ):
            raise GraphError(
                "the weight is tied, and the folder changes one of its places alone",
                where=param.name,
                found=listed(name for name in places if name in rest),
                expected=f"the same for {listed(places)}",
            )
    groups: dict[tuple[int, float], list[str]] = {}
    for path, down in downs.items():
        alpha = _of(config.get("alpha_pattern"), path, config.get("lora_alpha"))
        groups.setdefault((len(down), float(alpha)), []).append(path)
    scaling: Scaling = "rsqrt" if config.get("use_rslora") else "alpha_over_r"
    new, full = graph, dict(state)
    for (rank, alpha), paths in groups.items():
        rewritten = add_lora(new, rank, paths, alpha=alpha, scaling=scaling)
        new, full = rewritten.graph, rewritten.transfer.pull(full)
    trained = set[str]()
    for branch in side_branches(new):
        path = _layer(new, branch)
        if branch.low_rank and path in downs:
            full[branch.down] = _fitting(new, branch.down, downs[path])
            full[branch.up] = _fitting(new, branch.up, ups[path])
            trained |= {branch.down, branch.up}
    for name, tensor in rest.items():
        full[owners[name]] = _fitting(new, owners[name], tensor)
        if new.param[owners[name]].role == "parameter":
            trained.add(owners[name])
    new = _with_dropout(new, downs, float(config.get("lora_dropout") or 0))
    return Traced(train_only(new, sorted(trained)).graph, full)


def _with_dropout(graph: ArchGraph, layers: Container[str], p: float) -> ArchGraph:
    """Return the graph with a dropout before the adapter of each of some layers, as in PEFT."""
    heads = {b.nodes[0] for b in side_branches(graph) if b.low_rank and _layer(graph, b) in layers}
    names, nodes = set(graph.node), list[Node]()
    for node in graph.nodes:
        if p and node.name in heads:
            source = node.arg("input")
            assert isinstance(source, Ref)
            args = (("input", source), ("p", p), ("train", TRAINING))
            name, kind = fresh(names, "lora_dropout"), graph.node[source.name].type
            nodes.append(Node(name, "aten.dropout", args, kind, node.scope, node.source))
            node = node.with_args(input=Ref(name))
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes))


def _dropout(graph: ArchGraph, layers: Mapping[str, SideBranch]) -> float:
    """Return the dropout before every adapter.

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
        values.setdefault(float(p), path)
    if len(values) > 1:
        raise RewriteError(
            "adapters have different dropouts: PEFT knows one for all",
            found=", ".join(f"{p:g} ({path})" for p, path in values.items()),
        )
    return next(iter(values))


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
    if base and not (Path(base) / MODEL).is_file():  # 1
        return same
    used = runs_as_used(every)
    if not base:  # 2
        for prefix, numbers in used.items():
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
        return same
    # Of the class, not of its file: transformers stores some models under older names.
    known = names_in_class(base)
    new = numbered_as(every, known)
    if new != same and {*new.values()} == {*same.values()}:  # 4
        bare, _ = without(graph, (b for b in side_branches(graph) if b.low_rank))
        new = new if is_network_of(base, bare, new) else same
    theirs = {_module(name) for name in known}
    for path in paths:
        if _module(new[f"{path}."]) not in theirs:
            raise RewriteError(
                "the base model has no such layer",
                where=path,
                found=base,
                hint="name the folder that ag.to_transformers wrote of this network",
            )
    return new


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _within(name: str, modules: Iterable[str]) -> bool:
    """Return whether PEFT takes a name as inside of modules, which it knows by how paths end."""
    parts = name.split(".")
    paths = [".".join(parts[:i]) for i in range(1, len(parts))]
    return any(path.endswith(module) for path in paths for module in modules)


def _read(folder: Path) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
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
    return config, {
        re.sub(r"\.base_layer\.bias$", ".bias", k): v
        for k, v in stored.items()
        if not inner.search(k)
    }


def _of(patterns: Mapping[str, float] | None, path: str, default: Any) -> float:
    """Return what a pattern of PEFT says of a layer: the first that its path ends in."""
    matching = (v for k, v in (patterns or {}).items() if re.match(rf"(.*\.)?({k})$", path))
    return next(matching, default)


def _fitting(graph: ArchGraph, name: str, tensor: Tensor) -> Tensor:
    if tuple(tensor.shape) != (shape := graph.param[name].shape):
        raise GraphError("has another shape", where=name, found=tuple(tensor.shape), expected=shape)
    return tensor


def _layer(graph: ArchGraph, branch: SideBranch) -> str:
    """Return the path of the layer that an adapter stands beside."""
    return branch.weight.rpartition(".")[0] or graph.node[branch.base].scope


def _plain(number: float) -> float | int:
    """Return a whole number as one, as PEFT writes it."""
    return int(number) if math.isclose(number, round(number), rel_tol=1e-12) else number
