"""Whether two runs are the same: every figure and every bit, but for times."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from archgraph.federation import State
from archgraph.language.yaml import read_document
from archgraph.plain import Json, differences
from archgraph.record.checkpoint import reading
from archgraph.record.client import CONFIRMED
from archgraph.record.folder import checkpoint_of, read_metrics, run_folder, saved_rounds
from archgraph.tables import plural

# Settings of the engine that change numbers: the rest says where and how clients are trained.
DECIDING = ("deadline", "memory")


def run_differences(
    one: str | os.PathLike[str], two: str | os.PathLike[str]
) -> tuple[list[str], list[str]]:
    """Compare two runs: what decides their numbers, each round's figures, the last tensors.

    Tensors are compared after the last round of which both have a checkpoint: the server's, and
    what clients keep. Times, and where and how clients were trained, do not count.

    Args:
        one: A run folder.
        two: Another one.

    Returns:
        What differs, a line each, and what was compared.

    Raises:
        RunError: If either is not a run folder, or is damaged.

    Example:
        >>> import tempfile
        >>> import archgraph as ag
        >>> spec = ag.load_experiment("specs/experiments/fedfa_digits.yaml")
        >>> spec = spec.model_copy(update={"rounds": 1})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     one, two = (f"{folder}/{name}" for name in ("one", "two"))
        ...     _ = [ag.run(spec, out=place, progress=False) for place in (one, two)]
        ...     run_differences(one, two)
        ([], ['1 round', '93 tensors of the server after round 1'])
    """
    first, second = run_folder(one), run_folder(two)
    differing = [f"experiment: {text}" for text in differences(_facts(first), _facts(second))]
    differing += [f"engine: {text}" for text in differences(_engine(first), _engine(second))]
    lines, others = read_metrics(first), read_metrics(second)
    if len(lines) != len(others):
        differing.append(f"rounds: {len(lines)} instead of {len(others)}")
    for line, other in zip(lines, others, strict=False):
        texts = differences(_timeless(line), _timeless(other))
        differing += [f"round {line['round']}: {text}" for text in texts]
    compared = [plural(min(len(lines), len(others)), "round")]
    common = sorted({*saved_rounds(first)} & {*saved_rounds(second)})
    if not common:
        differing.append("tensors: no round has a checkpoint in both")
        return differing, compared
    number = common[-1]
    ours, theirs = (checkpoint_of(folder, number) for folder in (first, second))
    after = f"after round {number}"
    differing += _of_tensors(ours.tensors, theirs.tensors, f"{after}: server")
    plain = differences(_timeless(dict(ours.values)), _timeless(dict(theirs.values)))
    differing += [f"{after}: server: {text}" for text in plain]
    for client in sorted({*ours.private, *theirs.private}):
        states = [_own(c.private.get(client, {})) for c in (ours, theirs)]
        differing += _of_tensors(states[0], states[1], f"{after}: kept by client {client}")
    compared.append(f"{plural(len(ours.tensors), 'tensor')} of the server {after}")
    if ours.private:
        compared.append(f"what {plural(len(ours.private), 'client')} kept")
    return differing, compared


def _facts(folder: Path) -> Json:
    """All that decides the numbers of a run."""
    path = folder / "facts.json"
    with reading(path):
        return dict(json.loads(path.read_bytes()))


def _engine(folder: Path) -> Json:
    """Return the engine's settings that can change numbers, though a run may go on with others."""
    said = read_document(folder / "run.yaml").data.get("engine")
    return {name: said.get(name) for name in DECIDING} if isinstance(said, Mapping) else {}


def _own(private: State) -> State:
    """Return what a client keeps, without the note of a server whose nodes hold it."""
    return {} if list(private) == [f"keep/{CONFIRMED}"] else private


def _timeless(value: Json) -> Json:
    """Drop the times from a line of the record, and key items of lists by their position."""
    if isinstance(value, Mapping):
        return {key: _timeless(inner) for key, inner in value.items() if key != "seconds"}
    if isinstance(value, list):
        return {str(at): _timeless(inner) for at, inner in enumerate(value)}
    return value


def _of_tensors(one: State, two: State, where: str) -> Iterator[str]:
    for name in sorted({*one, *two}):
        first, second = one.get(name), two.get(name)
        if first is None or second is None:
            yield f"{where}: {name}: only in the {'second' if first is None else 'first'}"
        elif (first.shape, first.dtype) != (second.shape, second.dtype):
            yield f"{where}: {name}: {_form(first)} instead of {_form(second)}"
        elif not _same(first, second):
            yield f"{where}: {name}: {_described_gap(first, second)}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _same(one: Tensor, two: Tensor) -> bool:
    """Return whether two tensors of one form have the same bits, those of NaN included."""
    # As bits: NaN equals itself, and 0 differs from -0.
    return torch.equal(_bytes(one), _bytes(two))


def _described_gap(one: Tensor, two: Tensor) -> str:
    """Describe how far two tensors of one form are apart.

    >>> nan = float("nan")
    >>> _described_gap(torch.tensor([1.0, nan, 0.0]), torch.tensor([1.5, nan, -0.0]))
    '2 of 3 values differ, by up to 0.5'
    >>> _described_gap(torch.tensor(2**60), torch.tensor(2**60 + 1))
    '1 of 1 values differ'
    """
    rows = (_bytes(tensor).view(one.numel(), -1) for tensor in (one, two))
    text = f"{int(torch.ne(*rows).any(1).sum())} of {one.numel()} values differ"
    kind = torch.complex128 if one.is_complex() else torch.float64
    gaps = (one.to(kind) - two.to(kind)).abs()
    largest = gaps.where(gaps.isfinite(), 0.0).max()
    return f"{text}, by up to {float(largest):.3g}" if largest else text


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
