"""Access to the weights in a transformers folder, under the names of its model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archgraph.errors import GraphError
from archgraph.foreign.shards import Shards
from archgraph.hints import listed
from archgraph.states.lazy import LazyState

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FolderWeights(LazyState):
    """The weights in a transformers folder, as a state with the names of the model.

    Names in the files differ from those of the model if the files are from another version of the
    class, contain only its base model, or store the experts of a mixture separately. transformers
    provides rules that map them. If a tensor of the model is computed from several tensors in the
    files, it is computed as a whole, and the last such tensor is cached.

    Attributes:
        shards: The tensors in the files.
        unused: Names in the files that the model does not have.

    Args:
        folder: The folder.
        model: The model of the folder, without weights.

    Raises:
        GraphError: If the files lack a weight of the model, contain a weight in another shape, or
            contain different values for tied weights.
    """

    def __init__(self, folder: Path, model: PreTrainedModel) -> None:
        self.shards, self.unused = Shards(folder), list[str]()
        self._read: dict[str, Callable[[int, int], Tensor]] = {}
        self._last: tuple[str, Mapping[str, Tensor]] | None = None
        types: dict[str, Tensor] = {}
        expected = model.state_dict()
        for converter, target, names in self._sources(model):
            if converter is None:
                types[target] = self.shards.types[names[0]]
                self._read[target] = _reader(self.shards, names[0])
                continue
            for name, like in converter(self.shards.types).items():
                types[name] = like
                self._read[name] = self._computed(target, name, converter)
        for name, like in types.items():
            if like.shape != expected[name].shape:
                raise GraphError(
                    "has another shape",
                    where=f"{folder}: {name}",
                    found=list(like.shape),
                    expected=list(expected[name].shape),
                )
        parameters = dict(model.named_parameters(remove_duplicate=False))
        tied: dict[int, list[str]] = {}
        for name, parameter in parameters.items():
            tied.setdefault(id(parameter), []).append(name)
        for aliases in tied.values():
            present = [name for name in aliases if name in types]
            if not present:
                raise GraphError(
                    "has no weights for a parameter of its model",
                    where=str(folder),
                    found=listed(sorted(set(parameters) - set(types))),
                    hint="load it with its class, which initialises them, and save that model",
                )
            for name in present[1:]:
                self._check_equal(folder, present[0], name, types)
            for name in aliases:
                types[name], self._read[name] = types[present[0]], self._read[present[0]]
        super().__init__(types, lambda name, start, stop: self._read[name](start, stop))

    def _sources(
        self, model: PreTrainedModel
    ) -> Iterator[tuple[Callable[..., Mapping[str, Tensor]] | None, str, list[str]]]:
        """Yield conversions: each with the name in the model, and the names in the files.

        1. Rename each tensor with the rules of transformers, unless the model has the old name and
           not the new one.
        2. Collect the names that one conversion joins, in the order of transformers.
        """
        try:
            from transformers import core_model_loading as loading
            from transformers.conversion_mapping import get_model_conversion_mapping
        except ImportError as error:
            raise GraphError(
                "needs transformers 5 or newer",
                where=str(error),
                hint="pip install -U transformers",
            ) from error
        rules = get_model_conversion_mapping(model)
        renamings = [rule for rule in rules if isinstance(rule, loading.WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, loading.WeightConverter)]
        by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
        expected, prefix = model.state_dict(), model.base_model_prefix
        joined: dict[str, tuple[Any, list[tuple[str, str]]]] = {}
        for name in sorted(self.shards, key=loading.dot_natural_key):
            target, pattern = loading.rename_source_key(
                name, renamings, converters, prefix, expected
            )  # 1
            if target not in expected and name in expected:
                target, pattern = loading.rename_source_key(name, [], [], prefix, expected)
            if target not in expected:
                self.unused.append(name)
            elif pattern is None:
                yield None, target, [name]
            else:  # 2
                rule, members = joined.setdefault(target, (by_pattern[pattern], []))
                members.append((pattern, name))
        for target, (rule, members) in joined.items():

            def convert(
                tensors: Mapping[str, Tensor],
                rule: Any = rule,
                members: list[tuple[str, str]] = members,
                target: str = target,
            ) -> Mapping[str, Tensor]:
                mapping = copy.deepcopy(rule)
                for pattern, name in members:
                    mapping.add_tensor(target, name, pattern, tensors[name])
                results = mapping.convert(target, model=model, config=model.config)
                return {k: v[0] if isinstance(v, list) else v for k, v in results.items()}

            yield convert, target, [name for _, name in members]

    def _computed(
        self, group: str, name: str, convert: Callable[..., Mapping[str, Tensor]]
    ) -> Callable[[int, int], Tensor]:
        def rows(start: int, stop: int) -> Tensor:
            if self._last is None or self._last[0] != group:
                self._last = None  # freed before the next tensor is computed
                self._last = group, convert(self.shards)
            return self._last[1][name][start:stop]

        return rows

    def _check_equal(self, folder: Path, one: str, other: str, types: Mapping[str, Tensor]) -> None:
        """Check that the files have equal values under two names of a tied weight."""
        names = {one: types[one], other: types[other]}
        both = LazyState(names, lambda name, start, stop: self._read[name](start, stop))
        pairs = zip(both.bands(one), both.bands(other), strict=True)
        if types[one].dtype != types[other].dtype or not all(torch.equal(a, b) for a, b in pairs):
            raise GraphError(
                "the configuration ties two weights that differ in the files",
                where=str(folder),
                found=f"{one} and {other}",
                hint="set tie_word_embeddings to false in config.json",
            )


def _reader(shards: Shards, name: str) -> Callable[[int, int], Tensor]:
    return lambda start, stop: shards.rows(name, start, stop)
