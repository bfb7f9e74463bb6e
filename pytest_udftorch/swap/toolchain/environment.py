# SPDX-License-Identifier: Apache-2.0
"""What a stored measurement says of the place where it was made: machine, versions, flags."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from typing import Any

from pytest_udftorch.base.compat import torch_summary
from pytest_udftorch.base.package import version
from pytest_udftorch.swap.native.machine import cpu_model


def machine(**more: object) -> dict[str, Any]:
    """Return the CPU, what torch uses of it, and what the caller adds."""
    # CPUs of one name may differ in capability, and torch's kernels with it.
    return {"cpu": cpu_model(), **more, "torch_capability": torch_summary()[1]}


def versions() -> dict[str, str]:
    """Return the versions of Python and torch."""
    return {"python": platform.python_version(), "torch": torch_summary()[0]}


def describe() -> dict[str, Any]:
    """Return machine, versions, flags and date as one JSON object; no host name.

    Imports torch. ``flags`` are those that UDF libraries are compiled with.

    Raises:
        TorchNotFoundError, CompilerNotFoundError: as from a session.
    """
    from pytest_udftorch.swap.library.symbols import CPU_LEVELS
    from pytest_udftorch.swap.toolchain.compiler import FLAGS, find_compiler, resolve_cpu_level

    level = resolve_cpu_level(None)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(cores=len(os.sched_getaffinity(0)), cpu_level=level),
        "versions": {
            "pytest_udftorch": version(),
            **versions(),
            "clang": find_compiler().version,
            "libc": " ".join(platform.libc_ver()),
            "system": f"{platform.system()} {platform.release().split('-')[0]}",
        },
        "flags": [*FLAGS, *CPU_LEVELS[level][0]],
    }


def caption(environment: dict[str, Any]) -> str:
    """Return one line of text to stand beside the numbers."""
    machine, versions = environment["machine"], environment["versions"]
    clang = versions["clang"].split("version ")[-1].split(" ")[0]
    return (
        f"{cpu_caption(machine)}; torch {versions['torch']}, Python {versions['python']}, "
        f"clang {clang}, {versions['libc']}; {environment['date']}."
    )


def cpu_caption(machine: Mapping[str, Any]) -> str:
    """Return what is known of a CPU: model, cores, threads, and the kernels that torch chose."""
    words = [str(machine["cpu"])]
    if "cores" in machine:
        words.append(f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}")
    if "threads" in machine:
        words.append(f"{machine['threads']} threads")
    if "torch_capability" in machine:
        words.append(f"torch's {machine['torch_capability']} kernels")
    return ", ".join(words)
