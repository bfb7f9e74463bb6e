# SPDX-License-Identifier: Apache-2.0
"""Private names of torch, Triton and pytest are used in ``compat`` alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pytest_udftorch

PACKAGE = Path(pytest_udftorch.__file__).parent

#: Private names of Python itself, Numba and mpmath.
OTHERS = {"_exit", "_handle", "_name", "_mpf_", "_get_module_for_linking", "_linking_libraries"}
PRIVATE = re.compile(r"_[A-Za-z]\w*")
MODULE = re.compile(r"(torch|triton|pytest|_pytest)(\.\w+)*\.?")


def is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None


def names_of(tree: ast.AST) -> set[str]:
    """Names that the package itself gives: functions, classes, variables and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


def foreign(tree: ast.AST, own: set[str]) -> list[str]:
    """Private names of others in a module, each with its line."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Import(names=aliases):
                names = [a.name for a in aliases]
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                names = [f"{module}.{a.name}" for a in aliases]
            case ast.Constant(value=str(text)) if MODULE.fullmatch(text):
                names = [text]
            case ast.Attribute(attr=attr) if is_private(attr) and attr not in own | OTHERS:
                found.append(f"{node.lineno}: .{attr}")
        for name in names:
            root, *parts = name.split(".")
            if root in ("torch", "triton", "pytest", "_pytest") and (
                root == "_pytest" or any(map(is_private, parts))
            ):
                found.append(f"{node.lineno}: {name}")
    return found


def test_private_names_of_others_are_used_in_compat_alone():
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    own = set().union(*map(names_of, trees.values()))
    found = {
        name: these
        for name, tree in trees.items()
        if name != "base/compat.py" and (these := foreign(tree, own))
    }
    assert found == {}
    assert len(foreign(trees["base/compat.py"], own)) > 10  # what looks for them finds them


@pytest.mark.parametrize(
    "source",
    [
        "import torch._lazy.ts_backend",
        "from torch._dynamo.utils import counters",
        "from torch.utils import _pytree",
        "from _pytest.config import Config",
        "torch._C._get_schema(a, b)",
        "library._destroy()",
        'name = "torch._inductor.config"',
    ],
)
def test_a_private_name_of_another_is_found(source):
    assert foreign(ast.parse(source), set())
