"""Twenty networks cut or shortened, written, and loaded in a fresh process.

``python -m benchmarks.way_home``: by ``from_pretrained`` of transformers, by PEFT beside it (with
adapters of ranks 4 and 2), and by ``ag.load``. Largest difference of a result to that of the
network that was written, relative to its largest value. Two minutes, no download.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import archgraph as ag
import tests.conftest  # noqa: F401 - offline, and torchvision beside a CPU torch
from archgraph.capture.trace import Traced
from archgraph.tables import Table

AUTHORS = (
    "bert", "gpt2", "llama", "vit", "swin", "roberta", "distilbert", "mistral", "electra", "opt",
    "t5", "segformer",
)  # fmt: skip
ADAPTED = {
    "bert": ("*.query", "*.value"),
    "gpt2": ("*.c_attn", "*.mlp.c_fc"),
    "llama": ("*.q_proj", "*.down_proj"),
    "vit": ("*.q_proj", "classifier"),
}
OURS = ("resnet18", "mobilenet_v2", "densenet121", "efficientnet_b0")


def spread(state: Mapping[str, Tensor], more: str = "") -> dict[str, Tensor]:
    """Weights of natural scale: with fresh ones, a wrong number of heads would not show."""
    draw = torch.Generator().manual_seed(1)
    return {
        k: v + 0.2 * torch.randn(v.shape, generator=draw)
        if v.is_floating_point() and v.ndim > 1 and more in k
        else v
        for k, v in state.items()
    }


def tensors_of(result: Any) -> dict[str, Tensor]:
    """Return the tensors of a result by name."""
    items = dict(result) if isinstance(result, Mapping) else {"result": result}
    return {k: v.contiguous() for k, v in items.items() if isinstance(v, Tensor)}


def answer(root: Path) -> None:
    """Load all networks below a folder, each in its ways, and write what they compute."""
    import transformers

    for folder in sorted(root.iterdir()):
        inputs = safetensors.torch.load_file(folder / "inputs.safetensors")
        models: dict[str, Any] = {}
        if (folder / "author").is_dir():
            config = transformers.AutoConfig.from_pretrained(folder / "author")
            kind = getattr(transformers, config.architectures[0])
            models["from_pretrained"] = kind.from_pretrained(folder / "author")
            if (folder / "adapter").is_dir():
                from peft import PeftModel

                base = models.pop("from_pretrained")
                models["PEFT"] = PeftModel.from_pretrained(base, folder / "adapter")
        models["ag.load"] = ag.build(*ag.load(folder / "ours"))
        with torch.no_grad():
            for name, model in models.items():
                result = tensors_of(model.eval()(**inputs))
                safetensors.torch.save_file(result, folder / f"{name}.out")


def cut(graph: ag.ArchGraph) -> ag.Rewritten:
    """Halve the stream and the heads, and leave out the second block of a stage."""
    roles = ("channels", "heads")
    half = {a.name: 0.5 for a in ag.axes(graph).free if a.role in roles}
    small = ag.take(graph, half)
    stages = [s for s in ag.structure(small.graph).sections if s.kind == "stage"]
    blocks = [b.name for s in stages for b in s.blocks if b.removable]
    return small >> (lambda g: ag.skip(g, blocks[1]))


def written(root: Path) -> dict[str, dict[str, Tensor]]:
    """Write all networks; return what each computes."""
    from tests.zoo.collection import FAMILIES, entry

    results: dict[str, dict[str, Tensor]] = {}
    names = [*AUTHORS, *(f"{name}, adapters" for name in ADAPTED), *OURS]
    for name in names:
        key = name.partition(",")[0]
        net = FAMILIES[key]() if key not in OURS else entry(f"torchvision/{key}").make()
        graph, state = ag.trace(
            net.model.eval(), *net.args, train=False, verify=False, **net.kwargs
        )
        inputs = {
            **dict(zip((name for name, _ in graph.inputs), net.args, strict=False)), **net.kwargs
        }  # fmt: skip
        small = cut(graph) if key not in OURS else ag.take(graph, 0.5)
        weights = small.transfer.pull(spread(state) if key not in OURS else state)
        folder = root / name
        folder.mkdir()
        final = Traced(small.graph, weights)
        if key not in OURS:
            ag.to_transformers(small, weights, net.model, folder / "author")
        if name != key:
            wide, narrow = ADAPTED[key]
            adapted = ag.add_lora(small.graph, 4, wide, alpha=6) >> (
                lambda g, narrow=narrow: ag.add_lora(g, 2, narrow, alpha=5)
            )
            final = Traced(adapted.graph, spread(adapted.transfer.pull(weights), ".lora."))
            ag.to_peft(final.graph, final.state, folder / "adapter", base=str(folder / "author"))
        ag.save(final, folder / "ours")
        safetensors.torch.save_file(
            {k: v.contiguous() for k, v in inputs.items()}, folder / "inputs.safetensors"
        )
        with torch.no_grad():
            results[name] = tensors_of(ag.build(*final).eval()(**inputs))
    return results


def main() -> None:
    """Write, load elsewhere, compare, print."""
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        answer(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = written(Path(folder))
        subprocess.run([sys.executable, "-m", "benchmarks.way_home", folder], check=True)
        rows = []
        for name, expected in results.items():
            cells = []
            for way in ("from_pretrained", "PEFT", "ag.load"):
                file = Path(folder) / name / f"{way}.out"
                actual = safetensors.torch.load_file(file) if file.exists() else {}
                gaps = (
                    float((actual[k] - v).abs().max() / v.abs().max()) for k, v in expected.items()
                )
                cells.append(f"{max(gaps):.0e}".replace("0e+00", "0") if actual else "")
            rows.append((name, *cells))
    columns = ("network", "from_pretrained", "PEFT", "ag.load")
    print(Table("Largest relative difference in a fresh process", columns, tuple(rows)))


if __name__ == "__main__":
    main()
