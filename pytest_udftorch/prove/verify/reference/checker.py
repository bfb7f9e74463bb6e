# SPDX-License-Identifier: Apache-2.0
"""Building and loading the references, and their C structures."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import NativeError, PackageMissingError, UdfError, nearest
from pytest_udftorch.swap.toolchain.compiler import (
    ABSENT,
    C_COMPILERS,
    Compiler,
    find_c_compiler,
    run,
)
from pytest_udftorch.swap.toolchain.job import (
    Job,
    Step,
    available,
    compile_job,
    dependencies,
    obtain,
    shipped_build,
)

FOLDER: Final = Path(__file__).parent
#: Where LLVM's packages for Debian and Ubuntu put the archive.
LLVM_FOLDERS: Final = Path("/usr/lib")
#: The first LLVM-libc in which all functions named here were correctly rounded.
OLDEST_LLVMLIBC: Final = 19
#: Debian packages to suggest when the archive is missing.
LLVMLIBC_PACKAGES: Final = ("libllvmlibc-22-dev", "libllvmlibc-19-dev")

FORM_NUMBERS: Final = {"array": 0, "scalar": 1, "v8": 2, "v16": 3, "given": 4}
BESIDE_NUMBERS: Final = {"inputs": 0, "random": 1, "easy": 2}
FINE_BINS: Final = 64
COARSE_BINS: Final = 64
BINS: Final = FINE_BINS + COARSE_BINS + 1
EXAMPLES: Final = 16

_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)

_FLAGS = ("-std=gnu17", "-O2", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden")


class CheckJob(ctypes.Structure):
    """``struct udfref_job`` of reference.h, field for field."""

    _fields_ = (
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("candidate", ctypes.c_void_p),
        ("reference", ctypes.c_void_p),
        ("hard", ctypes.c_void_p),
        ("max_arbitrated", ctypes.c_uint64),
        ("mode", ctypes.c_int64),
        ("function", ctypes.c_int32),
        ("form", ctypes.c_int32),
        ("flush", ctypes.c_int32),
        ("beside", ctypes.c_int32),
        ("margin_bits", ctypes.c_int32),
        ("sample", ctypes.c_int32),
        ("easy", ctypes.c_float),
    )


class Outcome(ctypes.Structure):
    """``struct udfref_outcome`` of reference.h, field for field."""

    _fields_ = (
        ("wrong", ctypes.c_uint64),
        ("reference_wrong", ctypes.c_uint64),
        ("disagreements", ctypes.c_uint64),
        ("arbitrated", ctypes.c_uint64),
        ("flushed", ctypes.c_uint64),
        ("hard", ctypes.c_uint64),
        ("histogram", ctypes.c_uint64 * BINS),
        ("examples", ctypes.c_uint64),
        ("example_index", ctypes.c_uint64 * EXAMPLES),
        ("example_got", ctypes.c_uint32 * EXAMPLES),
        ("example_want", ctypes.c_uint32 * EXAMPLES),
        ("worst_ulp", ctypes.c_double),
        ("worst_index", ctypes.c_uint64),
        ("worst_got", ctypes.c_uint64),
        ("incomparable_index", ctypes.c_uint64),
    )


# Building ----------------------------------------------------------------------------


def _compiler() -> Compiler:
    compiler = find_c_compiler()
    if compiler is None:
        tried = os.environ.get("UDFTORCH_CC") or ", ".join(C_COMPILERS)
        raise PackageMissingError(
            f"No C compiler to build the references with: there is no {tried}. Install gcc or "
            "clang, or set UDFTORCH_CC to a compiler."
        )
    return compiler


def compile_shared(
    name: str,
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    libraries: tuple[str, ...],
    homes: Mapping[str, str | None] | None = None,
) -> Path:
    """Compile C sources to a shared library in the cache, unless it is there or was shipped.

    Args:
        name: of the library, for its file name and for messages.
        sources: file name -> text; only ``*.c`` are compiled, but the key covers all of them.
        flags: in addition to those of every reference.
        libraries: linker arguments; the key covers the files among them.
        homes: see ``job.Job``.

    Raises:
        PackageMissingError: no C compiler, and no finished build.
        NativeError: the compiler's own message.
        CacheError: the cache cannot be written, or the build belongs to another user.
    """
    job = functools.partial(
        _shared_job, name, sources, flags, (*libraries, "-Wl,-z,defs"), homes or {}
    )
    return obtain(job, _compiler, "UDFTORCH_CC").path


def _shared_job(
    name: str,
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    libraries: tuple[str, ...],
    homes: Mapping[str, str | None],
    compiler: Compiler,
) -> Job:
    objects, steps = [], []
    for file in sources:
        if file.endswith(".c"):
            objects.append(f"{Path(file).stem}.o")
            arguments = (*_FLAGS, *flags, "-I.", "-c", file, "-o", objects[-1])
            steps.append(Step(compiler.path, arguments, Path(file)))
    output = f"lib{name}.so"
    link = ("-shared", *objects, "-o", output, *libraries)
    return Job(
        kind="reference-",
        compiler=compiler,
        stages=(tuple(steps), (Step(compiler.path, link),)),
        output=output,
        failed=lambda _, message: _build_error(name, message),
        texts=sources,
        homes=homes,
        inputs=[path for path in map(Path, libraries) if path.is_file()],
    )


def included_files(source: Path, folders: Sequence[Path]) -> list[Path]:
    """Return a C source and the files below its folders that it includes, sorted.

    Where there is no C compiler, conditions around an ``#include`` are taken to hold.

    Raises:
        NativeError: the preprocessor's own message, or a file that is included is missing.
    """
    if (compiler := find_c_compiler()) is None:
        return sorted(_includes(source, folders))
    done = run([compiler.path, "-MM", *(f"-I{d}" for d in folders), source])
    if done.returncode != 0:
        raise NativeError(f"{source} cannot be preprocessed:\n{done.stderr.strip()}")
    return sorted({Path(name).resolve() for name in dependencies(done.stdout)})


def _includes(source: Path, folders: Sequence[Path]) -> set[Path]:
    """Return what ``included_files`` does, by reading the lines that begin with ``#include "``."""
    found: set[Path] = set()
    wanted = [source.resolve()]
    while wanted:
        path = wanted.pop()
        if path in found:
            continue
        found.add(path)
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            places = [p for d in (path.parent, *folders) if (p := d / name).is_file()]
            if not places:
                raise NativeError(
                    f"{path} includes {name}, which is not in {', '.join(map(str, folders))}."
                )
            wanted.append(places[0].resolve())
    return found


