"""Mutants of Python functions: one small change each, as a programmer's slip would make it.

The changes are those that a related test can see: operators, bounds, constants, conditions,
arguments, dropped statements and copies. Messages of errors, annotations and docstrings stay.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# Functions that are taken for one another, and methods whose absence lends instead of copying.
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "abs": ""}
COPIES = {"clone", "copy", "contiguous", "detach"}
# Keywords that only guard or word a call.
SILENT = {"strict", "hint", "where", "found", "expected"}
# The order of their arguments says nothing that a test can see.
SYMMETRIC = {"min", "max", "zip"}


@dataclass(frozen=True)
class Mutant:
    """One change to one function.

    Attributes:
        room: Whose tests must notice it.
        path: The file, from the root of the repository.
        function: Qualified name of the outermost function.
        line: First line of the innermost statement that changes.
        change: What stood there and what stands there now.
        tree: The module; :meth:`apply` changes it.
        place: Node, field and position in it of what is replaced.
        new: What replaces it.
    """

    room: str
    path: str
    function: str
    line: int
    change: str
    tree: ast.Module
    place: tuple[ast.AST, str, int | None]
    new: ast.AST

    @property
    def name(self) -> str:
        """What stays the same when lines move."""
        return f"{self.path} {self.function}: {self.change}"

    def apply(self) -> ast.Module:
        """The module with the change; the tree itself is changed, once per process."""
        node, field, at = self.place
        if at is None:
            setattr(node, field, self.new)
        else:
            getattr(node, field)[at] = self.new
        return ast.fix_missing_locations(self.tree)


def mutants(root: Path, room: str, path: str) -> list[Mutant]:
    """All mutants of a file."""
    tree = ast.parse((root / path).read_text())
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for name, function in functions(tree):
        for line, node, field, at, new in _places(function):
            old = getattr(node, field) if at is None else getattr(node, field)[at]
            change = f"{_text(old)} → {_text(new)}"
            seen[f"{name}: {change}"] += 1
            if (count := seen[f"{name}: {change}"]) > 1:
                change += f" ({count})"
            found.append(Mutant(room, path, name, line, change, tree, (node, field, at), new))
    return found


def rank(seed: int, mutant: Mutant) -> str:
    """Order of a random sample that other mutants do not change."""
    return hashlib.sha256(f"{seed} {mutant.name}".encode()).hexdigest()


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The outermost functions of a module and its classes, by qualified name."""
    pending: list[tuple[str, Any]] = [("", node) for node in tree.body]
    while pending:
        prefix, node = pending.pop(0)
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            pending += [(f"{prefix}{node.name}.", child) for child in node.body]


Place = tuple[int, ast.AST, str, int | None, ast.AST]


def _places(function: Function) -> Iterator[Place]:
    """Line, place and replacement of every change to a function."""
    bound = {a.arg: 0 for a in ast.walk(function) if isinstance(a, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = min(node.lineno, bound.get(node.id, node.lineno))
    for at, statement in enumerate(function.body):
        if at == 0 and _is_text(statement):
            continue
        yield from _changes(function, "body", at, statement, statement.lineno, bound)


def _changes(
    parent: ast.AST, field: str, at: int | None, node: ast.AST, line: int, bound: dict[str, int]
) -> Iterator[Place]:
    """Changes to a node and to what is inside it; `bound`: line that binds a name first."""
    if isinstance(node, ast.stmt):
        line = node.lineno
        yield from ((line, parent, field, at, new) for new in _statements(node, bound))
    elif isinstance(node, ast.expr):
        yield from ((line, parent, field, at, new) for new in _expressions(node))
    if isinstance(node, (ast.Raise, ast.JoinedStr)):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        if isinstance(node, ast.Assert) and name == "msg":
            continue
        if isinstance(node, ast.keyword) and node.arg in SILENT:
            continue
        if name == "test" and not isinstance(value, (ast.Compare, ast.UnaryOp)):
            yield line, node, name, None, ast.UnaryOp(ast.Not(), value)
        if isinstance(value, ast.AST):
            yield from _changes(node, name, None, value, line, bound)
        elif isinstance(value, list):
            for position, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _changes(node, name, position, child, line, bound)


def _statements(node: ast.stmt, bound: dict[str, int]) -> Iterator[ast.stmt]:
    """What a statement is replaced by."""
    match node:
        case ast.Expr(ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Assign([ast.Name(name)]) if bound[name] < node.lineno:
            yield ast.Pass()
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            yield ast.Assign([target], value)
            if other := OPERATORS.get(type(op)):
                yield ast.AugAssign(target, other(), value)
        case ast.Return(result) if result is not None and not _is_none(result):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression is replaced by."""
    match node:
        case ast.Compare(left, [op], right):
            yield ast.Compare(left, [COMPARISONS[type(op)]()], right)
        case ast.BinOp(left, ast.BitOr() | ast.MatMult() as op, right):
            yield ast.BinOp(right, op, left)
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        case ast.Constant(float() as value):
            yield ast.Constant(value * 2 if value else 1e-3)
        case ast.Call():
            yield from _calls(node)
        case ast.ListComp(element, [ast.comprehension(ifs=[_, *_]) as first]):
            yield ast.ListComp(element, [_unfiltered(first)])
        case ast.SetComp(element, [ast.comprehension(ifs=[_, *_]) as first]):
            yield ast.SetComp(element, [_unfiltered(first)])
        case ast.GeneratorExp(element, [ast.comprehension(ifs=[_, *_]) as first]):
            yield ast.GeneratorExp(element, [_unfiltered(first)])
        case ast.DictComp(key, value, [ast.comprehension(ifs=[_, *_]) as first]):
            yield ast.DictComp(key, value, [_unfiltered(first)])


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """What a call is replaced by."""
    func, args, keywords = node.func, node.args, node.keywords
    ordered = not (isinstance(func, ast.Name) and func.id in SYMMETRIC)
    ordered &= len({ast.dump(argument) for argument in args[:2]}) > 1
    if ordered and not any(isinstance(a, ast.Starred) for a in args[:2]):
        yield ast.Call(func, [args[1], args[0], *args[2:]], keywords)
    for at, keyword in enumerate(keywords):
        if keyword.arg is not None and keyword.arg not in SILENT:
            yield ast.Call(func, args, keywords[:at] + keywords[at + 1 :])
    match func:
        case ast.Name(name) if name in NAMES and args:
            yield (
                ast.Call(ast.Name(NAMES[name], ast.Load()), args, keywords)
                if NAMES[name]
                else args[0]
            )
        case ast.Attribute(owner, "isfinite") if args:
            yield ast.UnaryOp(
                ast.Not() if isinstance(owner, ast.Name) and owner.id == "math" else ast.Invert(),
                ast.Call(ast.Attribute(owner, "isnan", ast.Load()), args, keywords),
            )
        case ast.Attribute(owner, name) if name in COPIES and not args:
            yield owner


def _unfiltered(loop: ast.comprehension) -> ast.comprehension:
    return ast.comprehension(loop.target, loop.iter, [], loop.is_async)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-27:]}"
