from __future__ import annotations

import dataclasses
import gzip
import hashlib
import lzma
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.data import (
    DATASETS,
    Dataset,
    Split,
    files,
    load,
    load_dataset,
)
from archgraph.data.cifar import read_cifar_batch
from archgraph.data.files import decode_text
from archgraph.data.images import read_idx
from archgraph.data.imagined import imagined_dataset
from archgraph.data.source import Published, source
from archgraph.data.values import channel_statistics
from archgraph.data.words import words_of
from archgraph.errors import DataError

# ---------------------------------------------------------------- small files in the real formats


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def store(path: Path, content: bytes, packing: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packing == ".gz":
        content = gzip.compress(content)
    elif packing == ".xz":
        content = lzma.compress(content)
    path.with_name(path.name + packing).write_bytes(content)


def mnist_files(seed: int = 0) -> dict[str, bytes]:
    draw = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", 30), ("t10k", 10)):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        files[f"{part}-images-idx3-ubyte"] = idx(images)
        files[f"{part}-labels-idx1-ubyte"] = idx((np.arange(count) % 10).astype(np.uint8))
    return files


def cifar_batch(count: int = 4, *, classes: int = 10, labels: bytes = b"labels") -> bytes:
    pixels = np.arange(count * 3072, dtype=np.int64).astype(np.uint8).reshape(count, 3072)
    return pickle.dumps({b"data": pixels, labels: [i % classes for i in range(count)]}, protocol=4)


def publish(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    contents: dict[str, bytes],
    gz: Path | None = None,
    archive: bool = False,
) -> None:
    """Make these files the published ones of the data set."""
    published = {
        file: Published(
            len(content),
            hashlib.md5((gz / f"{file}.gz").read_bytes() if gz else content).hexdigest(),
            gz is not None,
            archive,
        )
        for file, content in contents.items()
    }
    known = source(name)
    train = {file: published[file] for file in known.train}
    test = {file: published[file] for file in known.test}
    changed = dataclasses.replace(known, train=train, test=test)
    monkeypatch.setattr(load, "source", lambda _: changed)


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a complete small MNIST whose checksums are known."""
    files = mnist_files()
    publish(monkeypatch, "mnist", files)
    for file, content in files.items():
        store(tmp_path / "mnist" / file, content)
    return tmp_path


# ---------------------------------------------------------------- laws of a split


def test_train_batch_has_zero_mean_and_unit_deviation_per_channel():
    images = torch.randint(0, 200, (50, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    split = Split(images, torch.zeros(50, dtype=torch.int64), *channel_statistics(images))
    inputs, _ = split.batch(slice(None))
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        inputs.std((0, 2, 3), unbiased=False), torch.ones(3), atol=1e-5, rtol=0
    )


def test_statistics_equal_those_of_the_float_images():
    images = torch.randint(0, 256, (7, 2, 5, 3), generator=torch.Generator().manual_seed(1))
    mean, std = channel_statistics(images.to(torch.uint8))
    torch.testing.assert_close(mean, images.double().mean((0, 2, 3)).float(), atol=1e-4, rtol=0)
    expected = images.double().std((0, 2, 3), unbiased=False).float()
    torch.testing.assert_close(std, expected, atol=1e-4, rtol=0)


def test_a_constant_channel_becomes_zero_not_nan():
    images = torch.full((3, 1, 2, 2), 9, dtype=torch.uint8)
    split = Split(images, torch.zeros(3, dtype=torch.int64), *channel_statistics(images))
    assert torch.equal(split.batch([0, 1])[0], torch.zeros(2, 1, 2, 2))


@given(st.lists(st.integers(0, 1436), max_size=20))
def test_a_batch_is_its_examples_in_order(indices):
    train = load_digits().train
    inputs, targets = train.batch(indices)
    assert inputs.shape == (len(indices), 1, 8, 8)
    for position, index in enumerate(indices):
        one_input, one_target = train.batch(slice(index, index + 1))
        assert torch.equal(inputs[position], one_input[0])
        assert targets[position] == one_target[0] == train.targets[index]


def test_list_array_and_tensor_indices_agree():
    train = load_digits().train
    wanted = train.batch([5, 3, 5])
    for same in (np.array([5, 3, 5]), torch.tensor([5, 3, 5]), (5, 3, 5)):
        got = train.batch(same)
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])


def test_a_mask_chooses_what_it_is_true_for_in_whatever_form():
    train = load_digits().train
    expected = train.batch([3, 5])
    mask = torch.zeros(len(train), dtype=torch.bool)
    mask[[3, 5]] = True
    for form in (mask, mask.numpy(), mask.tolist()):
        (inputs,), targets = train.examples(form)
        assert torch.equal(inputs, expected[0]) and torch.equal(targets, expected[1])
        assert torch.equal(train.batch(form)[1], expected[1])
        with pytest.raises(IndexError, match="mask"):
            train.examples(form[:9])


def test_a_batch_leaves_the_stored_images_alone():
    train = load_digits().train
    before = train.inputs.clone()
    train.batch(slice(0, 10))[0].fill_(7)
    assert torch.equal(train.inputs, before)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (Split, (torch.zeros(2, 1), torch.zeros(3)), "2 inputs, 3 targets"),
        (
            read_idx,
            (idx(np.zeros(2, np.uint8)) + b"x", 1, "file"),
            "file: data file too long; found 11 bytes",
        ),
        (
            read_idx,
            (idx(np.zeros(20, np.uint8)), 3, "file"),
            "found magic 2049; expected magic 2051",
        ),
        (load_dataset, ("fashion-mnist",), r"'fashion-mnist'.*it is 'fashion_mnist' here"),
        (decode_text, (b"caf\xe9", "text"), "text: is not UTF-8 text"),
    ],
)
def test_what_is_no_data_is_refused_in_words(function, arguments, message):
    with pytest.raises(DataError, match=message):
        function(*arguments)


# ---------------------------------------------------------------- digits


_digits: Dataset | None = None


def load_digits() -> Dataset:
    global _digits
    _digits = _digits or load_dataset("digits")
    return _digits


def test_digits_are_complete_stratified_and_the_same_every_time():
    digits, again = load_digits(), load_dataset("digits")
    assert (digits.kind, digits.classes, digits.shape) == ("image", 10, (1, 8, 8))
    assert digits.train.inputs.dtype == torch.uint8
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert torch.equal(digits.train.inputs, again.train.inputs)
    assert torch.equal(digits.test.targets, again.test.targets)
    # As in the library: 1797 digits, this many of each class.
    train, test = (s.targets.bincount() for s in (digits.train, digits.test))
    whole = torch.tensor([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert torch.equal(train + test, whole)
    assert digits.test.mean is digits.train.mean
    assert digits.test.std is digits.train.std
    assert torch.all((test - whole / 5).abs() < 1)


def test_digits_are_those_of_scikit_learn_in_its_stratified_split():
    original = pytest.importorskip("sklearn.datasets").load_digits()
    split = pytest.importorskip("sklearn.model_selection").train_test_split
    orders = split(np.arange(1797), test_size=0.2, random_state=0, stratify=original.target)
    digits = load_digits()
    for part, order in zip((digits.train, digits.test), orders, strict=True):
        assert np.array_equal(part.inputs.squeeze(1).numpy(), original.images[order])
        assert np.array_equal(part.targets.numpy(), original.target[order])


def test_limit_keeps_the_first_examples():
    digits, few = load_digits(), load_dataset("digits", limit=12)
    assert (len(few.train), len(few.test)) == (12, 12)
    assert torch.equal(few.train.inputs, digits.train.inputs[:12])
    assert torch.equal(few.test.targets, digits.test.targets[:12])


# ---------------------------------------------------------------- IDX


@given(st.integers(0, 39))
def test_every_truncation_of_an_idx_file_is_refused(cut):
    content = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    assert len(content) == 40
    with pytest.raises(DataError, match="file"):
        read_idx(content[:cut], 3, "file")


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_mnist_reads_alike_however_it_is_stored(tmp_path, monkeypatch, packing, folder):
    files = mnist_files()
    publish(monkeypatch, "mnist", files)
    for file, content in files.items():
        store(tmp_path / folder / file, content, packing)
    mnist = load_dataset("mnist", tmp_path)
    pixels = np.frombuffer(files["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert np.array_equal(mnist.train.inputs.numpy(), pixels.reshape(30, 1, 28, 28))
    assert mnist.test.targets.tolist() == list(range(10))
    assert mnist.shape == (1, 28, 28)


def test_a_checksum_of_the_archive_asks_for_the_archive(tmp_path, monkeypatch):
    contents = mnist_files()
    for file, content in contents.items():
        store(tmp_path / "kmnist" / file, content, ".gz")
    publish(monkeypatch, "kmnist", contents, gz=tmp_path / "kmnist")
    assert load_dataset("kmnist", tmp_path).labels[:3] == ("o", "ki", "su")
    labels = tmp_path / "kmnist" / "t10k-labels-idx1-ubyte"
    store(labels, contents[labels.name][:-1] + b"\x00", ".gz")
    with pytest.raises(DataError, match=r"wrong checksum; found MD5 .* of the stored content"):
        load_dataset("kmnist", tmp_path)
    labels.with_name(labels.name + ".gz").rename(labels)
    with pytest.raises(DataError, match="3 of 4 files of kmnist"):
        load_dataset("kmnist", tmp_path)


def test_root_comes_from_the_environment_unless_given(mnist, monkeypatch, tmp_path):
    monkeypatch.setenv("ARCHGRAPH_DATA", str(mnist))
    assert len(load_dataset("mnist").train) == 30
    with pytest.raises(DataError, match="data folder missing"):
        load_dataset("mnist", tmp_path / "elsewhere")


def test_no_root_at_all_says_what_to_set(monkeypatch):
    monkeypatch.delenv("ARCHGRAPH_DATA", raising=False)
    with pytest.raises(DataError, match=r"the data folder is not set.*ARCHGRAPH_DATA"):
        load_dataset("mnist")


@pytest.mark.parametrize("file", list(mnist_files()))
def test_a_missing_file_is_named(mnist, file):
    (mnist / "mnist" / file).unlink()
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", mnist)
    assert caught.value.where == str(mnist / "mnist")
    assert caught.value.found == "3 of 4 files of mnist"
    assert file in str(caught.value.expected)


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("file", list(mnist_files()))
def test_a_truncated_file_is_refused_by_name(mnist, file, packing):
    path = mnist / "mnist" / file
    content = path.read_bytes()
    path.unlink()
    store(path, content, packing)
    stored = path.with_name(path.name + packing)
    stored.write_bytes(stored.read_bytes()[:-5])
    with pytest.raises(DataError, match=rf"{file}.*(truncated|cannot be read).*fetch"):
        load_dataset("mnist", mnist)


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_a_file_damaged_in_the_middle_is_refused(mnist, packing):
    path = mnist / "mnist" / "train-images-idx3-ubyte"
    store(path, path.read_bytes(), packing)
    path.unlink()
    stored = path.with_name(path.name + packing)
    content = bytearray(stored.read_bytes())
    content[10:30] = b"\xff" * 20  # where the first compressed block begins
    stored.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("mnist", mnist)


@pytest.mark.parametrize("incomplete", ["mnist", "MNIST/raw"])
def test_a_complete_folder_is_preferred_to_an_incomplete_one(mnist, incomplete):
    for file, content in mnist_files().items():
        store(mnist / "MNIST" / "raw" / file, content)
    (mnist / incomplete / "t10k-labels-idx1-ubyte").unlink()
    assert len(load_dataset("mnist", mnist).test) == 10


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_a_file_that_is_not_compressed_at_all_is_refused(mnist, packing):
    path = mnist / "mnist" / "train-images-idx3-ubyte"
    path.rename(path.with_name(path.name + packing))
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("mnist", mnist)


@pytest.mark.parametrize("file", list(mnist_files()))
def test_one_wrong_bit_is_a_wrong_checksum(mnist, file):
    path = mnist / "mnist" / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{file}: wrong checksum; found MD5 .*; expected "):
        load_dataset("mnist", mnist)
    assert len(load_dataset("mnist", mnist, verify=False).train) == 30


def test_a_decompression_bomb_stops_at_the_published_size(mnist):
    path = mnist / "mnist" / "train-labels-idx1-ubyte"
    path.unlink()
    store(path, bytes(200_000_000), ".gz")
    tracemalloc.start()
    with pytest.raises(DataError, match=r"too long; found more than 38 bytes; expected at most 38"):
        load_dataset("mnist", mnist)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_unverified_files_stop_at_a_bound_too(mnist, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    with pytest.raises(DataError, match=r"found more than 100 bytes; expected at most 100"):
        load_dataset("mnist", mnist, verify=False)


def test_images_without_labels_are_refused(mnist):
    store(mnist / "mnist" / "t10k-labels-idx1-ubyte", idx(np.zeros(9, np.uint8)))
    with pytest.raises(DataError, match=r"9 labels for 10 images"):
        load_dataset("mnist", mnist, verify=False)


def test_an_unreadable_file_is_an_error_of_ours(mnist, monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="cannot be read; found not yours"):
        load_dataset("mnist", mnist)


@pytest.mark.parametrize("name", DATASETS)
def test_what_is_known_of_a_data_set_can_be_read(name):
    known = source(name)
    assert known.format in load.FORMATS
    assert len(known.files) == len(known.train) + len(known.test) > 0
    assert known.labels or known.format not in load.IMAGES


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": -3}, {"bptt": 0}])
def test_senseless_sizes_are_refused(bad):
    with pytest.raises(DataError, match="at least 1"):
        load_dataset("digits", **bad)


# ---------------------------------------------------------------- CIFAR batches


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("key", [str, str.encode])
def test_cifar_batch_has_planes_rows_columns(protocol, key):
    pixels = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    if protocol == 2:  # as Python 2 wrote it, whose str is bytes here
        content = python2_pickle(pixels, [3, 9])
    else:
        batch = {key("data"): pixels, key("labels"): [3, 9], key("batch_label"): "x"}
        content = pickle.dumps(batch, protocol=protocol)
    images, labels = read_cifar_batch(content, "batch")
    assert images.shape == (2, 3, 32, 32)
    assert images[1, 2, 5, 7] == pixels[1, 2 * 1024 + 5 * 32 + 7]
    assert labels.tolist() == [3, 9]
    assert labels.dtype == np.int64


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The opcodes of the original batches: binary strings, `numpy.core.multiarray`."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows, columns = pixels.shape
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    state = b"(" + integer(3) + string(b"|") + b"NNN" + b"".join(map(integer, (-1, -1, 0))) + b"t"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + (b"cnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b") + b"\x87R")
        + (b"(" + integer(1) + integer(rows) + integer(columns) + b"\x86")
        + (dtype + state + b"b" + b"\x89" + string(pixels.tobytes()) + b"tb")
    )
    listed = b"](" + b"".join(map(integer, labels)) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + listed + b"u."


class Call:
    """Pickles as a call of the function."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, np.load, Path])
def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path, function, protocol):
    trace = tmp_path / "executed"
    commands = {os.system: f"touch {trace}"}
    command = commands.get(function, f"__import__('pathlib').Path({str(trace)!r}).touch()")
    content = pickle.dumps({"data": Call(function, command), "labels": []}, protocol=protocol)
    with pytest.raises(DataError, match=r"evil: unsafe pickle refused, nothing was executed"):
        read_cifar_batch(content, "evil")
    assert not trace.exists()
    if function in (os.system, eval):  # the bait is live: an ordinary unpickler takes it
        pickle.loads(content)
        assert trace.exists()


