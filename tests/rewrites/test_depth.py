"""Depth: what goes, what stays, what it is called, and why not."""

from __future__ import annotations

import importlib
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.graph.ir import refs
from archgraph.ops.infer import infer
from tests import structures as nets
from tests.nets import captured, with_parts
from tests.structures import graph_of, parts


def residual(depths=(2, 3), kind=nets.Basic):
    return nets.Net(kind, depths, (8, 12))


def residual_graph(depths=(2, 3), kind=nets.Basic):
    return nets.net_graph(kind, depths, (8, 12))


def stacked(block, depth, *args, **options):
    """The graph, in both modes, of so many blocks between two linear layers."""
    blocks = nn.Sequential(*(block(*args, **options) for _ in range(depth)))
    parts = {"stem": nn.Linear(3, 6), "blocks": blocks, "head": nn.Linear(6, 2)}
    return captured(nn.Sequential(OrderedDict(parts)), torch.zeros(2, 3)).graph


@with_parts(
    lambda: {
        "scale": nn.Parameter(torch.randn(6)),
        "spare": nn.Parameter(torch.randn(3)),
        "layer": nn.Linear(6, 6),
    }
)
def Spare(self, x):
    """A residual block with a parameter that forward does not use."""
    return x + self.layer(x).relu() * self.scale


def test_unused_leaves_go_with_their_module_and_only_with_it():
    graph = graph_of(
        nn.Sequential(nn.Linear(3, 6), Spare(), Spare(), nn.Linear(6, 2)), torch.zeros(2, 3)
    )
    small = ag.skip(graph, "1").graph
    assert "1.spare" in graph.state_names and "2.spare" in small.state_names
    assert small.state_names == tuple(n for n in graph.state_names if not n.startswith("1."))


def test_a_skipped_residual_block_is_the_identity():
    # where the body gives zero, leaving the block out changes nothing
    model = residual()
    for name in ("0", "1"):
        nn.init.zeros_(getattr(model.stage1, name).conv2.weight)
    graph, state = captured(model, torch.randn(2, 3, 8, 8), train=False)
    small = ag.skip(graph, "stage1.*")
    x = torch.randn(3, 3, 8, 8)
    found = ag.build(small.graph, small.transfer.pull(state)).eval()(x)
    torch.testing.assert_close(found, model.eval()(x), rtol=1e-6, atol=1e-6)  # float32
    assert parts(small.graph) == {
        "stem": ["stem"],
        "stage2": ["stage2.0", "stage2.1", "stage2.2"],
        "head": ["fc"],
    }


def test_names_and_patterns():
    graph = residual_graph()
    by_name = ag.skip(graph, ["stage2.1", "stage1.1"])
    assert by_name.graph == ag.skip(graph, "stage?.1").graph
    assert [n for b in parts(by_name.graph).values() for n in b] == [
        "stem", "stage1.0", "stage2.0", "stage2.2", "fc",
    ]  # fmt: skip
    assert by_name.transfer.entries["stage2.2.conv1.weight"].source == "stage2.2.conv1.weight"


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ("stage2.0", r"stage2\.0: block cannot be removed; found changes .*8, 8, 8\] to .*keep_p"),
        ("stem", r"stem: block cannot be removed; found changes .*3, 8, 8\] to .*8, 8, 8\]$"),
        ("stage2.7", r"no such block; found 'stage2\.7'; expected .*did you mean 'stage2\.2'"),
        ("nothing.*", r"no such block; found 'nothing\.\*'; expected one of stem, stage1\.0"),
    ],
)
def test_what_cannot_be_left_out(blocks, message):
    with pytest.raises(ag.ArchGraphError, match=message):
        ag.skip(residual_graph(), blocks)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [nets.Basic, nets.PreAct])
