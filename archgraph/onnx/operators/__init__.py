"""Table of supported ONNX operators, with a row for each operator."""

from archgraph.onnx.operators.attention import ATTENTION
from archgraph.onnx.operators.images import IMAGES
from archgraph.onnx.operators.layers import LAYERS
from archgraph.onnx.operators.pointwise import POINTWISE
from archgraph.onnx.operators.recurrent import RECURRENT
from archgraph.onnx.operators.reductions import REDUCTIONS
from archgraph.onnx.operators.row import OnnxTable
from archgraph.onnx.operators.sequences import SEQUENCES
from archgraph.onnx.operators.shapes import SHAPES

ROWS: OnnxTable = (
    POINTWISE | SHAPES | IMAGES | REDUCTIONS | LAYERS | ATTENTION | RECURRENT | SEQUENCES
)
