"""Training goes on after a rewrite: exact statements in float64, and real steps without a jump."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.errors import RewriteError
from archgraph.states.optimisers import repeated

RATE = 0.05
OPTIMISERS = {
    "momentum": lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, RATE, momentum=0.8, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, RATE, eps=0),
    "amsgrad": lambda p: torch.optim.Adam(p, RATE, eps=0, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, RATE, eps=0, weight_decay=0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, RATE, eps=0, momentum=0.5, centered=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, RATE, eps=0),
    "adamax": lambda p: torch.optim.Adamax(p, RATE, eps=0),
}
ADAPTIVE = [name for name in OPTIMISERS if name not in ("momentum", "nesterov")]


class Net(nn.Module):
    """Two hidden layers, a residual branch and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 6)
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.a(x).tanh()
        x = x + self.norm(self.b(x)).tanh()
        return self.head(x)


def batches(count, seed=0, channels=5):
    stream = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(16, channels, generator=stream, dtype=torch.float64),
            torch.randn(16, 3, generator=stream, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def step(net, optimiser, batch, masks=None, rates=None):
    """One step in evaluation's statistics; returns the loss before it."""
    optimiser.zero_grad()
    loss = (net(batch[0]) - batch[1]).square().mean()
    loss.backward()
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    for name, parameter in net.named_parameters():
        if masks is not None:
            parameter.grad *= masks[name]
    optimiser.step()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if masks is not None:
                parameter *= masks[name]
            if rates is not None:  # entries with learning rates of their own
                parameter.copy_(before[name] + rates[name] * (parameter - before[name]))
    return loss.item()


def trained(kind, steps=4):
    torch.manual_seed(0)
    net = Net().double().eval()
    graph = ag.trace(net, batches(1)[0][0], train=False).graph
    optimiser = OPTIMISERS[kind](net.parameters())
    for batch in batches(steps):
        step(net, optimiser, batch)
    assert all(optimiser.state[p] for p in net.parameters())
    return graph, net, optimiser


def follower(rewritten, net, optimiser, kind):
    """The rewritten network and its optimiser, with what the old one kept."""
    made = ag.build(rewritten.graph, rewritten.transfer.pull(dict(net.state_dict()))).eval()
    again = OPTIMISERS[kind](made.parameters())
    ag.carry(rewritten, (net, optimiser), (made, again))
    return made, again


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


def same_state(one, two):
    """Equal weights and equal optimisers."""
    (net, optimiser), (other, expected) = one, two
    own = dict(other.named_parameters())
    for name, parameter in net.named_parameters():
        close(parameter, own[name])
        for kind, value in expected.state[own[name]].items():
            found = optimiser.state[parameter][kind]
            if isinstance(value, torch.Tensor):
                close(found, value)
            else:
                assert found == value


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_training_then_cutting_is_cutting_then_training(kind):
    graph, net, optimiser = trained(kind)
    small = ag.take(graph, positions={"a.out": [4, 0, 3]})
    shapes = {s.name: s.shape for s in small.transfer.target}
    masks = {}
    for name, parameter in net.named_parameters():
        masks[name] = torch.zeros_like(parameter)
        kept = torch.ones(shapes[name], dtype=torch.float64)
        small.transfer.entries[name].push(kept, masks[name])
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter *= masks[name]
    made, again = follower(small, net, optimiser, kind)
    for batch in batches(3, seed=1):
        one = step(net, optimiser, batch, masks)
        assert one == pytest.approx(step(made, again, batch), rel=1e-12)
    same_state((made, again), follower(small, net, optimiser, kind))


def shares(rewritten):
    """Coverage of every parameter: how often it is copied, one over it where it is divided."""
    return {s.name: rewritten.transfer.coverage[s.name] for s in rewritten.transfer.source}


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_widened_network_trains_as_the_original_with_other_rates(kind):
    graph, net, optimiser = trained(kind)
    wide = ag.widen(graph, sizes={"a.out": 9})
    made, again = follower(wide, net, optimiser, kind)
    # SGD: the rate over the coverage. Adam moves every entry by its rate: a divided one by its
    # whole rate, of which widening would hand on a part.
    entries, cover = wide.transfer.entries, shares(wide)
    rates = {}
    for name, parameter in net.named_parameters():
        rates[name] = 1 / cover[name]
        if kind in ADAPTIVE:
            weight = entries[name].magnitude().pull(torch.ones_like(parameter))
            counted = wide.transfer.push({**wide.transfer.pull(dict(net.state_dict())),
                                          name: torch.ones_like(weight)})[0][name]  # fmt: skip
            rates[name] = counted / cover[name]
    for batch in batches(3, seed=1):
        one = step(net, optimiser, batch, rates=rates)
        assert one == pytest.approx(step(made, again, batch), rel=1e-11)
    same_state((made, again), follower(wide, net, optimiser, kind))


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_narrowing_takes_what_was_carried_back(kind):
    graph, net, optimiser = trained(kind)
    wide = ag.widen(graph, sizes={"a.out": 10}, seed=2)
    made, again = follower(wide, net, optimiser, kind)
    back = ag.narrow(wide.graph, sizes={"a.out": 6}, mode="net2net", seed=2)
    same_state(follower(back, made, again, kind), (net, optimiser))


@pytest.mark.parametrize("kind", ["momentum", "nesterov", "adam", "adamw"])
@pytest.mark.parametrize("grow", ["widen", "deepen", "adapters"])
def test_the_loss_goes_on_without_a_jump(kind, grow):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(8, 8), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(8, 3)).double() if grow == "deepen" else Net().double()
    net.eval()
    graph = ag.trace(net, batches(1)[0][0], train=False).graph
    optimiser = OPTIMISERS[kind](net.parameters())
    for group in optimiser.param_groups:  # eps as usual: new entries begin with gradients of zero
        group["lr"] = 0.01
        if "eps" in group:
            group["eps"] = 1e-8
    batch = batches(1, seed=2)[0]
    losses = [step(net, optimiser, batch) for _ in range(30)]
    grown = {
        "widen": lambda: ag.widen(graph, 1.5),
        "deepen": lambda: ag.deepen(graph, {ag.structure(graph).sections[0].name: 5}),
        "adapters": lambda: ag.add_adapters(graph, 2),
    }[grow]()
    made, again = follower(grown, net, optimiser, kind)
    for group in again.param_groups:
        group |= {k: v for k, v in optimiser.param_groups[0].items() if k != "params"}
    after = [step(made, again, batch) for _ in range(30)]
    next_ = step(net, optimiser, batch)
    assert after[0] == pytest.approx(next_, rel=1e-9)  # the same function where it goes on
    assert max(after) < 1.05 * losses[-1] and after[-1] < losses[-1] < losses[0]


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_deepened_network_makes_the_same_step(kind):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), *(Residual() for _ in range(2)), nn.Linear(6, 3)).double()
    graph = ag.trace(net.eval(), batches(1)[0][0], train=False).graph
    optimiser = OPTIMISERS[kind](net.parameters())
    for batch in batches(4):
        step(net, optimiser, batch)
    deep = ag.deepen(graph, {"1": 3})
    assert repeated(deep.transfer) == {"4.a.weight", "4.a.bias"}
    made, again = follower(deep, net, optimiser, kind)
    own = dict(net.named_parameters())
    fresh = [p for n, p in made.named_parameters() if n not in own]
    kept = [v for p in fresh for v in again.state[p].values()]  # Adagrad begins with zeros
    assert len(fresh) == 4 and not any(v.any() for v in kept)
    batch = batches(1, seed=1)[0]
    step(net, optimiser, batch)
    step(made, again, batch)
    for name, parameter in own.items():
        close(made.get_parameter(name), parameter)
        for key, value in optimiser.state[parameter].items():
            close(again.state[made.get_parameter(name)][key], value)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 7), nn.Linear(7, 6)

    def forward(self, x):
        return x + self.b(self.a(x).tanh())


