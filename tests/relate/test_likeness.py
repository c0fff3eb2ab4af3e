"""What two blocks have in common, and what keeps them apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured, with_parts
from tests.relate.networks import flat, shapes


def test_classes_do_not_shrink() -> None:
    few = captured(nn.Linear(3, 2), torch.zeros(1, 3)).graph
    found = ag.align(few, captured(nn.Linear(3, 5), torch.zeros(1, 3)).graph)
    assert "dimension 0 is weight.out[2] in weight and weight.out[5] in weight" in str(found)
    with pytest.raises(ag.RewriteError, match="has no counterpart"):
        _ = found.transfer


def test_the_last_layer_is_no_hidden_one() -> None:
    # Without activations all layers have one form, but for what they make.
    deep = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    flat = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    found = ag.align(*(captured(n, torch.zeros(1, 3)).graph for n in (flat, deep)))
    assert found.blocks == (("0", "0"), ("1", "2"))


@with_parts(
    lambda a, b, names="ab", *, flip=False, product=False: {
        "names": names[::-1] if flip else names,
        "product": product,
        **{
            name: nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 6))
            for name, width in zip(names, (a, b), strict=True)
        },
        "last": nn.Linear(6, 2),
    }
)
def Branches(self, x):
    """Two layers of one form, brought together in one way or another."""
    one, other = (getattr(self, name)(x) for name in self.names)
    return self.last(torch.relu(one * other if self.product else one + other))


@pytest.mark.sample(2)
@pytest.mark.parametrize("product", [False, True])
def test_operands_of_one_form_are_told_apart_by_name_then_by_width(product: bool) -> None:
    whole = flat(Branches(4, 16, product=product))
    flipped = flat(Branches(4, 16, flip=True, product=product))
    same = {name: name for name in whole.state_names}
    assert dict(ag.align(flipped, whole).leaves) == same
    assert {e.source for e in ag.align(flipped, whole).transfer.entries.values()} == set(same)
    assert shapes(ag.join([whole, flipped]).graph) == shapes(whole)
    wider = flat(Branches(20, 2, flip=True, product=product))  # names come before widths
    assert dict(ag.align(wider, whole).leaves) == same
    stranger = flat(nn.Sequential(Branches(3, 12, "zy", flip=True, product=product)))
    found = ag.align(stranger, whole)  # no name in common
    assert dict(found.leaves)["0.z.0.weight"] == "a.0.weight" and found.transfer


def test_the_tenth_branch_comes_after_the_ninth() -> None:
    @with_parts(
        lambda begin: {
            "names": [str(begin), str(begin + 1)],
            "part": nn.ModuleDict({str(n): nn.Linear(6, 4) for n in (begin, begin + 1)}),
            "last": nn.Linear(4, 2),
        }
    )
    def Net(self, x):
        one, other = (self.part[name](x) for name in self.names)
        return self.last(torch.relu(one + other))

    found = ag.align(flat(Net(9)), flat(Net(10)))
    assert dict(found.leaves)["part.9.weight"] == "part.10.weight"


@with_parts(
    lambda alpha, flip=False: {
        "a": nn.Linear(6, 4),
        "b": nn.Sequential(nn.Linear(6, 4), nn.Tanh()),
        "last": nn.Linear(4, 2),
        "alpha": alpha,
        "flip": flip,
    }
)
def Scaled(self, x):
    """A sum in which the second operand counts more or less than the first."""
    one, other = (self.b(x), self.a(x)) if self.flip else (self.a(x), self.b(x))
    return self.last(torch.relu(torch.add(one, other, alpha=self.alpha)))


@pytest.mark.full
def test_operands_of_a_weighted_sum_are_not_exchanged() -> None:
    for alpha in (2, 0.5, -1):
        found = ag.align(flat(Scaled(alpha)), flat(Scaled(alpha, flip=True)))
        assert found.unmatched and ag.align(flat(Scaled(alpha)), flat(Scaled(alpha))).score == 1
    for alpha in (0.5, -1.0):
        assert "add with alpha=" in str(ag.align(flat(Scaled(alpha)), flat(Scaled(1))))
    assert ag.align(flat(Scaled(1)), flat(Scaled(1, flip=True))).score == 1


@pytest.mark.parametrize(
    "one, other, reason",
    [
        (nn.Hardtanh(-1.0, 1.0), nn.Hardtanh(0.0, 6.0), "min_val=-1, max_val=1 vs min_val=0"),
        (nn.ELU(1.0), nn.ELU(3.0), "elu with alpha=1 vs alpha=3"),
        (nn.LeakyReLU(0.01), nn.LeakyReLU(0.9), "leaky_relu with default vs negative_slope=0.9"),
        (nn.Threshold(0.5, 0.0), nn.Threshold(-3.0, 0.0), "threshold=0.5 vs threshold=-3"),
    ],
)
def test_numbers_belong_to_a_form(one: nn.Module, other: nn.Module, reason: str) -> None:
    graphs = [flat(nn.Sequential(nn.Linear(6, 4), a, nn.Linear(4, 2))) for a in (one, other)]
    found = ag.align(*graphs)
    assert found.score < 1 and reason in str(found)
    with pytest.raises(ag.RewriteError, match="has no counterpart"):
        _ = found.transfer


def test_rates_do_not() -> None:
    def net(p: float, eps: float = 1e-5, momentum: float = 0.1) -> ag.ArchGraph:
        layers = (nn.Linear(6, 4), nn.BatchNorm1d(4, eps, momentum), nn.ReLU(), nn.Dropout(p))
        return flat(nn.Sequential(*layers, nn.Linear(4, 2)))

    assert ag.align(net(0.1), net(0.5, eps=0.1, momentum=0.5)).transfer


@with_parts(
    lambda mask, factor=2.0: {
        "a": nn.Linear(6, 6),
        "b": nn.Linear(6, 2),
        "factor": factor,
        "mask": nn.Buffer(mask, persistent=False),
    }
)
def Masked(self, x):
    """A product with a constant and a number."""
    return self.b(torch.relu(self.a(x) * self.factor) * self.mask)


def test_constants_and_factors_are_compared() -> None:
    mask = torch.arange(6.0)
    whole = flat(Masked(mask))
    assert ag.align(flat(Masked(mask)), whole).score == 1
    assert "mask and mask have different values" in str(ag.align(flat(Masked(mask.flip(0))), whole))
    found = ag.align(flat(Masked(mask, -3.0)), whole)
    assert "the factor is -3.0 in %mul and 2.0 in %mul" in str(found)
    with pytest.raises(ag.RewriteError, match="the factor is"):
        ag.join([flat(Masked(mask, -3.0)), whole])


@pytest.mark.parametrize("divide", [False, True])
def test_factors_may_be_roots_of_widths(divide: bool) -> None:
    @with_parts(
        lambda size, factor: {
            **{name: nn.Linear(6, size) for name in "qkv"},
            "last": nn.Linear(size, 2),
            "factor": factor,
        }
    )
    def Attention(self, x):
        q = self.q(x) / self.factor if divide else self.q(x) * self.factor
        return self.last(torch.softmax(q @ self.k(x).mT, -1) @ self.v(x))

    root = 0.5 if divide else -0.5
    client, whole = (flat(Attention(size, size**root)) for size in (4, 9))
    assert ag.align(client, whole).transfer
    assert ag.align(flat(Attention(4, 0.7)), whole).unmatched
