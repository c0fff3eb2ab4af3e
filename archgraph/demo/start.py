"""Copying of the shipped specs to a user's folder, for `archgraph init`."""

from __future__ import annotations

import os
import shutil
from importlib import resources
from pathlib import Path

from archgraph.errors import RunError, os_reason

# Files of `archgraph/specs` that are copied: all that the commands of the documentation name.
COPIED = (
    *(f"{folder}/*.yaml" for folder in ("models", "families", "experiments", "experiments/small")),
    *(f"{folder}/*.yaml" for folder in ("studies", "ablations")),
)


def start(folder: str | os.PathLike[str]) -> Path:
    """Copy the shipped models, families, experiments and studies into a new folder.

    Args:
        folder: The folder, which must be new or empty.

    Returns:
        The folder.

    Raises:
        RunError: If the folder is not empty or cannot be written.

    Example:
        >>> import tempfile
        >>> root = start(Path(tempfile.mkdtemp()) / "mine")
        >>> sorted(path.name for path in root.iterdir())
        ['README.md', 'ablations', 'experiments', 'families', 'models', 'studies']
    """
    root = Path(folder)
    # Never replace the user's files, or mix them with files of an older version.
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        kind = "a folder with files in it" if root.is_dir() else "a file"
        raise RunError("needs a new or empty folder", where=str(root), found=kind)
    try:
        with resources.as_file(resources.files("archgraph") / "specs") as specs:
            for source in sorted(file for pattern in COPIED for file in specs.glob(pattern)):
                target = root / source.relative_to(specs)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        with resources.as_file(resources.files("archgraph.demo") / "start.md") as text:
            shutil.copyfile(text, root / "README.md")
    except OSError as error:
        raise RunError(
            "cannot write the folder", where=str(root), found=os_reason(error)
        ) from error
    return root
