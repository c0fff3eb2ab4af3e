"""Check that models fit the data: names and shapes of inputs, classes, vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from archgraph.data import Dataset
from archgraph.errors import RunError
from archgraph.federation import Evaluated, LearningTask, Logits
from archgraph.federation.family import Family
from archgraph.federation.learning import CLASSIFICATION
from archgraph.federation.outputs import Outputs, auxiliary
from archgraph.federation.shard import SHORTEST, TextPadding
from archgraph.graph.ir import (
    BATCH,
    ArchGraph,
    Node,
    Record,
    Ref,
    TensorType,
    Value,
    in_mode,
    refs,
    size_at,
)
from archgraph.graph.passes import prune, specialise
from archgraph.graph.polynomial import Polynomial, Size
from archgraph.graph.sizes import example_sizes, open_sizes, single_name
from archgraph.graph.values import BATCH_WORD
from archgraph.module.build import build
from archgraph.ops.schema import torch_dtype
from archgraph.rewrites.insert import fresh


def matched(
    family: Family, data: Dataset, learning: LearningTask = CLASSIFICATION
) -> tuple[Family, Dataset]:
    """Give all models of a family the same inputs, and return the family and its data.

    The returned data has only the inputs that any of the models needs. Every model takes these
    inputs in the same order, and ignores the inputs that it does not need. The models of a client
    can then share minibatches. If all models take texts of any length, batches are trimmed to their
    longest text.

    Raises:
        RunError: If a model does not fit the data; see :func:`fits`.
    """
    graphs = [g for g in (family.graph, *(m.graph for m in family.clients)) if g.nodes]
    asked = {key for graph in graphs if len(graph.inputs) > 1 for key, _ in graph.inputs}
    data = data.with_only(asked)
    # Each architecture is fitted once, since many clients share it.
    adapted = {graph: fitted(graph, data) for graph in dict.fromkeys(graphs)}
    for graph in adapted.values():
        fits(graph, data, learning)
    padded = {_padding(graph, data, learning) for graph in adapted.values()}
    if len(padded) == 1:
        (padding,) = padded
        train, test = (dataclasses.replace(s, padding=padding) for s in (data.train, data.test))
        data = dataclasses.replace(data, train=train, test=test)
    members = tuple(
        dataclasses.replace(member, graph=adapted.get(member.graph, member.graph))
        for member in family.clients
    )
    graph = adapted.get(family.graph, family.graph)
    return dataclasses.replace(family, graph=graph, clients=members), data


def _padding(graph: ArchGraph, data: Dataset, learning: LearningTask) -> TextPadding | None:
    """Return the trimming of batches if all models take texts of any length, else None.

    Targets are trimmed if the trained output has an axis of positions. If this is unclear, batches
    are not trimmed.
    """
    lengths = {size for n in graph.nodes if n.op == "input" for size in n.shape[1:2]}
    if data.mask not in data.inputs or len(lengths) != 1:
        return None
    (length,) = lengths
    sizes = open_sizes(graph)
    if not isinstance(length, Polynomial) or any(sizes[n].low > SHORTEST for n in length.names):
        return None
    outputs = results(graph)[0]
    alone = _logits(outputs) if learning.predict == Logits() else None
    matters = data.train.targets.shape[1:2] == data.shape
    names = refs(alone or outputs) if matters else []
    match [*{graph.node[name].shape[1:2] == (length,) for name in names}]:
        case [] | [_] as same:
            return TextPadding(data.inputs.index(data.mask), targets=same == [True])
    return None


def with_spare_tokens(data: Dataset, family: Family) -> Dataset:
    """Allow models to have more outputs than the vocabulary has tokens.

    The additional outputs are treated as tokens that never occur. Published models often have them,
    because their number of outputs is rounded up.
    """
    if not data.tokens or data.train.targets.dim() != 2 or data.classes != data.tokens:
        return data
    graphs = [g for g in (family.graph, *(m.graph for m in family.clients)) if g.nodes]
    outputs = [_logits(results(graph)[0]) for graph in graphs]
    pairs = zip(graphs, outputs, strict=True)
    sizes = {g.node[said.name].shape[-1] for g, said in pairs if said is not None}
    match [*sizes]:
        case [int(size)] if size > data.tokens:
            labels = (*data.labels, *[""] * (size - data.tokens))
            return dataclasses.replace(data, classes=size, labels=labels)
    return data


def check_images(data: Dataset) -> None:
    """Check that inputs are images.

    Raises:
        RunError: If the inputs are not images.
    """
    if data.integral or len(data.shape) != 3:
        raise RunError(
            "needs images",
            where="local.transforms",
            found=f"inputs {_listed(data.inputs, _examples(data))} ({data.name})",
            expected="[channel, height, width]",
        )


def fitted(graph: ArchGraph, data: Dataset) -> ArchGraph:
    r"""Give an architecture all inputs of the data, in the data's order.

    The inputs that it does not use are ignored, so its outputs do not change.

    The only input of a model may have any name. It gets the data's first input.

    Raises:
        RunError: If the architecture needs an input that the data does not have.

    Example:
        >>> from archgraph.data import Split
        >>> from archgraph.graph.text import parse
        >>> ids = torch.zeros(4, 3, dtype=torch.int16)
        >>> split = Split(ids, torch.zeros(4, dtype=torch.int64), beside={"mask": ids})
        >>> data = Dataset("pairs", "text", 2, (3,), split, split, ("no", "yes"), ("ids", "mask"))
        >>> graph = parse("%x: int64[batch, 3] = input()\nforward x = %x\nreturn %x")
        >>> [key for key, _ in fitted(graph, data).inputs]
        ['x', 'mask']
    """
    if len(data.inputs) < 2:
        return graph
    values = dict(graph.inputs)
    alone = len(values) == 1
    if not alone:
        _check_known(graph, data)
    names = set(graph.node) | set(values)
    inputs: list[tuple[str, Value]] = []
    nodes = {ref: graph.node[ref] for _, value in graph.inputs for ref in refs(value)}
    for i, name in enumerate(data.inputs):
        key = next(iter(values)) if alone and i == 0 else name
        if key in values:
            inputs.append((key, values[key]))
            continue
        tensor = data.train.beside[name] if i else data.train.inputs
        kind = TensorType(_like_first(graph, data, tensor), _dtype(tensor))
        node = Node(fresh(names, name), "input", (), kind)
        nodes[node.name] = node
        inputs.append((name, Ref(node.name)))
    # Inputs are the first nodes of a graph, in the order in which they are passed.
    leading = [nodes[ref] for _, value in inputs for ref in refs(value)]
    rest = [node for node in graph.nodes if node.op != "input"]
    return graph.replace(inputs=tuple(inputs), nodes=(*leading, *rest))


def _check_known(graph: ArchGraph, data: Dataset) -> None:
    """Check that a model has inputs, and that the data has inputs with the same names."""
    unknown = [key for key, _ in graph.inputs if key not in data.inputs]
    if unknown or not graph.inputs:
        raise RunError(
            "the data lacks an input of the model",
            where=graph.name or "model",
            found=", ".join(unknown) or "no input",
            expected=f"some of {', '.join(data.inputs)} ({data.name})",
        )


def _like_first(graph: ArchGraph, data: Dataset, tensor: torch.Tensor) -> tuple[Size, ...]:
    """Return the shape of an unused input, with the same dynamic sizes as the first input."""
    firsts = [n.shape for n in graph.nodes if n.op == "input"]
    if firsts and tuple(tensor.shape[1:]) == data.shape and len(firsts[0]) == tensor.dim():
        return firsts[0]
    return (BATCH, *tensor.shape[1:])


def fits(graph: ArchGraph, data: Dataset, learning: LearningTask = CLASSIFICATION) -> None:
    """Check that a model takes the data's examples and tokens, and has the outputs of the task.

    Raises:
        RunError: If the model does not fit. The message shows the inputs or outputs of the model,
            and those that the data needs.
    """
    where = graph.name or "model"
    inputs = [node for node in graph.nodes if node.op == "input"]
    examples = _examples(data)
    sizes = _sizes(graph, data)
    if sizes is None:
        raise _unfit(data, inputs, where)
    for node, example in zip(inputs, examples, strict=True):
        if node.dtype != example.dtype and not example.dtype.startswith("int"):
            raise RunError(
                "the model and the data have different dtypes",
                where=where,
                found=f"{node.dtype} as {node.name}, and data of {example.dtype} ({data.name})",
                hint="trace `model.float()` on examples of float32",
            )
    output = _logits(results(graph)[0])
    if output is not None and isinstance(learning.predict, Logits) and not learning.predict.output:
        shape = [size_at(size, sizes) for size in graph.node[output.name].shape]
        _shaped(shape[1:], data, learning, where)
    if data.integral:
        _knows_words(graph, data)


def _examples(data: Dataset) -> list[TensorType]:
    """Return the dtypes and shapes of a batch's inputs, as models get them."""
    # Not from the stored tensors, which may be compact: images are stored as bytes, for example.
    first = TensorType((BATCH, *data.shape), "int64" if data.integral else "float32")
    others = data.train.beside.values()
    return [first, *(TensorType((BATCH, *x.shape[1:]), _dtype(x)) for x in others)]


