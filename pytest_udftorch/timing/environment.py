"""What a stored measurement must say about where it was made: machine, versions, flags."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    """Return the CPU's name as the kernel states it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def describe() -> dict[str, Any]:
    """Return machine, versions, flags and date as one JSON object; no host name.

    Imports torch. ``flags`` are those that UDF libraries are compiled with.

    Raises:
        TorchNotFoundError, CompilerNotFoundError, CompilerTooOldError: as from a session.
    """
    from pytest_udftorch import __version__
    from pytest_udftorch.build.toolchain import FLAGS, find_compiler, resolve_cpu_level
    from pytest_udftorch.compat import torch_summary
    from pytest_udftorch.library.symbols import CPU_LEVELS

    torch_version, capability = torch_summary()
    level = resolve_cpu_level(None)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "cpu_level": level,
            "torch_capability": capability,
        },
        "versions": {
            "pytest_udftorch": __version__,
            "python": platform.python_version(),
            "torch": torch_version,
            "clang": find_compiler().version,
            "libc": " ".join(platform.libc_ver()),
            "system": f"{platform.system()} {platform.release().split('-')[0]}",
        },
        "flags": [*FLAGS, *CPU_LEVELS[level][0]],
    }


def caption(environment: dict[str, Any]) -> str:
    """Return one line of text for the place where the numbers are shown."""
    machine, versions = environment["machine"], environment["versions"]
    clang = versions["clang"].split("version ")[-1].split(" ")[0]
    return (
        f"{cpu_caption(machine)}; torch {versions['torch']}, Python {versions['python']}, "
        f"clang {clang}, {versions['libc']}; {environment['date']}."
    )


def cpu_caption(machine: Mapping[str, Any]) -> str:
    """Return what is known of a CPU: model, cores, threads, the kernels that torch chose for it."""
    words = [str(machine["cpu"])]
    if "cores" in machine:
        words.append(f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}")
    if "threads" in machine:
        words.append(f"{machine['threads']} threads")
    if "torch_capability" in machine:
        words.append(f"torch's {machine['torch_capability']} kernels")
    return ", ".join(words)
