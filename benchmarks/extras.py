"""Install the wheel with each extra alone, and run the feature that needs it.

``python -m benchmarks.extras``: builds the wheel, installs it in an empty environment with the
versions of ``constraints.txt`` (needs the package index), and each extra in an environment on top
of that one. Prints a table: packages and size that an extra adds, and whether its feature runs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from archgraph.tables import Table

ROOT = Path(__file__).parents[1]
TRACED = """import torch, archgraph as ag
from archgraph.demo.network import Network
graph, state = ag.trace(Network(), torch.zeros(2, 1, 8, 8))
"""
RUN = """import archgraph as ag
family = {"model": {"python": "archgraph.demo.network:Network", "inputs": {"image": [1, 8, 8]}},
          "clients": [{"name": "all", "count": 2}]}
ag.run({"archgraph": 1, "name": "x", "family": family, "data": {"dataset": "digits"}, "rounds": 1,
        "strategy": {"fedavg": {}}, "local": {"batch": 32, "lr": 0.05}, **MORE}, out="run",
       progress=False, python=True)
"""
README = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
FEATURES = {
    "": {
        "the README's code": README[1] if README else "",
        "ag.view": f"{TRACED}ag.view(graph, 'net.html')",
        "archgraph demo": """import sys
from archgraph.cli import main
sys.argv[1:] = ["demo"]
main()
""",
        "ag.run": RUN.replace("MORE", "{}"),
    },
    "hypernet": {
        "a network's weights from its graph": f"""{TRACED}from archgraph import hypernet
hypernet.GraphHypernetwork.for_graphs([graph])
""",
    },
    "hf": {
        "ag.to_transformers": """import archgraph as ag, torch, transformers as t
model = t.BertModel(t.BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2))
graph, state = ag.trace(model, input_ids=torch.ones(2, 8, dtype=torch.int64))
ag.to_transformers(graph, state, model, "written")
""",
    },
    "data": {
        "Parquet, a tokenizer": """import pandas, tokenizers
from archgraph.data.doors import read_data
from archgraph.language.data import TableData
pandas.DataFrame({"a": range(8), "y": [0, 1] * 4}).to_parquet("t.parquet")
assert len(read_data(TableData(table="t.parquet", target="y", test=0.5)).train)
""",
    },
    "metrics": {
        "a metric of torchmetrics": RUN.replace(
            "MORE", "{'task': {'kind': 'classification', 'metrics': ['MulticlassRecall']}}"
        ),
    },
    "tensorboard": {
        "trackers: [tensorboard]": RUN.replace("MORE", "{'trackers': ['tensorboard']}"),
    },
    "onnx": {"ag.export, ag.load": f"{TRACED}ag.export(graph, state, 'n.onnx'); ag.load('n.onnx')"},
    "flower": {"engine: flower": RUN.replace("MORE", "{'engine': 'flower'}")},
    "stats": {"ag.match": f"{TRACED}ag.match(graph, state, state)"},
    "privacy": {
        "privacy: ε is computed": RUN.replace(
            "MORE",
            "{'privacy': {'clip': 1.0, 'noise': 1.0, 'delta': 0.01},"
            " 'strategy': {'fedavg': {'weights': 'uniform', 'norm': 'static'}}}",
        ),
    },
}


def environment(folder: Path, requirement: str, below: Path | None = None) -> Path:
    """Make an environment with a requirement, on top of another; return its packages' folder."""
    venv.create(folder, with_pip=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    if below:
        (packages / "below.pth").write_text(f"{below}\n")
    command: list[str | Path] = [folder / "bin/python", "-m", "pip", "-q", "install", requirement]
    subprocess.run([*command, "-c", ROOT / "constraints.txt"], check=True)
    return packages


def main() -> None:
    """Print a row for each feature."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert FEATURES.keys() == project["optional-dependencies"].keys() - {"docs", "dev"} | {""}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", scratch, str(ROOT)]
        subprocess.run(build, check=True, capture_output=True)
        (wheel,) = Path(scratch).glob("*.whl")
        base = None
        for extra, features in FEATURES.items():
            home = Path(scratch, f"with-{extra}")
            packages = environment(home, f"{wheel}[{extra}]" if extra else str(wheel), base)
            base = base or packages
            size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file()) / 1e6
            for feature, code in features.items():
                done = subprocess.run(
                    [home / "bin/python", "-c", code], cwd=home, capture_output=True, text=True
                )
                said = done.stderr.strip().rpartition("\n")[2]
                result = "runs" if done.returncode == 0 else said
                count = len([*packages.glob("*.dist-info")])
                rows.append((extra or "none", feature, f"{count}", f"{size:,.0f}", result))
                print(*rows[-1], file=sys.stderr, flush=True)
    columns = ("extra", "feature", "packages", "MB", "result")
    print(Table("Features by extra", columns, tuple(rows), frozenset({2, 3})))


if __name__ == "__main__":
    main()
