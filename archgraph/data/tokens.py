"""Encode texts with a pretrained tokenizer, from a file of `tokenizers` or a folder.

Texts are encoded in the same way as by transformers. The tokenizer's template adds special tokens,
the longer text of a pair is cut first, and the tokenizer determines the padding and its side.
Nothing is downloaded or unpickled.

A vocabulary is never learned from rows, because it would differ from the vocabulary of a pretrained
model. Folders are read by transformers, because the tokenizer classes of some models override their
tokenizer.json. Masks determine which tokens are padding, because the padding token is often also
the end-of-text token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archgraph.data.columns import Column
from archgraph.data.files import MOST_BYTES, check_size, readable
from archgraph.data.rows import Records, dataset_of_rows
from archgraph.data.values import Dataset
from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED
from archgraph.hints import optional_module
from archgraph.language.data import HuggingFaceData, TableData
from archgraph.language.mistakes import abbreviate

Texts: TypeAlias = Sequence[str]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of models' inputs: token ids; mask with 0 on padding; 1 on the second text of a pair."""
WHERE, LENGTH = "data.tokenizer", "data.length"
# Special tokens that published tokenizers use for padding if their settings do not name one.
PADDING = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "<|padding|>", "<|finetune_right_pad_id|>")
MOST_TOKENS = MOST_BYTES >> 2  # each is stored as an id, an element of the mask and a type
MOST_UNKNOWN = 0.5  # share of unknown tokens above which a run warns
CHUNK = 1024  # texts at a time: the library's encoding of a text is much larger than its tokens


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer with its settings for padding and truncation.

    Attributes:
        backend: A ``tokenizers.Tokenizer``.
        tokens: All tokens, ordered by their numbers; an empty string for a number without a token.
        pad: Id and token type id of the padding token; None if there is none.
        pad_side: Side on which texts are padded.
        cut_side: Side on which texts that are too long are cut.
        where: File or folder of the tokenizer.
    """

    backend: Any
    tokens: tuple[str, ...]
    pad: tuple[int, int] | None
    pad_side: str
    cut_side: str
    where: str

    def encode(
        self, length: int, at: Callable[[int], str], texts: Texts, second: Texts | None = None
    ) -> dict[str, Tensor]:
        """Encode texts or pairs of texts, each cut or padded to a length.

        Args:
            length: Number of tokens of an example, including special tokens and padding.
            at: Function from the index of a text to its location, for errors.
            texts: The texts.
            second: The second text of each pair.

        Returns:
            Dict from the names in :data:`INPUTS` to arrays ``[text, position]``, in the smallest
            sufficient types.

        Raises:
            DataError: If there is no padding token, the length does not allow one token of each
                text, or a text does not have tokens.
        """
        pairs = second is not None
        marks = self.backend.num_special_tokens_to_add(pairs)
        if pairs and not marks:
            raise DataError(
                "does not separate the two texts of a pair",
                where=self.where,
                hint="set its post_processor, e.g. tokenizers.processors.TemplateProcessing",
            )
        least = marks + (2 if pairs else 1)
        if length < least:
            expected = f"at least {least}: {marks} marks and a token of each text"
            raise DataError("is too short", where=LENGTH, found=length, expected=expected)
        # The strategy of transformers' `truncation=True`.
        self.backend.enable_truncation(length, strategy="longest_first", direction=self.cut_side)
        return self._arrays(
            length, at, list(zip(texts, second, strict=True)) if second is not None else texts
        )

    def next_tokens(
        self, length: int, at: Callable[[int], str], texts: Texts
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Encode texts, with the next token as the target of each token.

        A text that is too long is cut at its end. The target of the last token of a text and of
        padding is -100, which the loss ignores.

        Returns:
            Arrays as returned by :meth:`encode`, and targets int64 ``[text, position]``.

        Raises:
            DataError: In the cases of :meth:`encode`, or if a text has less than two tokens.
        """
        # Not the library's truncation, which would add the end token to a text that was cut.
        self.backend.no_truncation()
        arrays = self._arrays(length + 1, at, list(texts), least=2)
        ids, mask, _ = arrays.values()
        targets = torch.where(mask[:, :-1] * mask[:, 1:] > 0, ids[:, 1:].to(torch.int64), IGNORED)
        return {name: rows[:, :-1].contiguous() for name, rows in arrays.items()}, targets

    def running(self, text: str, where: str) -> Tensor:
        """Return the tokens of a continuous text, without special tokens, int64 ``[position]``."""
        self.backend.no_truncation()
        self.backend.no_padding()
        with _encoding(where):
            return torch.tensor(self.backend.encode(text, add_special_tokens=False).ids)

    def _arrays(
        self, length: int, at: Callable[[int], str], texts: Sequence[Any], least: int = 1
    ) -> dict[str, Tensor]:
        """Encode texts, pad them, and cut those that the tokenizer did not cut."""
        if self.pad is None:
            raise DataError(
                "the tokenizer has no padding token",
                where=self.where,
                expected=f"a padding setting, or a special token {', '.join(PADDING[:2])}",
                hint="before saving it, call tokenizer.enable_padding(pad_id=…, pad_token=…); with "
                "transformers, set tokenizer.pad_token = tokenizer.eos_token",
            )
        check_size(len(texts) * length, MOST_TOKENS, "set of texts", LENGTH, "tokens")
        (pad, kind), small = self.pad, smallest(len(self.tokens))
        self.backend.enable_padding(
            direction=self.pad_side, pad_id=pad, pad_type_id=kind, length=length
        )
        types = small, torch.uint8, torch.uint8
        arrays = [torch.empty(len(texts), length, dtype=dtype) for dtype in types]
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            with _encoding(f"{at(start)}, or after it"):
                encodings = self.backend.encode_batch(chunk)
            for array, name in zip(arrays, ("ids", "attention_mask", "type_ids"), strict=True):
                values = [getattr(one, name)[:length] for one in encodings]
                array[start : start + len(chunk)] = torch.tensor(values)
        for row in torch.nonzero(arrays[1].sum(1) < least).flatten().tolist()[:1]:
            message = f"has fewer than {least} tokens" if least > 1 else "has no tokens"
            raise DataError(message, where=at(row), found=abbreviate(texts[row]), hint="remove it")
        return dict(zip(INPUTS, arrays, strict=True))


