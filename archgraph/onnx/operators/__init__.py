"""The operators of ONNX that become a graph: one row each."""

from archgraph.onnx.operators.layers import LAYERS
from archgraph.onnx.operators.pointwise import POINTWISE
from archgraph.onnx.operators.recurrent import RECURRENT
from archgraph.onnx.operators.reductions import REDUCTIONS
from archgraph.onnx.operators.row import Table
from archgraph.onnx.operators.shapes import SHAPES

ROWS: Table = {**POINTWISE, **SHAPES, **REDUCTIONS, **LAYERS, **RECURRENT}
