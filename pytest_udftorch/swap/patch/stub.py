# SPDX-License-Identifier: Apache-2.0
"""The shared objects of a patch: stand-ins for libtorch's own, and the table they bind by.

A stand-in has the SONAME of the object that it stands for, and needs the original by an absolute
path; native/c/patch.c says why that works. The linker records the SONAME of what it links
with, so each original is represented by an empty library whose SONAME is the original's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_udftorch.errors import SourceError
from pytest_udftorch.swap.library.description import UdfLibrary
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, FUNCTIONS, SINCOS
from pytest_udftorch.swap.native.runtime import native_file
from pytest_udftorch.swap.session.binder import TORCH_OBJECTS
from pytest_udftorch.swap.toolchain.compiler import find_compiler
from pytest_udftorch.swap.toolchain.job import Step, run_stages
from pytest_udftorch.swap.toolchain.shared_library import Build

#: The object that every user of libtorch loads, and whose stand-in binds them all.
MAIN: Final = "libtorch_cpu.so"
#: Objects that a program may load later; libtorch_cpu.so itself needs libc10.so.
LATER: Final = tuple(o for o in TORCH_OBJECTS if o not in (MAIN, "libc10.so"))

_FLAGS: Final = ("-std=gnu17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections")
#: Without the version script the program's own ``udfrt_*``, where a session has loaded them,
#: would be interposed. DT_RPATH, unlike DT_RUNPATH, precedes LD_LIBRARY_PATH.
_LINK: Final = (
    "-shared",
    "-fuse-ld=lld",
    "-s",
    "-Wl,--gc-sections",
    "-Wl,--no-as-needed",
    "-Wl,--disable-new-dtags",
    "-Wl,-z,nodelete",
    "-Wl,--version-script=exports.map",
    "-Wl,-rpath,$ORIGIN",
)
_EXPORTS: Final = "{ global: udfpatch_*; local: *; };\n"


def symbols(library: UdfLibrary, functions: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return symbol of libtorch -> (the form's name in a build, ``float32 exp``)."""
    found = {}
    for name, dtype in library.functions:
        if name in functions:
            for form, names in FUNCTIONS[name].symbols(dtype).items():
                export = FUNCTIONS[name].export(dtype, form)
                found.update(dict.fromkeys(names, (export, f"{dtype} {name}")))
    if {"sin", "cos"} <= set(functions):
        for dtype, name in SINCOS.items():
            if {("sin", dtype), ("cos", dtype)} <= set(library.functions):
                found[name] = (f"__udf_{name}", f"{dtype} sin")
    return found


def _table(
    library: UdfLibrary, functions: Sequence[str], builds: Sequence[Build], original: Path
) -> str:
    """Return patch_table.h."""
    bound = symbols(library, functions)
    groups = list(dict.fromkeys(group for _, group in bound.values()))
    levels = [
        f"{{{_c_string(b.cpu_level)}, {CPU_LEVELS[b.cpu_level][1]}, "
        f"{CPU_LEVELS[b.cpu_level][2]}, {_c_string(b.path.name)}}}"
        for b in builds
    ]
    return "\n".join(
        (
            f"static const char Title[] = {_c_string(f'{library.name} {library.version}')};",
            f"static const char Original[] = {_c_string(os.fspath(original))};",
            f"static const long long OriginalSize = {original.stat().st_size};",
            _array("struct level Levels", levels),
            _array("char *const ObjectNames", map(_c_string, TORCH_OBJECTS)),
            _array("char *const GroupNames", map(_c_string, groups)),
            _array("char *const SymbolNames", map(_c_string, bound)),
            _array("char *const ExportNames", (_c_string(e) for e, _ in bound.values())),
            _array("unsigned Groups", (str(groups.index(g)) for _, g in bound.values())),
            "",
        )
    )


def _array(what: str, items: Iterable[str]) -> str:
    return f"static const {what}[] = {{{', '.join(items)}}};"


def _c_string(text: str) -> str:
    """Return a C string literal of any text or path."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
        for byte in os.fsencode(text)
    )
    return f'"{"".join(plain)}"'


def make_stubs(
    library: UdfLibrary,
    functions: Sequence[str],
    builds: Sequence[Build],
    originals: Mapping[str, Path],
    folder: Path,
) -> None:
    """Compile the stand-ins into a folder that holds nothing else.

    Args:
        library: what is bound.
        functions: torch's names of its functions.
        builds: one for each CPU level, the least capable first.
        originals: name of each object to stand in for -> its absolute path.
        folder: gets a file for each of ``originals``.

    Raises:
        SourceError: they do not compile.
        CompilerNotFoundError: see ``toolchain.find_compiler``.
    """
    clang = find_compiler().path
    texts = {
        "patch_table.h": _table(library, functions, builds, originals[MAIN]),
        "exports.map": _EXPORTS,
        "empty.c": "",
    }
    compiled = [_compile(clang, native_file(f"{n}.c")) for n in ("patch", "udfrt", "names")]
    empty = _compile(clang, folder / "empty.c")
    linked, later, stubs = [], [], []
    for name, path in originals.items():
        linked.append(_link(clang, f"original-{name}", os.fspath(path), "empty.o"))
        if name == MAIN:
            objects: tuple[str, ...] = ("patch.o", "udfrt.o", "names.o")
        else:
            defines = (f"-DObject={_c_string(name)}", f"-DOriginal={_c_string(os.fspath(path))}")
            later.append(_compile(clang, native_file("patch_later.c"), f"{name}.o", *defines))
            objects = (f"{name}.o", f"./{MAIN}")
        stubs.append(_link(clang, name, name, *objects, f"./original-{name}", "-ldl"))
    stages = ([*compiled, empty, *later], linked, stubs[:1], stubs[1:])
    run_stages(stages, texts, folder, _failed)
    for path in folder.iterdir():
        if path.name not in originals:
            path.unlink()


def _compile(clang: Path, source: Path, output: str = "", *flags: str) -> Step:
    output = output or f"{source.stem}.o"
    return Step(clang, (*_FLAGS, *flags, "-I.", "-c", str(source), "-o", output), source)


def _link(clang: Path, output: str, soname: str, *inputs: str) -> Step:
    # -Xlinker, because a path may hold a comma.
    return Step(clang, (*_LINK, "-Xlinker", "-soname", "-Xlinker", soname, *inputs, "-o", output))


def _failed(step: Step, message: str) -> SourceError:
    return SourceError(
        f"The stand-ins of a patch do not {'compile' if step.source else 'link'}:\n{message}\n"
        "Install clang and lld of LLVM's packages, or reinstall pytest_udftorch."
    )
