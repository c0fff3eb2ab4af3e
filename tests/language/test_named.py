"""Classes of libraries by name: what may be named, which arguments, and what is answered."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import pydantic
import pytest
import torch

import archgraph as ag
from archgraph.fields import Base
from archgraph.language.named import ROLES, WRITTEN, LibraryClass, _classes, _unclear, library_class
from archgraph.language.yaml import parse_document


class Holder(Base):
    optimiser: Annotated[LibraryClass, library_class("optimiser"), WRITTEN] | None = None
    schedule: Annotated[LibraryClass, library_class("schedule"), WRITTEN] | None = None
    loss: Annotated[LibraryClass, library_class("loss"), WRITTEN] | None = None
    metric: Annotated[LibraryClass, library_class("metric", ("r2",)), WRITTEN] | None = None
    transform: Annotated[LibraryClass, library_class("transform"), WRITTEN] | None = None


def read(text: str) -> Holder:
    return parse_document(text, "e.yaml").validate(Holder)


def one_of(holder: Holder) -> LibraryClass:
    (one,) = (value for _, value in holder if value is not None)
    assert isinstance(one, LibraryClass)
    return one


@pytest.mark.parametrize(
    ("role", "count", "some"),
    [
        ("optimiser", 13, {"SGD", "AdamW", "Muon"}),
        ("schedule", 12, {"MultiStepLR", "OneCycleLR", "SequentialLR"}),
        ("loss", 14, {"CrossEntropyLoss", "HuberLoss"}),
        ("metric", 100, {"MulticlassF1Score", "SpearmanCorrCoef", "MeanIoU"}),
        ("transform", 49, {"RandomCrop", "ColorJitter", "RandomErasing", "Resize"}),
    ],
)
def test_what_may_be_named(role: Any, count: int, some: set[str]) -> None:
    """At least so many; each is a class of a listed module, with arguments that a file can hold."""
    names = {
        name
        for name in _classes(role)
        if name not in ROLES[role].refused and _unclear(role, name) is None
    }
    assert len(names) >= count and some <= names
    assert {_classes(role)[name] for name in names} <= set(ROLES[role].modules)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("optimiser: SGD", {"SGD": {}}),
        ("optimiser: torch.optim.SGD", {"SGD": {}}),
        ("optimiser: {Adam: {betas: [0.8, 0.9]}}", {"Adam": {"betas": (0.8, 0.9)}}),
        (
            "schedule: {MultiStepLR: {milestones: [$rounds // 2]}}",
            {"MultiStepLR": {"milestones": ("$rounds // 2",)}},
        ),
        ("transform: {RandomCrop: {size: [8, 8], padding: 1}}", None),
        ("loss: {CrossEntropyLoss: {weight: [1, 2.5]}}", None),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, made: dict[str, Any] | None) -> None:
    holder = read(text)
    one = one_of(holder)
    assert made is None or one.plain() == made
    again = Holder.model_validate(holder.model_dump(mode="json"))
    assert again == holder and hash(one) == hash(getattr(again, one.role))


def test_arguments_are_what_the_class_gets() -> None:
    crop = one_of(read("transform: {RandomCrop: {size: [8, 9], padding: 1}}")).make()
    assert (tuple(crop.size), crop.padding) == ((8, 9), [1, 1, 1, 1])
    loss = one_of(read("loss: {CrossEntropyLoss: {weight: [1, 2.5]}}")).make({"reduction": "sum"})
    assert loss.weight.tolist() == [1.0, 2.5] and loss.reduction == "sum"
    # Arithmetic without rounds counts nothing: it may be 0.
    blank = {"params": [torch.zeros(1, requires_grad=True)]}
    steps = one_of(read("optimiser: {SGD: {momentum: 1 - 1}}")).make(blank)
    assert steps.param_groups[0]["momentum"] == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "optimiser: {SGD: {lr: fast}}",
            "e.yaml:1: optimiser.SGD.lr: has a wrong value; found 'fast'; expected a number",
        ),
        ("optimiser: {Adam: {betas: [0.9]}}", "Adam.betas: has too few entries; found [0.9]"),
        ("optimiser: {SGD: {lr: true}}", "optimiser.SGD.lr: has a wrong value; found True"),
        ("optimiser: {SGD: {momentun: 0.9}}", "momentun: is an unknown key; found 'momentun'; "),
        ("optimiser: {SGD: {momentun: 0.9}}", "nesterov; did you mean 'momentum'?"),
        # Computed otherwise, or given by the run: not a file's.
        ("optimiser: {SGD: {foreach: true}}", "SGD.foreach: is an unknown key; found 'foreach'"),
        ("optimiser: {SGD: {params: []}}", "SGD.params: is an unknown key; found 'params'"),
        ("optimiser: Adm", "is an unknown optimiser; found 'Adm'; expected one of ASGD, Adadelta"),
        ("optimiser: Adm", "SGD; did you mean Adam?"),
        ("optimiser: Optimizer", "is an unknown optimiser; found 'Optimizer'"),
        ("optimiser: _multi_tensor", "is an unknown optimiser; found '_multi_tensor'"),
        ("optimiser: torch.optim.lr_scheduler.StepLR", "is outside the modules that may be named"),
        ("optimiser: torch.hub.load", "found 'torch.hub.load'; expected one of torch.optim"),
        ("optimiser: antigravity.Fly", "is outside the modules that may be named here"),
        ("optimiser: SparseAdam", "cannot be the optimiser; found 'SparseAdam'; it takes sparse"),
        ("optimiser: [SGD]", "must name exactly one optimiser; found ['SGD']; expected a class"),
        ("optimiser: {SGD: 0.1}", "must name exactly one optimiser; found SGD; expected a class"),
        (
            "schedule: {SequentialLR: {schedulers: [{StepLR: {step: 3}}], milestones: [1]}}",
            "schedule.SequentialLR.schedulers[0].StepLR.step: is an unknown key; found 'step'",
        ),
        ("schedule: {StepLR: {step_size: 7 // 0}}", "step_size: divides by zero; found '7 // 0'"),
        ("schedule: {StepLR: {step_size: $epochs}}", "names an unknown parameter; found '$epochs'"),
        # Nothing but a schedule is told of rounds and steps.
        ("optimiser: {SGD: {lr: $rounds}}", "names an unknown parameter; found '$rounds'"),
        ("loss: {HuberLoss: {delta: $steps // 2}}", "an unknown parameter; found '$steps'"),
        ("loss: NLLLoss", "cannot be the loss; found 'NLLLoss'; it takes log-probabilities, and"),
        ("loss: SoftMarginLoss", "its targets are 1 and -1, and labels are 0 and 1"),
        ("loss: TripletMarginWithDistanceLoss", "its argument `distance_function` is a function"),
        ("transform: Lambda", "cannot be the transform: its argument `lambd` is a function"),
        (
            "transform: {Normalize: {mean: [0.5], std: [0.2]}}",
            "cannot be the transform; found 'Normalize'; images are normalised after",
        ),
        ("transform: ToDtype", "its argument `dtype` does not take plain values"),
        ("metric: f2", "is an unknown metric; found 'f2'; expected one of r2, BinaryAUROC"),
        ("metric: auroc", "did you mean BinaryAUROC or MulticlassAUROC or MultilabelAUROC?"),
        ("metric: F1Score", "its argument `task` has no type; found 'F1Score'"),
        # Its weights are downloaded and unpickled.
        ("metric: torchmetrics.image.fid.FrechetInceptionDistance", "is outside the modules"),
        ("metric: {MulticlassF1Score: {average: makro}}", "did you mean 'macro'?"),
    ],
)
def test_mistakes_are_answered(text: str, said: str) -> None:
    with pytest.raises(ag.SpecError, match=re.escape(said)) as caught:
        read(text)
    assert str(caught.value).startswith("e.yaml:1: ")


def test_nothing_outside_the_list_is_imported() -> None:
    before = set(sys.modules)
    for name in ("this.s", "antigravity.Fly", "idlelib.idle.main", "torch.optim.antigravity.Fly"):
        with pytest.raises(ag.SpecError):
            read(f"optimiser: {name}")
    assert not {"this", "antigravity", "idlelib"} & (set(sys.modules) - before)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _classes.cache_clear()
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    expected = "e.yaml:1: transform: needs torchvision, which is not installed"
    with pytest.raises(ag.SpecError, match=re.escape(expected)) as caught:
        read("transform: RandomHorizontalFlip")
    assert str(caught.value).endswith("; pip install torchvision")
    _classes.cache_clear()


def test_a_class_has_one_set_of_arguments() -> None:
    """As Python has it: a value of the type, not of a text that looks like it."""
    assert read("optimiser: SGD").optimiser == LibraryClass("optimiser", "torch.optim.SGD")
    with pytest.raises(pydantic.ValidationError):
        Holder(optimiser=LibraryClass)  # type: ignore[arg-type]
