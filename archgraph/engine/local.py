"""The local engine: runs all clients on this machine, one at a time or in parallel.

Each worker process has one client's model and update in memory at a time. The strategy creates
tasks and reads results one by one, in the clients' order. All random numbers come from generators
seeded by seed, purpose, round and client, so that a run that is resumed after a crash has
bit-identical results.
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
        rounds: One dict per round, with the same keys as a line of ``metrics.jsonl``.
        folder: The run folder, if there is one.
        notes: Warnings: data may have been read in an unintended way, a tracker failed, or the
            results may differ from those of an uninterrupted run.
        best: Number of the best round if the experiment sets `keep: best`, or None. The weights of
            the run are those after the best round, or after the last round if ``best`` is None.
    """

    experiment: Experiment
    server: ServerState
    rounds: tuple[Mapping[str, Json], ...]
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    best: int | None = None

    @property
    def evaluation(self) -> Mapping[str, Json]:
        """The metrics of the last round, or of the best round with the option `keep: best`."""
        until = [r for r in self.rounds if self.best is None or r["round"] <= self.best]
        return next((r["evaluation"] for r in reversed(until) if r.get("evaluation")), {})

    @property
    def troubles(self) -> tuple[str, ...]:
        """Rejected updates, failed clients and non-finite metrics, with their rounds."""
        return tuple(troubles(self.rounds))

    @property
    def sound(self) -> bool:
        """True if an update was accepted in the last round and the last metrics are finite."""
        accepted = not self.rounds or not idle(self.rounds[-1])
        return accepted and not any(troubles([{"evaluation": self.evaluation}]))

    @property
    def privacy(self) -> Mapping[str, Json]:
        """Dict of the spent privacy budget: ``delta``, and ``epsilon`` (None if infinite)."""
        return self.rounds[-1].get("privacy", {}) if self.rounds else {}

    @property
    def models(self) -> tuple[Evaluated, ...]:
        """The models that the strategy evaluates, with their trained weights."""
        strategy, world = self.experiment.strategy, self.experiment.world
        models = strategy.evaluated(world, self.server)
        return tuple(private_models(strategy, world, models, every=True))

    @property
    def seconds(self) -> dict[str, float]:
        """Dict from phase (such as local training) to its total time in seconds."""
        names = ("local", "server", "evaluate", "record", "total")
        return {name: sum(r["seconds"].get(name, 0.0) for r in self.rounds) for name in names}

    def to_frame(self) -> DataFrame:
        """Return a data frame with the columns round, part, group, metric and value.

        ``part`` is the data on which the value was computed: ``test``, ``test local`` (a client's
        own test data), ``validation`` or ``train``. For values such as times, ``part`` is ``run``.
        ``group`` is the name of a model, a client or the run. See
        :class:`archgraph.record.points.Point`. Tables, plots and reports of runs use the same
        values.
        """
        return frame(self.rounds)

    def table(self) -> Table:
        """Return a table with a row per model, followed by privacy, problems and notes."""
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
        """Return one line with the rounds, the metrics of the global model and the folder."""
        figures = self.evaluation.get(GLOBAL, {})
        measured = "".join(f", {k} {v:.4g}" for k, v in figures.items() if v is not None)
        folder = "" if self.folder is None else f", {self.folder}"
        wrong = "" if self.sound else ", see troubles"
        return f"Run({plural(len(self.rounds), 'round')}{measured}{folder}{wrong})"

    def _repr_html_(self) -> str:
        """Return the report of the run as HTML for notebooks; without a folder, its table."""
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
        experiment: A file, the result of ``load_experiment``, or a dict with the keys of a file. In
            a dict, a model may be a graph or the result of ``ag.trace``.
        out: Run folder. Default: the experiment's ``out``; if that is not set, nothing is written.
        resume: Resume the run in the folder from its last checkpoint. If the run stopped before its
            first checkpoint was complete, start the run from the beginning.
        resume_from: Resume the run after this round, and remove later rounds.
        overwrite: Replace the run in the folder, once the new run is ready to start.
        data_root: Folder of the data. Default: ``data.root`` in the experiment, or else the
            environment variable ``ARCHGRAPH_DATA``.
        data: Data to use instead of the experiment's ``data``. The first form is a pair ``(train,
            test)``. Each of the two is a torch dataset or a pair of tensors ``(inputs, targets)``.
            ``train`` may also be a dict from client to a torch dataset or a pair of tensors (see
            :func:`archgraph.data.dataset_of`). The second form is ``{"huggingface": dataset, …}``
            with a Dataset or DatasetDict. Its further keys are ``target``, and ``inputs`` or
            ``text``, as in a file.
        progress: Write a line per round to standard error.
        python: If True, allow running the Python code to which the experiment, its data and its
            models refer.
        trackers: Trackers that receive the metrics of every round, in addition to those of the
            experiment. Each is a name, a name with options (``{"csv": {"path": "figures.csv"}}``),
            or an object with the methods of :class:`archgraph.record.Tracker`.

    Returns:
        The finished run, with the server's state, the metrics of each round and a table of results.

    Raises:
        ArchGraphError: If the experiment is invalid; if the folder is in use, cannot be written, or
            contains another experiment or a changed file. In these cases, nothing is written. The
            error is also raised if all clients of a round fail, or if no update is accepted in
            `patience` consecutive rounds. The record of the earlier rounds is then kept.
    """
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    folder = None if out is None and spec.out is None else Path(out or spec.out or "")
    resume = resume or resume_from is not None
    with spec.locating("trackers"):
        receivers = [tracker(choice) for choice in spec.trackers]
    receivers += [tracker(choice) for choice in trackers]
    if resume:
        _check_resumable(folder, overwrite=overwrite)
    # Checked before the data is read, which may take minutes.
    free = reserved(folder, overwrite=overwrite) if folder is not None and not resume else None
    # The caller's `no_grad` or `inference_mode` must not affect training.
    unaffected = torch.inference_mode(False), torch.enable_grad()
    with free or contextlib.nullcontext(), unaffected[0], unaffected[1]:
        prepared = prepare(spec, data_root=data_root, data=data, python=python)
        start: Callable[..., Run] = execute
        if prepared.engine.kind != LOCAL:
            # Other engines, such as Flower, are imported when they are needed.
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
    """Run a prepared experiment. The arguments have the same meaning as in :func:`run`."""
    with contextlib.ExitStack() as stack:
        loop = Loop(experiment, elsewhere=elsewhere)
        stack.callback(loop.close)
        rounds, device = experiment.world.rounds, experiment.world.device
        # Before anything is written, since the strategy may raise an error for this world.
        first = first_state(experiment)
        added = kept_additions(experiment, first)
        checkpoint = None
        if out is not None:
            check_tensors(first.tensors)
            # JSON lacks NaN. The facts must be equal to those in facts.json when a run is resumed.
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
        loop.trackers.end()  # now, not at the stack's end, since its notes belong to the run
        recorded = () if loop.record is None else loop.record.notes
        private = (
            f"tier {tier}: the global model lacks {listed(names)}, which stays with its clients"
            for tier, names in added.items()
        )
        nothing = nothing_counts(experiment)
        notes = (*experiment.data.notes, *nothing, *private, *recorded, *loop.trackers.notes)
        server, best = loop.server, None
        if loop.best is not None:
            server, best = ServerState(loop.best.tensors, loop.best.values), loop.best.round
        return Run(experiment, server, tuple(loop.lines), out, notes, best)


def nothing_counts(experiment: Experiment) -> Iterator[str]:
    """Yield a note for each client, and each test set, whose targets are all ignored."""
    for client in experiment.world.clients:
        if client.examples and not client.weight:
            yield (
                f"client {client.id} ({client.name}): no target counts (all are -100, or of "
                "classes of weight 0), so its updates are not merged"
            )
    tests = {"test": experiment}
    tests |= {} if experiment.selection is None else {"validation": experiment.validating}
    for name, tested in tests.items():
        targets = tested.data.test.targets
        if len(targets) and not int(tested.world.learning.counts(targets).sum()):
            yield f"no target of the {name} examples counts (all are -100): scores on them are NaN"


def _by_default(trackers: Sequence[Tracker], progress: bool) -> Sequence[Tracker]:
    """Return a tracker that writes a line per round, unless one is already requested."""
    spoken = any(isinstance(one, ConsoleTracker) for one in trackers)
    return () if spoken or not progress else (ConsoleTracker(),)


def _files(experiment: Experiment, added: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the files of the run folder that describe its clients and architectures."""
    world = experiment.world
    graphs = {GLOBAL: world.graph, **{tier.name: tier.graph for tier in world.tiers}}
    # A family without a global model has an empty graph instead.
    models = {f"models/{name}.yaml": dump(graph) for name, graph in graphs.items() if graph.nodes}
    return {FILE: clients_file(experiment, added), **models}


def _check_resumable(folder: Path | None, *, overwrite: bool) -> None:
    """Check that a folder contains a run that can be resumed."""
    if folder is None:
        raise RunError("no run to resume", found="no run folder", hint="name it: out=...")
    if overwrite:
        raise RunError("a run is either resumed or overwritten, not both", where=str(folder))
    resumable(folder)