def _own_sources(*names: str) -> dict[str, str]:
    return {n: (FOLDER / n).read_text(encoding="utf-8") for n in ("reference.h", *names)}


def _build_error(name: str, message: str) -> UdfError:
    if "mpfr.h" in message or "-lmpfr" in message:
        return PackageMissingError(
            "GNU MPFR, which decides every disagreement, is not installed for C. Install the "
            "package libmpfr-dev."
        )
    return NativeError(f"The reference {name!r} does not build:\n{message.strip()}")


# The checker -------------------------------------------------------------------------


class Inputs:
    """Typed access to the generator of inputs alone, which needs no MPFR."""

    SYMBOLS: ClassVar[tuple[str, ...]] = ("udfref_inputs",)

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._lib = ctypes.CDLL(str(path))
            generate, *_ = [getattr(self._lib, symbol) for symbol in self.SYMBOLS]
        except (OSError, AttributeError) as error:
            raise NativeError(f"{path} is not a usable library: {error}.") from error
        generate.argtypes = (ctypes.c_int32, *(ctypes.c_uint64,) * 3, *(ctypes.c_void_p,) * 2)
        generate.restype = None

    def inputs(
        self, arity: int, seed: int, first: int, count: int
    ) -> tuple[npt.NDArray[np.float32], ...]:
        """Return inputs ``first``, ... of a domain: float32 arrays, one per argument."""
        arrays = tuple(np.empty(count, dtype=np.float32) for _ in range(arity))
        pointers = [a.ctypes.data for a in arrays]
        self._lib.udfref_inputs(arity, seed, first, count, pointers[0], pointers[-1])
        return arrays


