"""States that a server holds for many clients: on the disk, mapped into memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from archgraph.errors import RunError

if TYPE_CHECKING:
    from archgraph.states import State


def on_disk(state: State, folder: str | os.PathLike[str] | None = None) -> dict[str, Tensor]:
    """The same tensors, whose memory is a file that vanishes with the last of them.

    The operating system reads what is used and drops it when memory is short. The file has no name
    any more when this returns, so that nothing is left behind, whatever ends the process.

    Args:
        state: Tensors of any devices.
        folder: Where; None: the folder for temporary files.

    Returns:
        Tensors on the CPU, to be read only.

    Raises:
        RunError: If the folder cannot be written.

    Example:
        >>> import torch
        >>> on_disk({"w": torch.ones(2)})
        {'w': tensor([1., 1.])}
    """
    if not state:
        return {}
    try:
        descriptor, name = tempfile.mkstemp(".safetensors", "archgraph-", folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    os.close(descriptor)
    try:
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in state.items()}, name)
        return load_file(name)
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _unwritable(folder: str | os.PathLike[str] | None, error: Exception) -> RunError:
    return RunError(
        "clients' states cannot be written",
        where=str(folder or tempfile.gettempdir()),
        found=getattr(error, "strerror", None) or str(error),
        hint="free some space, name another folder in TMPDIR, or allow more memory",
    )
