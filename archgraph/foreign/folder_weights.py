"""The weights of a transformers folder under the names of its model."""

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
    """The weights of a transformers folder under the names of its model.

    Names in files differ if the files are from another version of the class, contain only its base
    model, or store experts separately. The tables of transformers map them to the model's tensors.
    A tensor that is computed from several tensors of the files is computed at once; the last one is
    cached.

    Attributes:
        shards: The tensors of the files.
        unused: Names in the files that the model does not have.

    Args:
        folder: The folder.
        model: Its model, without weights.

    Raises:
        GraphError: If the files lack weights of the model, have them in another shape, or have
            different values for tied weights.
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
        """Yield a conversion, the model's name, and the names in the files that it converts.

        1. Rename each tensor with the tables; keep its name if only that exists in the model.
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
        """Check that two names of a tied weight have equal values, as transformers does."""
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
