"""Targets as people have them: each form means what its owner means by it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

import archgraph as ag
from archgraph.data import dataset_of
from archgraph.engine import Run
from archgraph.engine.task import learning_task
from archgraph.errors import DataError
from archgraph.federation.learning import TASKS
from archgraph.language.task import TaskSpec

N = 24
INPUTS = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
TRUE = torch.arange(N) % 2 == 0
ONE = torch.arange(N) % 3
HOT = nn.functional.one_hot(ONE, 3)
WORDS = ["yes" if flag else "no" for flag in TRUE.tolist()]
FLAGS = ("False", "True")
MAPS = torch.arange(N * 4).view(N, 1, 2, 2) % 3


class Items(TorchDataset[Any]):
    """Items with targets that a function of the position gives."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __len__(self) -> int:
        return N

    def __getitem__(self, position: int) -> Any:
        return INPUTS[position], self.target(position)


class Form(NamedTuple):
    """Targets, the task that is said, what they mean, and the names of their classes."""

    targets: Any
    meant: torch.Tensor
    labels: tuple[str, ...] = ()
    task: str | None = "classification"


FORMS = {
    # -- one yes or no for each example
    "bool": Form(TRUE, TRUE.long(), FLAGS),
    "int": Form(TRUE.long(), TRUE.long()),
    "bytes": Form(TRUE.to(torch.uint8), TRUE.long()),
    "numpy": Form(TRUE.numpy(), TRUE.long(), FLAGS),
    "list of bool": Form(TRUE.tolist(), TRUE.long(), FLAGS),
    "list of np.bool_": Form([np.bool_(flag) for flag in TRUE.tolist()], TRUE.long(), FLAGS),
    "list of tensors": Form(list(TRUE), TRUE.long(), FLAGS),
    "words": Form(WORDS, TRUE.long(), ("no", "yes")),
    "pandas bool": Form(pd.Series(TRUE.numpy()), TRUE.long(), FLAGS),
    "pandas boolean": Form(pd.Series(TRUE.numpy(), dtype="boolean"), TRUE.long(), FLAGS),
    "pandas object": Form(pd.Series(TRUE.tolist(), dtype=object), TRUE.long(), FLAGS),
    "pandas category": Form(pd.Series(WORDS, dtype="category"), TRUE.long(), ("no", "yes")),
    "items bool": Form(Items(lambda i: bool(TRUE[i])), TRUE.long(), FLAGS),
    "items np.bool_": Form(Items(lambda i: np.bool_(TRUE[i].item())), TRUE.long(), FLAGS),
    "items words": Form(Items(lambda i: WORDS[i]), TRUE.long(), ("no", "yes")),
    "float, said to be classes": Form(TRUE.float(), TRUE.long()),
    "float, said to be a label": Form(TRUE.float(), TRUE[:, None], (), "multilabel"),
    "float, said to be numbers": Form(TRUE.float(), TRUE.float(), (), "regression"),
    "bool, said to be a label": Form(TRUE, TRUE[:, None], (), "multilabel"),
    # -- an axis that stands for nothing
    "classes [N, 1]": Form(ONE[:, None], ONE),
    "words [N, 1]": Form(np.array(WORDS)[:, None], TRUE.long(), ("no", "yes")),
    "a column of a table": Form(pd.DataFrame({"y": ONE.numpy()}), ONE),
    "items [1]": Form(Items(lambda i: ONE[i : i + 1]), ONE),
    "a label [N, 1]": Form(TRUE[:, None], TRUE[:, None], (), "multilabel"),
    "maps [N, 1, H, W]": Form(MAPS, MAPS[:, 0], (), "segmentation"),
    "a mask of pixels": Form(MAPS[:, 0] > 0, (MAPS[:, 0] > 0).long(), FLAGS, "segmentation"),
    # -- several labels
    "one-hot, said to be labels": Form(HOT, HOT.bool(), (), "multilabel"),
    "labels as int, said": Form(1 - HOT, HOT == 0, (), "multilabel"),
    # -- other containers and types
    "sparse": Form(HOT.float().to_sparse(), HOT.bool(), (), "multilabel"),
    "scipy": Form(scipy.sparse.csr_matrix(HOT.numpy()), HOT.bool(), (), "multilabel"),
    "a mask that hides nothing": Form(np.ma.masked_array(ONE.numpy()), ONE),
    "the other byte order": Form(ONE.numpy().astype(">i8"), ONE),
    "bytes of text": Form(np.array([word.encode() for word in WORDS]), TRUE.long(), ("no", "yes")),
    "numbers as words": Form([str(9 + n) for n in ONE.tolist()], ONE, ("9", "10", "11")),
    "counts, said to be numbers": Form(ONE, ONE.float(), (), "regression"),
    "floats, said to be classes": Form(ONE.float(), ONE),
}


