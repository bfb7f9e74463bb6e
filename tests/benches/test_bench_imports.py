# SPDX-License-Identifier: Apache-2.0
"""Benches use the public API, and what measures: modules and names of docs/api.md and of a list."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

BENCHES = Path(__file__).parents[2] / "benches"

#: What benches measure and draw with, and no user calls; tests/project/test_public_api.py has the
#: names.
MEASURING = {
    f"pytest_udftorch.{module}"
    for module in (
        "base.optional",
        "base.units",
        "diagnose.blame.search",
        "measure.planning",
        "measure.planning.cuda_graph",
        "measure.planning.pairs",
        "measure.rewrite.taso.emitted",
        "measure.rewrite.taso.generator",
        "measure.rewrite.templates",
        "measure.timing.device",
        "measure.timing.statistics",
        "measure.timing.timers",
        "prove.exact.strategies",
        "prove.judge.accuracy",
        "prove.verify.certificate",
        "prove.verify.merge",
        "swap.library.symbols",
        "swap.operators.table",
        "swap.reach",
        "swap.reach.coverage",
        "swap.records",
        "swap.records.totals",
        "swap.toolchain.compiler",
        "swap.toolchain.cross",
        "swap.toolchain.environment",
        "watch.profile.report",
        "watch.profile.tables",
    )
}

#: Figures of the inside that only a bench asks for, by file.
INSIDE = {
    # The parsers, of which the site's reference is made.
    "site_pages.py": {"pytest_udftorch.cli.command", "pytest_udftorch.plugin.options"},
    # The bytes that the profiler's runtime has allocated.
    "profile_overhead.py": {"pytest_udftorch.swap.native.runtime"},
    # Which runtime is loaded, and the CPU levels to try.
    "sanitized.py": {"pytest_udftorch.swap.library.symbols", "pytest_udftorch.swap.native.runtime"},
    # The slots that a session finds, and the sources of the runtime.
    "aarch64_session.py": {
        "pytest_udftorch.swap.native.runtime",
        "pytest_udftorch.swap.session.binder",
    },
    # The math symbols that a session binds.
    "inlined.py": {"pytest_udftorch.swap.session.binder"},
    # The counts of a certificate, made from a stored row.
    "certified.py": {
        "pytest_udftorch.prove.verify.certificate",
        "pytest_udftorch.prove.verify.reference.checker",
    },
    # The base of journals, and the MPFR that verify loads.
    "float64_check.py": {
        "pytest_udftorch.base.journal",
        "pytest_udftorch.prove.verify.reference.checker",
    },
    # What a session would bind in a wheel for another processor.
    "wheel_symbols.py": {
        "pytest_udftorch.swap.library.symbols",
        "pytest_udftorch.swap.native.runtime",
        "pytest_udftorch.swap.session.binder",
    },
    # What the compilers of this process are following, kept beside a proof; generated pairs.
    "cuda_digests.py": {"pytest_udftorch.swap.compiled.follower"},
    "cuda_pairs.py": {
        "pytest_udftorch.prove.verify.reference.checker",
        "pytest_udftorch.swap.compiled.follower",
    },
    # The parts that are compiled once.
    "one_time_builds.py": {
        "pytest_udftorch.swap.observe.native_recorder",
        "pytest_udftorch.swap.session.builds",
        "pytest_udftorch.swap.toolchain.agenda",
    },
    # How many calls were played from tapes.
    "contract_small_cuda.py": {"pytest_udftorch.swap.overrides.tape"},
    # The LLVM-libc that functions are timed beside.
    "speed.py": {"pytest_udftorch.prove.verify.reference.checker"},
}


def imports(path):
    """Yield module and name of everything that a file imports from the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_udftorch"):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from ((n, None) for n in names if n.startswith("pytest_udftorch"))


def public_modules():
    text = (BENCHES.parent / "docs" / "api.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## `pytest_udftorch")]
    return {line.split("`")[1] for line in headings}


def test_benches_import_only_what_is_public():
    modules = public_modules()
    private, used = [], set()
    for path in sorted(BENCHES.rglob("*.py")):
        for module, name in imports(path):
            used.add((path.name, module))
            if module in MEASURING or module in INSIDE.get(path.name, ()):
                continue
            known = module in modules and (
                name is None
                or f"{module}.{name}" in modules
                or name in import_module(module).__all__
            )
            if not known:
                private.append(f"{path.name}: {module} {name or ''}")
    assert private == []
    assert used >= {(file, module) for file, modules in INSIDE.items() for module in modules}
    assert {module for _, module in used} >= MEASURING
    assert len(used) > 50
