# SPDX-License-Identifier: Apache-2.0
"""Finding compilers and the tools beside them, and running them; CPU levels."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

from pytest_udftorch import errors
from pytest_udftorch.swap.library.symbols import CPU_LEVELS
from pytest_udftorch.swap.native.manifest import link_inputs
from pytest_udftorch.swap.native.runtime import pass_plugin, runtime
from pytest_udftorch.swap.toolchain import cache

#: Oldest LLVM whose plugin interface the passes are written for.
OLDEST_LLVM: Final = 16

C_COMPILERS: Final = ("cc", "gcc", "clang-19", "clang")

#: Contraction is off so that a source means the same at every CPU level. Traps and errno are off
#: because the loop vectoriser otherwise refuses the fast paths. No flag allows a value to change.
VALUE_FLAGS: Final = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC",
    "-fvisibility=hidden",
)  # fmt: skip
#: Flags of UDFs in C. ``-femit-all-decls`` keeps static UDFs until ``udf-widen`` has seen them.
FLAGS: Final = ("-std=c17", *VALUE_FLAGS, "-femit-all-decls", "-Wall")
LINK_FLAGS: Final = ("-shared", "-fuse-ld=lld", "-Wl,-Bsymbolic", "-Wl,--no-undefined", "-lm")


@dataclass(frozen=True)
class Compiler:
    """A compiler that runs.

    Attributes:
        path: the executable.
        version: the first line that ``--version`` prints.
        plugin: the pass plugin, if this is a clang that can load it.
        absent: True if it only stands for a compiler that nobody looked for.
    """

    path: Path
    version: str
    plugin: Path | None = None
    absent: bool = False

    @property
    def major(self) -> int:
        """The first number of the version, 0 if it is unknown."""
        match = re.search(r"version (\d+)\.", self.version)
        return int(match.group(1)) if match else 0

    @property
    def plugin_flags(self) -> tuple[str, ...]:
        """Return the flags that load the pass plugin and its options."""
        plugin = str(self.plugin)
        return f"-fpass-plugin={plugin}", "-Xclang", "-load", "-Xclang", plugin

    @property
    def identity(self) -> list[str]:
        """Return what a cache key must cover: the version and the plugin's digest."""
        if self.plugin is None:
            return [self.version]
        return [self.version, _plugin_digest(self.plugin, self.plugin.stat().st_mtime_ns)]


#: Stands for a compiler in jobs whose recipe is wanted, and which are not run.
ABSENT: Final = Compiler(Path("compiler"), "", Path("UdfPass.so"), absent=True)


def find_compiler() -> Compiler:
    """Return the clang that belongs to the pass plugin.

    ``UDFTORCH_CLANG`` can name it. Otherwise the candidates are ``clang-<major>`` on the path, the
    one in LLVM's own folder, and plain ``clang``.

    Raises:
        CompilerNotFoundError: there is none, or it does not run; its LLVM is older than the passes
            support, or not the plugin's.
    """
    plugin, major = pass_plugin()
    named = os.environ.get("UDFTORCH_CLANG")
    usual = (f"clang-{major}", f"/usr/lib/llvm-{major}/bin/clang", "clang")
    for candidate in (named,) if named else usual:
        if found := shutil.which(candidate):
            compiler = _compiler(found, plugin)
            if named or candidate != "clang" or compiler.major == major:
                return _check(compiler, major)
    if named:
        raise errors.CompilerNotFoundError(
            f"UDFTORCH_CLANG={named!r} is not an executable. Point it to clang-{major}, or "
            "unset it to search the usual places."
        )
    raise errors.CompilerNotFoundError(
        f"No clang {major} was found. The pass plugin, which UDF sources are compiled with, was "
        f"built for its LLVM. Install the packages clang-{major} and lld-{major}, or set "
        "UDFTORCH_CLANG to its path."
    )


