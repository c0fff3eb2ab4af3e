"""Runs of models that take texts of any length: batches end with their longest text."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.data.values import Dataset as Values
from archgraph.errors import RunError
from archgraph.federation.shard import Shard, TextPadding
from archgraph.graph.sizes import open_sizes

LENGTH = 24


class Texts(nn.Module):
    """Attention over tokens, without those that are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(30, 16), nn.Embedding(LENGTH, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        x = self.layer(x, src_key_padding_mask=mask == 0) * mask[..., None]
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


def texts(count: int, seed: int) -> Split:
    """Texts of 2 to 15 tokens that are padded to 24: of a class, its own tokens are frequent."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 3, (count,), generator=draw)
    lengths = torch.randint(2, 16, (count, 1), generator=draw)
    mask = (torch.arange(LENGTH) < lengths).to(torch.int16)
    ids = torch.randint(1, 10, (count, LENGTH), generator=draw) + 9 * targets[:, None]
    return Split((ids * mask).to(torch.int16), targets, beside={"mask": mask})


DATA = Dataset(
    "texts", "text", 3, (LENGTH,), texts(90, 0), texts(60, 1), ("a", "b", "c"), ("ids", "mask"),
    mask="mask",
)  # fmt: skip


OPEN = {"ids": {1: "length"}, "mask": {1: "length"}}


@functools.cache
def traced(*, opened: bool = False) -> Any:
    torch.manual_seed(0)
    ids, mask = torch.ones(2, LENGTH).long(), torch.ones(2, LENGTH).long()
    return ag.trace(Texts(), ids, mask, open=OPEN if opened else {})


def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of all minibatches that clients draw."""
    lengths: list[int] = []
    draw = Shard.batches

    def noted(self: Shard, *args: Any) -> Any:
        for batch in draw(self, *args):
            lengths.append(batch.inputs[0].shape[1])
            yield batch

    monkeypatch.setattr(Shard, "batches", noted)
    return lengths


def run(model: Any, data: Values, path: Any) -> Any:
    spec = {
        "name": "texts",
        "family": {"model": model, "clients": [{"name": "all", "count": 3}]},
        "strategy": {"fedavg": {}}, "rounds": 2, "seed": 0,
        "local": {"epochs": 1, "batch": 10, "lr": 0.1},
    }  # fmt: skip
    return ag.run(spec, data=data, out=path, progress=False)


def test_batches_end_with_their_longest_text(tmp_path: Any, monkeypatch: Any) -> None:
    lengths = seen(monkeypatch)
    fixed = run(traced(), DATA, tmp_path / "fixed")
    assert set(lengths) == {LENGTH}
    lengths.clear()
    opened = run(traced(opened=True), DATA, tmp_path / "open")
    assert max(lengths) <= 15 and len(set(lengths)) > 1
    ours, theirs = (dict(run.models[0].state) for run in (opened, fixed))
    for name, value in theirs.items():
        assert torch.allclose(value, ours[name], rtol=0, atol=1e-5), name


class Windows(Texts):
    """A maximum over windows of 12 tokens: no text may be shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 12)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) * mask[..., None]
        return self.head(self.conv(x.transpose(1, 2)).amax(2))


def test_models_that_no_short_text_suits_get_all_positions(tmp_path: Any, monkeypatch: Any) -> None:
    lengths = seen(monkeypatch)
    inputs = torch.ones(2, LENGTH).long()
    model = ag.trace(Windows(), inputs, inputs, open=OPEN)
    assert open_sizes(model.graph)["length"].low > 2
    run(model, DATA, tmp_path / "r")
    assert set(lengths) == {LENGTH}


def test_padding_goes_and_nothing_else() -> None:
    (ids, mask), targets = DATA.train.examples(slice(0, 5))
    (cut, rest), same = TextPadding(1, targets=False).cut((ids, mask), targets)
    length = int(mask.sum(1).max())
    assert cut.shape == rest.shape == (5, length) and same is targets
    assert not ids[:, length:].any() and torch.equal(cut, ids[:, :length])
    words = torch.arange(5 * LENGTH).view(5, LENGTH)
    assert torch.equal(TextPadding(1, targets=True).cut((ids, mask), words)[1], words[:, :length])
    assert TextPadding(1, targets=False).cut((ids, mask), words)[1] is words
    nothing = torch.zeros(2, 4)
    assert TextPadding(1, targets=False).cut((nothing, nothing), targets[:2])[0][0].shape == (2, 2)


class Labels(Texts):
    """As many labels of a text as it may have tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, LENGTH)


class Words(Texts):
    """A class of each token."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.embed(ids) * mask[..., None])


@pytest.mark.full
@pytest.mark.parametrize(("form", "positions"), [(Labels, False), (Words, True)])
def test_targets_are_cut_where_results_have_positions(
    form: Any, positions: bool, tmp_path: Any, monkeypatch: Any
) -> None:
    lengths, widths = seen(monkeypatch), set[int]()
    ones = torch.ones(2, LENGTH).long()
    model = ag.trace(form(), ones, ones, open=OPEN)
    cut = TextPadding.cut

    def noted(self: TextPadding, *arguments: Any) -> Any:
        inputs, targets = cut(self, *arguments)
        widths.add(targets.shape[1])
        return inputs, targets

    monkeypatch.setattr(TextPadding, "cut", noted)
    splits = []
    for split in (DATA.train, DATA.test):
        ids = split.inputs.long()
        targets = ids % 3 if positions else torch.nn.functional.one_hot(ids[:, 0] % LENGTH, LENGTH)
        splits.append(dataclasses.replace(split, targets=targets if positions else targets.bool()))
    count = 3 if positions else LENGTH
    forms: Any = {"classes": count, "labels": tuple(map(str, range(count)))}
    data = dataclasses.replace(DATA, train=splits[0], test=splits[1], **forms)
    run(model, data, tmp_path / "r")
    assert max(lengths) <= 15
    assert widths <= set(range(2, 16)) if positions else widths == {LENGTH}


def test_each_minibatch_ends_with_its_own_longest_text() -> None:
    mask = torch.ones(4, 6).long().tril(1)  # texts of 2, 3, 4 and 5 words
    shard = Shard((mask, mask), torch.arange(4), (1,) * 4, padding=TextPadding(1, False))
    assert [batch.inputs[0].shape[1] for batch in shard.batches(None, 2)] == [3, 5]


@pytest.mark.full
def test_a_text_that_is_too_long_is_refused(tmp_path: Any) -> None:
    split = Split(
        torch.ones(6, 30).short(), torch.arange(6) % 3, beside={"mask": torch.ones(6, 30)}
    )
    names = ("ids", "mask")
    data = Dataset("long", "text", 3, (30,), split, split, ("a", "b", "c"), names)
    with pytest.raises(RunError, match="the model's inputs do not fit the data"):
        run(traced(opened=True), data, tmp_path / "r")
