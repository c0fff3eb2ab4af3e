"""Short forms of model files, written out: ``transformers: folder`` and ``timm: name``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from archgraph.fields import Place
from archgraph.language.document import Document
from archgraph.language.model import FOLDER, long_form

# Where a key of the long form stands in the short one.
_PLACES: dict[Place, tuple[Place, ...]] = {
    ("python",): (("transformers",), ("timm",)),
    ("args", FOLDER): (("transformers",),),
    ("args", "checkpoint_path"): (("checkpoint",),),
}


def written_out(document: Document) -> Document:
    """Return a model file in its long form; mistakes point at the lines of the short one.

    Raises:
        SpecError: If it names weights that are not a safetensors file.
    """
    with document.locating():
        data = long_form(document.data, Path(document.file).parent.absolute())
    if data is document.data:
        return document
    lines = {
        path: document.lines[key]
        for path, keys in _PLACES.items()
        for key in keys
        if key in document.lines
    }
    return dataclasses.replace(document, data=data, lines={**document.lines, **lines})
