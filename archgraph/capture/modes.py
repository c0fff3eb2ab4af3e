"""Find the code that reads a module's mode, to decide if one capture is enough for both modes.

One capture is enough if only norms and dropouts of torch read the mode, because their operators
have a flag for the mode. Torch's attention also reads the mode, to choose a fast path. A capture
does not use the fast path, so attention without dropout computes the same in both modes. If other
code reads ``training``, only a capture in train mode shows the effect. (Two exports take nine
tenths of the time of a trace without verification.)
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

_EXPORT = fx.graph_module.__file__  # copies the mode of a module to its graph module
_FLAGGED = {module.__file__ for module in (batchnorm, dropout)}
_ATTENTION = activation.__file__


@dataclass
class Readers:
    """Code that reads or sets the mode of modules while a model runs.

    Attributes:
        flagged: Modules whose operators have a flag for the mode. Each module is represented by the
            address of its attribute dict, because an export wraps shared modules in objects with
            the same dict.
        others: Whether other code reads or sets a mode.
    """

    flagged: set[int] = field(default_factory=set)
    others: bool = False

    def follow_flags(self, model: nn.Module, paths: Collection[str]) -> bool:
        """Return whether the modes differ only in flags of operators that follow the mode.

        ``paths`` are the modules whose operators have a flag. They must be norms and dropouts of
        torch.nn, not subclasses of them or other modules that call functions.
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
            and self.flagged <= modules.keys()  # .train() does not reach others
            and not any(isinstance(modules[key], nn.SyncBatchNorm) for key in self.flagged)
        )


@contextlib.contextmanager
def reading_modes() -> Iterator[Readers]:
    """Temporarily record the code that reads or sets ``training`` of modules."""
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
        # The first assignment is torch's own, in the constructor of a module.
        if "training" in vars(module) and not isinstance(module, fx.GraphModule):
            readers.others = True
        vars(module)["training"] = mode

    # On the class: instances have the flag in their tables, but a property takes precedence.
    with replaced(((nn.Module, "training", property(read, write)),)):
        yield readers


@contextlib.contextmanager
def without_momentum(model: nn.Module) -> Iterator[None]:
    """Temporarily set the momentum of BatchNorm layers with ``momentum=None`` to NaN.

    These layers compute a cumulative average: they divide by ``num_batches_tracked``, whose value
    an exported program does not contain.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, batchnorm._BatchNorm)
        and module.momentum is None
        # A norm with statistics but without a counter does not update them.
        and (module.num_batches_tracked is not None or module.running_mean is None)
    ]
    with replaced((norm, "momentum", WITHOUT_MOMENTUM) for norm in norms):
        yield
