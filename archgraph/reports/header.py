"""The header of a page: the facts of a run in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from archgraph.fields import GLOBAL
from archgraph.hints import listed
from archgraph.language import ExperimentSpec
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.runs import Log, RoundLine, rows_where, seconds
from archgraph.reports.sheets import in_bytes
from archgraph.tables import count, plural

# Maximum number of names in a list.
NAMED = 6


def header(log: Log) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each fact about a run."""
    spec = log.experiment
    if spec is not None:
        yield "strategy", spec.strategy_name
        yield "data", data(spec)
    yield from _clients(log)
    for name, of in (("parameters", "parameters"), ("MACs of an example", "macs")):
        sizes = _sizes(log, of)
        if sizes:
            yield name, sizes
    planned = spec.rounds if spec else log.done
    of = str(log.done) if log.done == planned else f"{log.done} of {planned}"
    yield "rounds", f"{of}: {log.stopped}" if log.stopped else of
    spent = seconds(log.figures)
    if spent:
        total = sum(spent.values()) or 1.0
        share = spent.get("local", 0.0) / total
        yield "time", f"{total:.1f} s, {100 * share:.0f} % of it local training"
    if spec is not None:
        yield "seed", str(spec.seed)
    sums = rows_where(log.figures, part="run").groupby("metric")["value"].sum()
    if DOWN in sums:
        yield "communication", f"{in_bytes(sums[DOWN])} down, {in_bytes(sums[UP])} up"
    yield from _protection(log, spec)


def data(spec: ExperimentSpec) -> str:
    """Describe which data is used and how it is divided among the clients.

    Example:
        >>> facts = {"name": "a", "family": "f", "rounds": 1, "strategy": {"fedavg": {}}}
        >>> facts["local"] = {"lr": 0.1}
        >>> parts = {"scheme": "dirichlet", "alpha": 0.5}
        >>> data(ExperimentSpec.model_validate({**facts, "data": {"dataset": "mnist"}}))
        'mnist'
        >>> named = {"dataset": "mnist", "partition": parts}
        >>> data(ExperimentSpec.model_validate({**facts, "data": named}))
        'mnist, dirichlet (alpha 0.5)'
    """
    # Each kind of data names its source by one of these keys.
    sources = (getattr(spec.data, key, None) for key in ("dataset", "python", *spec.data.located))
    parts = [value for value in sources if isinstance(value, str)][:1]
    partition = spec.data.partition
    if partition is not None:
        options = partition.model_dump(exclude={"scheme", "shares"}, exclude_defaults=True)
        # Papers compare values of alpha, so alpha is shown even if it is the default.
        options |= {"alpha": value} if (value := getattr(partition, "alpha", None)) else {}
        text = ", ".join(f"{key} {value}" for key, value in options.items())
        parts.append(f"{partition.scheme} ({text})" if text else partition.scheme)
    return ", ".join(parts) or "passed from Python"


def _clients(log: Log) -> Iterator[tuple[str, str]]:
    tiers = Counter(client.tier for client in log.participants)
    if not tiers:
        return
    of = ", ".join(f"{many} {name}" for name, many in tiers.items())
    sample = log.experiment.sample if log.experiment else 1.0
    # 1.0 is all clients, 1 is one client.
    share = f"{100 * sample:g} %" if isinstance(sample, float) else str(sample)
    yield "clients", f"{tiers.total()}: {of}" + (f"; {share} a round" if share != "100 %" else "")


def _sizes(log: Log, of: str) -> str:
    """Format a size of the global model, and its range over the other models."""
    sizes = {name: getattr(cost, of) for name in log.graphs if (cost := log.cost(name))}
    size, others = sizes.pop(GLOBAL, None), sorted(sizes.values())
    parts = [] if size is None else [f"{count(size)} global"]
    if others:
        ends = dict.fromkeys(map(count, (others[0], others[-1])))
        parts.append(f"{'–'.join(ends)} of clients")
    return ", ".join(parts)


def _protection(log: Log, spec: ExperimentSpec | None) -> Iterator[tuple[str, str]]:
    """Yield the facts about attack, privacy and lost updates, if any."""
    bad = [client.label for client in log.clients if client.malicious]
    if spec is not None and spec.attack is not None and bad:
        yield "malicious", f"{listed(bad, NAMED, '; ')}"
    spent: RoundLine = log.rounds[-1].get("privacy") or {} if log.rounds else {}
    if spent:
        epsilon = spent.get("epsilon")  # JSON has no infinity
        bound = "∞" if epsilon is None else f"{epsilon:.4g}"
        yield "privacy of a client", f"ε {bound} for δ {spent['delta']:g}"
    if lost := sum(log.lost.values()):
        yield "lost", plural(lost, "update")