WHOLE = {
    "int", "bytes", "classes [N, 1]", "a column of a table", "items [1]",
    "a mask that hides nothing", "the other byte order", "counts, said to be numbers",
}  # fmt: skip


@pytest.mark.parametrize("about", FORMS)
def test_targets_mean_what_their_owner_means(about: str) -> None:
    form = FORMS[about]
    part = form.targets if isinstance(form.targets, Items) else (INPUTS, form.targets)
    data = dataset_of((part, part), task=form.task)
    for split in (data.train, data.test):
        assert split.targets.dtype == form.meant.dtype and torch.equal(split.targets, form.meant)
    if form.labels:
        assert data.labels == form.labels
    assert not data.notes


@pytest.mark.parametrize("about", FORMS)
def test_without_a_task_whole_numbers_are_classes_and_all_else_asks(about: str) -> None:
    form = FORMS[about]
    part = form.targets if isinstance(form.targets, Items) else (INPUTS, form.targets)
    if about in WHOLE:
        targets = dataset_of((part, part)).train.targets
        assert targets.dtype == torch.int64 and torch.equal(targets, form.meant.long())
        return
    with pytest.raises(ag.DataError, match="could have several meanings") as caught:
        dataset_of((part, part))
    assert f"task: {form.task}" in str(caught.value)


def test_what_a_target_means_is_found_in_all_parts_together() -> None:
    """Names that one client lacks are numbered as all others' are."""
    train = {"a": (INPUTS[:4], ["dog"] * 4), "b": (INPUTS[:4], ["cat", "emu"] * 2)}
    data = dataset_of((train, (INPUTS[:2], ["emu", "cat"])), task="classification")
    assert data.labels == ("cat", "dog", "emu") and data.test.targets.tolist() == [2, 0]
    assert data.train.targets.tolist() == [1] * 4 + [0, 2] * 2
    several = {"a": (INPUTS[:2], HOT[:2]), "b": (INPUTS[:2], 1 - HOT[:2])}
    assert dataset_of((several, (INPUTS[:2], HOT[:2])), task="multilabel").classes == 3
    with pytest.raises(ag.RunError, match="classification cannot learn these targets"):
        data = dataset_of((several, (INPUTS[:2], HOT[:2])), task="classification")
        learning_task(TaskSpec(kind="classification"), data)


def spec(model: nn.Module, example: torch.Tensor, **more: Any) -> dict[str, Any]:
    return {
        "name": "forms",
        "family": {"model": ag.trace(model, example), "clients": [{"name": "all", "count": 2}]},
        "strategy": {"fedavg": {}},
        "rounds": 2,
        "local": {"batch": 8, "lr": 0.1},
        **more,
    }


@pytest.mark.parametrize("squeeze", [False, True], ids=["[batch, 1]", "[batch]"])
def test_one_logit_of_two_classes_is_trained_by_binary_cross_entropy(squeeze: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 1), *([nn.Flatten(0)] if squeeze else []))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    one = {"name": "all", "count": 1}
    told = spec(model, INPUTS[:2], rounds=1, local={"batch": N, "lr": 0.1}, task="classification")
    told["family"]["clients"] = [one]
    run = ag.run(told, data=((INPUTS, TRUE), (INPUTS, TRUE)), progress=False)
    model.load_state_dict(start)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.binary_cross_entropy_with_logits
    loss(model(INPUTS).flatten(), TRUE.float()).backward()
    optimiser.step()
    trained = next(m.state for m in run.models if m.name == "global")
    torch.testing.assert_close(trained, model.state_dict(), atol=1e-6, rtol=0)
    figures = run.rounds[-1]["evaluation"]["models"]["global"]
    said = model(INPUTS).flatten()
    assert figures["accuracy"] == float(((said > 0) == TRUE).double().mean())
    assert figures["loss"] == pytest.approx(loss(said, TRUE.float()).item(), abs=1e-6)


