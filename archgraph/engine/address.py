"""Addresses of models in the arguments of commands, such as ``FAMILY:MODEL``."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from archgraph.errors import SpecError
from archgraph.fields import GLOBAL
from archgraph.graph.ir import ArchGraph
from archgraph.hints import unknown
from archgraph.language import load_graph, load_model
from archgraph.language.loading import Choices
from archgraph.language.saved import is_saved, is_transformers
from archgraph.language.yaml import read_document

if TYPE_CHECKING:
    from torch import Tensor

    from archgraph.federation.family import Family
    from archgraph.states import Transfer

WithState: TypeAlias = "tuple[ArchGraph, Mapping[str, Tensor]]"


@dataclass(frozen=True)
class Address:
    """The address of a model: ``FILE``, ``RUN``, ``FAMILY:MODEL`` or ``RUN:MODEL``.

    Attributes:
        path: File of a model, family or experiment, or folder of a model or run.
        member: For a family or a run, the name of one model: ``global`` or a kind of client.
    """

    path: Path
    member: str | None = None

    @classmethod
    def of(cls, text: str | os.PathLike[str]) -> Address:
        """Parse an address. If the whole text is an existing path, it may contain a colon."""
        # The last colon, since a drive letter is followed by a colon, too.
        name, mark, member = os.fspath(text).rpartition(":")
        return cls(Path(name), member) if mark and not Path(text).exists() else cls(Path(text))

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    @property
    def is_run(self) -> bool:
        """Whether the path is a run folder: a folder without a saved model."""
        return self.path.is_dir() and not (is_saved(self.path) or is_transformers(self.path))

    @functools.cached_property
    def family(self) -> Family | None:
        """The family of the file, or of its experiment; None for a model or a run."""
        data = None if self.path.is_dir() else read_document(self.path).data
        if not isinstance(data, dict) or data.keys().isdisjoint(("family", "clients")):
            return None
        from archgraph.engine.facts import family_of
        from archgraph.federation.family import resolve
        from archgraph.language import load_experiment, load_family

        if "family" in data:
            return resolve(family_of(load_experiment(self.path)))
        return resolve(load_family(self.path))

    def graph(self, choices: Choices | None = None) -> ArchGraph:
        """Return the addressed architecture; for a family or run, by default the global model's.

        Raises:
            ArchGraphError: If the architecture cannot be read, or the address does not identify a
                model.
        """
        if self.is_run:
            from archgraph.record.folder import run_folder

            files = {file.stem: file for file in (run_folder(self.path) / "models").glob("*.yaml")}
            return load_graph(files[self._among(files, self.member or GLOBAL)])
        if self.family is None:
            if self.member is not None:
                raise SpecError("is not a family", where=str(self.path), found=str(self))
            return load_graph(self.path, choices)
        if choices:
            raise SpecError("is a family; --choose applies to a single model", where=str(self.path))
        models = self.family.models
        if self.member is None and GLOBAL not in models:
            message = "is a family without a global model"
            raise SpecError(
                message,
                where=str(self.path),
                expected=f"FILE:NAME, with one of {', '.join(models)}",
            )
        return models[self._among(models, self.member or GLOBAL)]

    @property
    def transfer(self) -> Transfer | None:
        """The linear map from the global model's weights to this model's weights.

        None if the address does not name a model of a family with a global model.
        """
        if self.member is None or self.is_run or self.family is None or not self.family.has_global:
            return None
        from archgraph.states import Transfer

        transfers = {kind.name: kind.transfer for kind in self.family.clients}
        return transfers.get(self.member) or Transfer.identity(self.family.graph)

    def models(
        self, weights: Path | None = None, *, data_root: Path | None = None, tested: bool = False
    ) -> Mapping[str, WithState]:
        """Return a dict from name to architecture and weights.

        The model of a model file has the empty name.

        Args:
            weights: A file of weights. Default: the model's own weights, or else untrained weights.
            data_root: Folder of the data of a run. Default: the folder that the run used.
            tested: For a run, use the running statistics with which each model was tested.

        Raises:
            ArchGraphError: If the file cannot be read, or the weights do not fit the model.
        """
        if self.is_run:
            from archgraph.engine.run_models import trained

            if weights is not None:
                raise SpecError("has its own weights", where=str(self), found=str(weights))
            models = trained(self.path, data_root=data_root, tested=tested)
            chosen = models if self.member is None else [self._among(models, self.member)]
            return {name: models[name] for name in chosen}
        if self.member is not None or self.family is not None:
            graph, state = self.graph(), None
        else:
            graph, state = load_model(read_document(self.path))
        if weights is not None:
            return {"": (graph, weights_in(weights, graph))}
        from archgraph.module.initial import initial_state

        return {"": (graph, state or initial_state(graph, 0))}

    def model(
        self, weights: Path | None = None, *, data_root: Path | None = None, tested: bool = False
    ) -> WithState:
        """Return the addressed architecture and weights; for a run, by default the global model.

        The arguments are those of :meth:`models`.
        """
        models = self.models(weights, data_root=data_root, tested=tested)
        if len(models) > 1 and GLOBAL not in models:
            raise SpecError(
                "holds several models",
                where=str(self),
                found=", ".join(models),
                expected=f"{self}:MODEL",
            )
        return models.get(GLOBAL) or next(iter(models.values()))

    def _among(self, names: Collection[str], name: str) -> str:
        if name not in names:
            raise SpecError("has no such model", where=str(self.path), **unknown(name, names))
        return name


def weights_in(file: Path, graph: ArchGraph) -> Mapping[str, Tensor]:
    """Read the weights of a model from a safetensors file. Weights may be infinite or NaN.

    Raises:
        SpecError: If the file is not a safetensors file.
        RejectedUpdate: If the weights do not fit the model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from archgraph.states import check_update

    try:
        state = load_file(file)
    except SafetensorError as error:
        raise SpecError("is not a safetensors file", where=str(file), found=error) from error
    check_update(graph, state, finite=False)
    return state