class Checker(Inputs):
    """Typed access to the compiled checker."""

    SYMBOLS = (*Inputs.SYMBOLS, "udfref_name", "udfref_sizes", "udfref_mpfr_version")

    def __init__(self, path: Path) -> None:
        load_mpfr()
        super().__init__(path)
        sizes = (self._lib.udfref_sizes(0), self._lib.udfref_sizes(1))
        expected = (ctypes.sizeof(CheckJob), ctypes.sizeof(Outcome))
        if sizes != expected:
            raise NativeError(
                f"{path} has structures of {sizes} bytes, but this package expects {expected}. "
                "They are out of step; reinstall the package."
            )
        self._lib.udfref_mpfr_version.restype = ctypes.c_char_p
        name = self._lib.udfref_name
        name.restype = ctypes.c_char_p
        #: torch's names, in the order of reference.h.
        self.functions = tuple(
            text.decode()
            for text in itertools.takewhile(lambda text: text, map(name, itertools.count()))
        )
        self._lib.udfref_mpfr.argtypes = (ctypes.c_int32, ctypes.c_int64, *(ctypes.c_void_p,) * 3)
        self._lib.udfref_mpfr.restype = None
        self._lib.udfref_check.argtypes = (
            ctypes.POINTER(CheckJob),
            ctypes.POINTER(Outcome),
            *(ctypes.c_void_p,) * 2,
        )
        self._lib.udfref_run.argtypes = (ctypes.POINTER(CheckJob), *(ctypes.c_void_p,) * 2)

    @property
    def mpfr_version(self) -> str:
        """Version of the MPFR that the checker runs with."""
        version: bytes = self._lib.udfref_mpfr_version()
        return version.decode()

    def number(self, function: str) -> int:
        """Return the number of a function in reference.h.

        Raises:
            PackageMissingError: no reference knows the function.
        """
        if function not in self.functions:
            raise PackageMissingError(
                f"There is no reference for {function!r}. {nearest(function, self.functions)}"
            )
        return self.functions.index(function)

    def mpfr(self, function: str, *arguments: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the correctly rounded float32 results, by MPFR's C library."""
        columns = [np.ascontiguousarray(a, dtype=np.float32) for a in arguments]
        out = np.empty_like(columns[0])
        first, last = columns[0].ctypes.data, columns[-1].ctypes.data
        self._lib.udfref_mpfr(self.number(function), out.size, first, last, out.ctypes.data)
        return out

    def check(
        self, job: CheckJob, outputs: npt.NDArray[np.uint32], normals: npt.NDArray[np.uint32]
    ) -> Outcome:
        """Run the candidate and judge it; fill both arrays (see reference.h)."""
        outcome = Outcome()
        structures = ctypes.byref(job), ctypes.byref(outcome)
        _raise(self._lib.udfref_check(*structures, outputs.ctypes.data, normals.ctypes.data))
        return outcome

    def run(
        self, job: CheckJob, outputs: npt.NDArray[np.uint32], normals: npt.NDArray[np.uint32]
    ) -> None:
        """Run the candidate without judging it; fill both arrays."""
        _raise(self._lib.udfref_run(ctypes.byref(job), outputs.ctypes.data, normals.ctypes.data))


def _raise(error: int) -> None:
    if error == 1:
        raise MemoryError("the checker could not allocate its blocks")
    if error == 2:
        raise NativeError(
            "This processor lacks the vector registers of this form. Choose another --form or "
            "--cpu-level."
        )


def checker_file() -> Path:
    """Build the checker and return its path.

    Raises:
        PackageMissingError: no C compiler, or no libmpfr-dev.
        NativeError, CacheError: see ``compile_shared``.
    """
    if (shipped := shipped_build(_open_checker(ABSENT))) is not None:
        return shipped.path
    sources, flags, libraries = _CHECKER
    return compile_shared("udfref", _own_sources(*sources), flags, ("-lmpfr", "-lgmp", *libraries))


_CHECKER: Final = (("check.c", "pairs.c", "mpfr.c", "composites.c"), ("-Wall", "-Wextra"), ("-lm",))


def _open_checker(compiler: Compiler) -> Job:
    """Return the job of the checker that is shipped, which calls whichever MPFR is loaded."""
    sources, flags, libraries = _CHECKER
    return _shared_job("udfref", _own_sources(*sources), flags, libraries, {}, compiler)


def available_checker() -> str:
    """Return where ``checker_file`` would get the checker; see ``job.available``.

    Raises:
        PackageMissingError: nowhere, or MPFR is missing.
    """
    load_mpfr()
    if shipped_build(_open_checker(ABSENT)) is not None:
        return "shipped"
    names, flags, libraries = _CHECKER
    every = ("-lmpfr", "-lgmp", *libraries, "-Wl,-z,defs")
    job = functools.partial(_shared_job, "udfref", _own_sources(*names), flags, every, {})
    return available(job, _compiler, "UDFTORCH_CC")


def make_open_checker() -> None:
    """Make the checker that is shipped.

    Raises:
        As :func:`checker_file`.
    """
    compile_job(_open_checker(_compiler()))


@functools.cache
def load_mpfr() -> None:
    """Load MPFR, the system's or the one in gmpy2's wheel, for the checker to call.

    Raises:
        PackageMissingError: neither is there.
    """
    inside = importlib.util.find_spec("gmpy2")
    homes = [Path(inside.origin).parent.parent] if inside and inside.origin else []
    bundled = [str(p) for home in homes for p in sorted(home.glob("gmpy2.libs/libmpfr*.so*"))]
    for name in ("libmpfr.so.6", *bundled):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return
    raise PackageMissingError(
        "GNU MPFR, which decides every disagreement, is not installed. Install gmpy2, whose wheel "
        "brings it (pip install gmpy2), or the package libmpfr6."
    )


def generator() -> Inputs:
    """Build and load the generator of inputs alone, which needs no MPFR.

    Raises:
        PackageMissingError: no C compiler.
        NativeError, CacheError: see ``compile_shared``.
    """
    return Inputs(compile_shared("udfref-inputs", _own_sources("pairs.c"), ("-Wall",), ()))


@functools.cache
def load_checker(path: Path) -> Checker:
    """Load a checker once per process."""
    return Checker(path)


# LLVM-libc ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LlvmLibc:
    """LLVM-libc's functions behind array wrappers.

    Attributes:
        path: the shared library.
        version: of LLVM-libc, such as ``22.1.8``.
        functions: torch's names of the functions that the archive holds.
    """

    path: Path
    version: str
    functions: tuple[str, ...]


def _archives() -> list[tuple[int, Path]]:
    named = os.environ.get("UDFTORCH_LLVMLIBC")
    if named:
        return [(OLDEST_LLVMLIBC, Path(named))]
    found = []
    for path in LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a"):
        match = re.search(r"llvm-(\d+)", str(path))
        if match and int(match[1]) >= OLDEST_LLVMLIBC:
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def llvmlibc() -> LlvmLibc:
    """Wrap the newest LLVM-libc archive that is installed.

    ``UDFTORCH_LLVMLIBC`` names another one.

    Raises:
        PackageMissingError: it is not installed.
        NativeError: it cannot be wrapped.
    """
    archives = _archives()
    if not archives or not archives[0][1].is_file():
        raise PackageMissingError(
            "There is no archive libllvmlibc.a of LLVM-libc at "
            f"{archives[0][1] if archives else f'{LLVM_FOLDERS}/llvm-*/lib'}. Install the "
            f"package {' or '.join(LLVMLIBC_PACKAGES)}, set UDFTORCH_LLVMLIBC to the archive, "
            "or choose another --reference."
        )
    return _wrap(archives[0][1])


@functools.cache
def _wrap(archive: Path) -> LlvmLibc:
    from pytest_udftorch.swap.library.symbols import FUNCTIONS

    content = archive.read_bytes()
    start = re.search(rb"(_ZN\d+__llvm_libc_([0-9_]+?)_)4expfEf", content)
    if start is None:
        raise NativeError(
            f"{archive} holds no expf of LLVM-libc; it is not the archive of "
            f"{LLVMLIBC_PACKAGES[0]}."
        )
    namespace = start[1].decode()
    wrappers = []
    functions = []
    for name, function in FUNCTIONS.items():
        mangled = f"{namespace}{len(name) + 1}{name}fE{'f' * function.arity}"
        # The symbol ends here: powfEff is not powfEf.
        if re.search(rb"\0" + re.escape(mangled.encode()) + rb"\0", content):
            functions.append(name)
            wrappers.append(f'WRAP_{function.arity}({name}, "{len(name) + 1}")')
    path = compile_shared(
        "udfref-llvmlibc",
        _own_sources("llvmlibc.c"),
        (f'-DNAMESPACE="{namespace}"', f"-DWRAPPERS={' '.join(wrappers)}"),
        # libc and libm come first, so that the linker takes only the mangled names from the
        # archive, which defines memcpy and expf as well.
        ("-Wl,--no-as-needed", "-lc", "-lm", "-Wl,--exclude-libs,ALL", str(archive)),
    )
    version = start[2].decode().strip("_").replace("_", ".")
    return LlvmLibc(path, version, tuple(functions))
