"""Malformed files: seeded mutations of valid ones, and a run that survives whatever they do.

A case is a valid file with one to three faults put into it. It is read and used as a person would
read and use it, in a child process with a clock and a bound on memory, and ends as *rejected* (an
archgraph error that says where), *loaded* (the graph passes check, and what comes next works too)
or as a fault: any other exception, a hang, too much memory, a process that died.

More of them: ``python -m tests.language.fuzzing --count 10000 --seed 1``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import archgraph as ag
from archgraph.errors import ArchGraphError
from archgraph.federation import configure
from archgraph.graph.ir import BATCH, ArchGraph, Atom, Leaf, Mode, Node, Ref, Value, replace
from archgraph.language import flat
from archgraph.language.yaml import parse_document
from archgraph.ops.check import computable, pure
from archgraph.ops.infer import infer_call
from archgraph.ops.operator import unknown_axes
from archgraph.ops.schema import canonical_args, op_schema
from archgraph.ops.table import known, row

SPECS = Path(__file__).parents[2] / "specs"
SECONDS = 5.0
BYTES = 2**30

# What cannot point at a line, since it is about the file as a whole.
WHOLE = ("cannot be read", "is too large", "is not a file")


# -- valid files ------------------------------------------------------------------------------


class Convolutional(nn.Module):
    """Residual, grouped, normalised, dropped, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.side = nn.Conv2d(8, 4, 1)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.body(x)
        x = nn.functional.max_pool2d(torch.cat([x, self.side(x)], 1), 2)
        return self.head(self.drop(x.mean((2, 3))))


class Encoder(nn.Module):
    """Token and position embeddings, attention with a mask, feed-forward, two named outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.register_buffer("positions", torch.arange(12))
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.decoder = nn.Linear(16, 50)
        self.decoder.weight = self.words.weight

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(self.positions)
        q, k, v = (
            t.view(-1, 12, 4, 4).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        scores = (q @ k.transpose(-1, -2)) / 2.0 + mask[:, None, None, :]
        mixed = torch.softmax(scores, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(-1, 12, 16))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return {"logits": self.decoder(x), "first": x[:, 0]}


class Recurrent(nn.Module):
    """An opaque operator and a table of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        table = torch.linspace(0, 1, 40).reshape(10, 4)
        return self.head(self.cell(x * table)[0][:, -1])


@dataclass(frozen=True)
class Source:
    """A valid file."""

    name: str
    kind: str
    text: str


@functools.cache
def sources() -> tuple[Source, ...]:
    """The valid files that are mutated."""
    made = {
        "convolutional": ag.trace(Convolutional(), torch.zeros(2, 3, 8, 8)).graph,
        "encoder": ag.trace(
            Encoder(), ids=torch.zeros(2, 12, dtype=torch.int64), mask=torch.zeros(2, 12)
        ).graph,
        "recurrent": ag.trace(Recurrent(), torch.zeros(2, 10, 4)).graph,
    }
    for name in ("lenet5", "digits_cnn"):
        made[name] = ag.load(SPECS / "models" / f"{name}.yaml")
    found = [Source(name, "flat", flat.dump(graph)) for name, graph in made.items()]
    for name in ("digits_cnn", "lenet5", "small_cnn", "pre_resnet", "transformer"):
        text = (SPECS / "models" / f"{name}.yaml").read_text()
        found.append(Source(name, "model", re.sub(r"\b(64|128|256|512|28782)\b", "16", text)))
    for name in ("fedfa_digits", "heterofl_fashion"):
        text = (SPECS / "families" / f"{name}.yaml").read_text()
        found.append(Source(name, "family", text))
    for name in ("fedfa_digits", "fedfa_digits_attacked"):
        text = (SPECS / "experiments" / f"{name}.yaml").read_text()
        found.append(Source(name, "experiment", text))
    return tuple(found)


# -- mutations --------------------------------------------------------------------------------

Mutation = Callable[[random.Random, bytes], bytes]
MUTATIONS: dict[str, list[Mutation]] = {"bytes": [], "yaml": [], "graph": []}


def _mutation(level: str) -> Callable[[Mutation], Mutation]:
    def add(mutation: Mutation) -> Mutation:
        MUTATIONS[level].append(mutation)
        return mutation

    return add


def _spliced(data: bytes, start: int, end: int, new: bytes) -> bytes:
    return data[:start] + new + data[end:]


