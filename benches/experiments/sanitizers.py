# SPDX-License-Identifier: Apache-2.0
"""Are the native parts clean under clang's sanitizers?

    python -m benches.experiments.sanitizers [PART ...] [--store FILE]

Each part is built with AddressSanitizer and UndefinedBehaviorSanitizer, or with ThreadSanitizer,
and used: by drivers in C (benches/experiments/native/sanitized), and by real sessions in a Python
with the stock torch, into which the sanitizer's runtime is preloaded. torch itself is not
sanitized. A report of a sanitizer is a finding. ``tsan.supp`` lists the races that are meant, with
the reason for each. Leaks are not looked for: Python and torch leave memory to the end.

The shipped machine code of the array forms runs between pages that cannot be touched, which shows
accesses out of bounds without any instrumentation.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.experiments import command
from pytest_udftorch.swap.toolchain.compiler import find_compiler, torch_flags

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "pytest_udftorch/swap/native"
RUNTIME, SWITCH, OPERATOR = NATIVE / "c", NATIVE / "switch", NATIVE / "operator"
DRIVERS = Path(__file__).parent / "native/sanitized"

_FINDING = re.compile(
    r"^(?:==\d+==)?\s*(?:ERROR: AddressSanitizer|WARNING: ThreadSanitizer|FATAL: \w+Sanitizer)"
    r"|: runtime error: "
    r"|^Fatal Python error: Segmentation fault",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Kit:
    """A build with sanitizers.

    Attributes:
        name: what the results call it.
        flag: the argument of ``-fsanitize=``.
        runtime: clang's name of the library to preload; empty for no sanitizer.
        variable: the environment variable of its options.
        options: their value.
    """

    name: str
    flag: str
    runtime: str
    variable: str
    options: str

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the compiler and of the linker."""
        if not self.flag:
            return ()
        return f"-fsanitize={self.flag}", "-fno-omit-frame-pointer", "-g1"


ADDRESS = Kit(
    "address, undefined",
    "address,undefined",
    "libclang_rt.asan-x86_64.so",
    "ASAN_OPTIONS",
    # torch's libraries bring several copies of the C++ library's operators.
    "detect_leaks=0:alloc_dealloc_mismatch=0",
)
THREAD = Kit(
    "thread",
    "thread",
    "libclang_rt.tsan-x86_64.so",
    "TSAN_OPTIONS",
    # What NumPy and torch do among themselves cannot be judged without their instrumentation.
    f"suppressions={DRIVERS / 'tsan.supp'}:ignore_noninstrumented_modules=1:exitcode=0",
)
# AddressSanitizer answers dlopen in its own name, so that $ORIGIN, by which a patch finds its
# functions, would mean the folder of the sanitizer.
UNDEFINED = Kit(
    "undefined", "undefined", "libclang_rt.ubsan_standalone-x86_64.so", "UBSAN_OPTIONS", ""
)
PAGES = Kit("none; guard pages", "", "", "", "")


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
        part: its name.
        sanitizer: the kit's.
        calls: how often it was called; what a call is depends on the part.
        findings: reports of the sanitizer.
        status: the exit status, which is not 0 if results were wrong too.
        text: everything that was written.
    """

    part: str
    sanitizer: str
    calls: int
    findings: int
    status: int
    text: str

    @property
    def is_clean(self) -> bool:
        """True if it ran to its end and nothing was reported."""
        return not self.findings and not self.status and self.calls > 0


def clang() -> Path:
    """Return the clang that the package uses."""
    return find_compiler().path


@functools.cache
def preload(kit: Kit) -> Path | None:
    """Return the path of a kit's runtime, or None if it is not installed."""
    said = subprocess.check_output([clang(), f"-print-file-name={kit.runtime}"], text=True)
    path = Path(said.strip())
    return path if path.is_absolute() and path.is_file() else None


