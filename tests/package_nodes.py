# SPDX-License-Identifier: Apache-2.0
"""What the modules of the package define and import, read once for tests that look at all."""

import ast
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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.ImportFrom)
    ]
