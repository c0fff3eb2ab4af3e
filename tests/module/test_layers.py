"""Built modules consist of layers of torch.nn and of blocks: they are used as the model is used."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

import archgraph as ag
from archgraph.graph.ir import Ref
from tests.nets import captured, with_parts


def build(graph, state=None) -> Any:
    """A built module, of whose parts nothing is known to the type checker."""
    return ag.build(graph, state)


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@with_parts(
    lambda width: {
        "conv": nn.Conv2d(width, width, 3, padding=1, bias=False),
        "norm": nn.BatchNorm2d(width),
        "act": nn.ReLU(inplace=True),
    }
)
def Residual(self, x):
    return self.act(self.norm(self.conv(x)) + x)


@with_parts(
    lambda: {
        "stem": nn.Conv2d(3, 8, 3, stride=2),
        "stages": nn.ModuleList(
            nn.Sequential(Residual(8), Residual(8), Residual(8)) for _ in range(2)
        ),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "twice": nn.Linear(8, 8),
        "drop": nn.Dropout(0.4),
        "head": nn.Linear(8, 5),
    }
)
def Net(self, x):
    """Stages of blocks, a functional dropout, a layer that is used twice."""
    x = self.stem(x)
    for stage in self.stages:
        x = stage(x)
    x = self.twice(F.relu(self.twice(self.flat(self.pool(x)))))
    return self.head(self.drop(x))


def equal_both_modes(one: nn.Module, other: nn.Module, *inputs: torch.Tensor) -> None:
    """Values, gradients and buffers are equal to the bit, in evaluation and in training."""
    for training in (False, True):
        results = []
        for net in (one, other):
            net.train(training).zero_grad()
            torch.manual_seed(1)
            y = net(*inputs)
            y.square().sum().backward()
            results.append((y, {k: p.grad for k, p in net.named_parameters()}, net.state_dict()))
        (y, grads, state), (z, theirs, others) = results
        torch.testing.assert_close(z, y, rtol=0, atol=0)
        assert grads.keys() == theirs.keys() and state.keys() == others.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(theirs[name], grad, rtol=0, atol=0, msg=name)
        for name, tensor in state.items():
            torch.testing.assert_close(others[name], tensor, rtol=0, atol=0, msg=name)


def rebuilt(model: nn.Module, *inputs: torch.Tensor, again: bool = False) -> Any:
    """What is built of a model's graph: equal to it in both modes, and maybe traced again."""
    graph, state = captured(model, *inputs)
    net = build(graph, state)
    equal_both_modes(model, net, *inputs)
    assert not again or captured(net, *inputs).graph == graph
    return net


@pytest.fixture(scope="module")
def traced():
    torch.manual_seed(0)
    return captured(Net(), X)


@pytest.fixture
def net(traced):
    return build(*traced)


def original(traced):
    model = Net()
    model.load_state_dict(traced.state)
    return model


def test_a_built_module_prints_as_the_model_does(traced, net):
    def layers(module):
        leaves = ((k, m) for k, m in module.named_modules() if not list(m.children()))
        return [(k, repr(m).replace("inplace=True", "inplace=False")) for k, m in leaves]

    model = original(traced)
    assert layers(net) == [(k, "ReLU()" if v.startswith("ReLU") else v) for k, v in layers(model)]
    assert list(net.state_dict()) == list(model.state_dict())
    assert isinstance(net.stages, nn.ModuleList) or isinstance(net.stages, nn.Sequential)
    assert isinstance(net.stages[1], nn.Sequential) and len(net.stages[1]) == 3
    equal_both_modes(model, net, X)


