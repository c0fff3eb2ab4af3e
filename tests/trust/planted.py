"""Faults planted by hand that once survived, or might; and mutants that change nothing."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Planted:
    """A fault written by hand; it keeps the number of lines.

    Attributes:
        room: Whose tests must notice it.
        path: The file.
        old: What stands there, once.
        new: What stands there instead.
        why: What it would do.
    """

    room: str
    path: str
    old: str
    new: str
    why: str

    @property
    def name(self) -> str:
        """Like that of a mutant."""
        return f"{self.path}: {self.why}"

    @property
    def line(self) -> int:
        """First line of the innermost statement that holds the fault."""
        text = (ROOT / self.path).read_text()
        assert text.count(self.old) == 1, f"{self.name}: once in the file, not {self.old!r}"
        assert self.old.count("\n") == self.new.count("\n"), f"{self.name}: as many lines"
        first = text[: text.index(self.old)].count("\n") + 1
        spans = (
            (node.end_lineno or node.lineno, -node.lineno)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.stmt) and node.lineno <= first <= (node.end_lineno or 0)
        )
        return -min(spans, key=lambda span: span[0] + span[1])[1]

    def apply(self) -> ast.Module:
        """The module with the fault."""
        return ast.parse((ROOT / self.path).read_text().replace(self.old, self.new))


STATES, CAPTURE = "archgraph/states", "archgraph/capture"
SKIP, LAWS = "archgraph/rewrites/skip.py", "archgraph/rewrites/laws.py"
PLANTED = (
    Planted(
        "rewrites", SKIP,
        "for term in block.terms}", "for term in block.terms[:1]}",
        "one of several terms of a dense block goes",
    ),
    Planted(
        "rewrites", SKIP,
        "Ref(b.bypass) for", "Ref(b.entry) for",
        "what a dense block prepares is lost",
    ),
    Planted(
        "rewrites", SKIP,
        "if not b.terms or passes_on(graph, b)}", "}",
        "a value that is joined twice is joined once",
    ),
    Planted(
        "rewrites", SKIP,
        "None if spanned else without", "without",
        "a mask is compared under a norm",
    ),
    Planted(
        "rewrites", LAWS,
        "refuse_empty(graph, rewritten.graph)  # 1", "pass",
        "empty tensors are accepted",
    ),
    Planted(
        "rewrites", LAWS,
        "for positive in (False, True):", "for positive in (False,):",
        "narrow networks of rectifiers are refused",
    ),
    Planted(
        "rewrites", LAWS,
        "check_law(graph, rewritten, None, seed=seed)", "pass",
        "norms over one position are accepted",
    ),
    Planted(
        "states", f"{STATES}/updates.py",
        "int(value.isnan().sum()), int(value.isinf().sum())", "int(value.isnan().sum()), 0",
        "infinite updates are accepted",
    ),
    Planted(
        "states", f"{STATES}/updates.py", "1 / LARGEST < update.weight < LARGEST",
        "1 / LARGEST < update.weight",
        "infinite weights and scales are accepted",
    ),
    Planted(
        "states", f"{STATES}/updates.py", "1 / LARGEST < update.weight <", "1e-3 < update.weight <",
        "low weights are refused",
    ),
    Planted(
        "states", f"{STATES}/coverage.py", "weight * entry.scale**2", "weight * abs(entry.scale)",
        "coverage with the scale instead of its square",
    ),
    Planted(
        "states", f"{STATES}/coverage.py",
        "if self.rows and dim == 0", "if self.rows and dim == 1",
        "rows count along another dimension",
    ),
    Planted(
        "states", f"{STATES}/dimension_map.py", "sums = sums * rows", "sums = sums * 1.0",
        "coverage of a fold without its rows",
    ),
    Planted(
        "states", f"{STATES}/dimension_map.py", "= 1 if rows is None else rows", "= 1.0",
        "coverage of a window without its rows",
    ),
    Planted(
        "states", f"{STATES}/dimension_map.py",
        "np.abs(values - integers) < 1e-12", "np.abs(values - integers) < 1e-3",
        "weights near a whole number are rounded to it",
    ),
    Planted(
        "states", f"{STATES}/transfer.py",
        "if same and not copy:", "if same:",
        "pull lends the server's own tensors",
    ),
    Planted(
        "states", f"{STATES}/transfer.py",
        "value[index].clone(memory_format=torch.contiguous_format)", "value[index]",
        "pull of slices lends views of the server's tensors",
    ),
    Planted(
        "states", f"{STATES}/entry.py",
        "y.clone(memory_format=torch.contiguous_format)", "y",
        "an entry that is taken as a whole is lent",
    ),
    Planted(
        "states", f"{STATES}/merge.py", "if not LIGHT <= weight <= 1 / LIGHT and", "if False and",
        "weights too light or too heavy for single precision are accepted",
    ),
    Planted(
        "states", f"{STATES}/merge.py", "self._reach += max", "self._reach += 0 * max",
        "an overflow by weights that add up goes unseen",
    ),
    Planted(
        "averaging", "archgraph/federation/contribution.py",
        "math.fsum(inner) / len(inner)", "math.fsum(inner) / max(map(len, self._sizes.values()))",
        "FedFA's mean norm by the count of another layer",
    ),
    Planted(
        "record", "archgraph/record/checkpoint.py",
        '(values["experiment"], values["round"]) != (identity, number)',
        '(values["experiment"], number) != (identity, number)',
        "a checkpoint of another round is accepted",
    ),
    Planted(
        "record", "archgraph/record/checkpoint.py",
        "return Checkpoint(number, tensors,", "return Checkpoint(number + 1, tensors,",
        "a checkpoint is taken for that of the next round",
    ),
    Planted(
        "rewrites", "archgraph/rewrites/splice.py",
        "| random | learned", "| learned",
        "noise is not copied with its block",
    ),
    Planted(
        "relate", "archgraph/relate/align.py",
        "if len(inside) == len(run) > 1 and", "if len(inside) == len(run) > 99 and",
        "an unmatched section is listed block by block",
    ),
    Planted(
        "capture", f"{CAPTURE}/restored.py", "value.copy_(copy)", "pass",
        "buffers stay changed after a call that only looks",
    ),
)  # fmt: skip

# By name of a mutant: why no test can tell it from the original.
EQUIVALENT = {
    "archgraph/states/entry.py Entry.pull: -item[0] → item[0]": (
        "the order of the maps decides what pulling costs, not what it gives"
    ),
    "archgraph/states/entry.py Entry.pull: 1 → 0 (3)": (
        "it would decide between maps of one dimension, of which there is one"
    ),
    "archgraph/states/dimension_map.py DimMap.sparse: np.asarray(weights, dtype=np.float64) → "
    "np.asarray(weights)": "other numbers than these are whole, and are packed as these",
    "archgraph/states/entry.py Initial.make: 8 → 7": "another random stream, as good as this one",
    "archgraph/states/dimension_map.py DimMap.values: np.frombuffer(self.weights, dtype='<f8') → "
    "np.frombuffer(self.weights)": "the default, where numbers are little-endian",
    "archgraph/states/dimension_map.py DimMap._dense: 4 → 3": (
        "it decides what a map costs, not what it gives"
    ),
    "archgraph/states/dimension_map.py DimMap.scatter: dim > 0 → dim >= 0": (
        "it decides what scattering costs, not what it gives"
    ),
    "archgraph/federation/private_means.py _delta: counted(one).pull(state.group(one.group), "
    "copy=False) → counted(one).pull(state.group(one.group))": "a copy changes no value",
    "archgraph/states/spill.py Spill.get: 1 → 0": "a scalar is read whole in any case",
    "archgraph/record/folder.py RunRecord.create: 1 → 2 (2)": "the indentation of a JSON file",
    "archgraph/record/folder.py saved_rounds: 1 → 0": "a record that only reads removes nothing",
    "archgraph/rewrites/splice.py _after: len(items) - 1 → len(items) + 1": (
        "a slice ends where its sequence does"
    ),
    "archgraph/rewrites/splice.py _after: 1 → 0": "a slice ends where its sequence does",
    "archgraph/rewrites/compensation.py _Compensation._divide_leaf: return False → return None "
    "(2)": "both are false",
    "strategies/heterofl.py HeteroFL._rows: return {} → return None": "no masks either way",
    "strategies/fedin.py InTraining.__call__: inner(g_in, g_local) → inner(g_local, g_in)": (
        "an inner product is symmetric"
    ),
    "archgraph/rewrites/moves.py MovedFactors._others: isinstance(sent, torch.Tensor) → "
    "not isinstance(sent, torch.Tensor)": "the rows of a tensor hold the numbers that it holds",
    "archgraph/rewrites/laws.py check_law: random_inputs(wide, seed=seed) → random_inputs(wide)": (
        "the law holds for any input"
    ),
    "archgraph/rewrites/laws.py in_float64: dict(args) | {'dtype': Atom(_WIDE[node.dtype])} → "
    "{'dtype': Atom(_WIDE[node.dtype])} | dict(args)": "an argument that is None is not written",
    "archgraph/federation/contribution.py Contribution.update: size > TINY → size >= TINY": (
        "no size is exactly 1e-30"
    ),
    "archgraph/federation/average.py part: tier.transfer.pull(state.group(GLOBAL), copy=False) → "
    "tier.transfer.pull(state.group(GLOBAL))": "a copy costs memory and changes no value",
}
