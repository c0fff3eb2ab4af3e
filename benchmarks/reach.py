"""What shipped experiments, every command and the snippets of the docs reach of the code.

``python -m benchmarks.reach --data DATA --out FOLDER`` runs all of it under coverage (about half an
hour) and prints, for each room, its statements and those that something reached; then the functions
of which nothing was reached, largest first. A statement is an AST statement that is not a bare
constant; it is reached if its first line was executed. ``--report`` reads what was left before.

The set of runs, commands and snippets was fixed before the first removal of *A smaller house*. Only
what was removed has left it since.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage

SMALL = "specs/experiments/small"
RESNET = "specs/models/resnet18.yaml"

# Experiments, two rounds each.
RUNS = {
    "fjord": (f"{SMALL}/fjord_digits.yaml",),
    "fedin": (f"{SMALL}/fedin_fashion.yaml", "data.limit=600"),
    "fedavg": (f"{SMALL}/fedavg_fashion.yaml", "data.limit=600"),
    "recipfl": ("specs/experiments/recipfl/recipfl_mnist.yaml", "data.limit=400"),
    "wikitext": (f"{SMALL}/nefl_wikitext2.yaml", "data.limit=40"),
    "attacked": ("specs/experiments/fedfa_digits_attacked.yaml",),
    "fedmd": (f"{SMALL}/fedmd_digits.yaml",),
    "nefl": (f"{SMALL}/nefl_wd_cifar10.yaml", "data.limit=1000"),
    "depthfl": (f"{SMALL}/depthfl_digits.yaml",),
    "scaffold": ("docs/examples/scaffold.yaml",),
    "flower": (f"{SMALL}/fjord_digits.yaml", "engine=flower"),
}

STUDY = """\
archgraph: 1
study: Two cells
experiment:
  family: {root}/specs/families/fedfa_digits.yaml
  data: {{dataset: digits, partition: {{scheme: iid}}}}
  local: {{lr: 0.05}}
  rounds: 2
rows:
  FedFA: {{strategy: {{fedfa: {{}}}}}}
  Standalone: {{strategy: {{standalone: {{}}}}}}
figures: {{average: average_accuracy}}
sizes:
  small: {{seeds: [0, 1]}}
"""

# One line per call. {out}: the folder; names of RUNS are folders in it.
COMMANDS = f"""\
demo --out {{out}}/demo --rounds 2
report {{out}}/fjord
compare {{out}}/fjord {{out}}/depthfl
show {RESNET}
show {{out}}/fjord
explain {RESNET}
draw {RESNET} -o {{out}}/net.svg
draw specs/families/fedfa_digits.yaml -o {{out}}/family.pdf
view {RESNET} -o {{out}}/net.html
view {{out}}/depthfl -o {{out}}/run.html
compare {RESNET} specs/models/resnet34.yaml
match {RESNET} specs/models/resnet34.yaml
match {{out}}/fedavg {{out}}/fedavg --weights
fit {RESNET} --parameters 50%
fit {RESNET} --macs 0.5 --memory 0.8 --batch 8
rewrite {RESNET} --take 0.5 --shorten layer3=1 -o {{out}}/small.yaml
trace python:mine:Net --input image=2,1,28,28 -o {{out}}/m.yaml --weights {{out}}/m.safetensors
export {{out}}/m.yaml -o {{out}}/m.onnx --state {{out}}/m.safetensors
show {{out}}/m.onnx
export specs/models/resnet18.yaml -o {{out}}/resnet.onnx
explain {{out}}/resnet.onnx
export {{out}}/fjord -o {{out}}/fjord.pt2
check specs/families specs/experiments specs/models specs/studies
schema experiment
schema model
init {{out}}/init
help dirichlet
strategies
study {{out}}/study.yaml --out {{out}}/studies
flower init specs/experiments/small/fjord_digits.yaml {{out}}/app
run {SMALL}/fjord_digits.yaml --out {{out}}/fjord --resume --set rounds=3
"""


def main() -> None:
    """Run everything, unless told to report only, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and coverage")
    parser.add_argument("--report", action="store_true", help="report what an earlier call left")
    parser.add_argument("--largest", type=int, default=60, help="unreached functions to list")
    options = parser.parse_args()
    out = options.out.resolve()
    if not options.report:
        measure(out, options.data)
    report(out, options.largest)


