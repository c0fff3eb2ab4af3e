"""DOT text of a picture: boxes, arrows, and sections and blocks as nested frames.

Arrows do not cross titles. A title is at the left of its frame, and the box below the title is at
least twice as wide as the title, so that an arrow into the middle of the box passes on the right.
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
from archgraph.display.paths import depths, span, spine
from archgraph.display.scene import Box, Cluster, Link, Scene
from archgraph.tables import elided

# A space at which a line must not break, and a character of no width at which a line may break.
TIED = "\u00a0"
BREAK = "\v"

# Total length of arrows, in ranks, above which a faster layout is used.
DENSE = 4000
# Minimum width in inches of a box with a weight, on a page and in print.
WIDTH, NARROW = 2.2, 1.3
# Weight of the arrows of the main path in the layout; the weight of other arrows is 1.
STRAIGHT = "40"
# The ends of an arrow that continues in another column.
CIRCLE = {"shape": "circle", "width": "0.2", "height": "0.2", "margin": "0.01", "fontsize": "8"}


class Drawing:
    """Writes the DOT text of a picture.

    Args:
        picture: Boxes and arrows of the picture.
        fed: Dict from `box NAME` or `group NAME` to the coverage of this box or frame; may be
            empty.
        tips: Returns the tooltip of a box.
        font: Font of all text.
        letters: Maximum number of characters in a line of a box. Default: no limit.
        columns: Names of the boxes of each column. Default: one column.
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
        """Return the DOT text, with a heading in Graphviz's HTML."""
        target = graphviz.Digraph(
            self.picture.name or "graph",
            graph_attr={
                "label": heading,
                "labelloc": "t",
                "fontname": self.font,
                "nodesep": "0.25" if self.letters is None else "0.12",
                "ranksep": "0.3" if self.letters is None else "0.22",
                "bgcolor": colours.PAPER,
                "margin": "0",  # the default for PDF is half an inch
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
            # Routing many long arrows around boxes takes minutes, straight lines take seconds.
            target.attr("graph", splines="line", mclimit="0.1", nslimit="2")
        if len(self.columns) == 1:
            self.column(target, self.ids)
        else:  # Graphviz packs components; an invisible frame makes a column one component
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
        """Draw one box."""
        # Graphviz puts boxes of one `group` on a straight line.
        look = {"group": "spine"} if box.name in self.spine else {}
        fed = self.fed.get(f"box {box.name}")
        if box.kind != "operator":
            fill = colours.INPUT if box.kind == "input" else colours.OUTPUT
            look.update(style="filled,rounded,bold", fillcolor=fill)
        elif fed is not None:
            look["fillcolor"] = colours.blend(colours.SCALE, fed.weights)
        elif self.fed:  # white is 0 %
            look["penwidth"] = "0.4"
        elif box.family:
            look["fillcolor"] = colours.FAMILIES[box.family]
        if box.name in self.wide:
            look["width"] = f"{self.wide[box.name]:.2f}"
        # One picture shows training and evaluation: parts that only training has are dashed.
        if box.training:
            look["style"] = "filled,rounded,dashed"
        # Omit the coverage of a box if its frame shows the same.
        same = fed is None or (around is not None and coverage_words(around) == coverage_words(fed))
        label = _box_label(
            box,
            None if same or not box.leaves else fed,
            colours.INK if look.get("fillcolor") else colours.QUIET,
            self.letters,
        )
        target.node(self.ids[box.name], label, tooltip=self.tips(box), **look)

    def frame(self, target: graphviz.Digraph, group: Cluster, within: str) -> None:
        """Draw a frame and its contents."""
        fed = self.fed.get(f"group {group.name}")
        self.frames += 1
        # Graphviz draws frames only around subgraphs whose names begin with `cluster`.
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
            for inner in group.groups:
                self.frame(frame, inner, group.name)
            for name in group.boxes:
                self.box(frame, self.boxes[name], fed)

    def title(self, group: Cluster, fed: Reach | None, within: str) -> list[str]:
        """Return the lines of a frame's title: name, repetitions, parameters, coverage."""
        size = 10 if within or self.letters else 12
        lines = [text(short(group.name, within), size=size, bold=True)]
        notes = [f"×{group.times}"] if group.times > 1 else []
        if group.note != "0" and (not within or group.times > 1):
            notes.append(f"{group.note} each" if group.times > 1 else group.note)
        if notes:
            lines.append(text(", ".join(notes), size=9, colour=colours.QUIET))
        if fed is not None:
            lines += [text(line, size=8, bold=True) for line in coverage_words(fed)]
        return lines

    def widths(self) -> dict[str, float]:
        """Return minimum widths of boxes in inches."""
        wide = {
            box.name: self.least
            for box in self.picture.boxes
            if box.kind == "operator" and any(line.strong for line in box.lines)
        }
        _, before = depths(self.picture)
        for group in self.picture.groups:
            for each in group.walk():
                fed = self.fed.get(f"group {each.name}")
                title = self.title(each, fed, "" if each is group else group.name)
                names = {name for inner in each.walk() for name in inner.boxes}
                for name in names:
                    # An arrow enters the box in the middle; the frame's title needs the left half.
                    if names.isdisjoint(before.get(name, ())):
                        wide[name] = max(wide.get(name, 0.0), 2 * width(title))
        return wide

    def links(self, target: graphviz.Digraph) -> None:
        """Draw arrows. An arrow to another column is split: to a number, and from this number."""
        drawn, numbers = set[tuple[str, str]](), dict[str, str]()
        for link in self.picture.links:
            look: dict[str, str] = {}
            if link.tail in self.spine and link.head in self.spine:
                look["weight"] = STRAIGHT
            if link.mask:
                # An arrow of a mask does not influence the rank of the attention operator.
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
        """Return the start and end of an arrow; for a split arrow, of both its parts."""
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
        """Return the label of an arrow, at its middle or (if there are columns) at its head.

        With columns, Graphviz omits labels at the middle of arrows. If several arrows enter one
        box, labels at their heads would overlap and are omitted.
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
    """Return the coverage of a part as text: number of clients, and fraction of the weights."""
    clients = f"{fed.clients} of {fed.total} clients"
    return [clients, f"{percent(fed.weights)} of the weights over all"]


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
        lines += [text(line, size=8, bold=True) for line in coverage_words(fed)]
    return f"<{'<BR/>'.join(lines)}>"


def wrapped_lines(lines: Sequence[LabelLine], letters: int | None) -> Iterator[LabelLine]:
    """Break lines after `·`, `|` or between words, to at most ``letters`` characters."""
    for line in lines:
        if letters is None:
            yield line
            continue
        parts = re.split("(?<= [·|]) ", line.text)
        # Keep parts that fit on a line together, and each number with its word.
        joined = [re.sub(" " if len(part) <= letters else r" (?=\d)", TIED, part) for part in parts]
        words = textwrap.TextWrapper(
            letters, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        for part in words.wrap(" ".join(joined).replace(".", f".{BREAK}")):
            yield replace(line, text=part.replace(TIED, " ").replace(BREAK, ""))