def test_a_malicious_file_is_refused_on_the_way_through_load_dataset(tmp_path):
    trace = tmp_path / "executed"
    for batch in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"):
        store(tmp_path / "cifar10" / batch, pickle.dumps(Call(os.system, f"touch {trace}")))
    store(tmp_path / "cifar10" / "test_batch", cifar_batch())
    with pytest.raises(DataError, match="truncated"):
        load_dataset("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"data_batch_1: unsafe pickle refused.*system"):
        load_dataset("cifar10", tmp_path, verify=False)
    assert not trace.exists()


def test_every_truncation_of_a_batch_is_refused():
    content = cifar_batch(1)
    for cut in range(0, len(content), 97):
        with pytest.raises(DataError, match="batch: not a CIFAR batch"):
            read_cifar_batch(content[:cut], "batch")


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1, 2]),
        pickle.dumps({}),
        pickle.dumps({"data": b"x" * 3072, "labels": [1]}),
        pickle.dumps({"data": np.zeros((1, 3072), np.float32), "labels": [1]}),
        pickle.dumps({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}),
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}),
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}),
    ],
)
def test_a_pickle_of_something_else_is_refused(content):
    with pytest.raises(DataError, match="batch: CIFAR batch without"):
        read_cifar_batch(content, "batch")


