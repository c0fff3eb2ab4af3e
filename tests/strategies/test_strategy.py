"""Laws of the shared types: objectives, local training, server states, lookup and options."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import archgraph as ag
from archgraph.federation import (
    Examples,
    LocalOptions,
    Logits,
    Model,
    NormPolicy,
    Objective,
    Outcome,
    ServerState,
    Task,
    TaskLoss,
    Train,
    Work,
    configure,
    descend,
    mask_absent,
    module_of,
    part,
    seeded,
)

# ---------------------------------------------------------------- randomness, states, options


@given(st.integers(0, 2**31), st.integers(0, 99), st.integers(0, 99))
def test_seeded_draws_depend_on_labels_alone(seed: int, a: int, b: int):
    first = seeded(seed, "x", a)
    torch.rand(3, generator=seeded(seed, "y", a))
    assert torch.equal(
        torch.rand(4, generator=first), torch.rand(4, generator=seeded(seed, "x", a))
    )
    differ = not torch.equal(
        torch.rand(4, generator=seeded(seed, "x", a)), torch.rand(4, generator=seeded(seed, "x", b))
    )
    assert differ == (a != b)


def test_labels_do_not_run_together():
    a, b = seeded(1, "ab", "c"), seeded(1, "a", "bc")
    assert not torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))


def test_with_group_replaces_the_whole_group_and_nothing_else():
    old = ServerState({"a/x": torch.ones(1), "ab/x": torch.ones(2)}, {"k": 1})
    new = old.with_group("a", {"y": torch.zeros(3)})
    assert {k: len(v) for k, v in new.tensors.items()} == {"ab/x": 2, "a/y": 3}
    assert new.values == {"k": 1}
    assert old.group("a").keys() == {"x"}


# ---------------------------------------------------------------- objectives


def examples(targets: Tensor) -> Examples:
    return Examples((), targets, torch.arange(len(targets)))


def holder(lab: Any, histogram: tuple[int, ...]) -> Work:
    labels = [k for k, n in enumerate(histogram) if n]
    task = Task(0, lab.graph, lab.state, Train())
    return lab.work_of(task, lab.toy(0, labels=labels))


def test_masked_cross_entropy_closed_form(tiny):
    """Absent logits count as 0 in the sum and receive no gradient."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]], requires_grad=True)
    work = holder(tiny, (1, 0, 1, 0, 0))
    loss = TaskLoss(mask_absent=True)(logits, examples(torch.tensor([2])), work)
    expected = math.log(math.e**1 + math.e**3 + 3) - 3
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, [1, 3, 4]].tolist() == [0, 0, 0]
    assert gradient[0, 0] > 0 > gradient[0, 2]


def test_masking_nothing_is_plain_cross_entropy(tiny):
    logits, targets = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    work = holder(tiny, (1, 1, 1, 1, 1))
    plain = TaskLoss()(logits, examples(targets), work)
    assert torch.equal(TaskLoss(mask_absent=True)(logits, examples(targets), work), plain)
    assert torch.equal(nn.functional.cross_entropy(logits, targets), plain)


def test_mask_of_another_number_of_classes_is_refused():
    with pytest.raises(ag.RunError, match="3 logits for 2 classes"):
        mask_absent(torch.zeros(1, 3), torch.tensor([True, False]))


@pytest.mark.parametrize(
    ("output", "outputs", "found"),
    [
        (None, torch.tensor(1.0), 1.0),
        (None, {"logits": torch.tensor(2.0), "x": torch.tensor(0.0)}, 2.0),
        (None, {"only": torch.tensor(3.0)}, 3.0),
        ("x", {"logits": torch.tensor(0.0), "x": torch.tensor(4.0)}, 4.0),
        (None, (torch.tensor(5.0),), 5.0),
        (1, (torch.tensor(0.0), torch.tensor(6.0)), 6.0),
        ("main", {"main": {"logits": torch.tensor(7.0)}, "exit": torch.tensor(0.0)}, 7.0),
    ],
)
def test_logits_are_found(output, outputs, found):
    assert float(Logits(output)(outputs)) == found


@pytest.mark.parametrize(
    ("output", "outputs"),
    [
        (None, {"a": torch.tensor(0.0), "b": torch.tensor(0.0)}),
        ("c", {"a": torch.tensor(0.0)}),
        (None, (torch.tensor(0.0), torch.tensor(0.0))),
        (2, (torch.tensor(0.0),)),
        ("main", {"main": {"a": torch.tensor(0.0), "b": torch.tensor(0.0)}}),
        (None, {}),
    ],
)
def test_ambiguous_logits_are_refused(output, outputs):
    with pytest.raises(ag.RunError, match="outputs contain no logits"):
        Logits(output)(outputs)