def test_blocks_stages_and_layers_call_hooks_with_their_inputs_and_results(traced, net):
    model = original(traced).eval()
    paths = ("stages.0", "stages.0.1", "stages.1.2.norm", "twice", "pool", "drop")
    seen: dict[Any, Any] = {}
    for kind, module in (("model", model), ("net", net.eval())):
        for path in paths:
            module.get_submodule(path).register_forward_hook(
                lambda m, i, o, k=(kind, path): seen.setdefault(k, []).append((i[0].clone(), o))
            )
        module(X)
    for path in paths:
        ours, theirs = seen["net", path], seen["model", path]
        assert len(ours) == len(theirs) == (2 if path == "twice" else 1)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_backward_hooks_and_hooks_that_change_results(net):
    order = []
    net.head.register_full_backward_hook(lambda *_: order.append("head"))
    net.stages[0].register_full_backward_hook(lambda *_: order.append("stage"))
    net(X).sum().backward()
    assert order == ["head", "stage"]
    net.eval()
    before = net(X)
    handle = net.stages[1].register_forward_hook(lambda m, i, o: o * 0)
    assert not torch.allclose(net(X), before)
    handle.remove()
    torch.testing.assert_close(net(X), before, rtol=0, atol=0)


def test_modes_and_gradients_of_parts(net):
    net.train()
    net.stages[1].eval()
    net.drop.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net(X)
    moved = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert moved and all(k.startswith("stages.0.") for k in moved)
    net.stages[0].requires_grad_(False)
    net(X).sum().backward()
    missing = {k for k, p in net.named_parameters() if p.grad is None}
    assert missing == {k for k, _ in net.named_parameters() if k.startswith("stages.0.")}


def test_flags_come_back_as_they_were():
    model = Net().eval()
    model.stages[1].train()
    graph, state = captured(model, X)
    net = build(graph, state)
    flags = {k: m.training for k, m in model.named_modules()}
    assert {k: m.training for k, m in net.named_modules()} == flags
    assert any("stages.1: in train mode" in note for note in graph.notes)
    half = ag.take(graph, 0.5)
    assert not build(half.graph, half.transfer.pull(state)).training
    assert all(m.training for m in net.train().modules())
    assert build(captured(Net(), X).graph).training


def test_apply_and_replacing_layers(net):
    net.apply(lambda m: nn.init.zeros_(m.weight) if isinstance(m, nn.Linear) else None)
    assert not net.head.weight.any() and not net.twice.weight.any()
    net.head = nn.Linear(8, 7)
    assert net(X).shape == (4, 7)
    net.stages[0][1] = nn.Identity()
    assert net(X).shape == (4, 7)


def test_pruning_parametrisations_and_norms_of_weights(net):
    prune.l1_unstructured(net.stages[0][0].conv, "weight", amount=0.5)
    parametrizations.spectral_norm(net.head)
    parametrizations.weight_norm(net.twice)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        net(X).square().sum().backward()
        optimiser.step()
    net(X)
    assert (net.stages[0][0].conv.weight == 0).float().mean() >= 0.5
    assert torch.linalg.matrix_norm(net.eval().head.weight, 2) < 1.2


def test_a_state_is_what_the_module_computes_with_or_is_refused_by_name(traced, net):
    graph, state = traced
    parametrizations.weight_norm(net.head)
    with torch.no_grad():
        net.head.parametrizations.weight.original1.mul_(2)
    effective = ag.state_of(net)
    torch.testing.assert_close(effective["head.weight"], net.head.weight.detach())
    merger = ag.Merger(graph, state)
    merger.add(ag.take(graph, 1.0, allow_nothing=True).transfer, effective)
    with pytest.raises(ag.GraphError, match=r"head\.weight: is parametrised"):
        ag.load_state(net, state)
    parametrize.remove_parametrizations(net.head, "weight")
    ag.load_state(net, state)

    prune.random_unstructured(net.twice, "weight", amount=0.5)
    with pytest.raises(ag.GraphError, match=r"twice\.weight.*weight_orig.*prune\.remove"):
        ag.state_of(net)
    prune.remove(net.twice, "weight")
    ag.state_of(net)
    net.extra = nn.Linear(2, 2)
    with pytest.raises(ag.GraphError, match=r"extra\.weight.*its graph lacks"):
        ag.state_of(net)


class Louder(nn.Linear):
    def forward(self, x):
        return 100 * super().forward(x)


