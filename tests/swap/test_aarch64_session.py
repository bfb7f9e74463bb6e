# SPDX-License-Identifier: Apache-2.0
"""The runtime for aarch64 finds, counts and restores slots, and what a session did is judged."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benches import stored
from benches.experiments import aarch64_session
from benches.experiments.other_machines import _ARM
from pytest_udftorch.swap import FUNCTIONS

NATIVE = Path(__file__).parents[1] / "native" / "udf"
STORED = stored.load(stored.RESULTS / "aarch64_session.json")

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None
    or not (aarch64_session.SYSROOT / "lib" / "libc.so.6").is_file(),
    reason="needs qemu-aarch64 (Debian: qemu-user) and libc6-dev-arm64-cross",
)


@needs_qemu
def test_the_runtime_rebinds_counts_and_restores_on_aarch64(tmp_path):
    runtime = aarch64_session.package(tmp_path) / "pytest_udftorch/_native/libudfrt.so"
    clang = [aarch64_session.CLANG, *aarch64_session.TARGET, "-O2", "-fno-builtin"]
    link = ["-fuse-ld=lld", "-nostdlib"]
    libraries = [aarch64_session.SYSROOT / "lib" / n for n in ("libm.so.6", "libc.so.6")]
    source, shared, program = NATIVE / "slots.c", tmp_path / "libcaller.so", tmp_path / "slots"
    for words in (
        [*clang, "-fPIC", "-DCALLER", "-shared", *link, source, *libraries, "-o", shared],
        [
            *clang, "-fPIE", f"-I{aarch64_session.ROOT / 'pytest_udftorch/swap/native/c'}", source,
            *_ARM.link,
            *link, shared, runtime, *libraries, f"-Wl,-rpath,{tmp_path}",
            f"-Wl,-rpath,{runtime.parent}", "-o", program,
        ],
    ):  # fmt: skip
        subprocess.run(words, check=True)
    done = subprocess.run(
        ["qemu-aarch64", "-L", aarch64_session.SYSROOT, program, shared],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["level", "1", "slots", "2", "file", "2", "hits", "2", "restored"]


def test_what_differs_is_named():
    here = {"inside": {"exp": "a", "log": "b"}, "before": {"exp": "c", "log": "b"}}
    there = {"inside": {"exp": "a", "log": "d"}, "before": {"exp": "e", "log": "d"}}
    assert aarch64_session.compare(there, here) == {
        "same_as_here": ["exp"],
        "different_from_here": ["log"],
        "stock_same_as_here": [],
        "swapped": ["exp"],
    }


def test_the_operators_are_those_of_every_function_but_erf():
    names = set(aarch64_session.operators())
    assert names == {"softmax", *FUNCTIONS} - {"erf"}
    digests = aarch64_session.digests()
    assert len(set(digests.values())) == len(names)


def test_the_stored_session_found_what_the_wheel_says():
    there = STORED["there"]
    wheel = stored.load(stored.RESULTS / "wheel_symbols.json")["wheels"]
    name = f"torch-{there['torch'].partition('+')[0]}-cp311-cp311-manylinux_2_28_aarch64.whl"
    assert there["processor"] == "aarch64"
    for title, found in wheel[name]["objects"].items():
        kinds: dict[str, int] = {}
        for entries in found["calls"].values():
            for kind, _, count in entries:
                kinds[kind] = kinds.get(kind, 0) + count
        assert there["slots"].get(title, {}) == kinds
    called = wheel[name]["objects"]["libtorch_cpu.so"]["calls"]
    assert all(set(symbols) <= set(called) for symbols in there["reached"].values())
    assert set(there["reached"]) | set(there["refused"]) == set(FUNCTIONS)


def test_facts_of_the_imitated_cpu_are_written(tmp_path):
    aarch64_session.imitate(tmp_path)
    text = (tmp_path / "proc/cpuinfo").read_text()
    assert "CPU implementer\t: 0x41\n" in text
    assert "CPU part\t: 0xd0c\n" in text  # Neoverse N1
    said = (tmp_path / "sys/devices/system/cpu/cpu0/regs/identification/midr_el1").read_text()
    assert int(said, 16) == aarch64_session.MIDR
