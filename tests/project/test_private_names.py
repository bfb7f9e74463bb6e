# SPDX-License-Identifier: Apache-2.0
"""Private names of torch, Triton and pytest are used in ``compat`` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def names_of(node: ast.AST) -> Iterator[str]:
    """Names that the package itself gives: functions, classes, variables and attributes."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            yield name
        case ast.keyword(arg=str(name)):
            yield name


def foreign(node: ast.AST) -> Iterator[str]:
    """Private names of others, and attributes that are theirs if the package gives no such name."""
    names: list[str] = []
    match node:
        case ast.Import(names=aliases):
            names = [a.name for a in aliases]
        case ast.ImportFrom(module=str(module), level=0, names=aliases):
            names = [f"{module}.{a.name}" for a in aliases]
        case ast.Constant(value=str(text)) if MODULE.fullmatch(text):
            names = [text]
        case ast.Attribute(attr=attr) if is_private(attr) and attr not in OTHERS:
            yield f".{attr}"
    for name in names:
        root, *parts = name.split(".")
        if root in ("torch", "triton", "pytest", "_pytest") and (
            root == "_pytest" or any(map(is_private, parts))
        ):
            yield name


def read(source: str) -> tuple[set[str], list[tuple[int, str]]]:
    """Return the names that a module gives, and the foreign ones, each with its line.

    No tree outlives this: all of them at once would be gone through by each collection of garbage.
    """
    own: set[str] = set()
    others = []
    for node in ast.walk(ast.parse(source)):
        own.update(names_of(node))
        others += [(node.lineno, name) for name in foreign(node)]
    return own, others


def test_private_names_of_others_are_used_in_compat_alone():
    modules = {
        path.relative_to(PACKAGE).as_posix(): read(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    own = {f".{name}" for names, _ in modules.values() for name in names}
    found = {
        module: those
        for module, (_, others) in modules.items()
        if (those := [(line, name) for line, name in others if name not in own])
    }
    assert len(found.pop("base/compat.py")) > 10  # what looks for them finds them
    assert found == {}


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
    own, others = read(source)
    assert {name for _, name in others} - {f".{name}" for name in own}