def read_tokenizer(path: str | Path, where: str = WHERE) -> Tokenizer:
    """Read a tokenizer from a file of `tokenizers`, or from a folder saved by transformers.

    A folder is read by transformers' ``AutoTokenizer``, because the tokenizer classes of some
    models override their tokenizer.json. Code in the folder is not executed.

    Args:
        path: A file or folder on this machine.
        where: Key that names the tokenizer, for errors.

    Raises:
        DataError: If the file is missing or is not a tokenizer, or the library is not installed.
    """
    path = Path(path).expanduser()
    # Checked here: transformers would take a missing folder for a name on its hub.
    if not path.exists():
        message, hint = "tokenizer is missing", "nothing is downloaded"
        raise DataError(message, where=where, found=str(path), hint=hint)
    return (_saved_by_transformers if path.is_dir() else _saved_by_tokenizers)(path, where)


def _saved_by_tokenizers(path: Path, where: str) -> Tokenizer:
    check_size(path.stat().st_size, MOST_BYTES, "file", path)
    library = optional_module("tokenizers", kind=DataError, where=where)
    with _reading(path, "tokenizer.json, as tokenizers and transformers save it"):
        backend = library.Tokenizer.from_file(str(path))
    settings, tokens = backend.padding or {}, _tokens(backend)
    # The library's default is number 0, whatever token has it.
    if settings and settings["pad_token"] != dict(enumerate(tokens)).get(settings["pad_id"]):
        raise DataError(
            "the number of the padding token belongs to another token",
            where=str(path),
            found=f"{settings['pad_token']} as number {settings['pad_id']}",
            expected=f"number {backend.token_to_id(settings['pad_token'])}",
            hint="call enable_padding(pad_id=tokenizer.token_to_id(…), pad_token=…) and save again",
        )
    pad = (settings["pad_id"], settings["pad_type_id"]) if settings else _usual_padding(backend)
    cut_side = (backend.truncation or {}).get("direction", "right")
    pad_side = settings.get("direction", "right")
    return Tokenizer(backend, tokens, pad, pad_side, cut_side, str(path))


