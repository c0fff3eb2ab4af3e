"""Who reads a module's mode: where only norms and dropouts of torch's do, one capture is enough.

Their operators have a flag for the mode. Torch's attention reads it as well; without dropout it
computes the same in both, as a capture takes no fast path. All other code that reads ``training``
may do whatever it likes with it, and only a capture in train mode shows what. (Two exports are nine
tenths of a trace without verification.)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from torch import fx, nn
from torch.nn.modules import activation, batchnorm, dropout

from archgraph.capture.surroundings import replaced
from archgraph.ops.norms import WITHOUT_MOMENTUM

_EXPORT = fx.graph_module.__file__  # copies the mode of a module to what is made of it
_FLAGGED = {module.__file__ for module in (batchnorm, dropout)}
_ATTENTION = activation.__file__


@dataclass
class Readers:
    """What reads or sets the mode of modules while a model runs.

    Attributes:
        flagged: Modules whose operators have a flag for their mode, by the addresses of their
            tables of attributes: an export wraps shared modules in objects with the same table.
        others: Whether other code reads a mode, or sets one.
    """

    flagged: set[int] = field(default_factory=set)
    others: bool = False

    def follow_flags(self, model: nn.Module, paths: Collection[str]) -> bool:
        """Return whether all that differs by mode are flags of operators, and each of them does.

        ``paths`` are the modules whose operators have such a flag: norms and dropouts of torch.nn
        themselves, not what derives from them or calls functions.
        """
        by_path = dict(model.named_modules(remove_duplicate=False))
        modules = {id(vars(m)): m for m in by_path.values()}
        plain = all(
            (type(m).train, type(m).eval) == (nn.Module.train, nn.Module.eval)
            and not {"train", "eval"} & vars(m).keys()
            for m in modules.values()
        )
        framework = all(
            path in by_path
            and id(vars(by_path[path])) in self.flagged
            and type(by_path[path]).__module__.startswith("torch.nn.")
            for path in paths
        )
        # A synchronised norm runs other operators in training.
        return (
            plain
            and framework
            and not self.others
            and self.flagged <= modules.keys()  # .train() reaches no others
            and not any(isinstance(modules[key], nn.SyncBatchNorm) for key in self.flagged)
        )


@contextlib.contextmanager
def reading_modes() -> Iterator[Readers]:
    """Note what reads or sets ``training`` of modules, for a while."""
    readers = Readers()

    def read(module: nn.Module) -> object:
        reader = sys._getframe(1).f_code.co_filename
        if reader in _FLAGGED:
            readers.flagged.add(id(vars(module)))
        elif reader == _ATTENTION:
            readers.others |= bool(getattr(module, "dropout", 1))
        elif reader != _EXPORT:
            readers.others = True
        try:
            return vars(module)["training"]
        except KeyError:
            raise AttributeError("training") from None

    def write(module: nn.Module, mode: object) -> None:
        # The first assignment is torch's own, of a module that is being made.
        if "training" in vars(module) and not isinstance(module, fx.GraphModule):
            readers.others = True
        vars(module)["training"] = mode

    # On the class: its instances have the flag in their tables, which a property comes before.
    with replaced(((nn.Module, "training", property(read, write)),)):
        yield readers


@contextlib.contextmanager
def without_momentum(model: nn.Module) -> Iterator[None]:
    """Let norms that average over all of their batches say so, for a while.

    They would divide by a counter, whose value no program has.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, batchnorm._BatchNorm)
        and module.momentum is None
        # With statistics and without a counter, a norm leaves them as they are.
        and (module.num_batches_tracked is not None or module.running_mean is None)
    ]
    with replaced((norm, "momentum", WITHOUT_MOMENTUM) for norm in norms):
        yield
