"""Every change to a run folder is refused by name, with a way on that works, or changes no bit."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archgraph.engine.experiment import Experiment
from archgraph.engine.local import Run, execute
from archgraph.errors import RunError
from archgraph.federation import Outcome, Train, Work
from archgraph.record.checkpoint import SUMS
from archgraph.record.proof import sha256

# A personal layer and a moment: what a client kept decides how it trains.
KEPT = frozenset({"1.running_mean", "1.running_var", "5.weight", "5.bias"})
LAST, BEFORE = "checkpoints/round-000003", "checkpoints/round-000002"
GROUP, SERVER = f"{LAST}/groups/000000.safetensors", f"{LAST}/server.json"
DIGESTS = f"{LAST}/{SUMS}"


class Stop(KeyboardInterrupt):
    """As sudden as a signal: no handler for exceptions sees it."""


def remembering(work: Work) -> Outcome:
    """Training that goes on with a moment of its own."""
    moment = work.keep.get("moment", torch.zeros(()))
    bias = work.state["0.bias"] + 0.01 * moment
    outcome = Train()(dataclasses.replace(work, state={**work.state, "0.bias": bias}))
    return dataclasses.replace(outcome, keep={"moment": moment + outcome.state["0.bias"].mean()})


def dying(work: Work) -> Outcome:
    if work.round == 4:
        raise Stop
    return remembering(work)


@pytest.fixture(scope="module")
def make(experiment: Any, mean: Any) -> Callable[..., Experiment]:
    def made(program: Any = remembering, **changes: Any) -> Experiment:
        strategy = mean(private=KEPT, program=program)
        return experiment(strategy, clients=5, rounds=4, sampled=3, **changes)

    return made


@pytest.fixture(scope="module")
def whole(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return execute(make(), out=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def broken(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died in its last round, with checkpoints of rounds 2 and 3."""
    folder = tmp_path_factory.mktemp("broken")
    with pytest.raises(Stop):
        execute(make(dying), out=folder)
    return folder


def told(run: Run) -> Any:
    """All of a run that has bits, without what a clock wrote."""

    def untimed(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: untimed(v) for k, v in value.items() if k != "seconds"}
        return [untimed(v) for v in value] if isinstance(value, list | tuple) else value

    tensors = {name: tensor.numpy().tobytes() for name, tensor in run.server.tensors.items()}
    return tensors, run.server.values, untimed(run.rounds)


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path, left: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])


def more(path: Path, text: str) -> None:
    path.write_bytes(path.read_bytes() + text.encode())


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(change(values) or values))


def seal(path: Path, change: Callable[[Any], Any]) -> None:
    """A change that its digest does not show."""
    before, values = sha256(path), json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    sums = path.with_name(SUMS)
    sums.write_text(sums.read_text().replace(before, sha256(path)))


