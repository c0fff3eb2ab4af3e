"""What came of a study's claims: which comparisons count, corrected for their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.studies.outcomes import ClaimOutcome, Paired, holm

# Seeds below which a primary claim has no verdict.
SEEDS = 5
# Why a comparison leaves the count, and what that means.
RULES: dict[str, str] = {
    "construction": "holds by construction",
    "untrained": "holds of the same networks before training",
    "manipulation": "checks that a manipulation took effect",
    "reference": "its setting does not pass the gate of trivial references",
}
CountRule: TypeAlias = Literal["construction", "untrained", "manipulation", "reference"]


@dataclass(frozen=True)
class StudyFinding:
    """One comparison of a claim.

    Attributes:
        study: Name of the study.
        claim: What is claimed, in words.
        where: The column; of columns that are compared, the row and the rest of their names.
        figure: By which figure.
        paired: Differences by seed; None: a cell is missing.
        primary: Whether the study's file names it among the claims that are judged.
        rule: Why it does not count, of :data:`RULES`; empty: it counts.
        runs: What is compared: the measure, and the runs of both cells.
        gated: Whether the gate of its setting was judged: without one it has no verdict.
    """

    study: str
    claim: str
    where: str
    figure: str
    paired: Paired | None
    primary: bool = False
    rule: str = ""
    runs: tuple[str, tuple[str, ...], tuple[str, ...]] = ("", (), ())
    gated: bool = True


@dataclass(frozen=True)
class Judged:
    """A comparison with its verdict.

    Attributes:
        finding: The comparison.
        outcome: Of a primary comparison that counts; None otherwise.
        p: The p value that decided, after the correction; of other comparisons the raw one.
        note: Why there is no outcome, or why it is undecided.
    """

    finding: StudyFinding
    outcome: ClaimOutcome | None
    p: float | None
    note: str = ""

    @property
    def text(self) -> str:
        """The verdict in words.

        >>> Judged(StudyFinding("A", "b", "", "f", None), None, None, "not measured").text
        'not measured'
        """
        return ": ".join(filter(None, (self.outcome, self.note)))


def judge(findings: Sequence[StudyFinding]) -> tuple[Judged, ...]:
    """Judge comparisons together, each pair of runs once.

    1. What is not measured, or leaves the count by a rule, has no p value in the correction.
    2. A pair of cells that an earlier study judges by the same measure refers to it.
    3. Comparisons that are not primary are exploratory: interval and raw p, and no verdict.
    4. The others are corrected together with all that share runs, directly or through others
       (Holm): the tests of a difference among themselves, and those of equivalence. With too few
       seeds, or in a setting without a gate, they are undecided whatever their p.

    Args:
        findings: Of one study, or of several, in their order.
    """
    judged: dict[int, Judged] = {}
    first: dict[tuple[str, frozenset[tuple[str, ...]]], str] = {}
    primary: list[int] = []
    for number, one in enumerate(findings):
        measure, ours, theirs = one.runs
        pair = measure, frozenset((ours, theirs))
        if one.paired is None:  # 1
            judged[number] = Judged(one, None, None, "not measured")
        elif one.rule:
            judged[number] = Judged(one, "not counted", one.paired.p, RULES[one.rule])
        elif not one.primary:  # 3
            judged[number] = Judged(one, None, one.paired.p, "exploratory")
        elif any(pair[1]) and pair in first:  # 2
            judged[number] = Judged(one, None, one.paired.p, f"judged in {first[pair]}")
        else:
            first[pair] = one.study
            primary.append(number)
    for group in _sharing(findings, primary):  # 4
        pairs = {n: d for n in group if (d := findings[n].paired) is not None}
        differ = holm({n: p for n, of in pairs.items() if (p := of.p) is not None})
        within = holm({n: p for n, of in pairs.items() if (p := of.p_equivalent) is not None})
        for n in group:
            judged[n] = _judged(findings[n], differ.get(n), within.get(n))
    return tuple(judged[number] for number in range(len(findings)))


def _judged(finding: StudyFinding, p: float | None, within: float | None) -> Judged:
    assert finding.paired is not None
    many = len(finding.paired.differences)
    if many < SEEDS:
        return Judged(finding, "undecided", p, f"{many} of {SEEDS} seeds")
    if not finding.gated:
        return Judged(finding, "undecided", p, "its setting has no gate")
    outcome = finding.paired.outcome(p, within)
    return Judged(finding, outcome, within if outcome == "equivalent" else p)


def _sharing(findings: Sequence[StudyFinding], numbers: Iterable[int]) -> list[list[int]]:
    """Group comparisons that are connected by runs that they share."""
    import networkx

    graph = networkx.Graph()
    for number in numbers:
        graph.add_node(number)
        _, ours, theirs = findings[number].runs
        graph.add_edges_from((number, run) for run in (*ours, *theirs))
    groups = (sorted(n for n in group if isinstance(n, int)) for group in
              networkx.connected_components(graph))  # fmt: skip
    return [group for group in groups if group]
