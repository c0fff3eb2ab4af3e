"""The shortcut of a block, which adds the block's input to its result.

If the shapes differ, the input is projected.
"""

from __future__ import annotations

from dataclasses import dataclass

from archgraph.fields import Place
from archgraph.graph.ir import Ref, Size
from archgraph.hints import unknown
from archgraph.language import steps as table
from archgraph.language.draft import GraphDraft
from archgraph.language.expression import is_expression
from archgraph.language.lowering.reader import StepReader
from archgraph.language.lowering.scope import Scope, lookup
from archgraph.language.model import BlockBody, ShortcutSpec
from archgraph.language.steps import Site
from archgraph.language.steps.base import shape_text

SHORTCUTS = ("auto", "projection", "identity", "where_equal", "none")


def shortcut_of(
    reader: StepReader, block: BlockBody, loc: Place, scope: Scope
) -> ShortcutSpec | str | None:
    """Return the kind of a block's shortcut, which may be a parameter; None without a shortcut."""
    if not isinstance(block.shortcut, str) or not is_expression(block.shortcut):
        return None if block.shortcut == "none" else block.shortcut
    kind = reader.resolve(block.shortcut, scope.params, (*loc, "shortcut"))
    if kind not in SHORTCUTS:
        facts = unknown(str(kind), SHORTCUTS)
        facts["found"] = f"{block.shortcut} = {kind!r}"
        reader.document.fail((*loc, "shortcut"), "has an unknown value", **facts)
    return None if kind == "none" else str(kind)


@dataclass(frozen=True)
class Shortcut:
    """The sum of a block's input and its result.

    Attributes:
        reader: Reports errors with file, line and key.
        draft: The graph so far.
        scope: Names in the block.
        loc: Place of the shortcut in the file.
        kind: The shortcut, as written in the file.
        normalised: Whether the block's steps end in a batch norm.
    """

    reader: StepReader
    draft: GraphDraft
    scope: Scope
    loc: Place
    kind: ShortcutSpec | str
    normalised: bool

    def add(self, x: Ref, y: Ref) -> Ref:
        """Return the sum of a block's result ``y`` and its input ``x``."""
        have, want = self.draft.shape(x), self.draft.shape(y)
        if have != want and self.kind == "where_equal":
            return y
        if have != want or self.kind == "projection":
            x = self._projected(x, have, want)
        with self.reader.guard(self.loc):
            return self.draft.call("aten.add.Tensor", {"self": y, "other": x}, self.scope.path)

    def _projected(self, x: Ref, have: tuple[Size, ...], want: tuple[Size, ...]) -> Ref:
        """Return the block's input, or the value that replaces it, in the shape of its result."""
        options = self.kind if isinstance(self.kind, ShortcutSpec) else ShortcutSpec()
        source = x
        if options.source is not None:
            loc = (*self.loc, "from")
            source = lookup(self.reader.document, self.scope, (), options.source, loc)
        stride = _stride(self.draft.shape(source), want)
        if self.kind == "identity" or stride is None:
            or_stride = "" if self.kind == "identity" else ", or sizes that one stride relates"
            self.reader.document.fail(
                self.loc,
                "cannot add the block's input to its result",
                found=f"{shape_text(have)} and {shape_text(want)}",
                expected=f"equal shapes{or_stride}",
            )
        return self._project(options, source, want, stride)

    def _project(self, options: ShortcutSpec, x: Ref, want: tuple[Size, ...], stride: int) -> Ref:
        """Emit a 1×1 convolution or a linear map, and a batch norm if the steps end in one."""
        # The rows of the table emit it, so that it equals the same steps written out.
        site = Site(self.draft, self.scope.under("shortcut"), lambda _: x)
        norm = self.normalised if options.batch_norm is None else options.batch_norm
        have = self.draft.shape(x)
        # Tokens [batch, position, feature] and signals [batch, channel, position] both have rank 3:
        # a changing axis 1 is the channel axis.
        image = len(want) > 3 or (len(want) == 3 and have[1] != want[1])
        name = "linear" if not image else "conv1d" if len(want) == 3 else "conv"
        data = {"out": want[1 if image else -1], "bias": options.bias}
        if image:
            data |= {"kernel": 1, "stride": stride}
        row, norm_row = table.STEPS[name], table.STEPS["batch_norm"]
        with self.reader.guard(self.loc):
            y = row.emit(site.within(row.stem), row.options.model_validate(data), (x,))
            if norm:
                y = norm_row.emit(site.within(norm_row.stem), norm_row.options(), (y,))
            return y


def _stride(have: tuple[Size, ...], want: tuple[Size, ...]) -> int | None:
    """Return the stride of the 1×1 projection between two shapes; None if none fits."""
    if len(have) != len(want) or have[0] != want[0] or len(want) < 2:
        return None
    if len(want) < 4 and have[:-1] == want[:-1]:  # a linear map of the last axis
        return 1
    pairs = list(zip(have[2:], want[2:], strict=True))
    # A stride s leaves ceil(a / s) positions; the sizes above 1 determine it.
    sizes = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    strides = [-(-a // b) for a, b in sizes if (a, b) != (1, 1)]
    # The largest: rounding up makes short axes understate the stride.
    stride = max(strides, default=1)
    fits = all(isinstance(a, int) and -(-a // stride) == b for a, b in pairs)
    return stride if fits else None