def rewrite(path: Path, change: Callable[[list[str]], Any]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    path.write_text("".join(lines))


def zero(path: Path, part: str) -> None:
    tensors = {k: v * 0 if k.startswith(part) else v for k, v in load_file(path).items()}
    path.unlink()
    save_file(tensors, path)


def client(folder: Path, at: int = 0) -> Path:
    return sorted((folder / LAST / "clients").iterdir())[at]


def renamed(path: Path) -> Path:
    """A place that has become free."""
    path.rename(path.with_suffix(".away"))
    return path


def empty(folder: Path) -> None:
    """No checkpoint any more."""
    for past in (LAST, BEFORE):
        shutil.rmtree(folder / past)


def older(folder: Path) -> None:
    """What a client kept, replaced by what it kept the round before."""
    for path in sorted((folder / BEFORE / "clients").iterdir()):
        target = folder / LAST / "clients" / path.name
        if target.read_bytes() != path.read_bytes():
            target.write_bytes(path.read_bytes())
            return
    raise AssertionError("no client's file changed")


def replaced(folder: Path) -> None:
    shutil.rmtree(folder / LAST)
    shutil.copytree(folder / BEFORE, folder / LAST)


def line(path: Path, number: int, old: str, new: str) -> None:
    def change(lines: list[str]) -> None:
        assert old in lines[number]
        lines[number] = lines[number].replace(old, new, 1)

    rewrite(path, change)


METRICS, CLIENT = "metrics.jsonl", r"clients/00000\d\.safetensors"
# What is done to the folder, and what the refusal names; None: the run goes on to the same bits.
CASES: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    # Bits.
    "flip a bit of a group": (lambda f: flip(f / GROUP), GROUP),
    "flip a bit of a group's header": (lambda f: flip(f / GROUP, 12), GROUP),
    "flip a bit of a client": (lambda f: flip(client(f)), CLIENT),
    "flip a bit of the last client": (lambda f: flip(client(f, -1)), CLIENT),
    "flip a bit of server.json": (lambda f: flip(f / SERVER, 20), SERVER),
    "flip the last bit of server.json": (lambda f: flip(f / SERVER, -4), SERVER),
    "flip a bit of the lines": (lambda f: flip(f / METRICS, 40), METRICS),
    "flip a bit of the facts": (lambda f: flip(f / "facts.json", 14), "facts.json"),
    # Lengths.
    "cut a group": (lambda f: cut(f / GROUP), GROUP),
    "empty a group": (lambda f: cut(f / GROUP, 0), GROUP),
    "lengthen a group": (lambda f: more(f / GROUP, "\0"), GROUP),
    "cut a client": (lambda f: cut(client(f)), CLIENT),
    "cut server.json": (lambda f: cut(f / SERVER), SERVER),
    "empty server.json": (lambda f: cut(f / SERVER, 0), SERVER),
    "cut the lines": (lambda f: cut(f / METRICS), METRICS),
    "empty the lines": (lambda f: cut(f / METRICS, 0), METRICS),
    "cut the facts": (lambda f: cut(f / "facts.json"), "facts.json"),
    # Files.
    "remove a group": (lambda f: (f / GROUP).unlink(), GROUP),
    "remove a client": (lambda f: client(f).unlink(), CLIENT),
    "remove all clients": (lambda f: shutil.rmtree(f / LAST / "clients"), CLIENT),
    "remove server.json": (lambda f: (f / SERVER).unlink(), SERVER),
    "remove the lines": (lambda f: (f / METRICS).unlink(), METRICS),
    "remove the facts": (lambda f: (f / "facts.json").unlink(), "facts.json"),
    "remove run.yaml": (lambda f: (f / "run.yaml").unlink(), "no run.yaml"),
    "remove the last checkpoint": (lambda f: shutil.rmtree(f / LAST), None),
    "remove all checkpoints": (empty, None),
    "remove the folder of checkpoints": (lambda f: shutil.rmtree(f / "checkpoints"), None),
    "add a client": (
        lambda f: shutil.copy(client(f), f / LAST / "clients/000009.safetensors"),
        "clients/000009.safetensors.*expected no file",
    ),
    "add a client that is no number": (
        lambda f: shutil.copy(client(f), f / LAST / "clients/mine.safetensors"),
        "clients/mine.safetensors.*expected no file",
    ),
    "add a group": (
        lambda f: shutil.copy(f / GROUP, f / LAST / "groups/000001.safetensors"),
        "groups/000001.safetensors.*expected no file",
    ),
    "add a note to a checkpoint": (lambda f: (f / LAST / "note.txt").write_text("mine"), None),
    "add a folder of checkpoints": (lambda f: (f / "checkpoints/round-old").mkdir(), None),
    "rename a client": (
        lambda f: client(f).rename(f / LAST / "clients/000007.safetensors"),
        CLIENT,
    ),
    "rename a checkpoint": (
        lambda f: (f / LAST).rename(f / "checkpoints/round-000004"),
        "round-000004/server.json.*found round 3 of .*expected round 4",
    ),
    "a folder in place of a group": (
        lambda f: shutil.copytree(f / LAST / "clients", renamed(f / GROUP)),
        LAST,
    ),
    # Exchanges.
    "swap two clients": (lambda f: swap(client(f, 0), client(f, 1)), CLIENT),
    "zero what a client kept": (lambda f: zero(client(f), "state/"), CLIENT),
    "zero moments": (lambda f: zero(client(f), "keep/"), CLIENT),
    "a group of the round before": (
        lambda f: shutil.copy(f / BEFORE / "groups/000000.safetensors", f / GROUP),
        GROUP,
    ),
    "a client of the round before": (older, CLIENT),
    "a server.json of the round before": (
        lambda f: shutil.copy(f / BEFORE / "server.json", f / SERVER),
        f"{SERVER}.*found round 2 of",
    ),
    "a checkpoint of the round before": (replaced, f"{SERVER}.*found round 2 of"),
    # Lines.
    "edit a figure": (lambda f: line(f / METRICS, 2, '"accuracy": 0', '"accuracy": 1'), METRICS),
    "edit the first line": (lambda f: line(f / METRICS, 0, '"round": 1', '"round": 0'), METRICS),
    "remove the first line": (lambda f: rewrite(f / METRICS, lambda x: x.pop(0)), METRICS),
    "remove the last line": (lambda f: rewrite(f / METRICS, lambda x: x.pop()), METRICS),
    "reverse the lines": (lambda f: rewrite(f / METRICS, lambda x: x.reverse()), METRICS),
    "add a line in front": (lambda f: rewrite(f / METRICS, lambda x: x.insert(0, x[0])), METRICS),
    "add a line": (lambda f: rewrite(f / METRICS, lambda x: x.append(x[-1])), None),
    "add a part of a line": (lambda f: more(f / METRICS, '{"round": 4, "cl'), None),
    # What server.json says.
    "edit the version": (
        lambda f: edit(f / SERVER, lambda v: v.update(format=2)),
        f"{SERVER}: checkpoint of another version",
    ),
    "edit the round": (lambda f: edit(f / SERVER, lambda v: v.update(round=2)), SERVER),
    "edit the experiment": (lambda f: edit(f / SERVER, lambda v: v.update(experiment="")), SERVER),
    "edit a value": (lambda f: edit(f / SERVER, lambda v: v["values"].update(results=1)), SERVER),
    "add a value": (lambda f: edit(f / SERVER, lambda v: v["values"].update(seed=1)), SERVER),
    "edit the groups": (lambda f: edit(f / SERVER, lambda v: v.update(groups=[])), SERVER),
    "edit a file's digest": (lambda f: flip(f / DIGESTS, 4), GROUP),
    "edit a file's name": (lambda f: line(f / DIGESTS, 1, "clients", "friends"), CLIENT),
    "remove a digest": (lambda f: rewrite(f / DIGESTS, lambda x: x.pop(1)), CLIENT),
    "remove the digest of server.json": (
        lambda f: rewrite(f / DIGESTS, lambda x: x.pop()),
        f"{SERVER}.*expected no file",
    ),
    "add a digest": (
        lambda f: more(f / DIGESTS, f"{'0' * 64}  clients/000009.safetensors\n"),
        "clients/000009.safetensors.*found no file",
    ),
    "cut the digests": (lambda f: cut(f / DIGESTS), LAST),
    "empty the digests": (lambda f: cut(f / DIGESTS, 0), LAST),
    "remove the digests": (lambda f: (f / DIGESTS).unlink(), DIGESTS),
    "edit the lines' digest": (
        lambda f: edit(f / SERVER, lambda v: v["metrics"].update(bytes=0)),
        SERVER,
    ),
    "edit the environment": (
        lambda f: edit(f / SERVER, lambda v: v["environments"][0].update(threads=99)),
        SERVER,
    ),
    "a list in its place": (lambda f: (f / SERVER).write_text("[1]"), SERVER),
    "a number in its place": (lambda f: (f / SERVER).write_text("3"), SERVER),
    "lists in lists": (lambda f: (f / SERVER).write_text("[" * 100_000), SERVER),
    "seal it without a round": (
        lambda f: seal(f / SERVER, lambda v: v.pop("round")),
        f"{SERVER}: damaged checkpoint",
    ),
    "seal it with a number for a group": (
        lambda f: seal(f / SERVER, lambda v: v.update(groups=[3])),
        f"{SERVER}: damaged checkpoint",
    ),
    "seal it with a number for environments": (
        lambda f: seal(f / SERVER, lambda v: v.update(environments=3)),
        f"{SERVER}: damaged checkpoint",
    ),
    "other spaces": (
        lambda f: (f / SERVER).write_text(
            json.dumps(json.loads((f / SERVER).read_text()), indent=3)
        ),
        SERVER,
    ),
    # What the run is.
    "edit the seed of the facts": (
        lambda f: edit(f / "facts.json", lambda v: v.update(seed=1)),
        "facts.json: the folder holds another experiment; found seed: 1 instead of 0",
    ),
    "remove one of the facts": (
        lambda f: edit(f / "facts.json", lambda v: v.pop("rounds") and None),
        "facts.json: the folder holds another experiment; found rounds: null instead of 4",
    ),
    "half a character in the facts": (
        lambda f: edit(f / "facts.json", lambda v: v.update(seed="\ud800")),
        "facts.json: cannot identify the run",
    ),
    "a text for the facts": (lambda f: (f / "facts.json").write_text('"x"'), "facts.json"),
    "edit run.yaml": (lambda f: (f / "run.yaml").write_text("name: other\n"), None),
    "edit an architecture": (lambda f: [p.write_text("x") for p in f.glob("models/*")], None),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", CASES)
def test_tampering_is_refused_by_name_or_changes_no_bit(make, whole, broken, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(broken, folder)
    tamper, words = CASES[name]
    tamper(folder)
    if words is None:
        assert told(execute(make(), out=folder, resume=True)) == told(whole)
        return
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match=words) as caught:
        execute(make(), out=folder, resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert caught.value.hint
    if found := re.search(r"--resume-from (\d)", str(caught.value)):
        assert told(execute(make(), out=folder, resume_from=int(found[1]))) == told(whole)
    elif "--overwrite" in caught.value.hint:
        assert told(execute(make(), out=folder, overwrite=True)) == told(whole)
