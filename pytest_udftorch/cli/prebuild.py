# SPDX-License-Identifier: Apache-2.0
"""Making builds before they are needed: all that is shipped in a wheel, or what one machine needs.

    python -m pytest_udftorch.cli.prebuild --out FOLDER [--torch FOLDER ...] [--libdevice FILE ...]

writes a store (see ``swap.toolchain.wheel_builds``) of everything that a wheel holds. Each
``--torch`` names a folder with the headers of one torch, whose observer, gate, recorder and
switchboard are added: ``include`` and ``version.py`` of its wheel. Each ``--libdevice`` names the
``libdevice.10.bc`` of a triton, into which the functions for GPUs are put.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import UdfError
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt

#: The libraries that are shipped built: all that the package holds, but for the stock functions.
LIBRARIES: Final = (
    "corem", "corem-composites", "corem-ff", "corem-d", "canary", "canary-composites", "canary-d",
    "repro", "stochastic",
    "ladder-8", "ladder-10", "ladder-12", "ladder-16", "ladder-20",
    "format-bfloat16", "format-e4m3", "format-e5m2", "format-half",
    "format-posit16",
)  # fmt: skip

Task = tuple[str, Callable[[], Any]]


def tasks(levels: Iterable[str], libraries: Iterable[str] = LIBRARIES) -> Iterator[Task]:
    """Yield what libraries need on CPUs: the text for a progress line, and how to make it."""
    from pytest_udftorch.swap.contract.native import contract_job
    from pytest_udftorch.swap.cpu.loops import loops_job
    from pytest_udftorch.swap.toolchain.compiler import find_compiler
    from pytest_udftorch.swap.toolchain.job import obtain
    from pytest_udftorch.swap.toolchain.shared_library import build_library
    from pytest_udftorch.swap.toolchain.watchers import obtain_for_forms, watch

    levels = tuple(levels)
    for level in levels:
        for library in libraries:
            for profiled in (False, True):
                text = f"{library} for {level}{', counting' if profiled else ''}"
                yield text, functools.partial(build_library, library, level, profiled=profiled)
        yield (
            f"the functions that watch the stock ones, for {level}",
            functools.partial(watch, (), level),
        )
        yield (
            f"the functions that watch those without clang, for {level}",
            functools.partial(obtain_for_forms, level),
        )
        yield (
            f"the loops of CPU operators, for {level}",
            functools.partial(obtain, functools.partial(loops_job, level), find_compiler),
        )
        yield (
            f"the sums and products of the contract, for {level}",
            functools.partial(obtain, functools.partial(contract_job, level), find_compiler),
        )


def torch_tasks(package: Path, local: Any) -> Iterator[Task]:
    """Yield what is compiled against the headers of a torch, which lie in a folder."""
    from pytest_udftorch.swap.contract.kernels import KERNELS
    from pytest_udftorch.swap.counting.observer import OBSERVER
    from pytest_udftorch.swap.observe.native_recorder import RECORDER
    from pytest_udftorch.swap.overrides.switchboard import SWITCHBOARD
    from pytest_udftorch.swap.session.exclusive import GATE
    from pytest_udftorch.swap.toolchain.compiler import find_compiler
    from pytest_udftorch.swap.toolchain.job import obtain

    version = str(runpy.run_path(str(package / "version.py"))["__version__"])
    for part in (OBSERVER, GATE, RECORDER, SWITCHBOARD, KERNELS):
        job = functools.partial(part.job, package, version, local)
        yield f"{part.what} for torch {version}", functools.partial(obtain, job, find_compiler)


def verify_tasks(levels: Iterable[str]) -> Iterator[Task]:
    """Yield what ``udftorch verify`` needs for corem."""
    from pytest_udftorch.prove.verify.candidate_search import Request, find_candidate
    from pytest_udftorch.prove.verify.reference import checker
    from pytest_udftorch.swap.library.description import find_library

    yield "the checker", checker.make_open_checker
    yield "the generator of inputs", checker.generator
    for level in levels:
        for function in find_library("corem").function_names:
            request = Request(cpu_level=level)
            yield (
                f"the count of hard inputs of {function} for {level}",
                functools.partial(find_candidate, "corem", function, request),
            )


def composites_task(library: str) -> Task:
    """Return how to make a library's activations for GPUs, as a session asks for all of them."""
    from pytest_udftorch.swap.cuda.launcher import for_gpus
    from pytest_udftorch.swap.library.description import find_library
    from pytest_udftorch.swap.toolchain.libdevice import composites_for
    from pytest_udftorch.swap.toolchain.selection import Part
    from pytest_udftorch.swap.toolchain.shared_library import Build

    found = find_library(library)
    part = Part(Build(found, "baseline", "", Path(), 0.0), tuple(sorted(found.functions)))
    return f"{library} for GPUs", functools.partial(composites_for, for_gpus((part,)))


def cuda_task(stock: Path) -> Task:
    """Return how to make the functions for GPUs beside a triton's ``libdevice.10.bc``."""
    from pytest_udftorch.swap.toolchain.libdevice import make_pack

    return "the functions for GPUs", functools.partial(make_pack, stock)


def for_this_machine(libraries: Iterable[str]) -> list[Task]:
    """Return what sessions and profiles need here: this CPU's level, the installed torch."""
    from pytest_udftorch.base.compat import import_torch
    from pytest_udftorch.swap.contract.kernels import KERNELS
    from pytest_udftorch.swap.counting.observer import OBSERVER
    from pytest_udftorch.swap.library.description import find_library
    from pytest_udftorch.swap.observe.native_recorder import RECORDER
    from pytest_udftorch.swap.overrides.switchboard import SWITCHBOARD
    from pytest_udftorch.swap.session.exclusive import GATE
    from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

    import_torch()
    built = [name for name in libraries if find_library(name).functions]
    wanted = list(tasks((resolve_cpu_level(None),), built))
    parts = [OBSERVER, GATE, RECORDER, SWITCHBOARD, KERNELS]
    return wanted + [(f"{part.what} for the installed torch", part.obtain) for part in parts]


def run(wanted: Sequence[Task]) -> None:
    """Run tasks one after the other, each of which uses all cores, and say which."""
    for number, (text, make) in enumerate(wanted, start=1):
        print(f"[{number}/{len(wanted)}] {text}", file=sys.stderr, flush=True)
        make()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a store of all that is shipped."""
    from pytest_udftorch.swap.library.symbols import CPU_LEVELS
    from pytest_udftorch.swap.toolchain.compiler import for_other_machines

    parser = argparse.ArgumentParser(
        prog="python -m pytest_udftorch.cli.prebuild", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--torch", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--libdevice", type=Path, action="append", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        wanted = [*tasks(CPU_LEVELS), *verify_tasks(CPU_LEVELS)]
        wanted.append(composites_task("corem-composites"))
        for package in options.torch:
            wanted += torch_tasks(package, "shipped")
        wanted += [cuda_task(stock) for stock in options.libdevice]
        with prebuilt.recording(), for_other_machines():
            run(wanted)
            print(f"{options.out}: {prebuilt.export(options.out)} builds")
    except UdfError as error:
        print(f"prebuild: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
