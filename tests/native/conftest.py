# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the native tests, and the collector of ``.ll`` files.

A ``.ll`` file in this folder is one test; ``lit`` runs it (see lit.cfg.py).
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import mpmath
import pytest
from toolchain import (
    FLAGS,
    LEVELS,
    NO_PLUGIN,
    PROBES,
    SOURCES,
    Level,
    Library,
    Llvm,
    Probe,
    find_plugin,
    missing_on_cpu,
)


@pytest.fixture(autouse=True)
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have mpmath compute in the bits that a module asks for, whatever other tests have set."""
    with mpmath.workprec(getattr(request.module, "PRECISION", mpmath.mp.prec)):
        yield


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".ll":
        return LitFile.from_parent(parent, path=file_path)
    return None


class LitFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield LitItem.from_parent(self, name=self.path.stem)


class LitItem(pytest.Item):
    """One ``.ll`` file, run by lit."""

    def runtest(self) -> None:
        plugin = find_plugin()
        if plugin is None:
            pytest.fail(NO_PLUGIN, pytrace=False)
        llvm = Llvm(plugin)
        with tempfile.TemporaryDirectory() as scratch:
            done = llvm.run(
                [sys.executable, "-c", "from lit.main import main; main()", "-v", self.path],
                env={
                    "UDFTORCH_LIT_PLUGIN": str(plugin),
                    "UDFTORCH_LIT_OPT": llvm.tool("opt"),
                    "UDFTORCH_LIT_FILECHECK": llvm.tool("FileCheck"),
                    "UDFTORCH_LIT_SPLIT": llvm.tool("split-file"),
                    "UDFTORCH_LIT_SCRATCH": scratch,
                },
            )
        if done.returncode != 0 or "Passed: 1" not in done.stdout:
            pytest.fail(done.stdout + done.stderr, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"lit: {self.name}"


@pytest.fixture(scope="session")
def llvm() -> Llvm:
    plugin = find_plugin()
    if plugin is None:
        pytest.fail(NO_PLUGIN)
    return Llvm(plugin)


@pytest.fixture(scope="session", params=LEVELS.values(), ids=LEVELS)
def level(request: pytest.FixtureRequest) -> Level:
    """Every CPU level that this machine executes."""
    why = missing_on_cpu(request.param)
    if why:
        pytest.skip(why)
    return request.param


@pytest.fixture(scope="session")
def write_manifest(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    def write(level: Level, probes: Iterable[Probe] = PROBES) -> Path:
        path = tmp_path_factory.mktemp("manifest") / "manifest.json"
        path.write_text(json.dumps({"functions": [p.manifest_entry(level) for p in probes]}))
        return path

    return write


@pytest.fixture(scope="session")
def build_library(
    llvm: Llvm, tmp_path_factory: pytest.TempPathFactory, write_manifest: Callable[..., Path]
) -> Callable[..., Library]:
    """Build probe.c with the plugin, and its shims and references without."""

    def build(level: Level, *defines: str) -> Library:
        folder = tmp_path_factory.mktemp(f"probe-{level.name}")
        forms, shim, library = folder / "forms.o", folder / "shim.o", folder / "probe.so"
        llvm.widen(SOURCES / "probe.c", write_manifest(level), forms, level, "-c", *defines)
        llvm.must(
            [
                *(llvm.tool("clang"), "-std=c17", *FLAGS, *level.march, "-c"),
                *(SOURCES / "shim.c", "-o", shim),
            ]
        )
        llvm.must([llvm.tool("clang"), "-shared", forms, shim, "-o", library, "-lm"])
        return Library(library, level)

    return build


@pytest.fixture(scope="session")
def library(level: Level, build_library: Callable[..., Library]) -> Library:
    return build_library(level)
