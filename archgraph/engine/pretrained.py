"""Initial weights of a global model from a file, matched by name."""

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
from archgraph.graph.ir import ArchGraph, Param
from archgraph.hints import listed
from archgraph.language.weights import WeightsSpec
from archgraph.module.initial import initial_state
from archgraph.ops.schema import torch_dtype
from archgraph.record.proof import sha256
from archgraph.states import State
from archgraph.states.updates import finite

# A file may be this many times larger than the model: it may contain optimiser states, too.
SPARE_BYTES, SPARE_TIMES = 1 << 30, 4


def lacking_weights(spec: WeightsSpec) -> str | None:
    """Describe where to download a missing file of weights; None if the file exists.

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
    """Return the family with initial weights of the global model from a file.

    Args:
        spec: The file, and rules that map its names to names of the model.
        family: The family.
        seed: Seed of weights that are not read from the file.
        imagined: For a dry run: ignore a missing file if its checksum is known.

    Raises:
        RunError: If the family has no global model, or the file is missing, damaged or has another
            checksum. Also raised if weights of the model are missing in the file or have another
            shape or dtype; the message then names these weights.
    """
    if not family.has_global:
        raise RunError("the family has no global model that could start from a file's weights")
    if (lacks := lacking_weights(spec)) is not None:
        if imagined and spec.sha256 is not None:
            return family
        raise RunError(
            "the file of weights does not exist", expected=lacks, hint="nothing is downloaded"
        )
    state = family.state if family.state is not None else initial_state(family.graph, seed)
    placed = _placed(spec, family.graph, _read(spec, state))
    return dataclasses.replace(family, state={**state, **placed})


def _placed(spec: WeightsSpec, graph: ArchGraph, tensors: State) -> State:
    """Return a dict from name in the model to tensor of the file."""
    names = mapped_names(tensors, spec.rename)
    leaves = {p.name: p for p in graph.params if p.role != "constant"}
    owner = {alias: p.name for p in leaves.values() for alias in p.aliases}
    fresh = _matching(spec.fresh, leaves, "fresh", "weights of the model")
    unused = _matching(spec.unused, tensors, "unused", "tensors of the file")
    # A file may contain a tied weight under each of its names.
    sources = {owner.get(new, new): old for old, new in names.items() if old not in unused}
    _check_names(spec.file, sources, leaves, fresh)
    placed = {name: tensors[old] for name, old in sources.items() if name not in fresh}
    for name, tensor in placed.items():
        _check_tensor(leaves[name], tensor, f"{spec.file}: {sources[name]}")
    return placed


def _check_names(
    file: str, sources: Mapping[str, str], leaves: Collection[str], fresh: Collection[str]
) -> None:
    """Check that a file contains the model's weights, except fresh weights, and no other tensors.

    Args:
        file: Name of the file.
        sources: Dict from name in the model to name in the file.
        leaves: Names of the model's weights.
        fresh: Names of weights that are drawn from the seed.
    """
    further = [old for name, old in sources.items() if name not in leaves]
    if further:
        raise RunError(
            "contains tensors that the model does not have",
            where=file,
            found=listed(further),
            expected=f"names such as {listed(leaves)}",
            hint="give them the model's names with `rename`, or skip them with `unused`",
        )
    missing = [name for name in leaves if name not in sources and name not in fresh]
    if missing:
        raise RunError(
            "lacks weights of the model",
            where=file,
            found=f"none for {listed(missing)}",
            hint="`rename` the file's tensors, or draw these from the seed with `fresh`",
        )


def _check_tensor(leaf: Param, tensor: torch.Tensor, where: str) -> None:
    """Check that a tensor has the shape and dtype of a weight, and is finite."""
    if tensor.shape != leaf.shape or tensor.dtype != torch_dtype(leaf.dtype):
        raise RunError(
            "has another shape or dtype",
            where=where,
            found=f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}",
            expected=f"{leaf.dtype} {list(leaf.shape)}, the form of {leaf.name} in the model",
            hint="to draw it from the seed, name it in `fresh`",
        )
    # Buffers may be masks with −∞, which are not trained.
    mask = leaf.role == "buffer" and not bool(tensor.isnan().any())
    if tensor.is_floating_point() and not finite(tensor) and not mask:
        raise RunError("is not finite", where=where)


def mapped_names(names: Iterable[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from names in a file to names in the model.

    For each name, the first rule with a matching prefix applies.

    Raises:
        RunError: If a rule does not match any name, or two names are mapped to the same name.

    Example:
        >>> mapped_names(["fc.bias", "a.down.0.w"], {"fc": "head.linear", "*.down.0": "*.shortcut"})
        {'fc.bias': 'head.linear.bias', 'a.down.0.w': 'a.shortcut.w'}
    """
    rules = {
        old: (re.compile("(.*)".join(map(re.escape, old.split("*"))) + r"(\..*)?"), new.split("*"))
        for old, new in rename.items()
    }
    used: set[str] = set()
    ours: dict[str, str] = {}
    for name in names:
        ours[name] = name
        for old, (pattern, new) in rules.items():
            if (match := pattern.fullmatch(name)) is not None:
                used.add(old)
                *stars, rest = match.groups(default="")
                ours[name] = "".join(a + b for a, b in zip(new, [*stars, rest], strict=True))
                break
    if unfit := [old for old in rename if old not in used]:
        raise RunError(
            "matches no tensor of the file", where=f"rename.{unfit[0]}", found=listed(ours)
        )
    theirs: dict[str, str] = {}
    for name, new_name in ours.items():
        if (other := theirs.setdefault(new_name, name)) != name:
            raise RunError(f"{other} and {name} would both get the name {new_name}", where="rename")
    return ours


def _matching(patterns: Iterable[str], names: Collection[str], key: str, kind: str) -> set[str]:
    """Return the names that match patterns; each pattern must match at least one name."""
    every: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fnmatchcase(name, pattern)}
        # No match: the pattern is misspelt, or this is the wrong file.
        if not fitting:
            raise RunError(
                f"matches none of the {kind}",
                where=f"{key}: {pattern}",
                expected=f"a pattern for names such as {listed(names)}",
            )
        every |= fitting
    return every


def _read(spec: WeightsSpec, state: State) -> dict[str, torch.Tensor]:
    """Return a dict from name to tensor of a file, without executing code."""
    path = Path(spec.file)
    most = SPARE_TIMES * sum(t.numel() * t.element_size() for t in state.values()) + SPARE_BYTES
    if path.stat().st_size > most:
        raise RunError(
            "is far larger than the model",
            where=spec.file,
            found=f"{path.stat().st_size:,} bytes",
            expected=f"{most:,} bytes",
        )
    if spec.sha256 is not None and not (digest := sha256(path)).startswith(spec.sha256):
        raise RunError(
            "wrong checksum",
            where=spec.file,
            found=f"SHA-256 {digest}",
            expected=f"{spec.sha256}…",
            hint="download the file again",
        )
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            # Tensors and plain containers only: no code of the file is run.
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise RunError(
            "cannot be read",
            where=spec.file,
            found=str(error).split("\n")[0] or type(error).__name__,
            expected="a safetensors file, or a state_dict() saved by torch.save",
            hint="download the file again; no code in it was executed",
        ) from error
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in content.items()
    ):
        raise RunError(
            "does not contain a state_dict(), a dict from name to tensor",
            where=spec.file,
            found=type(content).__name__,
        )
    return {name: tensor.detach() for name, tensor in content.items()}