def _sizes(graph: ArchGraph, data: Dataset) -> dict[str, int] | None:
    """Return the values of a model's dynamic sizes for a batch of 2, if the data fits."""
    inputs, examples = [node for node in graph.nodes if node.op == "input"], _examples(data)
    if len(inputs) != len(examples):
        return None
    sizes, values = open_sizes(graph), {BATCH_WORD: 2}
    for node, example in zip(inputs, examples, strict=True):
        if node.dtype.startswith("int") != example.dtype.startswith("int"):
            return None
        if len(node.shape) != len(example.shape):
            return None
        for size, actual in zip(node.shape, example.shape, strict=True):
            name = single_name(size)
            if isinstance(actual, int) and name and name != BATCH_WORD:
                known = sizes[name]
                if (
                    not known.low <= actual <= known.high
                    or values.setdefault(name, actual) != actual
                ):
                    return None
            elif size != actual:
                return None
    return values


def _listed(names: Sequence[str], types: Sequence[TensorType]) -> str:
    """Return dtypes and shapes of inputs as text, with names if there are several inputs.

    >>> _listed(["x"], [TensorType((BATCH, 3), "float32")])
    'float32[batch, 3]'
    """
    if len(types) < 2:
        return ", ".join(map(str, types))
    return ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))


def _remedy(inputs: Sequence[Node], examples: Sequence[TensorType]) -> str | None:
    """Return advice on inputs that do not fit, if the cause is clear."""
    if len(inputs) != 1 or len(examples) != 1:
        return None
    takes, gives = inputs[0].shape[1:], examples[0].shape[1:]
    if takes == gives and BATCH not in inputs[0].shape:
        return (
            "the model has a fixed batch size; trace the model so that it takes batches of "
            "any size, or open an ONNX file with {onnx: FILE, sizes: {batch: open}}"
        )
    if takes == gives:
        integers = examples[0].dtype.startswith("int")
        return "begin with an embedding, and write dtype: int64 in `inputs`" if integers else None
    if len(gives) == 3 and takes == (gives[2], *gives[:2]):
        return "channels come first: images.permute(0, 3, 1, 2)"
    if takes[1:] == gives:
        return f"write the model's inputs without the batch axis: {list(gives)}"
    return f"a model for this data takes inputs {list(gives)} for each example"