def judged(part: str, kit: Kit, command: Sequence[str | Path], **more: Any) -> Outcome:
    """Run a command and count what a sanitizer says of it.

    Args:
        part: its name.
        kit: how it was built.
        command: prints ``calls N`` in a line.
        **more: further arguments of ``subprocess.run``.
    """
    environment = {**os.environ, **more.pop("env", {})}
    if kit.variable:
        environment[kit.variable] = kit.options
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False, env=environment, timeout=3600, **more,
    )  # fmt: skip
    calls = sum(map(int, re.findall(r"^calls (\d+)$", done.stdout, re.MULTILINE)))
    findings = len(_FINDING.findall(done.stdout))
    return Outcome(part, kit.name, calls, findings, done.returncode, done.stdout)


# Drivers in C ------------------------------------------------------------------------------

#: A text of a source, and what takes its place: a planted fault.
Mutation = tuple[str, str, str]


def driver(
    name: str, sources: Sequence[str], kit: Kit, folder: Path, mutation: Mutation | None = None
) -> Path:
    """Compile a driver together with sources of the runtime.

    Args:
        name: of the driver's source.
        sources: file names in ``pytest_udftorch/swap/native/c``.
        kit: how to build it.
        folder: where.
        mutation: the name of a source, a text that occurs in it once, and what takes its place.

    Raises:
        ValueError: the text does not occur once.
    """
    here = folder / "sources"
    shutil.copytree(RUNTIME, here, dirs_exist_ok=True)
    _mutate(here, mutation)
    output = folder / name
    _must(
        clang(), "-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", *kit.flags, f"-I{here}",
        DRIVERS / f"{name}.c", *(here / s for s in sources), "-o", output, "-lm", "-pthread",
    )  # fmt: skip
    return output


def _mutate(here: Path, mutation: Mutation | None) -> None:
    if mutation is None:
        return
    path, (old, new) = here / mutation[0], mutation[1:]
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{path.name} has {text.count(old)} times {old!r}, and not once.")
    path.write_text(text.replace(old, new), encoding="utf-8")


