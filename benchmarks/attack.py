"""What an attack does to an experiment, by rule of ``aggregate``, beside the same without it.

Runs an experiment that has an ``attack`` with and without it, by every rule and with several seeds,
and prints a table in Markdown: accuracy of the global model, and over the clients the mean accuracy
of the models that they run, both on the global test data; mean ± standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

import archgraph as ag
from archgraph.language.aggregate import Aggregate

EXPERIMENT = Path(__file__).parents[1] / "specs" / "experiments" / "fedfa_digits_attacked.yaml"
RULES: Mapping[str, Any] = {
    "(none)": None,
    "`clip: median`": {"clip": "median"},
    "`trimmed_mean: 0.2`": {"trimmed_mean": 0.2},
    "`median`": "median",
    "`median: {quorum: 3}`": {"median": {"quorum": 3}},
    "`krum: {malicious: 0.2, keep: 5}`": {"krum": {"malicious": 0.2, "keep": 5}},
}


def accuracies(experiment: Any, **changes: Any) -> tuple[float, float]:
    """Accuracy of the global model and of what clients run, after the last round, in percent."""
    run = ag.run(experiment.model_copy(update=changes), progress=False)
    tested, clients = run.evaluation["models"], run.experiment.world.clients
    runs = run.server.values.get("tiers", [client.name for client in clients])
    own = [tested[name]["accuracy"] for name in runs]
    return 100 * tested["global"]["accuracy"], 100 * statistics.mean(own)


def shown(figures: list[float]) -> str:
    """Mean ± standard deviation."""
    spread = statistics.stdev(figures) if len(figures) > 1 else 0.0
    return f"{statistics.mean(figures):.1f} ± {spread:.1f}"


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", type=Path, default=EXPERIMENT)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="instead of the experiment's")
    parser.add_argument("--rules", nargs="*", type=int, help="numbers of rows; default: all")
    parser.add_argument("--log", type=Path, help="a line per run; those in it are not run again")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    experiment = ag.load_experiment(chosen.experiment)
    rounds = chosen.rounds or experiment.rounds
    late = experiment.evaluate.model_copy(update={"every": rounds})
    done = {}
    if chosen.log is not None and chosen.log.exists():
        lines = map(json.loads, chosen.log.read_text().splitlines())
        done = {(line["rule"], line["attacked"], line["seed"]): line["accuracy"] for line in lines}
    print("| rule | global, clean | global, attacked | clients, clean | clients, attacked |")
    print("|---|---|---|---|---|", flush=True)
    for number, (name, rule) in enumerate(RULES.items()):
        if chosen.rules and number not in chosen.rules:
            continue
        columns: list[list[float]] = [[], [], [], []]
        for seed in range(chosen.seeds):
            for attacked in (False, True):
                began = time.process_time()
                found = done.get((name, attacked, seed)) or accuracies(
                    experiment,
                    seed=seed,
                    rounds=rounds,
                    evaluate=late,
                    aggregate=None
                    if rule is None
                    else TypeAdapter(Aggregate).validate_python(rule),
                    attack=experiment.attack if attacked else None,
                )
                columns[attacked].append(found[0])
                columns[2 + attacked].append(found[1])
                seconds = time.process_time() - began
                if chosen.log is not None and (name, attacked, seed) not in done:
                    line = {"rule": name, "attacked": attacked, "seed": seed, "accuracy": found}
                    with chosen.log.open("a") as log:
                        log.write(json.dumps({**line, "seconds": round(seconds, 1)}) + "\n")
                print(name, seed, attacked, found, f"{seconds:.1f} s", file=sys.stderr, flush=True)
        print(f"| {name} | {' | '.join(map(shown, columns))} |", flush=True)


if __name__ == "__main__":
    main()
