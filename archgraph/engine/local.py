"""The local engine: runs all clients on this machine, sequentially or several in parallel.

Only one client's model and update per worker are in memory at a time, whatever the number of
clients: the strategy creates tasks and receives results as a stream, in the clients' order. All
    randomness comes from generators seeded by (seed, purpose, round, client), so that a run that is
    resumed after a crash ends with the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from archgraph.engine.clients import FILE, clients_file
from archgraph.engine.experiment import Experiment
from archgraph.engine.rounds import Elsewhere, Loop
from archgraph.engine.stays_with_clients import kept_additions
from archgraph.engine.world import first_state, prepare
from archgraph.errors import RunError
from archgraph.federation import GLOBAL, Evaluated, ServerState, private_models
from archgraph.federation.family import Family
from archgraph.hints import listed
from archgraph.language import ExperimentSpec, load_experiment
from archgraph.language.consent import consent_given
from archgraph.language.experiment import LOCAL, installed_engines
from archgraph.language.flat import dump
from archgraph.notebook import framed, page_text
from archgraph.plain import Json, json_safe
from archgraph.record.folder import RunRecord, reserved, resumable
from archgraph.record.points import frame
from archgraph.record.progress import idle, table, troubles
from archgraph.record.trackers import Beginning, ConsoleTracker, Tracker, Trackers, tracker
from archgraph.states.wire import check_tensors
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        experiment: The experiment.
        server: State of the server after the last round.
        rounds: A line per round, as in ``metrics.jsonl``.
        folder: The run folder, if there is one.
        notes: Notes about data that may be read unexpectedly, about reasons why results may differ
            from those of an uninterrupted run, and about trackers that failed.
        best: The round that the run ends with under `keep: best`. Default: the last round.
    """

    experiment: Experiment
    server: ServerState
    rounds: tuple[Mapping[str, Json], ...]
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    best: int | None = None

    @property
    def evaluation(self) -> Mapping[str, Json]:
        """The evaluation of the last round, or of the best round under `keep: best`."""
        until = [r for r in self.rounds if self.best is None or r["round"] <= self.best]
        return next((r["evaluation"] for r in reversed(until) if r.get("evaluation")), {})

    @property
    def troubles(self) -> tuple[str, ...]:
        """Rejected updates, failed clients and metrics that are not finite, with their rounds."""
        return tuple(troubles(self.rounds))

    @property
    def sound(self) -> bool:
        """Whether the last round accepted an update, and the last test's figures are finite."""
        accepted = not self.rounds or not idle(self.rounds[-1])
        return accepted and not any(troubles([{"evaluation": self.evaluation}]))

    @property
    def privacy(self) -> Mapping[str, Json]:
        """The ``epsilon`` spent so far for the experiment's ``delta``; None if it is infinite."""
        return self.rounds[-1].get("privacy", {}) if self.rounds else {}

    @property
    def models(self) -> tuple[Evaluated, ...]:
        """The evaluated models of the strategy, with their trained weights."""
        strategy, world = self.experiment.strategy, self.experiment.world
        models = strategy.evaluated(world, self.server)
        return tuple(private_models(strategy, world, models, every=True))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all rounds for each phase: local training, server, evaluation, record."""
        names = ("local", "server", "evaluate", "record", "total")
        return {name: sum(r["seconds"].get(name, 0.0) for r in self.rounds) for name in names}

    def to_frame(self) -> DataFrame:
        """Return a data frame with a row per figure: round, part, group, metric, value.

        ``part`` is ``test``, ``test local``, ``validation``, ``train`` or ``run``; ``group`` is the
        model, the client or the run. See :class:`archgraph.record.points.Point`. Tables, plots and
        reports of runs use the same frame.
        """
        return frame(self.rounds)

    def table(self) -> Table:
        """Return a table with a row per tier, followed by privacy, problems and notes."""
        tiers, private = table(self.experiment.world, self.evaluation), ""
        if self.privacy:
            spent, delta = self.privacy["epsilon"], self.privacy["delta"]
            private = (
                f"privacy of a client: ε {math.inf if spent is None else spent:.4g} for δ {delta:g}"
            )
            spec = self.experiment.privacy
            if spec is not None and spec.entropy == "seed":
                private += ", while the seed is secret"
        stopped = str(self.rounds[-1].get("stopped", "")) if self.rounds else ""
        best = "" if self.best is None else f"of round {self.best}, the best on validation examples"
        notes = (tiers.note, best, stopped, private, *self.troubles, *self.notes)
        return replace(tiers, note="; ".join(filter(None, notes)))

    def __repr__(self) -> str:
        """Render rounds, figures of the global model and folder on one line."""
        figures = self.evaluation.get(GLOBAL, {})
        measured = "".join(f", {k} {v:.4g}" for k, v in figures.items() if v is not None)
        folder = "" if self.folder is None else f", {self.folder}"
        wrong = "" if self.sound else ", see troubles"
        return f"Run({plural(len(self.rounds), 'round')}{measured}{folder}{wrong})"

    def _repr_html_(self) -> str:
        """Return the report of the run, or else its table, as HTML for notebooks."""
        world, table = self.experiment.world, self.table()._repr_html_()
        if self.folder is not None:
            return framed(page_text("run", self.folder), table, f"run in {self.folder}", 700)
        return framed(page_text("page", Family(world.graph, None, world.tiers)), table, "models")


def run(
    experiment: str | os.PathLike[str] | ExperimentSpec | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    resume_from: int | None = None,
    overwrite: bool = False,
    data_root: str | os.PathLike[str] | None = None,
    data: object = None,
    progress: bool = True,
    python: bool = False,
    trackers: Sequence[object] = (),
) -> Run:
    """Run an experiment.

    Args:
        experiment: A file, a parsed file, or a dict with the same keys, in which a model may be a
            graph or the result of ``ag.trace``.
        out: Run folder. Default: the folder that the experiment names, or else nothing is written.
        resume: Resume the run in the folder after its last checkpoint. If the run stopped before
            its folder was complete, start again.
        resume_from: Resume the run after this round; later rounds are removed.
        overwrite: Replace the run in the folder, once the new one is ready to start.
        data_root: Folder of the data. Default: that of the experiment, or else the folder in
            ``ARCHGRAPH_DATA``.
        data: Data to use instead of the experiment's ``data``. Either ``(train, test)``, each a
            torch dataset or a pair ``(inputs, targets)`` of tensors, where ``train`` may also be a
            mapping by client (see :func:`archgraph.data.dataset_of`). Or ``{"huggingface": dataset,
            …}`` with a Dataset or DatasetDict, and the other keys as in a file: ``inputs`` or
            ``text``, ``target``.
        progress: Write a line per round to standard error.
        python: Consent to run the Python code that the experiment, its data and its models name.
        trackers: Trackers to report every round to, in addition to those of the experiment: names,
            names with options (``{"csv": {"path": "figures.csv"}}``), or objects with ``begin``,
            ``round`` and ``end`` (:class:`archgraph.record.Tracker`).

    Returns:
        The finished run: server state, a line per round, a table.

    Raises:
        ArchGraphError: If the experiment is invalid, or the folder is in use, cannot be written,
            contains another experiment, or one of its files was changed: then nothing is written.
            Also if all clients of a round fail, or no update is accepted for `patience` rounds:
            then the earlier rounds stay recorded.
    """
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    folder = None if out is None and spec.out is None else Path(out or spec.out or "")
    resume = resume or resume_from is not None
    with spec.locating("trackers"):
        receivers = [tracker(choice) for choice in spec.trackers]
    receivers += [tracker(choice) for choice in trackers]
    if resume:
        _check_resumable(folder, overwrite=overwrite)
    # Before the data is read: a folder that cannot be written should not cost minutes.
    free = reserved(folder, overwrite=overwrite) if folder is not None and not resume else None
    # A caller's `no_grad` or `inference_mode` is for the caller's own tensors.
    unaffected = torch.inference_mode(False), torch.enable_grad()
    with free or contextlib.nullcontext(), unaffected[0], unaffected[1]:
        prepared = prepare(spec, data_root=data_root, data=data, python=python)
        start: Callable[..., Run] = execute
        if prepared.engine.kind != LOCAL:
            # Other engines, such as Flower, are imported on demand.
            engine = installed_engines()[prepared.engine.kind].load()
            start = functools.partial(engine, data=data, python=python or consent_given())
        return start(
            prepared,
            out=folder,
            resume=resume,
            resume_from=resume_from,
            overwrite=overwrite,
            progress=progress,
            trackers=receivers,
            name=spec.name,
        )


def execute(
    experiment: Experiment,
    *,
    out: Path | None = None,
    resume: bool = False,
    resume_from: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    trackers: Sequence[Tracker] = (),
    name: str = "",
    elsewhere: Elsewhere | None = None,
) -> Run:
    """Run an experiment that is already prepared, in this process or elsewhere; see :func:`run`."""
    with contextlib.ExitStack() as stack:
        loop = Loop(experiment, elsewhere=elsewhere)
        stack.callback(loop.close)
        rounds, device = experiment.world.rounds, experiment.world.device
        # Before anything is written: the strategy may refuse this world.
        first = first_state(experiment)
        added = kept_additions(experiment, first)
        checkpoint = None
        if out is not None:
            check_tensors(first.tensors)
            # JSON lacks NaN: facts must equal those read from facts.json when a run is resumed.
            facts = json_safe({**experiment.facts, "rounds": rounds})
            if resume_from is not None or (resume and resumable(out)):
                selection = experiment.selection
                loop.record, checkpoint, lines = RunRecord.resume(
                    out,
                    experiment.text,
                    facts,
                    after=resume_from,
                    best=None if selection is None else selection.chosen,
                    device=device,
                )
            else:
                stack.enter_context(reserved(out, overwrite=overwrite))
                loop.record = RunRecord.create(
                    out, experiment.text, facts, files=_files(experiment, added), device=device
                )
            stack.enter_context(loop.record)
            if checkpoint is not None:
                loop.go_on(checkpoint, lines)
        past = () if checkpoint is None else tuple(loop.lines)
        settings = json_safe(experiment.facts)
        loop.trackers = Trackers([*trackers, *_by_default(trackers, progress)])
        stack.callback(loop.trackers.end)  # an interrupted run ends there, too
        loop.trackers.begin(Beginning(name, rounds, settings, out, past))
        if checkpoint is None:
            loop.start(first)
        while loop.done < rounds and not loop.stopped:
            loop.round()
        loop.trackers.end()  # now, not at the stack's end: its notes belong to the run
        recorded = () if loop.record is None else loop.record.notes
        private = (
            f"tier {tier}: the global model lacks {listed(names)}: that stays with its clients"
            for tier, names in added.items()
        )
        nothing = nothing_counts(experiment)
        notes = (*experiment.data.notes, *nothing, *private, *recorded, *loop.trackers.notes)
        server, best = loop.server, None
        if loop.best is not None:
            server, best = ServerState(loop.best.tensors, loop.best.values), loop.best.round
        return Run(experiment, server, tuple(loop.lines), out, notes, best)


def nothing_counts(experiment: Experiment) -> Iterator[str]:
    """Yield a note for each client and each test all of whose targets are ignored."""
    for client in experiment.world.clients:
        if client.examples and not client.weight:
            yield (
                f"client {client.id} ({client.name}): no target counts (all are -100, or of "
                "classes of weight 0), so it is not merged"
            )
    tests = {"test": experiment}
    tests |= {} if experiment.selection is None else {"validation": experiment.validating}
    for name, tested in tests.items():
        targets = tested.data.test.targets
        if len(targets) and not int(tested.world.learning.counts(targets).sum()):
            yield f"no target of the {name} examples counts (all are -100): scores on them are NaN"


def _by_default(trackers: Sequence[Tracker], progress: bool) -> Sequence[Tracker]:
    """Return a tracker that writes a line per round, unless there is one."""
    spoken = any(isinstance(one, ConsoleTracker) for one in trackers)
    return () if spoken or not progress else (ConsoleTracker(),)


def _files(experiment: Experiment, added: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the run folder's files on clients and architectures, which explain its tensors."""
    world = experiment.world
    graphs = {GLOBAL: world.graph, **{tier.name: tier.graph for tier in world.tiers}}
    # A family without a global model has an empty graph in its place.
    models = {f"models/{name}.yaml": dump(graph) for name, graph in graphs.items() if graph.nodes}
    return {FILE: clients_file(experiment, added), **models}


def _check_resumable(folder: Path | None, *, overwrite: bool) -> None:
    """Raise unless a folder holds a run that can be resumed."""
    if folder is None:
        raise RunError("no run to resume", found="no run folder", hint="name it: out=...")
    if overwrite:
        raise RunError("a run is either resumed or overwritten, not both", where=str(folder))
    resumable(folder)