def _hook(module, args, output):
    return output + 1


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_keep_what_the_user_changed(net, how):
    net.eval()
    net.head = Louder(8, 5)
    net.stages[0].register_forward_hook(_hook)
    net.stem.requires_grad_(False)
    net.twice.train()
    if how == "deepcopy":
        parametrizations.weight_norm(net.twice)
        other = copy.deepcopy(net)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(net))
    else:
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    torch.testing.assert_close(other(X), net(X), rtol=0, atol=0)
    assert type(other.head) is Louder and not other.stem.weight.requires_grad
    assert {k: m.training for k, m in other.named_modules()} == {
        k: m.training for k, m in net.named_modules()
    }
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert next(net.parameters()).any()
    assert other.arch == net.arch


def test_symbolic_tracing_and_feature_extraction(net):
    from torchvision.models.feature_extraction import create_feature_extractor

    net.eval()
    symbolic = torch.fx.symbolic_trace(net)
    torch.testing.assert_close(symbolic(X), net(X), rtol=0, atol=0)
    features = create_feature_extractor(net, ["stages.0", "head"])(X)
    assert features["stages.0"].shape == (4, 8, 3, 3)
    torch.testing.assert_close(features["head"], net(X), rtol=0, atol=0)


def test_functional_calls_use_the_tensors_that_they_are_given(traced, net):
    zeros = {k: torch.zeros_like(v) for k, v in net.state_dict().items()}
    assert not torch.func.functional_call(net.eval(), zeros, (X,)).any()


def test_rewritten_graphs_have_layers_of_their_new_sizes(traced):
    graph, state = traced
    rewrites = {
        "take": ag.take(graph, 0.5),
        "widen": ag.widen(graph, {"stem.out": 1.5}),
        "skip": ag.skip(graph, ["stages.0.1"]),
        "graft": ag.graft(graph, {"stages.1": 5}),
    }
    nets = {k: build(r.graph, r.transfer.pull(state)) for k, r in rewrites.items()}
    assert nets["take"].stem.out_channels == nets["take"].stages[0][0].norm.num_features == 4
    assert repr(nets["take"].head) == "Linear(in_features=4, out_features=5, bias=True)"
    assert nets["widen"].stages[1][0].conv.out_channels == nets["widen"].head.in_features == 12
    assert [type(m) is nn.Identity for m in nets["skip"].stages[0]] == [False, True, False]
    assert len(nets["graft"].stages[1]) == 5
    for name, net in nets.items():
        kinds = {type(m) for m in net.modules()}
        assert {nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.Dropout} <= kinds, name
        net(X).sum().backward()


def test_a_model_that_is_one_layer():
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    layer.bias.requires_grad_(False)
    net = build(*captured(layer, x))
    assert list(net.state_dict()) == ["weight", "bias"]
    assert net.weight.requires_grad and not net.bias.requires_grad
    torch.testing.assert_close(net(x), layer(x), rtol=0, atol=0)


def test_a_sequential_model_is_one_again():
    model, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()), torch.randn(5, 4)
    model.append(nn.Linear(6, 6))
    net = rebuilt(model, x)
    assert isinstance(net, nn.Sequential) and len(net) == 4 and type(net[-1]) is nn.Linear
    graph = captured(net, x).graph
    assert graph == captured(model, x).graph
    torch.testing.assert_close(net.eval()[:2](x), model.eval()[:2](x), rtol=0, atol=0)
    other = copy.deepcopy(net).append(nn.Softmax(-1))
    torch.testing.assert_close(other(x), net(x).softmax(-1), rtol=0, atol=0)
    shorter = ag.skip(graph, ["3"])
    assert len(build(shorter.graph)) == 3


@with_parts(
    lambda: {
        "layers": nn.ModuleList([nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]),
    }
)
def Reversed(self, x):
    for layer in reversed(self.layers):
        x = layer(x)
    return x


