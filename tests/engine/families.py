"""A small run of every strategy: unlike clients where it can have them, dropout, own statistics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from archgraph.engine.local import Run

DIGITS = Path(__file__).parents[2] / "specs" / "models" / "digits_cnn.yaml"
ONE = "clients: [{name: all, count: 3, choose: {w1: 8}}]"
WIDTHS = "clients: [{name: half, count: 2, take: 0.5}, {name: whole, count: 1}]"
DEPTHS = "clients: [{name: flat, count: 2, choose: {d1: 1}}, {name: deep, choose: {d1: 2}}]"
MIXED = (
    "clients: [{name: small, count: 2, choose: {d1: 1, w2: 16}}, {name: deep, choose: {d1: 2}},"
    " {name: wide, choose: {w2: 24}}]"
)
EXITS = (
    "change: {add_exits: {stage1: 10}}, "
    "clients: [{name: first, count: 2, ends_after: {section: stage1}}, {name: whole, count: 1}]"
)
EDGE = "clients: [{name: edge, count: 2, ends_after: {section: stage1, head: 10}}]"
RANKS = (
    "change: {add_lora: {rank: 4}}, "
    "clients: [{name: low, count: 2, rank: 2}, {name: whole, count: 1}]"
)
RANK = "change: {add_lora: {rank: 4}}, clients: [{name: all, count: 3}]"
# Of each strategy its clients and its options; running statistics stay with clients where they can.
STRATEGIES = {
    "adaptivefl_pool": (WIDTHS, "{}"),
    "allsmall": (WIDTHS, "{norm: local}"),
    "clusteredfl": (ONE, "{after: 1}"),
    "depthfl": (EXITS, "{}"),
    "exclusivefl": (ONE, "{}"),
    "fedadp": (MIXED, "{approximate: true}"),
    "fedavg": (ONE, "{norm: local}"),
    "fedfa": (MIXED, "{norm: local}"),
    "fedgkt": (EDGE, "{after: stage1, server_epochs: 1}"),
    "feddistill": (DEPTHS, "{}"),
    "fedin": (DEPTHS, "{}"),
    "fedmd": (WIDTHS, "{subset: 10}"),
    "fedproto": (WIDTHS, "{}"),
    "fedrolex": (WIDTHS, "{}"),
    "fjord": (WIDTHS, "{}"),
    "fedit": (RANK, "{}"),
    "ffa_lora": (RANKS, "{}"),
    "fiarse": (WIDTHS, "{}"),
    "flexlora": (RANKS, "{}"),
    "flora": (RANKS, "{}"),
    "hetlora": (RANKS, "{prune: 0.5}"),
    "rank_mean": (RANKS, "{}"),
    "rolora": (RANKS, "{}"),
    "flexfl_pool": (WIDTHS, '{apoz: {"*": 0.5}}'),
    "flexifed": (DEPTHS, "{}"),
    "fml": (MIXED, "{}"),
    "heterofl": (WIDTHS, "{norm: local, scaler: false}"),
    "inclusivefl": (DEPTHS, "{}"),
    "ditto": (WIDTHS, "{}"),
    "fedbabu": (WIDTHS, "{tune_epochs: 1}"),
    "fedbn": (DEPTHS, "{}"),
    "fedper": (WIDTHS, "{norm: local}"),
    "fedrep": (WIDTHS, "{head_epochs: 2}"),
    "matched": (WIDTHS, "{}"),
    "nefl": (MIXED, "{spread: 0}"),
    "recipfl": (MIXED, "{width: 16, hidden: 16, tile: 8, descriptor: id}"),
    "scalefl": (EXITS, "{}"),
    "standalone": (ONE, "{}"),
}
# Keys of an experiment that a method needs.
NEEDS = {"fedmd": "public: 20\n"}

# Those whose servers compute gradients, after which no run of a process can begin to use others
# where there is a device.
SERVERS = ("fedgkt", "recipfl")


def experiment_of(name: str, folder: Path) -> Path:
    """The file of a strategy's experiment, with a network that has dropout and statistics."""
    model, file = folder / "dropping.yaml", folder / f"{name}.yaml"
    model.write_text(DIGITS.read_text().replace("flatten, linear", "flatten, dropout: 0.2, linear"))
    clients, options = STRATEGIES[name]
    file.write_text(f"""\
archgraph: 1
name: same
family: {{archgraph: 1, name: same, model: {model}, {clients}}}
data: {{dataset: digits, limit: 90, partition: {{scheme: dirichlet, min_size: 5}}}}
strategy: {{{name}: {options}}}
rounds: 2
local: {{batch: 16, lr: 0.05, momentum: 0.9}}
evaluate: {{every: 2}}
{NEEDS.get(name, "")}""")
    return file


def result(run: Run) -> tuple[Any, ...]:
    """The server's tensors and all that the record says but for times."""
    lines = re.sub(r"'seconds': (\d[^,}]*|{[^}]*})", "", str(run.rounds))
    return lines, {name: tensor.cpu().tolist() for name, tensor in run.server.tensors.items()}
