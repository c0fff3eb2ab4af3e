"""The house: every room says what is inside, arrows go one way, a name means one thing."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).parents[1] / "archgraph"
FILES = sorted(HOUSE.rglob("*.py"))
ROOMS = sorted(path.parent for path in HOUSE.glob("*/__init__.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def type_names(module: ast.Module) -> Iterator[str]:
    """Public classes and type aliases of a module: names in CamelCase that it binds itself."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[0].isupper() and not name.isupper():
                    yield name


def test_no_public_class_name_occurs_twice():
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for name in set(type_names(tree(path))):
            if not name.startswith("_"):
                homes[name].append(str(path.relative_to(HOUSE)))
    assert {name: at for name, at in homes.items() if len(at) > 1} == {}


def test_a_function_name_is_shared_by_two_modules_at_most():
    """Commands bear the names of the functions that they call, so these may occur twice."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(HOUSE)))
    shared = {name: at for name, at in homes.items() if len(at) > 1}
    assert {name: at for name, at in shared.items() if len(at) > 2} == {}
    assert len(shared) <= 30, shared


def test_a_variable_is_named_after_what_it_is():
    """A participle says that something happened to a value, not what the value is."""
    unclear = set(
        "found place whole given told held kept made named wanted shown taken own".split()
    )
    # Errors say `found=` and `place=`; the others are parameters and fields that users write.
    public = {
        ("errors.py", "found"),
        ("fields.py", "place"),
        ("graph/text.py", "found"),
        ("display/facts.py", "place"),
        ("federation/average.py", "whole"),
        ("federation/contribution.py", "whole"),
        ("federation/world.py", "own"),
        ("relate/align.py", "whole"),
        ("relate/alignment.py", "whole"),
    }
    bound = {
        (str(path.relative_to(HOUSE if path in FILES else HOUSE.parent)), name)
        for path in [*FILES, *sorted((HOUSE.parent / "strategies").rglob("*.py"))]
        for node in ast.walk(tree(path))
        for name in [node.id if isinstance(node, ast.Name) else getattr(node, "arg", None)]
        if name in unclear and isinstance(getattr(node, "ctx", ast.Store()), ast.Store)
        # `found=` in a call is an argument's name, not a variable.
        if not isinstance(node, ast.keyword)
    }
    assert bound == public


def test_every_room_says_in_one_sentence_what_is_inside():
    for room in ROOMS:
        first = (ast.get_docstring(tree(room / "__init__.py")) or "").split("\n\n")[0]
        assert first.endswith("."), room.name


def test_every_file_says_what_it_is_about():
    assert [path for path in FILES if not ast.get_docstring(tree(path))] == []


def test_the_library_does_not_import_strategies():
    """They are reached through a link, which import-linter does not follow."""
    for path in FILES:
        if path.is_relative_to(HOUSE / "strategies"):
            continue
        for node in ast.walk(tree(path)):
            modules = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            assert not any(m.startswith("archgraph.strategies") for m in modules), path