def _must(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def victims(folder: Path) -> list[Path]:
    """Link the driver's library in three ways: lazily, at once and read-only, without a PLT."""
    made = []
    for name, flags in (
        ("lazy", ("-Wl,-z,lazy",)),
        ("now", ("-Wl,-z,now", "-Wl,-z,relro")),
        ("direct", ("-fno-plt",)),
    ):
        made.append(folder / f"{name}.so")
        common = ("-shared", "-fPIC", "-O1", "-fno-builtin")
        _must(clang(), *common, *flags, DRIVERS / "victim.c", "-o", made[-1], "-lm")
    return made


def slots(kit: Kit, folder: Path, mutation: Mutation | None = None, rounds: int = 300) -> Outcome:
    """Exchange jump slots under threads that call through them; a call is one of theirs."""
    made = driver("slots", ("udfrt.c", "names.c", "trampolines.S"), kit, folder, mutation)
    return judged("jump slots", kit, [made, str(rounds), *victims(folder)])


def cells(kit: Kit, folder: Path, mutation: Mutation | None = None, rounds: int = 12) -> Outcome:
    """Begin, read and end profiles under threads that count; a call is one of an operator."""
    made = driver("cells", ("udfprof.c", "names.c", "trampolines.S"), kit, folder, mutation)
    return judged("counters of profiles", kit, [made, str(rounds)])


def boards(kit: Kit, folder: Path, mutation: Mutation | None = None, rounds: int = 3000) -> Outcome:
    """Switch the tables of a board under threads that call its operator; a call is one of those."""
    home = folder / "native"
    for source in (*SWITCH.glob("*.h"), *RUNTIME.glob("*.h"), OPERATOR / "kernel_of.h"):
        home.mkdir(exist_ok=True)
        shutil.copy(source, home)
    _mutate(home, mutation)
    flags, inputs = torch_flags()
    libraries = [i for i in inputs if i.startswith("-")]  # the runtime is not used
    made = folder / "boards"
    where = next(f for f in libraries if f.startswith("-L"))[2:]
    _must(
        clang(), "--driver-mode=g++", "-std=c++20", "-O1", "-DNDEBUG", *kit.flags,
        "-fno-sanitize=vptr", "-shared-libsan", f"-I{home}", *flags, DRIVERS / "boards.cpp",
        "-o", made, *libraries, f"-Wl,-rpath,{where}", "-pthread",
    )  # fmt: skip
    runtime = preload(kit)
    assert runtime is not None
    return judged("boards", kit, [made, str(rounds)], env={"LD_LIBRARY_PATH": str(runtime.parent)})


# Python with torch -------------------------------------------------------------------------


def kept(kit: Kit) -> Path:
    """Return the folder where builds with a kit stay, which git ignores."""
    folder = ROOT / "build" / f"sanitized-{kit.flag.replace(',', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def overlay(kit: Kit, folder: Path) -> Path:
    """Make a folder that stands before the package: its ``_native`` has the sanitized runtime.

    The pass plugin, which runs inside an ordinary clang, stays the installed one.
    """
    native = folder / "overlay/_native"
    native.mkdir(parents=True, exist_ok=True)
    for source in (
        *RUNTIME.glob("*.[ch]"),
        ROOT / "pytest_udftorch/swap/native/observer/observer.cpp",
    ):
        shutil.copy(source, native)
    # A header includes those beside it.
    for header in (ROOT / "pytest_udftorch/swap/native/operator").glob("*.h"):
        shutil.copy(header, native)
    _must(
        clang(), "-std=gnu17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *kit.flags,
        "-shared-libsan", *(RUNTIME / s for s in ("names.c", "udfprof.c", "udfrt.c")),
        RUNTIME / "trampolines.S", "-o", native / "libudfrt.so",
    )  # fmt: skip
    return native.parent


def wrapper(kit: Kit, folder: Path) -> Path:
    """Write a compiler that adds the kit's flags; the package's own builds go through it."""
    path = folder / "sanitizing-clang"
    libraries = preload(kit)
    assert libraries is not None
    flags = " ".join((*kit.flags, "-fno-sanitize=vptr", "-shared-libsan"))
    # clang itself is not sanitized. torch's classes lie in libraries that are not either.
    path.write_text(
        f'#!/bin/sh\nunset LD_PRELOAD\nexec {clang()} "$@" {flags} '
        f"-Wl,-rpath,{libraries.parent} -Wno-unused-command-line-argument\n",
        encoding="utf-8",
    )
    path.chmod(0o700)
    return path


def in_python(part: str, what: str, kit: Kit, *arguments: str) -> Outcome:
    """Run a part of ``sanitized`` in a Python into which the kit's runtime is preloaded."""
    module = (sys.executable, "-X", "faulthandler", "-m", "benches.experiments.sanitized")
    if not kit.flag:
        return judged(part, kit, [*module, what, "-", *arguments], cwd=ROOT)
    home = kept(kit)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the folder is made anew for each run
        env = {
            "UDFTORCH_CACHE_DIR": str(home / "cache"),
            "UDFTORCH_CLANG": str(wrapper(kit, home)),
            "LD_PRELOAD": str(preload(kit)),
        }
        child = [*module, what, overlay(kit, home), *arguments]
        return judged(part, kit, child, env=env, cwd=ROOT)


def _python(part: str, what: str) -> Callable[[Kit, Path], Outcome]:
    return lambda kit, folder: in_python(part, what, kit)


# The pass plugin ---------------------------------------------------------------------------


def sanitized_plugin(kit: Kit) -> Path:
    """Build the pass plugin with CMake."""
    build = kept(kit) / "plugin"
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if cmake is None or ninja is None:
        raise RuntimeError("The pass plugin is built with cmake and ninja: install them.")
    compiler = clang()
    of_cxx = compiler.with_name(compiler.name.replace("clang", "clang++"))
    _must(
        cmake, "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_CXX_COMPILER={of_cxx}",
        "-DCMAKE_BUILD_TYPE=Release", f"-DUDFTORCH_SANITIZE={kit.flag}",
    )  # fmt: skip
    _must(cmake, "--build", build, "--target", "UdfPass")
    (made,) = build.glob("llvm/pass/UdfPass-*.so")
    return made


def plugin(kit: Kit, folder: Path) -> Outcome:
    """Run the FileCheck corpus, and the tests of errors; a call is one of LLVM's tools."""
    tests = ("ir", "test_pass_errors.py", "test_gpu_passes.py")
    return with_plugin(kit, folder, sanitized_plugin(kit), [f"tests/native/{t}" for t in tests])


def with_plugin(kit: Kit, folder: Path, made: Path, tests: Sequence[str]) -> Outcome:
    """Run native tests with a plugin, in LLVM's own tools with the kit's runtime preloaded."""
    log, tools = folder / "log", folder / "tools"
    tools.mkdir()
    major = made.stem.partition("-")[2]
    for name in ("opt", "clang"):
        beside = clang().resolve().with_name(name)
        path = tools / f"{name}-{major}"
        # lit hands no such variables on, so each tool sets its own.
        path.write_text(
            f"#!/bin/sh\necho calls 1 >>{log}\n"
            f"LD_PRELOAD={preload(kit)} {kit.variable}={kit.options}:log_path={folder}/report "
            f'exec {beside} "$@"\n',
            encoding="utf-8",
        )
        path.chmod(0o700)
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "UDFTORCH_PASS_PLUGIN": str(made),
    }
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = judged("LLVM passes", kit, run, env=env, cwd=ROOT)
    said = "".join(p.read_text(errors="replace") for p in sorted(folder.glob("report.*")))
    calls = log.read_text().count("calls") if log.exists() else 0
    findings = done.findings + len(_FINDING.findall(said))
    return Outcome(done.part, kit.name, calls, findings, done.status, done.text + said)