@functools.cache
def _version(path: Path, state: tuple[int, ...]) -> str:
    """Return the line by which a compiler names itself.

    It is remembered across processes for a program, but not for a script, which may start another
    compiler tomorrow.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(4) == b"\x7fELF":
            name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
            return cache.remembered(f"clang-{name}", state, lambda: _said_version(path))
    return _said_version(path)


def _said_version(path: Path) -> str:
    try:
        said = subprocess.check_output(
            [path, "--version"], stderr=subprocess.PIPE, text=True, timeout=60
        )
    except subprocess.TimeoutExpired as error:
        raise errors.CompilerStoppedError(
            f"{path} --version was not done after 60 s. Run it by hand to see why, or set "
            "UDFTORCH_CLANG to another clang."
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        if getattr(error, "returncode", 0) < 0:
            raise errors.CompilerStoppedError(
                f"{path} --version was killed: {error} The machine may be out of memory. Run again."
            ) from error
        raise errors.CompilerNotFoundError(
            f"{path} --version does not run: {str(error).rstrip('.')}. Install clang and lld of "
            "LLVM's packages, or set UDFTORCH_CLANG to a clang that runs."
        ) from error
    return said.partition("\n")[0]


def _compiler(path: str, plugin: Path | None = None) -> Compiler:
    return Compiler(Path(path), _version(Path(path), cache.state_of(os.stat(path))), plugin)


def _check(compiler: Compiler, wanted: int) -> Compiler:
    path, major = compiler.path, compiler.major
    if "clang" not in compiler.version:
        raise errors.CompilerNotFoundError(
            f"{path} is not clang: it calls itself {compiler.version!r}. Use clang-{wanted}."
        )
    if major < OLDEST_LLVM:
        raise errors.CompilerNotFoundError(
            f"{path} is clang {major}; the passes need LLVM {OLDEST_LLVM} or newer. Install "
            f"clang-{wanted}."
        )
    if major != wanted:
        raise errors.CompilerNotFoundError(
            f"{path} is clang {major}, but the pass plugin is built for LLVM {wanted} and "
            f"cannot be loaded into another. Install clang-{wanted}, or reinstall "
            f"pytest_udftorch with LLVM {major}'s development files."
        )
    return compiler


@functools.cache
def _plugin_digest(plugin: Path, mtime_ns: int) -> str:
    return hashlib.sha256(plugin.read_bytes()).hexdigest()


def tries(compiler: Compiler, source: str, ending: str, flags: Sequence[str], needs: str) -> None:
    """Compile a small text, and throw the result away.

    Args:
        compiler: what compiles it.
        source: the text.
        ending: of its file: ``c`` or ``cpp``.
        flags: of the command.
        needs: what is missing if it fails, as a sentence that says what to do.

    Raises:
        CompilerNotFoundError: it does not compile or link.
        CompilerStoppedError: see :func:`run`.
    """
    with tempfile.TemporaryDirectory(prefix="udftorch-") as name:
        folder = Path(name)
        (folder / f"try.{ending}").write_text(source, encoding="utf-8")
        done = run([compiler.path, *flags, f"try.{ending}", "-o", "try.out"], folder)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line]
        reason = next(iter(said), f"status {done.returncode}")
        raise errors.CompilerNotFoundError(f"{needs} {compiler.path} says: {reason.strip()}")


_OPENMP: Final = "#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n"


def check_openmp(compiler: Compiler) -> None:
    """Check that a clang has OpenMP, which all of Inductor's C++ is compiled with.

    Raises:
        CompilerNotFoundError: its header or its library is missing.
    """
    _check_openmp(compiler, compiler.path.stat().st_mtime_ns)


@functools.cache
def _check_openmp(compiler: Compiler, _mtime_ns: int) -> None:
    package = f"libomp-{compiler.major}-dev"
    tries(
        compiler, _OPENMP, "c", ("-fopenmp", "-shared", "-fPIC"),
        f"clang has no OpenMP, which TorchInductor's C++ needs. Install the package {package}.",
    )  # fmt: skip


def tool(compiler: Compiler, name: str) -> Path:
    """Return a tool of the LLVM that the compiler belongs to.

    Raises:
        CompilerNotFoundError: it is not beside the compiler.
    """
    if compiler.absent:
        return Path(name)
    beside = compiler.path.resolve().parent / name
    if not beside.is_file():
        raise errors.CompilerNotFoundError(
            f"There is no {name} beside {compiler.path}. Install LLVM's tools of the same "
            "version (the package llvm-<version>)."
        )
    return beside


def find_c_compiler() -> Compiler | None:
    """Return a C compiler for code that needs no passes, or None if there is none.

    ``UDFTORCH_CC`` can name it; otherwise the candidates are ``C_COMPILERS``.

    Raises:
        CompilerNotFoundError: it does not run.
    """
    named = os.environ.get("UDFTORCH_CC")
    for candidate in (named,) if named else C_COMPILERS:
        if found := shutil.which(candidate):
            return _compiler(found)
    return None


def run(command: Sequence[str | Path], folder: Path | None = None) -> CompletedProcess[str]:
    """Run a tool and return its status and what it wrote; 127 if it cannot be started.

    Raises:
        CompilerStoppedError: it took longer than ``UDFTORCH_BUILD_TIMEOUT`` allows.
    """
    limit = cache.patience()
    environment = None
    if folder is not None:  # where clang puts what it writes when it crashes
        environment = {**os.environ, "CLANG_CRASH_DIAGNOSTICS_DIR": str(folder)}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", check=False, timeout=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise errors.CompilerStoppedError(
            f"{shlex.join(map(str, command))}\nwas not done after {limit:g} s, and was ended. A "
            "source may include a pipe, or the machine be overloaded. UDFTORCH_BUILD_TIMEOUT sets "
            "how many seconds a tool may take."
        ) from error
    except OSError as error:
        return CompletedProcess(command, 127, "", str(error))


def torch_flags(package: Path | None = None) -> tuple[list[str], list[str]]:
    """Return the flags, and the libraries, for C++ that uses torch and the running Python.

    Args:
        package: folder of torch; by default that of the installed one.
    """
    if package is None:
        import torch

        package = Path(torch.__file__).parent
    include = package / "include"
    folders = (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))
    flags = ["-D_GLIBCXX_USE_CXX11_ABI=1"]  # every torch from 2.7 on
    for folder in folders:
        flags += ["-isystem", str(folder)]
    return flags, [f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10", *link_inputs()]


#: Whether builds may be for levels that this CPU does not have.
_FOR_OTHERS: ContextVar[bool] = ContextVar("for_others", default=False)


@contextmanager
def for_other_machines() -> Iterator[None]:
    """Let :func:`resolve_cpu_level` return any level inside, for builds that are not run here."""
    token = _FOR_OTHERS.set(True)
    try:
        yield
    finally:
        _FOR_OTHERS.reset(token)


def resolve_cpu_level(cpu_level: str | None) -> str:
    """Return the level to build for: the one given, ``UDFTORCH_CPU_LEVEL``, or the best.

    Raises:
        CpuLevelError: there is no such level, or this CPU does not have it.
    """
    have = runtime().cpu_level()
    possible = [name for name, (_, level, _) in CPU_LEVELS.items() if level <= have]
    if not possible:
        raise errors.CpuLevelError(
            "This CPU has no SSE4.2; x86-64-v2 is the least that is supported."
        )
    asked = cpu_level or os.environ.get("UDFTORCH_CPU_LEVEL")
    if not asked:
        return possible[-1]
    if not isinstance(asked, str) or asked not in CPU_LEVELS:
        raise errors.CpuLevelError(
            f"Unknown CPU level {asked!r}. {errors.nearest(str(asked), CPU_LEVELS)}"
        )
    if asked not in possible and not _FOR_OTHERS.get():
        raise errors.CpuLevelError(
            f"This CPU cannot run code for {asked!r}. It has: {', '.join(possible)}."
        )
    return asked