def _saved_by_transformers(path: Path, where: str) -> Tokenizer:
    loader = optional_module("transformers", kind=DataError, where=where).AutoTokenizer
    with _reading(path, "tokenizer.json and tokenizer_config.json, or vocab.txt"):
        saved = loader.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    backend = getattr(saved, "backend_tokenizer", None)
    if backend is None:
        raise DataError(
            "the tokenizer has no tokenizer.json",
            where=str(path),
            found=type(saved).__name__,
            hint="its class computes tokens in Python: encode the texts beforehand",
        )
    number = saved.pad_token_id
    pad = _usual_padding(backend) if number is None else (number, saved.pad_token_type_id)
    return Tokenizer(
        backend, _tokens(backend), pad, saved.padding_side, saved.truncation_side, str(path)
    )


def _usual_padding(backend: Any) -> tuple[int, int] | None:
    """Return the number and type of a common padding token; None if the tokenizer lacks one."""
    special = {t.content: i for i, t in backend.get_added_tokens_decoder().items() if t.special}
    return next(((special[name], 0) for name in PADDING if name in special), None)


def _tokens(backend: Any) -> tuple[str, ...]:
    """Return all tokens, ordered by their numbers."""
    numbers = backend.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(numbers.values(), default=-1) + 1)
    for token, number in numbers.items():
        tokens[number] = token
    return tuple(tokens)


def dataset_of_texts(
    name: str,
    spec: TableData | HuggingFaceData,
    columns: Sequence[Column],
    targets: tuple[Tensor, tuple[str, ...]] | None,
    divide: Callable[[Records], tuple[Records, Records]],
) -> Dataset:
    """Build a data set in which each text, or pair of texts, is an example.

    Args:
        name: Name of the data set.
        spec: The spec, which names the tokenizer and the length.
        columns: The texts; for pairs, the first and the second texts.
        targets: Targets and the names of classes. Default: the next token at every position.
        divide: Function that splits rows into training and test rows.

    Raises:
        DataError: If a text cannot be encoded, or in the cases of :func:`dataset_of_rows`.
    """
    assert spec.tokenizer is not None and spec.length is not None  # its class has checked this
    tokenizer, texts = read_tokenizer(spec.tokenizer), [column.sentences() for column in columns]
    if targets is None:
        inputs, values = tokenizer.next_tokens(spec.length, columns[0].at, *texts)
        labels = tokenizer.tokens
    else:
        inputs = tokenizer.encode(spec.length, columns[0].at, *texts)
        values, labels = targets
    train, test = divide(Records(inputs, values))
    data = dataset_of_rows(name, "text", train, test, labels=labels)
    notes = tuple(_unknown(tokenizer, train, name))
    mask = data.inputs[1] if len(data.inputs) > 1 else ""
    count = len(tokenizer.tokens)
    return dataclasses.replace(data, tokens=count, separate=True, mask=mask, notes=notes)


def _unknown(tokenizer: Tokenizer, rows: Records, name: str) -> Iterator[str]:
    """Yield a warning if most tokens are unknown."""
    unknown = getattr(tokenizer.backend.model, "unk_token", None)
    if unknown in tokenizer.tokens:
        ids, mask, _ = rows.inputs.values()
        same = ids[mask > 0] == tokenizer.tokens.index(unknown)
        share = float(same.double().mean())
        if share > MOST_UNKNOWN:
            question = "is this the tokenizer of these texts, and of the model?"
            yield f"{name}: {100 * share:.0f} % of the tokens are {unknown}: {question}"


def smallest(tokens: int) -> torch.dtype:
    """Return the smallest type for a number of different tokens: int16 or int32."""
    # MultiNLI's training split has 50 million numbers in each array.
    return torch.int16 if tokens <= torch.iinfo(torch.int16).max else torch.int32


def _reading(path: Path, expected: str) -> AbstractContextManager[None]:
    """Convert any error of the library to a `DataError` about a damaged file."""
    return readable("tokenizer", path, expected, (Exception,), hint=None)


def _encoding(where: str) -> AbstractContextManager[None]:
    """Convert the library's error for text that its vocabulary does not cover to `DataError`."""
    expected, hint = "one that the tokenizer knows", "train it with an unk_token"
    return readable("text", where, expected, (Exception,), hint)  # the library raises no subclass