def test_cifar100_goes_by_its_fine_labels(tmp_path, monkeypatch):
    fine = b"fine_labels"
    files = {
        "train": cifar_batch(120, classes=100, labels=fine),
        "test": cifar_batch(5, labels=fine),
    }
    publish(monkeypatch, "cifar100", files)
    for file, content in files.items():
        store(tmp_path / "cifar-100-python" / file, content, ".xz")
    cifar = load_dataset("cifar100", tmp_path, limit=110)
    assert cifar.train.targets.tolist() == [*range(100), *range(10)]
    assert (cifar.classes, cifar.shape, len(cifar.test)) == (100, (3, 32, 32), 5)
    assert len(set(cifar.labels)) == 100 and list(cifar.labels) == sorted(cifar.labels)
    store(tmp_path / "cifar-100-python" / "test", cifar_batch(5), ".xz")
    with pytest.raises(DataError, match="without labels"):
        load_dataset("cifar100", tmp_path, verify=False)


def test_cifar10_gathers_its_batches_in_order_and_stops_at_the_limit(tmp_path, monkeypatch):
    files = {f"data_batch_{i}": cifar_batch(4) for i in range(1, 6)} | {
        "test_batch": cifar_batch(3)
    }
    publish(monkeypatch, "cifar10", files)
    for file, content in files.items():
        store(tmp_path / "cifar-10-batches-py" / file, content, ".xz")
    cifar = load_dataset("cifar10", tmp_path)
    assert cifar.train.targets.tolist() == [0, 1, 2, 3] * 5
    assert cifar.test.targets.tolist() == [0, 1, 2]
    (tmp_path / "cifar-10-batches-py" / "data_batch_3.xz").write_bytes(b"never read")
    few = load_dataset("cifar10", tmp_path, limit=6)
    assert few.train.targets.tolist() == [0, 1, 2, 3, 0, 1]