def test_keep_projection_drops_the_body_only(kind):
    graph = residual_graph(kind=kind)
    small = ag.skip(graph, "stage2.0", keep_projection=True, verify=True)
    left = {p.name for p in small.graph.params if p.name.startswith("stage2.0.")}
    assert {n.rpartition(".")[0] for n in left} == (
        {"stage2.0.short"} if kind is nets.Basic else {"stage2.0.short", "stage2.0.bn1"}
    )
    assert infer(small.graph) == small.graph
    assert parts(small.graph)["stage2"] == ["stage2.0", "stage2.1", "stage2.2"]
    # a block without a projection goes as a whole
    both = ag.skip(graph, ["stage2.0", "stage2.1"], keep_projection=True, verify=True)
    assert not any(p.name.startswith("stage2.1.") for p in both.graph.params)


def test_skipping_a_dense_layer_takes_its_width_from_all_that_reads_it():
    graph = graph_of(nets.DenseNet(layers=3, growth=4))
    small = ag.skip(graph, "dense.1", verify=True)
    shapes = {p.name: p.shape for p in small.graph.params}
    assert shapes["dense.2.norm.weight"] == (12,)
    assert shapes["squeeze.weight"] == (8, 16, 1, 1)
    assert infer(small.graph) == small.graph
    state = ag.initial_state(graph)
    taken = small.transfer.pull(state)["squeeze.weight"]
    kept = [*range(12), *range(16, 20)]
    torch.testing.assert_close(taken, state["squeeze.weight"][:, kept], rtol=0, atol=0)
    assert parts(small.graph)["dense"] == ["dense.0", "dense.2"]
    before, after = ([n.op for n in g.nodes].count("aten.cat") for g in (graph, small.graph))
    assert after == before - 1
    everything = ag.skip(graph, "dense.*", verify=True)
    assert {p.name: p.shape for p in everything.graph.params}["squeeze.weight"] == (8, 8, 1, 1)


@with_parts(
    lambda prepare, terms=(4,), join=lambda x, ys: [x, *ys], width=8: {
        "prepare": prepare,
        "join": join,
        "terms": nn.ModuleList(nn.Linear(width, size) for size in terms),
    }
)
def Appending(self, x, gone=False):
    """A dense block that prepares what it passes on."""
    x = self.prepare(x)
    ys = [f(x) for f in self.terms]
    return torch.cat(self.join(x, [0 * y for y in ys] if gone else ys), 1)


@with_parts()
def Pooled(self, x):
    return nn.functional.avg_pool1d(x[:, None], 2)[:, 0]


@with_parts()
def Sliced(self, x):
    return x[:, 2:6]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "block",
    [
        lambda: Appending(nn.ReLU()),
        lambda: Appending(nn.ReLU(), join=lambda x, ys: [*ys, x]),
        lambda: Appending(nn.ReLU(), (4, 2), join=lambda x, ys: [ys[0], x, ys[1]]),
        lambda: Appending(nn.Identity(), (4, 2), join=lambda x, ys: [x, x, *ys]),
        lambda: Appending(nn.ReLU(), join=lambda x, ys: [x, *ys, x]),
        lambda: Appending(nn.BatchNorm1d(8)),
        lambda: Appending(nn.Sequential(nn.LayerNorm(8), nn.GELU()), (4, 4)),
        lambda: Appending(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), width=6),
        lambda: Appending(Pooled(), width=4),
        lambda: Appending(Sliced(), width=4),
        lambda: nn.Sequential(Appending(nn.ReLU()), Appending(nn.ReLU(), (3,), width=12)),
    ],
)
def test_a_dense_block_keeps_what_it_passes_on(block):
    """The last block of the network goes; what it appended is as if it were zero."""

    first, made, x = nn.Linear(3, 8), block(), torch.randn(5, 3)
    head = nn.Linear(made(first(x)).shape[1], 2)
    model = nn.Sequential(OrderedDict(i=first, a=made, o=head)).eval()
    graph, state = captured(model, x)
    name = [b.name for b in ag.structure(graph).blocks if b.kind == "dense"][-1]
    less = ag.skip(graph, name, verify=True)
    before: list[Any] = [*made] if isinstance(made, nn.Sequential) else [made]
    last = before.pop()
    expected = head(last(nn.Sequential(first, *before)(x), gone=True))
    net = ag.build(less.graph, less.transfer.pull(state)).eval()
    torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-6)  # float32
    assert ag.skip(graph, name, keep_projection=True).graph == less.graph
    joined = [len(refs(n.arg("tensors"))) for n in less.graph.nodes if n.op == "aten.cat"]
    assert joined in ([], [2])  # nothing is joined any more, or what is there twice or before
    appended = sum(len(f.bias) for f in last.terms.children() if isinstance(f, nn.Linear))
    assert less.graph.param["o.weight"].shape == (2, head.in_features - appended)
    assert infer(less.graph) == less.graph


