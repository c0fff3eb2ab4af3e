"""What faulty clients cost: accuracy with 30 % of them, beside that of the same run without faults.

Runs strategies on the digits, shared out evenly, with several seeds, and prints a table in
Markdown: mean accuracy of the models that clients run on the global test data, and its differences
from the clean run in points; mean ± standard deviation over seeds. The faulty clients of a seed are
the same in a row.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import archgraph as ag
from archgraph.engine import prepare
from archgraph.engine.attack import drawn_attackers
from archgraph.engine.local import execute
from archgraph.federation import Outcome, Program, Task, Work
from archgraph.language.data import IidSpec
from archgraph.language.family import FamilySpec, MemberSpec
from archgraph.ops.table import statistics as running
from archgraph.ops.table import variances

SPECS = Path(__file__).parents[1] / "specs"
FAMILY = str(SPECS / "families" / "fedfa_digits.yaml")
ALIKE = FamilySpec(
    model=str(SPECS / "models" / "digits_cnn.yaml"), clients=(MemberSpec(name="all", count=10),)
)
STRATEGIES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg": (ALIKE, {"fedavg": {}}),
    "HeteroFL": (FAMILY, {"heterofl": {}}),
    "FedFA": (FAMILY, {"fedfa": {}}),
    "NeFL": (FAMILY, {"nefl": {}}),
    "FedADP": (FAMILY, {"fedadp": {"approximate": True}}),
}
SHARE = 0.3

Spoil = Callable[[Work, str, Tensor], Tensor]


def gone(work: Work, name: str, value: Tensor) -> Tensor:
    """The client is not there."""
    raise ConnectionError


def weights(change: Callable[[Tensor], Tensor]) -> Spoil:
    """Changes parameters, and neither statistics nor counters."""
    return lambda work, name, value: value if name in running(work.graph) else change(value)


FAULTS: Mapping[str, Spoil] = {
    "absent": gone,
    "NaN": weights(lambda value: value * torch.nan),
    "3e38": weights(lambda value: torch.full_like(value, 3e38)),
    "variances of −1000": lambda work, name, value: (
        torch.full_like(value, -1000) if name in variances(work.graph) else value
    ),
    "10⁶ θ": weights(lambda value: value * 1e6),
}


@dataclass(frozen=True)
class Spoilt:
    """A program whose outcome is spoilt."""

    program: Program
    spoil: Spoil

    def __call__(self, work: Work) -> Outcome:
        """Do the work, then spoil it."""
        outcome = self.program(work.copied())
        state = {name: self.spoil(work, name, value) for name, value in outcome.state.items()}
        return dataclasses.replace(outcome, state=state)


@dataclass(frozen=True)
class Attacked:
    """A strategy some of whose clients are faulty; otherwise as it is."""

    strategy: Any
    faulty: frozenset[int]
    spoil: Spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def send(self, world: Any, state: Any, client: int, round: int) -> Task:
        """The strategy's task, with a program that is spoilt where the client is faulty."""
        task: Task = self.strategy.send(world, state, client, round)
        if client not in self.faulty:
            return task
        return dataclasses.replace(task, program=Spoilt(task.program, self.spoil))


# What is run beside the clean run: a fault, and whether with a bound.
CELLS = [(fault, False) for fault in FAULTS] + [("10⁶ θ", True)]


def head(fault: str, bounded: bool, bound: float) -> str:
    """Of a column."""
    return f"{fault}, `bound: {bound:g}`" if bounded else fault


def accuracy(experiment: Any, fault: str | None, bound: float | None) -> float:
    """Mean accuracy of the models that clients run, in percent; 10 where the run was given up."""
    setup = prepare(experiment)
    if fault is not None:
        clients = range(len(setup.world.clients))
        bad = drawn_attackers(clients, SHARE, setup.world.seed)
        attacked: Any = Attacked(setup.strategy, bad, FAULTS[fault])
        setup = dataclasses.replace(setup, strategy=attacked, bound=bound)
    try:
        run = execute(setup, progress=False)
    except ag.RunError as error:
        print(error, file=sys.stderr)
        return 10.0
    tested, world = run.evaluation["models"], run.experiment.world
    runs = run.server.values.get("tiers", [client.name for client in world.clients])
    own = [tested.get(name, tested["global"])["accuracy"] for name in runs]
    return 100 * statistics.mean(own)


def shown(figures: list[float]) -> str:
    """Mean ± standard deviation."""
    spread = statistics.stdev(figures) if len(figures) > 1 else 0.0
    return f"{statistics.mean(figures):.1f} ± {spread:.1f}"


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bound", type=float, default=5.0)
    parser.add_argument("--strategies", nargs="*", choices=STRATEGIES, help="default: all")
    parser.add_argument("--log", type=Path, help="a line per run; those in it are not run again")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    base = ag.load_experiment(SPECS / "experiments" / "fedfa_digits.yaml")
    late = base.evaluate.model_copy(update={"every": chosen.rounds})
    # All classes at all clients: else most of the difference is that of their data.
    data = base.data.model_copy(update={"partition": IidSpec()})
    done = {}
    if chosen.log is not None and chosen.log.exists():
        for line in map(json.loads, chosen.log.read_text().splitlines()):
            done[tuple(line["run"])] = line["accuracy"]
    heads = ("strategy", "clean", *(head(*cell, chosen.bound) for cell in CELLS))
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for name in chosen.strategies or STRATEGIES:
        rows = []
        for fault, bounded in ((None, False), *CELLS):
            found = []
            for seed in range(chosen.seeds):
                key = (name, fault, bounded, seed)
                if key not in done:
                    family, strategy = STRATEGIES[name]
                    spec = base.model_copy(
                        update={"family": family, "strategy": strategy, "seed": seed}
                        | {"rounds": chosen.rounds, "evaluate": late, "data": data}
                    )
                    began = time.process_time()
                    done[key] = accuracy(spec, fault, chosen.bound if bounded else None)
                    seconds = round(time.process_time() - began, 1)
                    print(*key, f"{done[key]:.1f} %, {seconds} s", file=sys.stderr, flush=True)
                    if chosen.log is not None:
                        with chosen.log.open("a") as log:
                            line = {"run": key, "accuracy": done[key], "seconds": seconds}
                            log.write(json.dumps(line) + "\n")
                found.append(done[key])
            rows.append(found)
        clean, *others = rows
        losses = ([a - b for a, b in zip(found, clean, strict=True)] for found in others)
        print(f"| {name} | {' | '.join(map(shown, (clean, *losses)))} |", flush=True)


if __name__ == "__main__":
    main()