@_mutation("bytes")
def delete_bytes(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return _spliced(data, start, start + rng.choice((1, 1, 3, 40)), b"")


@_mutation("bytes")
def duplicate_bytes(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.choice((1, 5, 60))]
    return _spliced(data, start, start, part * rng.choice((1, 1, 200)))


@_mutation("bytes")
def swap_bytes(rng: random.Random, data: bytes) -> bytes:
    if len(data) < 2:
        return data
    a, b = sorted(rng.sample(range(len(data)), 2))
    return data[:a] + data[b : b + 1] + data[a + 1 : b] + data[a : a + 1] + data[b + 1 :]


ODD_BYTES = (
    b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\t", b"\r", b"\x1b[2J",
    b"\x85", b"\xc2\x85", b"\xe2\x80\xa8", "é".encode(), "𝕏".encode(), b"'", b'"', b"\\",
    b"\\ud800", b"%", b"@", b"$", b"{", b"}", b"[", b"]", b"(", b")", b":", b"#", b"|", b"&",
    b"*", b"---\n", b"...\n", b"%YAML 1.1\n---\n", b"%TAG ! x\n", b"-", b"0", b"9" * 30,
)  # fmt: skip


@_mutation("bytes")
def insert_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.choice((0, rng.randrange(len(data) + 1), rng.randrange(len(data) + 1), len(data)))
    return _spliced(data, at, at, rng.choice(ODD_BYTES))


@_mutation("bytes")
def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


@_mutation("bytes")
def change_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[i : i + rng.choice((1, 1, 4))]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case 3:
            i, j = min(i, j), max(i, j)
            lines += lines[i:j]
        case 4:
            lines[i] = rng.choice((b"\t", b" ", b"    ")) + lines[i].lstrip()
        case _:
            lines[i] += b" " + rng.choice((b"x", b"#", b"9", b"[", b"\\")) * 300_000
    return b"\n".join(lines)


@_mutation("bytes")
def encode_otherwise(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(
        rng.choice(("utf-16", "utf-32", "utf-8-sig", "cp037", "utf-16-le")), "replace"
    )


def _bomb(levels: int = 9) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


ODD_VALUES = (
    "", "~", "null", "true", "no", "0", "-1", "1", "2", "3.5", "-0.0", "1e400", ".inf", "-.inf",
    ".nan", "9" * 401, "-" + "9" * 25, "1000000000000", "2147483647", "2147483648",
    "9223372036854775808", "0o17", "0x1F", "017", "1_000", "2020-01-01", "12:30:45", "''", "' '",
    '"\\0"', '"\\ud800"', '"a\\nb"', "[]", "{}", "[1, 2]", "[[[]]]", "[a, b]", "{a: 1}",
    "{1: 2}", "{true: no}", "{[a]: b}", "{? a}", "!!python/object:os.system x",
    "!!python/object/apply:os.system [id]", "!!binary aGk=", "!!set {a, b}", "!!bool x",
    "!!int x", "!!float x", "!!null x", "!!str 1", "!!timestamp x", "!mine x", "!!map [a]",
    "!!seq {a: b}", "&x [*x]", "*undefined", "<<", "{<<: {a: 1}}", "[" * 10_000 + "]" * 10_000,
    "{a: " * 10_000 + "}" * 10_000, "x" * 200_000, "'" + "y" * 200_000 + "'",
    "[" + "1, " * 20_000 + "1]", "$width", "$x", "$", "$x ** $x",
    "$width * 999999999 * 999999999", "9**9**9", "$w ** 9", "9 ** 9 ** 9 + $width",
    "$width // 0", "$width / 2", "$width << 99", "__import__('os')", "$__class__", "${width}",
    "$width" + " + 1" * 60, "$width " + "+ (1 " * 30 + ")" * 30, "../../../etc/passwd",
    "/etc/passwd", "/dev/zero", "/dev/null", ".", "..", "/", "~/x.yaml", "file:///etc/passwd",
    "http://example.com/x.yaml", "a" * 5000, '"a\\0b"', "case.yaml", "./case.yaml", "relu",
    "conv", "block", "image", "input", "linear", "self", "class",
)  # fmt: skip


@_mutation("yaml")
def replace_value(rng: random.Random, data: bytes) -> bytes:
    """Another value anywhere a value stands."""
    text = data.decode("utf-8", "replace")
    places = [m.span(1) for m in re.finditer(r"[:\-,\[]\s+([^\s,\[\]{}|:][^,\[\]{}\n]*)", text)]
    places += [m.span() for m in re.finditer(r"\[[^\[\]\n]*\]|\{[^{}\n]*\}", text)]
    if not places:
        return data
    start, end = rng.choice(places)
    return (text[:start] + rng.choice(ODD_VALUES) + text[end:]).encode("utf-8", "replace")


@_mutation("yaml")
def replace_key(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    keys = list(re.finditer(r"(?:^|[\s{,])([\w.\"]+):(?=\s)", text))
    if not keys:
        return data
    match, other = rng.choice(keys), rng.choice(keys).group(1)
    new = rng.choice(
        (other, other, match.group(1) + "x", match.group(1)[:-1], "1", "true", "null", "2020-01-01",
         "~", "<<", "? [a]", '"\\ud800"', "k" * 3000, "$x", "python", "nodes", "sections", "a.b")
    )  # fmt: skip
    return (text[: match.start(1)] + new + text[match.end(1) :]).encode("utf-8", "replace")


@_mutation("yaml")
def add_at_top(rng: random.Random, data: bytes) -> bytes:
    extra = rng.choice(
        (_bomb(), _bomb(20), "extra: 1", "archgraph: 2", "archgraph: 1", "nodes: ''",
         "sections: []",
         "sections: {}", "python: no.such:thing\n", "python: a..b:c", "name: [x]", "inputs: {}",
         "updates: {}", "choices: {x: [1]}", "outputs: x", "outputs: {a: b}", "clients: []",
         "params: {x: 1}", "blocks: {}", "? [a, b]\n: c", "- a", "&a x: *a", "<<: {a: 1}",
         "sections:\n  a: [nothing]", "sections:\n  a: []", "x: " + "[" * 10_000)
    )  # fmt: skip
    added = extra.encode()
    return added + b"\n" + data if rng.random() < 0.3 else data + b"\n" + added + b"\n"


@_mutation("yaml")
def change_indent(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i = rng.randrange(len(lines))
    step = rng.choice((1, 2, 4, -1, -2))
    for k in range(i, min(len(lines), i + rng.choice((1, 3, 100)))):
        lines[k] = b" " * step + lines[k] if step > 0 else lines[k].removeprefix(b" " * -step)
    return b"\n".join(lines)


ODD_ARGUMENTS = (
    "None", "True", "False", "0", "1", "-1", "2", "7", "-5", "99999999999", "1000000000000",
    "9223372036854775807", "-9223372036854775808", "18446744073709551616", "9" * 400, "0.5",
    "-0.0", "nan", "inf", "-inf", "1e308", "1e999", "()", "(1,)", "(0, 0)", "(1, 2, 3)",
    "(-1, -1)", "(1000000000000, 1000000000000)", "(" * 100 + ")" * 100,
    "(" + "1, " * 3000 + ")", "'x'", "'none'", "''", "'\\ud800'", "'\\x00'", "batch", "2*batch",
    "0*batch", "-3*batch", "batch**2", "batch**1000000", "batch**-1", "batch**0",
    "9999999999999*batch", "training", "train(1, 2)", "train(None, True)", "train(%x, None)",
    "train(" * 70 + "1", ":float32", ":nothing", ":strided", ":manual_seed",
    ":contiguous_format", "%x", "%nothing", "%'", "{'a': 1}", "P{'a': 1}", "{", "@''", "@'a b'",
    "nothing", "weight", "(%x, %x)", "(None, None)", "('a', 'b')", "=", ",",
)  # fmt: skip
ODD_SIZES = (
    "0", "1", "2", "-1", "3", "7", "16", "1000000000000", "9223372036854775807",
    "99999999999999999999", "batch", "2*batch", "batch**2", "batch**3", "batch**99999999",
    "0*batch", "-2*batch", "1.5", "x", "", "1, 1, 1", ", ".join(["1"] * 80), "65537", "20000",
)  # fmt: skip
ODD_TYPES = (
    "float32", "float64", "int64", "bool", "complex64", "uint8", "bfloat16", "qint8", "float",
    "string", "float8_e4m3fn", "uint64", "complex32", "strided", "",
)  # fmt: skip
ODD_OPERATORS = (
    "input", "getitem", "aten.save", "aten.from_file", "aten.set_", "aten.set_data",
    "aten.relu_", "aten.item", "aten._print", "aten.warn", "aten.grad", "aten.cpu", "aten.cuda",
    "aten.tensor.float", "aten.nothing", "aten", "aten.", "aten..", "aten.relu.default",
    "aten.relu.nothing", "os.system", "prim.device", "torch.relu", "aten.__class__",
    "aten.add.__class__", "aten.add.Tensor_mode", "aten.unbind.int", "aten.chunk",
    "aten.split.Tensor", "aten.tensor_split.sections", "aten.nonzero", "aten.lstm.input",
    "aten.gru.data", "aten.einsum", "aten.matmul", "aten.bmm", "aten.addmm", "aten.cat",
    "aten.stack", "aten.reshape", "aten.view", "aten.permute", "aten.transpose.int",
    "aten.expand", "aten.repeat", "aten.conv1d", "aten.conv2d", "aten.conv3d",
    "aten.conv_transpose2d.input", "aten.linear", "aten.bilinear", "aten.embedding",
    "aten.batch_norm", "aten.group_norm", "aten.instance_norm", "aten.layer_norm",
    "aten.rms_norm", "aten.softmax.int", "aten.mean.dim", "aten.mean", "aten.sum",
    "aten.max.dim", "aten.topk", "aten.sort", "aten.cumsum", "aten.pad", "aten.pixel_shuffle",
    "aten.pixel_unshuffle", "aten.channel_shuffle", "aten.glu", "aten.prelu", "aten.max_pool2d",
    "aten.avg_pool2d", "aten.adaptive_avg_pool2d", "aten.upsample_nearest2d.vec",
    "aten.scaled_dot_product_attention", "aten.index.Tensor", "aten.gather", "aten.index_select",
    "aten.slice.Tensor", "aten.select.int", "aten.unsqueeze", "aten.squeeze.dims",
    "aten.movedim.int", "aten.where.self", "aten.where", "aten.zeros", "aten.arange",
    "aten.full", "aten.empty.memory_format", "aten.randn", "aten.roll", "aten.flip", "aten.tril",
    "aten._weight_norm", "aten.unfold", "aten.im2col", "aten.kron", "aten.svd",
    "aten.linalg_inv", "aten.fft_fft", "aten.stft", "aten.histc", "aten.unique_dim",
    "aten.bincount", "aten.to_sparse", "aten.quantize_per_tensor", "aten.resize",
    "aten.as_strided",
)  # fmt: skip


@functools.cache
def _all_operators() -> tuple[str, ...]:
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    return tuple(n.replace("::", ".") for n in names)


def _change(
    rng: random.Random, data: bytes, pattern: str, new: Callable[[re.Match[str]], str]
) -> bytes:
    """One match of a pattern replaced."""
    text = data.decode("utf-8", "replace")
    found = list(re.finditer(pattern, text))
    if not found:
        return data
    match = rng.choice(found)
    return (text[: match.start()] + new(match) + text[match.end() :]).encode("utf-8", "replace")


@_mutation("graph")
def change_reference(rng: random.Random, data: bytes) -> bytes:
    names = re.findall(r"%[\w.]+", data.decode("utf-8", "replace")) or ["%x"]
    return _change(
        rng, data, r"%[\w.]+", lambda m: rng.choice((rng.choice(names), m.group() + "_9"))
    )


@_mutation("graph")
def change_leaf(rng: random.Random, data: bytes) -> bytes:
    leaf = r"\b\w+\.(?:weight|bias|running_mean|num_batches_tracked|in_proj)\b|(?<= )positions"
    names = re.findall(leaf, data.decode("utf-8", "replace")) or ["weight"]
    odd = (
        "nothing", "stem", "stem.weight.x", "a..b", ".a", "@'a\" or b'", "@'a\\\\'", "@''",
        "@'a b'", "forward.weight", "@'0'", "é", rng.choice(names), rng.choice(names),
    )  # fmt: skip
    new = rng.choice(odd)
    if rng.random() < 0.3:  # everywhere
        old = rng.choice(names)
        return data.decode("utf-8", "replace").replace(old, new).encode("utf-8", "replace")
    return _change(rng, data, leaf, lambda _: new)


@_mutation("graph")
def change_size(rng: random.Random, data: bytes) -> bytes:
    size = r"(?<=[\[, (])(?:\d+\*)?(?:batch|\d+)(?=[,\])])"
    return _change(rng, data, size, lambda _: rng.choice(ODD_SIZES))


@_mutation("graph")
def change_type(rng: random.Random, data: bytes) -> bytes:
    kind = r"\b(?:float32|int64|bool)\[[^\]\n]*\]"

    def new(match: re.Match[str]) -> str:
        dtype, sizes = match.group()[:-1].split("[", 1)
        match rng.randrange(5):
            case 0:
                return f"{rng.choice(ODD_TYPES)}[{sizes}]"
            case 1:
                return f"{dtype}[]"
            case 2:
                return f"({dtype}[{sizes}],)"
            case 3:
                return f"({dtype}[{sizes}], {dtype}[{sizes}])"
            case _:
                return f"{dtype}[{', '.join(reversed(sizes.split(', ')))}]"

    return _change(rng, data, kind, new)


@_mutation("graph")
def change_operator(rng: random.Random, data: bytes) -> bytes:
    pool = ODD_OPERATORS if rng.random() < 0.6 else _all_operators()
    return _change(rng, data, r"(?<== )[\w.]+(?=\()", lambda _: rng.choice(pool))


ARGUMENT = r"(?<=[(, ])\w+=(?:\([^()]*\)|[^,()\n]+)"


@_mutation("graph")
def change_argument(rng: random.Random, data: bytes) -> bytes:
    def new(match: re.Match[str]) -> str:
        name = match.group().partition("=")[0]
        return f"{name}={rng.choice(ODD_ARGUMENTS)}"

    return _change(rng, data, ARGUMENT, new)


@_mutation("graph")
def drop_or_add_argument(rng: random.Random, data: bytes) -> bytes:
    names = re.findall(r"\b(\w+)=", data.decode("utf-8", "replace")) or ["x"]
    if rng.random() < 0.4:
        return _change(rng, data, ARGUMENT + r",? ?", lambda _: "")
    extra = rng.choice((*names, "dim", "keepdim", "dtype", "device", "out", "self", "generator"))
    added = f", {extra}={rng.choice(ODD_ARGUMENTS)})"
    return _change(rng, data, r"\)(?=(?: @ [\w.]+)?\n)", lambda _: added)


@_mutation("graph")
def change_line(rng: random.Random, data: bytes) -> bytes:
    """Statements moved, doubled, dropped, or put in the other block."""
    lines = data.decode("utf-8", "replace").split("\n")
    inside = [i for i, s in enumerate(lines) if s.startswith("  ")]
    if not inside:
        return data
    i, j = rng.choice(inside), rng.choice(inside)
    match rng.randrange(4):
        case 0:
            lines.insert(j, lines.pop(i))
        case 1:
            lines.insert(j, lines[i])
        case 2:
            del lines[i]
        case _:
            lines[i] = lines[i].partition(" = ")[0] + " = input()"
    return "\n".join(lines).encode("utf-8", "replace")


@_mutation("graph")
def change_constant(rng: random.Random, data: bytes) -> bytes:
    """Bytes of a constant: fewer, more, damaged, or of a leaf that had none."""
    odd = ("raw:", "zlib:", "raw:AAAA", "raw:!!", "zlib:AAAA", "hex:00", "raw:" + "A" * 400_000,
           "zlib:eNoDAAAAAAE=", "1.5")  # fmt: skip
    new = rng.choice(odd)
    if b"zlib:" in data or b"raw:" in data:
        if rng.random() < 0.5:
            return _change(
                rng,
                data,
                r"(?:raw|zlib):[\w+/=]+",
                lambda m: m.group()[: rng.randrange(len(m.group()))],
            )
        return _change(rng, data, r"(?:raw|zlib):[\w+/=]+", lambda _: new)
    role = rng.choice(("constant", "parameter", "buffer"))
    return _change(
        rng, data, r"(?:parameter|buffer) ([^\n]*)", lambda m: f"{role} {m.group(1)} = {new}"
    )


@_mutation("graph")
def change_flag(rng: random.Random, data: bytes) -> bytes:
    """Roles, aliases, frozen flags, modes."""
    match rng.randrange(4):
        case 0:
            roles = ("parameter", "buffer", "constant", "weight", "")
            return _change(
                rng, data, r"(?<=  )(?:parameter|buffer|constant)\b", lambda _: rng.choice(roles)
            )
        case 1:
            flags = (" frozen", " alias x.y", " alias stem.weight", " alias", " frozen frozen")
            return _change(rng, data, r"(?<=\])(?=\n)", lambda _: rng.choice(flags))
        case 2:
            return _change(rng, data, r"\btraining\b", lambda _: rng.choice(ODD_ARGUMENTS))
        case _:
            mode = (
                "train({0}, None)", "train(None, {0})", "train({0}, {0})", "({0}, {0})",
                "{{'a': {0}}}", "T{{'class': {0}}}", "{{'a': {0}, 'a': {0}}}", "'{0}'", "3",
            )  # fmt: skip
            return _change(
                rng, data, r"(?<=\")%\w+(?=\")", lambda m: rng.choice(mode).format(m.group())
            )


@_mutation("graph")
def repeat_wildly(rng: random.Random, data: bytes) -> bytes:
    """Counts: depths, clients, rounds."""
    odd = ("1000000000", "1000", "0", "-1", "999", "$d1 * 500", "$d1 * 1000000")
    return _change(
        rng,
        data,
        r"(?<=depth: )[$\w]+|(?<=count: )\d+|(?<=rounds: )\d+|(?<=w1: )\d+",
        lambda _: rng.choice(odd),
    )


WORDS = (
    "constant", "reflect", "replicate", "circular", "none", "tanh", "mean", "sum", "floor", "trunc",
    "bij,bjk->bik", "...a,...b->...ab", "ab,cb->ac", "a,a", "abcd->ab", "abc,dc->abd",
    "aa->a", "...", "ab->", "bilinear", "fro",
)  # fmt: skip


def _drawn(rng: random.Random, kind: str, tensors: Sequence[Ref | Leaf]) -> Value:
    """A value for an argument of a type, small enough to fit now and then."""
    if kind.startswith("Optional["):
        return None if rng.random() < 0.5 else _drawn(rng, kind[9:-1], tensors)
    if kind.startswith("List["):
        count = rng.choice((1, 1, 2, 2, 3, 4))
        return tuple(_drawn(rng, kind[5:-1], tensors) for _ in range(count))
    match kind:
        case "Tensor":
            return rng.choice(tensors) if rng.random() < 0.95 else rng.choice((2, 0.5, True))
        case "int":
            return rng.choice((0, 0, 1, 1, 1, 2, 2, 3, -1, -1, -2, 4, 8, 12, 16, -3, BATCH))
        case "float" | "number":
            return rng.choice((0.0, 0.5, 1.0, 2.0, -1.0, 1e-5))
        case "bool":
            return rng.choice((True, False, Mode(True, False)))
        case "str":
            return rng.choice(WORDS)
        case "ScalarType":
            return Atom(rng.choice(("float32", "float64", "int64", "bool", "float16")))
    return None


@functools.cache
def _pool() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operators that a graph may hold: those that have a rule, and all."""
    allowed = tuple(n for n in _all_operators() if known(n) and pure(n) and computable(n))
    ruled = tuple(n for n in allowed if row(n).rule is not unknown_axes)
    return ruled, allowed


def _grown(rng: random.Random, graph: ArchGraph) -> ArchGraph:
    """The graph with one more operator that fits, in the stream or beside it."""
    nodes = list(graph.nodes)
    at = rng.randrange(1, len(nodes) + 1)
    refs = [Ref(n.name) for n in nodes[:at] if not isinstance(n.type, tuple)]
    tensors: list[Ref | Leaf] = [*refs[-6:], *refs[-6:], *(Leaf(p.name) for p in graph.params)]
    rng.shuffle(tensors)
    del tensors[rng.randrange(2, 8) :]
    for _ in range(25):
        op = rng.choice(_pool()[rng.random() < 0.2])
        found = op_schema(op).overload._schema.arguments
        given = {a.name: _drawn(rng, str(a.real_type), tensors) for a in found
                 if not a.has_default_value() or rng.random() < 0.3}  # fmt: skip
        try:
            made = Node("grown", op, canonical_args(op, given))
            types = {n.name: n.type for n in graph.nodes}
            leaves = {p.name: p.type for p in graph.params}
            made = dataclasses.replace(made, type=infer_call(made, types, leaves))
        except Exception:  # does not fit; the next one may
            continue
        break
    else:
        return graph
    name = f"grown{len(nodes)}"
    new = [dataclasses.replace(made, name=name)]
    if isinstance(made.type, tuple):
        if not made.type:
            return graph
        index = rng.randrange(len(made.type))
        args = (("source", Ref(name)), ("index", index))
        new.append(Node(f"{name}_item", "getitem", args, made.type[index]))
    last = new[-1]
    same = [r for r in refs if graph.node[r.name].type == last.type and r.name in set(made.uses())]
    rest, outputs = nodes[at:], graph.outputs
    if same and rng.random() < 0.8:

        def swap(value: Value) -> Value:
            return Ref(last.name) if value == same[0] else value

        rest = [
            dataclasses.replace(n, args=tuple((k, replace(v, swap)) for k, v in n.args))
            for n in rest
        ]
        outputs = replace(outputs, swap)
    else:
        outputs = (outputs, Ref(last.name))
    return graph.replace(nodes=(*nodes[:at], *new, *rest), outputs=outputs)


@_mutation("graph")
def grow(rng: random.Random, data: bytes) -> bytes:
    """Operators that fit put in unusual places: the types are right, the rest is odd."""
    try:
        graph = flat.read_flat(parse_document(data.decode("utf-8", "replace"), "grown"))
        ag.check(graph)
        for _ in range(rng.choice((1, 2, 4, 8))):
            graph = _grown(rng, graph)
        return flat.dump(graph).encode()
    except ArchGraphError:
        return data


@dataclass(frozen=True)
class Case:
    """A mutated file: what was done to what."""

    number: int
    source: str
    kind: str
    steps: tuple[str, ...]
    data: bytes


def case(seed: int, number: int) -> Case:
    """The case of a seed and a number, the same on every machine."""
    rng = random.Random(f"{seed}/{number}")
    files = sources()
    # Flat files hold most of what can be wrong.
    source = rng.choice([s for s in files if s.kind == "flat"] if rng.random() < 0.6 else files)
    levels = ["bytes", "yaml", "graph"]
    level = rng.choices(levels, (1, 1, 3 if source.kind == "flat" else 0.5))[0]
    data = source.text.encode()
    steps: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        often = [grow] * 6 if level == "graph" and source.kind == "flat" else []
        mutation = rng.choice([*MUTATIONS[level], *often])
        changed = mutation(rng, data)
        if changed != data:
            steps.append(mutation.__name__)
        data = changed
    return Case(number, source.name, source.kind, tuple(steps), data)


# -- one case ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a case ended.

    Attributes:
        number: Of the case.
        outcome: ``rejected``, ``loaded``, or what kind of fault it is.
        stage: What was being done.
        message: The error.
        seconds: Processor time taken.
        peak: Memory beyond what the process had before, in bytes.
    """

    number: int
    outcome: str
    stage: str = ""
    message: str = ""
    seconds: float = 0.0
    peak: int = 0

    @property
    def fault(self) -> bool:
        return self.outcome not in ("rejected", "loaded")


Stage = Callable[[str], None]


class TooSlow(BaseException):
    """Time is up; no handler of errors may catch it."""


def use(path: Path, kind: str, stage: Stage) -> None:
    """What a person does with a file."""
    stage("load")
    if kind == "family":
        family = ag.load_family(path)
        stage("resolve")
        ag.resolve(family)
        return
    if kind == "experiment":
        experiment = ag.load_experiment(path)
        stage("configure")
        configure(experiment.strategy_name, experiment.strategy_options)
        return
    graph = ag.load(path)
    stage("check")
    ag.check(graph)
    stage("write")
    assert flat.read_flat(parse_document(flat.dump(graph), "again")) == graph
    stage("axes")
    ag.axes(graph)
    stage("structure")
    ag.structure(graph)
    stage("cost")
    ag.cost(graph)
    stage("build")
    state = {
        p.name: torch.empty(p.shape, dtype=getattr(torch, p.dtype), device="meta")
        for p in graph.params
        if p.role != "constant"
    }
    ag.build(graph, state)


def located(text: str) -> bool:
    """Whether an error names a file and a line."""
    return bool(re.match(r"[^\n]*\.yaml:\d+", text)) or any(w in text for w in WHOLE)


def clocked(action: Callable[[Stage], None]) -> tuple[str, str, str]:
    """Outcome, last stage and message of an action; every stage has a clock of its own."""
    reached = ["load"]

    def stage(name: str) -> None:
        """The next thing is done."""
        reached[0] = name
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def ring(number: int, frame: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, ring)
    try:
        try:
            action(stage)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except ArchGraphError as error:
        return "rejected", reached[0], str(error)
    except TooSlow:
        return "slow", reached[0], "".join(traceback.format_exc(limit=-6))[-900:]
    except MemoryError:
        return "memory", reached[0], "".join(traceback.format_exc(limit=-4))[-600:]
    except Exception:
        return "crash", reached[0], "".join(traceback.format_exc(limit=-5))[-1200:]
    return "loaded", "", ""


def attempt(path: Path, kind: str) -> tuple[str, str, str]:
    """Outcome, stage and message of one file."""
    outcome, stage, message = clocked(lambda stage: use(path, kind, stage))
    if outcome == "rejected":
        if stage == "load" and not located(message):
            outcome = "not located"
        # The user's own sections are looked up when the structure is asked for.
        elif stage not in ("load", "resolve", "configure", "structure"):
            outcome = "late"
        message = message[:300]
    return outcome, stage, message


def _status(key: str) -> int:
    """A line of this process's memory statistics, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def measured(item: Case, folder: Path) -> Result:
    """One case with a clock and a look at the memory."""
    path = folder / {"family": "families", "experiment": "experiments"}.get(item.kind, "models")
    path = path / "case.yaml"
    path.write_bytes(item.data)
    result = observed(item.number, lambda: attempt(path, item.kind))
    return dataclasses.replace(result, message=result.message.replace(str(folder), ""))


def observed(number: int, attempted: Callable[[], tuple[str, str, str]]) -> Result:
    """An attempt's outcome, with the processor time and the memory that it took."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    start = time.process_time()  # other programs do not count
    outcome, stage, message = attempted()
    seconds = time.process_time() - start
    peak = max(0, _status("VmHWM") - before)
    if peak > BYTES and outcome in ("rejected", "loaded"):
        outcome = "memory"
    return Result(number, outcome, stage, message, seconds, peak)


# -- many cases -------------------------------------------------------------------------------


def _child(seed: int, numbers: Sequence[int], folder: Path, out: int) -> None:
    """Run cases and write a line for each; never returns."""
    allowed = _status("VmSize") + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for number in numbers:
        result = measured(case(seed, number), folder)
        os.write(out, json.dumps(dataclasses.asdict(result)).encode() + b"\n")
    os._exit(0)


def run(seed: int, numbers: Sequence[int]) -> Iterator[Result]:
    """Results in order; a child that dies or hangs beyond its clock is replaced."""
    sources()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(SPECS, folder, dirs_exist_ok=True)
        pending = list(numbers)
        while pending:
            inlet, outlet = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(inlet)
                try:
                    _child(seed, pending, folder, outlet)
                finally:
                    os._exit(1)
            os.close(outlet)
            with os.fdopen(inlet, "rb", buffering=0) as lines:
                held = b""
                while pending:
                    if not select.select([lines], [], [], 12 * SECONDS)[0]:
                        break
                    part = lines.read(65536)
                    if not part:
                        break
                    *whole, held = (held + part).split(b"\n")
                    for line in whole:
                        yield Result(**json.loads(line))
                        pending.pop(0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if pending:
                how = (
                    f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"
                )
                yield Result(pending.pop(0), "died", message=how)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """What a run found, as plain data."""
    slowest = max(results, key=lambda r: r.seconds)
    largest = max(results, key=lambda r: r.peak)
    return {
        "count": len(results),
        "outcomes": dict(Counter(r.outcome for r in results)),
        "stages": dict(Counter(r.stage for r in results if r.outcome == "rejected")),
        "slowest": [slowest.number, slowest.seconds],
        "peak": [largest.number, largest.peak],
        "faults": [dataclasses.asdict(r) for r in results if r.fault],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutate valid files and use them.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", type=int, help="Show one case: what was done, and what comes of it."
    )
    given = parser.parse_args()
    write = sys.stdout.write
    if given.only is not None:
        item = case(given.seed, given.only)
        write(f"{item.source} ({item.kind}): {', '.join(item.steps)}\n")
        original = next(s for s in sources() if (s.name, s.kind) == (item.source, item.kind))
        import difflib

        changed = item.data.decode("utf-8", "replace").split("\n")
        for line in difflib.unified_diff(original.text.split("\n"), changed, n=0, lineterm=""):
            write(line[:300] + "\n")
    numbers = range(given.count) if given.only is None else [given.only]
    start = time.perf_counter()
    results = list(run(given.seed, numbers))
    found = {**summary(results), "seconds": time.perf_counter() - start}
    write(json.dumps(found, indent=1) + "\n")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