# ---------------------------------------------------------------- text


@given(st.lists(st.lists(st.sampled_from(["a", "bb", "@-@", "\u00e9", "\u2028x"]))))
def test_words_and_line_ends_come_back(lines):
    content = "".join(" " + " ".join(line) + " \n" for line in lines).encode()
    expected = [word for line in lines for word in [*line, "<eos>"]]
    assert words_of(decode_text(content, "text")) == expected


def wikitext(root: Path, train: str, test: str, **options: object) -> Dataset:
    store(root / "wikitext-2" / "wiki.train.tokens", train.encode())
    store(root / "wikitext-2" / "wiki.test.tokens", test.encode())
    return load_dataset("wikitext2", root, verify=False, **options)  # type: ignore[arg-type]


def test_windows_follow_one_another_and_targets_are_one_ahead(tmp_path):
    words = [f"w{i}" for i in range(10)]
    text = wikitext(tmp_path, " ".join(words) + "\n", "w3 w1 w2 w0\n", bptt=3)
    assert text.classes == 11
    assert text.labels == (*words, "<eos>")
    assert text.train.inputs.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert text.train.targets.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    inputs, targets = text.test.batch([0])
    assert (inputs.tolist(), targets.tolist()) == ([[3, 1, 2]], [[1, 2, 0]])
    assert inputs.dtype == torch.int64
    assert (text.kind, text.shape) == ("text", (3,))