@with_parts(lambda end: {"up": nn.Linear(8, 8), "down": nn.Linear(8, 8), "end": end})
def Joining(self, x):
    """A block that joins its branch to what enters as it is told."""
    return self.end(x, self.down(self.up(x).relu()))


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda x, y: torch.stack([x, y]).mean(0), "reduces its input together .* in %mean_1"),
        (lambda x, y: torch.add(y, x, alpha=0.5), "multiplies its shortcut"),
        (lambda x, y: x.roll(1, -1) + y, "which moves positions of the input"),
        (lambda x, y: (0.5 * x).roll(1, -1) + y, "which moves positions of the input"),
        (lambda x, y: torch.add(x, y, alpha=0.5), ""),
        (lambda x, y: (x + y).relu(), ""),
        (lambda x, y: y - x, ""),
    ],
)
def test_a_block_that_adds_to_something_else_than_what_enters_stays(end, why):
    torch.manual_seed(0)
    first = nn.Identity() if why else nn.ReLU()  # relu(x) is x after it
    layers = (nn.Linear(5, 8), first, Joining(end), Joining(end), nn.Linear(8, 3))
    graph = graph_of(nn.Sequential(*layers), torch.zeros(2, 5))
    if why:
        with pytest.raises(ag.RewriteError, match=f"cannot be removed; found .*{why}"):
            ag.skip(graph, "3")
    else:
        ag.skip(graph, "3", verify=True)


class Prepared(nn.Linear):
    """In single precision, and cast back, whatever the weights are."""

    def forward(self, x):
        x = x.float().relu()
        return x, super().forward(x.to(self.weight.dtype)).float()


@with_parts(
    lambda: {
        "i": nn.Linear(3, 8),
        "f": Prepared(8, 4),
        "g": nn.Linear(12, 4),
        "o": nn.Linear(16, 2),
    }
)
def Lists(self, x):
    """The first layer of a dense network prepares what all later lists begin with."""
    xs = [*self.f(self.i(x))]
    xs.append(self.g(torch.cat(xs, 1)))
    return self.o(torch.cat(xs, 1))


def test_what_a_dense_block_passes_on_may_be_used_by_later_lists():
    less = ag.skip(graph_of(Lists(), torch.zeros(2, 3)), "f", verify=True)
    assert less.graph.param["g.weight"].shape == (4, 8)
    assert less.graph.param["o.weight"].shape == (2, 12)


class Joined(Prepared):
    def forward(self, x):
        return torch.cat(super().forward(x), 1).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_dense_block_passes_on_keeps_its_type(dtype):
    net = nn.Sequential(nn.Linear(3, 8), Joined(8, 4), nn.Linear(12, 2)).to(dtype)
    graph, state = captured(net, torch.zeros(2, 3, dtype=dtype))
    less = ag.skip(graph, "1", verify=True)
    made = ag.build(less.graph, less.transfer.pull(state))(torch.zeros(2, 3, dtype=dtype))
    assert made.dtype == dtype


@with_parts(
    lambda after: {
        "i": nn.Linear(3, 8),
        "f": nn.Linear(8, 4),
        "o": nn.Linear(8, 2),
        "after": after,
    }
)
def Halves(self, x):
    """What a dense block appends, alone again: nothing is left of it without the block."""
    x = self.i(x)
    y = torch.cat([x, self.f(x)], 1)
    a, b = y.split([8, 4], 1)
    return self.after(self.o(a), b)


