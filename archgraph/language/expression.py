"""``$name`` in a spec: the value of a parameter, or integer arithmetic over such values.

Supports integers, names, ``+ - * // %``, unary minus and parentheses. An expression cannot call
functions or use other names.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from archgraph.fields import Mistake, Place
from archgraph.hints import unknown
from archgraph.limits import LIMITS
from archgraph.plain import Json

ParamValue = int | float | str | bool | None

_NAME = re.compile(r"\$([A-Za-z_]\w*)")
# Arithmetic without a name, such as `16 * 6`; no option takes such text as a value.
_ARITHMETIC = re.compile(r"[\s(]*\d+[\s)]*([-+*/%]+[\s(]*\d+[\s)]*)+")
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def is_expression(value: object) -> bool:
    """Return whether a YAML value is an expression that must be evaluated.

    >>> is_expression("$width * 6"), is_expression("16 * 6"), is_expression("relu")
    (True, True, False)
    """
    return isinstance(value, str) and ("$" in value or _ARITHMETIC.fullmatch(value) is not None)


def names_in(value: object) -> list[str]:
    """Return the names of the parameters in an expression.

    >>> names_in("$width * $factor"), names_in(8)
    (['width', 'factor'], [])
    """
    return _NAME.findall(value) if isinstance(value, str) else []


def evaluate(text: str, values: Mapping[str, ParamValue]) -> ParamValue:
    """Evaluate an expression.

    A single ``$name`` returns the parameter's value, of any type. Arithmetic requires integers.

    Args:
        text: The expression.
        values: Dict from parameter name to value.

    Raises:
        Mistake: If it is malformed, names an unknown parameter, or exceeds 31 bits.

    Example:
        >>> evaluate("$width * 6 // $parts", {"width": 16, "parts": 2})
        48
    """
    if len(text) > LIMITS.expression_signs:
        raise Mistake(
            "is too long", found=len(text), expected=f"at most {LIMITS.expression_signs} characters"
        )
    for name in _NAME.findall(text):
        if name not in values:
            facts = unknown(f"${name}", (f"${n}" for n in values))
            if not values:
                facts["hint"] = "none is defined above: define it there, or write a number"
            raise Mistake("names an unknown parameter", **facts)
    if alone := _NAME.fullmatch(text.strip()):
        return values[alone.group(1)]
    try:
        # Parsed, never evaluated by Python: only the nodes that `_number` knows are computed.
        # Parameters get a `_`, since one may have the name of a keyword of Python.
        tree = ast.parse(_NAME.sub(r"_\1", text.strip()), mode="eval")
        return _number(tree.body, text, values)
    except Mistake:  # which is a ValueError, too
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # deep parentheses
        expected = "integers, $names, + - * // % ( )"
        plain = re.sub(r"\$\{([^}]*)\}", r"\1", text)
        name = plain.strip().isidentifier()
        hint = f"without braces: {'$' * name}{plain.strip()}" if plain != text else _bare(text)
        raise Mistake(
            "is not an expression", found=repr(text), expected=expected, hint=hint
        ) from None


def _bare(text: str) -> str | None:
    """Return advice for numbers and keywords of Python after a `$`."""
    plain = re.sub(r"\$(?=\d)", "", text)
    return f"names alone have a $: {plain}" if plain != text else None


def _number(node: ast.expr, text: str, values: Mapping[str, ParamValue]) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            result = value
        case ast.Name(id=name) if name[:1] == "_" and name[1:] in values:
            parameter = values[name[1:]]
            if not isinstance(parameter, int) or isinstance(parameter, bool):
                binding = f"${name[1:]} = {parameter!r}"
                raise Mistake("uses a parameter that is not an integer", found=binding)
            result = parameter
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_number(operand, text, values)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            a, b = _number(left, text, values), _number(right, text, values)
            if b == 0 and isinstance(op, (ast.FloorDiv, ast.Mod)):
                raise Mistake("divides by zero", found=repr(text))
            result = _OPERATORS[type(op)](a, b)
        case ast.BinOp(op=ast.Div()):
            raise Mistake("divides with '/'", found=repr(text), hint="write // (rounded down)")
        case _:
            raise ValueError
    # Every step is bounded, so that no intermediate product grows beyond memory.
    if abs(result) > LIMITS.expression_value:
        raise Mistake(
            "is out of range", found=repr(text), expected=f"at most {LIMITS.expression_value}"
        )
    return result


def resolve_expressions(data: Json, values: Mapping[str, ParamValue], loc: Place = ()) -> Json:
    """Replace every expression in the data by its value.

    Raises:
        Mistake: As :func:`evaluate`, with the place inside the data.

    Example:
        >>> resolve_expressions({"out": "$w * 2", "kernel": (3, "$k")}, {"w": 8, "k": 5})
        {'out': 16, 'kernel': (3, 5)}
    """
    if isinstance(data, Mapping):
        return {k: resolve_expressions(v, values, (*loc, k)) for k, v in data.items()}
    if isinstance(data, tuple):
        return tuple(resolve_expressions(v, values, (*loc, i)) for i, v in enumerate(data))
    if not is_expression(data):
        return data
    try:
        return evaluate(data, values)
    except Mistake as mistake:
        raise Mistake(mistake.message, place=(*loc, *mistake.place), **mistake.facts) from None