def test_modules_of_lists_stand_at_their_numbers():
    x = torch.randn(3, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 4), nn.Identity(), nn.Tanh())
    net = rebuilt(model, x)
    assert [type(m) for m in net] == [type(m) for m in model]
    torch.testing.assert_close(net[:3](x), model[:3](x), rtol=0, atol=0)
    turned = Reversed()
    net = rebuilt(turned, x)
    assert [type(m) for m in net.layers] == [type(m) for m in turned.layers]
    assert type(net.layers) is nn.ModuleList  # no chain: out of order
    assert copy.deepcopy(net).layers[1] is not net.layers[1]


@with_parts(
    lambda: {
        "block": Residual(3),
        "norm": nn.BatchNorm2d(3),
        "out": nn.Flatten(),
    }
)
def Shared(self, x):
    x = self.block(self.block(self.block(x)))
    return self.out(self.norm(self.block(self.norm(x).relu())))


def test_a_block_and_a_norm_that_are_called_several_times():
    model: Any = Shared()
    graph, state = captured(model, X)
    net = build(graph, state)
    calls = []
    net.block.register_forward_hook(lambda *_: calls.append("block"))
    equal_both_modes(model, net, X)
    assert calls == ["block"] * 8
    assert int(net.norm.num_batches_tracked) == int(model.norm.num_batches_tracked) == 2
    assert captured(net, X).graph == graph


def _two_names() -> dict[str, Any]:
    norm, drop, block = nn.BatchNorm1d(4), nn.Dropout(0.5), Added()
    chains = {name: nn.Sequential(nn.Linear(4, 4), norm, drop) for name in ("first", "second")}
    return {**chains, "one": block, "other": block}


@with_parts(_two_names)
def TwoNames(self, x):
    """A norm, a dropout and a block, each under two names."""
    return self.other(self.second(self.one(self.first(x))["z"]))["z"]


