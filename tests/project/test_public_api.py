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
from package_nodes import nodes

import pytest_udftorch
from pytest_udftorch import errors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_udftorch"

#: Packages whose ``__init__`` offers names that other modules define.
FACES = ("", "swap", "watch", "prove", "measure", "reproduce", "diagnose")

#: Modules at the package's top that are not an interface.
PRIVATE = {"__init__", "__main__"}


def listed() -> dict[str, list[str]]:
    """Module -> names, as docs/api.md lists them."""
    found: dict[str, list[str]] = {}
    for section in (ROOT / "docs" / "api.md").read_text().split("\n## ")[1:]:
        (module,) = re.findall(r"^`([a-z_.]+)`\n", section)
        assert module not in found
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
    wings = {f"pytest_udftorch.{face}".rstrip(".") for face in FACES}
    assert {*wings, *(f"pytest_udftorch.{name}" for name in top)} <= set(listed())


def test_the_surface_stays_small():
    assert sum(len(names) for names in listed().values()) <= 180


def test_every_error_is_public_and_lives_in_one_module():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    own = {n for n in classes if issubclass(getattr(errors, n), Exception)}
    assert set(errors.__all__) == own
    assert len(own) <= 50
    elsewhere = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, node in nodes()
        if path.name != "errors.py"
        and isinstance(node, ast.ClassDef)
        and {ast.unparse(base).rpartition(".")[2] for base in node.bases} & {*own, "UserWarning"}
        and not node.name.startswith("_")
    ]
    assert elsewhere == []


@pytest.mark.parametrize("face", FACES)
def test_what_type_checkers_and_users_import_from_a_face_is_the_same(face):
    name = f"pytest_udftorch.{face}".rstrip(".")
    (checked,) = (
        node
        for node in ast.parse((PACKAGE / face / "__init__.py").read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    homes = {
        alias.asname: (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    public = import_module(name)
    assert sorted(homes) == sorted(public.__all__)
    for offered, (home, own) in homes.items():
        assert offered == own
        assert getattr(public, offered) is getattr(import_module(str(home)), own)


def test_the_package_itself_imports_no_face():
    faces = {f"pytest_udftorch.{face}" for face in FACES if face}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.ImportFrom)
        and (
            node.module in faces
            or (node.module == "pytest_udftorch" and {a.name for a in node.names} & {*FACES})
        )
    ]
    assert found == []


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
    # What gives packages their names belongs to them.
    helper = {"pytest_udftorch.base", "pytest_udftorch.base.package"}
    assert set(ours.split()) == {*packages, *helper}
    assert heavy == ""
    assert set(pytest_udftorch.__all__) <= set(dir(pytest_udftorch))


#: What benches take from within: what they measure and no user calls.
WITHIN = {
    "base.journal": "Journal Words",
    "base.optional": "package",
    "base.units": "time_text",
    "cli.command": "make_parser",
    "diagnose.blame.search": "units_of",
    "measure.planning": "executors roofline",
    "measure.planning.cuda_graph": "capture",
    "measure.planning.pairs": "Member",
    "measure.rewrite.taso.emitted": "emit write_rules",
    "measure.rewrite.taso.generator": "FAMILIES",
    "measure.rewrite.templates": "own",
    "measure.timing.device": "describe_device",
    "measure.timing.statistics": "FEWEST_RUNS Interval bootstrap median ratio",
    "measure.timing.timers": "require_device",
    "plugin.options": "add_options",
    "prove.exact.strategies": "read_hard_cases",
    "prove.judge.accuracy": "accuracy",
    "prove.verify.certificate": "Run Tally",
    "prove.verify.merge": "comparison_table",
    "prove.verify.reference.checker": "BINS Inputs generator llvmlibc load_mpfr",
    "swap.compiled.follower": "follower",
    "swap.library.symbols": "CPU_LEVELS PROCESSORS",
    "swap.native.runtime": "native_file runtime",
    "swap.observe.native_recorder": "RECORDER",
    "swap.operators.table": "BARE reached",
    "swap.reach": "table",
    "swap.reach.coverage": "training_step",
    "swap.records": "layout",
    "swap.records.totals": "Row",
    "swap.overrides.tape": "tapes",
    "swap.session.binder": "TORCH_OBJECTS binder known_symbols",
    "swap.session.builds": "builds",
    "swap.toolchain.agenda": "Candidate",
    "swap.toolchain.compiler": "find_compiler torch_flags",
    "swap.toolchain.cross": "cross_library",
    "swap.toolchain.environment": "caption cpu_caption describe",
    "watch.profile.report": "heading page",
    "watch.profile.tables": "Cell table text_cell",
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


def test_benches_take_public_names_or_those_listed_here():
    modules = listed()
    public = {*modules, *(f"{module}.{name}" for module in modules for name in modules[module])}
    within: dict[str, set[str]] = {}
    for path in [*(ROOT / "benches").rglob("*.py"), ROOT / "conftest.py"]:
        for name in taken(path) - public:
            module, _, own = name.rpartition(".")
            within.setdefault(module.removeprefix("pytest_udftorch."), set()).add(own)
    assert within == {module: set(names.split()) for module, names in WITHIN.items()}