def _dtype(tensor: torch.Tensor) -> str:
    """Return the dtype of a model's input; embeddings take integers as int64."""
    return "float32" if tensor.is_floating_point() else "int64"


def with_main_output(learning: LearningTask, graphs: Sequence[ArchGraph]) -> LearningTask:
    """Return the task with `output` set to the output that models return in tests.

    This applies to models that return additional outputs in training. The loss is then computed on
    the output that they also return in tests. If the position of this output differs between
    models, the user must set `output:` in the task.

    Raises:
        RunError: If the task names an output that a model does not return in tests.
    """
    keys = set[str | int]()
    for graph in graphs:
        main, values = _training_results(graph)
        if main is None or not isinstance(learning.predict, Logits):
            continue
        keys.add(main)
        output = learning.predict.output
        if _value_of(output, values, main) != values[main]:
            raise RunError(
                "is trained, but the model does not return this output in tests",
                where=f"task.output: {graph.name or 'model'}",
                found=output,
                expected=f"{main}, the output in tests",
                hint="remove `output`; set `auxiliary` to train the other outputs, too",
            )
    if learning.form == "any" and learning.predict == Logits() and not learning.auxiliary:
        # With an objective and no kind, all outputs are passed to the objective.
        if not keys and any(map(_is_unclear, graphs)):
            return dataclasses.replace(learning, predict=Outputs())
    if learning.predict == Logits() and len(keys) == 1:
        return dataclasses.replace(learning, predict=Logits(*keys))
    return learning