def test_one_logit_says_the_same_of_either_class() -> None:
    import dataclasses

    for name, axes, shape in (("classification", 1, (5, 1)), ("segmentation", 3, (5, 1, 2, 2))):
        task = dataclasses.replace(TASKS[name], one_logit=axes)
        z = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        said = task.predictions(z)
        torch.testing.assert_close(said.softmax(-1)[..., 1], z.sigmoid().squeeze(1))
        assert torch.equal(said, task.predictions(z.squeeze(1)))
        assert torch.equal(task.predictions(-z), said.flip(-1))


# -- several things, padded to one tensor


def boxes(position: int) -> torch.Tensor:
    """Return up to three boxes with their labels, padded by -1: ``[3, 5]``."""
    generator = torch.Generator().manual_seed(position)
    count = position % 4
    target = torch.full((3, 5), -1.0)
    target[:count, :4] = torch.rand(count, 4, generator=generator)
    target[:count, 4] = torch.randint(0, 3, (count,), generator=generator).float()
    return target


class Detector(nn.Module):
    """Four boxes, and the logits of three classes for each."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.at, self.of = nn.Linear(6, 8), nn.Linear(8, 16), nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.body(x).relu()
        return {"boxes": self.at(h).view(-1, 4, 4), "logits": self.of(h).view(-1, 4, 3)}


def detection(outputs: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """Return a loss for each example: the first boxes are the true ones."""
    losses = []
    for at, of, target in zip(outputs["boxes"], outputs["logits"], targets, strict=True):
        true = target[target[:, 4] >= 0]
        loss, count = (at[: len(true)] - true[:, :4]).abs().sum(), len(true)
        losses.append(
            loss + nn.functional.cross_entropy(of[:count], true[:, 4].long(), reduction="sum")
        )
    return torch.stack(losses)


HERE = f"python:{__name__}"
ARE_BOXES = (Items(boxes), Items(lambda i: boxes(i + 100)))


def detected(**more: Any) -> Run:
    torch.manual_seed(0)
    task = {"objective": f"{HERE}:detection"}
    told = spec(Detector(), INPUTS[:2], task=task, **more)
    return ag.run(told, data=ARE_BOXES, progress=False, python=True)


def test_boxes_and_labels_are_learned_by_an_objective_of_ones_own() -> None:
    run = detected()
    model = ag.build(*next((m.graph, m.state) for m in run.models if m.name == "global")).eval()
    expected = detection(model(INPUTS), torch.stack([boxes(i + 100) for i in range(N)]))
    losses = [line["evaluation"]["models"]["global"]["loss"] for line in run.rounds]
    assert losses[-1] == pytest.approx(expected.mean().item(), rel=1e-5) and losses[1] < losses[0]
    # The same bits in processes.
    assert detected(engine={"workers": 2}).rounds[-1]["evaluation"] == run.rounds[-1]["evaluation"]


@pytest.mark.parametrize("form", ["items", "rows", "columns"])
def test_dictionaries_are_refused_with_what_to_do_instead(form: str) -> None:
    rows = [{"at": INPUTS[i, :2], "of": ONE[i]} for i in range(N)]
    columns = {"at": INPUTS[:, :2], "of": ONE}
    part = {"items": Items(lambda i: rows[i]), "rows": (INPUTS, rows), "columns": (INPUTS, columns)}
    with pytest.raises(
        DataError, match=r"is a dictionary; found at, of; .* combine its tensors into one"
    ):
        dataset_of((part[form], part[form]))


def several_outputs(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[0] - outputs[1].mean(1, keepdim=True) - targets).square().mean()


def test_an_objective_without_a_kind_gets_all_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 1), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(x)

    told = spec(Two(), INPUTS[:2], task={"objective": f"{HERE}:several_outputs"})
    data = INPUTS, INPUTS[:, :1]
    assert ag.run(told, data=(data, data), progress=False, python=True).sound
