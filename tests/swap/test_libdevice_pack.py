# SPDX-License-Identifier: Apache-2.0
"""The shipped functions for GPUs: code from the pack is the code that a compiler makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_udftorch.errors import CompilerNotFoundError
from pytest_udftorch.swap.compiled.triton import stock_libdevice
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.toolchain import libdevice
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.compiler import find_compiler, tool
from pytest_udftorch.swap.toolchain.job import Step, run_stages
from pytest_udftorch.swap.toolchain.selection import Part
from pytest_udftorch.swap.toolchain.shared_library import Build

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.slow


def no_compiler():
    raise CompilerNotFoundError("There is no clang here. Install it.")


def part(name, functions=None, form="double"):
    """Part of a library whole, or some of its functions; nothing is built for CPUs."""
    library = find_library(name)
    keys = tuple(k for k in library.functions if functions is None or k[0] in functions)
    return Part(Build(library, "baseline", "", Path(), 0.0), keys, form)


@pytest.fixture(scope="module")
def stock():
    return stock_libdevice(triton.__file__)


@pytest.fixture(scope="module")
def store(stock, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with prebuilt.recording():
        libdevice.make_pack(stock)
        assert prebuilt.export(folder) == 1
    return folder


def caller() -> str:
    """Return LLVM text of a kernel that calls every function and every part of one."""
    lines = ['target triple = "nvptx64-nvidia-cuda"']
    body = []
    for function in FUNCTIONS.values():
        c_name = function.c_name("float32")
        for suffix, kind in (("", "float"), *((f"_{p}", k) for p, k in libdevice.SPLIT.items())):
            name = f"__nv_{'udf_' if suffix else ''}{c_name}{suffix}"
            given = ", ".join(["float"] * function.arity)
            passed = ", ".join(["float %x"] * function.arity)
            lines.append(f"declare {kind} @{name}({given})")
            lines.append(
                f"define {kind} @of_{name}(float %x) {{ %y = call {kind} @{name}({passed}) "
                f"ret {kind} %y }}"
            )
    return "\n".join([*lines, *body]).replace(" ret ", "\n ret ") + "\n"


def code(copy: Path, folder: Path) -> str:
    """Return the PTX of the kernel with a copy of libdevice; local labels without their numbers."""
    compiler = find_compiler()
    folder.mkdir()

    def failed(step, message):
        return AssertionError(message)

    run_stages(
        [
            [Step(tool(compiler, "llvm-link"), ("kernel.ll", "--only-needed", str(copy), "-o",
                                                "linked.bc"))],
            [Step(tool(compiler, "opt"), ("-passes=default<O3>", "linked.bc", "-o", "out.bc"))],
            [Step(tool(compiler, "llc"), ("-mcpu=sm_80", "out.bc", "-o", "out.ptx"))],
        ],
        {"kernel.ll": caller()}, folder, failed,
    )  # fmt: skip
    return (folder / "out.ptx").read_text()


def functions_of(ptx: str) -> dict[str, list[str]]:
    """Return the functions of the kernel, and those that they call: name -> bodies, sorted.

    LLVM numbers labels, and names that several modules have; numbers and comments are left out.
    """
    found: dict[str, list[str]] = {}
    for match in re.finditer(r"\.func\s+(?:\([^)]*\)\s+)?(\w+)\(", ptx):
        end = ptx.find("\n}", match.end())
        declared = ptx.find(";", match.end())
        if ptx.find("{", match.end()) > declared:
            continue
        numbered = r"callseq \d+|prototype_\d+|__local_depot\d+|\s*//.*"
        body = re.sub(numbered, "", ptx[match.end() : end])
        body = re.sub(r"(udf_\w*?[a-z])\d+(?=_param_|\b)", r"\1", body)
        for number, label in enumerate(dict.fromkeys(re.findall(r"\$L__BB\d+_\d+", body))):
            body = re.sub(rf"{re.escape(label)}\b", f"@{number}", body)
        found.setdefault(re.sub(r"\d+$", "", match[1]), []).append(body)
    return {name: sorted(bodies) for name, bodies in found.items()}


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(lambda: (part("corem"),), id="corem"),
        pytest.param(lambda: (part("corem", {"exp", "log"}),), id="two-functions"),
        pytest.param(lambda: (part("corem", None, "float-float"),), id="float-float"),
        pytest.param(
            lambda: (part("corem", {"exp", "tanh"}), part("canary", {"log", "pow"})), id="stacked"
        ),
    ],
)
def test_the_pack_gives_the_code_that_a_compiler_gives(parts, store, stock, tmp_path, monkeypatch):
    parts = parts()
    monkeypatch.setenv(prebuilt.VARIABLE, "")
    compiled = functions_of(code(libdevice.libdevice_for(parts, stock), tmp_path / "compiled"))
    monkeypatch.setenv(prebuilt.VARIABLE, str(store))
    with monkeypatch.context() as context:
        context.setattr(libdevice, "find_compiler", no_compiler)
        packed = libdevice.libdevice_for(parts, stock)
    packed_code = functions_of(code(packed, tmp_path / "packed"))
    assert len([name for name in compiled if name.startswith("of_")]) == 4 * len(FUNCTIONS)
    assert {n for n in compiled if compiled[n] != packed_code.get(n)} == set()
    assert set(packed_code) == set(compiled)
    # The control: the stock library, and the pack as it is shipped, give other code.
    (shipped,) = store.glob("pack-*/libdevice.10.bc")
    stock_code = functions_of(code(shipped, tmp_path / "stock"))
    swapped = {f"of___nv_{FUNCTIONS[f].c_name('float32')}" for p in parts for f, _ in p.functions}
    changed = {n for n in compiled if compiled[n] != stock_code.get(n)}
    assert {n for n in changed if n.startswith("of___nv_") and "udf" not in n} == swapped


def test_a_library_of_ones_own_needs_a_compiler(store, stock, tmp_path, monkeypatch):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    (tmp_path / "e.c").write_text("float my_expf(float x) { return x; }\n")
    monkeypatch.setenv(prebuilt.VARIABLE, str(store))
    monkeypatch.setattr(libdevice, "find_compiler", no_compiler)
    with pytest.raises(CompilerNotFoundError):
        libdevice.libdevice_for((part("corem"), part(tmp_path, {"exp"})), stock)
