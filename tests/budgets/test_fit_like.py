"""Submodels that the class of a model can be constructed as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archgraph as ag
from archgraph.analysis.axes import Axis
from archgraph.budgets.widths import AxisGroup, widths_of_class
from archgraph.federation.family import resolve
from archgraph.language import load_family
from tests.nets import captured

WORDS = {"input_ids": torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0))}
ENCODER = {"vocab_size": 30, "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 2,
           "num_attention_heads": 6, "max_position_embeddings": 20}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 3, "pad_token_id": 0, "use_cache": False}
T5 = {"vocab_size": 30, "d_model": 24, "d_kv": 4, "d_ff": 60, "num_layers": 1, "num_heads": 6,
      "decoder_start_token_id": 0, "use_cache": False}  # fmt: skip
MODELS = {
    "BertForSequenceClassification": ("BertConfig", ENCODER),
    "LlamaForCausalLM": ("LlamaConfig", DECODER),
    "Qwen3ForCausalLM": ("Qwen3Config", {**DECODER, "head_dim": 8}),
    "ViTForImageClassification": (
        "ViTConfig", {**ENCODER, "image_size": 16, "patch_size": 8}
    ),
    "T5ForConditionalGeneration": ("T5Config", T5),
}  # fmt: skip


def model_of(kind: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model whose weights have a natural scale, and an example."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    name, sizes = MODELS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = {k: v for k, v in sizes.items() if kind[0] != "V" or "vocab" not in k}
        model = getattr(transformers, kind)(getattr(transformers, name)(**config)).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    if kind.startswith("ViT"):
        return model, {"pixel_values": torch.randn(2, 3, 16, 16)}
    more = {"decoder_input_ids": WORDS["input_ids"]} if kind.startswith("T5") else {}
    return model, WORDS | more


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", MODELS)
def test_a_submodel_for_a_budget_goes_home(kind, tmp_path):
    model, example = model_of(kind)
    graph, state = captured(model, train=False, **example)
    full = ag.cost(graph).macs
    budgets: Any = ((0.3, "free"), (0.5, "free"), (0.75, "nested"))
    for budget, shape in budgets:
        small = ag.fit(graph, macs=budget, shape=shape, like=model)
        used = ag.cost(small.graph).macs / (budget * full)
        assert (0.95 if shape == "free" else 0.5) < used <= 1
        weights = small.transfer.pull(state)
        folder = tmp_path / f"{budget}{shape}"
        changes = ag.to_transformers(small, weights, model, folder)
        assert len(changes) >= 2
        again = type(model).from_pretrained(folder).eval()
        with torch.no_grad():
            expected = ag.build(small, weights).eval()(**example)["logits"]
            torch.testing.assert_close(again(**example).logits, expected, atol=1e-5, rtol=1e-5)


def test_blocks_go_too_and_what_stays_stays(tmp_path):
    model, example = model_of("LlamaForCausalLM")
    graph, state = captured(model, train=False, **example)
    small = ag.fit(graph, macs=0.3, like=model, keep=["heads"], skip="*", multiple=4)
    changes = ag.to_transformers(small, small.transfer.pull(state), model, tmp_path)
    assert changes["num_hidden_layers"] == 1 and "num_attention_heads" not in changes
    cut = changes.keys() & {"hidden_size", "intermediate_size"}
    assert cut and all(changes[name] % 4 == 0 for name in cut)


def sizes_of(graph: ag.ArchGraph) -> dict[str, int]:
    return {axis.name: axis.size for axis in ag.axes(graph).free}


FAMILY = """
archgraph: 1
model:
  python: transformers:BertForSequenceClassification
  args: {config: {python: "transformers:BertConfig", args: SIZES}}
  inputs: {input_ids: {shape: [9], dtype: int64}}
clients:
  - {name: all, count: 1}
  - {name: half, count: 1, fit: {macs: 0.5, like: true}}
