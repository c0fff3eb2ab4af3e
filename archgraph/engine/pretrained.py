"""Weights of a file as the first ones of a global model, each by its name."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from archgraph.errors import RunError
from archgraph.federation.family import Family
from archgraph.graph.ir import ArchGraph
from archgraph.hints import listed
from archgraph.language.weights import WeightsSpec
from archgraph.module.initial import initial_state
from archgraph.ops.schema import torch_dtype
from archgraph.record.proof import sha256
from archgraph.states import State
from archgraph.states.updates import finite

# A file may hold this much more than the model needs: other heads, the state of an optimiser.
SPARE_BYTES, SPARE_TIMES = 1 << 30, 4


def lacking_weights(spec: WeightsSpec) -> str | None:
    """Return what to fetch of a file of weights that is not there; None if it is.

    Example:
        >>> lacking_weights(WeightsSpec(file="/none/net.pth", published="https://a.org"))
        'net.pth into /none/, published at https://a.org'
    """
    file = Path(spec.file)
    if file.is_file():
        return None
    return f"{file.name} into {file.parent}/" + (
        f", published at {spec.published}" if spec.published else ""
    )


def pretrained_family(
    spec: WeightsSpec, family: Family, seed: int, *, imagined: bool = False
) -> Family:
    """Return a family whose global model starts from a file's weights.

    Args:
        spec: Which file, and what becomes of names.
        family: The family.
        seed: Seed of the weights that start anew.
        imagined: For a check: a file that is not there is passed over if its checksum is known.

    Raises:
        RunError: If the family has no global model, or the file is missing, damaged, another one,
            or does not hold the model's weights, each with its shape and type; names them.
    """
    if not family.has_global:
        raise RunError(
            "the family has no global model that could start from a file's weights",
            expected="a family with `model`",
        )
    lacks = lacking_weights(spec)
    if lacks is not None and imagined and spec.sha256 is not None:
        return family
    if lacks is not None:
        raise RunError(
            "the file of weights is not there",
            found=f"no {spec.file}",
            expected=lacks,
            hint="nothing is downloaded",
        )
    state = family.state if family.state is not None else initial_state(family.graph, seed)
    placed = _placed(spec, family.graph, _read(spec, state))
    return dataclasses.replace(family, state={**state, **placed})


def _placed(spec: WeightsSpec, graph: ArchGraph, tensors: State) -> State:
    """Return a file's tensors under the model's names; every weight that is not fresh has one."""
    names = renamed(tensors, spec.rename)
    leaves = {p.name: p for p in graph.params if p.role != "constant"}
    owner = {alias: p.name for p in leaves.values() for alias in p.aliases}
    fresh = _matching(spec.fresh, leaves, "fresh", "weights of the model")
    unused = _matching(spec.unused, tensors, "unused", "tensors of the file")
    found = {owner.get(new, new): old for old, new in names.items() if old not in unused}
    further = [found[name] for name in found if name not in leaves]
    if further:
        raise RunError(
            "holds tensors that the model has not",
            where=spec.file,
            found=listed(further),
            expected=f"names such as {listed(leaves)}",
            hint="give them the model's names with `rename`, or leave them out with `unused`",
        )
    missing = [name for name in leaves if name not in found and name not in fresh]
    if missing:
        raise RunError(
            "lacks weights of the model",
            where=spec.file,
            found=f"none for {listed(missing)}",
            hint="`rename` the file's tensors, or let these start anew with `fresh`",
        )
    placed = {name: tensors[old] for name, old in found.items() if name not in fresh}
    for name, tensor in placed.items():
        leaf = leaves[name]
        if tensor.shape != leaf.shape or tensor.dtype != torch_dtype(leaf.dtype):
            raise RunError(
                "has another shape or type",
                where=f"{spec.file}: {found[name]}",
                found=f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}",
                expected=f"{leaf.dtype} {list(leaf.shape)}, as {name} of the model has it",
                hint="if it should start anew, name it in `fresh`",
            )
        mask = leaf.role == "buffer" and not bool(tensor.isnan().any())
        if tensor.is_floating_point() and not finite(tensor) and not mask:
            raise RunError("is not finite", where=f"{spec.file}: {found[name]}")
    return placed


def renamed(names: Iterable[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Names of a file with those of the model: the first rule that fits, from the beginning.

    Raises:
        RunError: If a rule fits no name, or two names become one.

    Example:
        >>> renamed(["fc.bias", "a.down.0.w"], {"fc": "head.linear", "*.down.0": "*.shortcut"})
        {'fc.bias': 'head.linear.bias', 'a.down.0.w': 'a.shortcut.w'}
    """
    rules = {
        old: (re.compile("(.*)".join(map(re.escape, old.split("*"))) + r"(\..*)?"), new.split("*"))
        for old, new in rename.items()
    }
    used: set[str] = set()
    found: dict[str, str] = {}
    for name in names:
        found[name] = name
        for old, (pattern, new) in rules.items():
            if (match := pattern.fullmatch(name)) is not None:
                used.add(old)
                *stars, rest = match.groups(default="")
                found[name] = "".join(a + b for a, b in zip(new, [*stars, rest], strict=True))
                break
    for old in rename:
        if old not in used:
            raise RunError("fits no tensor of the file", where=f"rename.{old}", found=listed(found))
    by_name: dict[str, str] = {}
    for name, ours in found.items():
        if by_name.setdefault(ours, name) != name:
            raise RunError(
                "two tensors of the file get one name",
                where="rename",
                found=f"{by_name[ours]} and {name}",
                expected=f"one for {ours}",
            )
    return found


def _matching(patterns: Iterable[str], names: Collection[str], key: str, kind: str) -> set[str]:
    """Return the names that patterns fit; each pattern must fit at least one."""
    every: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fnmatchcase(name, pattern)}
        if not fitting:
            raise RunError(
                f"fits none of the {kind}",
                where=f"{key}: {pattern}",
                expected=f"a pattern for names such as {listed(names)}",
            )
        every |= fitting
    return every


def _read(spec: WeightsSpec, state: State) -> dict[str, torch.Tensor]:
    """Read the tensors of a file by name; nothing in it is executed."""
    path = Path(spec.file)
    most = SPARE_TIMES * sum(t.numel() * t.element_size() for t in state.values()) + SPARE_BYTES
    if path.stat().st_size > most:
        raise RunError(
            "is far larger than the model",
            where=spec.file,
            found=f"{path.stat().st_size:,} bytes",
            expected=f"at most {most:,} bytes",
        )
    if spec.sha256 is not None and not (digest := sha256(path)).startswith(spec.sha256):
        raise RunError(
            "wrong checksum",
            where=spec.file,
            found=f"SHA-256 {digest}",
            expected=f"{spec.sha256}…",
            hint="fetch the file again",
        )
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise RunError(
            "cannot be read",
            where=spec.file,
            found=str(error).split("\n")[0] or type(error).__name__,
            expected="safetensors, or tensors by name as torch.save writes a state_dict()",
            hint="fetch the file again; nothing in it was executed",
        ) from error
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items()
    ):
        raise RunError(
            "does not hold tensors by name",
            where=spec.file,
            found=type(found).__name__,
            expected="a state_dict()",
        )
    return {name: tensor.detach() for name, tensor in found.items()}