def test_a_term_that_something_reads_alone_stays():
    graph = graph_of(Halves(lambda a, b: a + b.mean(1, keepdim=True)), torch.zeros(2, 3))
    with pytest.raises(ag.RewriteError, match=r"appends f\.out\[4\], without which %\w+ is empty"):
        ag.skip(graph, "f")


def test_a_term_that_a_norm_behind_spans_is_left_out():
    model = nn.Sequential(nn.Linear(3, 8), Appending(nn.ReLU()), nn.LayerNorm(12), nn.Linear(12, 2))
    graph, state = captured(model, torch.zeros(2, 3))
    less = ag.skip(graph, "1.*", verify=True)  # a norm over fewer: it runs, no mask equals it
    assert less.graph.param["2.weight"].shape == (8,)
    ag.build(less.graph, less.transfer.pull(state))(torch.zeros(2, 3))


def test_verify_of_a_graft_runs_the_network(monkeypatch):
    def broken(*_):
        raise ag.RewriteError("it runs")

    monkeypatch.setattr("archgraph.rewrites.laws.check_law", broken)
    with pytest.raises(ag.RewriteError, match="it runs"):
        ag.graft(residual_graph(), {"stage2": 4}, verify=True)


def test_counters_and_training_branches_go_along():
    graph = graph_of(residual(), train=True)
    small = ag.skip(graph, "stage2.1").graph
    assert not any("stage2.1" in line for line in str(small).splitlines())
    graph = graph_of(nets.Exits(), train=True)
    small = ag.skip(graph, "stages.1.1", verify=True).graph
    # the exit that trains there reads what enters the block now
    assert {p.name for p in graph.params} - {p.name for p in small.params} == {
        p.name for p in graph.params if p.name.startswith("stages.1.1.")
    }
    out = ag.build(small).train()(torch.randn(2, 3, 8, 8))
    assert [t.shape for t in out] == [(2, 5)] * 3


def test_shallow_drops_from_the_end():
    graph = residual_graph((3, 3))
    small = ag.shorten(graph, {"stage1": 1, "stage2": 2}, verify=True)
    assert parts(small.graph) == {
        "stem": ["stem"], "stage1": ["stage1.0"], "stage2": ["stage2.0", "stage2.1"],
        "head": ["fc"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("depths", "error", "message"),
    [
        ({"stage1": 0}, ag.RewriteError, "stage1: depth out of range; found 0; expected 1 to 2"),
        ({"stage2": 4}, ag.RewriteError, "stage2: depth out of range; found 4; expected 1 to 3"),
        ({"stage2": 0}, ag.RewriteError, "expected 1 to 3; stage2.0 stays: it changes float32"),
        (
            {"stage3": 1},
            ag.GraphError,
            "no such section; found 'stage3'; expected one of stem, stage",
        ),
    ],
)
def test_impossible_depths(depths, error, message):
    with pytest.raises(error, match=message):
        ag.shorten(residual_graph(), depths)


def test_graft_repeats_the_last_block():
    model = residual()
    graph, state = captured(model, torch.randn(2, 3, 8, 8))
    deep = ag.graft(graph, {"stage2": 5}, verify=True)
    assert parts(deep.graph)["stage2"] == [f"stage2.{i}" for i in range(5)]
    weights = deep.transfer.pull(state)
    for name, tensor in state.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=0)
        if name.startswith("stage2.2."):
            for copy in ("stage2.3.", "stage2.4."):
                other = weights[name.replace("stage2.2.", copy)]
                torch.testing.assert_close(other, tensor, rtol=0, atol=0)
    # it is what the model with more blocks is
    expected = graph_of(residual((2, 5)), train=True)
    assert deep.graph == expected
    net = ag.build(deep.graph, weights).train()
    net(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert int(net.state_dict()["stage2.4.bn1.num_batches_tracked"]) == 1


def test_graft_goes_on_alternating():
    halves = tuple(f"layers.{i}.{b}" for i in range(2) for b in ("qkv", "up"))
    graph = graph_of(nets.Encoder(2)).replace(sections=(("layers", halves),))
    deep = ag.graft(graph, {"layers": 7}, verify=True)
    names = [f"layers.{i}.{b}" for i in range(4) for b in ("qkv", "up")][:7]
    assert parts(deep.graph)["layers"] == names
    assert deep.transfer.entries["layers.3.qkv.weight"].source == "layers.1.qkv.weight"
    assert deep.transfer.entries["layers.2.up.weight"].source == "layers.1.up.weight"


def test_graft_of_layers_in_one_list():
    net = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(8, 8), nn.ReLU())))
    net.append(nn.Linear(8, 2))
    deep = ag.graft(graph_of(net, torch.randn(2, 8)), {"0": 5}, verify=True)
    # 5 is a ReLU and 6 the classifier
    assert list(parts(deep.graph).values()) == [["0", "2", "4", "7", "8"], ["6"]]