# All of them -------------------------------------------------------------------------------

#: Name of a part -> how to run it, and its kits.
PARTS: dict[str, tuple[Callable[[Kit, Path], Outcome], tuple[Kit, ...]]] = {
    "slots": (slots, (ADDRESS, THREAD)),
    "cells": (cells, (ADDRESS, THREAD)),
    "boards": (boards, (ADDRESS, THREAD)),
    "sessions": (_python("sessions in torch", "sessions"), (ADDRESS, THREAD)),
    "profiles": (_python("profiles in torch", "profiles"), (ADDRESS, THREAD)),
    "patches": (_python("patched libtorch", "patches"), (UNDEFINED,)),
    "operators": (_python("operators in C++", "operators"), (ADDRESS,)),
    "forms": (_python("UDF libraries", "forms"), (ADDRESS, PAGES)),
    "passes": (plugin, (ADDRESS,)),
}


def measure(parts: Sequence[str]) -> dict[str, Any]:
    """Run parts under their kits."""
    rows = []
    for name in parts:
        run, kits = PARTS[name]
        for kit in kits:
            with tempfile.TemporaryDirectory() as folder:
                done = run(kit, Path(folder))
            print(
                f"{done.part}, {kit.name}: {done.calls} calls, {done.findings} findings, "
                f"exit status {done.status}", flush=True,
            )  # fmt: skip
            if not done.is_clean:
                print(done.text[-8000:])
            rows.append(
                {
                    "part": done.part, "sanitizer": kit.name, "calls": done.calls,
                    "findings": done.findings, "ended_well": not done.status,
                }
            )  # fmt: skip
    return {"parts": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("sanitizers", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args(arguments)
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"{name!r} is not one of {', '.join(PARTS)}.")
    for kit in (ADDRESS, THREAD, UNDEFINED):
        if preload(kit) is None:
            parser.error(f"{clang()} has no {kit.runtime}: install libclang-rt-dev of its version.")

    def judge(figures: dict[str, Any]) -> bool:
        return all(row["ended_well"] and not row["findings"] for row in figures["parts"])

    return command.run("sanitizers", options, lambda: measure(options.parts or list(PARTS)), judge)


if __name__ == "__main__":
    sys.exit(main())