def test_words_of_the_test_text_alone_are_unknown(tmp_path):
    text = wikitext(tmp_path, "<unk> a\n", "a new\n", bptt=1)
    assert text.test.inputs.tolist() == [[1], [0]]
    with pytest.raises(DataError, match=r"wiki\.test\.tokens: word outside the vocabulary"):
        wikitext(tmp_path, "b a\n", "a new\n", bptt=1)


def test_text_shorter_than_a_window_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"found 3 tokens; expected at least 4"):
        wikitext(tmp_path, "a b\n", "a b\n", bptt=3)


# ---------------------------------------------------------------- the real files


IDX_MD5 = {  # as published, of the .gz files
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
}


@pytest.mark.full
@pytest.mark.parametrize("folder", list(IDX_MD5))
def test_our_idx_checksums_are_those_of_the_published_archives(data_root, folder):
    known = source(folder.replace("-", "_"))
    for name, md5 in IDX_MD5[folder].items():
        stored = (data_root / folder / name).read_bytes()
        assert hashlib.md5(stored).hexdigest() == md5
        content = gzip.decompress(stored)
        assert known.files[name.removesuffix(".gz")] == Published(
            len(content),
            hashlib.md5(content).hexdigest(),
        )


@pytest.mark.full
def test_fashion_mnist(data_root):
    fashion = load_dataset("fashion_mnist", data_root)
    assert fashion.train.inputs.shape == (60000, 1, 28, 28)
    assert fashion.train.targets.bincount().tolist() == [6000] * 10
    assert fashion.test.targets.bincount().tolist() == [1000] * 10
    assert fashion.labels[9] == "Ankle boot"
    # Often quoted: mean 0.2860, deviation 0.3530 of the range.
    assert fashion.train.mean is not None
    assert fashion.train.std is not None
    assert fashion.train.mean.item() / 255 == pytest.approx(0.2860, abs=1e-4)
    assert fashion.train.std.item() / 255 == pytest.approx(0.3530, abs=1e-4)


