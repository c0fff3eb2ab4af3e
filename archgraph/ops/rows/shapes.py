"""Operators that rearrange, pick, join or write positions."""

from dataclasses import replace

from torch import nn

from archgraph.ops import layers, rules, shapes, spelling, starts, types, views, zeros
from archgraph.ops.operator import Growth, Operator, Rows, alike

_MOVES = Growth(scales="all", moves=True, repeats="any", picks=True)
_ALIGNED = Growth(scales="all", pointwise=True, repeats="any", picks=True)
_ALL = Growth(scales="all", repeats="any", picks=True)
_PADS = Growth(scales="all", pointwise=True, repeats="any")
_KNOWN = Growth()  # nothing but that it does not make 0/0

# Every position of the operand, somewhere else.
_moved = Operator(zero=zeros.first, pointwise=True, growth=_MOVES)
_view = replace(_moved, rule=shapes.reshape, spelling=spelling.reshape)
_turned = replace(_moved, rule=shapes.matrix_transpose)
_stacked = Operator(shapes.stacked, zeros.every)
_pad = Operator(shapes.pad, zeros.first, growth=_PADS, unchanged=spelling.pads_nothing)

ROWS: Rows = {
    "input": Operator(),
    "getitem": Operator(
        rules.getitem,
        zeros.passed,
        pointwise=True,
        growth=replace(_MOVES, identity=starts.identity_plain),
    ),
    # -- all positions in another shape or order
    "reshape": replace(
        _view, unchanged=spelling.always, overwritten=views.reshape, layer=layers.reshape
    ),
    "view": _view,
    "permute": replace(_moved, rule=shapes.permute, overwritten=views.permute),
    "transpose": replace(_moved, rule=shapes.transpose, overwritten=views.transpose),
    **alike(("t", "numpy_T", "mT"), replace(_turned, overwritten=views.itself)),
    "matrix_H": _turned,
    **alike(("mH", "adjoint"), Operator(shapes.matrix_transpose, zeros.first, pointwise=True)),
    "movedim": replace(_moved, rule=shapes.movedim),
    "unsqueeze": replace(_moved, rule=shapes.unsqueeze, overwritten=views.reshape),
    "squeeze": replace(_moved, rule=shapes.squeeze, overwritten=views.reshape),
    "view_as_complex": Operator(
        shapes.complex_view,
        zeros.first,
        overwritten=views.by("aten.view_as_real"),
        contiguous=("self",),
    ),
    "view_as_real": Operator(
        shapes.complex_view, zeros.first, overwritten=views.by("aten.view_as_complex")
    ),
    "pixel_shuffle": Operator(
        shapes.pixel_shuffle,
        zeros.first,
        growth=_MOVES,
        layer=layers.plain(nn.PixelShuffle),
    ),
    "pixel_unshuffle": Operator(
        shapes.pixel_unshuffle,
        zeros.first,
        growth=_MOVES,
        layer=layers.plain(nn.PixelUnshuffle),
    ),
    **alike(
        ("channel_shuffle", "native_channel_shuffle"),
        Operator(shapes.channel_shuffle, zeros.first, layer=layers.plain(nn.ChannelShuffle)),
    ),
    # -- positions repeated
    "expand": Operator(
        shapes.expand,
        zeros.first,
        pointwise=True,
        growth=_ALIGNED,
        spelling=spelling.expand,
        unchanged=spelling.always,
    ),
    "repeat": Operator(shapes.repeat, zeros.first, growth=_ALIGNED),
    "repeat_interleave": Operator(shapes.repeat_interleave, zeros.first, growth=_ALL),
    # -- several tensors joined
    "cat": Operator(shapes.cat, zeros.every, growth=_ALIGNED, type=types.cat),
    "stack": Operator(shapes.stack, zeros.every, growth=_ALL),
    **alike(("hstack", "vstack", "dstack", "column_stack"), _stacked),
    **alike(("pad", "constant_pad_nd"), _pad),
    # -- some positions
    "split_with_sizes": Operator(shapes.split, zeros.first, growth=_MOVES, overwritten=views.split),
    "slice": Operator(
        shapes.slice_,
        zeros.first,
        growth=_MOVES,
        spelling=spelling.slice_,
        unchanged=spelling.always,
        overwritten=views.slice_,
    ),
    "select": Operator(shapes.select, zeros.first, growth=_MOVES, overwritten=views.select),
    "unbind": Operator(shapes.unbind, zeros.first, growth=_MOVES, overwritten=views.unbind),
    "index": Operator(shapes.index, zeros.first, growth=_KNOWN),
    "index_select": Operator(shapes.index_select, zeros.first, growth=_KNOWN),
    "gather": Operator(shapes.gather, zeros.first, growth=_KNOWN),
    "take_along_dim": Operator(shapes.take_along, zeros.first),
    **alike(("tril", "triu"), Operator(shapes.triangle, zeros.first, growth=_KNOWN)),
    "diagonal": Operator(shapes.diagonal, zeros.first, overwritten=views.diagonal),
    "linalg_diagonal": Operator(shapes.diagonal, zeros.first),
    "diag_embed": Operator(shapes.diagonal_matrix, zeros.first),
    "unfold": Operator(shapes.windows, zeros.first),
    "im2col": Operator(shapes.patches, zeros.first),
    "col2im": Operator(shapes.from_patches, zeros.first),
    # -- positions written
    **alike(("scatter", "scatter_add", "scatter_reduce"), Operator(shapes.scatter, zeros.every)),
    **alike(("index_add", "index_copy"), Operator(shapes.index_add, zeros.every)),
    "index_fill": Operator(shapes.index_fill),
    "index_put": Operator(shapes.index_put, zeros.every),
    "masked_scatter": Operator(shapes.masked_scatter, zeros.every),
    "slice_scatter": Operator(shapes.slice_scatter, zeros.every, real=True),
    "select_scatter": Operator(shapes.select_scatter, zeros.every, real=True),
}
