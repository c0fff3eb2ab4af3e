"""How much a file from elsewhere may ask of this machine: every bound, in one table.

An error about a size names the bound, so that a person can tell "too large" from "wrong". The
bounds allow far more than real models need: the largest language models have 2**40
parameters, the deepest vision models some ten thousand operators.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds."""

    file_bytes: int = 256 * 2**20  # size of a file
    onnx_bytes: int = 2**31  # size of an ONNX file without the weights beside it
    # Mappings, sequences and scalars of a file; an alias counts at each use.
    yaml_values: int = 20_000
    yaml_depth: int = 40  # nesting of a YAML file
    lines: int = 1_000_000  # lines of a printed graph
    value_depth: int = 64  # nesting of one argument
    digits: int = 19  # digits of a number in YAML
    expression_signs: int = 200  # length of a ``$name`` expression
    expression_value: int = 2**31 - 1  # magnitude of its value and of everything on the way
    blocks: int = 1000  # depth of a section
    block_nesting: int = 16  # blocks inside blocks
    unfolded_steps: int = 20_000  # steps of a model once its blocks are unfolded
    nodes: int = 100_000  # operators of a graph
    module_depth: int = 64  # modules inside modules
    leaves: int = 100_000  # parameters, buffers and constants of a graph
    rank: int = 32  # dimensions of a tensor
    size: int = 2**40  # one dimension of a tensor
    leaf_elements: int = 2**33  # elements of one leaf
    elements: int = 2**40  # elements of all leaves together, and of one result
    constant_bytes: int = 256 * 2**20  # size of a constant, unpacked
    size_degree: int = 8  # factors of a term in a size
    size_terms: int = 64  # terms of a size
    integer: int = 2**63 - 1  # magnitude of an integer argument
    results: int = 2**16  # results of one operator
    # Positions of a dimension that an operator may walk through one by one for its type to be
    # inferred; beyond them the written type stands.
    steps: int = 2**12
    example_elements: int = 2**26  # elements of an example input that a model is captured with
    onnx_example_elements: int = 2**24  # the same, of an ONNX file
    onnx_result_elements: int = 2**28  # elements of a result, two examples through an ONNX file
    batch_steps: int = 24  # operations of an expression of the size of a batch
    folded_elements: int = 2**24  # elements of what an ONNX file computes from constants
    folded_bytes: int = 5 * 2**27  # bytes of all that it does; weights of one value are among it


LIMITS = Limits()
