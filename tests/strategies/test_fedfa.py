"""FedFA in closed form: percentile, α, grafted copies, choice of architectures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import archgraph as ag
from archgraph.federation import Model, Outcome, Result, Task, TaskLoss
from archgraph.module.initial import initial_state
from archgraph.states.ranks import SAMPLE, squares_between
from archgraph.strategies.fedfa import (
    ArchitectureSearch,
    FedFA,
    ZiCo,
    architecture,
    combinations,
    grafting,
    inner_norm,
    zico,
)

WEIGHTS = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60)
SHARES = st.sampled_from([0.05, 0.25, 0.5, 0.75, 0.95, 1.0])


@pytest.fixture(scope="module")
def tiers(lab):
    narrow = ag.take(lab.graph, 0.5)
    return {
        "weak": narrow >> ag.shorten(narrow.graph, {"layer1": 2, "layer2": 2}),
        "flat": ag.shorten(lab.graph, {"layer1": 2, "layer2": 2}),
        "slim": narrow,
        "full": ag.Rewritten.identity(lab.graph),
    }


# ---------------------------------------------------------------- the percentile norm


@given(values=WEIGHTS, share=SHARES)
def test_inner_norm_by_magnitude_follows_the_interpolated_quantile(values, share):
    w = np.array(values, np.float32)
    bound = np.quantile(np.abs(w).astype(np.float64), share)
    kept = np.abs(w)[np.abs(w) <= bound * (1 + 1e-12)].astype(np.float64)
    found = inner_norm(torch.from_numpy(w), share)
    assert found == pytest.approx(np.sqrt((kept**2).sum()), rel=1e-6, abs=1e-30)


@given(values=WEIGHTS, share=SHARES)
def test_inner_norm_around_the_median(values, share):
    w = np.sort(np.array(values, np.float32))
    tail = (1 - share) / 2 * (len(w) - 1)
    # Of two or three weights and a small share, those beside the median.
    low, high = w[sorted((math.ceil(tail), math.floor(len(w) - 1 - tail)))]
    kept = w[(w >= low) & (w <= high)].astype(np.float64)
    found = inner_norm(torch.from_numpy(w), share, "central")
    assert found == pytest.approx(np.sqrt((kept**2).sum()), rel=1e-6, abs=1e-30)


def test_inner_norm_of_a_hundred_numbers():
    """0 … 99 and 95 %: rank 0.95 · 99 = 94.05, so 0 … 94 count."""
    w = torch.arange(100.0)[torch.randperm(100)].view(4, 25) * torch.tensor([1.0, -1.0]).repeat(
        50
    ).view(4, 25)
    counted = sum(k * k for k in range(95))
    assert inner_norm(w) == pytest.approx(math.sqrt(counted), rel=1e-12)
    assert inner_norm(w, rms=True) == pytest.approx(math.sqrt(counted / 95), rel=1e-12)


@pytest.mark.parametrize("kind", ["normal", "sorted", "equal", "few", "striped"])
def test_squares_of_values_between_ranks_among_many(kind):
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(3 * SAMPLE + 7, generator=draw)
    if kind == "sorted":
        values = values.sort().values
    elif kind == "equal":
        values = torch.ones_like(values)
    elif kind == "few":
        values = values.round()
    elif kind == "striped":  # the sample sees one stripe only and is wrong about the rest
        values[::3] = 50.0
    for signed in (True, False):
        ordered = np.sort(values.double().numpy() if signed else values.double().abs().numpy())
        last = len(ordered) - 1
        for ranks in (
            (0, 0),
            (0, last),
            (0, int(0.95 * last)),
            (int(0.02 * last), int(0.97 * last)),
        ):
            low, high = ordered[list(ranks)]
            counted = ordered[(ordered >= low) & (ordered <= high)]
            squares, count = squares_between(values.numpy(), *ranks, signed=signed)
            assert squares == pytest.approx((counted**2).sum(), rel=1e-12)
            assert count == len(counted)


# ---------------------------------------------------------------- α


def scaled(c: float):
    return lambda state: {k: v * c if v.is_floating_point() else v for k, v in state.items()}


def test_alpha_levels_clients_that_differ_by_a_factor(lab):
    """θ and 3θ: α = 2 and 2/3, so both become 2θ; vectors keep α = 1, their mean is 2θ as well."""
    world = lab.uniform(2, examples=[30, 10])
    sent = lab.random_state(lab.state, 5)
    after, _ = lab.one_round(FedFA(), world, lambda t: scaled(1 + 2 * t.client)(sent))
    weights = ag.layer_weights(lab.graph)
    for name in weights:
        torch.testing.assert_close(after[name], 2 * sent[name], rtol=1e-5, atol=0)
    bias = "fc.bias"  # weighted by examples: (30 + 10 · 3) / 40
    torch.testing.assert_close(after[bias], 1.5 * sent[bias], rtol=1e-6, atol=0)
    vectors, _ = lab.one_round(
        FedFA(scale_vectors=True, norm="averaged"),
        world,
        lambda t: scaled(1 + 2 * t.client)(sent),
    )
    torch.testing.assert_close(vectors[bias], 2 * sent[bias], rtol=1e-5, atol=0)
    mean = "layer1.0.bn1.running_mean"  # never scaled: a statistic is not a parameter
    torch.testing.assert_close(vectors[mean], 1.5 * sent[mean], rtol=1e-5, atol=1e-6)


def two_passes(lab, strategy: FedFA, world, updates) -> dict[str, Tensor]:
    """Algorithm 1, lines 13-22, as printed: all norms first."""
    fits = [
        grafting(
            world.graph, world.tier(c.name).graph, world.tier(c.name).transfer, strategy.variant
        )
        for c in world.clients
    ]
    grafted = [f.graft.pull(u) for f, u in zip(fits, updates, strict=True)]
    result = {}
    for name, old in world.state.items():
        if not old.is_floating_point() or "running" in name:
            continue
        norms = [
            inner_norm(g[name], strategy.percentile, strategy.inner, rms=strategy.rms)
            for g in grafted
        ]
        total, gamma = torch.zeros_like(old, dtype=torch.float64), torch.zeros_like(old)
        for client, g, norm in zip(world.clients, grafted, norms, strict=True):
            alpha = np.mean(norms) / norm if name in ag.layer_weights(world.graph) else 1.0
            box = tuple(slice(0, n) for n in g[name].shape)
            total[box] += client.examples * alpha * g[name]
            gamma[box] += client.examples
        result[name] = torch.where(gamma > 0, (total / gamma).to(old.dtype), old)
    return result


OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"inner": "central"}, {"rms": True}, {"percentile": 0.5}, {"percentile": 1.0}]
)


@OPTIONS
def test_one_pass_equals_the_algorithm_as_printed(lab, tiers, options):
    world = lab.make_world(lab.graph, lab.state, tiers, list(tiers), examples=[5, 40, 20, 10])
    strategy = FedFA(**options)
    updates = [
        lab.random_state(tiers[c.name].transfer.pull(lab.state), c.id) for c in world.clients
    ]
    after, _ = lab.one_round(strategy, world, lambda t: updates[t.client])
    for name, expected in two_passes(lab, strategy, world, updates).items():
        torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-6)


def test_a_layer_of_zeros_and_a_layer_of_outliers_stay_finite(lab):
    def update(task: Task) -> dict[str, Tensor]:
        state = {k: v.clone() for k, v in lab.random_state(task.state, 1).items()}
        state["fc.weight"].zero_()
        if task.client == 1:
            state["fc.weight"][0, 0] = 4.0  # one of 60: above the 95th percentile
        return state

    after, _ = lab.one_round(FedFA(), lab.uniform(2), update)
    assert all(v.isfinite().all() for v in after.values() if v.is_floating_point())
    # norms 0 and 4: mean 2, α of the outlier 1/2; uniform weights halve it again
    assert after["fc.weight"][0, 0].item() == pytest.approx(1.0, rel=1e-6)


@OPTIONS
@pytest.mark.parametrize("small", [0.0, 1e-38, 1e-10, 1e-7, 1e-5])
def test_a_layer_that_alpha_would_blow_up_is_refused(lab, options, small):
    """One weight of 1 and many small ones: refused exactly where 1 / norm would exceed 2²⁰."""
    strategy, world = FedFA(**options), lab.uniform(1)
    task = strategy.send(world, strategy.init(world), 0, 1)
    layer = torch.full_like(lab.state["fc.weight"], small)
    layer[2, 3] = 1.0
    result = task.result(Outcome(lab.state | {"fc.weight": layer}), 10)
    size = inner_norm(layer, strategy.percentile, strategy.inner, rms=strategy.rms)
    size = size or inner_norm(layer, 1.0, rms=strategy.rms)
    if size * 2**20 < 1:
        with pytest.raises(ag.RejectedUpdate, match=r"fc\.weight: a few weights exceed all"):
            strategy.examine(world, result)
    else:
        strategy.examine(world, result)
    FedFA(scale=False).examine(world, result)


def test_many_weights_above_the_bound_do_not_hide_a_norm_below_it(lab):
    """Divided by the root of its 57 weights, a norm of seven small ones is a third of one."""
    strategy, world = FedFA(rms=True), lab.uniform(1)
    task = strategy.send(world, strategy.init(world), 0, 1)
    layer = torch.zeros_like(lab.state["fc.weight"])
    layer.view(-1)[:10], layer[-1, -1] = 1.01 * 2.0**-20, 1.0
    result = task.result(Outcome(lab.state | {"fc.weight": layer}), 10)
    with pytest.raises(ag.RejectedUpdate, match=r"fc\.weight: a few weights exceed all"):
        strategy.examine(world, result)


def test_norms_are_found_where_a_result_is_examined(lab, tiers):
    """Copies of a block have its norm; `receive` takes what was found, and looks if nothing was."""
    strategy, world = FedFA(), lab.make_world(lab.graph, lab.state, tiers, ["weak", "flat"])
    state = strategy.init(world)
    tasks = [strategy.send(world, state, client, 1) for client in range(2)]
    results = [
        strategy.examined(world, t.result(Outcome(lab.random_state(t.state, i)), 10))
        for i, t in enumerate(tasks)
    ]
    for result in results:
        assert result.findings.keys() == ag.layer_weights(lab.graph)
        norm = inner_norm(result.state["layer2.1.conv1.weight"])
        assert result.findings["layer2.1.conv1.weight"].item() == norm
        assert result.findings["layer2.2.conv1.weight"].item() == norm
    after = strategy.receive(world, state, results, 1).group("global")
    bare = [dataclasses.replace(result, findings={}) for result in results]
    again = strategy.receive(world, state, bare, 1).group("global")
    assert all(torch.equal(again[name], value) for name, value in after.items())
    halved = {name: norm / 2 for name, norm in results[0].findings.items()}
    other = [dataclasses.replace(results[0], findings=halved), results[1]]
    changed = strategy.receive(world, state, other, 1).group("global")
    assert not torch.equal(changed["fc.weight"], after["fc.weight"])
    assert FedFA(scale=False).examine(world, results[0]) == {}


# ---------------------------------------------------------------- grafting and distribution


def test_grafting_feeds_missing_blocks_from_the_last_one(lab, tiers):
    """Algorithm 2: a client of depth 2 gives its block 1 to the global blocks 1 and 2."""
    world = lab.make_world(lab.graph, lab.state, tiers, ["flat"])
    update = lab.random_state(tiers["flat"].transfer.pull(lab.state), 9)
    after, _ = lab.one_round(FedFA(scale=False), world, lambda _: update)
    for section in ("layer1", "layer2"):
        for entry in ("conv1.weight", "bn1.weight", "conv2.weight", "bn2.bias"):
            assert torch.equal(after[f"{section}.2.{entry}"], update[f"{section}.1.{entry}"])
            assert torch.equal(after[f"{section}.1.{entry}"], update[f"{section}.1.{entry}"])
            assert torch.equal(after[f"{section}.0.{entry}"], update[f"{section}.0.{entry}"])


def test_grafted_copies_follow_the_clients_width(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["weak"])
    update = lab.random_state(tiers["weak"].transfer.pull(lab.state), 9)
    after, _ = lab.one_round(FedFA(scale=False), world, lambda _: update)
    copied = after["layer2.2.conv1.weight"]
    assert torch.equal(copied[:6, :6], update["layer2.1.conv1.weight"])
    assert torch.equal(copied[6:], lab.state["layer2.2.conv1.weight"][6:])
    assert torch.equal(copied[:, 6:], lab.state["layer2.2.conv1.weight"][:, 6:])


def test_grafting_completes_the_aggregation(lab, tiers):
    """§4.2: no position inside a client's width is fed by fewer clients than any other."""
    world = lab.make_world(lab.graph, lab.state, tiers, ["weak", "weak", "full", "flat"])
    after, _ = lab.one_round(
        FedFA(scale=False, weights="uniform"),
        world,
        lambda t: {k: torch.full_like(v, t.client) for k, v in t.state.items()},
    )
    for block in range(3):
        inside = after[f"layer2.{block}.conv2.weight"][:6, :6]
        assert torch.equal(inside, torch.full_like(inside, 1.5))