def test_a_module_under_two_names_is_one():
    model, x = TwoNames(), torch.randn(6, 4)
    net = rebuilt(model, x)
    assert net.first[1] is net.second[1] and net.first[2] is net.second[2]
    assert net.one is net.other and list(net.state_dict()) == list(model.state_dict())
    equal_both_modes(model.double(), net.double(), x.double())
    for one in (model, net):
        one.first[1].eval()
        prune.l1_unstructured(one.one.layer, "weight", amount=0.5)
        one.other.register_forward_hook(
            lambda m, i, o: {"z": o["z"] * 2} if isinstance(o, dict) else o * 2
        )
    results = []
    for one in (model, net):
        one.first[2].eval()
        results.append(one(x.double()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


class Doubled(nn.BatchNorm1d):
    """A norm that does more for sequences."""

    def forward(self, x):
        return super().forward(x) * 2 if x.dim() == 3 else super().forward(x)


@with_parts(lambda: dict.fromkeys(("first", "second"), Doubled(4)))
def Unlike(self, x):
    return self.second(self.first(x)[..., None])


def test_a_norm_of_which_only_one_name_is_a_layer_counts_both_calls():
    rebuilt(Unlike(), torch.randn(6, 4))


class Functional(nn.Module):
    """Weights of layers that are used without calling the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.embed = nn.Linear(6, 6), nn.Embedding(9, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight
        self.scale = parametrizations.weight_norm(nn.Linear(6, 6))

    def forward(self, ids):
        x = F.linear(self.embed(ids), self.fc.weight.T, self.fc.bias)
        return self.head(self.scale(x))


def test_functional_uses_and_parametrised_weights_stay_functional():
    net = rebuilt(Functional(), torch.arange(9).reshape(3, 3))
    assert type(net.embed) is nn.Embedding and type(net.head) is nn.Linear
    assert net.head.weight is net.embed.weight
    assert type(net.fc) is nn.Module and not isinstance(net.scale, nn.Linear)


# They mean something else to Python, to torch or to this package.
NAMES = [
    "graph", "code", "type", "half", "class", "arch", "self", "training_", "_graph", "x y",
    "forward_", "ünïcode",
]  # fmt: skip


@with_parts(
    lambda: {n: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for n in NAMES}
)
def Names(self, x):
    for name in NAMES:
        x = dict(self.named_children())[name](x)
    return x


def test_paths_may_have_any_name():
    x = torch.randn(5, 4)
    net = rebuilt(Names(), x, again=True)
    assert all(type(net._modules[name][0]) is nn.Linear for name in NAMES)
    other = copy.deepcopy(net)
    torch.testing.assert_close(other.eval()(x), net.eval()(x), rtol=0, atol=0)


@with_parts(
    lambda kind, how, **options: {"rnn": kind(4, 3, batch_first=True, **options), "how": how}
)
def Recurrent(self, x):
    y, state = self.rnn(x)
    hidden = state[0] if isinstance(state, tuple) else state
    return {"all": y, "last": hidden[-1], "both": torch.cat([hidden[-2], hidden[-1]], -1)}[self.how]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("kind", "how", "options"),
    [
        (nn.LSTM, "all", {"num_layers": 2, "bidirectional": True, "dropout": 0.3}),
        (nn.LSTM, "last", {"num_layers": 2}),
        (nn.GRU, "all", {"num_layers": 2, "dropout": 0.3}),
        (nn.GRU, "last", {"num_layers": 3}),
        (nn.RNN, "both", {"num_layers": 2, "bidirectional": True, "bias": False}),
    ],
)
def test_recurrent_layers_come_back_whole(kind, how, options):
    model, x = Recurrent(kind, how, **options), torch.randn(3, 5, 4)
    net = rebuilt(model, x, again=True)
    assert repr(net.rnn) == repr(model.rnn)
    copy.deepcopy(net)(x).sum().backward()


def test_recurrent_layers_of_unequal_sizes_are_functional():
    graph, state = captured(
        nn.Sequential(Recurrent(nn.LSTM, "all", num_layers=2), nn.Linear(3, 2)),
        torch.randn(3, 5, 4),
    )
    first = next(a for a in ag.axes(graph).free if a.name.endswith("rnn.hidden"))
    small = ag.take(graph, positions={first.name: [0, 2]})
    net = build(small.graph, small.transfer.pull(state))
    assert not isinstance(net.get_submodule("0.rnn"), nn.LSTM)
    assert "(rnn): ArchBlock(LSTM as single layers, hidden sizes 2, 3)" in repr(net)
    assert net(torch.randn(3, 5, 4)).shape == (3, 5, 2)


class Loud(nn.GRU):
    """A recurrent layer that does more."""

    def forward(self, x):  # type: ignore[override]  # one argument is enough here
        y, state = super().forward(x)
        return y * 2, state


def test_a_recurrent_layer_with_other_work_is_functional():
    net = rebuilt(nn.Sequential(Recurrent(Loud, "all", num_layers=2)), torch.randn(3, 5, 4))
    assert not isinstance(net[0].rnn, nn.GRU)


def test_operators_of_a_recurrent_layer_may_be_apart_or_be_results():
    x = torch.randn(3, 5, 4)
    graph, state = captured(
        nn.Sequential(nn.Linear(4, 4), Recurrent(nn.GRU, "all", num_layers=2)), x
    )
    expected = build(graph, state)(x)
    nodes = list(graph.nodes)
    start = next(i for i, n in enumerate(nodes) if n.op == "aten.zeros")
    nodes.insert(1, nodes.pop(start))
    first = next(n for n in nodes if n.op == "getitem")
    for other in (
        graph.replace(nodes=tuple(nodes)),  # the states are there before the layer's input
        graph.replace(outputs=(graph.outputs, Ref(first.name))),
    ):
        net = build(other, state)
        assert not isinstance(net.get_submodule("1.rnn"), nn.GRU)
        results = net(x)
        torch.testing.assert_close(
            results if other.outputs == graph.outputs else results[0], expected
        )


@with_parts()
def FirstStates(self, x):
    return torch.zeros(x.shape[0], 3, 4)


@with_parts(lambda: {"table": nn.Parameter(torch.randn(3, 4))})
def FirstPositions(self, x):
    return self.table.expand(x.shape[0], -1, -1) * 2


@with_parts(
    lambda: {
        "states": FirstStates(),
        "positions": FirstPositions(),
        "out": nn.Linear(4, 2),
    }
)
def First(self, x):
    """First states and positions: blocks that read the size of the batch and no tensor."""
    return self.out(x + self.states(x) + self.positions(x))


def test_blocks_that_read_only_the_size_of_the_batch():
    model, x = First(), torch.randn(5, 3, 4)
    net = rebuilt(model, x, again=True)
    calls = []
    net.positions.register_forward_hook(lambda m, i, o: calls.append(o.shape))
    equal_both_modes(model, net, x)
    equal_both_modes(model, net, x[:2])
    assert calls == [(5, 3, 4)] * 2 + [(2, 3, 4)] * 2
    assert net.to("meta")(x.to("meta")).shape == (5, 3, 2)


class Around(nn.Linear):
    """A module that has the weights of a linear layer and another layer inside."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(F.linear(x, self.weight, self.bias))


def test_a_module_around_a_layer_is_a_block():
    model, x = nn.Sequential(Around(), nn.ReLU()), torch.randn(3, 4)
    net = build(*captured(model, x))
    seen = []
    net[0].register_forward_hook(lambda m, i, o: seen.append(o))
    net(x)
    assert type(net[0].inner) is nn.Linear and not isinstance(net[0], nn.Linear)
    torch.testing.assert_close(seen[0], model[0](x), rtol=0, atol=0)


@with_parts(
    lambda: {
        "chain": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
    }
)
def Inside(self, x):
    """A chain whose middle result is read outside."""
    x = self.chain[1](self.chain[0](x))
    return self.chain[2](x) + x


def test_a_chain_whose_middle_is_read_outside():
    rebuilt(Inside(), torch.randn(3, 4), again=True)


@with_parts(
    lambda: {
        "body": nn.Linear(4, 4),
        "out": nn.Linear(4, 2),
        "aux": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)),
        "mean": nn.Buffer(torch.zeros(4)),
    }
)
def Auxiliary(self, x):
    """A head and stochastic depth that exist in training alone; statistics of one's own."""
    x = self.body(x)
    if self.training:
        with torch.no_grad():
            self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return self.out(x - self.mean), self.aux(x)
    return self.out(x - self.mean)


