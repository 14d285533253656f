"""Rules of style that no linter here knows: one thing a line, for readers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples", "docs")
MOST_TARGETS = 3


def nested_conditionals(tree: ast.AST) -> Iterator[int]:
    """Lines of conditional expressions that contain another one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            inner = (child for child in ast.walk(node) if child is not node)
            if any(isinstance(child, ast.IfExp) for child in inner):
                yield node.lineno


def long_tuple_assignments(tree: ast.AST, most: int) -> Iterator[int]:
    """Lines that assign to more than ``most`` names at once; unpacking of a call is no such line.

    Written values (``a, b = 1, 2``) count more strictly than the unpacking of a name, an attribute or an item.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            target = node.targets[0]
            allowed = most if isinstance(node.value, ast.Tuple) else MOST_TARGETS
            if isinstance(target, ast.Tuple) and len(target.elts) > allowed:
                yield node.lineno


def files(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "_build" not in path.parts]


@pytest.mark.parametrize("folder", FOLDERS)
def test_one_statement_a_line(folder: str) -> None:
    found = []
    for path in files(folder):
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        most = 1 if folder == "src" else MOST_TARGETS
        lines = [*nested_conditionals(tree), *long_tuple_assignments(tree, most)]
        found += [f"{path.relative_to(ROOT)}:{line}" for line in lines]
        if "# fmt: " in text and path != Path(__file__):
            found.append(f"{path.relative_to(ROOT)} has a formatter's exemption")
    assert found == []


def test_the_rules_find_what_they_forbid() -> None:
    text = (
        "a = 1 if x else 2 if y else 3\nb, c, d, e = 1, 2, 3, 4\nf, g, h, i = call()\nj, k, l, m = row\nn, o, p = row\n"
    )
    tree = ast.parse(text)
    assert list(nested_conditionals(tree)) == [1]
    assert list(long_tuple_assignments(tree, MOST_TARGETS)) == [2, 4]
    assert list(long_tuple_assignments(tree, 1)) == [2, 4]
