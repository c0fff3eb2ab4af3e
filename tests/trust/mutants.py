"""Mutants and the tests that must notice them: ``python -m tests.trust.mutants``.

A warm process collects the related tests once. Each test then runs once with every statement
announcing itself. Each mutant runs in a fork, with the changed code put into the live functions:
the tests of its room that reach its statement, cheapest first, until one fails.

mutmut 3.8 works here, too. It changes neither properties nor other decorated functions, takes no
faults written by hand, and many of its mutants change texts of errors.

``--write docs/measured/mutants.csv`` writes the figures. With ``--log`` an interrupted run
goes on: what the file says counts while the changed file and the tests that it rests on are as they
were.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import datetime
import gc
import importlib
import math
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests import sheets
from tests.trust.forks import Tell, forked
from tests.trust.log import Log
from tests.trust.mutations import Mutant, functions, mutants, rank
from tests.trust.planted import EQUIVALENT, PLANTED, Planted
from tests.trust.rooms import ROOMS

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # of the processor, for the tests of one mutant, cheapest first
BYTES = 6 * 2**30  # of memory for one mutant
# What a test costs decides when it runs; within a step files stay together, with their fixtures.
STEPS = (0.1, 0.5, 2, 10)
UNNOTICED = ("survived", "unreached")
_WORDS = {"survived": "unnoticed", "unreached": "no test runs the line"}

Change = Mutant | Planted
Key = tuple[str, str, int]  # file, qualified name, first line


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine a sample and the planted faults; 0 where enough of them are noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of each room's sample")
    parser.add_argument("--room", choices=ROOMS, action="append", help="these rooms only")
    parser.add_argument("--only", metavar="TEXT", help="changes whose name contains this")
    parser.add_argument("--planted", action="store_true", help="the planted faults only")
    parser.add_argument("--log", type=Path, metavar="FILE", help="add each result to a file")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a CSV file")
    options = parser.parse_args(arguments)
    chosen = [
        change
        for room in options.room or ROOMS
        for change in _changes(room, options)
        if not options.only or options.only in change.name
    ]
    runner = Runner(chosen, Log(options.log))
    files = dict.fromkeys(test for c in chosen for test in ROOMS[c.room].tests)
    quiet = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ended = pytest.main([*quiet, "--rootdir", str(ROOT), *map(str, files)], plugins=[runner])
    if ended != pytest.ExitCode.OK:
        return int(ended)
    if options.write:
        sheets.write(options.write, _rows(runner.verdicts, chosen))
        survivors = options.write.with_stem(f"{options.write.stem}-survivors")
        sheets.write(survivors, _survivors(runner.verdicts, chosen))
    lost = [c for c in chosen if runner.verdicts[c.name] in UNNOTICED]
    surviving = [c for c in lost if c.name not in EQUIVALENT]
    for change in lost:
        why = EQUIVALENT.get(change.name, "")
        print(f"{runner.verdicts[change.name]}: {change.name} {why}")  # noqa: T201 - the command's product
    print(f"{len(chosen) - len(lost)} of {len(chosen)} noticed")  # noqa: T201 - the command's product
    return 0 if chosen and len(surviving) <= 0.05 * len(chosen) else 1


def _changes(room: str, options: argparse.Namespace) -> Iterator[Change]:
    yield from (p for p in PLANTED if p.room == room)
    if not options.planted:
        every = [m for path in ROOMS[room].modules for m in mutants(ROOT, room, path)]
        every.sort(key=lambda m: rank(options.seed, m))
        yield from every[: round(options.share * ROOMS[room].drawn)]


class Runner:
    """A plugin of pytest that runs collected tests against changes instead of as they are.

    Attributes:
        changes: What is examined.
        verdicts: By name of a change: ``killed``, ``stopped`` where it took too long or ended
            the process, ``survived``, or ``unreached`` where no test runs its line.
    """

    def __init__(self, changes: Sequence[Change], log: Log) -> None:
        self.changes = changes
        self.verdicts: dict[str, str] = {}
        self._log = log

    def pytest_configure(self) -> None:
        """No shrinking of examples: one failure is enough."""
        import hypothesis  # not before pytest has prepared it

        phases = [p for p in hypothesis.Phase if p is not hypothesis.Phase.shrink]
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop, when everything is collected."""
        live = _live({c.path for c in self.changes})
        _warm()
        gc.freeze()
        known = self._log.known("change")
        self.verdicts = {c.name: known[c.name]["verdict"] for c in self.changes if c.name in known}
        due = [c for c in self.changes if c.name not in self.verdicts]
        tests = self._reached(session, live, {c.path for c in due}) if due else []
        for number, change in enumerate(due, start=1):
            related = [t for t in tests if _related(t["name"], change.room)]
            reaching = [t for t in related if [change.path, change.line] in t["lines"]]
            begin = time.perf_counter()
            verdict, killer = self._examine(session, live, change, _cheapest(reaching))
            self.verdicts[change.name] = verdict
            asked = related if killer is None else [killer]
            files = {change.path, *(_file(test["name"]) for test in asked)}
            self._log.add("change", change.name, sorted(files), verdict=verdict)
            spent = time.perf_counter() - begin
            print(  # noqa: T201 - progress
                f"{number:4}/{len(due)} {verdict:9} {spent:5.1f} s {len(reaching):4} tests "
                f"{change.name}",
                flush=True,
            )
        return True

    def _reached(
        self, session: pytest.Session, live: Mapping[Key, list[FunctionType]], paths: set[str]
    ) -> list[dict[str, Any]]:
        """Of each test: its seconds, and the lines of statements in these files that it reaches."""
        items = {item.nodeid: item for item in session.items}

        def known() -> dict[str, dict[str, Any]]:
            """Those of which the lines in all of these files are known."""
            tests = self._log.known("test").items()
            return {k: t for k, t in tests if k in items and paths <= t["files"].keys()}

        seen = known()
        missing = [item for name, item in items.items() if name not in seen]

        def observe(tell: Tell) -> None:
            hits: set[tuple[str, int]] = set()
            setattr(builtins, "__reached__", hits.add)  # noqa: B010 - a name that no module has
            for path in paths:
                _install(live, path, _announcing(path))
            for item, after in zip(missing, [*missing[1:], None], strict=True):
                hits.clear()
                begin = time.process_time()  # on a busy machine, too, as many tests fit in
                sound = _passes(session, item, after)
                seconds = time.process_time() - begin
                tell({"name": item.nodeid, "seconds": seconds, "sound": sound, "lines": list(hits)})

        for told in forked(observe, 3600, BYTES) if missing else ():
            self._log.add("test", files=sorted({*paths, _file(told["name"])}), **told)
        found = known().values()
        for test in found:
            if not test["sound"]:
                print(f"left out, fails without a change: {test['name']}")  # noqa: T201 - a fact about the sample
        return [{**test, "item": items[test["name"]]} for test in found if test["sound"]]

    def _examine(
        self,
        session: pytest.Session,
        live: Mapping[Key, list[FunctionType]],
        change: Change,
        tests: Sequence[Mapping[str, Any]],
    ) -> tuple[str, Mapping[str, Any] | None]:
        """What becomes of a change, and the test that noticed it by failing."""

        limit = 20 + 5 * math.ceil(sum(test["seconds"] for test in tests))

        def run(tell: Tell) -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # of the processor, as above
            _install(live, change.path, change.apply())
            items = [test["item"] for test in tests]
            for at, after in enumerate([*items[1:], None]):
                if not _passes(session, items[at], after):
                    tell({"killer": at})
                    return
            tell({"killer": None})

        if not tests:
            return "unreached", None
        for told in forked(run, 20 * limit, BYTES):
            killer = told["killer"]
            return ("survived", None) if killer is None else ("killed", tests[killer])
        return "stopped", None


