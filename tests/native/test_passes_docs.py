# SPDX-License-Identifier: Apache-2.0
"""The command lines in docs/swap/passes.md run as they are written."""

import ctypes
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from toolchain import HERE, LEVELS, Llvm, missing_on_cpu

ROOT = HERE.parents[1]
PASSES = ROOT / "docs" / "swap" / "passes.md"
FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """One fenced block: its language, the word behind it, its text."""

    language: str
    role: str
    text: str


def fences() -> list[Fence]:
    return [Fence(*match.groups()) for match in FENCE.finditer(PASSES.read_text())]


def run(llvm: Llvm, script: str, folder: Path, **env: str) -> str:
    """Run a block in a folder, with the versioned tools on the path."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("clang", "opt"):
        link = tools / f"{name}-{llvm.major}"
        if not link.exists():
            link.symlink_to(llvm.tool(name))
    done = subprocess.run(
        ["bash", "-euc", script.replace("-19", f"-{llvm.major}")],
        cwd=folder,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout


def test_document_has_blocks_of_every_kind() -> None:
    """A document whose blocks are no longer recognised must not pass for one that runs."""
    kinds = [(fence.language, fence.role) for fence in fences()]
    assert kinds.count(("sh", "")) >= 6
    assert kinds.count(("text", "output")) == 4
    assert {role for _, role in kinds} >= {
        "build",
        *(
            f"file={name}"
            for name in ("rsqrtf.c", "manifest.json", "watch.json", "user.c", "map.json")
        ),
    }
    assert len(PASSES.read_text().split("\n```")) - 1 == 2 * len(kinds)


def test_commands_run_as_written(llvm: Llvm, tmp_path: Path) -> None:
    why = missing_on_cpu(LEVELS["avx2"])
    if why:
        pytest.skip(why)
    printed = ""
    for fence in fences():
        if fence.role.startswith("file="):
            (tmp_path / fence.role.removeprefix("file=")).write_text(fence.text)
        elif fence.role == "output":
            assert printed == fence.text
        elif (fence.language, fence.role) == ("sh", ""):
            printed = run(llvm, fence.text, tmp_path, PLUGIN=str(llvm.plugin))
    assert "__udf_rsqrtf_v8" in (tmp_path / "widened.ll").read_text()
    assert "call float @__udf_rsqrtf(" in (tmp_path / "replaced.ll").read_text()
    branchless = (tmp_path / "branchless.ll").read_text()
    assert "rcp.approx" in branchless
    assert "fdiv" not in branchless

    n = 100
    numbers = (ctypes.c_float * n)(*(1.0 + 0.37 * i for i in range(n)))
    by_array, by_loop = (ctypes.c_float * n)(), (ctypes.c_float * n)()
    library = ctypes.CDLL(str(tmp_path / "librsqrtf.so"))
    ctypes.CDLL(str(llvm.plugin.parent / "libudfrt.so"))
    watched = (ctypes.c_float * n)()
    ctypes.CDLL(str(tmp_path / "libwatched.so")).__udf_rsqrtf_array(
        ctypes.c_int64(n), numbers, watched, ctypes.c_int64(0)
    )
    library.__udf_rsqrtf_array(ctypes.c_int64(n), numbers, by_array, ctypes.c_int64(0))
    ctypes.CDLL(str(tmp_path / "libuser.so")).normalise(n, numbers, by_loop)
    assert bytes(by_array) == bytes(by_loop) == bytes(watched)
    for x, y in zip(numbers, by_array, strict=True):
        assert y == ctypes.c_float(x**-0.5).value


@pytest.mark.slow
def test_plugin_builds_alone(llvm: Llvm, tmp_path: Path) -> None:
    (script,) = (fence.text for fence in fences() if fence.role == "build")
    script = script.replace("llvm/pass", str(ROOT / "llvm" / "pass"))
    run(llvm, script.replace("llvm-19", f"llvm-{llvm.major}"), tmp_path, BUILD="build")
    assert (tmp_path / "build" / llvm.plugin.name).exists()