def test_averages_of_weights_follow_weights():
    graph, net, _ = trained("momentum")
    optimiser = torch.optim.ASGD(net.parameters(), RATE, t0=0)
    for batch in batches(3):
        step(net, optimiser, batch)
    wide = ag.widen(graph, sizes={"a.out": 9})
    made = ag.build(wide.graph, wide.transfer.pull(dict(net.state_dict())))
    again = torch.optim.ASGD(made.parameters(), RATE)
    ag.carry(wide, (net, optimiser), (made, again))
    state = dict(net.state_dict())
    state |= {n: optimiser.state[p]["ax"] for n, p in net.named_parameters()}
    for name, value in wide.transfer.pull(state).items():
        if name in dict(made.named_parameters()):
            close(again.state[made.get_parameter(name)]["ax"], value)


def test_a_refused_carry_leaves_the_new_optimiser_as_it_was():
    graph, net, optimiser = trained("adam")
    wide = ag.widen(graph, sizes={"a.out": 12})
    made = ag.build(wide.graph, wide.transfer.pull(dict(net.state_dict())))
    other = torch.optim.SGD(made.parameters(), RATE, momentum=0.9)
    with pytest.raises(RewriteError, match=r"of two kinds .* found Adam and SGD"):
        ag.carry(wide, (net, optimiser), (made, other))
    for parameter in net.parameters():  # known kinds of state come first
        optimiser.state[parameter]["odd"] = torch.ones_like(parameter)
    again = OPTIMISERS["adam"](made.parameters())
    with pytest.raises(RewriteError, match="odd: how this state"):
        ag.carry(wide, (net, optimiser), (made, again))
    assert not other.state and not again.state