# ---------------------------------------------------------------- local training


@pytest.mark.parametrize(
    "local",
    [
        LocalOptions(epochs=2, batch=5, lr=0.1, momentum=0.9, weight_decay=1e-3),
        LocalOptions.model_validate({"batch": 4, "optimiser": {"Adam": {"lr": 0.01}}}),
        LocalOptions(epochs=1, batch=4, lr=0.5, clip=0.1),
    ],
)
def test_train_equals_a_loop_written_by_hand(lab, local):
    data = lab.toy(1)
    outcome = Train()(lab.work_of(Task(0, lab.graph, lab.state, Train()), data, local))

    model = module_of(Model(lab.graph, lab.state)).train()
    ((name, args),) = local.chosen.plain().items()
    optimiser = getattr(torch.optim, name)(model.parameters(), **args)
    draw = seeded(0, "work", 0)
    for _ in range(local.epochs):
        order = torch.randperm(12, generator=draw)
        for ids in order.split(local.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.inputs[ids]), data.targets[ids]).backward()
            if local.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), local.clip)
            optimiser.step()
    expected = ag.state_of(model)
    assert all(torch.equal(outcome.state[k], v) for k, v in expected.items())
    assert outcome.metrics["steps"] == local.epochs * math.ceil(12 / local.batch)
    assert outcome.metrics["seen"] == 12 * local.epochs


def test_train_leaves_what_it_was_sent_alone(lab):
    before = {k: v.clone() for k, v in lab.state.items()}
    Train()(lab.work_of(Task(0, lab.graph, lab.state, Train()), lab.toy(0)))
    assert all(torch.equal(lab.state[k], v) for k, v in before.items())


def test_a_fraction_is_drawn_once_for_the_round(tiny):
    """Ten epochs on a third of the data see a third of it, in another order each."""
    options = LocalOptions(epochs=10, batch=2, fraction=0.3)
    task = Task(0, tiny.graph, tiny.state, Train())
    batches: list[tuple[int, ...]] = []

    def note(outputs: Tensor, examples: Examples, work: Work) -> Tensor:
        batches.append(tuple(examples.ids.tolist()))
        return outputs.sum()

    def drawn(round: int) -> list[tuple[int, ...]]:
        batches.clear()
        work = dataclasses.replace(tiny.work_of(task, tiny.toy(0, 20), options, round), round=round)
        Train(note)(work)
        return list(batches)

    first, second = drawn(1), drawn(2)
    assert len(first) == 30
    assert len({i for ids in first for i in ids}) == 6
    assert all(sorted(sum(first[e : e + 3], ())) == sorted(sum(first[:3], ())) for e in (3, 27))
    assert len(set(first)) > 3
    assert {i for ids in first for i in ids} != {i for ids in second for i in ids}


def test_a_gradient_that_is_not_finite_is_named(tiny):
    broken = {**tiny.state, "1.weight": torch.full_like(tiny.state["1.weight"], math.inf)}
    task = Task(3, tiny.graph, broken, Train())
    with pytest.raises(ag.RejectedUpdate, match=r"client 3: 1\.weight is not finite"):
        Train()(tiny.work_of(task, tiny.toy(0)))


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_gradient_that_is_not_finite_beside_a_loss_that_is(tiny, epochs):
    """The first time, which is noticed at the next step or after the last one."""

    class Spoilt:
        def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
            return (parameters["1.bias"] * 0).sqrt().sum()  # 0, whose gradient is not a number

    train = Train(penalty=Spoilt())
    task = Task(3, tiny.graph, tiny.state, train)
    options = LocalOptions(epochs=epochs, batch=100)
    with pytest.raises(ag.RejectedUpdate, match=r"client 3: 1\.bias is not finite"):
        train(tiny.work_of(task, tiny.toy(0), options))


def test_gradients_can_be_revised_before_the_step(tiny):
    work = tiny.work_of(Task(0, tiny.graph, tiny.state, Train()), tiny.toy(0))
    module = module_of(work)
    parameters = dict(module.named_parameters())

    def hold_the_bias(named) -> None:
        named["1.bias"].grad.zero_()

    def loss(batch: Examples) -> Tensor:
        return TaskLoss()(module(*batch.inputs), batch, work)

    descend(work, parameters, loss, revise=hold_the_bias)
    after = ag.state_of(module)
    assert torch.equal(after["1.bias"], tiny.state["1.bias"])
    assert not torch.equal(after["1.weight"], tiny.state["1.weight"])


# ---------------------------------------------------------------- the graph's own facts


