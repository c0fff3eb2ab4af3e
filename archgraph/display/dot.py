"""DOT text of a scene: one graph, clusters as nested frames, the main path straight.

No arrow runs through a title: titles stand at the left of a frame, and the box that its arrow
enters is at least twice as wide, so that the arrow comes in at the right of the title.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import graphviz

from archgraph.display import colours
from archgraph.display.cover import Reach, percent
from archgraph.display.hierarchy import LONG, short
from archgraph.display.labels import LabelLine
from archgraph.display.markup import FONT, LETTER, stacked_lines, text, width
from archgraph.display.paths import span, spine
from archgraph.display.scene import Box, Cluster, Link, Scene
from archgraph.tables import elided

# A blank at which no line breaks.
TIED = "\u00a0"
# Of no width, at which one may.
BREAK = "\v"

# Total length of arrows, in ranks, above which they are drawn with less care.
DENSE = 4000
# Least width in inches of a box with a weight; in print.
WIDTH, NARROW = 2.2, 1.3
# What an arrow of the main path counts when places are chosen; the rest counts one.
STRAIGHT = "40"
# Where an arrow leaves a column and enters another one.
CIRCLE = {"shape": "circle", "width": "0.2", "height": "0.2", "margin": "0.01", "fontsize": "8"}


class Drawing:
    """A picture of a scene while its DOT text is written.

    Args:
        picture: The scene.
        fed: How clients feed what has weights, by `box NAME` and `group NAME`; may be empty.
        tips: What a pointer over a box shows.
        font: Of all words.
        letters: Of a line of a box, at most; Default: as many as it has.
        columns: Names of the boxes of each column; Default: one.
    """

    def __init__(
        self,
        picture: Scene,
        fed: Mapping[str, Reach],
        tips: Callable[[Box], str],
        font: str = FONT,
        letters: int | None = None,
        columns: Sequence[Collection[str]] = (),
    ) -> None:
        self.picture, self.fed, self.tips = picture, fed, tips
        self.font, self.letters = font, letters
        self.boxes = picture.box
        self.ids = {box.name: f"n{i}" for i, box in enumerate(picture.boxes)}
        self.columns = columns or [self.ids]
        self.least = WIDTH if letters is None else NARROW
        self.spine = spine(picture)
        self.wide = self.widths()
        self.frames = 0

    def source(self, heading: str) -> str:
        """Write the DOT text under a heading, title and legend as Graphviz's HTML."""
        target = graphviz.Digraph(
            self.picture.name or "graph",
            graph_attr={
                "label": heading,
                "labelloc": "t",
                "fontname": self.font,
                "nodesep": "0.25" if self.letters is None else "0.12",
                "ranksep": "0.3" if self.letters is None else "0.22",
                "bgcolor": colours.PAPER,
                "margin": "0",  # a PDF has half an inch otherwise
                "pad": "0.02",
            },
            node_attr={
                "shape": "box",
                "style": "filled,rounded",
                "fillcolor": colours.PAPER,
                "color": colours.EDGE,
                "fontname": self.font,
                "fontsize": "10",
                "fontcolor": colours.INK,
                "margin": "0.08,0.045",
                "height": "0.25",
            },
            edge_attr={
                "color": colours.QUIET,
                "fontname": self.font,
                "fontsize": "8",
                "fontcolor": colours.QUIET,
                "arrowsize": "0.7",
            },
        )
        if span(self.picture) > DENSE:
            # Too many long arrows to route around boxes: less care, straight lines, in seconds.
            target.attr("graph", splines="line", mclimit="0.1", nslimit="2")
        if len(self.columns) == 1:
            self.column(target, self.ids)
        else:  # each laid out alone; one frame, not seen, makes a column one component
            mode = f"array_tu{len(self.columns)}"
            target.attr("graph", pack="12", packmode=mode, ranksep="0.34")
            for number, names in enumerate(self.columns):
                with target.subgraph(name=f"cluster_column{number}") as part:
                    part.attr(style="invis", label="")
                    self.column(part, names)
        self.links(target)
        return str(target.source)

    def column(self, target: graphviz.Digraph, names: Collection[str]) -> None:
        """Draw the frames and boxes of one column."""
        framed = {n: group for group in self.picture.groups for c in group.walk() for n in c.boxes}
        for group in dict.fromkeys(framed[name] for name in framed if name in names):
            self.frame(target, group, "")
        for box in self.picture.boxes:
            if box.name in names and box.name not in framed:
                self.box(target, box, None)

    def box(self, target: graphviz.Digraph, box: Box, around: Reach | None) -> None:
        """Draw one box, without what the frame around it says."""
        # Boxes of one `group` stand in a straight line.
        look = {"group": "spine"} if box.name in self.spine else {}
        fed = self.fed.get(f"box {box.name}")
        if fed is not None and box.kind == "operator":
            look["fillcolor"] = colours.blend(colours.SCALE, fed.weights)
        elif not self.fed and box.family:
            look["fillcolor"] = colours.FAMILIES[box.family]
        if box.name in self.wide:
            look["width"] = f"{self.wide[box.name]:.2f}"
        if box.kind != "operator":
            look.update(
                style="filled,rounded,bold",
                fillcolor=colours.INPUT if box.kind == "input" else colours.OUTPUT,
            )
        # Training and evaluation share one picture: what only training has is dashed.
        if box.training:
            look["style"] = "filled,rounded,dashed"
        # A box that is fed like the frame around it does not repeat the frame's words.
        same = fed is None or (around is not None and coverage_words(around) == coverage_words(fed))
        label = _box_label(
            box,
            None if same or not box.leaves else fed,
            colours.INK if look.get("fillcolor") else colours.QUIET,
            self.letters,
        )
        target.node(self.ids[box.name], label, tooltip=self.tips(box), **look)

    def frame(self, target: graphviz.Digraph, group: Cluster, within: str) -> None:
        """Draw a frame with its contents; a section of one block needs one frame only."""
        if not any(each.boxes for each in group.walk()):
            return
        # A section of one block is drawn as that block, under the section's title.
        block = group.groups[0] if single(group) else group
        fed = self.fed.get(f"group {block.name}")
        self.frames += 1
        # Graphviz draws a frame around what is called a cluster, and around nothing else.
        with target.subgraph(name=f"cluster_{self.frames}") as frame:
            frame.attr(
                label=f"<{stacked_lines(self.title(group, fed, within))}>",
                labeljust="l",
                labelloc="t",
                style="rounded",
                color=colours.LINE,
                margin="7",
                tooltip=f"{group.name}: {group.note} parameters",
            )
            for inner in block.groups:
                self.frame(frame, inner, group.name)
            for name in block.boxes:
                self.box(frame, self.boxes[name], fed)

    def title(self, group: Cluster, fed: Reach | None, within: str) -> list[str]:
        """Write a frame's title in lines: its name, how often, its size, how clients feed it."""
        size = 10 if within or self.letters else 12
        lines = [text(short(group.name, within), size=size, bold=True)]
        inner = group.groups[0] if single(group) else group
        if inner is not group and inner.name != group.name:
            lines.append(text(short(inner.name, group.name), size=10))
        notes = [f"×{inner.times}"] if inner.times > 1 else []
        if inner.note != "0" and (not within or inner.times > 1):
            notes.append(f"{inner.note} each" if inner.times > 1 else inner.note)
        if notes:
            lines.append(text(", ".join(notes), size=9, colour=colours.QUIET))
        if fed is not None:
            lines += [text(line, size=8, bold=True) for line in coverage_words(fed)]
        return lines

    def widths(self) -> dict[str, float]:
        """Compute least widths in inches: of boxes with a weight, twice a title's at an entry."""
        strong = {b.name for b in self.picture.boxes if any(line.strong for line in b.lines)}
        wide = {name: self.least for name in strong if self.boxes[name].kind == "operator"}
        before: dict[str, list[str]] = {}
        for link in self.picture.links:
            before.setdefault(link.head, []).append(link.tail)
        for group in self.picture.groups:
            for each in group.walk():
                block = each.groups[0] if single(each) else each
                fed = self.fed.get(f"group {block.name}")
                title = self.title(each, fed, "" if each is group else group.name)
                names = {name for inner in each.walk() for name in inner.boxes}
                for name in names:
                    # An arrow enters here, in the middle: the title at the left has half the width.
                    if names.isdisjoint(before.get(name, ())):
                        wide[name] = max(wide.get(name, 0.0), 2 * width(title))
        return wide

    def links(self, target: graphviz.Digraph) -> None:
        """Draw arrows; one to another column ends at a number and goes on from it there."""
        drawn, numbers = set[tuple[str, str]](), dict[str, str]()
        for link in self.picture.links:
            look: dict[str, str] = {}
            if link.tail in self.spine and link.head in self.spine:
                look["weight"] = STRAIGHT
            if link.mask:
                # A mask does not push down what it masks: ranks are those of the main stream.
                look.update(style="dotted", constraint="false")
            if link.training:
                look["style"] = "dashed"
            for ends in self.parts(target, link, numbers):
                if ends not in drawn:
                    drawn.add(ends)
                    target.edge(*ends, **self.words(link), **look)

    def parts(
        self, target: graphviz.Digraph, link: Link, numbers: dict[str, str]
    ) -> Sequence[tuple[str, str]]:
        """Return the ends of an arrow; to another column, of its two parts, with a number each."""
        tail, head = self.ids[link.tail], self.ids[link.head]
        stop = next(i for i, names in enumerate(self.columns) if link.head in names)
        if link.tail in self.columns[stop]:
            return [(tail, head)]
        number = numbers.setdefault(tail, str(len(numbers) + 1))
        leaves, enters = f"{tail}_from", f"{tail}_to{stop}"
        for name in (leaves, enters):
            target.node(name, number, **CIRCLE)
        return [(tail, leaves), (enters, head)]

    def words(self, link: Link) -> dict[str, str]:
        """Return where an arrow says its shape: at its middle; in columns right of its head.

        Graphviz leaves out what stands at the middle where it lays out parts alone. Of several
        arrows into a box, words at their heads would cover each other.
        """
        if not link.label or len(self.columns) == 1:
            return {"label": f" {link.label} "} if link.label else {}
        if [each.head for each in self.picture.links].count(link.head) > 1:
            return {}
        right, up = 8 * LETTER * len(link.label) / 2 + 4, 14.0
        angle, distance = -math.degrees(math.atan2(right, up)), math.hypot(right, up) / 10
        where = {"labelangle": f"{angle:.0f}", "labeldistance": f"{distance:.2f}"}
        return {"headlabel": link.label, **where}


