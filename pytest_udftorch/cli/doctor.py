# SPDX-License-Identifier: Apache-2.0
"""What works here, and why something does not: ``udftorch doctor``.

Everything is looked up as the package itself would do it, and what takes seconds is tried: small
texts are compiled in a temporary folder, a finished library is swapped in, a kernel is launched.
What takes longer, such as compiling a library, is only looked up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata, util
from typing import Any, Final

import pytest_udftorch
from pytest_udftorch.cli.status import FAILED, Subparsers
from pytest_udftorch.errors import NativeError, RestoreError, UdfError

#: Packages that parts of this one need, and what for.
PACKAGES: Final = {
    "torch": "everything but verifying libraries in C",
    "triton": "functions on GPUs, and torch.compile for them",
    "numpy": "profiles, and udftorch verify",
    "pandas": "tables of profiles as data frames",
    "pyarrow": "profiles as Parquet",
    "gmpy2": "udftorch verify: the reference that decides",
    "dask": "udftorch verify in several processes",
    "numba": "UDFs written in Python",
    "pytest-xdist": "tests in several processes",
}

#: Where a build comes from -> words.
_WAYS: Final = {
    "shipped": "built already, in the package",
    "cached": "built already, in the cache",
    "compiler": "compiled when it is first used",
}

Check = tuple[str, Callable[[], str]]


def add(commands: Subparsers) -> None:
    """Add ``udftorch doctor``."""
    parser = commands.add_parser(
        "doctor",
        help="say what works here, what does not, and why",
        description="Shows versions, the CPU, compilers, the cache, and what works here, for a bug "
        "report. To find out, it compiles and runs small programs, which takes seconds.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, waits="looking at this machine")


def run(options: argparse.Namespace) -> int:
    """Print what was found; the status is 1 if functions cannot be swapped."""
    found = facts()
    print(json.dumps(found, indent=1) if options.json else text(found))
    return 0 if found["works"][0]["works"] else FAILED


def facts() -> dict[str, Any]:
    """Return versions, machine, compilers, cache and what works as JSON; no host name."""
    return {
        "pytest_udftorch": pytest_udftorch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "libc": " ".join(platform.libc_ver()),
        "cpu": _cpu(),
        "torch": _torch(),
        "compilers": {"clang": _reason(_clang), "C": _reason(_c_compiler)},
        "shipped": _shipped(),
        "cache": _reason(_cache),
        "packages": {name: _version(name) for name in PACKAGES},
        "works": [_outcome(what, check) for what, check in checks()],
    }


def _reason(look: Callable[[], Any]) -> Any:
    """Return what a function returns, or ``{"error": why}``."""
    try:
        return look()
    except (UdfError, OSError) as error:
        return {"error": str(error)}


def _outcome(what: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"what": what, "works": True, "how": check()}
    except (UdfError, OSError, ImportError) as error:
        return {"what": what, "works": False, "why": str(error)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    from pytest_udftorch.swap.native.machine import cpu_model
    from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

    return {
        "model": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "level": _reason(lambda: resolve_cpu_level(None)),
    }


def _torch() -> dict[str, Any]:
    from pytest_udftorch.base.compat import TORCH_SEEN, torch_summary

    def look() -> dict[str, Any]:
        version, capability = torch_summary()
        import torch

        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"version": version, "kernels": capability, "gpus": gpus, "tested": TORCH_SEEN}

    found: dict[str, Any] = _reason(look)
    return found


def _clang() -> dict[str, str]:
    from pytest_udftorch.swap.toolchain.compiler import find_compiler

    compiler = find_compiler()
    return {"path": str(compiler.path), "version": compiler.version}


def _c_compiler() -> dict[str, str] | None:
    from pytest_udftorch.swap.toolchain.compiler import find_c_compiler

    compiler = find_c_compiler()
    if compiler is None:
        return None
    return {"path": str(compiler.path), "version": compiler.version}


def _shipped() -> list[dict[str, Any]]:
    from pytest_udftorch.swap.toolchain import wheel_builds

    found = []
    for store in wheel_builds.stores():
        builds = _reason(lambda: len(wheel_builds.contents(store)))  # noqa: B023
        found.append({"folder": str(store), "builds": builds})
    return found


def _cache() -> dict[str, Any]:
    from pytest_udftorch.swap.toolchain import cache

    root = cache.cache_folder()
    stored = cache.builds(root) if root.is_dir() else []
    place = root
    while not place.exists():
        place = place.parent
    return {
        "folder": str(root),
        "builds": len(stored),
        "bytes": sum(build.bytes for build in stored),
        "limit_bytes": round(cache.limit()),
        "writable": os.access(place, os.W_OK),
    }


# What works --------------------------------------------------------------------------


def checks() -> Iterator[Check]:
    """Yield what somebody may want to do, and a function that says how it works here.

    The function raises an error if it does not work; its message says why and what to do.
    """
    yield "swap functions on the CPU: patched, --udf-lib", _swap
    yield "profile: --udf-profile", _profile
    yield "exclusive sessions: patched(exclusive=True)", _exclusive
    yield "functions on GPUs, in Triton and in torch.compile for them", _gpu
    yield "override operators: the switchboard", _operators
    yield "record and diff without Python at each operator (otherwise through Python)", _recorder
    yield "torch.compile on the CPU inside a session", _inductor
    yield "libraries of your own in C", _own_c
    yield "operators of your own in C++", _own_operators
    yield "libraries of your own in Python", _numba
    yield "udftorch verify", _verify
    yield "udftorch patch", _own_c


def _swap() -> str:
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.toolchain.shared_library import available_library

    torch = import_torch()
    way = available_library("corem")
    if way == "compiler":
        _own_c()
        return f"corem is {_WAYS[way]}, which takes about a minute"
    if _compiles(_operators):
        return f"corem is {_WAYS[way]}; what overrides operators is {_WAYS['compiler']}"
    from pytest_udftorch.swap.session.session import patched

    x = torch.linspace(-1, 1, 64)
    before = torch.exp(x)
    with patched("corem", functions=("exp",)):
        torch.exp(x)
    if not torch.equal(torch.exp(x), before):
        raise RestoreError("After a session torch.exp gives different results than before it.")
    return f"corem is {_WAYS[way]}; its exp was swapped in and out"


def _profile() -> str:
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.counting.observer import OBSERVER
    from pytest_udftorch.swap.toolchain.shared_library import available_library

    import_torch()
    _need("numpy")
    ways = {available_library("corem", profiled=True), OBSERVER.available()}
    return _WAYS["compiler" if "compiler" in ways else min(ways)]


def _exclusive() -> str:
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.session.exclusive import GATE

    import_torch()
    return _WAYS[GATE.available()]


def _gpu() -> str:
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.compiled.triton import stock_libdevice
    from pytest_udftorch.swap.cuda.launcher import wake_triton
    from pytest_udftorch.swap.toolchain.libdevice import available_for_gpus
    from pytest_udftorch.swap.toolchain.shared_library import available_library

    _need("triton")
    torch = import_torch()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        wake_triton()
    spec = util.find_spec("triton")
    assert spec is not None
    way = available_for_gpus(stock_libdevice(spec.origin or ""))
    if not has_gpu:
        return f"corem is {_WAYS[way]}; there is no GPU to try it on"
    if "compiler" in (way, available_library("corem")) or _compiles(_operators):
        return f"Triton starts; corem is {_WAYS['compiler']}"
    from pytest_udftorch.swap.session.session import patched

    x = torch.linspace(-1, 1, 64)
    with patched("corem", functions=("exp",)):
        same = torch.equal(torch.exp(x.cuda()).cpu(), torch.exp(x))
    if not same:
        raise NativeError("Under corem, exp gives different results on the GPU than on the CPU.")
    return f"corem is {_WAYS[way]}; its exp on the GPU has the bits of the CPU's"


def _compiles(*checks: Callable[[], str]) -> bool:
    """Say whether opening a session would compile one of these parts."""
    return any(_outcome("", one).get("how") == _WAYS["compiler"] for one in checks)


def _operators() -> str:
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.contract.kernels import KERNELS
    from pytest_udftorch.swap.overrides.switchboard import SWITCHBOARD

    import_torch()
    ways = {SWITCHBOARD.available(), KERNELS.available()}
    return _WAYS["compiler" if "compiler" in ways else min(ways)]


def _recorder() -> str:
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.observe.native_recorder import RECORDER

    import_torch()
    return _WAYS[RECORDER.available()]


def _inductor() -> str:
    from pytest_udftorch.swap.toolchain.compiler import check_openmp, find_compiler

    compiler = find_compiler()
    check_openmp(compiler)
    return f"{compiler.path} compiles and links what includes omp.h"


def _own_c() -> str:
    """Compile and link a function of one line as that of a library is."""
    from pytest_udftorch.swap.toolchain.compiler import FLAGS, LINK_FLAGS, find_compiler, tries

    compiler = find_compiler()
    text = "#include <math.h>\nfloat udf_expf(float x) { return 1 + x * fabsf(x); }\n"
    needs = (
        f"A function in C does not compile with the pass plugin. Install the packages "
        f"clang-{compiler.major}, llvm-{compiler.major}-dev and lld-{compiler.major}."
    )
    tries(compiler, text, "c", (*FLAGS, *compiler.plugin_flags, *LINK_FLAGS), needs)
    return f"{compiler.path} compiles and links one"


def _own_operators() -> str:
    """Compile what includes the headers of Python, of torch, and of C++."""
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.toolchain.compiler import find_compiler, torch_flags, tries

    import_torch()
    compiler, (flags, _) = find_compiler(), torch_flags()
    text = "#include <Python.h>\n#include <vector>\n#include <c10/core/ScalarType.h>\n"
    needs = "C++ beside torch does not compile. Install the packages g++ and python3-dev."
    flags = ["--driver-mode=g++", "-std=c++20", *flags, "-fsyntax-only"]
    tries(compiler, text, "cpp", flags, needs)
    return f"{compiler.path} reads the headers of C++, Python and torch"


def _numba() -> str:
    from pytest_udftorch.swap.toolchain.llvmlite_forms import binding

    _need("numba")
    import numba

    add = numba.cfunc("float32(float32)")(lambda x: x + x)
    if add.ctypes(1.5) != 3.0:
        raise NativeError("Numba compiles x + x to something else. Reinstall numba and llvmlite.")
    try:
        _own_c()
        return "Numba compiles one, and clang the forms around it"
    except UdfError:
        binding()
        return "Numba compiles one, and llvmlite, which it brings, its forms"


def _verify() -> str:
    from pytest_udftorch.prove.verify.reference import checker
    from pytest_udftorch.prove.verify.reference.checker import Checker
    from pytest_udftorch.swap.toolchain.compiler import find_c_compiler, tries

    for name in ("numpy", "gmpy2"):
        _need(name)
    way = checker.available_checker()
    if way == "compiler":
        compiler = find_c_compiler()
        assert compiler is not None  # or it would not be available
        text = "#include <mpfr.h>\nint main(void) { return mpfr_buildopt_tls_p() < 0; }\n"
        needs = "The checker does not compile. Install the packages libmpfr-dev and libgmp-dev."
        tries(compiler, text, "c", ("-lmpfr", "-lgmp"), needs)
        return f"the checker is {_WAYS[way]}"
    Checker(checker.checker_file())
    return f"the checker is {_WAYS[way]}, and loads"


def _need(package: str) -> None:
    if util.find_spec(package) is None:
        raise ImportError(
            f"{package} is not installed: it is needed for {PACKAGES[package]}. Install it: pip "
            f"install {package}"
        )


# Text --------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    """Return the facts as lines to read."""
    cpu, cache = found["cpu"], found["cache"]
    lines = [
        f"pytest_udftorch {found['pytest_udftorch']}, Python {found['python']}, {found['libc']}, "
        f"{found['system']}",
        f"CPU: {cpu['model']}, {cpu['cores']} cores, level {_said(cpu['level'])}",
        f"torch: {_torch_said(found['torch'])}",
        *(f"{name} compiler: {_said(c)}" for name, c in found["compilers"].items()),
        *(f"shipped: {_said(s['builds'])} builds in {s['folder']}" for s in found["shipped"]),
        f"cache: {_said(cache)}",
        "packages: " + ", ".join(f"{n} {v or '-'}" for n, v in found["packages"].items()),
        "",
    ]
    for entry in found["works"]:
        mark = "works" if entry["works"] else "does not work"
        lines.append(f"{mark}: {entry['what']}")
        lines.append(f"    {entry.get('how') or entry['why']}")
    return "\n".join(lines)


def _torch_said(torch: Mapping[str, Any]) -> str:
    if "error" in torch:
        return str(torch["error"])
    gpus = ", ".join(torch["gpus"]) or "no GPU"
    return f"{torch['version']}, {torch['kernels']} kernels, {gpus}; tried with {torch['tested']}"


def _said(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        if "error" in value:
            return str(value["error"])
        if "bytes" in value:
            return (
                f"{value['builds']} builds, {value['bytes'] / 2**20:.1f} of "
                f"{value['limit_bytes'] / 2**20:.0f} MiB, in {value['folder']}"
                f"{'' if value['writable'] else ', which cannot be written'}"
            )
        return ", ".join(_said(v) for v in value.values() if v not in ([], ""))
    return ", ".join(value) if isinstance(value, list) else str(value)