def _unfit(data: Dataset, inputs: Sequence[Node], where: str) -> RunError:
    """Return the error for a model whose inputs do not fit the data."""
    examples, kinds = _examples(data), [TensorType(n.shape, n.dtype) for n in inputs]
    return RunError(
        "the model's inputs do not fit the data",
        where=where,
        found=f"{_listed(data.inputs, examples)} ({data.name})",
        expected=_listed([n.name for n in inputs], kinds) or "no input",
        hint=_remedy(inputs, examples),
    )


def _value_of(
    output: str | int | None, values: Mapping[str | int, Value], main: str | int
) -> Value:
    """Return the training output with this key or position, or else the main output."""
    names = list(values)
    key = names[output] if isinstance(output, int) and output < len(names) else output
    return values[main] if key is None else values.get(key, values[main])


def _is_unclear(graph: ArchGraph) -> bool:
    """Return whether a graph has several outputs, or it is unclear which one is trained."""
    outputs = results(graph)[0]
    return _logits(outputs) is None or len(_by_key(outputs)) > 1


def _training_results(graph: ArchGraph) -> tuple[str | int | None, dict[str | int, Value]]:
    """Return the key of the training output that tests also return, and all training outputs.

    A key is a name or a position. If a model computes this output by other operators in training,
    the first output with its shape is meant.
    """
    tested, trained = map(_by_key, results(graph))
    single = next(iter(tested.values())) if len(tested) == 1 else None
    if not isinstance(single, Ref) or len(trained) < 2:
        return None, trained
    shape = graph.node[single.name].shape
    by_ref = {key: value for key, value in trained.items() if isinstance(value, Ref)}
    same = (key for key, value in by_ref.items() if value == single)
    alike = (key for key, value in by_ref.items() if graph.node[value.name].shape == shape)
    return next(same, next(alike, None)), trained


def _by_key(outputs: Value) -> dict[str | int, Value]:
    """Return a dict from key or position to output."""
    if isinstance(outputs, Record):
        return dict(outputs.fields)
    return dict(enumerate(outputs if isinstance(outputs, tuple) else (outputs,)))


def check_outputs(model: Evaluated, data: Dataset, learning: LearningTask) -> None:
    """Check that a model returns one prediction for each target of an example.

    If the model has other outputs in training than in tests, both are checked. Auxiliary outputs
    are checked only if they are trained.

    Raises:
        RunError: If an output does not fit. The message shows the model's outputs, and the outputs
            that the task needs.
    """
    predict = model.predict or learning.predict
    tested, trained = results(model.graph)
    sizes = {**example_sizes(model.graph, 2), **(_sizes(model.graph, data) or {})}
    # Equal outputs are checked once. Auxiliary outputs are trained, but not tested.
    for outputs in (tested,) if tested == trained and not learning.auxiliary else (tested, trained):
        value = _outputs(model.graph, outputs, sizes)
        try:
            every = [predict(value)]
            if learning.auxiliary and outputs is trained:
                every += auxiliary(value, every[0])
        except RunError as error:
            raise error.within(model.name) from error
        for predictions in every if learning.form != "any" else ():
            _shaped(predictions.shape[1:], data, learning, model.name)


def results(graph: ArchGraph) -> tuple[Value, Value]:
    """Return a model's outputs in tests, and its outputs in training."""
    return in_mode(graph.outputs, False), in_mode(graph.outputs, True)