def test_mnist(data_root):
    mnist = load_dataset("mnist", data_root)
    assert mnist.train.targets.bincount().tolist() == [
        *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    ]
    assert mnist.test.targets.bincount().tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
    ]


@pytest.mark.full
def test_cifar10(data_root):
    cifar = load_dataset("cifar10", data_root)
    assert cifar.train.inputs.shape == (50000, 3, 32, 32)
    assert cifar.train.targets.bincount().tolist() == [5000] * 10
    assert cifar.test.targets.bincount().tolist() == [1000] * 10
    assert cifar.train.mean is not None
    assert cifar.train.std is not None
    mean = torch.tensor([0.4914, 0.4822, 0.4465])
    torch.testing.assert_close(cifar.train.mean / 255, mean, atol=1e-4, rtol=0)
    deviation = torch.tensor([0.2470, 0.2435, 0.2616])
    torch.testing.assert_close(cifar.train.std / 255, deviation, atol=1e-4, rtol=0)


def test_wikitext2(data_root):
    text = load_dataset("wikitext2", data_root, bptt=64)
    assert text.classes == 33278
    assert len(text.train) == (2_088_628 - 1) // 64
    assert len(text.test) == (245_569 - 1) // 64
    words = [text.labels[token] for token in text.train.inputs[0, :6]]
    assert words == ["<eos>", "=", "Valkyria", "Chronicles", "III", "="]
    assert torch.equal(text.train.inputs[0, 1:], text.train.targets[0, :-1])
    assert torch.equal(text.train.inputs[1:, 0], text.train.targets[:-1, -1])


def test_what_stands_in_for_images_has_their_form(monkeypatch):
    """No file is read: only the numbers of the published ones are known."""
    real = load_dataset("digits")
    monkeypatch.setattr(load, "located", None)
    imagined, few = imagined_dataset("digits"), imagined_dataset("cifar100", limit=7)
    assert len(few.train) == 7
    for name in ("kind", "classes", "shape", "labels", "inputs", "classified", "integral"):
        assert getattr(imagined, name) == getattr(real, name), name
    assert (len(imagined.train), len(imagined.test)) == (len(real.train), len(real.test))
    assert imagined.train.batch([0])[0].dtype == real.train.batch([0])[0].dtype


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wikitext2", {"bptt": 35}),
        ("mnli", {}),
        ("mnli", {"length": 20, "vocabulary": 60, "limit": 50}),
        ("snli", {}),
        ("sick", {"vocabulary": 20_000}),
    ],
)
def test_what_stands_in_for_text_has_its_form(data_root, name, options):
    real, imagined = load_dataset(name, data_root, **options), imagined_dataset(name, **options)
    for key in ("kind", "classes", "shape", "inputs", "classified", "integral"):
        assert getattr(imagined, key) == getattr(real, key), key
    assert len(imagined.labels) == len(real.labels)
    for mine, other in ((imagined.train, real.train), (imagined.test, real.test)):
        (tokens, *beside), targets = mine.examples([0, 1])
        (expected, *more), labels = other.examples([0, 1])
        assert len(mine) == len(other) and targets.shape == labels.shape
        assert [x.shape for x in (tokens, *beside)] == [x.shape for x in (expected, *more)]
        assert int(mine.inputs.max()) >= int(other.inputs.max())
    assert int(imagined.train.inputs.max()) == int(real.train.inputs.max())
    assert [int(x.max()) for x in imagined.train.beside.values()] == [
        int(x.max()) for x in real.train.beside.values()
    ]


def test_what_stands_in_has_as_many_windows_as_have_a_next_word():
    """The last word only follows: 245,569 words are 6,636 windows of 37 with targets, not 6,637."""
    assert len(imagined_dataset("wikitext2", bptt=37).test) == 6636 == 245_569 // 37 - 1


def test_what_stands_in_refuses_the_options_that_loading_refuses():
    for name, options, words in (
        ("mnli", {"vocabulary": 3}, "vocabulary too small"),
        ("mnli", {"length": 3}, "data.length"),
        ("wikitext2", {"length": 20}, "data.length: is not an option of wikitext2"),
        ("digits", {"bptt": 5}, "data.bptt: is not an option of digits"),
        ("wikitext3", {}, "unknown data set"),
        ("svhn", {}, r"data: \{python: package.module:function\}"),
    ):
        with pytest.raises(DataError, match=words):
            imagined_dataset(name, **options)  # type: ignore[arg-type]  # their names differ