def test_layers_of_one_mode_and_buffers_that_forward_assigns():
    model, x = Auxiliary(), torch.randn(6, 4)
    graph, state = captured(model, x)
    net = build(graph, state)
    assert (
        type(net.aux) is nn.Sequential
        and type(net.aux[1]) is nn.BatchNorm1d
        and type(net.aux[2]) is nn.Dropout
    )
    for training in (True, False, True):
        results = []
        for one in (model, net):
            torch.manual_seed(3)
            results.append(one.train(training)(x))
        torch.testing.assert_close(*results, rtol=0, atol=0)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, rtol=0, atol=0)


@with_parts()
def Noise(self, x):
    return x + torch.randn_like(x) if self.training else x


def test_a_chain_of_which_one_mode_has_less():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Noise(), nn.Conv2d(4, 2, 3), Noise(), nn.ReLU())
    net = rebuilt(model, X)
    assert type(net[2]) is nn.Conv2d and type(net[4]) is nn.ReLU


@with_parts()
def Depth(self, x):
    """Stochastic depth, as torchvision has it: a block that returns its input in evaluation."""
    if not self.training:
        return x
    return x * x.new_empty(x.shape[0], 1).bernoulli_(0.5) * 2


@with_parts(lambda: {"mean": nn.Linear(4, 4), "spread": nn.Linear(4, 4)})
def Sampled(self, x):
    """An encoder that samples in training and gives the mean in evaluation."""
    mean = self.mean(x)
    return mean + torch.randn_like(mean) * self.spread(x) if self.training else mean


