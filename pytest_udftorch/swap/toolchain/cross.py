# SPDX-License-Identifier: Apache-2.0
"""UDF libraries for another processor, compiled on this one.

The sources, the passes and the flags are those of ``shared``, apart from the CPU level. Such a
library cannot be loaded here; an emulator or another machine can.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from pytest_udftorch import errors
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.library.symbols import (
    FUNCTIONS,
    PROCESSORS,
    forms,
    processor_of,
    this_processor,
)
from pytest_udftorch.swap.toolchain.compiler import LINK_FLAGS, Compiler, find_compiler, run, tool
from pytest_udftorch.swap.toolchain.job import compile_job
from pytest_udftorch.swap.toolchain.shared_library import Build, library_job

#: Where Debian's package ``libc6-dev-arm64-cross`` lies.
SYSROOTS: Final = {"aarch64": Path("/usr/aarch64-linux-gnu")}


def cross_library(
    which: str | Path | UdfLibrary, cpu_level: str, sysroot: Path | None = None
) -> Build:
    """Compile a UDF library for another processor, or take it from the cache.

    Args:
        which: the library, its name, or its folder.
        cpu_level: a level of the other processor: ``neon`` for aarch64.
        sysroot: folder with ``include`` and ``lib`` of its C library; by default that of Debian's
            cross packages.

    Returns:
        The build. Its ``load`` fails on this processor.

    Raises:
        CpuLevelError: no other processor has the level, or its C library is not there.
        Others: as ``build_library``.
    """
    levels = [n for p in PROCESSORS.values() if p is not this_processor() for n in p.cpu_levels]
    if cpu_level not in levels:
        raise errors.CpuLevelError(
            f"No other processor has the CPU level {cpu_level!r}. There are: {', '.join(levels)}. "
            "For a level of this CPU use build_library."
        )
    name = processor_of(cpu_level).name
    sysroot = sysroot or SYSROOTS[name]
    library, compiler = find_library(which), find_compiler()
    if library.stock:
        raise errors.UnknownFunctionError(
            f"UDF library {library.name!r} stands for the stock functions: there is nothing to "
            "build. Choose another library."
        )
    libraries = [sysroot / "lib" / file for file in ("libm.so.6", "libc.so.6")]
    missing = [p for p in (sysroot / "include" / "math.h", *libraries) if not p.is_file()]
    if missing:
        raise errors.CpuLevelError(
            f"There is no {missing[0]}, which a build for {cpu_level!r} needs. Install the C "
            f"library of {name} (Debian: libc6-dev-arm64-cross), or name its folder."
        )
    job = library_job(
        library,
        cpu_level,
        compiler,
        more=("-isystem", str(sysroot / "include")),
        # clang's driver would ask for the files of a cross GCC.
        link=(
            f"--target={name}-linux-gnu",
            "-nostdlib",
            *(f for f in LINK_FLAGS if f != "-lm"),
            *map(str, libraries),
        ),
        check=functools.partial(_check, library, cpu_level, compiler),
    )
    made = compile_job(job)
    return Build(library, cpu_level, made.build_id, made.path, made.facts["seconds"])


def _check(library: UdfLibrary, level: str, compiler: Compiler, output: str, folder: Path) -> None:
    """Refuse a build in which a form is missing."""
    said = run((tool(compiler, "llvm-nm"), "-D", "--defined-only", folder / output)).stdout
    have = {line.split()[-1] for line in said.splitlines()}
    for name, dtype in library.functions:
        for form in forms(dtype, level):
            if FUNCTIONS[name].export(dtype, form) not in have:
                raise errors.SourceError(
                    f"The build of {library.name!r} lacks {FUNCTIONS[name].export(dtype, form)}: "
                    "the pass udf-widen did not run. Reinstall pytest_udftorch, whose plugin is "
                    "incomplete."
                )
