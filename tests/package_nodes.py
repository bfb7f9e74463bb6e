# SPDX-License-Identifier: Apache-2.0
"""What the modules of the package define and import, read once for tests that look at all."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest_udftorch

PACKAGE = Path(pytest_udftorch.__file__).parent


@cache
def nodes() -> list[tuple[Path, ast.ClassDef | ast.FunctionDef | ast.ImportFrom]]:
    """Return every class, function and import of names, with its file."""
    return [
        (path, node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in statements(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.ImportFrom)
    ]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return the statements in a node. They are few beside the nodes of expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, field, ())
        for child in children if isinstance(children, list) else ():
            yield child
            yield from statements(child)
