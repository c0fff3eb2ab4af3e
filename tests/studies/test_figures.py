"""Published figures: how they are read and compared, and that those of specs/papers hold."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from archgraph.cli import app
from archgraph.errors import ArchGraphError, SpecError
from archgraph.fields import Mistake
from archgraph.studies.figures import Printed
from archgraph.studies.published import figures, figures_table

SPECS = Path(__file__).parents[2] / "specs"

NET = """\
archgraph: 1
name: net
inputs: {x: [4]}
sections: [{name: a, steps: [linear: {out: 8, name: first}, relu, linear: {out: 2, name: last}]}]
"""
# 4·8 + 8 + 8·2 + 2 parameters; half of the hidden features: 4·4 + 4 + 4·2 + 2.
WHOLE, HALF = 58, 30
UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
FAMILY = """\
archgraph: 1
name: family
model: net.yaml
clients: [{name: whole, count: 3}, {name: half, count: 1, take: 0.5}]
"""


@pytest.fixture
def compared(tmp_path: Path):
    """Findings for the given entries, about the network and the family above."""
    (tmp_path / "net.yaml").write_text(NET)
    (tmp_path / "family.yaml").write_text(FAMILY)

    def make(*entries: str):
        lines = "".join(f"  - {{{entry}}}\n" for entry in entries)
        file = tmp_path / "paper.yaml"
        file.write_text(f"archgraph: 1\npaper: P\nsource: nobody\nfigures:\n{lines}")
        return figures([file])

    return make


# ------------------------------------------------------------------------------ printed numbers


@given(
    st.integers(0, 10**12),
    st.integers(0, 6),
    st.sampled_from([*UNITS.items()]),
)
def test_a_number_agrees_with_what_it_is_printed_as(value: int, digits: int, unit) -> None:
    name, factor = unit
    scaled = Fraction(value, factor)
    if digits == 0 and name == "":
        assert Printed.parse(value).agrees(value)
        return

    def written(steps: int) -> Printed:
        """So many of the last digit, as a paper prints them."""
        whole, rest = divmod(steps, 10**digits)
        return Printed.parse(f"{whole}.{rest:0{digits}d}{name}" if digits else f"{whole}{name}")

    printed = written(round(scaled * 10**digits))
    assert printed.unit == Fraction(factor, 10**digits)
    assert printed.agrees(value)
    assert not printed.agrees(value + printed.unit + 1)
    printed = written(int(scaled * 10**digits))
    assert printed.agrees(value, "down")
    assert not printed.agrees(printed.value + printed.unit, "down")
    assert not printed.agrees(printed.value - 1, "down")


@pytest.mark.parametrize("value", [6.71, True, None, "6,71M", "", "M", "1e6", "-1", "6.M", (1,)])
def test_what_is_no_printed_number(value: object) -> None:
    with pytest.raises(Mistake, match="is not a printed number"):
        Printed.parse(value)


# ----------------------------------------------------------------------------------- comparison


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (f"what: w, model: net.yaml, published: {WHOLE}", WHOLE),
        ("what: w, model: net.yaml, measure: macs, published: 48", 48),
        ("what: w, model: net.yaml, measure: flops, published: 96", 96),
        ("what: w, model: net.yaml, measure: bytes, published: 232", 232),
        ("what: w, model: net.yaml, measure: state, published: 58", 58),
        ("what: w, model: net.yaml, trainable: true, published: 58", 58),
        (f"what: w, family: family.yaml, published: {WHOLE}", WHOLE),
        (f"what: w, family: family.yaml, member: half, published: {HALF}", HALF),
        ("what: w, family: family.yaml, mean: members, published: 44", 44),
        ("what: w, family: family.yaml, mean: clients, published: 51", 51),
        (
            "what: w, family: family.yaml, member: half, share: true, published: '0.52'",
            Fraction(15, 29),
        ),
    ],
)
def test_measures(compared, entry: str, expected: Fraction | int) -> None:
    (found,) = compared(entry)
    assert (found.ours, found.verdict, found.good, found.met) == (expected, "equal", True, True)


def test_one_figure_for_each_kind_of_client(compared) -> None:
    found = compared("what: w, family: family.yaml, published: {half: 30, whole: 57}")
    assert [(f.what, f.good) for f in found] == [("w, half", True), ("w, whole", False)]
    assert found[1].verdict == "differs +1.8%"
    assert found[1].where.endswith("paper.yaml:5: figures[0].published.whole")


@pytest.mark.parametrize(
    ("ours", "published", "good", "verdict"),
    [
        (58, 57, True, "differs +1.8%: so it is"),
        (59, 57, False, "differs +1.8%, not 59 as the file says"),
        (58, 58, False, "equal: take `known` out"),
    ],
)
def test_known_differences_are_compared_too(
    compared, ours: int, published: int, good: bool, verdict: str
) -> None:
    (found,) = compared(
        f"what: w, model: net.yaml, published: {published}, "
        f"known: {{ours: {ours}, because: so it is}}"
    )
    assert (found.good, found.verdict) == (good, verdict)


def test_digits_that_are_cut_off(compared) -> None:
    entry = "what: w, model: net.yaml, measure: bytes, published: {}, rounding: down"
    (found,) = compared(entry.format("0.23k"))
    assert (found.good, found.verdict[:5]) == (False, "equal")  # 232 also rounds to 0.23k
    (found,) = compared(entry.format("0.22k"))
    assert not found.good
    (found,) = compared("what: w, model: net.yaml, published: 0.05k, rounding: down")
    assert (found.good, found.verdict) == (True, "equal, digits cut off")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("what: w, published: 1", "needs a model or a family"),
        (
            "what: w, model: net.yaml, family: family.yaml, published: 1",
            "needs a model or a family",
        ),
        ("what: w, model: nothing.yaml, published: 1", "names a file that is not there"),
        ("what: w, model: net.yaml, member: half, published: 1", "belongs to a family"),
        ("what: w, family: family.yaml, choose: {d: 1}, published: 1", "belongs to a model"),
        ("what: w, family: family.yaml, member: haf, published: 1", "did you mean 'half'"),
        ("what: w, family: family.yaml, published: {haf: 1}", "did you mean 'half'"),
        (
            "what: w, family: family.yaml, member: half, mean: members, published: 1",
            "does not go with a member",
        ),
        ("what: w, family: family.yaml, member: half, published: {half: 1}", "entry of its own"),
        ("what: w, model: net.yaml, published: 0.20", "in quotes, its last zeros count"),
        ("what: w, model: net.yaml, publishd: 1", "did you mean 'published'"),
        ("what: w, model: net.yaml, measure: macs, trainable: true, published: 1", "to parameters"),
        ("what: w, model: net.yaml, choose: {d: 1}, published: 1", "choice"),
    ],
)
def test_mistakes_are_located(compared, entry: str, message: str) -> None:
    with pytest.raises(SpecError, match=rf"paper\.yaml:5: figures\[0\].*{message}"):
        compared(entry)


def test_python_models_are_imported_only_if_told(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(
        "archgraph: 1\npython: torch.nn:Linear\nargs: {in_features: 4, out_features: 3}\n"
        "inputs: {input: [4]}\n"
    )
    (tmp_path / "paper.yaml").write_text(
        "archgraph: 1\npaper: P\nsource: nobody\n"
        "figures: [{what: w, model: net.yaml, published: 15}]\n"
    )
    (found,) = figures([tmp_path])
    assert (found.ours, found.good, found.met) == (None, True, False)
    (found,) = figures([tmp_path], python=True)
    assert found.ours == 15
    assert found.met


def test_exit_codes(compared, tmp_path: Path) -> None:
    def call(*given: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["check", *given])
        return result.exit_code, result.output

    compared("what: good one, model: net.yaml, published: 58")
    code, text = call("--figures", str(tmp_path))
    assert code == 0
    assert "good one" in text
    assert "1 of 1 figures are equal" in text
    assert call(str(tmp_path / "paper.yaml"))[0] == 0  # its form only
    compared("what: w, model: net.yaml, published: 57")
    assert call("--figures", str(tmp_path))[0] == 1
    assert call("--figures", str(tmp_path / "net.yaml"))[0] == 2
    (tmp_path / "paper.yaml").unlink()
    assert call("--figures", str(tmp_path))[0] == 2
    assert call("--figures", str(tmp_path / "nowhere"))[0] == 2


# -------------------------------------------------------------------------------- the papers' own


@pytest.mark.full
def test_published_figures_are_met_or_explained() -> None:
    found = figures([SPECS / "papers"], python=True)
    bad = [f"{f.where}: {f.what}: {f.published.text}: {f.verdict}" for f in found if not f.good]
    assert not bad
    assert sum(f.met for f in found) > len(found) / 2
    assert all(f.ours is not None for f in found)
    assert figures_table(found).rows


def test_families_without_a_global_model_and_joins(compared, tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text("clients: [{name: a, model: net.yaml}]")
    (tmp_path / "join.yaml").write_text("model: join\nclients: [{name: a, model: net.yaml}]")
    (found,) = compared("what: w, family: alone.yaml, member: a, published: 58")
    assert found.met
    (found,) = compared("what: w, family: join.yaml, published: 58")
    assert found.met
    with pytest.raises(SpecError, match=r"paper\.yaml:5: figures\[0\]\.family: has no global"):
        compared("what: w, family: alone.yaml, published: 58")


def test_errors_of_families_name_the_entry(compared, tmp_path: Path) -> None:
    entry = "what: w, family: bad.yaml, published: 1"
    (tmp_path / "bad.yaml").write_text(FAMILY.replace("take: 0.5", "skip: [nothing]"))
    with pytest.raises(ArchGraphError, match=r"paper\.yaml:5: figures\[0\].*bad\.yaml:4.*nothing"):
        compared(entry)