def test_new_parameters_start_without_state_and_others_keep_their_step():
    graph, net, optimiser = trained("adam")
    made, again = follower(ag.add_adapters(graph, 2), net, optimiser, "adam")
    own = dict(net.named_parameters())
    for name, parameter in made.named_parameters():
        if name in own:
            assert again.state[parameter]["step"] == optimiser.state[own[name]]["step"] == 4
            assert again.state[parameter]["step"] is not optimiser.state[own[name]]["step"]
        else:
            assert parameter not in again.state


class Odd(torch.optim.SGD):
    """Keeps something under a name of its own."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] |= {"squares": p.grad.square(), "count": torch.tensor(3), "on": True}


def test_unknown_state_is_asked_for_and_single_numbers_are_copied():
    torch.manual_seed(0)
    net = Net().double().eval()
    graph = ag.trace(net, batches(1)[0][0], train=False).graph
    optimiser = Odd(net.parameters(), RATE)
    step(net, optimiser, batches(1)[0])
    wide = ag.widen(graph, sizes={"a.out": 12})
    made = ag.build(wide.graph, wide.transfer.pull(dict(net.state_dict())))
    again = Odd(made.parameters(), RATE)
    with pytest.raises(RewriteError, match=r"squares: how this state follows gradients is not kno"):
        ag.carry(wide, (net, optimiser), (made, again))
    ag.carry(wide, (net, optimiser), (made, again), orders={"squares": 2})
    found = again.state[made.get_parameter("a.weight")]
    expected = optimiser.state[net.a.weight]["squares"].repeat(2, 1) / 4
    close(found["squares"], expected)
    assert found["on"] is True and found["count"] == 3


def test_an_optimiser_of_something_else_is_refused():
    graph, net, optimiser = trained("momentum")
    wide = ag.widen(graph, sizes={"a.out": 12})
    made = ag.build(wide.graph, wide.transfer.pull(dict(net.state_dict())))
    again = OPTIMISERS["momentum"](made.parameters())
    with pytest.raises(RewriteError, match="a parameter that its network or the transfer lacks"):
        ag.carry(wide, (made, again), (made, again))
    with pytest.raises(RewriteError, match="a parameter that its network or the transfer lacks"):
        ag.carry(wide, (net, optimiser), (net, again))