@with_parts(lambda: {"layer": nn.Linear(4, 4)})
def Added(self, x):
    y = self.layer(x)
    return {"z": y + 1} if self.training else {"z": y}


@with_parts(
    lambda part: {
        "first": nn.Linear(4, 4),
        "part": part(),
        "last": nn.Linear(4, 2),
    }
)
def ByMode(self, x):
    y = self.part(self.first(x))
    return self.last(y["z"] if isinstance(y, dict) else y)


@pytest.mark.sample(6)
@pytest.mark.parametrize("part", [Depth, Sampled, Added])
@pytest.mark.parametrize(("outer", "inner"), [(True, False), (False, True)])
def test_a_part_decides_by_its_own_mode(part, outer, inner):
    model, x = ByMode(part), torch.randn(8, 4)
    net = rebuilt(model, x, again=True)
    results = []
    for one in (model, net):
        one.train(outer).get_submodule("part").train(inner)
        torch.manual_seed(3)
        results.append(one(x))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    mixed = model.train(outer)
    mixed.part.train(inner)
    again = build(*captured(mixed, x))
    torch.manual_seed(3)
    torch.testing.assert_close(again(x), results[0], rtol=0, atol=0)


@with_parts(lambda: {"inner": nn.Identity()})
def ModeNumbers(self, x):
    x = F.dropout(x, 0.5 if self.training else 0.0, self.training)
    return F.leaky_relu(F.hardtanh(x, -1.0 if self.training else -2.0), 0.1)


def test_numbers_that_a_mode_decides_are_not_a_layers():
    rebuilt(nn.Sequential(nn.Linear(4, 4), ModeNumbers()), torch.randn(3, 4))


@with_parts(lambda: {"mean": nn.Buffer(torch.zeros(4))})
def StatisticsMean(self, x):
    with torch.no_grad():
        self.mean.copy_(0.5 * self.mean + x.mean(0))
    return x - self.mean


@with_parts(lambda: {"first": StatisticsMean(), "second": StatisticsMean()})
def Statistics(self, x):
    """A buffer that a block assigns and other work reads, as it was before."""
    before = self.first.mean.clone()
    return self.second(self.first(x) + before)


def test_a_buffer_that_is_read_outside_is_assigned_last():
    model, x = Statistics(), torch.randn(3, 4)
    net = build(*captured(model, x))
    for _ in range(3):
        torch.testing.assert_close(net(x), model(x), rtol=0, atol=0)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, rtol=0, atol=0)
    seen = []
    net.second.register_forward_hook(lambda m, i, o: seen.append(m.mean.clone()))
    net(x)
    torch.testing.assert_close(seen[0], net.second.mean, rtol=0, atol=0)


@with_parts()
def EitherChoice(self, x, curve):
    return (x.relu() if curve else x.tanh()) * 2


@with_parts(lambda: {"choice": EitherChoice(), "out": nn.Linear(4, 4)})
def Either(self, x):
    """A module that computes something else at each of its two calls."""
    return self.choice(self.out(self.choice(x, True)), False)


def test_a_module_whose_calls_differ_is_not_a_block():
    rebuilt(Either(), torch.randn(3, 4))


def test_checks_of_torch_are_back(net):
    with pytest.raises(ValueError, match="more than 1 value"):
        build(*captured(nn.Sequential(nn.BatchNorm1d(3)), torch.randn(2, 3)))(torch.randn(1, 3))


# -- inputs -------------------------------------------------------------------------------------


@with_parts(lambda: {name: nn.Linear(4, 4) for name in ("self", "_part")})
def Named(self, x):
    return self.get_submodule("_part")(self.get_submodule("self")(x))


def test_modules_of_any_name_can_be_compiled():
    x = torch.randn(3, 4)
    net = build(*captured(Named(), x))
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["model", "chain"])
def test_inputs_are_compared_after_hooks_that_convert_them(kind):
    model = Net() if kind == "model" else nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())
    net = build(*captured(model, X))
    net.register_forward_pre_hook(lambda m, args: (args[0].float() / 255,))
    assert net((X * 9).to(torch.uint8)).isfinite().all()
    with pytest.raises(ag.GraphError, match=r"found float32\[4, 3, 8\]"):
        net((X * 9).to(torch.uint8)[..., 0])