@with_parts(
    lambda: {
        "gamma": nn.Parameter(torch.randn(6)),
        "first": nn.Linear(6, 6),
        "second": nn.Linear(6, 6),
        "last": nn.Linear(6, 2),
    }
)
def Scaled(self, x):
    """A block of a layer and a parameter that belongs to the network itself."""
    x = self.first(x)
    return self.last(x + self.gamma * self.second(x))


class Listed(nn.Sequential):
    """The same, with the parameter directly in a list of layers."""

    def forward(self, x):
        x = self[0](x)
        return self[2](x + self.gamma * self[1](x))


def listed() -> nn.Module:
    net = Listed(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    net.gamma = nn.Parameter(torch.randn(6))
    return net


@pytest.mark.parametrize(
    ("net", "block", "names"),
    [
        (Scaled(), "second", ["gamma_2", "second_2.weight", "second_2.bias"]),
        (listed(), "1", ["gamma_3", "3.weight", "3.bias"]),
        (nn.Sequential(Scaled()), "0.second", ["1.gamma", "1.second.weight", "1.second.bias"]),
        (nn.Sequential(listed()), "0.1", ["0.gamma_3", "0.3.weight", "0.3.bias"]),
    ],
    ids=["top", "listed", "module", "list in a module"],
)
def test_a_parameter_beside_the_layers_is_copied_under_a_new_name(net, block, names):
    graph = graph_of(net, torch.zeros(2, 6))
    section = ag.structure(graph).block(block).section
    count = len(ag.structure(graph).section(section).blocks)
    deep = ag.graft(graph, {section: count + 1}, verify=True).graph
    assert {p.name for p in deep.params} - {p.name for p in graph.params} == {*names}


@with_parts(
    lambda: {
        "stem": nn.Linear(3, 6),
        "a": nn.Linear(6, 6),
        "b": nn.Linear(6, 6),
        "act": nn.ReLU(),
        "fc": nn.Linear(6, 2),
    }
)
def Across(self, x):
    """A residual block that is no module: its layers lie beside those of others."""
    x = self.stem(x)
    return self.fc(x + self.b(self.act(self.a(x))))


class Inner(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


@with_parts(lambda: {"fc": nn.Linear(6, 6)})
def Own(self, x):
    return x + self.fc(x).relu()


@with_parts(lambda: {"other": nn.Linear(6, 2)})
def Other(self, x):
    return self.other(x)


def inner() -> nn.Module:
    return Inner(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))


@pytest.mark.parametrize(
    ("net", "section", "new", "scopes"),
    [
        # A module without parameters that lies beside the layers keeps its name.
        (Across, "a", "a_2.weight a_2.bias b_2.weight b_2.bias", "a_2 act b_2"),
        # Layers that are numbered inside a block keep their numbers, that of the block changes.
        (
            lambda: nn.Sequential(nn.Linear(3, 6), nn.Sequential(inner(), inner())),
            "1",
            "1.2.0.weight 1.2.0.bias 1.2.2.weight 1.2.2.bias",
            "1.2.0 1.2.1 1.2.2",
        ),
        # A number under which something else lies is left free.
        (
            lambda: nn.Sequential(nn.Linear(3, 6), nn.Sequential(Own(), Other())),
            "1",
            "1.2.fc.weight 1.2.fc.bias",
            "1.2.fc 1.2",
        ),
    ],
    ids=["across", "numbered", "taken"],
)
def test_a_copy_is_named_after_its_block(net, section, new, scopes):
    graph = graph_of(net(), torch.zeros(2, 3))
    depth = len(ag.structure(graph).section(section).blocks)
    deep = ag.graft(graph, {section: depth + 1}).graph
    assert set(deep.state_names) - set(graph.state_names) == set(new.split())
    kinds = ("aten.linear", "aten.relu")
    before, after = (Counter(n.scope for n in g.nodes if n.op in kinds) for g in (graph, deep))
    assert set(after - before) == set(scopes.split())


@with_parts(lambda how: {"layer": nn.Linear(6, 6), "noise": nn.Linear(6, 6), "how": how})
def Learned(self, x):
    """A residual block with a layer that runs in training only."""
    y = self.layer(x).relu()
    return x + self.how(y, self.noise(x)) if self.training else x + y


@with_parts(
    lambda shared: {"a": (layer := nn.Linear(6, 6)), "b": layer if shared else nn.Linear(6, 6)}
)
def Twice(self, x):
    """A residual block whose two layers may be one."""
    return x + self.b(self.a(x).relu())


@with_parts(lambda mode: {"layer": nn.Linear(6, 6), "mode": mode})
def Rounded(self, x):
    return x + torch.div(self.layer(x), 2.0, rounding_mode=self.mode)


@pytest.mark.parametrize(
    ("block", "kind", "other", "found"),
    [
        (Learned, torch.add, torch.mul, r"aten\.add.* aten\.mul"),
        (Twice, True, False, r"blocks\.1\.a\.\w+; expected"),
        (Rounded, "floor", "trunc", r"aten\.div\.Tensor_mode with .*floor"),
    ],
    ids=["in training", "shared weights", "another setting"],
)
def test_blocks_that_compute_something_else_are_not_alike(block, kind, other, found):
    graph, deep = stacked(block, 2, kind), stacked(block, 3, kind)
    made = ag.graft(graph, {"blocks": 3}, like=deep).graph
    assert (made.nodes, made.state_names) == (deep.nodes, deep.state_names)
    with pytest.raises(ag.RewriteError, match=rf"blocks differ; found {found}"):
        ag.graft(graph, {"blocks": 3}, like=stacked(block, 3, other))


def test_graft_lines_up_with_another_graph():
    large, narrow = residual_graph((3, 4)), nets.net_graph(nets.Basic, (1, 2), (4, 6))
    deep = ag.graft(narrow, {"stage1": 3, "stage2": 4}, like=large, verify=True).graph
    assert [p.name for p in deep.params] == [p.name for p in large.params]
    assert deep.param["stage2.3.conv2.weight"].shape == (6, 6, 3, 3)
    assert parts(deep) == parts(large)


def test_what_reads_the_end_of_a_section_reads_the_new_end():
    graph = graph_of(nets.Exits(), train=True)
    small = ag.shorten(graph, {"stages.0": 1, "stages.1": 1, "stages.2": 1})
    again = small >> (
        lambda g: ag.graft(g, {f"stages.{i}": 2 for i in range(3)}, like=graph, verify=True)
    )
    assert again.graph == graph  # the exits of both modes are behind the last blocks again


def test_the_output_moves_to_the_new_block():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nets.Basic(8, 8), nets.Basic(8, 8))
    graph, state = captured(net, torch.randn(2, 3, 8, 8), train=False)
    deep = ag.graft(graph, {ag.structure(graph).block("1").section: 3}, verify=True)
    x = torch.randn(2, 3, 8, 8)
    found = ag.build(deep.graph, deep.transfer.pull(state)).eval()(x)
    expected = net.eval().get_submodule("2")(net(x))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # float32


