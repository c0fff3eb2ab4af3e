"""How much a file from elsewhere may ask of this machine: every bound, in one table.

An error about a size names the bound, so that a person can tell "too large" from "wrong". The
bounds allow far more than real models need: the largest language models have 2**40
parameters, the deepest vision models some ten thousand operators.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds.

    Attributes:
        file_bytes: Size of a file.
        yaml_bytes: Size of what a file holds beside its blocks of plain lines (leaves, nodes).
        yaml_values: Mappings, sequences and scalars of a file; an alias counts at each use.
        yaml_depth: Nesting of a YAML file.
        lines: Lines of a printed graph.
        value_depth: Nesting of one argument.
        digits: Digits of a number in YAML.
        expression_signs: Length of a ``$name`` expression.
        expression_value: Magnitude of its value and of everything on the way.
        blocks: Depth of a section.
        block_nesting: Blocks inside blocks.
        nodes: Operators of a graph.
        leaves: Parameters, buffers and constants of a graph.
        rank: Dimensions of a tensor.
        size: One dimension of a tensor.
        leaf_elements: Elements of one leaf.
        elements: Elements of all leaves together, and of one result.
        constant_bytes: Size of a constant, unpacked.
        batch_power: Power of the batch size in a size.
        integer: Magnitude of an integer argument.
        results: Results of one operator.
        steps: Positions of a dimension that an operator may walk through one by one for its type
            to be inferred; beyond them the written type stands.
        example_elements: Elements of an example input that a model is captured with.
    """

    file_bytes: int = 256 * 2**20
    yaml_bytes: int = 4 * 2**20
    yaml_values: int = 20_000
    yaml_depth: int = 40
    lines: int = 1_000_000
    value_depth: int = 64
    digits: int = 19
    expression_signs: int = 200
    expression_value: int = 2**31 - 1
    blocks: int = 1000
    block_nesting: int = 16
    nodes: int = 100_000
    leaves: int = 100_000
    rank: int = 32
    size: int = 2**40
    leaf_elements: int = 2**33
    elements: int = 2**40
    constant_bytes: int = 256 * 2**20
    batch_power: int = 3
    integer: int = 2**63 - 1
    results: int = 2**16
    steps: int = 2**12
    example_elements: int = 2**26


LIMITS = Limits()
