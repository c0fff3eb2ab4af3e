"""Names that other libraries use, and archgraph's names for the same options and layers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from archgraph.hints import nearest

# archgraph's name → names in Keras, PyTorch and other federated frameworks, in small letters. Names
# that differ only in case and separators (BatchNorm2d, nn.ReLU) need no row.
_ALIASES = {
    "accumulate": "accumulategradbatches accumulationsteps gradientaccumulation"
    " gradientaccumulationsteps",
    "aggregate": "aggregation",
    "attention": "multiheadattention",
    "batch": "batchsize",
    "batch_norm": "bn",
    "cat": "concat concatenate",
    "clip": "clipgradnorm gradclip maxgradnorm",
    "conv": "convolution",
    "conv_transpose": "deconv deconvolution convtransposed transposedconv transposedconvolution",
    "count": "numclients numembeddings",
    "data": "dataset",
    "end": "enddim",
    "factor": "scalefactor",
    "epochs": "localepochs",
    "eps": "epsilon",
    "global_avg_pool": "adaptiveavgpool globalaveragepooling",
    "group_norm": "gn",
    "groups": "normgroups numgroups",
    "heads": "numheads",
    "keep": "keepdim",
    "kernel": "kernelsize",
    "layer_norm": "ln",
    "linear": "dense fc fullyconnected",
    "lr": "eta learningrate serverlearningrate serverlr",
    "macs": "latency milliseconds",
    "model": "backbone",
    "momentum": "servermomentum",
    "mul": "multiply",
    "optimiser": "optimizer",
    "out": "filters outchannels outfeatures units",
    "p": "rate",
    "patience": "earlystopping",
    "proximal": "mu proximalmu",
    "rounds": "numrounds",
    "sample": "clientspercent clientsperround fractionfit",
    "seed": "randomseed",
    "silu": "swish",
    "start": "startdim",
    "strategy": "algorithm",
    "upsample": "interpolate resize upsampling upsamplingnearest upsamplingbilinear",
    "width": "embeddingdim",
}
OURS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}

# Keys, commands and data sets that were removed, and their replacements.
GONE = {
    "align": "`archgraph match A B` does the same",
    "architectures": "tests/papers compares the sizes that papers print with the shipped files",
    "bigram_table": "a row of a small network is the least that text is compared with",
    "augment": "write transforms: [{RandomCrop: {size: 32, padding: 4}}, RandomHorizontalFlip]",
    "better": "a study's `compare: [[A, B], …]` shows the value of A minus the value of B",
    "cinic10": "unpack the data set, and write data: {folder: CINIC-10}",
    "claims": "a study's `compare: [[A, B], …]` shows differences with confidence intervals",
    "class_weights": "write loss: {CrossEntropyLoss: {weight: […]}}",
    "contrast": "add the term in an objective of your own: task: {objective: 'python:…'}",
    "decay": "write schedule: {MultiStepLR: {milestones: […], gamma: …}}",
    "diff": "`archgraph compare A B` does the same",
    "doctor": "a run of Flower says before its first round which nodes cannot take part, and why",
    "ema": "average the weights in a program of your own",
    "findings": "describe findings in the key `about` of the study",
    "gate": "a study's row {trivial: softmax_regression} shows what a trivial model reaches",
    "label_smoothing": "write loss: {CrossEntropyLoss: {label_smoothing: …}}",
    "local_of": "write `local` of the kind of client in the family",
    "margin": "a study's `compare` shows confidence intervals",
    "matrix": "`archgraph study FILE` runs strategies (rows) on models (columns)",
    "may_be_refused": "a cell that is refused is listed with its reason, and the others continue",
    "milestones": "write schedule: {MultiStepLR: {milestones: ['$rounds * 30 // 100']}}",
    "mlflow": "pass an object that logs to it: ag.run(…, trackers=[…])",
    "page": "each study has tables of its own",
    "paper": "tests/papers compares the sizes that papers print with the shipped files",
    "profile": "`archgraph fit` takes budgets of MACs, parameters, bytes and training memory",
    "references": "a study's row {trivial: softmax_regression} shows what a trivial model reaches",
    "spare": "sample more clients; a round continues without clients that fail",
    "unigram_table": "a row of a small network is the least that text is compared with",
    "timm": "write python: 'timm:create_model', args: {model_name: …}",
    "transformers": "write python: 'transformers:AutoModelFor….from_pretrained', args: "
    "{pretrained_model_name_or_path: FOLDER}",
    "waits_for": "omit the rows until their strategy is installed",
    "svhn": "write data: {python: package.module:function}, which may read it by torchvision",
    "wandb": "pass an object that logs to it: ag.run(…, trackers=[…])",
    "warmup": "write schedule: {SequentialLR: {schedulers: [LinearLR, …], milestones: […]}}",
    "watch": "`archgraph report RUN --follow` writes a page that reloads itself",
}

# Sizes that archgraph infers from the input.
FOLLOWS = {"embeddim", "inchannels", "infeatures", "inputshape", "inputsize", "numfeatures"}

# Options of optimisers, which are often written next to the name.
BEHIND = {"alpha", "amsgrad", "betas", "centered", "dampening", "eps", "etas", "nesterov", "rho"}


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return a hint about an unknown name: archgraph's name for it, or the most similar name.

    Args:
        name: The unknown name.
        known: The valid names.

    >>> suggestion("nn.BatchNorm2d", ["conv1d", "batch_norm"]), suggestion("in_channels", ["out"])
    ("it is 'batch_norm' here", 'leave it out: it follows from the input')
    >>> suggestion("learning_rate", ["lr", "epochs"]), suggestion("kernal", ["kernel", "out"])
    ("it is 'lr' here", "did you mean 'kernel'?")
    """
    names = list(known)
    if name in GONE:
        return f"it was removed: {GONE[name]}"
    letters = _letters(name)
    ours = {letters, OURS.get(letters), OURS.get(_plain(letters)), _plain(letters)}
    for one in names:
        if one in ours or (_letters(one) in ours and one != name):
            return f"it is {one!r} here"
    if letters in FOLLOWS:
        return "leave it out: it follows from the input"
    if letters in BEHIND and "weight_decay" in names:
        return f"write it below the optimiser's name: optimiser: {{NAME: {{{name}: …}}}}"
    return nearest(name, names)


def _letters(name: str) -> str:
    """Strip a name of its library, case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower())


def _plain(letters: str) -> str:
    """Strip a name of its number of dimensions."""
    return re.sub(r"[123]d$", "", letters)