def test_masks_are_shared_and_noise_is_not():
    class Model(nets.Encoder):
        def forward(self, x):
            gate = (x.mean((1, 2, 3)) > 0)[:, None, None]  # one mask for all layers
            x = self.patch(x).flatten(2).transpose(1, 2)
            for layer in self.layers:
                noise = torch.rand_like(x[:, :1, :1]) if self.training else 1.0
                x = x + noise * layer.get_submodule("up")(x)[..., :8] * gate
            return self.head(x.mean(1))

    graph = graph_of(Model(3), train=True)
    (section,) = (s for s in ag.structure(graph).sections if s.kind == "stage")
    small = ag.shorten(graph, {section.name: 1})
    again = small >> (lambda g: ag.graft(g, {section.name: 3}, like=graph, verify=True))
    assert again.graph == graph


def test_a_copy_has_a_table_of_its_own_and_the_networks_table_stays_one():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.table = nn.Linear(4, 4), nn.Parameter(torch.rand(4))

        def forward(self, x, common):
            return x + self.layer(x + torch.tanh(self.table) + common).relu()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.common = nn.Linear(3, 4), nn.Parameter(torch.rand(4))
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            x, common = self.first(x), torch.sigmoid(self.common)
            for block in self.blocks:
                x = block(x, common)
            return x

    # The first block, of which there is a copy as well, has the operator that all share.
    deep = ag.graft(graph_of(Model(), torch.zeros(2, 3)), {"blocks": [0, 0, 1, 2, 2]}, verify=True)
    operators = Counter(node.op for node in deep.graph.nodes)
    assert (operators["aten.tanh"], operators["aten.sigmoid"]) == (5, 1)
    tables = [name for name in deep.graph.state_names if name.endswith("table")]
    assert sorted(tables) == [f"blocks.{number}.table" for number in range(5)]