def measure(out: Path, data: Path | None) -> None:
    """Execute every run, command and snippet under coverage."""
    out.mkdir(parents=True)
    rc = out / "coveragerc"
    rc.write_text(
        "[run]\nsource =\n    archgraph\n    strategies\nparallel = true\npatch = subprocess\n"
        f"concurrency = thread, multiprocessing\nsigterm = true\ndata_file = {out}/coverage\n"
    )
    environment = os.environ | {
        "COVERAGE_RCFILE": str(rc),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join((".", "docs/examples", os.environ.get("PYTHONPATH", ""))),
    }
    if data:
        environment["ARCHGRAPH_DATA"] = str(data.resolve())
    (out / "study.yaml").write_text(STUDY.format(root=Path.cwd()))

    def run(name: str, arguments: list[str]) -> None:
        begun = time.monotonic()
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={rc}", "-m", *arguments]
        with (out / f"{name}.log").open("w") as log:
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
        seconds = time.monotonic() - begun
        print(f"{name}: exit code {done.returncode}, {seconds:.0f} s", flush=True)

    for name, (path, *settings) in RUNS.items():
        changed = [word for one in ("rounds=2", *settings) for word in ("--set", one)]
        run(name, ["archgraph", "--python", "run", path, "--out", str(out / name), *changed])
    for number, line in enumerate(COMMANDS.splitlines()):
        words = line.format(out=out).split()
        run(f"{number:02}-{words[0]}", ["archgraph", "--python", *words])
    run("snippets", ["pytest", "-q", "-p", "no:cacheprovider", "tests/docs"])


def report(out: Path, largest: int) -> None:
    """Print what was reached, by room, and the largest functions that were not."""
    combined = coverage.Coverage(data_file=str(out / "combined"), config_file=False)
    combined.combine([str(path) for path in out.glob("coverage.*")], keep=True)
    measured = combined.get_data()
    lines = defaultdict[Path, set[int]](set)
    for name in measured.measured_files():  # a strategy has two names, one through a link
        lines[Path(name).resolve()] |= set(measured.lines(name) or ())
    total, reached, raises = Counter[str](), Counter[str](), Counter[str]()
    untouched = Counter[str]()
    for path in sources():
        room = room_of(path)
        seen = lines[path.resolve()]
        for node in ast.walk(ast.parse(path.read_text())):
            if is_statement(node):
                total[room] += 1
                reached[room] += node.lineno in seen
                raises[room] += node.lineno not in seen and isinstance(node, ast.Raise)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = [
                    inner for one in node.body for inner in ast.walk(one) if is_statement(inner)
                ]
                if body and not any(inner.lineno in seen for inner in body):
                    untouched[f"{path}:{node.lineno} {node.name}"] = len(body)
    print(f"{'room':<12}{'statements':>12}{'reached':>9}{'unreached':>11}{'of them raise':>15}")
    for room, number in [*total.most_common(), ("sum", sum(total.values()))]:
        hit = reached[room] if room != "sum" else sum(reached.values())
        raised = raises[room] if room != "sum" else sum(raises.values())
        print(f"{room:<12}{number:>12,}{hit:>9,}{number - hit:>11,}{raised:>15,}")
    print(f"\nFunctions of which nothing was reached: {len(untouched)}, the largest:")
    for name, number in untouched.most_common(largest):
        print(f"{number:>5} {name}")


def sources() -> Iterator[Path]:
    """Yield the files of the package; links inside it are read where they point."""
    for root in ("archgraph", "strategies"):
        for path in sorted(Path(root).rglob("*.py")):
            if root == "strategies" or not {"strategies", "specs"} & set(path.parts):
                yield path


def room_of(path: Path) -> str:
    """Return the folder of a file, as the table of rooms names it."""
    if path.parts[0] != "archgraph":
        return path.parts[0]
    return path.parts[1] if len(path.parts) > 2 else "top"


def is_statement(node: ast.AST) -> bool:
    """Return whether a node counts: a statement that is not a bare constant."""
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.stmt) and not constant


if __name__ == "__main__":
    main()
