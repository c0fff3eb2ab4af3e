"""The prefix of a network with a head of its own."""

import pytest
import torch
from torch import nn

import archgraph as ag
from tests import structures as nets
from tests.nets import captured, with_parts


@pytest.fixture(scope="module")
def whole():
    model = nets.Net(nets.Basic, (2, 2, 2), (8, 12, 16))
    return model, *captured(model, torch.randn(2, 3, 8, 8))


def test_it_is_the_head_of_what_the_section_makes(whole):
    model, graph, state = whole
    short = ag.ends_after(graph, "stage2", 7)
    pulled = short.transfer.pull(state)
    net = ag.build(short.graph, pulled).eval()
    x = torch.randn(3, 3, 8, 8)
    model.eval()
    inside = model.stage2(model.stage1(torch.relu(model.stem(x)))).mean((2, 3))
    expected = nn.functional.linear(inside, pulled["end.weight"], pulled["end.bias"])
    torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-6)  # float32
    assert [s.name for s in ag.structure(short.graph).sections][:3] == ["stem", "stage1", "stage2"]


def test_only_the_head_is_initialised_and_the_rest_goes_back(whole):
    _, graph, state = whole
    short = ag.ends_after(graph, "stage1", 7)
    entries = short.transfer.entries
    assert {n for n, e in entries.items() if e.source is None} == {"end.weight", "end.bias"}
    kept = [n for n in short.graph.state_names if not n.startswith("end.")]
    assert kept == [n for n in state if n.startswith(("stem.", "stage1."))]
    again = short.transfer.pull(state)
    assert all(torch.equal(again[n], state[n]) for n in kept)
    merger = ag.Merger(graph, state)
    merger.add(short.transfer, again)
    merged, _ = merger.result()
    assert all(torch.equal(merged[n], tensor) for n, tensor in state.items())


def test_a_head_may_be_an_architecture_and_a_second_end_has_another_name(whole):
    _, graph, _ = whole
    head = captured(nn.Sequential(nn.Conv2d(12, 4, 1), nn.Flatten()), torch.zeros(2, 12, 4, 4))
    once = ag.ends_after(graph, "stage2.1", head.graph, verify=True)
    assert "end.0.weight" in once.graph.state_names
    twice = ag.ends_after(once.graph, "stage1.0", 3, verify=True).graph
    assert [n for n in twice.state_names if n.startswith("end")] == ["end_1.weight", "end_1.bias"]


def test_what_cannot_end(whole):
    _, graph, _ = whole
    with pytest.raises(ag.GraphError, match=r"stage9'; expected .*stage"):
        ag.ends_after(graph, "stage9", 3)
    with pytest.raises(
        ag.RewriteError, match=r"stage1: not a head; found 0; expected an architecture"
    ):
        ag.ends_after(graph, "stage1", 0)
    with pytest.raises(
        ag.RewriteError, match=r"stage1: the head's input does not match the section's output"
    ):
        ag.ends_after(graph, "stage1", captured(nn.Linear(3, 2), torch.zeros(2, 3)).graph)


def test_without_a_head_it_ends_at_the_exit_there(whole):
    _, graph, state = whole
    early = ag.add_exits(graph, {"stage1": 7, "stage2": 7})
    short = ag.ends_after(early.graph, "stage2", verify=True)
    assert ag.exits(short.graph) == ("stage1", "stage2")
    pulled = early.transfer.pull(state)
    x = torch.randn(3, 3, 8, 8)
    wanted = ag.build(early.graph, pulled).eval()(x)
    answers = ag.build(short.graph, short.transfer.pull(pulled)).eval()(x)
    assert all(torch.equal(answers[name], wanted[name]) for name in answers)
    assert not [n for n in short.graph.state_names if n.startswith(("stage3", "fc"))]
    with pytest.raises(
        ag.RewriteError, match="stage3: no exit at this section; found main, stage1, stage2"
    ):
        ag.ends_after(early.graph, "stage3")
    with pytest.raises(
        ag.RewriteError, match="stage1: no exit at this section; found a single unnamed output"
    ):
        ag.ends_after(graph, "stage1")


def test_counters_of_an_evaluated_capture_go_with_their_modules(whole):
    graph = captured(whole[0], torch.randn(2, 3, 8, 8), train=False).graph
    names = ag.ends_after(graph, "stage1", 3).graph.state_names
    assert "stage1.0.bn1.num_batches_tracked" in names
    assert not any(name.startswith(("stage2", "stage3", "fc")) for name in names)


@with_parts(lambda: {"linear": nn.Linear(4, 4)})
def Sided(self, x):
    """A block that also makes a loss of its own, after the value that goes on."""
    y = x + self.linear(x).relu()
    return y, y.square().mean(1, keepdim=True)


@with_parts(
    lambda: {
        "stem": nn.Linear(3, 4),
        "head": nn.Linear(4, 2),
        "blocks": nn.ModuleList([Sided(), Sided()]),
    }
)
def WithLosses(self, x):
    x, total = self.stem(x), 0
    for block in self.blocks:
        x, loss = block(x)
        total = total + loss
    return (self.head(x), total) if self.training else self.head(x)


def test_the_head_reads_what_goes_on_and_not_a_side_branch():
    graph = captured(WithLosses(), torch.randn(2, 3)).graph
    first = ag.structure(graph).blocks[1]
    short = ag.ends_after(graph, first.name, 6, verify=True).graph
    assert short.param["end.weight"].shape == (6, 4)
    exits = ag.add_exits(graph, {first.name: 6}, verify=True).graph
    assert {p.shape for p in exits.params if p.name.startswith("exits.")} == {(6, 4), (6,)}
