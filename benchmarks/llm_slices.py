"""Slices of a language model: perplexity after cuts by importance, and after recovery by LoRA.

A small Llama is trained on the first words of WikiText-2 and written as a folder of transformers.
It is cut from folder to folder: without its least influential blocks, and with half of the channels
within blocks, those that matter most or the first ones. Two clients then train low-rank adapters of
the cut network (FedIT). Eight minutes on a core.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import archgraph as ag
import tests.conftest  # noqa: F401 - torchvision beside a CPU torch
from archgraph.tables import Table

CHARACTERS, LENGTH, WORDS, LAYERS = 700_000, 64, 2048, 8
INPUTS = {"input_ids": {"shape": [LENGTH], "dtype": "int64"}}
LOCAL = {"batch": 32, "optimiser": {"Adam": {"lr": 0.003}}}
Batch = tuple[Tensor, Tensor]


def trained(data: dict[str, Any], root: Path) -> tuple[Any, Path]:
    """Train the model with archgraph and write it as a folder."""
    config = {
        "vocab_size": WORDS, "hidden_size": 96, "intermediate_size": 256,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    model = {
        "python": "transformers:LlamaForCausalLM",
        "args": {"config": {"python": "transformers:LlamaConfig", "args": config}},
        "inputs": INPUTS,
    }
    run = ag.run(
        {
            "archgraph": 1, "name": "whole", "data": data, "rounds": 1, "task": "next_token",
            "family": {"model": model, "clients": [{"name": "one", "count": 1}]},
            "strategy": {"fedavg": {}}, "local": {**LOCAL, "epochs": EPOCHS},
        },
        out=root / "whole", python=True, progress=False,
    )  # fmt: skip
    graph, state = ag.load(f"{root / 'whole'}:global", python=True)
    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    net.load_state_dict(ag.state_dict(graph, state))
    net.save_pretrained(root / "llama", max_shard_size="500KB")
    return run, root / "llama"


EPOCHS = 6


def batches(examples: Any, size: int = 32) -> list[Batch]:
    """Return the examples in batches."""
    inputs, targets = examples.batch(range(len(examples.targets)))
    return list(zip(inputs.split(size), targets.split(size), strict=True))


@torch.no_grad()
def perplexity(folder: Path, test: list[Batch]) -> float:
    """Return the perplexity of a folder's model, loaded by transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total = count = 0.0
    for words, following in test:
        scores = model(input_ids=words).logits
        total += float(F.cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="sum"))
        count += following.numel()
    return float(torch.tensor(total / count).exp())


def recovered(data: dict[str, Any], folder: Path, out: Path) -> float:
    """Train adapters of a folder's model by FedIT; returns the perplexity."""
    model = {"transformers": str(folder), "task": "causal_lm", "inputs": INPUTS}
    run = ag.run(
        {
            "archgraph": 1, "name": "recovery", "data": data, "rounds": 2, "task": "next_token",
            "family": {
                "model": model, "change": {"add_lora": 8},
                "clients": [{"name": "clients", "count": 2}],
            },
            "strategy": {"fedit": {}}, "local": {**LOCAL, "epochs": 1},
        },
        out=out, python=True, progress=False,
    )  # fmt: skip
    return float(run.evaluation["global"]["perplexity"])


def main() -> None:
    """Print a row for each slice."""
    source = Path(sys.argv[1]) / "wikitext-2" / "wiki.train.tokens"
    torch.manual_seed(0)
    with TemporaryDirectory() as at:
        root = Path(at)
        (root / "words.txt").write_text(source.read_text("utf-8")[:CHARACTERS], "utf-8")
        data = {
            "text": str(root / "words.txt"),
            "by": "word",
            "bptt": LENGTH,
            "vocabulary": WORDS + 1,
        }
        run, folder = trained(data, root)
        train, test = batches(run.experiment.data.train), batches(run.experiment.data.test)
        graph, state = ag.from_transformers(folder, input_ids=train[0][0][:2])
        some = list(islice(train, 8))
        scores = ag.importance(graph, dict(state), some, "activations")
        influence = sorted(scores.blocks, key=scores.blocks.__getitem__)
        print({name: round(scores.blocks[name], 4) for name in influence}, flush=True)
        inner = [a for a in ag.axes(graph).free if "gate_proj" in a.name]
        best = {a.name: scores.best(a.name, a.size // 2) for a in inner}
        cuts = {
            "least influential block left out": ag.skip(graph, influence[:1]),
            "two least influential left out": ag.skip(graph, influence[:2]),
            "two most influential left out": ag.skip(graph, influence[-2:]),
            "half of the inner channels, the best": ag.take(graph, positions=best),
            "half of the inner channels, the first": ag.take(graph, {a.name: 0.5 for a in inner}),
            "up-scaled, 12 of 8 layers": ag.graft(
                graph, {"model.layers": [*range(6), *range(2, LAYERS)]}
            ),
        }
        rows = [("whole", str(ag.cost(graph).parameters), f"{perplexity(folder, test):.1f}", "")]
        for number, (name, cut) in enumerate(cuts.items()):
            target = root / f"cut{number}"
            ag.to_transformers(cut, state.through(cut.transfer), folder, target)
            after = perplexity(target, test)
            again = recovered(data, target, root / f"run{number}")
            size = str(ag.cost(cut.graph).parameters)
            rows.append((name, size, f"{after:.1f}", f"{again:.1f}"))
            print(rows[-1], flush=True)
        head = ("slice", "parameters", "perplexity", "after LoRA")
        print(Table("Slices of a small Llama", head, tuple(rows), frozenset({1, 2, 3})))


if __name__ == "__main__":
    main()