def test_inputs_of_different_batches_are_refused():
    @with_parts()
    def Two(self, x, y):
        return x * y

    x = torch.randn(4, 3)
    net = build(*captured(Two(), x, x))
    with pytest.raises(
        ag.GraphError, match=r"input y: has a different batch size than input x; found 1"
    ):
        net(x, x[:1])


def test_states_of_wrapped_modules(traced):
    graph, state = traced
    wrapped: Any = (
        torch.compile(build(graph, state), backend="eager"),
        torch.optim.swa_utils.AveragedModel(build(graph, state)),
        nn.Sequential(nn.Identity(), build(graph, state)),
    )
    for module in wrapped:
        own = ag.state_of(module)
        assert all(torch.equal(own[k], v) for k, v in state.items())
    with pytest.raises(ag.GraphError, match="Sequential with 2 built modules"):
        ag.state_of(nn.Sequential(build(graph), build(graph)))


def test_files_keep_the_modes(tmp_path):
    model = Net()
    model.stages[1].eval()
    graph, _ = captured(model, X)
    ag.save(graph, tmp_path / "net.yaml")
    again = ag.load(tmp_path / "net.yaml")
    assert again.flags == graph.flags == (("stages.1", False),)
    assert not build(again).stages[1].training


def test_named_results_have_an_order():
    @with_parts()
    def Results(self, x):
        return {"logits": x + 1, "hidden": x}

    x = torch.randn(2, 3)
    out = build(*captured(Results(), x))(x)
    torch.testing.assert_close(out[0], out.logits)
    assert len(out[:2]) == 2 and out[1] is out["hidden"]


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (torch.randn(3, 8, 8), r"float32\[3, 8, 8\]"),
        (torch.randn(2, 3, 8, 9), r"float32\[2, 3, 8, 9\]"),
        (torch.randn(2, 3, 8, 8).double(), r"float64\[2, 3, 8, 8\]"),
        (torch.randn(2, 3, 8, 8, device="meta"), r"is on meta and the module on"),
        ([1.0], "not a tensor; found list.*torch.as_tensor"),
        ([torch.zeros(3, 8, 8)], r"not a tensor; found list.*module\(\*inputs\)"),
        ({"x": torch.zeros(3, 8, 8)}, r"not a tensor; found dict.*module\(\*\*inputs\)"),
        (None, "not a tensor; found NoneType.*trace the model without it"),
    ],
)
def test_inputs_of_another_type_are_refused(net, x, found):
    with pytest.raises(ag.GraphError, match=rf"input x: .*{found}"):
        net(x)
    with pytest.raises(ag.ArchGraphError):
        net(x=x)


def test_a_module_in_another_dtype_takes_inputs_in_that(net):
    assert net.double()(X.double()).dtype is torch.float64
    with pytest.raises(ag.GraphError, match=r"float32\[4, 3, 8, 8\]"):
        net(X)


def test_nested_inputs_are_named():
    @with_parts()
    def Nested(self, batch, pair):
        return batch["ids"] * 2 + pair[1]

    ids, y = torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3)
    net = build(*captured(Nested(), {"ids": ids}, (y, y)))
    assert net({"ids": ids}, (y, y)).shape == (2, 3)
    with pytest.raises(ag.GraphError, match=r"input batch\['ids'\]: .*int64\[2, 4\]"):
        net({"ids": torch.ones(2, 4, dtype=torch.int64)}, (y, y))
    with pytest.raises(
        ag.GraphError, match=r"batch\['ids'\]: is missing; found a dict without 'ids'"
    ):
        net({"id": ids}, (y, y))
    with pytest.raises(ag.GraphError, match=r"input pair\[1\]: .*float64"):
        net({"ids": ids}, (y, y.double()))