def _shaped(shape: Sequence[object], data: Dataset, learning: LearningTask, where: str) -> None:
    """Check the shape of a model's output for an example."""
    targets, classes = data.train.targets, data.classes or 0
    shapes = learning.shapes(tuple(targets.shape[1:]), classes)
    if not shapes or tuple(shape) in shapes:
        return
    last = learning.class_axis == -1 and learning.form == "classes"
    flat = last and len(shape) > len(shapes[0])
    actual, *allowed = (f"[{', '.join(('batch', *map(str, one)))}]" for one in (shape, *shapes))
    raise RunError(
        f"the model's output does not fit {learning.name}",
        where=where,
        found=actual,
        expected=f"{' or '.join(allowed)}: {learning.says(classes)} ({data.name})",
        hint="flatten or pool in front of the classifier" if flat else _reading(data, len(shape)),
    )


def _reading(data: Dataset, axes: int) -> str | None:
    """Return advice if the targets may have been interpreted wrongly."""
    targets = data.train.targets
    if data.classes is None or targets.dtype != torch.int64:
        return None
    if targets.dim() == 2 and axes == 1:
        positions = f"targets [example, {targets.shape[1]}] are read as a class per position"
        return f"{positions}; for one class per example, pass targets[:, 0]"
    if bool((targets == 0).any()):
        return None
    return "no example has class 0; if classes are numbered from 1, pass targets - 1"


def _outputs(graph: ArchGraph, value: Value, sizes: Mapping[str, int]) -> object:
    """Return a model's outputs for two examples, as tensors without values (meta device)."""
    match value:
        case Record(fields):
            return {key: _outputs(graph, item, sizes) for key, item in fields}
        case tuple():
            return tuple(_outputs(graph, item, sizes) for item in value)
        case Ref(name):
            shape = [size_at(size, sizes) for size in graph.node[name].shape]
            return torch.empty(shape, device="meta")
        case _:
            return value


def _lookups(graph: ArchGraph) -> ArchGraph:
    """Return the part of a graph that computes integers, and its first results of another dtype."""
    tested = specialise(graph, training=False)
    integers = ("int", "uint", "bool")
    words = {n.name for n in tested.nodes if all(t.dtype.startswith(integers) for t in n.types)}
    ends = tuple(
        Ref(n.name)
        for n in tested.nodes
        if n.name not in words and (used := set(n.uses())) and used <= words
    )
    return prune(tested.replace(outputs=ends, updates=()), leaves=False)


def _logits(outputs: Value) -> Ref | None:
    """Return the output that :class:`archgraph.federation.Logits` selects, if it is unambiguous."""
    if isinstance(outputs, Record):
        fields = dict(outputs.fields)
        outputs = fields.get("logits", next(iter(fields.values())) if len(fields) == 1 else None)
    return outputs if isinstance(outputs, Ref) else None


def _knows_words(graph: ArchGraph, data: Dataset) -> None:
    """Check that a model has an embedding for the largest token, by running it on this token.

    Indices of embeddings may be computed from tokens. Therefore the part of the graph that computes
    integers is run, up to its first floating-point results.
    """
    splits = (data.test,) if data.train.stream is not None else (data.train, data.test)
    split = max(splits, key=lambda split: int(split.inputs.max()))
    largest = split.inputs.flatten(1).max(1).values
    example = int(largest.argmax())
    (tokens, *others), _ = split.examples([example])  # a copy
    # A tokenizer may have tokens that do not occur in this data.
    most = max(int(largest.max()), data.tokens - 1)
    tokens.view(-1)[tokens.argmax()] = most
    leaves = (p for p in graph.params if p.role != "constant")
    zeros = {p.name: torch.zeros(p.shape, dtype=torch_dtype(p.dtype)) for p in leaves}
    module = build(_lookups(graph), zeros).eval()
    try:
        with torch.inference_mode():
            module(tokens, *others)
    except IndexError as error:
        beside = "".join(f"; {name} up to {int(x.max())}" for name, x in split.beside.items())
        raise RunError(
            "the model's embedding has too few rows for the vocabulary",
            where=graph.name or "model",
            found=f"token {most}, but fewer rows{beside}",
            expected=f"an embedding of at least {most + 1} rows ({data.name})",
            hint="use the model's own tokenizer, or enlarge its embedding"
            if data.tokens
            else "enlarge the model's vocabulary, or write a smaller data.vocabulary",
        ) from error