def coverage_words(fed: Reach) -> list[str]:
    """Write a part's coverage in words: clients and share of the weights."""
    clients = f"{fed.clients} of {fed.total} clients"
    return [clients, f"{percent(fed.weights)} of the weights over all"]


def single(group: Cluster) -> bool:
    """Return whether a section is one block or fold: it needs one frame only."""
    return len(group.groups) == 1 and group.times == 1


def _box_label(box: Box, fed: Reach | None, quiet: str, letters: int | None) -> str:
    if box.kind != "operator":
        size, across = (11, len(box.name)) if letters is None else (9, min(letters, LONG))
        names = (elided(line.text, across, across // 2) for line in box.lines)
        return f"<{'<BR/>'.join(text(name, size=size, bold=True) for name in names)}>"
    notes = [box.size] if box.parameters else []
    lines = []
    words = list(wrapped_lines(box.lines, letters))
    for line in words:
        row = text(line.text, size=10 if line.strong else 9, bold=line.strong)
        if notes and (line.strong or line is words[-1]):
            row += "  " + text(notes.pop(), size=8, colour=quiet)
        lines.append(row)
    if fed is not None:
        said = coverage_words(fed)
        said = said if letters is not None else [" · ".join(said)]
        lines += [text(line, size=8, bold=True) for line in said]
    return f"<{'<BR/>'.join(lines)}>"


def wrapped_lines(lines: Sequence[LabelLine], letters: int | None) -> Iterator[LabelLine]:
    """Yield lines of so many letters, broken behind a dot or bar, else between words."""
    for line in lines:
        if letters is None:
            yield line
            continue
        parts = re.split("(?<= [·|]) ", line.text)
        # A part that fits a line is not broken, nor a number from its word.
        joined = [re.sub(" " if len(part) <= letters else r" (?=\d)", TIED, part) for part in parts]
        words = textwrap.TextWrapper(
            letters, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        for part in words.wrap(" ".join(joined).replace(".", f".{BREAK}")):
            yield replace(line, text=part.replace(TIED, " ").replace(BREAK, ""))
