"""Limits on the sizes of files, so that a malicious file cannot exhaust memory or time.

The error about a file that exceeds a limit contains the limit. The limits are far above the sizes
of real models: the largest language models have 2**40 parameters, the deepest vision models about
ten thousand operators.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on files and on the models that they describe."""

    file_bytes: int = 256 * 2**20  # size of a file
    onnx_bytes: int = 2**31  # size of an ONNX file without external weights
    # Mappings, sequences and scalars in a YAML file; an alias counts at each use.
    yaml_values: int = 20_000
    yaml_depth: int = 40  # nesting of a YAML file
    lines: int = 1_000_000  # lines of a printed graph
    value_depth: int = 64  # nesting of one argument
    digits: int = 19  # digits of a number in YAML
    expression_signs: int = 200  # length of a ``$name`` expression
    expression_value: int = 2**31 - 1  # magnitude of its value and of intermediate values
    blocks: int = 1000  # blocks of a section
    block_nesting: int = 16  # nesting of blocks
    unfolded_steps: int = 20_000  # steps of a model after its blocks are unfolded
    nodes: int = 100_000  # operators of a graph
    module_depth: int = 64  # nesting of modules
    leaves: int = 100_000  # parameters, buffers and constants of a graph
    rank: int = 32  # dimensions of a tensor
    size: int = 2**40  # one dimension of a tensor
    leaf_elements: int = 2**33  # elements of one parameter, buffer or constant
    elements: int = 2**40  # elements of all parameters, buffers and constants, and of one result
    constant_bytes: int = 256 * 2**20  # size of a constant, uncompressed
    size_degree: int = 8  # factors of a term in a size
    size_terms: int = 64  # terms of a size
    integer: int = 2**63 - 1  # magnitude of an integer argument
    results: int = 2**16  # results of one operator
    # Longest dimension whose positions type inference visits one by one. For a longer dimension,
    # the declared type is trusted.
    steps: int = 2**12
    example_elements: int = 2**26  # elements of an example input for capturing a model
    onnx_example_elements: int = 2**24  # elements of an example input for an ONNX file
    onnx_result_elements: int = 2**28  # elements of a result, for two examples in an ONNX file
    batch_steps: int = 24  # operations in an expression for the batch size
    folded_elements: int = 2**24  # elements of a value that an ONNX file computes from constants
    folded_bytes: int = 5 * 2**27  # bytes of all such values, including single-valued weights


LIMITS = Limits()
