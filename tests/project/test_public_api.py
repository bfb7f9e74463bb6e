# SPDX-License-Identifier: Apache-2.0
"""docs/api.md, the public modules' ``__all__``, and what can be imported from them agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pytest_udftorch
from pytest_udftorch import errors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_udftorch"

#: Modules at the package's top that are not an interface.
PRIVATE = {
    "__init__", "__main__", "cli", "compat", "delta_debugging", "doctor", "notebook", "optional",
    "plain_data", "prebuild", "undisturbed", "whole_file",
}  # fmt: skip


def listed() -> dict[str, list[str]]:
    """Module -> names, as docs/api.md lists them."""
    found: dict[str, list[str]] = {}
    for section in (ROOT / "docs" / "api.md").read_text().split("\n## ")[1:]:
        (module,) = re.findall(r"^`([a-z_.]+)`\n", section)
        found[module] = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", section, re.M)
        assert len(found[module]) == section.count("\n|") - 2, f"{module}: a row is not a name"
    return found


@pytest.mark.parametrize("module", listed())
def test_the_page_and_the_module_name_the_same(module):
    names = listed()[module]
    public = import_module(module)
    assert len(set(names)) == len(names)
    assert set(names) == set(public.__all__)
    for name in names:
        assert hasattr(public, name)
    with pytest.raises(AttributeError, match="no attribute 'nowhere'"):
        public.nowhere  # noqa: B018


def test_every_module_at_the_top_is_listed():
    top = {path.stem for path in PACKAGE.glob("*.py")} - PRIVATE
    assert {f"pytest_udftorch.{name}" for name in top} <= set(listed())


def test_every_error_is_public():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(errors.__all__) == {n for n in classes if issubclass(getattr(errors, n), Exception)}


def test_importing_the_package_loads_nothing_else():
    """Packages that offer names load the modules behind them when a name is used."""
    packages = [m for m in listed() if (ROOT / m.replace(".", "/")).is_dir()]
    packages.remove("pytest_udftorch.plugin")  # see tests/plugin/test_idle.py
    code = (
        f"import sys; before = set(sys.modules); import {', '.join(packages)}\n"
        "print(*(m for m in set(sys.modules) - before if m.startswith('pytest_udftorch')))\n"
        "print(*sorted({'torch', 'numpy', 'ctypes'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours, heavy = run.stdout.split("\n")[:2]
    assert set(ours.split()) == set(packages)
    assert heavy == ""
    assert set(pytest_udftorch.__all__) <= set(dir(pytest_udftorch))


#: What benches take from within: the id of the active functions, the runtime's memory, the symbols
#: that a session looks for (in a wheel of another processor), what runs under sanitizers, the MPFR
#: and the base of journals, the counts of a certificate, and the parsers of which the site's
#: reference is made.
WITHIN = {
    ("benches/certified.py", "pytest_udftorch.prove.verify.certificate.Tally"),
    ("benches/certified.py", "pytest_udftorch.prove.verify.reference.checker.BINS"),
    ("benches/experiments/aarch64_session.py", "pytest_udftorch.swap.native.runtime.native_file"),
    ("benches/experiments/aarch64_session.py", "pytest_udftorch.swap.session.binder.binder"),
    ("benches/experiments/cuda_digests.py", "pytest_udftorch.swap.compiled.follower.follower"),
    ("benches/experiments/cuda_pairs.py", "pytest_udftorch.swap.compiled.follower.follower"),
    ("benches/experiments/float64_check.py", "pytest_udftorch.base.journal.Journal"),
    ("benches/experiments/float64_check.py", "pytest_udftorch.base.journal.Words"),
    (
        "benches/experiments/float64_check.py",
        "pytest_udftorch.prove.verify.reference.checker.load_mpfr",
    ),
    ("benches/experiments/inlined.py", "pytest_udftorch.swap.session.binder.binder"),
    ("benches/experiments/profile_overhead.py", "pytest_udftorch.swap.native.runtime.runtime"),
    ("benches/experiments/sanitized.py", "pytest_udftorch.swap.library.symbols.CPU_LEVELS"),
    ("benches/experiments/sanitized.py", "pytest_udftorch.swap.native.runtime.native_file"),
    ("benches/experiments/sanitized.py", "pytest_udftorch.swap.native.runtime.runtime"),
    ("benches/experiments/wheel_symbols.py", "pytest_udftorch.swap.library.symbols.PROCESSORS"),
    ("benches/experiments/wheel_symbols.py", "pytest_udftorch.swap.native.runtime.runtime"),
    ("benches/experiments/wheel_symbols.py", "pytest_udftorch.swap.session.binder.TORCH_OBJECTS"),
    ("benches/experiments/wheel_symbols.py", "pytest_udftorch.swap.session.binder.known_symbols"),
    ("benches/render/site_pages.py", "pytest_udftorch.cli.command.make_parser"),
    ("benches/render/site_pages.py", "pytest_udftorch.plugin.options.add_options"),
}


def taken(path: Path) -> set[str]:
    """What a source takes from the package, as full names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_udftorch"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("pytest_udftorch")}
    return found


def test_benches_use_public_names_only():
    modules = listed()
    public = {*modules, *(f"{module}.{name}" for module in modules for name in modules[module])}
    within = {
        (str(path.relative_to(ROOT)), name)
        for path in [*(ROOT / "benches").rglob("*.py"), ROOT / "conftest.py"]
        for name in taken(path) - public
    }
    assert within == WITHIN