def test_layer_weights_are_those_that_layers_multiply_with(lab):
    expected = {k for k, v in lab.state.items() if v.dim() > 1}
    assert ag.layer_weights(lab.graph) == expected


def test_layer_weights_leave_tables_out_and_look_through_views():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.randn(4, 6))
            self.qkv = nn.Parameter(torch.randn(6, 18))
            self.norm = nn.LayerNorm((4, 6))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x + self.position)
            q, k, v = (y @ part for part in self.qkv.chunk(3, 1))
            return nn.functional.scaled_dot_product_attention(q, k, v)

    graph = ag.trace(Attention(), torch.randn(2, 4, 6)).graph
    assert ag.layer_weights(graph) == {"qkv"}


def test_norm_policies(lab):
    own = {k for k in lab.state if "running" in k or "tracked" in k}
    affine = {k for k in lab.state if ".bn" in k} - own
    assert len(own) == 36 and len(affine) == 24
    cases = {
        "averaged": (set(), set(), "stored"),
        "local": (own, own, "stored"),
        "static": (set(), own, "recompute"),
        "per_submodel": (set(), own | affine, "stored"),
    }
    for name, (kept, left_out, evaluation) in cases.items():
        policy = NormPolicy(name)  # type: ignore[arg-type]  # names as in a spec
        assert policy.private(lab.graph) == kept
        assert policy.unmerged(lab.graph) == left_out
        assert policy.evaluation == evaluation


def test_a_result_is_what_does_not_stay_with_the_client(lab):
    """What stays and what is not merged are known once: the task says it, the result repeats it."""
    world = lab.uniform(1)
    state = ServerState().with_group("global", world.state)
    statistics = NormPolicy("static").unmerged(lab.graph)
    for norm, kept in (("averaged", set()), ("static", set()), ("local", statistics)):
        task = part(world, state, 0, norm=norm)  # type: ignore[arg-type]  # names as in a spec
        result = task.result(Outcome(state=lab.state), 7)
        assert result.state.keys() == lab.state.keys() - kept
        assert result.unmerged == (set() if norm == "averaged" else statistics)
        assert (result.transfer, result.tier) == (world.tiers[0].transfer, "all")
        assert (result.weight("examples"), result.weight("uniform")) == (7, 1)


# ---------------------------------------------------------------- lookup and options


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedaf", {}, r"strategy: unknown strategy; found 'fedaf'; .*did you mean 'fed"),
        ("fedfa", {"percentle": 0.9}, r"strategy\.fedfa\.percentle: .*did you mean 'percentile'\?"),
        ("fedfa", {"percentile": 1.5}, r"strategy\.fedfa\.percentile: out of range; found 1\.5"),
        (
            "fedfa",
            {"percentile": "high"},
            r"strategy\.fedfa\.percentile: wrong value; found 'high'",
        ),
        ("fedfa", {"percentile": True}, r"strategy\.fedfa\.percentile: wrong value; found True"),
        (
            "fedfa",
            {"rms": 1},
            r"fedfa\.rms: wrong value; found 1; expected true or false",
        ),
        ("fedfa", {"inner": "mid"}, r"strategy\.fedfa\.inner: wrong value; .*'abs' or 'central'"),
        ("fedfa", {"preset": "papr"}, r"strategy\.fedfa\.preset: .*did you mean 'paper'\?"),
        ("fedfa", {"limited": 1.5}, r"strategy\.fedfa\.limited: out of range; found 1\.5"),
        ("fedavg", {"preset": "paper"}, r"strategy\.fedavg\.preset: .*there are none"),
        ("heterofl", {"rates": {"a": 2}}, r"strategy\.heterofl\.rates\.a: out of range; found 2"),
        ("heterofl", {"rates": {"a": "x"}}, r"strategy\.heterofl\.rates: wrong value"),
    ],
)
def test_mistakes_are_answered_with_place_and_nearest_name(name, options, message):
    with pytest.raises(ag.SpecError, match=message):
        configure(name, options)


def test_presets_set_options_and_options_override_them():
    assert configure("fedfa", {"preset": "paper"}).choice == "search"  # type: ignore[attr-defined]
    own = configure("fedfa", {"preset": "appendix_e", "choice": "family"})
    assert (own.choice, own.inner) == ("family", "central")  # type: ignore[attr-defined]


def test_integers_pass_for_floats_but_nothing_else_is_bent():
    assert configure("fedfa", {"percentile": 1}).percentile == 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["fedavg", "heterofl", "fedfa"])
def test_strategies_and_programs_pickle(name):
    strategy = configure(name)
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    objective: Objective = TaskLoss(mask_absent=True)
    assert pickle.loads(pickle.dumps(Train(objective))) == Train(objective)