"""


def test_a_family_says_it(tmp_path):
    model, example = model_of("BertForSequenceClassification")
    path = tmp_path / "family.yaml"
    path.write_text(FAMILY.replace("SIZES", str(ENCODER).replace("'", "")))
    half = resolve(load_family(path), python=True).clients[1].graph
    graph, _ = captured(model, train=False, **example)
    alike, apart = (ag.fit(graph, macs=0.5, like=one).graph for one in (model, False))
    assert sizes_of(half) == sizes_of(alike) != sizes_of(apart)


@pytest.mark.parametrize(
    ("like", "error", "message"),
    [
        (True, ag.RewriteError, "like: needs the model itself; pass the model"),
        (torch.nn.Linear(2, 2), ag.GraphError, "like: is not a model of transformers; found Linea"),
        ("no/folder", ag.GraphError, "no/folder: names a folder that does not exist"),
    ],
)
def test_what_is_no_model_is_refused(like, error, message):
    pytest.importorskip("transformers", reason="needs the extra hf")
    graph = captured(torch.nn.Linear(3, 2), torch.zeros(1, 3)).graph
    with pytest.raises(error, match=message):
        ag.fit(graph, macs=0.5, like=like)


def test_a_model_in_a_file_of_another_kind_is_refused(tmp_path):
    model = {"archgraph": 1, "name": "mlp", "inputs": {"x": {"shape": [4]}}}
    model["sections"] = [{"name": "all", "steps": [{"linear": 8}, "relu", {"linear": 2}]}]
    half = {"name": "half", "count": 1, "fit": {"macs": 0.5, "like": True}}
    with pytest.raises(ag.SpecError, match="is not a model written in Python"):
        resolve(load_family({"model": model, "clients": [half]}))


def axis(name: str, size: int, role: str = "channels") -> Axis:
    return Axis(name, size, role, "", ())


ROLES = st.sampled_from(["channels", "heads"])


@given(
    st.lists(st.tuples(st.integers(1, 40), ROLES), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 6),
)
def test_axes_of_a_group_keep_their_ratio(sizes, multiple, step):
    group = AxisGroup(tuple(axis(f"a{i}", *one) for i, one in enumerate(sizes)), step)
    bound = [a for a in group.axes if a.role == "channels" and a.size >= 2 * multiple]
    allowed = [
        units
        for units in range(1, group.units)
        if units % step == 0 and all(group.sizes(units)[a] % multiple == 0 for a in bound)
    ]
    assert group.grid(multiple) == [*allowed, group.units]
    for units in group.grid(multiple):
        assert all(n * group.units == a.size * units for a, n in group.sizes(units).items())


BUDGET = st.floats(0.15, 1.0)


@settings(deadline=None, max_examples=25)
@given(BUDGET, BUDGET, st.sampled_from(["nested", "uniform"]))
def test_what_a_class_accepts_is_nested_too(first, second, shape):
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 12), torch.nn.ReLU(),
        torch.nn.Linear(12, 2),
    )  # fmt: skip
    graph = captured(net, torch.zeros(1, 3)).graph

    def check(small: ag.Rewritten) -> None:
        """Refuse two cut sizes of which one does not divide the other."""
        one, other = sizes_of(small.graph).values()
        if {one, other}.isdisjoint({12, 16}) and max(one, other) % min(one, other):
            raise ag.RewriteError("no such class")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archgraph.foreign.class_check.class_check", lambda like: check)
        a, b = (ag.fit(graph, macs=x, shape=shape, like="a class") for x in (first, second))
    large, small = (a, b) if first >= second else (b, a)
    check(small)
    assert large.transfer >> ag.nested(large.transfer, small.transfer) == small.transfer


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_groups_are_what_a_class_ties(data):
    """A class whose entries each set some axes: the groups are those of the entries."""
    names = [f"{chr(97 + i)}.out" for i in range(data.draw(st.integers(2, 6)))]
    entry = {name: data.draw(st.integers(0, 2)) for name in names}
    step = {number: data.draw(st.sampled_from([1, 2, 4])) for number in range(3)}
    pinned = data.draw(st.sets(st.sampled_from(names), max_size=1))
    width = 16
    graph = captured(Branches(names, width), torch.zeros(1, 3)).graph
    axes = {a.name.removeprefix("maps."): a for a in ag.axes(graph).free}
    assert set(axes) == set(names)

    def home(small: ag.Rewritten) -> None:
        sizes = {a.name.removeprefix("maps."): a.size for a in ag.axes(small.graph).free}
        for number in range(3):
            mine = [name for name in names if entry[name] == number]
            cut = {sizes[name] for name in mine}
            if len(cut) > 1 or (cut and cut < {*range(width)} and pinned & {*mine}):
                error = ag.RewriteError("tied")
                error.tied = frozenset(axes[n].name for n in mine if sizes[n] == width)
                raise error
            if any(size % step[number] for size in cut):
                raise ag.RewriteError("not a multiple")

    groups = widths_of_class(graph, axes.values(), home)
    free = [n for n in range(3) if not any(entry[name] == n for name in pinned)]
    expected = {n: {axes[name].name for name in names if entry[name] == n} for n in free}
    found = sorted((sorted(a.name for a in g.axes), g.step) for g in groups)
    assert found == sorted((sorted(s), step[n]) for n, s in expected.items() if s)


class Branches(torch.nn.Module):
    """A sum of maps, each with a width of its own."""

    def __init__(self, names: list[str], width: int) -> None:
        super().__init__()
        parts = {n.removesuffix(".out"): torch.nn.Linear(3, width) for n in names}
        self.maps = torch.nn.ModuleDict(parts)
        self.outs = torch.nn.ModuleDict({n: torch.nn.Linear(width, 2) for n in parts})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.outs[n](self.maps[n](x).relu()) for n in self.maps)


def test_sizes_that_a_class_refuses_together_are_one_step_smaller(tmp_path):
    """Here 30 of 48 and 2 of 3 groups of heads go home alone, and 30 is no multiple of 4 heads."""
    model, example = model_of("LlamaForCausalLM")
    graph, state = captured(model, train=False, **example)
    small = ag.fit(graph, macs=0.4, like=model)
    assert ag.cost(small.graph).macs > 0.39 * ag.cost(graph).macs
    changes = ag.to_transformers(small, small.transfer.pull(state), model, tmp_path)
    assert (changes["hidden_size"], changes["num_attention_heads"]) == (24, 4)
