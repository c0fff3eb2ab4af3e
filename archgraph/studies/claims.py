"""What came of a study's claims: which comparisons count, corrected for their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.studies.outcomes import LEVEL, ClaimOutcome, Paired, holm

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
        runs: What is compared: the measure, or both where they differ, and the settings of both
            cells (addresses of their runs without the seeds).
        gated: Whether the gate of its setting was judged: without one it has no verdict.
        published: The difference of the same cells as printed, positive as claimed; None: one of
            the two is not printed.
        below: Which of the two is below the trivial reference of its setting, with its figure.
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
    published: float | None = None
    below: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A comparison with its verdict.

    Attributes:
        finding: The comparison.
        outcome: Of a primary comparison that counts; None otherwise.
        p: The p value that decided, after the correction; of other comparisons the raw one.
        note: Why there is no outcome, or why it is undecided.
        elsewhere: Whether another comparison of the same cells has the figures.
        together: Number of comparisons that were corrected together with it, itself among them.
    """

    finding: StudyFinding
    outcome: ClaimOutcome | None
    p: float | None
    note: str = ""
    elsewhere: bool = False
    together: int = 1

    @property
    def tabled(self) -> Paired | None:
        """The differences, where this comparison is the one that has the figures."""
        return None if self.elsewhere else self.finding.paired

    @property
    def detectable(self) -> float | None:
        """The smallest difference that its seeds find at the level that the correction leaves."""
        paired = self.finding.paired
        return None if paired is None else paired.detectable(LEVEL / self.together)

    @property
    def outside(self) -> bool:
        """Whether the published difference lies outside the measured interval."""
        paired, published = self.finding.paired, self.finding.published
        if paired is None or paired.interval is None or published is None:
            return False
        low, high = paired.interval
        return not low <= published <= high

    @property
    def text(self) -> str:
        """The verdict in words, and which of the two methods is below the trivial reference.

        >>> Judged(StudyFinding("A", "b", "", "f", None), None, None, "not measured").text
        'not measured'
        """
        verdict = ": ".join(filter(None, (self.outcome, self.note)))
        marked = self.finding.below and self.tabled
        return f"{verdict} ({', '.join(self.finding.below)})" if marked else verdict


def judge(findings: Sequence[StudyFinding]) -> tuple[Judged, ...]:
    """Judge comparisons together, each pair of cells once.

    1. What leaves the count by a rule is not corrected for. A primary comparison that is not
       measured yet is, with a p value of 1: no verdict may depend on which runs are done first.
    2. Of comparisons of the same two cells by the same measure one has the figures, and the others
       refer to it: a primary one before all others, then the one with the most seeds.
    3. Comparisons that are not primary are exploratory: interval and raw p, and no verdict.
    4. The others are corrected together with all of their study, and with all that share runs,
       directly or through others (Holm): the tests of a difference among themselves, and those of
       equivalence. With too few seeds, or in a setting without a gate, they are undecided whatever
       their p.

    Args:
        findings: Of one study, or of several, in their order.
    """
    judged: dict[int, Judged] = {}
    first: dict[tuple[str, frozenset[tuple[str, ...]]], StudyFinding] = {}
    primary: list[int] = []

    def first_of_a_pair(number: int) -> tuple[bool, int]:
        one = findings[number]
        return not one.primary, -len(one.paired.differences) if one.paired else 0

    for number in sorted(range(len(findings)), key=first_of_a_pair):
        one = findings[number]
        measure, ours, theirs = one.runs
        pair = measure, frozenset((ours, theirs))
        if one.rule:  # 1
            p = None if one.paired is None else one.paired.p
            judged[number] = Judged(one, "not counted", p, RULES[one.rule])
        elif one.paired is None:
            judged[number] = Judged(one, None, None, "not measured")
            if one.primary:
                primary.append(number)
        elif any(pair[1]) and pair in first:  # 2
            known = first[pair]
            note = f"{'judged' if known.primary else 'compared'} in {known.study}"
            judged[number] = Judged(one, None, None, note, elsewhere=True)
        else:
            first[pair] = one
            if one.primary:
                primary.append(number)
            else:  # 3
                judged[number] = Judged(one, None, one.paired.p, "exploratory")
    for group in _sharing(findings, primary):  # 4
        pairs = {n: findings[n].paired for n in group}
        differ = _corrected({n: None if of is None else of.p for n, of in pairs.items()})
        # Without a margin a comparison cannot be equivalent.
        able = {n: of for n, of in pairs.items() if of is None or of.margin is not None}
        within = _corrected({n: None if of is None else of.p_equivalent for n, of in able.items()})
        for n, of in pairs.items():
            if of is None:
                continue
            p, note = differ[n], ""
            outcome = of.outcome(p, within.get(n))
            if (many := len(of.differences)) < SEEDS:
                outcome, note = "undecided", f"{many} of {SEEDS} seeds"
            elif not findings[n].gated:
                outcome, note = "undecided", "its setting has no gate"
            elif outcome == "equivalent":
                p = within[n]
            judged[n] = Judged(findings[n], outcome, p, note, together=len(group))
    return tuple(judged[number] for number in range(len(findings)))


def _corrected(values: Mapping[int, float | None]) -> dict[int, float | None]:
    """Correct p values; one that is not known yet counts as 1."""
    corrected = holm({n: 1.0 if p is None else p for n, p in values.items()})
    return {n: None if p is None else corrected[n] for n, p in values.items()}


def _sharing(findings: Sequence[StudyFinding], numbers: Iterable[int]) -> list[list[int]]:
    """Group comparisons that are connected by their study or by runs that they share."""
    import networkx

    graph = networkx.Graph()
    for number in numbers:
        _, ours, theirs = findings[number].runs
        graph.add_edge(number, ("study", findings[number].study))
        graph.add_edges_from((number, run) for run in (*ours, *theirs))
    groups = networkx.connected_components(graph)
    return [sorted(n for n in group if isinstance(n, int)) for group in groups]