@pytest.mark.parametrize(
    ("variant", "depths", "width"), [("both", 2, 6), ("depth", 2, 12), ("width", 3, 6)]
)
def test_variants_free_depth_width_or_both(lab, tiers, variant, depths, width):
    world = lab.make_world(lab.graph, lab.state, tiers, ["weak", "full"])
    strategy = FedFA(variant=variant)
    after, tasks = lab.one_round(strategy, world, lambda t: lab.random_state(t.state, t.client))
    sections = {s.name: len(s.blocks) for s in ag.structure(tasks[0].graph).sections}
    assert sections["layer1"] == sections["layer2"] == depths
    assert tasks[0].state["layer2.1.conv1.weight"].shape[:2] == (width, width)
    assert tasks[1].graph == lab.graph
    assert all(v.isfinite().all() for v in after.values())
    x = torch.randn(2, 1, 8, 8)
    for model in strategy.evaluated(world, strategy.init(world)):
        assert ag.build(model.graph, model.state)(x).shape == (2, 5)


# ---------------------------------------------------------------- choice of architectures


def test_half_of_the_clients_take_the_smallest(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full"] * 9)
    chosen = FedFA(choice="half_smallest").init(world).values["tiers"]
    assert chosen.count("weak") == 5
    assert set(chosen) - {"weak"} <= {"flat", "slim", "full"}
    other = lab.replace(world, seed=world.seed + 1)
    assert FedFA(choice="half_smallest").init(other).values["tiers"] != chosen
    assert FedFA().init(world).values["tiers"] == ["full"] * 9


def test_zico_is_asked_of_those_that_are_not_limited(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full"] * 4)
    strategy = FedFA(choice="zico")
    state = strategy.init(world)
    tasks = list(strategy.survey(world, state))
    limited = set(range(4)) - {t.client for t in tasks}
    assert len(tasks) == len(limited) == 2
    results = []
    for task in tasks:
        assert task.program == ZiCo(TaskLoss(mask_absent=True))
        assert not task.private  # else it would overlay what the client is sent later
        outcome = task.program(lab.work_of(task, lab.toy(task.client)))
        assert set(outcome.metrics) == {f"zico/{name}" for name in tiers}
        assert len(set(outcome.metrics.values())) == 4
        assert all(math.isfinite(v) for v in outcome.metrics.values())
        results.append(Result(task.client, {}, 10, metrics=outcome.metrics))
    chosen = strategy.surveyed(world, state, results).values["tiers"]
    for client, name in enumerate(chosen):
        if client in limited:
            assert name == "weak"
        else:
            scores = next(r.metrics for r in results if r.client == client)
            assert scores[f"zico/{name}"] == max(scores.values())
    assert list(FedFA().survey(world, state)) == []
    assert strategy.surveyed(world, state, []).values == state.values  # the survey was lost


def test_zico_score_closed_form():
    """Σ ln Σ mean|g|/std(g); a weight whose gradient does not vary counts for nothing."""
    first = {"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([0.0, 2.0])}
    second = {"a": torch.tensor([3.0, 5.0]), "b": torch.tensor([0.0, -2.0])}
    # a: mean|g| 2, std 1 → 2; b: mean|g| 2, std 2 → 1
    assert zico([first, second]) == pytest.approx(math.log(2) + math.log(1), rel=1e-12)
    assert zico([first, first]) == 0.0


def test_zico_equals_its_definition_on_a_linear_net(tiny):
    data = tiny.toy(3, examples=8)
    world = tiny.uniform(2)
    strategy = FedFA(choice="zico", limited=0.0)
    task = next(iter(strategy.survey(world, strategy.init(world))))
    work = tiny.work_of(task, data)
    work = tiny.replace(work, local=work.local.model_copy(update={"batch": 4}))
    found = ZiCo(TaskLoss())(work).metrics["zico/all"]
    weight = tiny.state["1.weight"].clone().requires_grad_()
    gradients = []
    from archgraph.federation import seeded

    order = torch.randperm(8, generator=seeded(0, "work", 0))
    for ids in order.split(4):
        logits = data.inputs[ids].flatten(1) @ weight.T + tiny.state["1.bias"]
        loss = torch.nn.functional.cross_entropy(logits, data.targets[ids])
        gradients.append(torch.autograd.grad(loss, weight)[0].double())
    g = torch.stack(gradients)
    ratio = g.abs().mean(0) / ((g[0] - g[1]).abs() / 2)
    assert found == pytest.approx(math.log(float(ratio.sum())), rel=1e-3)


# ---------------------------------------------------------------- search


def surveyed(lab, tiers, **options):
    """What every client takes, and the survey's metrics."""
    world = lab.make_world(lab.graph, lab.state, tiers, ["full"] * 4)
    strategy = FedFA(limited=0.0, **options)
    state, results = strategy.init(world), []
    for task in strategy.survey(world, state):
        outcome = task.program(lab.work_of(task, lab.toy(task.client)))
        results.append(task.result(outcome, 10))
    return strategy.surveyed(world, state, results).values["tiers"], [r.metrics for r in results]


def test_the_space_has_all_depths_and_widths_of_the_family(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full"])
    space = combinations(world.graph, world.by_size, "both")
    assert space.depths == ((("layer1",), (2, 3)), (("layer2",), (2, 3)))
    assert [sizes for _, sizes in space.widths] == [(2, 4), (4, 8), (6, 12)]
    assert [len(axes) for axes, _ in space.widths] == [1, 4, 4]
    assert dict(space.tiers)["weak"] == (2, 2, 2, 4, 6)
    for name, values in space.tiers:
        assert architecture(space, values).graph == tiers[name].graph
        assert space.name(values) == name
    assert space.name((2, 3, 2, 8, 6)) == "d2-3-w2-8-6"
    assert combinations(world.graph, world.by_size, "depth").widths == ()
    assert combinations(world.graph, world.by_size, "width").depths == ()


def test_a_search_refuses_a_family_that_lacks_a_section_as_other_choices_do(lab):
    graph = ag.load(Path(ag.__file__).parent / "specs" / "models" / "digits_cnn.yaml")
    whole = {"none": ag.skip(graph, "stage1.0"), "full": ag.Rewritten.identity(graph)}
    world = lab.make_world(graph, initial_state(graph, 0), whole, ["full"])
    for choice in ("zico", "search"):
        strategy = FedFA(choice=choice, limited=0.0)
        with pytest.raises(ag.GraphError, match="no such section; found 'stage1'"):
            list(strategy.survey(world, strategy.init(world)))


def test_a_familys_architecture_with_the_name_of_a_searched_one_is_not_taken_for_it(lab, tiers):
    """`d2-3-w2-8-6` of the family is another one: what was searched is sent nevertheless."""
    named = {"weak": tiers["weak"], "d2-3-w2-8-6": tiers["slim"], "full": tiers["full"]}
    world = lab.make_world(lab.graph, lab.state, named, ["full"])
    strategy = FedFA(choice="search", limited=0.0)
    state = strategy.init(world)
    values = {"architecture": torch.tensor([2, 3, 2, 8, 6])}
    state = strategy.surveyed(world, state, [Result(0, {}, 10, extras=values)])
    space = combinations(world.graph, world.by_size, "both")
    expected = architecture(space, (2, 3, 2, 8, 6)).graph
    assert strategy.send(world, state, 0, 1).graph == expected
    (model,) = [e for e in strategy.evaluated(world, state) if e.name != "global"]
    assert model.graph == expected and model.clients == (0,)


def test_a_search_without_steps_chooses_as_zico_does(lab, tiers):
    chosen, metrics = surveyed(lab, tiers, choice="search", steps=0)
    expected, scores = surveyed(lab, tiers, choice="zico")
    assert chosen == expected
    assert [m["zico"] for m in metrics] == [max(s.values()) for s in scores]
    few = {name: tiers[name] for name in ("slim", "full")}
    few["full"] = few["slim"]  # one architecture: nothing to search
    assert surveyed(lab, few, choice="search")[1][0]["scored"] == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("macs", [0.4, 1.0])
def test_a_search_to_the_end_takes_the_best_of_all_within_its_bound(lab, tiers, macs):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full"] * 4)
    strategy = FedFA(choice="search", limited=0.0, steps=10_000, macs=macs)
    task = next(iter(strategy.survey(world, strategy.init(world))))
    assert isinstance(task.program, ArchitectureSearch)
    space = task.program.space
    score = ZiCo(TaskLoss(mask_absent=True)).scorer(lab.work_of(task, lab.toy(task.client)))
    scores = {}
    for values in itertools.product(*(sizes for _, sizes in (*space.depths, *space.widths))):
        cut = architecture(space, values)
        if ag.cost(cut.graph).macs <= macs * ag.cost(lab.graph).macs:
            scores[values] = score(Model(cut.graph, cut.transfer.pull(lab.state)))
    outcome = task.program(lab.work_of(task, lab.toy(task.client)))
    best = tuple(outcome.extras["architecture"].tolist())
    assert outcome.metrics == {"zico": max(scores.values()), "scored": len(scores)}
    assert scores[best] == max(scores.values())
    assert len(scores) == 32 if macs == 1 else 4 < len(scores) < 32
    result = strategy.surveyed(world, strategy.init(world), [task.result(outcome, 10)])
    assert result.values["tiers"][task.client] == space.name(best)


@pytest.mark.full
def test_more_steps_find_no_worse_and_repeat(lab, tiers):
    runs = [surveyed(lab, tiers, choice="search", steps=n, population=3) for n in (4, 4, 12)]
    assert runs[0] == runs[1]
    for fewer, more in zip(runs[0][1], runs[2][1], strict=True):
        assert fewer["zico"] <= more["zico"]
        assert fewer["scored"] < more["scored"] <= len(tiers) + 12
    climb = surveyed(lab, tiers, choice="search", steps=12, population=1)  # from the best alone
    assert climb[1] != runs[2][1]


def test_a_bound_that_no_architecture_keeps_is_refused(lab, tiers):
    with pytest.raises(ag.RunError, match=r"within the bound; found 0\.01; expected at least 0\."):
        surveyed(lab, tiers, choice="search", macs=0.01)


def test_what_a_search_found_is_sent_merged_and_tested_as_if_offered(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full"] * 2)
    name, strategy = "d2-3-w2-8-6", FedFA()
    offered = architecture(combinations(world.graph, world.by_size, "both"), (2, 3, 2, 8, 6))
    other = lab.make_world(lab.graph, lab.state, {**tiers, "new": offered}, ["full", "new"])
    ran = []
    for where, tier in ((world, name), (other, "new")):
        state = strategy.init(where).with_values(tiers=["full", tier])
        tasks = [strategy.send(where, state, client, 1) for client in range(2)]
        assert tasks[1].tier == tier
        results = [t.result(Outcome(lab.random_state(t.state, t.client)), 10) for t in tasks]
        after = strategy.receive(where, state, results, 1)
        models = {m.name: m.clients for m in strategy.evaluated(where, after)}
        assert models == {"global": (), "full": (0,), tier: (1,)}
        ran.append((tasks[1].graph, after.group("global")))
    assert ran[0][0] == ran[1][0] == offered.graph
    assert all(torch.equal(value, ran[1][1][name]) for name, value in ran[0][1].items())


@pytest.mark.full
def test_clients_of_a_transformer_search_alike_in_several_processes(tmp_path):
    """The shipped language model, windows of 8 words: equal bits with and without workers."""
    model = (Path(ag.__file__).parent / "specs" / "models" / "transformer.yaml").read_text()
    model = model.replace("shape: [64]", "shape: [8]").replace("28782", "50")
    (tmp_path / "model.yaml").write_text(model)
    words = [f"w{i % 49}" for i in range(9 * 24)]
    (tmp_path / "text.txt").write_text(" ".join(words) + "\n")
    small = {"vocabulary": 50}
    clients = [
        {"name": "small", "count": 1, "choose": {**small, "d1": 2, "w1": 64}},
        {"name": "large", "count": 2, "choose": {**small, "d1": 3, "w1": 72}},
    ]
    experiment = {
        "archgraph": 1,
        "name": "search",
        "family": {"model": "model.yaml", "clients": clients},
        "data": {"text": "text.txt", "by": "word", "bptt": 8, "partition": {"scheme": "iid"}},
        "strategy": {"fedfa": {"choice": "search", "limited": 0.3, "steps": 9, "macs": 0.95}},
        "rounds": 1,
        "local": {"epochs": 1, "batch": 4, "lr": 0.05},
    }
    runs = []
    for engine in ({}, {"workers": 2}):
        (tmp_path / "experiment.json").write_text(json.dumps({**experiment, "engine": engine}))
        runs.append(ag.run(tmp_path / "experiment.json"))
    one, other = (run.server for run in runs)
    assert one.values == other.values
    assert set(one.values["tiers"]) <= {"small", "d2-w72", "d3-w64"}
    assert set(one.values["tiers"]) > {"small"}
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