def _passes(session: pytest.Session, item: pytest.Item, after: pytest.Item | None) -> bool:
    failed = session.testsfailed
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
    except BaseException:  # an interruption that a test raises and the change lets through
        return False
    return session.testsfailed == failed


def _file(test: str) -> str:
    return test.partition("::")[0]


def _related(test: str, room: str) -> bool:
    return any(test.startswith(name) for name in ROOMS[room].tests)


def _cheapest(tests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tests in the order in which they are tried, as many as there is time for."""

    def step(test: Mapping[str, Any]) -> tuple[int, str]:
        return sum(test["seconds"] > s for s in STEPS), _file(test["name"])

    spent = 0.0
    chosen: list[dict[str, Any]] = []
    for test in sorted(tests, key=step):
        spent += test["seconds"]
        if spent > SECONDS and chosen:
            break
        chosen.append(test)
    return chosen


def _warm() -> None:
    """Load what almost every test loads, so that a fork need not."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.export.export(nn.Linear(2, 2), (torch.zeros(2, 2),))


# -- code in live functions -------------------------------------------------------------------


def _live(paths: set[str]) -> dict[Key, list[FunctionType]]:
    """The functions of these files that exist, by where their code stands."""
    for path in paths:
        module = path.removesuffix(".py").replace("/", ".")
        importlib.import_module(module if path.startswith("archgraph") else f"archgraph.{module}")
    found: dict[Key, list[FunctionType]] = defaultdict(list)
    places: dict[str, str] = {}
    for thing in gc.get_objects():
        if type(thing) is not FunctionType:
            continue
        code = thing.__code__
        file = places.setdefault(code.co_filename, os.path.realpath(code.co_filename))
        path = os.path.relpath(file, ROOT)
        if path in paths:
            found[path, code.co_qualname, code.co_firstlineno].append(thing)
    return dict(found)


def _install(live: Mapping[Key, Sequence[FunctionType]], path: str, tree: ast.Module) -> None:
    """Put the code of a changed module into the functions that exist."""
    pending, changed = [compile(tree, str(ROOT / path), "exec", dont_inherit=True)], 0
    while pending:
        for code in pending.pop().co_consts:
            if isinstance(code, CodeType):
                pending.append(code)
                for function in live.get((path, code.co_qualname, code.co_firstlineno), ()):
                    if function.__code__.co_freevars == code.co_freevars:
                        changed += _instructions(function.__code__) != _instructions(code)
                        function.__code__ = code
    assert changed, f"{path}: no live function changes"


def _instructions(code: CodeType) -> tuple[Any, ...]:
    """What a function does, wherever its code stands."""
    inner = [_instructions(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, inner


def _announcing(path: str) -> ast.Module:
    """A module whose statements call ``__reached__`` with the file and their line."""
    tree = ast.parse((ROOT / path).read_text())

    def announced(body: list[ast.stmt]) -> list[ast.stmt]:
        return [
            said
            for statement in body
            for said in (*ast.parse(f"__reached__(({path!r}, {statement.lineno}))").body, statement)
        ]

    for _, function in functions(tree):
        for node in ast.walk(function):
            for field in ("body", "orelse", "finalbody"):
                body = getattr(node, field, None)
                if isinstance(body, list) and not isinstance(node, ast.ClassDef):
                    setattr(node, field, announced(body))
    return ast.fix_missing_locations(tree)


# -- figures ----------------------------------------------------------------------------------


def _rows(verdicts: Mapping[str, str], changes: Sequence[Change]) -> Iterator[dict[str, object]]:
    """Yield the figures of each room and of the changes planted by hand."""
    groups: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        groups[change.room if isinstance(change, Mutant) else "planted by hand"].append(change)
    for name, group in groups.items():
        counts = Counter("same" if c.name in EQUIVALENT else verdicts[c.name] for c in group)
        lost = sum(counts[verdict] for verdict in UNNOTICED)
        noticed = len(group) - counts["same"] - lost
        yield {
            "changes to": name,
            "changes": len(group),
            "without effect": counts["same"],
            "noticed": noticed,
            "by time or a crash": noticed - counts["killed"],
            "unnoticed": lost,
            "date": datetime.date.today(),
        }


def _survivors(verdicts: Mapping[str, str], changes: Sequence[Change]) -> Iterator[dict[str, str]]:
    """Yield the changes that no test noticed, each with the reason."""
    for change in changes:
        if (verdict := verdicts[change.name]) in UNNOTICED:
            yield {"change": change.name, "why": EQUIVALENT.get(change.name, _WORDS[verdict])}


if __name__ == "__main__":
    sys.exit(main())
