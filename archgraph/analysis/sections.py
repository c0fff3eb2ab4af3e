"""Group blocks into sections: stem, stages that repeat one body, and head."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from archgraph.analysis.blocks import Drafts
from archgraph.analysis.draft import BlockDraft
from archgraph.analysis.modules import common, is_numbered, siblings

# Numbers of kinds of blocks that may alternate, such as 2 for attention and feed-forward.
PERIODS = (1, 2, 3, 4)
SectionKind = Literal["stem", "stage", "transition", "head"]


class Group(NamedTuple):
    """A section under construction."""

    name: str
    kind: SectionKind
    blocks: list[BlockDraft]


def sections(drafts: Drafts) -> list[Group]:
    """Return the sections of the encoders (towers), then of the main stream.

    Blocks of additional outputs are in the last section.
    """
    groups: list[Group] = []
    for tower in drafts.chains[:-1]:
        groups += _given(drafts, tower) or _tower(drafts, tower)
    main = drafts.chains[-1]
    groups += _given(drafts, main) or _framed(*_parts(drafts, main))
    if drafts.ends:
        if not groups or groups[-1].kind != "head":
            groups.append(Group("head", "head", []))
        groups[-1].blocks.extend(drafts.ends)
    return groups


def _given(drafts: Drafts, blocks: list[BlockDraft]) -> list[Group]:
    """Return the user's sections and the sections between them; empty if there are none.

    A section without a list of blocks consists of the blocks whose layers are in its module. (For a
    block without layers, its operators count.) The kind of a section is the kind of its blocks in
    the sections that :func:`_unnamed` returns.
    """
    listed = {b: s for s, names in drafts.graph.sections for b in names}
    owners = [listed.get(d.user_block) or _section(drafts, d) for d in blocks]
    mine = [i for i, name in enumerate(owners) if name]
    if not mine:
        return []
    kinds = {id(d): g.kind for g in _unnamed(drafts, blocks) for d in g.blocks}
    groups: list[Group] = []
    first, last = mine[0], mine[-1] + 1
    runs = itertools.groupby(range(first, last), key=owners.__getitem__)
    for name, run in runs:
        members = [blocks[i] for i in run]
        of = {kinds[id(d)] for d in members}
        kind = of.pop() if len(of) == 1 else "stage"
        groups += [Group(name, kind, members)] if name else _stages(members)
    return _framed(blocks[:first], groups, blocks[last:])


def _unnamed(drafts: Drafts, blocks: list[BlockDraft]) -> list[Group]:
    """Return the sections of a chain as if the user had given no names.

    If the user listed blocks, all blocks from the first to the last listed one form one stage.
    """
    mine = [i for i, d in enumerate(blocks) if d.user_block]
    if not mine:
        return _framed(*_parts(drafts, blocks))
    first, last = mine[0], mine[-1] + 1
    return _framed(blocks[:first], [Group("", "stage", blocks[first:last])], blocks[last:])


def _section(drafts: Drafts, block: BlockDraft) -> str:
    work = [n for n in block.stream if n in drafts.stream.heavy] or block.stream
    return next(filter(None, map(drafts.section, work)), "")


def _framed(
    stem: list[BlockDraft], stages: list[Group], head: list[BlockDraft], tower: bool = False
) -> list[Group]:
    """Return a stem, stages and a head. In a tower, stem and head are named after modules."""
    first = [Group(_title(stem) if tower else "stem", "stem", stem)] if stem else []
    last = [Group(_title(head) if tower else "head", "head", head)] if head else []
    return [*first, *stages, *last]


def _tower(drafts: Drafts, blocks: list[BlockDraft]) -> list[Group]:
    """Return the sections of a tower. A tower that consists of single layers is one stem."""
    complete = any(d.whole for d in blocks)
    return _framed(*(_parts(drafts, blocks) if complete else (blocks, [], [])), tower=True)


def _title(blocks: Sequence[BlockDraft]) -> str:
    alone = blocks[0].name if len(blocks) == 1 else ""
    return alone or ".".join(common(d.unit for d in blocks)) or blocks[0].name


def _parts(
    drafts: Drafts, blocks: list[BlockDraft]
) -> tuple[list[BlockDraft], list[Group], list[BlockDraft]]:
    """Return stem, stages and head of a chain.

    A stage at either end that is a single block and differs from all others joins stem or head.
    """
    begin, end = _middle(drafts, blocks)
    stem, head = blocks[:begin], blocks[end:]
    stages = _stages(blocks[begin:end])
    # At least one stage remains, even if it differs from its neighbours.
    while len(stages) > 1 and _stranger(stages[0], stages[1:]):
        stem = [*stem, *stages.pop(0).blocks]
    while len(stages) > 1 and _stranger(stages[-1], stages[:-1]):
        head = [*stages.pop().blocks, *head]
    return stem, _transitions(stages), head


def _stranger(group: Group, others: Sequence[Group]) -> bool:
    """Return whether a section is a single block that differs from all others.

    The block must also not be in the same list of modules as another block.
    """
    (first, *more) = group.blocks
    return not more and not any(
        (d.spine == first.spine and _branched(d) == _branched(first))
        or not first.unit
        or siblings(first.unit, d.unit)
        for g in others
        for d in g.blocks
    )


def _branched(draft: BlockDraft) -> bool:
    return len(draft.heads) == 1 and draft.kind == "parallel"


def _transitions(stages: list[Group]) -> list[Group]:
    """Mark the stages that are transitions between two stages, and join neighbouring transitions.

    A transition is one block: a single layer that differs from its neighbours, or a block that
    changes the resolution to that of the next stage.
    """
    groups: list[Group] = []
    for before, group, after in zip(stages, stages[1:], stages[2:], strict=False):
        (block, *more) = group.blocks
        left, right = before.blocks[-1], after.blocks[0]
        # A block of several layers must have the resolution of the next stage. A single layer must
        # differ from the layers of both stages.
        if block.whole:
            leads = block.out != left.out and block.out == right.out
        else:
            leads = block.spine not in (left.spine, right.spine)
        groups.append(group._replace(kind="transition") if leads and not more else group)
    # The first and the last stage have only one neighbour, so they cannot be transitions.
    groups = [*stages[:1], *groups, *stages[1:][-1:]]
    joined: list[Group] = []
    for group in groups:
        if joined and group.kind == joined[-1].kind == "transition":
            joined[-1].blocks.extend(group.blocks)
        else:
            joined.append(group)
    return joined


def _middle(drafts: Drafts, blocks: list[BlockDraft]) -> tuple[int, int]:
    """Return the indices at which the stages begin and end.

    Stages reach from the first to the last block with several layers, including the levels of an
    encoder–decoder. In a chain of single layers, they reach from the start to the layer where the
    number of dimensions drops (pooling, flattening), or to the last layer.
    """
    complete, ends = [i for i, d in enumerate(blocks) if d.whole], _ends_of_levels(blocks)
    if not (complete or ends):
        return _plain_middle(drafts, blocks)
    begin, end = min(complete + ends), max(complete + ends) + 1
    # Blocks at the resolution of the outermost level belong to it.
    while ends and begin and blocks[begin - 1].out == blocks[begin].out:
        begin -= 1
    while ends and end < len(blocks) and blocks[end].out == blocks[end - 1].out:
        end += 1
    return begin, end


def _ends_of_levels(blocks: Sequence[BlockDraft]) -> list[int]:
    """Return the indices of blocks at which skip connections of an encoder–decoder start or end."""
    levels = {p.level for d in blocks for p in d.pieces if p.level}
    ends = [i for i, d in enumerate(blocks) if any(p.level for p in d.pieces)]
    return ends + [i for i, d in enumerate(blocks) if not levels.isdisjoint(d.stream)]


def _plain_middle(drafts: Drafts, blocks: Sequence[BlockDraft]) -> tuple[int, int]:
    """Return the indices at which the stages of a chain of single layers begin and end."""
    begin = 0 if blocks and blocks[0].heads else min(1, len(blocks))
    # The number of dimensions drops where an image or sequence is pooled or flattened.
    ranks = [len(drafts.graph.node[drafts.exit(d)].shape) for d in blocks]
    falls = [i for i in range(begin + 1, len(ranks)) if ranks[i] < ranks[i - 1]]
    end = falls[-1] if falls else max(len(blocks) - 1, begin)
    return begin, end if len(blocks) > 1 else len(blocks)


def _stages(blocks: Sequence[BlockDraft]) -> list[Group]:
    """Divide blocks into stages: maximal runs of blocks with equal results and repeating bodies."""
    items = _by_module(blocks)
    runs: list[list[list[BlockDraft]]] = []
    while items:
        # Greedy: take the longest run from here on, with any period.
        size = max(_repeats(items, period) for period in PERIODS)
        runs += _split(items[:size])
        items = items[size:]
    inside = Counter(d.unit[:size] for d in blocks for size in range(1, len(d.unit) + 1))
    groups = []
    for run in runs:
        members = [d for item in run for d in item]
        units = {d.unit for d in members}
        path = common(units)
        # A single item of a list does not name the stage; the list does.
        if path in units and path and is_numbered(path[-1]):
            path = path[:-1]
        # The name of a module that also contains blocks of other stages would be ambiguous.
        covers = path and inside[path] == len(members)
        groups.append(Group(".".join(path) if covers else members[0].name, "stage", members))
    return groups


def _by_module(blocks: Sequence[BlockDraft]) -> list[list[BlockDraft]]:
    """Group neighbouring blocks that are parts of one module and have equal results."""
    groups = itertools.groupby(blocks, key=lambda d: (d.unit, d.out) if d.unit else id(d))
    return [list(items) for _, items in groups]


def _split(run: list[list[BlockDraft]]) -> list[list[list[BlockDraft]]]:
    """Split a run into one stage per module, if one of the modules repeats a body."""
    size = len(common(item[0].unit for item in run)) + 1
    groups = itertools.groupby(run, key=lambda item: item[0].unit[:size])
    parts = [list(items) for _, items in groups]
    pairs = (pair for part in parts for pair in itertools.pairwise(part))
    repeat = any([d.full for d in a] == [d.full for d in b] for a, b in pairs)
    return parts if len(parts) > 1 and repeat else [run]


def _repeats(items: Sequence[Sequence[BlockDraft]], period: int) -> int:
    """Count the leading items that repeat with a period; 1 if they do not repeat."""
    size = 1
    while size < len(items):
        same_result = all(d.out == items[0][0].out for d in items[size])
        before = items[size - period] if size >= period else None
        if not same_result or (
            before is not None and not _similar(before, items[size], size < 2 * period)
        ):
            break
        size += 1
    return size if period == 1 or size >= 2 * period else 1


def _similar(before: Sequence[BlockDraft], after: Sequence[BlockDraft], first: bool) -> bool:
    """Return whether two items have the same body.

    ``after`` may be incomplete, as the last item of a run. If ``first`` is True, only the layers
    are compared, because the first item of a run may be a transition.
    """
    if len(after) > len(before):
        return False
    return all(
        a.full == b.full
        or (a.spine == b.spine and (first or (a.unit[:-1] == b.unit[:-1] and len(a.unit) > 1)))
        for a, b in zip(before, after, strict=False)
    )
