from .analysis.axes import axes as axes
from .analysis.cost import cost as cost
from .analysis.layers import Layer as Layer
from .analysis.layers import layers as layers
from .analysis.outline import outline as outline
from .analysis.roles import frozen as frozen
from .analysis.roles import label_rows as label_rows
from .analysis.roles import layer_weights as layer_weights
from .analysis.roles import with_features as with_features
from .analysis.structure import structure as structure
from .capture.trace import trace as trace
from .display import draw as draw
from .display import explain as explain
from .engine import run as run
from .errors import (
    ArchGraphError as ArchGraphError,
)
from .errors import (
    AxisError as AxisError,
)
from .errors import (
    DataError as DataError,
)
from .errors import (
    GraphError as GraphError,
)
from .errors import (
    RejectedUpdate as RejectedUpdate,
)
from .errors import (
    RewriteError as RewriteError,
)
from .errors import (
    RunError as RunError,
)
from .errors import (
    SpecError as SpecError,
)
from .errors import (
    TraceError as TraceError,
)
from .federation.family import resolve as resolve
from .graph.ir import ArchGraph as ArchGraph
from .graph.ir import Node as Node
from .graph.ir import Param as Param
from .graph.text import parse as parse
from .language import (
    load as load,
)
from .language import (
    load_experiment as load_experiment,
)
from .language import (
    load_family as load_family,
)
from .language import (
    save as save,
)
from .module.build import (
    build as build,
)
from .module.build import (
    load_state as load_state,
)
from .module.build import (
    state_of as state_of,
)
from .module.initial import initial_state as initial_state
from .ops.check import check as check
from .relate.align import align as align
from .relate.alignment import Alignment as Alignment
from .relate.join import join as join
from .relate.join import meet as meet
from .rewrite.adapters import add_adapters as add_adapters
from .rewrite.deepen import deepen as deepen
from .rewrite.ends_after import ends_after as ends_after
from .rewrite.exits import add_exits as add_exits
from .rewrite.graft import graft as graft
from .rewrite.narrow import narrow as narrow
from .rewrite.scaler import add_scaler as add_scaler
from .rewrite.shorten import shorten as shorten
from .rewrite.skip import skip as skip
from .rewrite.split import chain as chain
from .rewrite.split import split as split
from .rewrite.step_sizes import add_step_sizes as add_step_sizes
from .rewrite.take import take as take
from .rewrite.train_only import train_only as train_only
from .rewrite.widen import widen as widen
from .states.merge import Merger as Merger
from .states.optimisers import carry as carry
from .states.rewritten import Rewritten as Rewritten
from .states.transfer import Transfer as Transfer
from .states.widths import widths as widths