def test_graft_fills_a_gap_in_order():
    large = residual_graph((2, 4))
    small = ag.skip(large, "stage2.1")
    deep = small >> (lambda g: ag.graft(g, {"stage2": 4}, like=large, verify=True))
    assert deep.graph == large
    assert deep.transfer.entries["stage2.1.conv1.weight"].source == "stage2.3.conv1.weight"


@pytest.mark.parametrize(
    ("depths", "like", "message"),
    [
        ({"stage2": 2}, None, "stage2: depth out of range; found 2; expected at least 3; shorten"),
        ({"stage2": 5}, (2, 4), "stage2: depth out of range; found 5; expected 3 to 4, as in like"),
        ({"stem": 2}, None, "stem: section has no repeatable block; found stem, which changes"),
        ({"stage1": 3}, nets.Inverted, "no block of the section computes the same"),
    ],
)
def test_impossible_grafts(depths, like, message):
    if like is nets.Inverted:
        like = residual_graph((3, 3), nets.Inverted)
    elif like is not None:
        like = residual_graph(like)
    with pytest.raises(ag.RewriteError, match=message):
        ag.graft(residual_graph(), depths, like=like)


def test_sections_stay_where_they_could_not_be_found_again():
    halves = tuple(f"layers.{i}.{b}" for i in range(2) for b in ("qkv", "up"))
    graph = graph_of(nets.Encoder(2)).replace(sections=(("layers", halves),))
    small = ag.skip(graph, ["layers.0.up", "layers.1.qkv"])
    assert parts(small.graph)["layers"] == ["layers.0.qkv", "layers.1.up"]
    again = small >> (lambda g: ag.graft(g, {"layers": 4}, like=graph, verify=True))
    assert again.graph == graph


def test_the_users_sections_shrink_and_grow():
    mine = (("encoder", ("layers.0", "layers.1", "layers.2")),)
    graph = graph_of(nets.Encoder(3)).replace(sections=mine)
    small = ag.shorten(graph, {"encoder": 1}, verify=True)
    assert small.graph.sections == (("encoder", ("layers.0",)),)
    again = small >> (lambda g: ag.graft(g, {"encoder": 3}, like=graph, verify=True))
    assert again.graph == graph
    deep = ag.graft(graph, {"encoder": 4}, verify=True)
    assert deep.graph.sections == (("encoder", (*mine[0][1], "layers.3")),)


