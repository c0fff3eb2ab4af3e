"""Memory of a training step: what ``ag.cost`` says beside what PyTorch allocates on a CPU.

The allocator's events are summed over a step, the second one, so that the optimiser's state is
there; weights, buffers, the batch and that state, which were there before, are added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import archgraph as ag
import tests.conftest  # noqa: F401 - torchvision beside a CPU torch
from archgraph.tables import Table

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3),
}


@dataclass(frozen=True)
class Case:
    """A network and a batch.

    Attributes:
        name: What it is called.
        model: The network, a classifier.
        batch: Its inputs.
    """

    name: str
    model: nn.Module
    batch: Tensor


class Tagger(nn.Module):
    """Words, an LSTM of two layers, and a class for a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of classes."""
        scores: Tensor = self.head(self.lstm(self.words(x))[0][:, -1])
        return scores


def cases(size: int = 32) -> Iterator[Case]:
    """Yield networks, with batches of a size."""
    import torchvision
    import transformers

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)]
    small, large = torch.rand(size, 3, 32, 32), torch.rand(size, 3, 64, 64)
    yield Case("CNN", nn.Sequential(*block(3, 16), *block(16, 32), *head), small)
    vision = torchvision.models
    yield Case("ResNet-18", vision.resnet18(num_classes=10), large)
    yield Case("MobileNetV2", vision.mobilenet_v2(num_classes=10), large)
    yield Case("ConvNeXt-T", vision.convnext_tiny(num_classes=10), large)
    vit = vision.VisionTransformer(32, 4, 4, 4, 192, 384, num_classes=10)
    yield Case("ViT", vit, small)
    config = transformers.BertConfig(
        vocab_size=5000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    words = torch.randint(0, 1000, (size, 64))
    yield Case("BERT, 4 layers", transformers.BertForSequenceClassification(config), words)
    yield Case("LSTM", Tagger(), words)


def allocated(model: nn.Module, batch: Tensor, optimizer: str) -> int:
    """Return the most bytes that a training step has allocated at once."""
    steps = OPTIMIZERS[optimizer](model.train().parameters())
    labels = torch.zeros(len(batch), dtype=torch.int64)

    def step() -> None:
        outputs = model(batch)
        scores = outputs if isinstance(outputs, Tensor) else next(iter(outputs.values()))
        loss = F.cross_entropy(scores, labels)
        steps.zero_grad()
        loss.backward()
        steps.step()

    step()
    steps.zero_grad()
    state = [v for of in steps.state.values() for v in of.values() if isinstance(v, Tensor)]
    before = [*model.parameters(), *model.buffers(), *state, batch]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in before}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = highest = sum(storages.values())
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest


def rows(names: list[str], size: int = 32) -> Iterator[tuple[str, str, int, int]]:
    """Yield networks and optimisers, bytes allocated and bytes that the cost says."""
    for case in cases(size):
        if names and case.name not in names:
            continue
        graph = ag.trace(case.model, case.batch).graph
        half = ag.take(graph, 0.5).graph
        for label, part in ((case.name, graph), (f"{case.name}, half of each axis", half)):
            for optimizer in OPTIMIZERS:
                stated = ag.cost(part).training(size, optimizer).total
                yield label, optimizer, allocated(ag.build(part), case.batch, optimizer), stated


def main() -> None:
    """Print a row per network and optimiser."""
    lines = []
    for label, optimizer, found, stated in rows(sys.argv[1:]):
        figures = f"{found / 1e6:.1f}", f"{stated / 1e6:.1f}", f"{stated / found - 1:+.1%}"
        lines.append((label, optimizer, *figures))
    head = ("network", "optimiser", "allocated, MB", "cost says, MB", "difference")
    title = "Memory of a training step, batches of 32"
    print(Table(title, head, tuple(lines), frozenset({2, 3, 4})))


if __name__ == "__main__":
    main()
