# SPDX-License-Identifier: Apache-2.0
"""What a source file shows before it runs, and before torch is imported: syntax and names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pytest_udftorch.diagnose.runs.models import NAMED
from pytest_udftorch.errors import CoverageError, RunError, nearest


def is_script(where: str) -> bool:
    """Say whether a text names a script, and not a function in a file."""
    return where.endswith(".py")


def check_source(where: str) -> None:
    """Refuse a script or ``model.py:make`` that cannot run, as far as its source shows.

    Raises:
        CoverageError: there is no such file or function, or the file is no Python.
        RunError: there is no such script, or it is no Python.
    """
    if not is_script(where):
        check_function(where)
        return
    path = Path(where)
    if not path.is_file():
        raise RunError(f"There is no script {path} to run.")
    try:
        _tree(path)
    except CoverageError as error:
        raise RunError(str(error)) from error.__cause__


def check_function(where: str) -> None:
    """Refuse ``model.py:make`` unless the source may bind that name; other names of models pass.

    Raises:
        CoverageError: there is no such file or function, or the file is no Python.
    """
    word, _, rest = where.partition(":")
    if word in NAMED and rest:
        return
    text, colon, name = where.rpartition(":")
    if not colon or not name.isidentifier():
        raise CoverageError(
            f"{where!r} names no model. Write model.py:make, a file and a function in it, or "
            f"{', '.join(f'{word}:NAME' for word in NAMED)}."
        )
    path = Path(text)
    if not path.is_file():
        raise CoverageError(f"There is no Python file {path} to take a model from.")
    bound = _bound(_tree(path))
    if bound is not None and name not in bound:
        raise missing_function(path, name, bound)


def missing_function(path: Path, name: str, known: set[str]) -> CoverageError:
    """Return the error for a file without that function."""
    offered = sorted(n for n in known if not n.startswith("_"))
    return CoverageError(
        f"{path} has no function {name!r}. Name one that returns the run. {nearest(name, offered)}"
    )


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        at = f", line {error.lineno}" if error.lineno else ""
        line = f": {error.text.strip()}" if error.text else ""
        raise CoverageError(f"{path}{at} is not valid Python ({error.msg}){line}") from error
    except (OSError, ValueError) as error:
        raise CoverageError(f"{path} cannot be read: {error}.") from error


def _bound(tree: ast.Module) -> set[str] | None:
    """Return the names that a module may bind; None if an import of ``*`` binds others."""
    found: set[str] = set()
    for node in _outside_of_functions(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    return None
                found.add(alias.asname or alias.name.partition(".")[0])
    found.update(n for node in ast.walk(tree) if isinstance(node, ast.Global) for n in node.names)
    # Such a module makes names as it runs.
    calls = (n.func for n in ast.walk(tree) if isinstance(n, ast.Call))
    if any(isinstance(c, ast.Name) and c.id in ("globals", "exec", "setattr") for c in calls):
        return None
    return None if "__getattr__" in found else found


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _outside_of_functions(child)