def test_verify_sees_a_wrong_result(monkeypatch):
    module = importlib.import_module("archgraph.rewrites.skip")
    graph = residual_graph()
    monkeypatch.setattr(
        module, "_without", lambda g, *_: ag.Rewritten.identity(g)
    )  # nothing left out
    with pytest.raises(ag.RewriteError, match="not the original with these blocks at zero"):
        ag.skip(graph, "stage1.1", verify=True)


def test_composes_with_width():
    graph = residual_graph()
    both = ag.take(graph, 0.5) >> (lambda g: ag.shorten(g, {"stage2": 2}, verify=True))
    other = ag.shorten(graph, {"stage2": 2}) >> (lambda g: ag.take(g, 0.5))
    assert both.graph == other.graph
    assert both.transfer == other.transfer
    assert ag.structure(both.graph).section("stage2").blocks[-1].name == "stage2.1"


def test_the_law_of_a_graft_looks_at_the_graph_without_it(monkeypatch):
    graph = residual_graph()
    monkeypatch.setattr(
        "archgraph.rewrites.graft.skip", lambda deep, names: ag.Rewritten.identity(deep)
    )
    with pytest.raises(ag.RewriteError, match="the graph without its new blocks differs"):
        ag.graft(graph, {"stage2": 4}, verify=True)


@with_parts(lambda shared: {"own": nn.Linear(6, 6), "shared": shared})
def Tied(self, x):
    """A residual block with a layer of its own and one that all blocks share."""
    return x + self.shared(self.own(x).relu())


def test_what_blocks_share_is_shared_by_their_copies():
    graph = stacked(Tied, 2, nn.Linear(6, 6))
    deep = ag.graft(graph, {"blocks": 3}, verify=True).graph
    assert set(deep.state_names) - set(graph.state_names) == {
        "blocks.2.own.weight",
        "blocks.2.own.bias",
    }


@with_parts(lambda noise: {"layer": nn.Linear(6, 6), "noise": noise})
def Noisy(self, x):
    """A residual block that training makes noisy."""
    y = self.layer(x).relu()
    return x + y * self.noise(x) if self.training else x + y


NOISE = {
    "in place": lambda x: torch.empty(x.shape[0], 1).bernoulli_(0.8).div_(0.8),
    "of a table": lambda x: torch.bernoulli(torch.full((x.shape[0], 1), 0.8)),
    "of no table": lambda x: torch.rand(6) + 0.5,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", NOISE)
def test_a_copy_draws_noise_of_its_own(kind):
    """The graph is that of the deeper model: what noise is drawn from is copied, too."""
    two, three = (stacked(Noisy, depth, NOISE[kind]) for depth in (2, 3))
    assert ag.graft(two, {"blocks": 3}, verify=True).graph == three


def test_graft_takes_an_order_of_blocks():
    # SOLAR: the blocks twice, without the last of the first copy and the first of the second
    graph, state = captured(residual((1, 4)), torch.randn(2, 3, 8, 8), train=False)
    body = [0, 1, 2, 1, 2, 3]
    deep = ag.graft(graph, {"stage2": body}, verify=True)
    new = [
        b.name for s in ag.structure(deep.graph).sections if s.name == "stage2" for b in s.blocks
    ]
    sources = [deep.transfer.entries[f"{name}.conv1.weight"].source for name in new]
    assert sources == [f"stage2.{i}.conv1.weight" for i in body]
    weights, built = deep.transfer.pull(state), ag.build(deep.graph, deep.transfer.pull(state))
    assert len(weights) > len(state) and built.eval()(torch.randn(2, 3, 8, 8)).isfinite().all()
    for order in ([0, 1, 2], [0, 2, 1, 3], [0, 1, 2, 3, 4]):
        with pytest.raises(ag.RewriteError, match="is not an order of the section's blocks"):
            ag.graft(graph, {"stage2": order})
    with pytest.raises(ag.RewriteError, match="depth is not an integer"):
        ag.graft(graph, {"stage2": [0, 1.5]})  # type: ignore[list-item]  # a wrong value
