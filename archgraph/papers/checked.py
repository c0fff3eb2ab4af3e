"""Checked files, studies with what their paper prints about its architectures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator

from archgraph.engine.verdicts import Verdict, verdicts
from archgraph.errors import ArchGraphError, SpecError
from archgraph.language.yaml import read_document
from archgraph.papers.published import Sources, findings
from archgraph.tables import plural


def checked(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Verdict]:
    """Check files of any kind; a study is good if the published figures agree, too.

    Raises:
        SpecError: If a path is not there, or no file is.
    """
    sources = Sources()
    for verdict in verdicts(paths):
        yield _compared(verdict, sources) if verdict.kind == "study" and verdict.good else verdict


def _compared(verdict: Verdict, sources: Sources) -> Verdict:
    try:
        found = list(findings(read_document(verdict.path), sources))
        for one in found:
            if not one.good:
                raise SpecError(
                    "is not what the paper prints",
                    where=f"{one.where}: {one.what}",
                    found=None if one.ours is None else one.published.like(one.ours),
                    expected=one.published.text,
                    hint=one.verdict,
                )
    except ArchGraphError as error:
        return dataclasses.replace(verdict, error=error)
    if not found:
        return verdict
    met = sum(one.met for one in found)
    note = f"{verdict.note}; {met} of {plural(len(found), 'published figure')} met"
    return dataclasses.replace(verdict, note=note)
