"""Running text as windows of consecutive words, for predicting the next one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from archgraph.engine.data.files import File, decoded
from archgraph.engine.data.source import Source
from archgraph.engine.data.values import Dataset, Split
from archgraph.errors import DataError


def read(source: Source, files: Mapping[str, File], limit: int | None, bptt: int) -> Dataset:
    """A data set of one file per split; the vocabulary is that of the train text."""
    vocabulary: dict[str, int] = {}

    def windows(file: File) -> Split:
        words = read_tokens(file.read(), str(file.path))
        if not vocabulary:
            for word in words:
                vocabulary.setdefault(word, len(vocabulary))
        unknown = vocabulary.get("<unk>")
        tokens = [vocabulary.get(word, unknown) for word in words]
        if None in tokens:
            raise DataError(
                "word outside the vocabulary",
                where=str(file.path),
                found=repr(words[tokens.index(None)]),
                expected="words of the train text, which holds no <unk>",
            )
        stream = torch.tensor(tokens, dtype=torch.int64)
        count = (len(stream) - 1) // bptt
        if count < 1:
            raise DataError(
                "text shorter than one window",
                where=str(file.path),
                found=f"{len(stream)} tokens",
                expected=f"at least {bptt + 1}",
                hint="choose a smaller bptt",
            )
        count = count if limit is None else min(count, limit)
        # Two views of one stream: a token is stored once though it is input and target.
        return Split(
            stream[: count * bptt].view(count, bptt),
            stream[1 : count * bptt + 1].view(count, bptt),
        )

    train, test = (windows(files[name]) for name in source.files)
    return Dataset(source.name, "text", len(vocabulary), (bptt,), train, test, tuple(vocabulary))


def read_tokens(content: bytes, where: str) -> list[str]:
    r"""Split text into words at blanks, with `<eos>` at the end of every line.

    Raises:
        DataError: The text is not UTF-8.

    Example:
        >>> read_tokens(b"a b\n\n", "example")
        ['a', 'b', '<eos>', '<eos>']
    """
    text = decoded(content, where)
    # Only "\n" ends a line and only blanks part words: str.splitlines() and str.split() know more.
    lines = text.removesuffix("\n").split("\n") if text else []
    return [word for line in lines for word in (*filter(None, line.split(" ")), "<eos>")]
